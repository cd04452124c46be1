"""What `siltstone compact` does: sees what is new, starts Spark only for that, and sums up what happened."""

import contextlib
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from siltstone.cli.hints import find_table
from siltstone.cli.results_rounds import Compacted, RoundLine
from siltstone.cli.rounds import amplification, round_line, table_partitions
from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.lake import Lake, compact_request
from siltstone.model import PartitionLocator
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.events import Event
from siltstone.rounds.plan import Request
from siltstone.rounds.request import (
    TableRequest,
    partition_requests,
    requests_with_work,
)
from siltstone.rounds.session import SessionResult
from siltstone.storage import object_store as storage
from siltstone.table.completion import compacted_partition, current_completion, locate_destination

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[["Event | SparkStarting"], None]
"""Told of each event: those of a session, and that Spark starts."""

_LOCAL_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?")
_CLUSTER_MASTER = re.compile(r"(spark|k8s)://.+|yarn")


@dataclass(frozen=True)
class SparkStarting:
    """There is work, and Spark starts for it."""


def _tell_nobody(event: "Event | SparkStarting") -> None:
    """Show nothing."""


def compact_table(
    lake: Lake, asked: TableRequest, *, master: str | None = None, tell: Tell = _tell_nobody
) -> Compacted:
    """Compact what is new in each partition. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    started = time.perf_counter()
    conf = spark_settings(master)
    requests = find_requests(lake, asked)
    waiting = requests_with_work(requests)
    seconds = {"plan": time.perf_counter() - started}
    results: list[SessionResult] = []
    if waiting:
        tell(SparkStarting())
        spark = _start_spark(conf)
        seconds["spark_start"] = time.perf_counter() - started - seconds["plan"]
        with _interrupted_quietly():
            results = [compact_request(request, spark, tell) for request in waiting]
    seconds["total"] = time.perf_counter() - started
    rounds = [round_line(completion) for result in results for completion in result.rounds]
    for step in ("tasks", "merge", "write"):
        seconds[step] = sum(line.seconds.get(step, 0.0) for line in rounds)
    conflicts = sum(result.conflicts for result in results)
    return _summary(lake, asked.name, newest_position(requests), rounds, conflicts, seconds)


def find_requests(lake: Lake, asked: TableRequest) -> list[Request]:
    """Say what is to be compacted in each partition. Raises: NotFoundError that also guesses which table was meant."""
    for name in (asked.name, asked.rebase_from, asked.on_behalf_of):
        if isinstance(name, str) and "/" not in name:
            find_table(lake, name)
    return partition_requests(asked)


def _summary(
    lake: Lake, name: str, position: int, rounds: Sequence[RoundLine], conflicts: int, seconds: Mapping[str, float]
) -> Compacted:
    sources = table_partitions(lake, name)
    current = [each for each in map(partial(_current, lake), sources) if each is not None]
    rows, live_rows = (
        sum(sum(file.record_count for file in each.files) for each in current),
        sum(each.live_rows for each in current),
    )

    def total(name: str) -> int:
        return sum(getattr(line, name) for line in rounds)

    return Compacted(
        table=name,
        partitions=len(sources),
        stream_position=position,
        rounds=rounds,
        deltas=total("deltas"),
        delta_rows=total("delta_rows"),
        superseded_rows=total("superseded_rows"),
        deleted_rows=total("deleted_rows"),
        duplicate_rows=total("duplicate_rows"),
        live_rows=live_rows,
        dead_rows=rows - live_rows,
        read_amplification=amplification(rows, live_rows),
        input_bytes=total("input_bytes"),
        written_bytes=total("written_bytes"),
        carried_bytes=total("carried_bytes"),
        write_amplification=amplification(total("written_bytes"), total("input_bytes")),
        conflicts=conflicts,
        seconds=seconds,
    )


def newest_position(requests: Sequence[Request]) -> int:
    """Return the position of the newest delta of all that is compacted, 0 where there is none."""
    newest = 0
    for request in requests:
        with contextlib.suppress(NotFoundError):
            partition = storage.get_partition(request.rebase_source or request.source, root=request.root)
            newest = max(newest, partition.stream_position)
    return newest


def _current(lake: Lake, source: PartitionLocator) -> RoundCompletion | None:
    return current_completion(locate_destination(compacted_partition(source), root=lake.root))


def spark_settings(master: str | None) -> dict[str, str]:
    """Return Spark's settings for a master. Raises: InvalidInputError."""
    if master is None:
        return {}
    if _LOCAL_MASTER.fullmatch(master):
        return {"spark.master": master}
    if _CLUSTER_MASTER.fullmatch(master):
        # Executors elsewhere call back; they cannot do so at the loopback address.
        host = socket.getfqdn()
        return {"spark.master": master, "spark.driver.host": host, "spark.driver.bindAddress": "0.0.0.0"}  # noqa: S104
    raise InvalidInputError(
        f"{master!r} is no master of Spark; give e.g. local[4], spark://host:7077, k8s://https://host:6443 or yarn"
    )


def _start_spark(conf: Mapping[str, str]) -> "SparkSession":
    from siltstone.spark import session

    with _interrupted_later():
        return session.local_session(conf=conf, is_short=True)


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Keep a first Ctrl-C until Spark has started: in the middle of that, its Java would go on without us for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def keep(number: int, frame: object) -> None:
        if waiting:
            raise KeyboardInterrupt
        waiting.append(number)

    before = signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        # Spark sets a handler of its own, which cancels its jobs.
        if signal.getsignal(signal.SIGINT) is keep:
            signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupted_quietly() -> Iterator[None]:
    """Take Ctrl-C as everywhere else.

    Spark's own handler talks to Java while an answer of Java's is awaited on the same connection, which fails with
    pages of traces; and what ends with this process needs no cancelling. The gateway to Java logs the interrupt, too.
    """
    root = logging.getLogger()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)
        if is_main:
            signal.signal(signal.SIGINT, before)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
