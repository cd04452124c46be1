"""Take back what closes a hole, so that a simulation can show that it finds it: `make simulate ARGS="--undo horizon"`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import orjson

from siltstone import clock
from siltstone.log import horizon, wire
from siltstone.log.commit import CommitLog
from siltstone.storage.interface import StreamState
from siltstone.table import snapshot
from siltstone.testing.simulation.store import SimulatedObjects


def _numbers() -> Any:
    """Believe that a batch which could be created is part of the log."""
    return patch.object(CommitLog, "_counts", lambda log, batch: True)


def _chain() -> Any:
    """Read batches and checkpoints as they are, whatever is missing from them, and in any order."""

    def decode_chained(data: bytes, where: str, max_version: int, writer: str) -> wire.ChainedFile:
        first, *lines = data.split(b"\n")[1:] or [b""]
        with contextlib.suppress(orjson.JSONDecodeError):
            head = {key: value for key, value in orjson.loads(first).items() if key not in ("previous", "digest")}
            return wire.ChainedFile(head, lines if head["key"] == wire.CHECKPOINT_KEY else [first, *lines], None)
        return wire.ChainedFile({}, [], None)

    return patch.multiple(wire, decode_chained=decode_chained, digest_of=lambda data: None)


def _horizon() -> Any:
    """Let work commit that began before a vacuum."""
    return patch.object(horizon, "horizon_of", lambda state: -1)


def _time() -> Any:
    """Go by the clock of the machine that asks, and compare it with no other."""
    return patch.multiple(
        SimulatedObjects,
        now_ms=lambda objects, is_asked=False: clock.now_ms(),
        skew_ms=lambda objects: 0 if objects.has_clock else None,
    )


def _cut() -> Any:
    """Read each partition as far as it is compacted."""
    whole = snapshot._cut_stream

    def cut_stream(state: StreamState, members: Sequence[Any], wanted: Any) -> Any:
        cut = whole(state, members, wanted)
        if not wanted.is_compacted:
            return cut
        alone = [whole(state, [member], wanted) for member in members]
        return cut._replace(partitions=[partition for each in alone for partition in each.partitions])

    return patch.object(snapshot, "_cut_stream", cut_stream)


UNDONE: dict[str, Callable[[], Any]] = {
    "numbers": _numbers,
    "chain": _chain,
    "horizon": _horizon,
    "time": _time,
    "cut": _cut,
}
"""By the name of what is taken back: of the batch numbers, the chain, the vacuum's horizon, the store's time, one cut."""


@contextlib.contextmanager
def undone(name: str | None) -> Iterator[None]:
    """Take something back, until this is over; with no name, nothing."""
    with contextlib.nullcontext() if name is None else UNDONE[name]():
        yield
