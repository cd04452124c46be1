"""What tasks need on executors, and how their progress is followed from the driver."""

import gc
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession

from siltstone.objects import share_access
from siltstone.rounds.events import JobAwaited, Progress, TasksDone


def freeze_modules() -> None:
    """Spare the modules imported so far from garbage collection.

    Spark collects garbage after every task; scanning all of pandas and pyarrow each time would take longer than
    a small task itself.
    """
    if not gc.get_freeze_count():
        gc.freeze()


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def with_access(root: str, task: Task) -> Task:
    """Return a task for `mapInArrow` that takes along this process's access to `root`.

    That is the endpoint, the region and the keys, where the driver has any; an executor with a role of its own keeps
    it. With SILTSTONE_SHARE_CREDENTIALS=false no keys travel.
    """
    access = share_access(root)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        access.use()
        yield from task(batches)

    return run


_POLL_SECONDS = 0.1


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
