"""A read of a table at one moment: which columns, which rows, and every way to get at them.

All reads are scans: those of Arrow, pandas, polars, DuckDB and Spark, of the command line, and of single keys. Only
what is needed is opened: partitions whose values a filter does not rule out, buckets that can have the keys it names,
of their files the row groups whose statistics allow it, and of these the columns. Where deltas wait, they are merged
in the buckets that are read, with the columns that the merge and the reader need; the filter is applied to what comes
out.
"""

import datetime
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError, require_packages
from siltstone.model import PartitionValue, TableVersion
from siltstone.model.buckets import Buckets, CompactedFile
from siltstone.model.entities import VALID_FROM, VALID_TO
from siltstone.model.locators import did_you_mean
from siltstone.model.schema import check_known
from siltstone.rows.columns import Integers, align, hash_keys
from siltstone.rows.files import Range, Ranges, StoredFile
from siltstone.rows.job import RoundJob, Stretch
from siltstone.rows.merge import resolve
from siltstone.rows.parts import gather_here
from siltstone.rows.slices import StretchFiles, by_data_file
from siltstone.table.completion import Destination, compacted_partition
from siltstone.table.jobs import Keys, merging_job
from siltstone.table.snapshot import Choose, Moment, PartitionSnapshot, TableSnapshot, take_snapshot
from siltstone.table.where import (
    And,
    Comparison,
    Condition,
    IsNull,
    Or,
    both,
    compile_where,
    condition_of,
    key_condition,
    parse_literal,
)
from siltstone.text import format_count

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from siltstone.table.dataset import PushedDataset

Where: TypeAlias = str | pc.Expression | Condition
"""A filter: text such as `amount > 9 and status in ('paid', 'sent')`, or an Arrow expression."""


@dataclass(frozen=True)
class ScanFile:
    """A file that a scan opens: compacted rows, perhaps with a deletion vector, or a delta that waits to be compacted."""

    path: str
    rows: int
    bytes: int
    partition_values: tuple[PartitionValue, ...]
    deletion_vector: str | None = None
    is_delta: bool = False


@dataclass(frozen=True)
class ScanSummary:
    """What a scan opens, and what it skips; as text, a few lines.

    Buckets and files are those of the partitions that are opened, row groups those of the files that are. `by_key` is
    how many keys are looked up in the indices of the files, None where files are read from the first row to the last.
    """

    partitions: int
    partitions_skipped: int
    buckets: int
    buckets_skipped: int
    files: int
    files_skipped: int
    row_groups: int
    row_groups_skipped: int
    deltas: int
    delta_files: int
    columns: tuple[str, ...]
    columns_skipped: int
    by_key: int | None = None

    def __str__(self) -> str:
        lines = [
            f"columns     {len(self.columns)} of {len(self.columns) + self.columns_skipped}: {', '.join(self.columns)}",
            _line("partitions", self.partitions, self.partitions_skipped, "by their values"),
            _line("buckets", self.buckets, self.buckets_skipped, "by the primary key"),
            _line("files", self.files, self.files_skipped, "in buckets that are skipped"),
            _line(
                "row groups",
                self.row_groups,
                self.row_groups_skipped,
                "by statistics" if self.by_key is None else "by the key index",
            ),
        ]
        if self.deltas:
            lines.append(f"deltas      {self.deltas} merged, from {format_count(self.delta_files, 'file')}")
        return "\n".join(lines)


def _line(what: str, opened: int, skipped: int, why: str) -> str:
    return f"{what:<11} {opened} of {opened + skipped}" + (f", {skipped} skipped {why}" if skipped else "")


@dataclass(frozen=True)
class MergeTask:
    """Buckets of a partition whose waiting deltas are merged while they are read; nothing is written."""

    job: RoundJob
    buckets: Sequence[int]


@dataclass(frozen=True)
class RowReader:
    """Reads files and buckets as a scan wants them, wherever it is sent: a plain value, without the snapshot.

    `stored` has the columns as files name them, `named` the same ones as the table does. `hashes` are those of all
    keys that the rows can have, None where they can have any.
    """

    root: str
    stored: pa.Schema
    named: pa.Schema
    columns: tuple[str, ...]
    where: Condition | None = None
    hashes: tuple[int, ...] | None = None

    def read_file(self, slices: Sequence[CompactedFile]) -> Iterator[pa.Table]:
        """Yield the rows of a compacted file, or of slices of one, a row group at a time. Raises: CorruptionError."""
        yield from map(self._finished, self._file_rows(StoredFile.together(self.root, slices)))

    def read_stretch(self, job: RoundJob, stretch: Stretch) -> Iterator[pa.Table]:
        """Yield the rows of buckets with their parts of deltas merged in, writing nothing. Raises: CorruptionError."""
        files = StretchFiles(job.root, stretch.buckets)
        if not stretch.parts:
            for file in files.whole:
                yield from map(self._finished, self._file_rows(file))
                file.release()
            return
        change = resolve(job, stretch, files)
        # A compacted row that no delta touched is as it was, so that it can be filtered where it is.
        for file, dead in zip(files.whole, change.dead, strict=True):
            yield from map(self._finished, self._file_rows(file, dead))
            file.release()
        yield self._finished(change.rows)

    def read_merged(self, task: MergeTask) -> Iterator[pa.Table]:
        """Yield the rows of buckets with all deltas that wait. Raises: CorruptionError."""
        for stretch in gather_here(task.job, task.buckets):
            yield from self.read_stretch(task.job, stretch)

    def count_merged(self, task: MergeTask) -> int:
        """Return how many rows buckets have with all deltas that wait, of which only changed keys are read.

        Without a filter only. Raises: CorruptionError.
        """
        job, count = task.job, 0
        for stretch in gather_here(job, task.buckets):
            count += sum(bucket.live_count for bucket in stretch.buckets)
            if stretch.parts:
                count += resolve(job, stretch, StretchFiles(job.root, stretch.buckets)).added_count
        return count

    def _file_rows(self, file: StoredFile, dead: Integers | Sequence[int] = ()) -> Iterator[pa.Table]:
        """Yield the rows of a file that are neither dead nor among `dead`, perhaps with some that are not wanted."""
        if self.hashes is None:
            yield from file.live_rows(self.stored, dead, self.may_match if self.where is not None else None)
            return
        rows = self.rows_of_keys(file)
        rows = rows[~np.isin(rows, np.asarray(dead, np.int64))]
        if len(rows):
            yield file.read_rows(rows, self.stored)

    def rows_of_keys(self, file: StoredFile) -> Integers:
        """Return the rows of a file, by its index, whose keys have the hashes."""
        return file.live_among(file.find(np.array(sorted(self.hashes or ()), np.uint64))[0])

    def may_match(self, ranges: Ranges) -> bool:
        """Return whether rows may be wanted whose values are in ranges by the names in files; no is certain."""
        names = dict(zip(self.named.names, self.stored.names, strict=True))
        return self.where is None or self.where.may_match(lambda column: ranges(names[column]))

    def _finished(self, table: pa.Table) -> pa.Table:
        rows = align(table, self.stored)
        if not rows.num_columns:
            return rows
        # Aligned columns are all nullable; what is read has the table's own schema.
        rows = pa.Table.from_arrays(rows.columns, schema=self.named)
        if self.where is not None:
            rows = rows.filter(self.where.expression)
        return rows.select(list(self.columns))


@dataclass(frozen=True)
class Scan:
    """A read of a snapshot: some columns of the rows that match a filter. A plain value, which can be pickled.

    Nothing is opened before one of its methods is called, and each call reads again. A scan implements Arrow's C stream
    interface, so `pyarrow.table(scan)` and `polars.DataFrame(scan)` work.
    """

    snapshot: TableSnapshot
    columns: tuple[str, ...]
    where: Condition | None = None

    def __repr__(self) -> str:
        where = "" if self.where is None else f" where {self.where.expression}"
        return f"<Scan of {', '.join(self.columns)} from {self.snapshot!r}{where}>"

    def _repr_html_(self) -> str:
        from siltstone.table.notebook import rows_html

        return rows_html(self.to_batches())

    @property
    def schema(self) -> pa.Schema:
        """The columns that are read."""
        return pa.schema([self.snapshot.version.schema.field(name) for name in self.columns])

    def to_batches(self) -> pa.RecordBatchReader:
        """Return a reader of the rows; without columns, its batches still have a number of rows. Raises: CorruptionError."""
        batches = (batch for table in self._tables() for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table. Raises: CorruptionError."""
        return self.to_batches().read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a pandas data frame. Raises: CorruptionError, NotInstalledError."""
        _imported("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Return the rows as a polars data frame. Raises: CorruptionError, NotInstalledError."""
        frame: pl.DataFrame = _imported("polars").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """Return a DuckDB relation that reads the rows whenever it is run, with the columns and filters of its query.

        Before version 2, DuckDB pushes down filters whose meaning for NaN differs from its own, so there only the
        columns and filters of the scan are pushed down. Raises: NotInstalledError.
        """
        database = _imported("duckdb")
        rows = self.to_dataset() if int(database.__version__.partition(".")[0]) >= 2 else self
        relation: duckdb.DuckDBPyRelation = (connection or database).from_arrow(rows)
        return relation

    def to_dataset(self) -> "PushedDataset":
        """Return the rows as an Arrow data set, from which an engine reads only what it needs."""
        from siltstone.table.dataset import PushedDataset

        return PushedDataset(self.schema, lambda columns, where: self.narrowed(columns, where).to_batches())

    def narrowed(self, columns: Sequence[str] | None = None, where: Where | None = None) -> "Scan":
        """Return the scan with fewer columns, or with a further filter. Raises: InvalidInputError."""
        narrow = scan_of(self.snapshot, self.columns if columns is None else columns, where)
        check_known(narrow.columns, self.schema, "column")
        if self.where is None or narrow.where is None:
            return replace(narrow, where=self.where or narrow.where)
        return replace(narrow, where=both(self.where, narrow.where))

    def to_spark(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a data frame that executors read."""
        # By name: what tables are knows nothing of Spark.
        frame: DataFrame = importlib.import_module("siltstone.spark.frames").read_scan(spark, self)
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def count(self) -> int:
        """Return the number of rows; without a filter and waiting deltas, no row is read for it."""
        bare = replace(self, columns=())
        if self.where is None:
            done = sum(part.live_count for part in self._parts if part.job is None)
            return done + sum(map(bare.reader.count_merged, bare.merges))
        return sum(int(table.num_rows) for table in bare._tables())

    def files(self) -> list[ScanFile]:
        """Return the files that the scan opens: compacted ones with their deletion vectors, and those of waiting deltas."""
        root, files = self.snapshot.root, []
        for part in self._parts:
            values = tuple(part.partition.own.partition_values)
            for slices in by_data_file(part.files):
                vectors = [file.deletion_vector for file in slices if file.deletion_vector is not None]
                rows, size = sum(file.record_count for file in slices), sum(file.content_length for file in slices)
                vector = f"{root}/{vectors[0].uri}" if vectors else None
                files.append(ScanFile(f"{root}/{slices[0].uri}", rows, size, values, vector))
            for delta in part.partition.waiting:
                for entry in delta.manifest.entries:
                    files.append(
                        ScanFile(f"{root}/{entry.uri}", entry.record_count, entry.content_length, values, is_delta=True)
                    )
        return files

    def explain(self) -> ScanSummary:
        """Return what the scan opens and what it skips; with a filter, this reads the footers of files."""
        parts, snapshot = self._parts, self.snapshot
        totals = [part.buckets.totals for part in parts if part.buckets is not None]
        files = [slices for part in parts for slices in by_data_file(part.files)]
        groups = [self._groups(StoredFile.together(snapshot.root, slices)) for slices in files]
        deltas = [delta for part in parts for delta in part.partition.waiting]
        needed = tuple(self.reader.named.names)
        numbers = sum(len(part.numbers) for part in parts)
        return ScanSummary(
            partitions=len(parts),
            partitions_skipped=len(snapshot.partitions) - len(parts) + snapshot.left_out,
            buckets=numbers,
            buckets_skipped=sum(len(part.buckets or ()) for part in parts) - numbers,
            files=len(files),
            files_skipped=sum(total.file_count for total in totals) - sum(map(len, files)),
            row_groups=sum(chosen for chosen, _ in groups),
            row_groups_skipped=sum(total - chosen for chosen, total in groups),
            deltas=len(deltas),
            delta_files=sum(len(delta.manifest.entries) for delta in deltas),
            columns=needed,
            columns_skipped=len(snapshot.version.fields) - len(needed),
            by_key=None if self.reader.hashes is None else len(self.reader.hashes),
        )

    def _groups(self, file: StoredFile) -> tuple[int, int]:
        """Return how many row groups of a file are read, and how many there are."""
        reader = self.reader
        rows = None if reader.hashes is None else reader.rows_of_keys(file)
        may_match = reader.may_match if self.where is not None and rows is None else None
        return len(list(file.groups(rows, may_match))), file.parquet.num_row_groups

    @property
    def compacted_files(self) -> tuple[CompactedFile, ...]:
        """The files, or slices of files, of partitions without waiting deltas: they have all rows. Raises: CorruptionError."""
        # Not a cached property: in Python 3.11, while one is computed for a scan, by reading, no other scan can be read.
        known: tuple[CompactedFile, ...] | None = self.__dict__.get("_files")
        if known is None:
            known = tuple(file for part in self._parts if part.job is None for file in part.files)
            self.__dict__["_files"] = known
        return known

    @cached_property
    def merges(self) -> tuple[MergeTask, ...]:
        """The buckets of partitions with waiting deltas, with what is needed to merge them."""
        return tuple(MergeTask(part.job, part.numbers) for part in self._parts if part.job is not None)

    @cached_property
    def reader(self) -> RowReader:
        """What reads the files and buckets."""
        version, names = self.snapshot.version, self._needed
        in_files = version.as_in_files().schema
        # Partitions may have the columns of a key in different orders, and so different hashes.
        orders = {part.keys for part in self._parts if part.buckets} or {
            tuple(version.names_in_files(version.primary_keys))
        }
        hashes = [self._hashes(keys) for keys in orders]
        return RowReader(
            self.snapshot.root,
            pa.schema([in_files.field(name) for name in version.names_in_files(names)]),
            pa.schema([version.schema.field(name) for name in names]),
            self.columns,
            self.where,
            None if None in hashes else tuple(sorted({hash_ for each in hashes for hash_ in each or ()})),
        )

    @cached_property
    def _needed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.columns, *(self.where.columns if self.where is not None else ())]))

    @cached_property
    def _parts(self) -> "tuple[_Part, ...]":
        where, snapshot = self.where, self.snapshot
        return tuple(
            self._part(partition)
            for partition in snapshot.partitions
            if where is None or where.may_match(_partition_ranges(snapshot, partition))
        )

    def _part(self, partition: PartitionSnapshot) -> "_Part":
        job = self._job(partition) if partition.waiting else None
        base = partition.completion if job is None else job
        if base is None:
            return _Part(partition, (), None, range(0), job)
        keys, buckets = tuple(base.primary_keys), base.buckets
        hashes = self._hashes(keys)
        numbers: Sequence[int] = (
            range(len(buckets)) if hashes is None else sorted({buckets.number_of(hash_) for hash_ in hashes})
        )
        return _Part(partition, keys, buckets, numbers, job)

    def _job(self, partition: PartitionSnapshot) -> RoundJob:
        """Return the merge of a partition's deltas, with no more columns than that and the reader need."""
        job = merge_of(self.snapshot, partition)
        needed = {*self.snapshot.version.names_in_files(self._needed), *job.merge_columns}
        # Without any column, rows would not be counted.
        return replace(job, fields=tuple(field for field in job.fields if field["name"] in needed) or job.fields[:1])

    def _hashes(self, keys: Sequence[str]) -> tuple[int, ...] | None:
        """Return the hashes of all keys that wanted rows can have, given the columns of the key as files name them."""
        if self.where is None:
            return None
        names = self.snapshot.version.names_by_file()
        named = [names[key] for key in keys]
        rows = self.where.keys(named, self.snapshot.version.schema)
        return None if rows is None else tuple(map(int, hash_keys(rows, named)))

    def _tables(self) -> Iterator[pa.Table]:
        reader = self.reader
        for slices in by_data_file(self.compacted_files):
            yield from reader.read_file(slices)
        for task in self.merges:
            yield from reader.read_merged(task)


@dataclass(frozen=True)
class _Part:
    """A partition that is read: which of its buckets, and the merge where deltas wait."""

    partition: PartitionSnapshot
    keys: tuple[str, ...]
    buckets: Buckets | None
    numbers: Sequence[int]
    job: RoundJob | None

    @property
    def live_count(self) -> int:
        """The rows of the buckets that are read."""
        if self.buckets is None or len(self.numbers) == len(self.buckets):
            return 0 if self.buckets is None else self.buckets.totals.live_count
        return sum(file.live_count for file in self.files)

    @property
    def files(self) -> list[CompactedFile]:
        """The compacted files of the buckets that are read."""
        buckets = self.buckets
        return [] if buckets is None else [file for number in self.numbers for file in buckets[number].files]


def scan_of(
    snapshot: TableSnapshot,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    *,
    current_only: bool = False,
    valid_at: object = None,
) -> Scan:
    """Return a scan of the columns asked for, by default all, and of the rows that a filter leaves.

    Of a table that keeps history, these are all versions, unless only current ones, or those `valid_at` a time, are
    asked for.
    Raises: InvalidInputError.
    """
    schema = snapshot.version.schema
    names = schema.names if columns is None else [columns] if isinstance(columns, str) else list(columns)
    check_known(names, schema, "column")
    condition = None if where is None else compile_where(where, schema)
    if current_only or valid_at is not None:
        condition = both(condition, valid_versions(snapshot.version, None if current_only else valid_at))
    if current_only and valid_at is not None:
        raise InvalidInputError(
            "current_only asks for versions that are valid now, valid_at for another time; give one"
        )
    return Scan(snapshot, tuple(names), condition)


def valid_versions(version: TableVersion, time: object = None) -> Condition:
    """Return the condition that a version of a row is valid at a time, given as the sort key has it; None: that it is current.

    Raises: InvalidInputError.
    """
    name = version.locator.table_locator.full_name
    if not version.keeps_history:
        raise InvalidInputError(
            f"{name}: merges rows by {version.merge_engine}, and so has no versions that were valid at a time; tables "
            "with merge engine history have"
        )
    is_open = IsNull(VALID_TO)
    if time is None:
        return condition_of(is_open, [VALID_TO])
    begin, end = (version.schema.field(column) for column in (VALID_FROM, VALID_TO))
    try:
        value = parse_literal(time, begin) if isinstance(time, str) else pa.scalar(time, begin.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InvalidInputError(f"{name}: {time!r} is not a time at which versions are valid ({begin.type})") from error
    # What has no sort key is before all that have.
    begun = Or((IsNull(begin.name), Comparison(begin.name, "<=", value)))
    return condition_of(And((begun, Or((is_open, Comparison(end.name, ">", value))))), [VALID_FROM, VALID_TO])


def open_scan(
    name: str,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    *,
    as_of: Moment | None = None,
    fresh: bool = False,
    current_only: bool = False,
    valid_at: object = None,
    root: str,
) -> Scan:
    """Take a snapshot of the partitions of a table that a filter does not rule out, and return a scan of it.

    Raises: NotFoundError, InvalidInputError, CorruptionError.
    """
    choose = None if where is None else _chooser(lambda version: compile_where(where, version.schema))
    snapshot = take_snapshot(name, as_of=as_of, fresh=fresh, choose=choose, root=root)
    return scan_of(snapshot, columns, where, current_only=current_only, valid_at=valid_at)


def look_up(name: str, key: Mapping[str, object], *, root: str) -> list[dict[str, object]]:
    """Return the compacted rows of a primary key; a key that names its partition opens no other. Raises: as `read_key`."""
    return read_key(take_snapshot(name, choose=choose_by_key(key), root=root), key)


def choose_by_key(key: Mapping[str, object]) -> Choose:
    """Choose the partitions of a snapshot that can have a key."""
    return _chooser(lambda version: _key_condition(version, key))


def _chooser(condition: Callable[[TableVersion], Condition]) -> Choose:
    def choose(version: TableVersion) -> Callable[[Sequence[PartitionValue]], bool]:
        where = condition(version)
        return lambda values: where.may_match(_value_ranges(version, values))

    return choose


def _partition_ranges(snapshot: TableSnapshot, partition: PartitionSnapshot) -> Ranges:
    """Return what the values of a partition say of the rows in it."""
    # A partition of another table, which is followed, may be called by the values of other columns.
    is_known = snapshot.version_of(partition).partition_keys == snapshot.version.partition_keys
    return _value_ranges(snapshot.version, partition.own.partition_values if is_known else ())


def _value_ranges(version: TableVersion, partition_values: Sequence[PartitionValue]) -> Ranges:
    values = dict(zip(version.partition_keys, partition_values, strict=False))

    def of(column: str) -> Range:
        if column not in values:
            return Range()
        value: object = values[column]
        if value is None:
            return Range(may_be_valid=False)
        if pa.types.is_date(version.schema.field(column).type):
            value = datetime.date.fromisoformat(str(value))
        return Range(value, value, may_be_null=False)

    return of


def _imported(package: str) -> Any:
    require_packages(f"a scan as {package} has it", (package,), package)
    return importlib.import_module(package)


def destination_of(partition: PartitionSnapshot, root: str) -> Destination:
    """Return where a partition is compacted to."""
    return Destination(compacted_partition(partition.own), partition.folder, root)


def merge_of(snapshot: TableSnapshot, partition: PartitionSnapshot) -> RoundJob:
    """Return what a round would have to do that merges the deltas that wait in a partition."""
    destination = destination_of(partition, snapshot.root)
    keys = Keys(tuple(snapshot.version.primary_keys))
    source = snapshot.version_of(partition)
    # A read makes nothing that needs a time, so that none is asked of the store.
    return merging_job(destination, partition.completion, partition.waiting, keys, source, snapshot.version, now_ms=0)


def key_table(schema: pa.Schema, primary_keys: Sequence[str], key: Mapping[str, Any]) -> pa.Table:
    """Return a key as a table of one row, in the table's types. Raises: InvalidInputError."""
    if not primary_keys:
        raise InvalidInputError(f"key {dict(key)!r}: the table has no primary key; read it, and filter")
    for name in key:
        if name not in primary_keys:
            raise InvalidInputError(
                f"{name!r} is not in the primary key ({', '.join(primary_keys)}){did_you_mean(name, primary_keys)}"
            )
    missing = [name for name in primary_keys if name not in key]
    if missing:
        raise InvalidInputError(
            f"key {dict(key)!r} lacks {', '.join(missing)}; give a value for each primary key ({', '.join(primary_keys)})"
        )
    fields = pa.schema([schema.field(name) for name in primary_keys])
    try:
        return pa.Table.from_pylist([dict(key)], schema=fields)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidInputError(f"key {dict(key)!r} does not fit the types of {fields.names}: {error}") from error


def read_key(snapshot: TableSnapshot, key: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the rows of a primary key, found by the index: one at most, the current one, but for each partition.

    Raises: InvalidInputError, CorruptionError.
    """
    version = snapshot.version
    scan = scan_of(snapshot, where=_key_condition(version, key), current_only=version.keeps_history)
    rows: list[dict[str, object]] = scan.to_arrow().to_pylist()
    return rows


def _key_condition(version: TableVersion, key: Mapping[str, object]) -> Condition:
    row = key_table(version.schema, version.primary_keys, key)
    return key_condition({name: row.column(name)[0] for name in row.column_names})
