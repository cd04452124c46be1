"""Documents as data frames: updates that come in as one, and all documents as another."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from siltstone.documents.change_ids import new_change_id
from siltstone.documents.intake import WRITTEN_SCHEMA, batch_updates, check_columns, checked_updates, stored_batches
from siltstone.documents.store import DOCUMENT_SCHEMA, bucket_documents
from siltstone.model import Delta, StreamLocator
from siltstone.rows.job import RoundJob
from siltstone.spark.access import reaching
from siltstone.spark.merge import every_bucket, gathered_by_bucket, merge_tasks, read_on_spark, translated
from siltstone.spark.types import spark_schema
from siltstone.spark.writing import stage_on_spark
from siltstone.table.holds import Hold


def stage_updates(frame: DataFrame, stream: StreamLocator, *, now_ms: int, root: str) -> list[Delta]:
    """Check updates and stage them; executors make change ids of now where there are none. Raises: InvalidInputError."""
    check_columns(frame.columns)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from stored_batches(checked_updates(batch_updates(batch)), lambda: new_change_id(now_ms))

    checked = frame.mapInArrow(reaching(root, check), spark_schema(WRITTEN_SCHEMA))
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
        for number, own in gathered_by_bucket(batches):
            for table in bucket_documents(job, number, own, hold=hold, include_deleted=include_deleted):
                yield from table.to_batches()

    shuffled = parts.repartitionById(tasks, sf.col("bucket") % tasks)
    return shuffled.mapInArrow(reaching(job.root, resolve), spark_schema(DOCUMENT_SCHEMA))
