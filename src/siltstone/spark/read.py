"""Compacted rows as data frames: Spark's own Parquet reader where the JVM reaches the files, Arrow elsewhere."""

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from siltstone.model.rounds import CompactedFile
from siltstone.objects import local_path
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.spark.merge import every_bucket, gathered_by_bucket, merge_tasks, read_on_spark
from siltstone.spark.tasks import reaching
from siltstone.spark.types import handed_over, spark_schema
from siltstone.table.scan import choose_columns, live_rows, merged_rows, plan_reads
from siltstone.table.snapshot import TableSnapshot

_DEAD = "_siltstone_dead"
_METADATA = "_metadata"
_MAX_BROADCAST_ROWS = 4_000_000
_ROW_BITS = 32
_PATTERN = re.compile(r"[][{}*?\\]")


@dataclass(frozen=True)
class FileSet:
    """The files of a table's compacted rows, and the columns to read."""

    root: str
    files: tuple[CompactedFile, ...]
    schema: pa.Schema


def read_snapshot(spark: SparkSession, snapshot: TableSnapshot, columns: Sequence[str] | None = None) -> DataFrame:
    """Return the rows of a table at one position as a data frame. Raises: InvalidInputError, CorruptionError."""
    # Batches without a column would lose their rows on the way to Spark.
    is_bare = columns is not None and not columns
    chosen = choose_columns(snapshot.version, snapshot.version.schema.names[:1] if is_bare else columns)
    reads = plan_reads(snapshot)
    files = tuple(file for completion in reads.rounds for file in completion.files)
    rows = read_files(spark, FileSet(snapshot.root, files, chosen.in_files))
    for job in reads.jobs:
        rows = rows.unionByName(read_at(spark, job, chosen.in_files))
    return rows.select() if is_bare else rows.toDF(*chosen.schema.names)


def read_files(spark: SparkSession, files: FileSet) -> DataFrame:
    """Return the live rows of files as a data frame."""
    whole = [file for file in files.files if file.deletion_vector is None]
    holed = [file for file in files.files if file.deletion_vector is not None]
    if files.files and _native_paths(files, files.files) is None:
        return _read_in_python(spark, files, files.files)
    frames = []
    if whole:
        frames.append(_read_natively(spark, files, whole))
    if holed:
        is_native = (
            _can_tell_apart(holed)
            and sum(_dead_count(file) for file in holed) <= _MAX_BROADCAST_ROWS
            # A column of this name hides where Spark tells a row's file and place.
            and _METADATA not in map(str.lower, files.schema.names)
        )
        read = _read_live_natively if is_native else _read_in_python
        frames.append(read(spark, files, holed))
    if not frames:
        return spark.createDataFrame([], spark_schema(files.schema))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def read_at(spark: SparkSession, job: RoundJob, schema: pa.Schema) -> DataFrame:
    """Return the rows that a round would leave, as a data frame; nothing is written."""
    parts = read_on_spark(spark, job).unionByName(every_bucket(spark, job))
    tasks = min(len(job.buckets), merge_tasks(job, is_full=True))

    def merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, own in gathered_by_bucket(batches):
            for table in merged_rows(job, number, own):
                yield from handed_over(table, schema).to_batches()

    shuffled = parts.repartitionById(tasks, sf.col("bucket") % tasks)
    return shuffled.mapInArrow(reaching(job.root, merge), spark_schema(schema))


def _native_paths(files: FileSet, chosen: Sequence[CompactedFile]) -> list[str] | None:
    """Return how Spark addresses files, None where it cannot: it takes some characters of a path for a pattern."""
    paths = []
    for file in chosen:
        path = local_path(files.root, file.uri)
        if path is None or _PATTERN.search(path):
            return None
        paths.append(f"file://{path}")
    return paths


def _read_natively(spark: SparkSession, files: FileSet, chosen: Sequence[CompactedFile]) -> DataFrame:
    paths = _native_paths(files, chosen)
    assert paths is not None
    return spark.read.schema(spark_schema(files.schema)).parquet(*paths)


def _read_live_natively(spark: SparkSession, files: FileSet, chosen: Sequence[CompactedFile]) -> DataFrame:
    """Leave out dead rows by a join with their numbers: one long each, of the file and the place in it."""
    rows = _read_natively(spark, files, chosen)
    number = sf.shiftleft(sf.crc32(sf.col(f"{_METADATA}.file_name").cast("binary")), _ROW_BITS)
    numbered = rows.select("*", number.bitwiseOR(sf.col(f"{_METADATA}.row_index")).alias(_DEAD))
    dead = spark.createDataFrame(_dead_rows(files, chosen))
    return numbered.join(sf.broadcast(dead), on=_DEAD, how="left_anti").drop(_DEAD)


def _dead_rows(files: FileSet, chosen: Sequence[CompactedFile]) -> pa.Table:
    numbers = []
    for file in chosen:
        dead = StoredFile(files.root, file).dead
        numbers.append(np.fromiter(dead, np.int64, len(dead)) | _number(file) << _ROW_BITS)
    return pa.table({_DEAD: np.concatenate(numbers)})


def _number(file: CompactedFile) -> int:
    """Return the number that the JVM gives a file; it may be the sign bit's that is set, as it is there."""
    number = zlib.crc32(file.uri.rpartition("/")[2].encode())
    return number - (1 << _ROW_BITS) if number >> (_ROW_BITS - 1) else number


def _can_tell_apart(chosen: Sequence[CompactedFile]) -> bool:
    """Tell whether a file and a place in it make a number that no other row has."""
    return len({_number(file) for file in chosen}) == len(chosen) and all(
        file.record_count < 1 << _ROW_BITS for file in chosen
    )


def _dead_count(file: CompactedFile) -> int:
    return file.record_count - file.live_count


def _read_in_python(spark: SparkSession, files: FileSet, chosen: Sequence[CompactedFile]) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for table in live_rows(StoredFile(files.root, chosen[number]), files.schema):
                    yield from handed_over(table, files.schema).to_batches()

    tasks = spark.range(0, len(chosen), 1, max(1, len(chosen)))
    return tasks.mapInArrow(reaching(files.root, read), spark_schema(files.schema))
