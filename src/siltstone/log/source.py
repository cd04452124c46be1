"""The log of the files a streaming query has read: Spark's `<checkpoint>/sources/<n>`, read and written."""

import os
from typing import NamedTuple, Unpack

from siltstone.errors import CorruptionError
from siltstone.log.batches import BatchFile, verify_batch_ids
from siltstone.log.codec import RecordCodec
from siltstone.log.compactible import CompactibleLog, LogOptions
from siltstone.objects import open_objects


class SourceEntry(NamedTuple):
    """One input file, and the batch that read it: an entry keeps its own batch id inside compact files."""

    path: str
    timestamp_ms: int
    batch_id: int


SOURCE_CODEC = RecordCodec(SourceEntry, {"path": str, "timestamp": int, "batchId": int})


class SourceLog(CompactibleLog[SourceEntry]):
    """The log of a file source, at the folder of the source in the query's checkpoint."""

    def __init__(self, folder: str | os.PathLike[str], **options: Unpack[LogOptions]) -> None:
        super().__init__(open_objects(folder), "", SOURCE_CODEC, **options)

    def all_files(self) -> list[SourceEntry]:
        """Return all files read so far, oldest first; see `live_entries`."""
        return self.live_entries()

    def restore(self) -> list[SourceEntry]:
        """Return what a query that starts again must know: all files read so far."""
        return self.live_entries()

    def get_range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, list[SourceEntry]]]:
        """Return for each batch from `start` to `end` the entries it added itself.

        Batches whose file has expired are taken from the newest compact file. A range that ends before it starts
        is empty. Raises: CorruptionError where a batch is missing.
        """
        listing = self.listing()
        first = 0 if start is None else start
        last = (listing.latest or 0) if end is None else end
        if first > last:
            return []
        batches = {
            file.batch_id: [entry for entry in self.read_entries(file.name) if entry.batch_id == file.batch_id]
            for file in listing.files
            if not file.is_compact and first <= file.batch_id <= last
        }
        compact = listing.newest_compact()
        if compact is not None:
            self._recover(batches, compact, range(first, min(last, compact.batch_id) + 1))
        ids = sorted(batches)
        try:
            verify_batch_ids(ids, start, end)
        except CorruptionError as error:
            raise CorruptionError(f"{self.address()}: {error}; restore these batches from a copy") from error
        return [(batch_id, batches[batch_id]) for batch_id in ids]

    def _recover(self, batches: dict[int, list[SourceEntry]], compact: BatchFile, wanted: range) -> None:
        lost: dict[int, list[SourceEntry]] = {batch_id: [] for batch_id in wanted if batch_id not in batches}
        if not lost:
            return
        for part in self.stream_entries(compact.name):
            for entry in part:
                if entry.batch_id in lost:
                    lost[entry.batch_id].append(entry)
        batches.update(lost)
