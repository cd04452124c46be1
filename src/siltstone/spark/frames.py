"""Tables as data frames, and data frames into deltas: executors read and write the files, the driver commits them."""

import datetime
import functools
import json
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from siltstone.documents.intake import check_columns, checked_updates, with_ids
from siltstone.documents.merge import arrived_rows
from siltstone.documents.read import DOCUMENT_SCHEMA, bucket_documents
from siltstone.documents.record import new_change_id
from siltstone.documents.schema import WRITTEN_SCHEMA, stored_updates
from siltstone.errors import ConflictError, InvalidInputError
from siltstone.model import Delta, DeltaType, Manifest, StreamLocator
from siltstone.model.buckets import CompactedFile
from siltstone.rows.columns import align
from siltstone.rows.job import RoundJob, Stretch
from siltstone.rows.slices import by_data_file
from siltstone.spark.native import quoted, read_files, with_nans
from siltstone.spark.tasks import map_buckets, translated, with_access
from siltstone.storage import object_store as storage
from siltstone.table import where
from siltstone.table.completion import Hold
from siltstone.table.scan import MergeTask, RowReader, Scan

_MIDNIGHT_DISTANCE = pa.duration("us")
_DAY_MICROSECONDS = 24 * 3600 * 1_000_000
_MAX_PARTS = 100


def read_scan(spark: SparkSession, scan: Scan) -> DataFrame:
    """Return the rows of a scan as a data frame: by Spark's own Parquet reader where the JVM reaches the files.

    Raises: CorruptionError.
    """
    # Batches without a column would lose their rows on the way to Spark.
    is_bare = not scan.columns
    if is_bare:
        scan = replace(scan, columns=tuple(scan.snapshot.version.schema.names[:1]))
    if is_bare and scan.where is None:
        rows = _blank_rows(spark, scan)
    else:
        rows = _read_files(spark, scan.reader, scan.compacted_files)
    for merge in scan.merges:
        rows = rows.unionByName(_read_merged(spark, scan.reader, merge))
    return rows.select() if is_bare else rows


def _blank_rows(spark: SparkSession, scan: Scan) -> DataFrame:
    """Return as many rows as compacted files have, without reading any."""
    (field,) = spark_schema(scan.schema)
    count = sum(file.live_count for file in scan.compacted_files)
    return spark.range(count).select(sf.lit(None).cast(field.dataType).alias(field.name))


def _read_files(spark: SparkSession, reader: RowReader, files: Sequence[CompactedFile]) -> DataFrame:
    """Return the rows of files: by Spark's own reader where that gives the same."""
    if not files:
        return spark.createDataFrame([], spark_schema(_chosen(reader)))
    condition = _native_filter(reader)
    native: list[DataFrame] = []
    left = list(files)
    if reader.where is None or condition is not None:
        native, left = read_files(spark, reader.root, spark_schema(reader.stored), files)

    def wanted(rows: DataFrame) -> DataFrame:
        named = with_nans(rows.toDF(*reader.named.names), reader.named)
        return named if condition is None else named.where(condition).select(*map(_column_named, reader.columns))

    frames = list(map(wanted, native))
    if left:
        frames.append(_read_in_python(spark, reader, left))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def _read_merged(spark: SparkSession, reader: RowReader, merge: MergeTask) -> DataFrame:
    """Return the rows that a round would leave in some buckets; nothing is written."""
    job = merge.job

    def read(stretch: Stretch) -> Iterator[pa.RecordBatch]:
        yield from handed_batches(reader, reader.read_stretch(job, stretch))

    return map_buckets(spark, job, merge.buckets, read, spark_schema(_chosen(reader)))


def handed_batches(reader: RowReader, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield what a reader has read in the types in which Spark is given it."""
    for table in tables:
        yield from _handed_over(table, _chosen(reader)).to_batches()


def _chosen(reader: RowReader) -> pa.Schema:
    return pa.schema([reader.named.field(name) for name in reader.columns])


def _native_filter(reader: RowReader) -> Column | None:
    """Return a filter as Spark's own where that keeps the same rows; None where it might not, or an index finds them."""
    if reader.where is None or reader.hashes is not None:
        return None
    tree = reader.where.tree
    column = _as_column(tree, reader.named)
    # An Arrow expression can mean something else than its tree where values are null.
    return column if column is not None and where.expression_of(tree).equals(reader.where.expression) else None


def _as_column(node: where.Node, schema: pa.Schema) -> Column | None:
    """Return a filter on types that both compare alike; to Spark, NaN equals itself and is greater than any number."""
    if isinstance(node, where.Not):
        part = _as_column(node.part, schema)
        return None if part is None else ~part
    if isinstance(node, where.And | where.Or):
        parts = [column for part in node.parts if (column := _as_column(part, schema)) is not None]
        # Very long ones would nest too deeply.
        if len(parts) < len(node.parts) or len(parts) > _MAX_PARTS:
            return None
        return functools.reduce(operator.and_ if isinstance(node, where.And) else operator.or_, parts)
    if isinstance(node, where.IsNull):
        return _column_named(node.column).isNull()
    if not isinstance(node, where.Comparison | where.In):
        return None
    kind = schema.field(node.column).type
    is_ordered = pa.types.is_signed_integer(kind) or pa.types.is_string(kind) or pa.types.is_date32(kind)
    if not is_ordered and not (pa.types.is_boolean(kind) and getattr(node, "operator", "=") in ("=", "!=")):
        return None
    column = _column_named(node.column)
    if isinstance(node, where.In):
        return column.isin([_literal(value) for value in node.values]) if 0 < len(node.values) <= _MAX_PARTS else None
    compared: Column = where.COMPARE[node.operator](column, _literal(node.value))
    return compared


def _literal(value: "pa.Scalar[Any]") -> Column:
    """Return a value to compare with. On the way through Java, a date before 1582 would become another one, or fail."""
    if pa.types.is_date32(value.type):
        return sf.date_from_unix_date(sf.lit(value.cast(pa.int32()).as_py()))
    return sf.lit(value.as_py())


def _column_named(name: str) -> Column:
    return sf.col(quoted(name))


def _read_in_python(spark: SparkSession, reader: RowReader, slices: Sequence[CompactedFile]) -> DataFrame:
    files = by_data_file(slices)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from handed_batches(reader, reader.read_file(files[number]))

    tasks = spark.range(0, len(files), 1, max(1, len(files)))
    return tasks.mapInArrow(with_access(reader.root, read), spark_schema(_chosen(reader)))


def stage_on_spark(
    frame: DataFrame,
    stream: StreamLocator,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    evolve: bool = True,
    root: str,
) -> list[Delta]:
    """Stage a data frame; where it is empty, what its schema alone says.

    Raises: as `stage_deltas`; ConflictError where columns were renamed or dropped while tasks were writing.
    """
    version = stream.table_version_locator
    table_schema = storage.get_table_version_schema(version.namespace, version.table, version.table_version, root=root)
    settings = {"type": type, "delete_columns": delete_columns, "op_column": op_column, "evolve": evolve, "root": root}

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken = (taken_back(batch, table_schema) for batch in batches)
        staged = storage.stage_deltas(taken, stream, **settings)  # type: ignore[arg-type]
        yield pa.record_batch({"deltas": [json.dumps([delta for delta in staged if delta.manifest.entries])]})

    # The schema is checked here first, so that a wrong one is refused before any task runs.
    schema = taken_back(pa.RecordBatch.from_pylist([], frame.limit(0).toArrow().schema), table_schema).schema
    empty = storage.stage_deltas(schema.empty_table(), stream, **settings)  # type: ignore[arg-type]
    try:
        rows = frame.mapInArrow(with_access(root, stage), "deltas string").collect()
    except PythonException as error:
        raise translated(error) from error
    by_task = [[Delta.from_serializable(delta) for delta in json.loads(row.deltas)] for row in rows]
    deltas = [delta for task in by_task for delta in task]
    if len({json.dumps([delta.columns, delta.delete_columns, delta.op_column]) for delta in deltas}) > 1:
        storage.discard_deltas(deltas, root=root)
        raise ConflictError(f"{stream}: columns were renamed or dropped while this was being written; write it again")
    return _combined(by_task) or empty


def _combined(by_task: list[list[Delta]]) -> list[Delta]:
    """Return one delta for each partition, of those of all tasks.

    Deletes of a task that concern every partition are in its own files of the partitions that it has rows for; for those that
    only other tasks have rows for, they come from a file of their own.
    """
    touched = {delta.locator.partition_id: delta for task in by_task for delta in task if not delta.every_partition}
    combined: list[Delta] = []
    for partition, first in touched.items():
        entries = []
        for task in by_task:
            own = [delta for delta in task if not delta.every_partition and delta.locator.partition_id == partition]
            for delta in own or [delta for delta in task if delta.every_partition]:
                entries += delta.manifest.entries
        combined.append(Delta.from_serializable({**first, "manifest": Manifest(entries=entries)}))
    everywhere = [delta for task in by_task for delta in task if delta.every_partition]
    if everywhere:
        entries = [entry for delta in everywhere for entry in delta.manifest.entries]
        combined.append(Delta.from_serializable({**everywhere[0], "manifest": Manifest(entries=entries)}))
    return combined


def stage_updates(frame: DataFrame, stream: StreamLocator, *, now_ms: int, root: str) -> list[Delta]:
    """Check updates and stage them; executors make change ids of now where there are none. Raises: InvalidInputError."""
    check_columns(frame.columns)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            updates = with_ids(checked_updates(batch.to_pylist()), lambda: new_change_id(now_ms))
            yield from stored_updates(updates).to_batches()

    checked = frame.mapInArrow(with_access(root, check), spark_schema(WRITTEN_SCHEMA))
    try:
        return stage_on_spark(checked, stream, type="append", root=root)
    except PythonException as error:
        raise translated(error) from error


def documents_on_spark(
    spark: SparkSession, job: RoundJob, *, hold: Hold | None = None, include_deleted: bool = False
) -> DataFrame:
    """Return all documents, one a row, resolved with the deltas that the job would read; nothing is written.

    With a hold, they are as of its time, where the job starts from its state.
    """

    def resolve(stretch: Stretch) -> Iterator[pa.RecordBatch]:
        new = arrived_rows(stretch.parts)
        for table in bucket_documents(job, stretch.numbers[0], new, hold=hold, include_deleted=include_deleted):
            yield from table.to_batches()

    return map_buckets(spark, job, range(len(job.buckets)), resolve, spark_schema(DOCUMENT_SCHEMA))


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types of a table's columns."""
    return from_arrow_schema(_handed_schema(schema), prefer_timestamp_ntz=True)


def _handed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow types in which Spark is given a table's columns."""
    handed = [field.with_type(_with_times_as(field.type, _MIDNIGHT_DISTANCE)) for field in schema]
    return pa.schema([field.remove_metadata() for field in handed])


def _handed_over(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring rows to a table's schema, and then to the types in which Spark is given them."""
    aligned = align(table, schema)
    columns = [_column(aligned.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names)


def taken_back(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows that come from Spark with intervals as times where the table has these. Raises: InvalidInputError."""
    times = {field.name for field in schema if pa.types.is_time(field.type)}
    for position, field in enumerate(batch.schema):
        if field.name in times and pa.types.is_duration(field.type):
            array = _time_of_day(batch.column(position), field.name)
            batch = batch.set_column(position, field.with_type(array.type), array)
    return batch


def _time_of_day(array: "pa.Array[object]", name: str) -> "pa.Array[object]":
    since_midnight = array.cast(_MIDNIGHT_DISTANCE).cast(pa.int64())
    for bound in pc.min_max(since_midnight).as_py().values():
        if bound is not None and not 0 <= bound < _DAY_MICROSECONDS:
            raise InvalidInputError(
                f"column {name!r} has {datetime.timedelta(microseconds=bound)}, which is not a time of day; "
                "give an interval since midnight of less than 24 hours"
            )
    return since_midnight.cast(pa.time64("us"))


def _column(column: "pa.ChunkedArray[object]", kind: pa.DataType) -> "pa.ChunkedArray[object]":
    handed = _with_times_as(kind, _MIDNIGHT_DISTANCE)
    # Arrow casts times to intervals by way of their numbers only.
    return column if handed.equals(kind) else column.cast(_with_times_as(kind, pa.int64())).cast(handed)


def _with_times_as(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return time
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_times_as(kind.value_type, time)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_times_as(field.type, time)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_with_times_as(kind.key_type, time)),
            kind.item_field.with_type(_with_times_as(kind.item_type, time)),
        )
    return kind
