"""Rounds on Spark: files are read where they are, parts of deltas are shuffled by bucket, buckets merge in parallel."""

import gc
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from siltstone import errors
from siltstone.documents.merge import merge_any
from siltstone.model.buckets import Bucket
from siltstone.model.rounds import Accounting
from siltstone.objects import share_access
from siltstone.rounds.events import JobAwaited, Progress, TasksDone
from siltstone.rows.job import BucketResult, Engine, Merge, Part, ReadTask, RoundJob
from siltstone.rows.parts import Tasks, parts_by_bucket, read_parts

_OUR_ERROR = re.compile(r"^siltstone\.errors\.(\w+): (.*)$", re.MULTILINE)
_STEPS = ("read", "merge")
_BYTES_PER_TASK = 8 << 20
_MERGED_BYTES_PER_TASK = 1 << 20
_REWRITTEN_BYTES_PER_TASK = 16 << 20
_LEAST_TASKS = 2
# Each row group becomes as many parts as there are tasks, so that more tasks would make parts of a few rows.
_MOST_TASKS = 2048
_POLL_SECONDS = 0.1

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
BucketTask = Callable[[int, Sequence[Part]], Iterable[pa.RecordBatch]]
"""Yields rows for the bucket of a number, given its parts of deltas."""


def spark_engine(spark: SparkSession, progress: Progress | None = None, merge: Merge = merge_any) -> Engine:
    """Return an engine that runs the tasks of a round on Spark, and reports each that is done to `progress`."""

    def run(job: RoundJob) -> Iterator[BucketResult]:
        def merge_bucket(number: int, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
            result = merge(job, number, parts)
            if result is not None:
                yield pa.record_batch({"result": [json.dumps(vars(result))]})

        every_bucket = range(len(job.buckets))
        visited = [every_bucket] if job.settings.full else job.due_numbers()
        merged = map_buckets(spark, job, every_bucket, merge_bucket, "result string", visited=visited)
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
    numbers: Sequence[int],
    task: BucketTask,
    schema: StructType | str,
    *,
    visited: Sequence[range] | None = None,
) -> DataFrame:
    """Return what a task makes of each bucket: several neighbours in one task of Spark's, where there is little to do.

    Where `visited` is given, other buckets than those are left out if no delta has rows for them. No task is sent more of
    the table than which pages hold its buckets.
    """
    is_all = visited is None or visited == [range(len(job.buckets))]
    tasks = Tasks(numbers, max(1, min(len(numbers), merge_tasks(job, is_full=is_all))))
    parts = _read_on_spark(spark, job, tasks)
    # A part without rows for each task that has buckets which are visited even if there is nothing else for them.
    places = range(tasks.count) if is_all else _tasks_with(tasks, visited or ())
    if places:
        empty = spark.range(0, tasks.count, 1, 1).select(
            sf.col("id").cast("int").alias("task"), sf.lit(None).cast("binary").alias("part")
        )
        empty = empty if len(places) == tasks.count else empty.where(sf.col("task").isin(list(places)))
        parts = parts.unionByName(empty)
    visits = bool(places)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number_of_task, data in _gathered_by_task(batches):
            own = tasks.numbers_of(number_of_task)
            by_bucket = parts_by_bucket(own, data)
            for number in own if visits else sorted(by_bucket):
                yield from task(number, by_bucket.pop(number, []))

    return parts.repartitionById(tasks.count, sf.col("task")).mapInArrow(with_access(job.root, run), schema)


def _tasks_with(tasks: Tasks, numbers: Sequence[range]) -> list[int]:
    """Return the tasks that have any of some buckets."""
    found = {int(task) for own in numbers for task in tasks.of(np.arange(own.start, own.stop))}
    return sorted(found - {-1})


def _read_on_spark(spark: SparkSession, job: RoundJob, tasks: Tasks) -> DataFrame:
    """Read the files of a round's deltas into parts by task."""
    reads = _shared(job)
    count = max(1, min(len(reads), job.input_bytes // _BYTES_PER_TASK + _LEAST_TASKS))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        own = (reads[number] for batch in batches for number in batch.column("id").to_pylist())
        for task, part in read_parts(job, own, tasks):
            yield pa.record_batch({"task": pa.array([task], pa.int32()), "part": pa.array([part], pa.binary())})

    return spark.range(0, len(reads), 1, count).mapInArrow(with_access(job.root, read), "task int, part binary")


def _shared(job: RoundJob) -> list[ReadTask]:
    """Return the reads of a round, with large files shared among several."""
    reads = []
    for read in job.reads:
        shares = max(1, read.content_length // _BYTES_PER_TASK)
        reads += [replace(read, share=share, of=shares) for share in range(shares)]
    return reads


def merge_tasks(job: RoundJob, *, is_full: bool) -> int:
    """Return how many tasks to merge in: starting one costs as much as merging some ten thousand rows."""
    if not is_full and not job.due_numbers():
        return min(_MOST_TASKS, job.input_bytes // _MERGED_BYTES_PER_TASK + _LEAST_TASKS)
    rewritten = job.input_bytes + job.buckets.totals.content_length
    # A power of two, as the number of buckets mostly is, so that tasks get as many buckets each.
    return min(_MOST_TASKS, 1 << max(_LEAST_TASKS, rewritten // _REWRITTEN_BYTES_PER_TASK).bit_length() - 1)


def _gathered_by_task(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the numbers of tasks with their parts: one, but for tasks that Spark runs as one."""
    gathered: dict[int, list[bytes]] = {}
    for batch in batches:
        for task, part in zip(batch.column("task").to_pylist(), batch.column("part"), strict=True):
            parts = gathered.setdefault(task, [])
            if part.is_valid:
                parts.append(part.as_py())
    for task in sorted(gathered):
        yield task, gathered.pop(task)


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
