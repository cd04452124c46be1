"""Reading documents: by the primary key index or bucket by bucket, as of now or of an earlier time."""

import datetime
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.catalog import main as catalog
from siltstone.documents.expand import TIMES, Expansion, effective_record, naming, resolve
from siltstone.documents.intake import ChangeKey, Stored, Update
from siltstone.documents.language.parser import parse_value
from siltstone.documents.language.values import (
    DELETED,
    ID,
    SIGNATURE,
    TABLE,
    VERSION,
    Json,
    value_text,
)
from siltstone.documents.merge import arrived_rows, split_rows
from siltstone.documents.record import (
    ArchivedChange,
    CompactionRecord,
    Row,
    iso_time,
    order_key,
    time_bound,
    to_iso_time,
    to_ms,
)
from siltstone.documents.schema import (
    CHANGE_KEYS,
    KEY,
    SCHEMA,
    StoredRow,
    changes_of,
    condition_name,
    grouped,
    hash_changes,
)
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model import DEFAULT_STREAM, Delta, ManifestEntry, PartitionLocator
from siltstone.model.buckets import Bucket
from siltstone.model.rounds import RoundCompletion
from siltstone.rows.columns import Hashes, Integers, align, hash_keys
from siltstone.rows.files import StoredFile
from siltstone.rows.job import Part, RoundJob
from siltstone.rows.parts import gather_here
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import Hold, closed_before, get_round, locate_compacted
from siltstone.table.followers import read_source
from siltstone.table.jobs import Keys, merging_job
from siltstone.table.snapshot import take_snapshot

_BATCH_KEYS: Final = 1000
_SMALL_FILE_BYTES: Final = 64 * 1024
_RECENT_BYTES: Final = 64 << 20
# What an Arrow table of a few rows takes beside its values.
_TABLE_BYTES: Final = 4096
# Spark takes no other unit than microseconds.
_TIME: Final = pa.timestamp("us", "UTC")
DOCUMENT_SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("content", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("signature", pa.string(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("first_update_at", _TIME),
        pa.field("last_update_at", _TIME),
        pa.field("last_mutate_at", _TIME),
    ]
)
"""One row a document: its content as JSON, null where it is deleted, and what is known about it."""


@dataclass(frozen=True)
class Snapshot:
    """A state of a table of documents: what was compacted, and the deltas since."""

    root: str
    # What conditions know the table by.
    name: str
    completion: RoundCompletion | None = None
    deltas: Sequence[Delta] = ()

    def documents(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        """Return all that is stored of documents, by key; nothing where nothing was written. Raises: CorruptionError."""
        rows = {key: StoredRow(Row((), (), key, self.name), [], [], [], []) for key in keys}
        for start in range(0, len(keys), _BATCH_KEYS):
            table = self.rows_of(keys[start : start + _BATCH_KEYS])
            rows.update((stored.row.key, stored) for stored in grouped(table, self.name))
        return rows

    def stored_changes(self, updates: Sequence[Update]) -> dict[ChangeKey, Stored]:
        """Return the changes that are stored under the change ids of updates. Raises: CorruptionError."""
        ids = [(update.key, update.change_id) for update in updates if update.change_id is not None]
        keys = sorted({key for key, _ in ids})
        if len(keys) <= _BATCH_KEYS:
            return changes_of(self.rows_of(keys), self.name) if keys else {}
        hashes = hash_changes(pa.table(list(zip(*ids, strict=True)), [KEY, "change_id"]))
        return changes_of(self.changes_among(hashes), self.name)

    def rows_of(self, keys: Sequence[str]) -> pa.Table:
        """Return the rows of some documents, in the order in which they were committed. Raises: CorruptionError."""
        keys_table = pa.table({KEY: pa.array(keys, pa.string())})
        wanted = keys_table.column(KEY)
        tables = [SCHEMA.empty_table()]
        for file in self._delta_files():
            if file.content_length <= _SMALL_FILE_BYTES:
                tables.append(recent_files.read(self.root, file))
                continue
            own = pc.is_in(read_data_file(self.root, file, [KEY]).column(KEY), wanted)
            if pc.any(own).as_py():
                tables.append(align(read_data_file(self.root, file).filter(own), SCHEMA))
        recent = pa.concat_tables(tables)
        rows = recent.filter(pc.is_in(recent.column(KEY), wanted))
        return pa.concat_tables([*self._compacted(keys_table, SCHEMA), rows])

    def keys_among(self, keys: Sequence[str]) -> set[str]:
        """Return the keys of which anything is stored. Raises: CorruptionError."""
        keys_table = pa.table({KEY: pa.array(keys, pa.string())})
        tables = list(self._compacted(keys_table, pa.schema([SCHEMA.field(KEY)])))
        tables += [read_data_file(self.root, file, [KEY]) for file in self._delta_files()]
        own = (table.column(KEY).filter(pc.is_in(table.column(KEY), keys_table.column(KEY))) for table in tables)
        return {key for column in own for key in column.to_pylist()}

    def changes_among(self, hashes: Hashes) -> pa.Table:
        """Return the rows whose key and change id have one of these hashes, see `hash_changes`. Raises: CorruptionError."""
        tables = [SCHEMA.empty_table()]
        for bucket in self._buckets():
            # A bucket that is never due has nothing but one record of each document.
            for file in bucket.files if bucket.due_at is not None or bucket.held_at is not None else ():
                stored = StoredFile(self.root, file)
                live = np.flatnonzero(stored.live_flags())
                own = live[np.isin(hash_changes(stored.read_rows(live, CHANGE_KEYS)), hashes)]
                if len(own):
                    tables.append(stored.read_rows(own, SCHEMA))
        for entry in self._delta_files():
            is_own = np.isin(hash_changes(read_data_file(self.root, entry, CHANGE_KEYS.names)), hashes)
            if is_own.any():
                tables.append(align(read_data_file(self.root, entry).filter(pa.array(is_own)), SCHEMA))
        return pa.concat_tables(tables)

    def _buckets(self) -> Sequence[Bucket]:
        return self.completion.buckets if self.completion is not None else ()

    def _delta_files(self) -> list[ManifestEntry]:
        return [entry for delta in self.deltas for entry in delta.manifest.entries]

    def _compacted(self, keys_table: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
        hashes = np.unique(hash_keys(keys_table, [KEY]))
        if self.completion is None:
            return
        buckets = self.completion.buckets
        numbers = np.array([buckets.number_of(int(hash_)) for hash_ in hashes], np.int64)
        for number in np.unique(numbers).tolist():
            own = hashes[numbers == number]
            for file in buckets[number].files:
                stored = StoredFile(self.root, file)
                rows = stored.live_among(stored.index.find(own)[0])
                if len(rows):
                    table = stored.read_rows(rows, schema)
                    yield table.filter(pc.is_in(table.column(KEY), keys_table.column(KEY)))


class RecentFiles:
    """The rows of small files of deltas that this process has read, which never change; the latest few thousand."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], pa.Table] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, root: str, file: ManifestEntry) -> pa.Table:
        """Return the rows of a file. Raises: CorruptionError."""
        key = root, file.uri
        with self._lock:
            table = self._tables.pop(key, None)
            if table is not None:
                self._tables[key] = table
                return table
        # A copy in one piece: what a file was read into is larger than its few rows.
        table = align(read_data_file(root, file), SCHEMA).combine_chunks()
        with self._lock:
            if key not in self._tables:
                self._tables[key] = table
                self._bytes += table.nbytes + _TABLE_BYTES
            while self._bytes > _RECENT_BYTES:
                oldest = self._tables.pop(next(iter(self._tables)))
                self._bytes -= oldest.nbytes + _TABLE_BYTES
        return table


recent_files = RecentFiles()


def snapshot_of(name: str, *, root: str) -> Snapshot:
    """Return the newest state of a table of documents. Raises: NotFoundError, CorruptionError."""
    table = take_snapshot(name, fresh=True, root=root)
    known_as = condition_name(table.version.properties, name)
    for partition in table.partitions:
        return Snapshot(root, known_as, partition.completion, partition.waiting)
    return Snapshot(root, known_as)


def to_document(expansion: Expansion, row: Row) -> dict[str, Json]:
    """Return the document of a row: content, then intrinsics over it. The inner values are shared with `expansion`.

    Its table is called as conditions know it, by the name that it was created under: were it another one after a
    rename, what a condition on it decided would depend on when it was compacted.
    """
    document: dict[str, Json] = dict(expansion.content) if isinstance(expansion.content, dict) else {}
    document |= {ID: row.key, TABLE: row.table, VERSION: expansion.version}
    document |= {SIGNATURE: expansion.signature, DELETED: expansion.deleted}
    for name, field in TIMES.items():
        change_id = getattr(expansion, field)
        if change_id is not None:
            document[name] = to_iso_time(change_id)
    return document


def scanned_document(row: Mapping[str, Any], table: str) -> dict[str, Json]:
    """Return a row of `DOCUMENT_SCHEMA` as the document that `to_document` returns."""
    document: dict[str, Json] = {} if row["content"] is None else json.loads(row["content"])
    document |= {ID: row[KEY], TABLE: table, VERSION: row["version"]}
    document |= {SIGNATURE: row["signature"], DELETED: row["deleted"]}
    for name, column in TIMES.items():
        at: datetime.datetime | None = row[column]
        if at is not None:
            document[name] = at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return document


class TimelineEvent(NamedTuple):
    """One row of a document's history. `note` says why a delta is redundant, or what a compaction stands for."""

    kind: Literal["delta", "compaction"]
    change_id: str
    at: str
    delta: str
    tags: tuple[str, ...]
    is_redundant: bool
    is_owned: bool
    note: str


def timeline_of(row: Row, expansion: Expansion) -> list[TimelineEvent]:
    """Return the deltas and records of a row, by time."""
    events = [_delta_event(*change, expansion) for change in row.changes]
    events += [_record_event(record, is_in_effect=record is expansion.base) for record in row.records]
    return sorted(events, key=lambda event: (order_key(event.change_id), event.kind))


def _record_event(record: CompactionRecord, *, is_in_effect: bool) -> TimelineEvent:
    state = "in effect" if is_in_effect else "obsolete"
    note = f"{state}: stands for {record.count} deltas up to {record.cutoff}"
    at, text, tags = to_iso_time(record.change_id), record.compacted_delta or "", tuple(record.last_tags or ())
    return TimelineEvent("compaction", record.change_id, at, text, tags, False, False, note)


def _delta_event(change_id: str, text: str, tags: Sequence[str] | None, expansion: Expansion) -> TimelineEvent:
    base = expansion.base
    is_owned = base is not None and base.cutoff is not None and order_key(change_id) <= order_key(base.cutoff)
    is_redundant = change_id in expansion.redundant
    note = ""
    if is_owned and base is not None:
        note = f"owned by compaction {base.change_id}"
        if is_redundant:
            note += f", after its last mutation {base.last_mutation}"
    elif is_redundant:
        note = "leaves content and tags as they were"
    at = to_iso_time(change_id)
    return TimelineEvent("delta", change_id, at, text, tuple(tags or ()), is_redundant, is_owned, note)


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
        HistoryEntry(id_, to_iso_time(id_), version, delta, tags, None if content is None else parse_value(content))  # type: ignore[arg-type]
        for id_, version, delta, tags, content in sorted(distinct.values(), key=lambda change: order_key(change[0]))
    ]


def row_as_of(row: Row, time_ms: int) -> Row:
    """Return what is stored of a document up to a time; a record counts by its cutoff, whenever it was written."""
    bound = time_bound(time_ms + 1)
    return row._replace(
        changes=[change for change in row.changes if order_key(change[0]) < bound],
        records=[record for record in row.records if record.cutoff is not None and order_key(record.cutoff) < bound],
    )


def known_from_ms(row: Row, time_ms: int) -> int | None:
    """Return the earliest time after `time_ms` from which a document is known, or None if it is known at that time.

    A record owns all deltas up to its cutoff, and says how many. They may be deleted; then only a record of fewer of
    them, together with the deltas after its cutoff, still shows what the document was in between.
    """
    record, older = effective_record(row.records)
    if record is None or record.first is None or record.cutoff is None:
        return None
    bound = time_bound(time_ms + 1)
    cutoff = order_key(record.cutoff)
    if cutoff < bound or order_key(record.first) >= bound:
        return None
    owned = sorted(key for key in (order_key(change[0]) for change in row.changes) if key <= cutoff)
    if len(owned) == _count(record):
        return None
    starts = [
        earlier.cutoff
        for earlier in older
        if earlier.cutoff is not None
        and earlier.count > 0
        and _count(earlier) + sum(key > order_key(earlier.cutoff) for key in owned) == _count(record)
    ]
    earliest = min(starts, key=order_key, default=record.cutoff)
    return None if order_key(earliest) < bound else to_ms(earliest)


def _count(record: CompactionRecord) -> int:
    """Return how many deltas a record owns; a legacy one does not count its last."""
    return record.count + (record.compacted_delta is None)


def job_of(name: str, hold: Hold | None = None, *, root: str) -> RoundJob:
    """Return what a round would have to do, from the newest state, or from and to what a hold keeps.

    Raises: NotFoundError, CorruptionError.
    """
    table = take_snapshot(name, fresh=True, root=root)
    version = table.version
    own = PartitionLocator(**version.locator, stream=DEFAULT_STREAM, partition_values=[])
    destination = locate_compacted(own, root=root)
    base, deltas = next(((partition.completion, partition.waiting) for partition in table.partitions), (None, ()))
    if hold is not None and hold.keeps_state:
        base = None if hold.round_id is None else get_round(destination, hold.round_id)
        source = read_source(own, after=hold.high_watermark, root=root)
        if source.trimmed_position > hold.high_watermark:
            raise CorruptionError(
                f"{own}: deltas up to {source.trimmed_position} are trimmed, but hold {hold.hold_id} needs all after "
                f"{hold.high_watermark}; make a new one"
            )
        deltas = tuple(source.between(hold.high_watermark, hold.stream_position))
    return merging_job(destination, base, deltas, Keys((KEY,)), version, version)


def resolved(table: str, row: Row) -> Expansion:
    """Resolve a document. Raises: CorruptionError that names it."""
    with naming(table, row):
        return resolve(row)


def bucket_documents(
    job: RoundJob, number: int, parts: Sequence[Part], *, hold: Hold | None = None, include_deleted: bool = False
) -> Iterator[pa.Table]:
    """Yield the documents of a bucket, resolved; with a hold, as of its time, where the job starts from its state.

    Raises: CorruptionError, InvalidInputError where that can no longer be reconstructed.
    """
    if hold is not None:
        held = [_as_of(job.table, bucket_row.row, hold) for bucket_row in bucket_rows(job, number, parts)]
        yield _resolved_documents(job.table, [row for row in held if row is not None], include_deleted)
        return
    stored, new = _opened(job, number, parts)
    tables = [new]
    for file, rows in zip(stored, split_rows(stored, new), strict=True):
        tables.insert(-1, file.read_rows(rows.others, SCHEMA))
        for table in _single_records(file, rows.single_records):
            yield table if include_deleted else table.filter(pc.invert(table.column("deleted")))
    others = grouped(pa.concat_tables(tables), condition_name(job.properties, job.table))
    yield _resolved_documents(job.table, [stored_row.row for stored_row in others], include_deleted)


def bucket_rows(job: RoundJob, number: int, parts: Sequence[Part]) -> Iterator[StoredRow]:
    """Yield all that is stored of each document of a bucket. Raises: CorruptionError."""
    stored, new = _opened(job, number, parts)
    tables = [file.read_rows(np.flatnonzero(file.live_flags()), SCHEMA) for file in stored]
    return grouped(pa.concat_tables([*tables, new]), condition_name(job.properties, job.table))


def _opened(job: RoundJob, number: int, parts: Sequence[Part]) -> tuple[list[StoredFile], pa.Table]:
    """Return the files of a bucket, and the rows that came for it."""
    return [StoredFile(job.root, file) for file in job.buckets[number].files], arrived_rows(parts)


def _as_of(table: str, row: Row, hold: Hold) -> Row | None:
    """Return the row as of a hold's time, or None if it did not exist yet. Raises: InvalidInputError."""
    then = row_as_of(row, hold.since_ms)
    is_there = bool(then.changes or then.records)
    if hold.keeps_state:
        is_known = known_from_ms(row, hold.since_ms) is None
    else:
        # It has kept from deletion what is of its time, but not what came later.
        record, _ = effective_record(row.records)
        bound = time_bound(hold.since_ms + 1)
        is_known = is_there or record is None or record.first is None or order_key(record.first) >= bound
    if not is_known:
        raise InvalidInputError(
            f"{table}: document {row.key!r} is not known as of {iso_time(hold.since_ms)} any more, since compaction has "
            "deleted deltas of that time; make a hold of a later time"
        )
    return then if is_there else None


def _resolved_documents(table: str, rows: Sequence[Row], include_deleted: bool) -> pa.Table:
    documents = [
        {
            KEY: row.key,
            "content": None if expansion.deleted else value_text(expansion.content),
            "version": expansion.version,
            "signature": expansion.signature,
            "deleted": expansion.deleted,
            **{column: _time_of(getattr(expansion, column)) for column in TIMES.values()},
        }
        for row in rows
        for expansion in [resolved(table, row)]
        if include_deleted or not expansion.deleted
    ]
    return pa.Table.from_pylist(documents, schema=DOCUMENT_SCHEMA)


def _single_records(file: StoredFile, rows: Integers) -> Iterator[pa.Table]:
    """Yield documents that are one record each, without parsing their content."""
    if not len(rows):
        return
    flags = np.zeros(file.file.record_count, np.bool_)
    flags[rows] = True
    for start, table in file.scan(SCHEMA, groups_with=rows):
        records = table.filter(pa.array(flags[start : start + table.num_rows]))
        deleted = pc.equal(records.column("delta"), "~")
        yield pa.Table.from_arrays(
            [
                records.column(KEY),
                pc.if_else(deleted, pa.scalar(None, pa.string()), records.column("delta")),
                records.column("count"),
                records.column("cutoff_signature"),
                deleted,
                _times_of(records.column("first")),
                _times_of(records.column("cutoff")),
                _times_of(pc.coalesce(records.column("last_content_mutation"), records.column("last_mutation"))),
            ],
            schema=DOCUMENT_SCHEMA,
        )


def _times_of(change_ids: pa.ChunkedArray) -> pa.Array:
    return pa.array([_time_of(change_id) for change_id in change_ids.to_pylist()], pa.int64()).cast(_TIME)


def _time_of(change_id: str | None) -> int | None:
    return None if change_id is None else to_ms(change_id) * 1000


def check_known(name: str, hold: Hold, *, root: str) -> None:
    """Check that all documents can be read as of a hold's time. Raises: InvalidInputError, CorruptionError."""
    closed = closed_before(catalog.get_table_version(name, root=root).properties)
    # Nothing of a time that is still open has ever been absorbed.
    if closed is None or hold.since_ms >= closed:
        return
    job = job_of(name, hold, root=root)
    times = (
        known_from_ms(stored.row, hold.since_ms)
        for number, parts in gather_here(job)
        for stored in bucket_rows(job, number, parts)
    )
    earliest = max((time for time in times if time is not None), default=None)
    if earliest is not None:
        raise InvalidInputError(
            f"{name}: cannot be held as of {iso_time(hold.since_ms)} ({hold.since_ms} ms), since compaction has "
            f"deleted deltas of that time; the earliest time that can still be held is {iso_time(earliest)} "
            f"({earliest} ms)"
        )


def scan_tables(job: RoundJob, hold: Hold | None, *, include_deleted: bool) -> Iterator[pa.Table]:
    """Yield all documents in this process, as `bucket_documents` does."""
    for number, parts in gather_here(job):
        yield from bucket_documents(job, number, parts, hold=hold, include_deleted=include_deleted)
