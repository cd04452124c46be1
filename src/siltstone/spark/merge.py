"""Rounds on Spark: files are read where they are, parts of deltas are shuffled by bucket, buckets merge in parallel."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from siltstone import errors
from siltstone.documents.merge import merge_any
from siltstone.model.rounds import Accounting, Bucket
from siltstone.rounds.events import Progress
from siltstone.rows.job import BucketResult, Engine, Merge, ReadTask, RoundJob
from siltstone.rows.parts import read_parts
from siltstone.spark.tasks import collect, with_access

_OUR_ERROR = re.compile(r"^siltstone\.errors\.(\w+): (.*)$", re.MULTILINE)
STEPS = ("read", "merge")
_PART_SCHEMA = "bucket int, part binary"
_BYTES_PER_TASK = 8 << 20
_MERGED_BYTES_PER_TASK = 1 << 20
_REWRITTEN_BYTES_PER_TASK = 16 << 20
_LEAST_TASKS = 2


def spark_engine(spark: SparkSession, progress: Progress | None = None, merge: Merge = merge_any) -> Engine:
    """Return an engine that runs the tasks of a round on Spark, and reports each that is done to `progress`."""

    def run(job: RoundJob) -> Iterator[BucketResult]:
        parts = read_on_spark(spark, job)
        visited = [number for number, bucket in enumerate(job.buckets) if job.visits(bucket)]
        if visited:
            parts = parts.unionByName(every_bucket(spark, job).where(sf.col("bucket").isin(visited)))
        try:
            rows = collect(spark, merge_on_spark(parts, job, merge), STEPS, progress)
        except PythonException as error:
            raise translated(error) from error
        for row in rows:
            yield _decoded(row.result)

    return run


def _decoded(text: str) -> BucketResult:
    """Return the result of a task, which travels as JSON."""
    fields = json.loads(text)
    fields["buckets"] = tuple(map(Bucket.from_serializable, fields["buckets"]))
    fields["accounting"] = Accounting.from_serializable(fields["accounting"])
    return BucketResult(**fields)


def translated(error: PythonException) -> Exception:
    """Return the error of ours that a task raised, of which Spark passes on only the text."""
    match = _OUR_ERROR.search(str(error))
    kind = getattr(errors, match[1], None) if match else None
    return kind(match[2].strip()) if match and kind is not None else error


def read_on_spark(spark: SparkSession, job: RoundJob) -> DataFrame:
    """Read the files of a round's deltas into parts by bucket."""
    reads = _shared(job)
    tasks = max(1, min(len(reads), job.input_bytes // _BYTES_PER_TASK + _LEAST_TASKS))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for bucket, part in read_parts(job, [reads[number]]):
                    yield pa.record_batch(
                        {"bucket": pa.array([bucket], pa.int32()), "part": pa.array([part], pa.binary())}
                    )

    return spark.range(0, len(reads), 1, tasks).mapInArrow(with_access(job.root, read), _PART_SCHEMA)


def _shared(job: RoundJob) -> list[ReadTask]:
    """Return the reads of a round, with large files shared among several."""
    reads = []
    for read in job.reads:
        shares = max(1, read.content_length // _BYTES_PER_TASK)
        reads += [replace(read, share=share, of=shares) for share in range(shares)]
    return reads


def every_bucket(spark: SparkSession, job: RoundJob) -> DataFrame:
    """Return a part without rows for each bucket, so that those are visited that have nothing else."""
    buckets = spark.range(len(job.buckets))
    return buckets.select(sf.col("id").cast("int").alias("bucket"), sf.lit(None).cast("binary").alias("part"))


def merge_tasks(job: RoundJob, *, is_full: bool) -> int:
    """Return how many tasks to merge in: starting one costs as much as merging some ten thousand rows."""
    visited = [bucket for bucket in job.buckets if is_full or job.visits(bucket)]
    if not visited:
        return job.input_bytes // _MERGED_BYTES_PER_TASK + _LEAST_TASKS
    rewritten = job.input_bytes + sum(bucket.content_length for bucket in visited)
    # A power of two, as the number of buckets mostly is, so that tasks get as many buckets each.
    return 1 << max(_LEAST_TASKS, rewritten // _REWRITTEN_BYTES_PER_TASK).bit_length() - 1


def merge_on_spark(parts: DataFrame, job: RoundJob, merge: Merge = merge_any) -> DataFrame:
    """Merge buckets in parallel: each in a task of its own, but several in one where there is little to do."""
    tasks = min(len(job.buckets), merge_tasks(job, is_full=job.settings.full))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for bucket, bucket_parts in gathered_by_bucket(batches):
            result = merge(job, bucket, bucket_parts)
            if result is not None:
                yield pa.record_batch({"result": [json.dumps(vars(result))]})

    shuffled = parts.repartitionById(tasks, sf.col("bucket") % tasks)
    return shuffled.mapInArrow(with_access(job.root, run), "result string")


def gathered_by_bucket(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each bucket of a task with its parts."""
    gathered: dict[int, list[bytes]] = {}
    for batch in batches:
        for bucket, part in zip(batch.column("bucket").to_pylist(), batch.column("part"), strict=True):
            bucket_parts = gathered.setdefault(bucket, [])
            if part.is_valid:
                bucket_parts.append(part.as_py())
    for bucket in sorted(gathered):
        yield bucket, gathered.pop(bucket)
