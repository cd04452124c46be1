"""Resolving a document: deltas applied one after another, and the history that a compaction keeps of them."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from siltstone.documents.language.deltas import Delta
from siltstone.documents.language.parser import parse_delta, parse_value
from siltstone.documents.language.values import (
    DELETED,
    FIRST_UPDATE_AT,
    ID,
    LAST_MUTATE_AT,
    LAST_UPDATE_AT,
    PLACEMENT,
    SIGNATURE,
    TABLE,
    UNDEFINED,
    Json,
    Value,
    partition_of,
    strictly_equal,
    value_text,
)
from siltstone.documents.record import ArchivedChange, CompactionRecord, Row, order_key, to_bytes, to_iso_time
from siltstone.errors import CorruptionError, InvalidInputError

NO_TAGS: Final[frozenset[str]] = frozenset()
ZERO_SIGNATURE: Final = bytes(16)


class Resolver:
    """The state of one document after some of its deltas; conditions ask it about the document so far."""

    __slots__ = (
        "content",
        "first_update_at",
        "last_mutate_at",
        "last_mutation",
        "last_tags",
        "last_update_at",
        "redundant",
        "row",
        "signature",
        "version",
    )

    def __init__(self, row: Row, record: CompactionRecord | None = None) -> None:
        self.row = row
        self.content: Value = UNDEFINED
        self.version = 0
        self.signature = ZERO_SIGNATURE
        self.first_update_at: str | None = None
        self.last_update_at: str | None = None
        self.last_mutate_at: str | None = None
        self.last_mutation: str | None = None
        self.last_tags = NO_TAGS
        self.redundant: list[str] = []
        if record is not None:
            self._start_from(record)

    def _start_from(self, record: CompactionRecord) -> None:
        self.version = record.count
        self.first_update_at = record.first
        self.last_mutation = record.last_mutation
        if record.compacted_delta is None:
            self.last_update_at = self.last_mutate_at = record.first
            return
        self.content = parse_stored(record.compacted_delta, record.change_id).apply()
        self.signature = bytes.fromhex(record.cutoff_signature or "")
        self.last_update_at = record.cutoff
        self.last_mutate_at = record.last_content_mutation or record.last_mutation
        self.last_tags = frozenset(record.last_tags or ())

    def update(self, change_id: str, delta: Delta, tags: Sequence[str] | None) -> None:
        """Apply the next delta; whether it is redundant follows from its predecessors alone."""
        updated = delta.apply(self.content, self)
        changed = not strictly_equal(self.content, updated)
        now_tags = frozenset(tags) if tags else NO_TAGS
        if changed or now_tags != self.last_tags:
            self.last_mutation = change_id
        else:
            self.redundant.append(change_id)
        self.content = updated
        self.last_tags = now_tags
        self.version += 1
        self.signature = hashlib.md5(self.signature + to_bytes(change_id), usedforsecurity=False).digest()
        if self.first_update_at is None:
            self.first_update_at = change_id
        self.last_update_at = change_id
        if changed or self.last_mutate_at is None:
            self.last_mutate_at = change_id

    def to_record(self, change_id: str) -> CompactionRecord:
        """Return the record of all that was resolved so far."""
        return CompactionRecord(
            change_id,
            self.version,
            self.first_update_at,
            self.last_update_at,
            self.signature.hex(),
            self.last_mutate_at,
            self.last_mutation,
            self.content_text() or "~",
            tuple(sorted(self.last_tags)),
        )

    def content_text(self) -> str | None:
        """Return the canonical text of the content, None where there is none."""
        return None if self.content is UNDEFINED else value_text(self.content)

    def intrinsic(self, name: str) -> Json:
        """Return what a condition asks for."""
        if name == SIGNATURE:
            return self.signature.hex()
        if name == DELETED:
            return self.content is UNDEFINED
        if name in (ID, TABLE):
            return self.row.key if name == ID else self.row.table
        if name == PLACEMENT:
            return self.row.placement
        times = {
            FIRST_UPDATE_AT: self.first_update_at,
            LAST_UPDATE_AT: self.last_update_at,
            LAST_MUTATE_AT: self.last_mutate_at,
        }
        change_id = times[name]
        return None if change_id is None else to_iso_time(change_id)

    def partition(self, count: int) -> int:
        """Return which of `count` partitions the document is in."""
        return partition_of(self.row.table, self.row.key, count)


def parse_stored(text: str, change_id: str) -> Delta:
    """Read the delta of a row. Raises: InvalidInputError, naming the change."""
    try:
        return parse_delta(text)
    except InvalidInputError as error:
        raise InvalidInputError(f"change {change_id}: {error}") from error


def check_record(record: CompactionRecord) -> None:
    """Make sure that a record can be started from. Raises: CorruptionError."""
    signature = record.cutoff_signature
    try:
        is_whole = signature is not None and len(bytes.fromhex(signature)) == len(ZERO_SIGNATURE)
    except ValueError:
        is_whole = False
    if record.first is None or record.cutoff is None or not is_whole:
        raise CorruptionError(
            f"compaction record {record.change_id}: {record.count} deltas, first {record.first}, cutoff {record.cutoff}, "
            f"signature {signature}; a record with deltas has all three. Remove the record, or restore the row"
        )
    if order_key(record.first) > order_key(record.cutoff):
        raise CorruptionError(
            f"compaction record {record.change_id}: first {record.first} is later than cutoff {record.cutoff}; "
            "remove the record, or restore the row"
        )


MAX_CHANGE_BYTES: Final = 2 << 20
MAX_ARCHIVE_BYTES: Final = 10 << 20


class HistoryEntry(NamedTuple):
    """One change of a document, with the version and the content after it; content None means deleted."""

    change_id: str
    at: str
    version: int
    delta: str
    tags: tuple[str, ...]
    content: dict[str, Json] | None


def history_of(changes: Iterable[ArchivedChange]) -> list[HistoryEntry]:
    """Return changes by time, each once."""
    distinct = {change.change_id: change for change in changes}
    return [
        HistoryEntry(
            change.change_id,
            to_iso_time(change.change_id),
            change.version,
            change.delta,
            change.tags,
            None if change.content is None else parse_value(change.content),  # type: ignore[arg-type]
        )
        for change in sorted(distinct.values(), key=lambda change: order_key(change.change_id))
    ]


class ArchiveBuilder:
    """Collects the changes of one pass. History is best effort: what is too large is left out, and all with it."""

    def __init__(self, *, is_bounded: bool = True) -> None:
        self.changes: list[ArchivedChange] = []
        self._is_bounded = is_bounded
        self._is_too_large = False
        self._bytes = 0

    def add(self, change_id: str, delta: str, tags: Sequence[str] | None, state: Resolver) -> None:
        """Keep a change that was applied just now."""
        size = len(delta.encode())
        self._bytes += size
        self._is_too_large = self._is_too_large or size >= MAX_CHANGE_BYTES or self._bytes >= MAX_ARCHIVE_BYTES
        if self._is_bounded and self._is_too_large:
            self.changes.clear()
            return
        distinct = tuple(sorted(set(tags or ())))
        self.changes.append(ArchivedChange(change_id, state.version, delta, distinct, state.content_text()))

    def archived(self, record: CompactionRecord | None) -> tuple[ArchivedChange, ...]:
        """Return the changes that a record absorbed, none if they are too large together."""
        if record is None:
            return ()
        compacted_bytes = len((record.compacted_delta or "").encode())
        if self._bytes + len(self.changes) * compacted_bytes >= MAX_ARCHIVE_BYTES:
            return ()
        return tuple(self.changes)
