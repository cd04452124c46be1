"""When a stream is complete: the time up to which it is closed, and the holds that keep deletions waiting.

A table whose changes carry their own time has a delay of full consistency. Before a round reads such a table's deltas,
the stream is closed up to the delay before now, by a commit to the log that deltas are committed to. A writer commits
only on the closing time that it checked its changes against. So whatever clocks and pauses do, no change of a time
that is closed can arrive after a round has relied on there being none.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields

from siltstone.errors import NotFoundError
from siltstone.log.commit import Changes, Commit
from siltstone.log.state import Entry, LogState
from siltstone.model import StreamLocator, TableVersion
from siltstone.model.properties import CLOSED_BEFORE_MS, FULL_CONSISTENCY_DELAY_MS
from siltstone.model.rounds import Bucket
from siltstone.storage import object_store as storage
from siltstone.table.completion import CURRENT_KEY, HOLD_PREFIX, Destination, DestinationState, read_state


def delay_of(properties: Mapping[str, str], where: object) -> int | None:
    """Return a table's delay of full consistency in milliseconds, None where it has none. Raises: InvalidInputError."""
    return FULL_CONSISTENCY_DELAY_MS.of(properties, where)


def closed_before(properties: Mapping[str, str]) -> int | None:
    """Return the time in milliseconds before which no change can be committed any more, None where it is open."""
    return CLOSED_BEFORE_MS.of(properties, "the table")


def close_stream(version: TableVersion, stream: StreamLocator, now_ms: int, *, root: str) -> bool:
    """Close a table's stream up to the delay before now; return whether the closing time advanced.

    `now_ms` is 0 where it is not sure what time it is: then nothing is closed. Raises: InvalidInputError.
    """
    delay = delay_of(version.properties, version.locator)
    if delay is None:
        return False
    before_ms, known = now_ms - delay, closed_before(version.properties)
    if before_ms <= 0 or (known is not None and known >= before_ms):
        return False
    return storage.close_stream(stream, before_ms=before_ms, root=root)


@dataclass(frozen=True)
class Hold:
    """Nothing of a time up to `since_ms` is deleted, until the hold is released or `until_ms` has come.

    It also keeps the state that it was made on: the round that was current then, None before the first, and the deltas
    after that round up to `stream_position`. Holds of earlier versions have no position, and keep no state.
    """

    hold_id: str
    since_ms: int
    until_ms: int
    reason: str = ""
    round_id: int | None = None
    high_watermark: int = 0
    stream_position: int | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps the state that it was made on."""
        return self.stream_position is not None


def add_hold(
    destination: Destination, *, since_ms: int, until_ms: int, reason: str = "", stream_position: int | None = None
) -> Hold:
    """Make deletions wait. From when this returns, no round can commit one, nor one that was planned before.

    What the stream has up to `stream_position` is kept as a state of the table, with the round that is current now.
    """

    def prepare(state: LogState) -> Commit[Hold]:
        current = state.get(CURRENT_KEY) or {}
        watermark = int(current.get("high_watermark", 0))
        # A round may have gone further than the position that was seen; then it is in the stream too.
        position = None if stream_position is None else max(stream_position, watermark)
        hold = Hold(uuid.uuid4().hex, since_ms, until_ms, reason, current.get("round_id"), watermark, position)
        return Commit({f"{HOLD_PREFIX}{hold.hold_id}": asdict(hold)}, hold)

    return destination.log.commit("hold", prepare).result


def release_hold(destination: Destination, hold_id: str) -> None:
    """End a hold. Raises: NotFoundError."""
    key = f"{HOLD_PREFIX}{hold_id}"

    def prepare(state: LogState) -> Changes:
        if key not in state:
            raise NotFoundError(f"{destination.locator}: there is no hold {hold_id!r}; it may be released already")
        return {key: None}

    destination.log.commit("release", prepare)


def list_holds(destination: Destination) -> list[Hold]:
    """Return all holds, also those whose time is over, in the order they were made."""
    return read_holds(read_state(destination).holds)


def read_holds(entries: Sequence[Entry]) -> list[Hold]:
    """Return the holds that a log tells of."""
    known = [field.name for field in fields(Hold)]
    return [Hold(**{name: entry[name] for name in known if name in entry}) for entry in entries]


def hold_floor(holds: Sequence[Hold], now_ms: int) -> int | None:
    """Return the time up to which nothing is deleted, None where nothing is held."""
    return min((hold.since_ms for hold in holds if hold.until_ms > now_ms), default=None)


def held_watermark(destination: Destination, now_ms: int) -> int | None:
    """Return the position after which deltas are needed by states that holds keep, None where there are none."""
    kept = [hold.high_watermark for hold in list_holds(destination) if hold.keeps_state and hold.until_ms > now_ms]
    return min(kept, default=None)


def is_due(bucket: Bucket, now_ms: int, floor_ms: int | None) -> bool:
    """Return whether a bucket has something to do though no delta is for it."""
    if bucket.due_at is not None and bucket.due_at <= now_ms:
        return True
    return bucket.held_at is not None and (floor_ms is None or floor_ms > bucket.held_at)


def is_partition_due(state: DestinationState, now_ms: int) -> bool:
    """Return, by the log alone, whether any bucket of a compacted partition has something to do by a time."""
    entry = state.current or {}
    marks = Bucket(depth=0, bits=0, due_at=entry.get("due_at"), held_at=entry.get("held_at"))
    return is_due(marks, now_ms, hold_floor(read_holds(state.holds), now_ms))
