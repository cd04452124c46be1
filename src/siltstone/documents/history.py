"""The history of a document: the changes that a compaction absorbs, kept with the content after each."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from siltstone.documents.change_ids import order_key, to_iso_time
from siltstone.documents.language.parser import parse_value
from siltstone.documents.language.values import Json
from siltstone.documents.resolve import Resolver
from siltstone.documents.rows import ArchivedChange, CompactionRecord

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
    distinct = {each.change_id: each for each in changes}
    return [
        HistoryEntry(
            each.change_id,
            to_iso_time(each.change_id),
            each.version,
            each.delta,
            each.tags,
            None if each.content is None else parse_value(each.content),  # type: ignore[arg-type]
        )
        for each in sorted(distinct.values(), key=lambda each: order_key(each.change_id))
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
        found = tuple(sorted(set(tags or ())))
        self.changes.append(ArchivedChange(change_id, state.version, delta, found, state.content_text()))

    def archived(self, record: CompactionRecord | None) -> tuple[ArchivedChange, ...]:
        """Return the changes that a record absorbed, none if they are too large together."""
        if record is None:
            return ()
        compacted_bytes = len((record.compacted_delta or "").encode())
        if self._bytes + len(self.changes) * compacted_bytes >= MAX_ARCHIVE_BYTES:
            return ()
        return tuple(self.changes)
