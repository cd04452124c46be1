"""Plain batches that came too late: written after the compact file that should hold them, so no reader sees them."""

from typing import NamedTuple

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.batches import BatchFile, BatchListing
from siltstone.log.sink import SinkEntry, SinkLog
from siltstone.log.source import SourceEntry, SourceLog


class PassedBatch(NamedTuple):
    """A plain batch, and those of its entries that the compact file after it lacks."""

    file: BatchFile
    compact: BatchFile
    hidden: list[SinkEntry | SourceEntry]


def passed_batches(log: SinkLog | SourceLog, listing: BatchListing) -> list[PassedBatch]:
    """Find the batches that the newest compact file should hold and does not; a batch that is damaged is left out.

    Retention drops the oldest files and no others: only an entry younger than one that was kept is missing.
    Raises: CorruptionError, NotFoundError for the compact file.
    """
    compact = listing.newest_compact()
    if compact is None:
        return []
    batches = {
        file: _readable_entries(log, file)
        for file in listing.files
        if not file.is_compact and file.batch_id <= compact.batch_id
    }
    missing = {entry.path for entries in batches.values() for entry in entries}
    if not missing:
        return []
    oldest_ms: int | None = None
    for part in log.stream_entries(compact.name):
        for entry in part:
            missing.discard(entry.path)
            if isinstance(entry, SinkEntry) and (oldest_ms is None or entry.modified_ms < oldest_ms):
                oldest_ms = entry.modified_ms
    passed = []
    for file, entries in batches.items():
        hidden = [entry for entry in entries if entry.path in missing and not _may_have_expired(entry, oldest_ms)]
        if hidden:
            passed.append(PassedBatch(file, compact, hidden))
    return passed


def _readable_entries(log: SinkLog | SourceLog, file: BatchFile) -> list[SinkEntry | SourceEntry]:
    try:
        return list(log.read_entries(file.name))
    except (CorruptionError, NotFoundError):
        return []


def _may_have_expired(entry: SinkEntry | SourceEntry, oldest_ms: int | None) -> bool:
    return isinstance(entry, SinkEntry) and (oldest_ms is None or entry.modified_ms < oldest_ms)
