"""Compaction of documents, and how rounds merge tables of any kind."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.documents.expand import BEFORE_ALL_MS, Expansion, expand, naming
from siltstone.documents.record import ArchivedChange, CompactionRecord, change_id_at, order_key, to_ms
from siltstone.documents.schema import KEY, SCHEMA, StoredRow, archive_rows, condition_name, grouped, record_rows
from siltstone.errors import InvalidInputError
from siltstone.model.buckets import Bucket
from siltstone.model.properties import (
    DOCUMENTS_KIND,
    FOREVER_SECONDS,
    HISTORY_RETENTION_SECONDS,
    KEEP_HISTORY,
    ROWS_KIND,
)
from siltstone.model.rounds import Accounting
from siltstone.rows import merge
from siltstone.rows.absorb import Change, Marks, Rows
from siltstone.rows.columns import Flags, Integers, align, equal_ids, hash_keys
from siltstone.rows.files import StoredFile
from siltstone.rows.job import BucketResult, Part, RoundJob, Stretch
from siltstone.rows.slices import StretchFiles
from siltstone.table.completion import delay_of

_LIGHT = pa.schema([SCHEMA.field(name) for name in (KEY, "count")])
_KEPT_SINCE = pa.schema([SCHEMA.field(name) for name in ("change_id", "cutoff")])
_NONE: Integers = np.zeros(0, np.int64)
# A bucket drops what is past the retention of history at most so many times within it: each time, all of it is read.
_HISTORY_STEPS = 10
_SEQUENCE_BITS = 14
_NODE_BITS = 48
# The lowest bit of a node's first byte says that it is not a network card's address.
_NO_CARD = 1 << 40


def resolve_documents(job: RoundJob, stretch: Stretch, files: StretchFiles) -> list[Change]:
    """Return what a bucket's parts of deltas, and the time, change. Raises: CorruptionError naming the document.

    Documents are expanded one by one, so that merging several buckets together would save nothing.
    """
    return [_bucket_change(job, bucket, files.of(place), stretch.parts) for place, bucket in enumerate(stretch.buckets)]


def _bucket_change(job: RoundJob, bucket: Bucket, stored: Sequence[StoredFile], parts: Sequence[Part]) -> Change:
    new = arrived_rows(parts)
    is_visited = job.visits(bucket)
    split = split_rows(stored, new) if is_visited else [FileRows(_NONE, own) for own in _touched(job, stored, new)]
    rows = [file_rows.others for file_rows in split]
    read = [file.read_rows(own, SCHEMA) for file, own in zip(stored, rows, strict=True) if len(own)]
    pass_ = _Pass(job, sum(map(len, rows)) + new.num_rows)
    expired = [pass_.expired(file, file_rows.archived) for file, file_rows in zip(stored, split, strict=True)]
    for document in grouped(pa.concat_tables([*read, new]), condition_name(job.properties, job.table)):
        pass_.expand(document)
    *dead, gone = np.split(pass_.is_gone, np.cumsum([len(own) for own in rows]))
    kept = new.filter(pa.array(~gone))
    # Rows of one document beside each other, in their order: a reader then finds them in one place.
    kept = kept.take(pa.array(np.argsort(hash_keys(kept, [KEY]), kind="stable")))
    records, archived = record_rows(pass_.records), archive_rows(pass_.archived)
    return Change(
        dead=[np.union1d(own[flags], old) for own, flags, old in zip(rows, dead, expired, strict=True)],
        rows=Rows.all_of(pa.concat_tables([kept, records, archived])),
        accounting=Accounting(
            base_rows=bucket.live_count,
            delta_rows=new.num_rows,
            added_rows=len(pass_.records) + len(pass_.archived),
            deleted_rows=int(pass_.is_gone.sum()) - pass_.duplicates + sum(map(len, expired)),
            duplicate_rows=pass_.duplicates,
        ),
        marks=pass_.marks(bucket, is_whole=is_visited),
    )


def arrived_rows(parts: Sequence[Part]) -> pa.Table:
    """Return the rows of parts of deltas, in the order in which they were committed."""
    arrived = [align(part.table, SCHEMA) for part in parts]
    return pa.concat_tables([SCHEMA.empty_table(), *arrived])


def _touched(job: RoundJob, stored: Sequence[StoredFile], new: pa.Table) -> list[Integers]:
    """Return, by file, the rows of all documents that rows came for; archived ones are left out where there are many."""
    hashes = np.unique(hash_keys(new, [KEY]))
    touched = [file.live_among(file.find(hashes)[0]) for file in stored]
    if not KEEP_HISTORY.of(job.properties, job.table):
        return touched
    return [rows[_is_current(file.read_rows(rows, _LIGHT))] for file, rows in zip(stored, touched, strict=True)]


class FileRows(NamedTuple):
    """The live rows of a file: of documents that are just one record, of all others, and those that history keeps."""

    single_records: Integers
    others: Integers
    archived: Integers = _NONE


def split_rows(stored: Sequence[StoredFile], new: pa.Table) -> list[FileRows]:
    """Separate documents that are just one record from those that are more, given the rows that came for them."""
    live = [np.flatnonzero(file.live_flags()) for file in stored]
    light = [file.read_rows(rows, _LIGHT) for file, rows in zip(stored, live, strict=True)]
    ids, count = equal_ids([*light, new], [KEY])
    current = [_is_current(table) for table in (*light, new)]
    sizes = np.bincount(np.concatenate([own[flags] for own, flags in zip(ids, current, strict=True)]), minlength=count)
    split = []
    for rows, table, own, flags in zip(live, light, ids[:-1], current[:-1], strict=True):
        is_single = np.asarray(table.column("count").is_valid()) & (sizes[own] == 1)
        split.append(FileRows(rows[flags & is_single], rows[flags & ~is_single], rows[~flags]))
    return split


def _is_current(rows: pa.Table) -> Flags:
    """Flag rows that are not archived."""
    flags: Flags = np.asarray(pc.fill_null(pc.greater_equal(rows.column("count"), 0), True))
    return flags


class _Pass:
    """One round's pass over documents of a bucket; positions count the rows that were stored, then those that came."""

    def __init__(self, job: RoundJob, row_count: int) -> None:
        self._job = job
        self._closed_ms = BEFORE_ALL_MS if job.closed_before_ms is None else job.closed_before_ms
        self._delay_ms = delay_of(job.properties, job.table) or 0
        self._new_id = record_id(job.now_ms, job.seed)
        self._due_at: int | None = None
        self._is_held = False
        self.is_gone = np.zeros(row_count, np.bool_)
        self._keeps_history = KEEP_HISTORY.of(job.properties, job.table)
        self._history_ms = round(HISTORY_RETENTION_SECONDS.of(job.properties, job.table) * 1000)
        self.records: list[tuple[str, CompactionRecord]] = []
        self.archived: list[tuple[str, ArchivedChange]] = []
        self.duplicates = 0

    def expand(self, stored: StoredRow) -> None:
        """Expand one document, and note what it adds and deletes."""
        row = stored.row
        with naming(self._job.table, row):
            result = expand(
                row,
                fct=self._closed_ms,
                raw=self._closed_ms,
                ctl=self._job.hold_floor_ms,
                new_id=self._new_id,
                keep_history=self._keeps_history,
            )
        self.is_gone[stored.duplicates] = True
        self.duplicates += len(stored.duplicates)
        if result.write is not None:
            self.records.append((row.key, result.write))
            self.archived += [(row.key, change) for change in result.archived]
            if result.archived:
                self._keep_history(to_ms(result.write.change_id))
        if result.delete:
            self._delete(stored, result)
        if result.due_ms is not None:
            self._remember(result.due_ms)

    def _delete(self, stored: StoredRow, result: Expansion) -> None:
        doomed = set(result.delete)
        records = zip(stored.records, stored.row.records, strict=True)
        self.is_gone[[position for position, record in records if record.change_id in doomed]] = True
        # Ids of records and changes are not distinguished in the list; a change goes only if a record owns it.
        cutoff = order_key(result.base.cutoff) if result.base is not None and result.base.cutoff is not None else ""
        changes = zip(stored.changes, [change[0] for change in stored.row.changes], strict=True)
        self.is_gone[[position for position, id_ in changes if id_ in doomed and order_key(id_) <= cutoff]] = True

    def expired(self, file: StoredFile, archived: Integers) -> Integers:
        """Return those of a file's rows of history that are past their retention, and note when others will be."""
        if not len(archived) or self._history_ms >= FOREVER_SECONDS * 1000:
            return _NONE
        columns = file.read_rows(archived, _KEPT_SINCE)
        ids = pc.coalesce(columns.column("cutoff"), columns.column("change_id")).to_pylist()
        since_ms = np.array([to_ms(id_) for id_ in ids], np.int64)
        is_expired = since_ms + self._history_ms <= self._job.due_ms
        if not is_expired.all():
            self._keep_history(int(since_ms[~is_expired].min()))
        return archived[is_expired]

    def _keep_history(self, since_ms: int) -> None:
        if self._history_ms < FOREVER_SECONDS * 1000:
            due_ms = since_ms + self._history_ms + self._history_ms // _HISTORY_STEPS
            self._due_at = _earlier(self._due_at, due_ms)

    def _remember(self, due_ms: int) -> None:
        if due_ms <= self._closed_ms and self._job.hold_floor_ms is not None:
            self._is_held = True
            return
        self._due_at = _earlier(self._due_at, due_ms + self._delay_ms)

    def marks(self, bucket: Bucket, *, is_whole: bool) -> Marks:
        """Return when the bucket will have something to do; what was not read keeps its time."""
        held_at = self._job.hold_floor_ms if self._is_held else None
        if is_whole:
            return Marks(self._due_at, held_at)
        return Marks(_earlier(self._due_at, bucket.due_at), _earlier(held_at, bucket.held_at))


def record_id(now_ms: int, seed: int) -> str:
    """Return the id for the records of a round: of its time, the same for a task that is run again, and nobody else's."""
    sequence = seed & (1 << _SEQUENCE_BITS) - 1
    node = seed >> _SEQUENCE_BITS & (1 << _NODE_BITS) - 1 | _NO_CARD
    return change_id_at(now_ms, clock_sequence=sequence, node=node)


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((time for time in (one, other) if time is not None), default=None)


_RESOLVERS: dict[str, merge.Resolve] = {ROWS_KIND: merge.resolve_rows, DOCUMENTS_KIND: resolve_documents}


def resolver_of(job: RoundJob) -> merge.Resolve:
    """Return the function that resolves the changes of buckets. Raises: InvalidInputError where the kind is not known."""
    resolver = _RESOLVERS.get(job.kind)
    if resolver is None:
        raise InvalidInputError(
            f"{job.table}: unknown kind of table {job.kind!r}; this version knows {', '.join(_RESOLVERS)}"
        )
    return resolver


def merge_any(job: RoundJob, stretch: Stretch) -> list[BucketResult]:
    """Absorb the parts of deltas for neighbouring buckets, by the rules of the table's kind."""
    return merge.merge_stretch(job, stretch, resolver_of(job))


def run_here(job: RoundJob) -> Iterator[BucketResult]:
    """Run all tasks of a round in this process, one after another, by the rules of the table's kind."""
    return merge.run_here(job, merge_any)
