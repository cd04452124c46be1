"""Deltas that wait for compaction, as this process knows them: which documents each has rows of, and rows that were read.

A delta never changes once it is committed, so what is known of one stays true; it is forgotten when it does not wait any
more, or, as for rows, when others need the memory.
"""

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.documents.merge import arrived_rows
from siltstone.documents.schema import KEY, SCHEMA, DocumentRow, rows_in, table_of
from siltstone.model import Delta, ManifestEntry
from siltstone.model.buckets import CompactedFile
from siltstone.rows.columns import Hashes, Integers, align, hash_keys
from siltstone.rows.files import KnownFiles, StoredFile
from siltstone.rows.job import RoundJob
from siltstone.rows.kept import Kept
from siltstone.rows.parts import bucket_numbers, gather_here
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import KeptCompletions

KEYS_PROPERTY: Final = "keys"
"""The property of a delta that has the keys of all its rows, where they are few."""

MAX_LISTED_KEYS: Final = 64
_MAX_LISTED_BYTES: Final = 4096
_MAX_TABLES: Final = 64
_KEPT_BYTES: Final = 128 << 20
_SMALL_FILE_BYTES: Final = 64 * 1024
# What the values of a row take beside their text, and what a file takes beside its rows.
_ROW_BYTES: Final = 800
_FILE_BYTES: Final = 400
_FORGET_ABOVE: Final = 100
_COMPLETIONS_BYTES: Final = 32 << 20
_FEW_BYTES: Final = 32 << 20

Files: TypeAlias = tuple[ManifestEntry, ...]


def list_keys(deltas: Iterable[Delta], keys: Sequence[str]) -> None:
    """Note with staged deltas the keys of all their rows, if they are few: readers of others need not open them."""
    distinct = sorted(set(keys))
    if len(distinct) <= MAX_LISTED_KEYS and sum(len(key.encode()) for key in distinct) <= _MAX_LISTED_BYTES:
        for delta in deltas:
            delta.properties = {**delta.properties, KEYS_PROPERTY: distinct}


class RecentDeltas:
    """What a process knows of the waiting deltas of all tables that it reads; safe for threads."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], _WaitingDeltas] = {}
        self._lock = threading.Lock()
        self._files = _KeptFiles()
        # Compacted ones.
        self.known_files = KnownFiles()
        self.completions = KeptCompletions(_COMPLETIONS_BYTES)

    def rows_of(
        self, root: str, folder: str, deltas: Sequence[Delta], keys: Iterable[str]
    ) -> dict[str, list[DocumentRow]]:
        """Return the rows of some documents in the deltas that wait, in the order in which they were committed.

        `folder` is where the table is compacted to. Raises: CorruptionError.
        """
        if not deltas:
            return {}
        found = self._waiting(root, folder).find(root, deltas, keys, self._files)
        rows: dict[str, list[DocumentRow]] = {}
        for files, wanted in found:
            for file in files:
                for row in self._files.rows_of(root, file, wanted):
                    rows.setdefault(row[0], []).append(row)
        return rows

    def _waiting(self, root: str, folder: str) -> "_WaitingDeltas":
        with self._lock:
            waiting = self._tables.pop((root, folder), None) or _WaitingDeltas()
            self._tables[root, folder] = waiting
            while len(self._tables) > _MAX_TABLES:
                self._tables.pop(next(iter(self._tables)))
            return waiting

    def arrived_by_bucket(self, job: RoundJob) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of the deltas that a job reads, bucket by bucket, in the order in which they were committed.

        Where they are few they are put together at once: most of what many small files cost is to deal each of them to its
        buckets. Raises: CorruptionError.
        """
        bytes_to_read = sum(read.content_length for read in job.reads)
        if bytes_to_read > _FEW_BYTES or any(read.of > 1 or read.names or read.slices for read in job.reads):
            yield from ((stretch.numbers[0], arrived_rows(stretch.parts)) for stretch in gather_here(job))
            return
        rows = pa.concat_tables([SCHEMA.empty_table(), *self._tables_of(job)])
        buckets = bucket_numbers(job.buckets)(hash_keys(rows, [KEY]))
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(len(job.buckets)), "right")
        for number, own in enumerate(np.split(order, ends[:-1])):
            yield number, rows.take(pa.array(own))

    def _tables_of(self, job: RoundJob) -> Iterator[pa.Table]:
        for are_small, reads in itertools.groupby(job.reads, lambda read: read.content_length <= _SMALL_FILE_BYTES):
            files = [
                ManifestEntry(uri=read.uri, record_count=read.record_count, content_length=read.content_length)
                for read in reads
            ]
            if are_small:
                yield table_of([row for file in files for row in self._files.all_rows(job.root, file)])
            else:
                yield from (align(read_data_file(job.root, file), SCHEMA) for file in files)


class _Known(NamedTuple):
    """A delta that waits: its files, and the keys of its rows unless they are many."""

    files: Files
    keys: Sequence[str] | None


class _WaitingDeltas:
    """The deltas of one table that wait, all from one position to another, by the keys of their rows.

    It takes no more memory than the log's own state, which has a line for each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._by_key: dict[str, list[int]] = {}
        self._unlisted: dict[int, None] = {}

    def find(
        self, root: str, deltas: Sequence[Delta], keys: Iterable[str], kept: "_KeptFiles"
    ) -> list[tuple[Files, set[str]]]:
        """Return the files of `deltas` that may have rows of documents, and of which, by position."""
        wanted = set(keys)
        with self._lock:
            first, last = self._follow(root, deltas, kept)
            found: dict[int, set[str]] = {position: wanted for position in self._unlisted if first <= position <= last}
            for key in wanted:
                for position in self._by_key.get(key, ()):
                    if first <= position <= last:
                        found.setdefault(position, set()).add(key)
            return [(self._known[position].files, found[position]) for position in sorted(found)]

    def _follow(self, root: str, deltas: Sequence[Delta], kept: "_KeptFiles") -> tuple[int, int]:
        """Take over deltas that are not known yet, which are mostly the last few; return the first and last position."""
        first, added = deltas[0], list(itertools.takewhile(lambda delta: not self._is_known(delta), reversed(deltas)))
        if len(added) == len(deltas) or not self._is_known(first):
            # None of them is known, or not all that come before: those that are belong to another time.
            added = added if len(added) == len(deltas) else list(reversed(deltas))
            self._known, self._by_key, self._unlisted = {}, {}, {}
        for delta in reversed(added):
            self._add(root, delta, kept)
        if len(self._known) > 2 * len(deltas) + _FORGET_ABOVE:
            self._forget_before(first.stream_position)
        return first.stream_position, deltas[-1].stream_position

    def _is_known(self, delta: Delta) -> bool:
        known = self._known.get(delta.stream_position)
        # Names of files are never used again, so that the same ones are of the same commit.
        return known is not None and known.files == tuple(delta.manifest.entries)

    def _add(self, root: str, delta: Delta, kept: "_KeptFiles") -> None:
        position, files = delta.stream_position, tuple(delta.manifest.entries)
        keys = delta.properties.get(KEYS_PROPERTY)
        if not isinstance(keys, list):
            keys = None
            if all(map(_is_small, files)) and sum(file.record_count for file in files) <= MAX_LISTED_KEYS:
                keys = sorted({row[0] for file in files for row in kept.all_rows(root, file)})
        self._known[position] = _Known(files, keys)
        if keys is None:
            self._unlisted[position] = None
        for key in keys or ():
            self._by_key.setdefault(key, []).append(position)

    def _forget_before(self, first: int) -> None:
        for position in [position for position in self._known if position < first]:
            self._unlisted.pop(position, None)
            for key in self._known.pop(position).keys or ():
                self._by_key[key].remove(position)
                if not self._by_key[key]:
                    del self._by_key[key]


class _KeyHashes(NamedTuple):
    """The hashes of the keys in a file, rising, and the row of each."""

    hashes: Hashes
    rows: Integers


class _KeptFiles:
    """What was read of files of deltas: all rows of small ones, the hashes of keys of others; those read last."""

    def __init__(self) -> None:
        self._kept = Kept[tuple[str, str], list[DocumentRow] | _KeyHashes](_KEPT_BYTES)

    def rows_of(self, root: str, file: ManifestEntry, keys: set[str]) -> Iterator[DocumentRow]:
        """Yield the rows of some documents in a file. Raises: CorruptionError."""
        if _is_small(file):
            yield from (row for row in self.all_rows(root, file) if row[0] in keys)
            return
        wanted = pa.array(sorted(keys), pa.string())
        found = self._key_hashes(root, file)
        hashes = np.unique(hash_keys(pa.table({KEY: wanted}), [KEY]))
        starts, ends = np.searchsorted(found.hashes, hashes, "left"), np.searchsorted(found.hashes, hashes, "right")
        rows = np.sort(np.concatenate([found.rows[start:end] for start, end in zip(starts, ends, strict=True)]))
        if len(rows):
            stored = StoredFile(
                root, CompactedFile(uri=file.uri, record_count=file.record_count, content_length=file.content_length)
            )
            table = stored.read_rows(rows, SCHEMA)
            yield from rows_in(table.filter(pc.is_in(table.column(KEY), wanted)))

    def all_rows(self, root: str, file: ManifestEntry) -> list[DocumentRow]:
        """Return all rows of a small file. Raises: CorruptionError."""
        kept = self._kept.get((root, file.uri))
        if not isinstance(kept, list):
            kept = list(rows_in(align(read_data_file(root, file), SCHEMA)))
            size = _FILE_BYTES + sum(_ROW_BYTES + len(row[2] or "") for row in kept)
            self._kept.keep((root, file.uri), kept, size)
        return kept

    def _key_hashes(self, root: str, file: ManifestEntry) -> _KeyHashes:
        kept = self._kept.get((root, file.uri))
        if not isinstance(kept, _KeyHashes):
            hashes = hash_keys(read_data_file(root, file, [KEY]), [KEY])
            order = np.argsort(hashes)
            kept = _KeyHashes(hashes[order], order)
            self._kept.keep((root, file.uri), kept, _FILE_BYTES + kept.hashes.nbytes + kept.rows.nbytes)
        return kept


def _is_small(file: ManifestEntry) -> bool:
    return file.content_length <= _SMALL_FILE_BYTES


recent_deltas = RecentDeltas()
