"""The history of a document: the changes that a compaction absorbs, kept with the content after each."""

from collections.abc import Sequence
from typing import Final

from siltstone.documents.resolve import Resolver
from siltstone.documents.rows import ArchivedChange, CompactionRecord

MAX_CHANGE_BYTES: Final = 2 << 20
MAX_ARCHIVE_BYTES: Final = 10 << 20


class ArchiveBuilder:
    """Collects the changes of one pass. History is best effort: what is too large is left out, and all with it."""

    def __init__(self) -> None:
        self._changes: list[ArchivedChange] = []
        self._bytes = 0
        self._is_too_large = False

    def add(self, change_id: str, delta: str, tags: Sequence[str] | None, state: Resolver) -> None:
        """Keep a change that was applied just now."""
        size = len(delta.encode())
        self._bytes += size
        self._is_too_large = self._is_too_large or size >= MAX_CHANGE_BYTES or self._bytes >= MAX_ARCHIVE_BYTES
        if not self._is_too_large:
            found = tuple(sorted(set(tags or ())))
            self._changes.append(ArchivedChange(change_id, state.version, delta, found, state.content_text()))

    def archived(self, record: CompactionRecord | None) -> tuple[ArchivedChange, ...]:
        """Return the changes that a record absorbed, none if they are too large together."""
        if record is None or self._is_too_large:
            return ()
        compacted_bytes = len((record.compacted_delta or "").encode())
        if self._bytes + len(self._changes) * compacted_bytes >= MAX_ARCHIVE_BYTES:
            return ()
        return tuple(self._changes)
