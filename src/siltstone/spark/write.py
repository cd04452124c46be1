"""Data frames into deltas: executors write the files, the driver commits them."""

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from siltstone.documents.intake import check_columns, checked_updates
from siltstone.documents.read import DOCUMENT_SCHEMA, bucket_documents
from siltstone.documents.record import new_change_id
from siltstone.documents.schema import WRITTEN_SCHEMA, stored_batches
from siltstone.errors import ConflictError
from siltstone.model import Delta, DeltaType, Manifest, StreamLocator
from siltstone.rows.job import RoundJob
from siltstone.spark.merge import every_bucket, gathered_by_bucket, merge_tasks, read_on_spark, translated
from siltstone.spark.tasks import spark_schema, taken_back, with_access
from siltstone.storage import object_store as storage
from siltstone.table.completion import Hold


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
            yield from stored_batches(checked_updates(batch.to_pylist()), lambda: new_change_id(now_ms))

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
