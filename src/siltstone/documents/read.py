"""Reading documents: by the primary key index or bucket by bucket, as of now or of an earlier time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.catalog import main as catalog
from siltstone.documents import recent
from siltstone.documents.expand import TIMES, Expansion, effective_record, naming, resolve
from siltstone.documents.intake import ChangeKey, Stored, Update
from siltstone.documents.language.values import (
    DELETED,
    ID,
    SIGNATURE,
    TABLE,
    VERSION,
    Json,
    value_text,
)
from siltstone.documents.merge import split_rows
from siltstone.documents.record import (
    EPOCH_MS,
    TICKS_PER_MS,
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
    DocumentRow,
    StoredRow,
    changes_of,
    condition_name,
    group,
    grouped,
    hash_changes,
    rows_in,
)
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model import DEFAULT_STREAM, Delta, PartitionLocator
from siltstone.model.buckets import CompactedFile
from siltstone.model.rounds import RoundCompletion
from siltstone.rows.columns import Hashes, Integers, align, hash_keys
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import Hold, closed_before, get_round, list_rounds, locate_compacted, read_kept
from siltstone.table.dataset import PushedDataset
from siltstone.table.followers import read_source
from siltstone.table.jobs import Keys, merging_job
from siltstone.table.snapshot import TableSnapshot, take_snapshot

_KEY_ONLY: Final = pa.schema([SCHEMA.field(KEY)])
_BATCH_KEYS: Final = 1000
_MANY_KEYS: Final = 100
_READERS: Final = 4
_NO_ID: Final = "00000000-0000-1000-8000-000000000000"
# Where the digits of a change id's time are, from the highest on, and what each is worth.
_TIME_DIGITS: Final = [*range(15, 18), *range(9, 13), *range(8)]
_PLACE_VALUES: Final = 16 ** np.arange(len(_TIME_DIGITS) - 1, -1, -1, dtype=np.int64)
_HEX_VALUES: Final = np.zeros(256, np.int64)
_HEX_VALUES[list(b"0123456789abcdef")] = range(16)
# Spark takes no other unit than microseconds.
TIME: Final = pa.timestamp("us", "UTC")
DOCUMENT_SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("content", pa.string()),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("signature", pa.string(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("first_update_at", TIME),
        pa.field("last_update_at", TIME),
        pa.field("last_mutate_at", TIME),
    ]
)
"""One row a document: its content as JSON, null where it is deleted, and what is known about it."""


@dataclass(frozen=True)
class Snapshot:
    """A state of a table of documents: what was compacted, in which folder, and the deltas since."""

    root: str
    # What conditions know the table by.
    name: str
    folder: str = ""
    completion: RoundCompletion | None = None
    deltas: Sequence[Delta] = ()
    # What was read before of deltas and files.
    memory: recent.RecentDeltas = field(default_factory=lambda: recent.recent_deltas)

    def documents(self, keys: Iterable[str]) -> dict[str, StoredRow]:
        """Return all that is stored of documents, by key; nothing where nothing was written. Raises: CorruptionError."""
        wanted = list(dict.fromkeys(keys))
        rows: dict[str, list[DocumentRow]] = {key: [] for key in wanted}
        for start in range(0, len(wanted), _BATCH_KEYS):
            for table in self._compacted(_keys_table(wanted[start : start + _BATCH_KEYS]), SCHEMA):
                for row in rows_in(table):
                    rows[row[0]].append(row)
        for key, own in self.memory.rows_of(self.root, self.folder, self.deltas, wanted).items():
            rows[key] += own
        nothing = StoredRow(Row((), ()), [], [], [], [])
        return {
            key: group(own, self.name) if own else nothing._replace(row=Row((), (), key, self.name))
            for key, own in rows.items()
        }

    def stored_changes(self, updates: Sequence[Update]) -> dict[ChangeKey, Stored]:
        """Return the changes that are stored under the change ids of updates. Raises: CorruptionError."""
        ids = [(update.key, update.change_id) for update in updates if update.change_id is not None]
        keys = sorted({key for key, _ in ids})
        if len(keys) <= _BATCH_KEYS:
            return changes_of(self.documents(keys).values())
        hashes = hash_changes(pa.table(list(zip(*ids, strict=True)), [KEY, "change_id"]))
        return changes_of(grouped(self.changes_among(hashes), self.name))

    def keys_among(self, keys: Sequence[str]) -> set[str]:
        """Return the keys of which anything is stored. Raises: CorruptionError."""
        tables = self._compacted(_keys_table(keys), _KEY_ONLY)
        compacted = {key for table in tables for key in table.column(KEY).to_pylist()}
        return compacted | self.memory.rows_of(self.root, self.folder, self.deltas, keys).keys()

    def changes_among(self, hashes: Hashes) -> pa.Table:
        """Return the rows whose key and change id have one of these hashes, see `hash_changes`. Raises: CorruptionError."""
        tables = [SCHEMA.empty_table()]
        for bucket in () if self.completion is None else self.completion.buckets:
            # A bucket that is never due has nothing but one record of each document.
            for file in bucket.files if bucket.due_at is not None or bucket.held_at is not None else ():
                stored = StoredFile(self.root, file)
                live = np.flatnonzero(stored.live_flags())
                own = live[np.isin(hash_changes(stored.read_rows(live, CHANGE_KEYS)), hashes)]
                if len(own):
                    tables.append(stored.read_rows(own, SCHEMA))
        for entry in [entry for delta in self.deltas for entry in delta.manifest.entries]:
            is_own = np.isin(hash_changes(read_data_file(self.root, entry, CHANGE_KEYS.names)), hashes)
            if is_own.any():
                tables.append(align(read_data_file(self.root, entry).filter(pa.array(is_own)), SCHEMA))
        return pa.concat_tables(tables)

    def _compacted(self, keys_table: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of some documents that are compacted, file by file."""

        def read(file: CompactedFile, hashes: Hashes) -> pa.Table:
            stored = StoredFile(self.root, file, self.memory.known_files)
            rows = stored.live_among(stored.find(hashes)[0])
            if not len(rows):
                return schema.empty_table()
            table = stored.read_rows(rows, schema)
            return table.filter(pc.is_in(table.column(KEY), keys_table.column(KEY)))

        found = list(self.files_by_hash(np.unique(hash_keys(keys_table, [KEY]))))
        if keys_table.num_rows < _MANY_KEYS or len(found) < 2:
            yield from (read(*each) for each in found)
            return
        # Many keys are all over the files, and to unpack these takes nearly all the time.
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(read, *zip(*found, strict=True))

    def files_by_hash(self, hashes: Hashes) -> Iterator[tuple[CompactedFile, Hashes]]:
        """Yield the compacted files that may have some hashes, each with those of its bucket."""
        if self.completion is None:
            return
        buckets = self.completion.buckets
        numbers = np.array([buckets.number_of(int(hash_)) for hash_ in hashes], np.int64)
        for number in np.unique(numbers).tolist():
            own = hashes[numbers == number]
            yield from ((file, own) for file in buckets[number].files)


def _keys_table(keys: Sequence[str]) -> pa.Table:
    return pa.table({KEY: pa.array(keys, pa.string())})


def snapshot_of(name: str, *, root: str) -> Snapshot:
    """Return the newest state of a table of documents. Raises: NotFoundError, CorruptionError."""
    table = take_snapshot(name, fresh=True, kept=recent.recent_deltas.completions, root=root)
    known_as = condition_name(table.version.properties, name)
    for partition in table.partitions:
        return Snapshot(root, known_as, partition.folder, partition.completion, partition.waiting)
    return Snapshot(root, known_as)


def files_with(name: str, key: str, *, root: str) -> list[str]:
    """Return all files that have a row of a document, dead rows and rows of history among them, by the paths under the root.

    They are the deltas that are not trimmed, and the compacted files of all rounds that are kept.
    Raises: NotFoundError, CorruptionError.
    """
    wanted = _keys_table([key])
    found: dict[str, None] = {}
    for delta in catalog.list_deltas(name, root=root):
        for entry in delta.manifest.entries:
            if pc.any(pc.equal(read_data_file(root, entry, [KEY]).column(KEY), key)).as_py():
                found[entry.uri] = None
    stream = catalog.delta_stream(name, root=root)
    destination = locate_compacted(PartitionLocator(**stream, partition_values=[]), root=root)
    for round_entry in list_rounds(destination):
        completion = read_kept(destination, round_entry)
        snapshot = Snapshot(root, name, destination.folder, completion)
        for file, hashes in snapshot.files_by_hash(hash_keys(wanted, [KEY])):
            stored = StoredFile(root, file)
            rows = stored.find(hashes)[0]
            if len(rows) and key in stored.read_rows(rows, _KEY_ONLY).column(KEY).to_pylist():
                found[file.uri] = None
    return list(found)


def to_document(expansion: Expansion, row: Row) -> dict[str, Json]:
    """Return the document of a row: content, then intrinsics over it. The inner values are shared with `expansion`.

    Its table is called as conditions know it, by the name that it was created under: were it another one after a
    rename, what a condition on it decided would depend on when it was compacted.
    """
    document: dict[str, Json] = dict(expansion.content) if isinstance(expansion.content, dict) else {}
    document |= {ID: row.key, TABLE: row.table, VERSION: expansion.version}
    document |= {SIGNATURE: expansion.signature, DELETED: expansion.deleted}
    for name, attribute in TIMES.items():
        change_id = getattr(expansion, attribute)
        if change_id is not None:
            document[name] = to_iso_time(change_id)
    return document


def scanned_documents(rows: pa.Table, table: str) -> Iterator[dict[str, Json]]:
    """Yield the rows of a table of `DOCUMENT_SCHEMA` as the documents that `to_document` returns."""
    columns = [rows.column(name).to_pylist() for name in (KEY, "content", "version", "signature", "deleted")]
    times = [_iso_times(rows.column(name)) for name in TIMES.values()]
    for key, content, version, signature, deleted, *times_of_row in zip(*columns, *times, strict=True):
        document: dict[str, Json] = {} if content is None else orjson.loads(content)
        document[ID], document[TABLE], document[VERSION] = key, table, version
        document[SIGNATURE], document[DELETED] = signature, deleted
        for name, time in zip(TIMES, times_of_row, strict=True):
            if time is not None:
                document[name] = time
        yield document


def _iso_times(times: pa.ChunkedArray) -> list[str | None]:
    numbers = pc.fill_null(times.cast(pa.int64()), 0).to_numpy() // 1000
    texts: list[str | None] = np.char.add(np.datetime_as_string(numbers.astype("datetime64[ms]")), "Z").tolist()
    if not times.null_count:
        return texts
    return [text if is_valid else None for text, is_valid in zip(texts, times.is_valid().to_pylist(), strict=True)]


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
    if hold is None or not hold.keeps_state:
        return job_at(table)
    version = table.version
    own = PartitionLocator(**version.locator, stream=DEFAULT_STREAM, partition_values=[])
    destination = locate_compacted(own, root=root)
    base = None if hold.round_id is None else get_round(destination, hold.round_id)
    source = read_source(own, after=hold.high_watermark, root=root)
    if source.trimmed_position > hold.high_watermark:
        raise CorruptionError(
            f"{own}: deltas up to {source.trimmed_position} are trimmed, but hold {hold.hold_id} needs all after "
            f"{hold.high_watermark}; make a new one"
        )
    deltas = tuple(source.between(hold.high_watermark, hold.stream_position))
    return merging_job(destination, base, deltas, Keys((KEY,)), version, version)


def job_at(table: TableSnapshot) -> RoundJob:
    """Return what a round would have to do from a state of the table. Raises: NotFoundError, CorruptionError."""
    version = table.version
    own = PartitionLocator(**version.locator, stream=DEFAULT_STREAM, partition_values=[])
    base, deltas = next(((partition.completion, partition.waiting) for partition in table.partitions), (None, ()))
    return merging_job(locate_compacted(own, root=table.root), base, deltas, Keys((KEY,)), version, version)


def resolved(table: str, row: Row) -> Expansion:
    """Resolve a document. Raises: CorruptionError that names it."""
    with naming(table, row):
        return resolve(row)


def bucket_documents(
    job: RoundJob, number: int, new: pa.Table, *, hold: Hold | None = None, include_deleted: bool = False
) -> Iterator[pa.Table]:
    """Yield the documents of a bucket, resolved, with the rows that came for it.

    With a hold they are as of its time, where the job starts from its state.

    Raises: CorruptionError, InvalidInputError where that can no longer be reconstructed.
    """
    if hold is not None:
        held = [_as_of(job.table, bucket_row.row, hold) for bucket_row in bucket_rows(job, number, new)]
        yield _resolved_documents(job.table, [row for row in held if row is not None], include_deleted)
        return
    stored = _opened(job, number)
    tables = [new]
    for file, rows in zip(stored, split_rows(stored, new), strict=True):
        tables.insert(-1, file.read_rows(rows.others, SCHEMA))
        for table in _single_records(file, rows.single_records):
            yield table if include_deleted else table.filter(pc.invert(table.column("deleted")))
    others = grouped(pa.concat_tables(tables), condition_name(job.properties, job.table))
    yield _resolved_documents(job.table, [stored_row.row for stored_row in others], include_deleted)


def bucket_rows(job: RoundJob, number: int, new: pa.Table) -> Iterator[StoredRow]:
    """Yield all that is stored of each document of a bucket, with the rows that came for it. Raises: CorruptionError."""
    tables = [file.read_rows(np.flatnonzero(file.live_flags()), SCHEMA) for file in _opened(job, number)]
    return grouped(pa.concat_tables([*tables, new]), condition_name(job.properties, job.table))


def _opened(job: RoundJob, number: int) -> list[StoredFile]:
    return [StoredFile(job.root, file) for file in job.buckets[number].files]


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
    """Return the times of change ids, all at once: one by one they take most of a scan."""
    ids = change_ids.to_pylist()
    text = np.frombuffer("".join(id_ or _NO_ID for id_ in ids).encode(), np.uint8)
    if len(text) != len(ids) * len(_NO_ID):
        return pa.array([_time_of(id_) for id_ in ids], pa.int64()).cast(TIME)
    ticks = _HEX_VALUES[text.reshape(-1, len(_NO_ID))[:, _TIME_DIGITS]] @ _PLACE_VALUES
    times = (ticks // TICKS_PER_MS - EPOCH_MS) * 1000
    return pa.array(times, mask=np.array([id_ is None for id_ in ids], np.bool_)).cast(TIME)


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
        for number, new in recent.recent_deltas.arrived_by_bucket(job)
        for stored in bucket_rows(job, number, new)
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
    for number, new in recent.recent_deltas.arrived_by_bucket(job):
        yield from bucket_documents(job, number, new, hold=hold, include_deleted=include_deleted)


def pushed_dataset(schema: pa.Schema, tables: Callable[[], Iterable[pa.Table]]) -> PushedDataset:
    """Return tables of one schema as a data set; an engine reads some columns of the rows that its filter leaves."""

    def read(columns: Sequence[str] | None, where: pc.Expression | None) -> pa.RecordBatchReader:
        names = schema.names if columns is None else list(columns)
        chosen = (table if where is None else table.filter(where) for table in tables())
        batches = (batch for table in chosen for batch in table.select(names).to_batches())
        return pa.RecordBatchReader.from_batches(pa.schema([schema.field(name) for name in names]), batches)

    return PushedDataset(schema, read)
