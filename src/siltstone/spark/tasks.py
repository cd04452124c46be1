"""Rounds on Spark: files are read where they are, parts of deltas are shuffled by bucket, buckets merge in parallel."""

import bisect
import gc
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from siltstone import errors
from siltstone.documents.merge import merge_any
from siltstone.errors import SiltstoneError
from siltstone.model.buckets import BucketLine, Totals
from siltstone.model.rounds import Accounting
from siltstone.objects import share_access
from siltstone.rounds.events import JobAwaited, Progress, TasksDone
from siltstone.rows.job import (
    LASTING_ERRORS,
    BucketResult,
    Died,
    JointEngine,
    Merge,
    Outcome,
    ReadTask,
    RoundJob,
    Stretch,
)
from siltstone.rows.parts import Tasks, read_parts, stretches
from siltstone.spark.session import starting_worker

_OUR_ERROR = re.compile(r"^siltstone\.errors\.(\w+): (.*)$", re.MULTILINE)
_STEPS = ("read", "merge")
_BYTES_PER_TASK = 8 << 20
_MERGED_BYTES_PER_TASK = 1 << 20
_REWRITTEN_BYTES_PER_TASK = 16 << 20
_SEARCHED_BYTES_PER_TASK = 128 << 20
# More tasks do not pay where each gets a copy of much.
_COPIED_BYTES = 1 << 30
_LEAST_TASKS = 2
# Each row group becomes as many parts as there are tasks, so that more tasks would make parts of a few rows.
_MOST_TASKS = 2048
_UNITS_PER_TASK = 16
_READS_PER_TASK = 64
_POLL_SECONDS = 0.1
_PART_SCHEMA = "task int, unit int, part binary, error string"

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
StretchTask = Callable[[Stretch], Iterable[pa.RecordBatch]]
"""Yields rows for neighbouring buckets, given their parts of deltas."""


def spark_engine(spark: SparkSession, progress: Progress | None = None, merge: Merge = merge_any) -> JointEngine:
    """Return an engine that runs the tasks of rounds on Spark, and reports each that is done to `progress`."""
    return _SparkEngine(spark, progress, merge)


class _SparkEngine:
    """Rounds on Spark."""

    def __init__(self, spark: SparkSession, progress: Progress | None, merge: Merge) -> None:
        self._spark = spark
        self._progress = progress
        self._merge = merge

    def __call__(self, job: RoundJob) -> Iterator[BucketResult]:
        """Run one round."""
        (outcome,) = self.run_all([job])
        if isinstance(outcome, SiltstoneError):
            raise outcome
        return iter(outcome)

    def run_all(self, jobs: Sequence[RoundJob]) -> Sequence[Outcome]:
        """Run rounds as one job of Spark's; where one fails in a lasting way, the others go on."""
        sent, merge = _sent(jobs), self._merge

        def merge_stretch(number_of_job: int, stretch: Stretch) -> Iterator[pa.RecordBatch]:
            try:
                results = merge(sent[number_of_job], stretch)
            except LASTING_ERRORS as error:
                yield from report_error(number_of_job, error)
            else:
                yield _result_row(number_of_job, _encoded(results), None)

        def report_error(number_of_job: int, error: SiltstoneError | str) -> Iterator[pa.RecordBatch]:
            yield _result_row(number_of_job, None, error if isinstance(error, str) else _named_error(error))

        shares = [
            Share(range(len(job.buckets)), [range(len(job.buckets))] if job.settings.full else job.due_numbers())
            for job in jobs
        ]
        schema = "job int, results binary, error string"
        try:
            with starting_worker(self._spark):
                merged = _map_jobs(self._spark, jobs, shares, merge_stretch, report_error, schema)
                rows = collect(self._spark, merged, _STEPS, self._progress)
        except PythonException as error:
            raise translated(error) from error
        results: list[list[BucketResult]] = [[] for _ in jobs]
        errors: dict[int, SiltstoneError] = {}
        for row in rows:
            if row.error is None:
                results[row.job] += _decoded(row.results)
            else:
                errors.setdefault(row.job, _error_of(row.error))
        return [errors.get(number, own) for number, own in enumerate(results)]

    def core_count(self) -> int:
        """Return how many tasks run at once, 0 over Spark Connect, where nobody says."""
        return int(self._spark.sparkContext.defaultParallelism) if isinstance(self._spark, SparkSession) else 0


def _sent(jobs: Sequence[RoundJob]) -> list[RoundJob]:
    """Return what tasks need of jobs: no files of deltas, and once what several have in common."""
    first = jobs[0]
    sent = []
    for job in jobs:
        same = {
            name: getattr(first, name)
            for name in ("fields", "properties")
            if getattr(job, name) == getattr(first, name)
        }
        sent.append(replace(job, reads=(), **same))
    return sent


def _result_row(job: int, results: bytes | None, error: str | None) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "job": pa.array([job], pa.int32()),
            "results": pa.array([results], pa.binary()),
            "error": pa.array([error], pa.string()),
        }
    )


def _named_error(error: SiltstoneError) -> str:
    return f"{type(error).__name__}: {error}"


def _error_of(text: str) -> SiltstoneError:
    name, _, message = text.partition(": ")
    kind: type[SiltstoneError] = getattr(errors, name)
    return kind(message)


def _encoded(results: Sequence[BucketResult]) -> bytes:
    """Return the results of a stretch as they travel."""
    lines = [line for result in results for line in result.buckets]
    about = [
        {**vars(result), "buckets": [(line.depth, line.bits, tuple(line.totals)) for line in result.buckets]}
        for result in results
    ]
    return b"\n".join([orjson.dumps(about), *(line.data for line in lines)])


def _decoded(data: bytes) -> Iterator[BucketResult]:
    """Yield the results of a stretch, which travelled as JSON, a line for each bucket after a line about all."""
    about, *lines = data.split(b"\n")
    following = iter(lines)
    for fields in orjson.loads(about):
        fields["buckets"] = tuple(
            BucketLine(next(following), depth, bits, Totals(*totals)) for depth, bits, totals in fields["buckets"]
        )
        fields["died"] = tuple(Died(**died) for died in fields["died"])
        fields["accounting"] = Accounting.from_serializable(fields["accounting"])
        yield BucketResult(**fields)


def translated(error: PythonException) -> Exception:
    """Return the error of ours that a task raised, of which Spark passes on only the text."""
    match = _OUR_ERROR.search(str(error))
    kind = getattr(errors, match[1], None) if match else None
    return kind(match[2].strip()) if match and kind is not None else error


def map_buckets(
    spark: SparkSession, job: RoundJob, numbers: Sequence[int], task: StretchTask, schema: StructType | str
) -> DataFrame:
    """Return what a task makes of some buckets: several neighbours in one task of Spark's, where there is little to do."""

    def run(_: int, stretch: Stretch) -> Iterable[pa.RecordBatch]:
        return task(stretch)

    # What fails is to be raised wherever it is read: other tasks would give rows without the changes that cannot be read.
    return _map_jobs(spark, [job], [Share(numbers, None)], run, None, schema)


class Share(NamedTuple):
    """The buckets of a job that are wanted; where `visited` is given, others only if deltas have rows for them."""

    numbers: Sequence[int]
    visited: Sequence[range] | None

    @property
    def is_all(self) -> bool:
        """Whether all wanted buckets are visited."""
        return self.visited is None or self.visited == [self.numbers]


JobTask = Callable[[int, Stretch], Iterable[pa.RecordBatch]]
"""Yields rows for neighbouring buckets of a job, which is given by its number."""
ReportError = Callable[[int, str], Iterable[pa.RecordBatch]]
"""Yields rows for a job, by its number, of which deltas cannot be read."""


class _Units(NamedTuple):
    """The tasks of all jobs, numbered through, and how many of Spark's tasks they are run in, neighbours together."""

    tasks: list[Tasks]
    firsts: list[int]
    spark_tasks: int

    @property
    def total(self) -> int:
        return self.firsts[-1]

    def spark_task(self, unit: int) -> int:
        return unit * self.spark_tasks // self.total

    def job_and_task(self, unit: int) -> tuple[int, int]:
        job = bisect.bisect_right(self.firsts, unit) - 1
        return job, unit - self.firsts[job]


def _units(jobs: Sequence[RoundJob], shares: Sequence[Share]) -> _Units:
    wanted = [merge_tasks(job, is_full=share.is_all) for job, share in zip(jobs, shares, strict=True)]
    tasks = [
        Tasks(share.numbers, max(1, min(len(share.numbers), most))) for share, most in zip(shares, wanted, strict=True)
    ]
    firsts = [0, *itertools.accumulate(each.count for each in tasks)]
    if len(jobs) == 1:
        return _Units(tasks, firsts, firsts[-1])
    # Small partitions share tasks of Spark's, which cost more to start than they do to merge.
    by_size = sum(most - _LEAST_TASKS for most in wanted) + _LEAST_TASKS
    return _Units(tasks, firsts, max(1, min(firsts[-1], _MOST_TASKS, max(by_size, firsts[-1] // _UNITS_PER_TASK))))


def _map_jobs(
    spark: SparkSession,
    jobs: Sequence[RoundJob],
    shares: Sequence[Share],
    task: JobTask,
    report_error: ReportError | None,
    schema: StructType | str,
) -> DataFrame:
    """Return what a task makes of the buckets of jobs, all of which are in one root.

    With `report_error`, a job whose deltas cannot be read is reported, and the others go on. No task is sent more of a table
    than which pages hold its buckets.
    """
    units = _units(jobs, shares)
    # Units with buckets that are visited even if there is nothing for them.
    visited = [
        [*range(tasks.count)] if share.is_all else _tasks_with(tasks, share.visited or ())
        for tasks, share in zip(units.tasks, shares, strict=True)
    ]
    empty = [first + own for first, chosen in zip(units.firsts, visited, strict=False) for own in chosen]
    parts = _read_on_spark(spark, jobs, units, empty, LASTING_ERRORS if report_error is not None else ())
    visiting = frozenset(number for number, chosen in enumerate(visited) if chosen)
    wanting = frozenset(number for number, share in enumerate(shares) if share.visited is None)
    sent = _sent(jobs)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for unit, data, failed in _gathered_by_unit(batches):
            job, number_of_task = units.job_and_task(unit)
            if failed is not None and report_error is not None:
                yield from report_error(job, failed)
                continue
            numbers = units.tasks[job].numbers_of(number_of_task)
            for stretch in stretches(sent[job], numbers, data, visits=job in visiting, every=job in wanting):
                yield from task(job, stretch)

    shuffled = parts.repartitionById(units.spark_tasks, sf.col("task"))
    return shuffled.mapInArrow(with_access(jobs[0].root, run), schema)


def _tasks_with(tasks: Tasks, numbers: Sequence[range]) -> list[int]:
    """Return the tasks that have any of some buckets."""
    found = {int(task) for own in numbers for task in tasks.of(np.arange(own.start, own.stop))}
    return sorted(found - {-1})


def _read_on_spark(
    spark: SparkSession,
    jobs: Sequence[RoundJob],
    units: _Units,
    empty: Sequence[int],
    reported: tuple[type[SiltstoneError], ...],
) -> DataFrame:
    """Read the files of deltas into parts by unit, after a part without rows for each of the units `empty`.

    Errors that are `reported` fail their job, and no other.
    """
    reads = [(number, read) for number, job in enumerate(jobs) for read in _shared(job)]
    size = sum(job.input_bytes for job in jobs)
    count = min(len(reads), _power_of_two(max(size // _BYTES_PER_TASK, len(reads) // _READS_PER_TASK) + _LEAST_TASKS))
    sent = _sent(jobs)
    emptied = range(units.total) if len(empty) == units.total else empty

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column("id").to_pylist()]
        if -1 in numbers:
            yield _part_rows(units, emptied)
        own = [reads[number] for number in numbers if number >= 0]
        for job, of_job in itertools.groupby(own, key=lambda each: each[0]):
            first = units.firsts[job]
            try:
                for task, part in read_parts(sent[job], (read for _, read in of_job), units.tasks[job]):
                    yield _part_rows(units, [first + task], part)
            except reported as error:
                yield _part_rows(units, [first], error=_named_error(error))

    first = -1 if empty else 0
    return spark.range(first, len(reads), 1, max(1, count)).mapInArrow(with_access(jobs[0].root, read), _PART_SCHEMA)


def _part_rows(
    units: _Units, own: Sequence[int], part: bytes | None = None, *, error: str | None = None
) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "task": pa.array([units.spark_task(unit) for unit in own], pa.int32()),
            "unit": pa.array(own, pa.int32()),
            "part": pa.array([part] * len(own), pa.binary()),
            "error": pa.array([error] * len(own), pa.string()),
        }
    )


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
        tasks = job.input_bytes // _MERGED_BYTES_PER_TASK + _LEAST_TASKS
        if job.copied_bytes:
            # Some columns of all rows are searched for those that a delete by other columns means.
            searching = job.buckets.totals.content_length // _SEARCHED_BYTES_PER_TASK
            tasks += min(searching, _COPIED_BYTES // job.copied_bytes)
        return min(_MOST_TASKS, tasks)
    rewritten = job.input_bytes + job.buckets.totals.content_length
    return min(_MOST_TASKS, _power_of_two(max(_LEAST_TASKS, rewritten // _REWRITTEN_BYTES_PER_TASK)))


def _power_of_two(count: int) -> int:
    """Return the next lower power of two, as the numbers of buckets and of cores mostly are, so that each gets as many tasks."""
    return 1 << count.bit_length() - 1


def _gathered_by_unit(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[bytes], str | None]]:
    """Yield each unit of a task of Spark's with its parts, or why they could not be read."""
    gathered: dict[int, list[bytes]] = {}
    failed: dict[int, str] = {}
    for batch in batches:
        units, failures = batch.column("unit").to_pylist(), batch.column("error").to_pylist()
        for unit, part, error in zip(units, batch.column("part"), failures, strict=True):
            parts = gathered.setdefault(unit, [])
            if error is not None:
                failed[unit] = error
            elif part.is_valid:
                parts.append(part.as_py())
    for unit in sorted(gathered):
        yield unit, gathered.pop(unit), failed.get(unit)


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
    cut short, the job is cancelled. Over Spark Connect tasks are not counted.
    """
    if progress is None:
        return frame.collect()
    job = _Job(spark) if isinstance(spark, SparkSession) else _ConnectJob(spark)
    result: Future[list[Row]] = Future()

    def run() -> None:
        try:
            job.begin()
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
            for step, (done, tasks) in zip(steps, job.stages(), strict=False):
                if reported.get(step) != (done, tasks):
                    reported[step] = done, tasks
                    progress(TasksDone(step, done, tasks))
    except BaseException:
        # Again and again: a job that had not begun when it was cancelled would begin afterwards.
        while not result.done():
            job.cancel()
            thread.join(_POLL_SECONDS)
        raise
    finally:
        thread.join()


class _Job:
    """What a thread runs on a session of this process, by which it is followed and cancelled."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._id = f"siltstone-{uuid.uuid4().hex}"

    def begin(self) -> None:
        """Let all that this thread runs from now on be part of the job."""
        self._spark.sparkContext.setJobGroup(self._id, "siltstone round", interruptOnCancel=True)

    def cancel(self) -> None:
        """End what runs."""
        self._spark.sparkContext.cancelJobGroup(self._id)

    def stages(self) -> list[tuple[int, int]]:
        """Return (tasks done, tasks) of each stage begun so far, in order."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._id)]
        ids = sorted({stage for job in jobs if job is not None for stage in job.stageIds})
        stages = [tracker.getStageInfo(stage) for stage in ids]
        return [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]


class _ConnectJob(_Job):
    """The same for Spark Connect, where a session has no context, and operations have tags."""

    def begin(self) -> None:
        """Let all that this thread runs from now on be part of the job."""
        self._spark.addTag(self._id)

    def cancel(self) -> None:
        """End what runs."""
        self._spark.interruptTag(self._id)

    def stages(self) -> list[tuple[int, int]]:
        """Return nothing: the server does not say which operation its stages are of."""
        return []
