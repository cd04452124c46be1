"""Scans as data frames: Spark's own Parquet reader where the JVM reaches the files, Arrow elsewhere."""

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from siltstone.model.rounds import CompactedFile
from siltstone.objects import local_path
from siltstone.rows.files import StoredFile
from siltstone.spark.merge import every_bucket, gathered_by_bucket, merge_tasks, read_on_spark
from siltstone.spark.tasks import handed_over, spark_schema, with_access
from siltstone.table.scan import MergeTask, RowReader, Scan

_DEAD = "_siltstone_dead"
_METADATA = "_metadata"
_MAX_BROADCAST_ROWS = 4_000_000
_ROW_BITS = 32
_PATTERN = re.compile(r"[][{}*?\\]")


def read_scan(spark: SparkSession, scan: Scan) -> DataFrame:
    """Return the rows of a scan as a data frame. Raises: CorruptionError."""
    # Batches without a column would lose their rows on the way to Spark.
    is_bare = not scan.columns
    if is_bare:
        scan = replace(scan, columns=tuple(scan.snapshot.version.schema.names[:1]))
    rows = _read_files(spark, scan.reader, scan.compacted_files)
    for task in scan.merges:
        rows = rows.unionByName(_read_merged(spark, scan.reader, task))
    return rows.select() if is_bare else rows


def _read_files(spark: SparkSession, reader: RowReader, files: Sequence[CompactedFile]) -> DataFrame:
    """Return the rows of files: by Spark's own reader where that gives the same, which has no filters of ours."""
    if not files:
        return spark.createDataFrame([], spark_schema(_chosen(reader)))
    if reader.where is not None or _native_paths(reader.root, files) is None:
        return _read_in_python(spark, reader, files)
    whole = [file for file in files if file.deletion_vector is None]
    with_deletes = [file for file in files if file.deletion_vector is not None]
    frames = []
    if whole:
        frames.append(_read_natively(spark, reader, whole).toDF(*reader.named.names))
    if with_deletes:
        is_native = (
            _are_distinguishable(with_deletes)
            and sum(_dead_count(file) for file in with_deletes) <= _MAX_BROADCAST_ROWS
            # A column of this name hides the one in which Spark has a row's file and position.
            and _METADATA not in map(str.lower, reader.stored.names)
        )
        frames.append((_read_live_natively if is_native else _read_in_python)(spark, reader, with_deletes))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _read_merged(spark: SparkSession, reader: RowReader, task: MergeTask) -> DataFrame:
    """Return the rows that a round would leave in some buckets; nothing is written."""
    job = task.job
    parts = read_on_spark(spark, job).unionByName(every_bucket(spark, job))
    if len(task.buckets) < len(job.buckets):
        parts = parts.where(sf.col("bucket").isin(list(task.buckets)))
    tasks = max(1, min(len(task.buckets), merge_tasks(job, is_full=True)))

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, bucket_parts in gathered_by_bucket(batches):
            yield from _handed(reader, reader.read_bucket(job, number, bucket_parts))

    shuffled = parts.repartitionById(tasks, sf.col("bucket") % tasks)
    return shuffled.mapInArrow(with_access(job.root, merge), spark_schema(_chosen(reader)))


def _chosen(reader: RowReader) -> pa.Schema:
    return pa.schema([reader.named.field(name) for name in reader.columns])


def _handed(reader: RowReader, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        yield from handed_over(table, _chosen(reader)).to_batches()


def _native_paths(root: str, files: Sequence[CompactedFile]) -> list[str] | None:
    """Return the files' paths for Spark, or None if it cannot open them: some characters of a path are a pattern to it."""
    paths = []
    for file in files:
        path = local_path(root, file.uri)
        if path is None or _PATTERN.search(path):
            return None
        paths.append(f"file://{path}")
    return paths


def _read_natively(spark: SparkSession, reader: RowReader, files: Sequence[CompactedFile]) -> DataFrame:
    paths = _native_paths(reader.root, files)
    assert paths is not None
    return spark.read.schema(spark_schema(reader.stored)).parquet(*paths)


def _read_live_natively(spark: SparkSession, reader: RowReader, files: Sequence[CompactedFile]) -> DataFrame:
    """Leave out dead rows by a join with their numbers: one long each, of the file and the position in it."""
    rows = _read_natively(spark, reader, files)
    number = sf.shiftleft(sf.crc32(sf.col(f"{_METADATA}.file_name").cast("binary")), _ROW_BITS)
    numbered = rows.select("*", number.bitwiseOR(sf.col(f"{_METADATA}.row_index")).alias(_DEAD))
    dead = spark.createDataFrame(_dead_rows(reader.root, files))
    live = numbered.join(sf.broadcast(dead), on=_DEAD, how="left_anti").drop(_DEAD)
    return live.toDF(*reader.named.names)


def _dead_rows(root: str, files: Sequence[CompactedFile]) -> pa.Table:
    numbers = []
    for file in files:
        dead = StoredFile(root, file).dead
        numbers.append(np.fromiter(dead, np.int64, len(dead)) | _number(file) << _ROW_BITS)
    return pa.table({_DEAD: np.concatenate(numbers)})


def _number(file: CompactedFile) -> int:
    """Return the number that the JVM computes for a file: signed, as it is there."""
    number = zlib.crc32(file.uri.rpartition("/")[2].encode())
    return number - (1 << _ROW_BITS) if number >> (_ROW_BITS - 1) else number


def _are_distinguishable(files: Sequence[CompactedFile]) -> bool:
    """Return whether a file and a position in it make a number that no other row has."""
    return len({_number(file) for file in files}) == len(files) and all(
        file.record_count < 1 << _ROW_BITS for file in files
    )


def _dead_count(file: CompactedFile) -> int:
    return file.record_count - file.live_count


def _read_in_python(spark: SparkSession, reader: RowReader, files: Sequence[CompactedFile]) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from _handed(reader, reader.read_file(files[number]))

    tasks = spark.range(0, len(files), 1, max(1, len(files)))
    return tasks.mapInArrow(with_access(reader.root, read), spark_schema(_chosen(reader)))
