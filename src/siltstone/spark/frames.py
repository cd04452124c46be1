"""Data frames."""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from siltstone.documents.intake import batch_updates, check_columns, checked_updates
from siltstone.documents.read import DOCUMENT_SCHEMA, bucket_documents
from siltstone.documents.record import new_change_id
from siltstone.documents.schema import WRITTEN_SCHEMA, stored_batches
from siltstone.errors import ConflictError
from siltstone.model import Delta, DeltaType, Manifest, StreamLocator
from siltstone.model.rounds import CompactedFile
from siltstone.objects import local_path
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.spark.tasks import (
    every_bucket,
    gathered_by_bucket,
    handed_over,
    merge_tasks,
    read_on_spark,
    spark_schema,
    taken_back,
    translated,
    with_access,
)
from siltstone.storage import object_store as storage
from siltstone.table.completion import Hold
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
            yield from stored_batches(checked_updates(batch_updates(batch)), lambda: new_change_id(now_ms))

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
    parts = read_on_spark(spark, job).unionByName(every_bucket(spark, job))
    tasks = min(len(job.buckets), merge_tasks(job, is_full=True))

    def resolve(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, bucket_parts in gathered_by_bucket(batches):
            for table in bucket_documents(job, number, bucket_parts, hold=hold, include_deleted=include_deleted):
                yield from table.to_batches()

    shuffled = parts.repartitionById(tasks, sf.col("bucket") % tasks)
    return shuffled.mapInArrow(with_access(job.root, resolve), spark_schema(DOCUMENT_SCHEMA))
