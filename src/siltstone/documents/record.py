"""What is stored of a document: changes with their ids, compaction records, and what history keeps of changes.

Change ids are version-1 UUIDs, which carry their time; they are made in order and compared by time.
"""

import datetime
import functools
import os
import re
import threading
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from siltstone import clock
from siltstone.errors import InvalidInputError

MAX_TAGS: Final = 3
MAX_TAG_LENGTH: Final = 8
_FORM: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
TICKS_PER_MS: Final = 10_000
# The time of a version-1 UUID counts from the start of the Gregorian calendar.
EPOCH_MS: Final = 12_219_292_800_000
_MAX_TICKS: Final = (1 << 60) - 1
_UNIX_EPOCH: Final = datetime.datetime(1970, 1, 1)


class Change(NamedTuple):
    """One delta under its change id, never modified. Wherever changes are read, plain tuples will do."""

    change_id: str
    delta: str
    tags: Sequence[str] | None = ()


class CompactionRecord(NamedTuple):
    """What was resolved up to a cutoff, under a change id of its own.

    `count` deltas from `first` to `cutoff` resolve to `compacted_delta`, a literal or `~`. Legacy records have none: they
    do not count the cutoff delta, which then holds the content.
    """

    change_id: str
    count: int  # type: ignore[assignment]  # a tuple's own method of that name is not missed
    first: str | None
    cutoff: str | None
    cutoff_signature: str | None
    last_content_mutation: str | None
    last_mutation: str | None
    compacted_delta: str | None
    last_tags: Sequence[str] | None = ()


class Row(NamedTuple):
    """All that is stored for one document, in any order. Key, table and placement matter to conditions only."""

    changes: Sequence[tuple[str, str, Sequence[str] | None]]
    records: Sequence[CompactionRecord] = ()
    key: str = ""
    table: str = ""
    placement: str | None = None


class ArchivedChange(NamedTuple):
    """A change that a compaction absorbed, with the version and the content after it; content None means deleted.

    `record_id` is the record that absorbed it. What programs from before have kept says neither that, nor `is_redundant`.
    """

    change_id: str
    version: int
    delta: str
    tags: tuple[str, ...]
    content: str | None
    is_redundant: bool | None = None
    record_id: str | None = None

    @property
    def kept_since_ms(self) -> int:
        """When it came into history; where that is not known, when the change was made."""
        return to_ms(self.record_id or self.change_id)


def check_change_id(change_id: str | uuid.UUID) -> str:
    """Return the id as text in lower case. Raises: InvalidInputError where it is not a version-1 UUID."""
    lowered = str(change_id).lower() if isinstance(change_id, str | uuid.UUID) else ""
    if _FORM.fullmatch(lowered) is None:
        raise InvalidInputError(
            f"{change_id!r:.60} is not a change id; use a version-1 UUID such as febb5880-2c64-11e4-8000-000000000000"
        )
    return lowered


def order_key(change_id: str) -> str:
    """Return what sorts ids by time, then by the low 64 bits."""
    return f"{change_id[15:18]}{change_id[9:13]}{change_id[:8]}{change_id[19:23]}{change_id[24:]}"


def time_bound(time_ms: int) -> str:
    """Return what sorts after the keys of all ids before a time, and before those of all others."""
    ticks = (time_ms + EPOCH_MS) * TICKS_PER_MS
    if ticks <= 0:
        return ""
    return f"{ticks:015x}" if ticks <= _MAX_TICKS else "g"


def to_ms(change_id: str) -> int:
    """Return the time of an id, in whole milliseconds since 1970."""
    return int(change_id[15:18] + change_id[9:13] + change_id[:8], 16) // TICKS_PER_MS - EPOCH_MS


def to_bytes(change_id: str) -> bytes:
    """Return the 16 bytes of an id, as signatures hash them."""
    return bytes.fromhex(change_id.replace("-", ""))


# The first and the last change of a document are often the same.
@functools.lru_cache(maxsize=64)
def to_iso_time(change_id: str) -> str:
    """Return the time of an id in ISO 8601, to the millisecond, in UTC."""
    return iso_time(to_ms(change_id))


def iso_time(time_ms: int) -> str:
    """Return a time in ISO 8601, to the millisecond, in UTC."""
    return (_UNIX_EPOCH + datetime.timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds") + "Z"


def change_id_at(time_ms: int, *, ticks: int = 0, clock_sequence: int = 0, node: int = 0) -> str:
    """Return the id of a time and so many steps of 100 nanoseconds. Raises: InvalidInputError."""
    since = (time_ms + EPOCH_MS) * TICKS_PER_MS + ticks
    if not 0 <= since <= _MAX_TICKS:
        raise InvalidInputError(f"{time_ms} ms is a time that no change id can have")
    return _written(since, clock_sequence, node)


def _written(ticks: int, clock_sequence: int, node: int) -> str:
    digits = f"{ticks:015x}"
    return f"{digits[7:]}-{digits[3:7]}-1{digits[:3]}-{0x8000 | clock_sequence:04x}-{node:012x}"


class ChangeIds:
    """Makes ids that no other process makes, each later than the one before; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ticks = 0
        self._become_unique()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_anew)

    def new(self, now_ms: int) -> str:
        """Make an id of the present time, or right after the last one where the clock has not moved on."""
        now = (now_ms + EPOCH_MS) * TICKS_PER_MS
        with self._lock:
            self._last_ticks = max(now, self._last_ticks + 1)
            return _written(self._last_ticks, self._clock_sequence, self._node)

    def _become_unique(self) -> None:
        drawn = int.from_bytes(os.urandom(8), "big")
        self._clock_sequence = drawn & 0x3FFF
        # The lowest bit of the first byte says that this is not a network card's address.
        self._node = drawn >> 16 | 1 << 40

    def _start_anew(self) -> None:
        # A forked process must not go on with its parent's node, nor with a lock that a thread held.
        self._lock = threading.Lock()
        self._become_unique()


_ids = ChangeIds()


def new_change_id(now_ms: int | None = None) -> str:
    """Make an id of the present time: unique, and later than all that this process made before."""
    return _ids.new(clock.now_ms() if now_ms is None else now_ms)


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of a write in order, each once. Raises: InvalidInputError."""
    if isinstance(tags, str):
        raise InvalidInputError(f"tags are a list of strings; write ({tags!r},) for a single one")
    distinct = tuple(sorted(set(tags)))
    if len(distinct) > MAX_TAGS:
        raise InvalidInputError(f"{len(distinct)} tags are too many ({', '.join(distinct)}); use at most {MAX_TAGS}")
    for tag in distinct:
        if not isinstance(tag, str) or not 1 <= len(tag) <= MAX_TAG_LENGTH:
            raise InvalidInputError(f"tag {tag!r}: a tag has 1 to {MAX_TAG_LENGTH} characters")
        try:
            tag.encode()
        except UnicodeEncodeError as error:
            raise InvalidInputError(f"tag {tag!r}: has a lone surrogate at {error.start}; give valid text") from error
    return distinct
