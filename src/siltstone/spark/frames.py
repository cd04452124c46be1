"""Tables as data frames: executors read the files."""

import functools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from siltstone.documents.merge import arrived_rows
from siltstone.documents.read import DOCUMENT_SCHEMA, bucket_documents
from siltstone.documents.timeline import HISTORY_SCHEMA, bucket_history
from siltstone.model.buckets import CompactedFile
from siltstone.rows.columns import align
from siltstone.rows.job import RoundJob, Stretch
from siltstone.rows.slices import by_data_file
from siltstone.spark.native import quoted, read_files, with_nans
from siltstone.spark.tasks import map_buckets, with_access
from siltstone.table import where
from siltstone.table.completion import Hold
from siltstone.table.scan import MergeTask, RowReader, Scan

_MIDNIGHT_DISTANCE = pa.duration("us")
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
        yield from handed_over(table, _chosen(reader)).to_batches()


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


def history_on_spark(spark: SparkSession, job: RoundJob) -> DataFrame:
    """Return the changes of all documents, one a row, as history has them, with those that wait."""

    def read(stretch: Stretch) -> Iterator[pa.RecordBatch]:
        yield from bucket_history(job, stretch.numbers[0], arrived_rows(stretch.parts)).to_batches()

    return map_buckets(spark, job, range(len(job.buckets)), read, spark_schema(HISTORY_SCHEMA))


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types of a table's columns."""
    return from_arrow_schema(_handed_schema(schema), prefer_timestamp_ntz=True)


def _handed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow types in which Spark is given a table's columns."""
    handed = [field.with_type(_with_times_as(field.type, _MIDNIGHT_DISTANCE)) for field in schema]
    return pa.schema([field.remove_metadata() for field in handed])


def handed_over(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring rows to a table's schema, and then to the types in which Spark is given them."""
    aligned = align(table, schema)
    columns = [_column(aligned.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names)


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
