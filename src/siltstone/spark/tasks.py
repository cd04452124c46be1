"""Rounds on Spark: files are read where they are, parts of deltas are shuffled by bucket, buckets merge in parallel."""

import gc
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from siltstone import errors
from siltstone.documents.merge import merge_any
from siltstone.model.rounds import Accounting, Bucket
from siltstone.objects import share_access
from siltstone.rounds.events import JobAwaited, Progress, TasksDone
from siltstone.rows.job import BucketResult, Engine, Merge, ReadTask, RoundJob
from siltstone.rows.parts import read_parts

_OUR_ERROR = re.compile(r"^siltstone\.errors\.(\w+): (.*)$", re.MULTILINE)
_STEPS = ("read", "merge")
_BYTES_PER_TASK = 8 << 20
_MERGED_BYTES_PER_TASK = 1 << 20
_REWRITTEN_BYTES_PER_TASK = 16 << 20
_LEAST_TASKS = 2
_POLL_SECONDS = 0.1

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
BucketTask = Callable[[int, list[bytes]], Iterable[pa.RecordBatch]]
"""Yields rows for the bucket of a number, given its parts of deltas."""


def spark_engine(spark: SparkSession, progress: Progress | None = None, merge: Merge = merge_any) -> Engine:
    """Return an engine that runs the tasks of a round on Spark, and reports each that is done to `progress`."""

    def run(job: RoundJob) -> Iterator[BucketResult]:
        def merge_bucket(number: int, parts: list[bytes]) -> Iterator[pa.RecordBatch]:
            result = merge(job, number, parts)
            if result is not None:
                yield pa.record_batch({"result": [json.dumps(vars(result))]})

        visited = [number for number, bucket in enumerate(job.buckets) if job.visits(bucket)]
        merged = map_buckets(spark, job, visited, merge_bucket, "result string", is_round=True)
        try:
            rows = collect(spark, merged, _STEPS, progress)
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


def map_buckets(
    spark: SparkSession,
    job: RoundJob,
    buckets: Sequence[int],
    task: BucketTask,
    schema: StructType | str,
    *,
    is_round: bool = False,
) -> DataFrame:
    """Return what a task makes of each bucket: each in a task of Spark's own, but several in one where there is little to do.

    A round also visits buckets other than `buckets`, where deltas have rows for them.
    """
    parts = _read_on_spark(spark, job)
    # A part without rows for each bucket, so that those are visited that have nothing else.
    every_bucket = spark.range(len(job.buckets)).select(
        sf.col("id").cast("int").alias("bucket"), sf.lit(None).cast("binary").alias("part")
    )
    is_wanted = sf.col("bucket").isin(list(buckets))
    if not is_round:
        parts = parts.unionByName(every_bucket)
        parts = parts.where(is_wanted) if len(buckets) < len(job.buckets) else parts
    elif buckets:
        parts = parts.unionByName(every_bucket.where(is_wanted))
    most = len(job.buckets if is_round else buckets)
    tasks = max(1, min(most, merge_tasks(job, is_full=job.settings.full or not is_round)))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for bucket, bucket_parts in _gathered_by_bucket(batches):
            yield from task(bucket, bucket_parts)

    shuffled = parts.repartitionById(tasks, sf.col("bucket") % tasks)
    return shuffled.mapInArrow(with_access(job.root, run), schema)


def _read_on_spark(spark: SparkSession, job: RoundJob) -> DataFrame:
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

    return spark.range(0, len(reads), 1, tasks).mapInArrow(with_access(job.root, read), "bucket int, part binary")


def _shared(job: RoundJob) -> list[ReadTask]:
    """Return the reads of a round, with large files shared among several."""
    reads = []
    for read in job.reads:
        shares = max(1, read.content_length // _BYTES_PER_TASK)
        reads += [replace(read, share=share, of=shares) for share in range(shares)]
    return reads


def merge_tasks(job: RoundJob, *, is_full: bool) -> int:
    """Return how many tasks to merge in: starting one costs as much as merging some ten thousand rows."""
    visited = [bucket for bucket in job.buckets if is_full or job.visits(bucket)]
    if not visited:
        return job.input_bytes // _MERGED_BYTES_PER_TASK + _LEAST_TASKS
    rewritten = job.input_bytes + sum(bucket.content_length for bucket in visited)
    # A power of two, as the number of buckets mostly is, so that tasks get as many buckets each.
    return 1 << max(_LEAST_TASKS, rewritten // _REWRITTEN_BYTES_PER_TASK).bit_length() - 1


def _gathered_by_bucket(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each bucket of a task with its parts."""
    gathered: dict[int, list[bytes]] = {}
    for batch in batches:
        for bucket, part in zip(batch.column("bucket").to_pylist(), batch.column("part"), strict=True):
            bucket_parts = gathered.setdefault(bucket, [])
            if part.is_valid:
                bucket_parts.append(part.as_py())
    for bucket in sorted(gathered):
        yield bucket, gathered.pop(bucket)


def with_access(root: str, task: Task) -> Task:
    """Return a task for `mapInArrow` that takes along this process's access to `root`.

    That is the endpoint, the region and the keys, where the driver has any; an executor with a role of its own keeps
    it. With SILTSTONE_SHARE_CREDENTIALS=false no keys travel.
    """
    access = share_access(root)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark collects garbage after every task; scanning all of pandas and pyarrow each time would take longer than a
        # small task itself.
        if not gc.get_freeze_count():
            gc.freeze()
        access.use()
        yield from task(batches)

    return run


def collect(spark: SparkSession, frame: DataFrame, steps: Sequence[str], progress: Progress | None = None) -> list[Row]:
    """Collect a data frame; `steps` name the stages of its job, in order, to `progress`.

    Results would come back one by one only if tasks ran one after another, so tasks are counted instead. While none ends,
    `progress` gets a `JobAwaited`, so that it can raise an error also where a job hangs. Where the wait is
    cut short, the job is cancelled. Over Spark Connect nothing is reported before the end.
    """
    if progress is None or not isinstance(spark, SparkSession):
        return frame.collect()
    group = f"siltstone-{uuid.uuid4().hex}"
    result: Future[list[Row]] = Future()

    def run() -> None:
        try:
            spark.sparkContext.setJobGroup(group, "siltstone round", interruptOnCancel=True)
            result.set_result(frame.collect())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            result.set_exception(error)

    thread = InheritableThread(target=run, session=spark)
    thread.start()
    reported: dict[str, tuple[int, int]] = {}
    try:
        while True:
            try:
                return result.result(_POLL_SECONDS)
            except TimeoutError:
                if result.done():
                    raise
            progress(JobAwaited())
            for step, (done, tasks) in zip(steps, _stages(spark, group), strict=False):
                if reported.get(step) != (done, tasks):
                    reported[step] = done, tasks
                    progress(TasksDone(step, done, tasks))
    except BaseException:
        # Again and again: a job that had not begun when it was cancelled would begin afterwards.
        while not result.done():
            spark.sparkContext.cancelJobGroup(group)
            thread.join(_POLL_SECONDS)
        raise
    finally:
        thread.join()


def _stages(spark: SparkSession, group: str) -> list[tuple[int, int]]:
    """Return (tasks done, tasks) of each stage begun so far, in order."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    ids = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
    stages = [tracker.getStageInfo(stage) for stage in ids]
    return [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
