"""A compaction session: rounds, each planned on the current state and committed by itself, until nothing is left."""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, overload

import numpy as np

from siltstone.errors import ConflictError, CorruptionError, SiltstoneError
from siltstone.log.actions import Action
from siltstone.log.horizon import announced, began_at
from siltstone.model.buckets import BucketLine
from siltstone.model.properties import ROWS_KIND
from siltstone.model.rounds import Accounting, RoundCompletion, ratio
from siltstone.model.schema import SchemaField
from siltstone.objects import open_objects
from siltstone.publish.outcomes import Published, PublishFailure
from siltstone.rounds.events import BucketMerged, Progress, RoundCommitted, RoundStarted, TasksDone
from siltstone.rounds.plan import PartitionPlan, RoundPlan, plan_partition, plan_partitions
from siltstone.rounds.request import MAX_ROUND_BYTES, Request, TableRequest, partition_requests
from siltstone.rows.choice import choose
from siltstone.rows.deaths import write_deaths
from siltstone.rows.job import (
    LASTING_ERRORS,
    BucketResult,
    Died,
    Engine,
    JointEngine,
    Outcome,
    RoundJob,
    Stretch,
    run_jobs,
)
from siltstone.rows.merge import Resolve
from siltstone.rows.parts import gather_here
from siltstone.rows.slices import StretchFiles
from siltstone.table.completion import (
    bucket_objects,
    close_stream,
    commit_round,
    current_entry,
    delay_of,
    read_state,
    write_completion,
)
from siltstone.table.followers import SourceState, follow_source, own_partition, register_destination
from siltstone.table.report import RoundReport, report_round

_log = logging.getLogger(__name__)

_CONFLICTS = 20
# What travels to every task has a line for each partition of a job.
JOINT_ROUNDS = 1000
_CORES_PER_ROUND = 8
_STEPS = ("tasks", "merge", "write")


@dataclass(frozen=True)
class SessionResult:
    """The rounds that a session committed; none where there was nothing new.

    Rows and the high watermark are those of the round that is current.
    """

    rounds: list[RoundCompletion] = field(default_factory=list)
    seconds: float = 0.0
    conflicts: int = 0
    live_rows: int = 0
    dead_rows: int = 0
    high_watermark: int = 0


Ending = SessionResult | SiltstoneError
"""What came of one session among several: its result, or why it failed."""


@dataclass(frozen=True)
class Compacted(Sequence[SessionResult]):
    """What a compaction of a table did; it is the sequence of its partitions' results.

    There are no rounds where nothing was new. `stream_position` is that of the newest delta of all that is compacted.
    Live and dead rows and read amplification are as of now.
    """

    table: str
    partitions: int
    stream_position: int
    rounds: Sequence[RoundReport]
    deltas: int
    delta_rows: int
    superseded_rows: int
    deleted_rows: int
    duplicate_rows: int
    live_rows: int
    dead_rows: int
    read_amplification: float | None
    input_bytes: int
    written_bytes: int
    carried_bytes: int
    write_amplification: float | None
    conflicts: int
    seconds: Mapping[str, float]
    results: tuple[SessionResult, ...] = field(repr=False, metadata={"json": False})
    # In the formats that the table's property names; what failed did not fail the rounds, and is tried again next time.
    published: Sequence[Published | PublishFailure] = ()

    @overload
    def __getitem__(self, place: int) -> SessionResult: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[SessionResult]: ...

    def __getitem__(self, place: int | slice) -> SessionResult | Sequence[SessionResult]:
        """Return the result of a partition."""
        return self.results[place]

    def __len__(self) -> int:
        """Return how many partitions there are."""
        return len(self.results)


def compact_table(request: TableRequest, engine: Engine, progress: Progress | None = None) -> Compacted:
    """Compact what is new in each partition of a table. All are planned, and so checked, before any changes.

    The engine is not called unless there is something to do. Raises: as `run_session`.
    """
    started = time.perf_counter()
    plans = plan_partitions(partition_requests(request))
    planned_at = time.perf_counter()
    results = _run_together(plans, engine, progress or (lambda event: None))
    ended = time.perf_counter()
    rounds = [report_round(completion) for result in results for completion in result.rounds]
    live_rows, dead_rows = sum(result.live_rows for result in results), sum(result.dead_rows for result in results)

    def total(name: str) -> int:
        return sum(getattr(round_, name) for round_ in rounds)

    return Compacted(
        table=request.name,
        partitions=len(results),
        stream_position=max((plan.source.newest_position for plan in plans), default=0),
        rounds=rounds,
        deltas=total("deltas"),
        delta_rows=total("delta_rows"),
        superseded_rows=total("superseded_rows"),
        deleted_rows=total("deleted_rows"),
        duplicate_rows=total("duplicate_rows"),
        live_rows=live_rows,
        dead_rows=dead_rows,
        read_amplification=ratio(live_rows + dead_rows, live_rows),
        input_bytes=total("input_bytes"),
        written_bytes=total("written_bytes"),
        carried_bytes=total("carried_bytes"),
        write_amplification=ratio(total("written_bytes"), total("input_bytes")),
        conflicts=sum(result.conflicts for result in results),
        seconds={
            "plan": planned_at - started,
            "total": ended - started,
            **{step: sum(round_.seconds.get(step, 0.0) for round_ in rounds) for step in _STEPS},
        },
        results=results,
    )


def _run_together(plans: Sequence[PartitionPlan], engine: Engine, progress: Progress) -> tuple[SessionResult, ...]:
    """Run what was planned. One that fails by itself does not stop the others; then its error is raised."""
    results: dict[int, SessionResult] = {}
    failures: list[SiltstoneError] = []
    for number, ending in run_planned(plans, engine, progress):
        if isinstance(ending, SiltstoneError):
            failures.append(ending)
        else:
            results[number] = ending
    if failures:
        for error in failures[1:]:
            failures[0].add_note(f"and also: {error}")
        raise failures[0]
    return tuple(results[number] for number in range(len(plans)))


def run_planned(plans: Sequence[PartitionPlan], engine: Engine, progress: Progress) -> Iterator[tuple[int, Ending]]:
    """Run what was planned: the first rounds of several partitions together, each of which commits by itself.

    Yields the number of each plan with what came of it, once its session is over. One that fails by itself does not
    keep the others from being compacted; what else is raised, by `progress` too, ends all that are not over.
    """
    sessions = [_Session(plan.request, engine, progress, plan) for plan in plans]
    waiting: list[_Waiting] = []
    for number, (session, plan) in enumerate(zip(sessions, plans, strict=True)):
        if isinstance(plan, RoundPlan):
            waiting.append(_Waiting(number, session, plan))
        else:
            yield number, session.result()
    for chosen in _chunks(waiting, engine):
        yield from _run_first_rounds(chosen, engine)


def _round_bytes(engine: Engine) -> int:
    """Return how many bytes of deltas a round may read where nobody has said: more where the engine has many cores."""
    cores = engine.core_count() if isinstance(engine, JointEngine) else 0
    return MAX_ROUND_BYTES * max(1, cores // _CORES_PER_ROUND)


class _Waiting(NamedTuple):
    """A session that has something to do, the number of its plan, and its first round."""

    number: int
    session: "_Session"
    plan: RoundPlan


def _chunks(waiting: Sequence[_Waiting], engine: Engine) -> Iterator[list[_Waiting]]:
    """Yield rounds that are run together: no more than the engine takes, nor than fit one job."""
    most = JOINT_ROUNDS if isinstance(engine, JointEngine) else 1
    most_bytes = next((each.plan.request.max_round_bytes for each in waiting), None)
    if most_bytes is None:
        is_much = sum(each.plan.job.input_bytes for each in waiting) > MAX_ROUND_BYTES
        most_bytes = _round_bytes(engine) if is_much else MAX_ROUND_BYTES
    chunk: list[_Waiting] = []
    size = 0
    for each in waiting:
        # A round that is cut may be planned anew, as large as a round can be.
        own = max(most_bytes, each.plan.job.input_bytes) if each.plan.is_cut else each.plan.job.input_bytes
        if chunk and (len(chunk) == most or size + own > most_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += own
    if chunk:
        yield chunk


def _run_first_rounds(chosen: Sequence[_Waiting], engine: Engine) -> Iterator[tuple[int, Ending]]:
    """Run the first rounds of sessions together, and then what is left of each; yield what came of it."""
    ready: list[_Waiting] = []
    with contextlib.ExitStack() as announcements:
        for number, session, planned in chosen:
            with session.failing():
                plan = session.prepare(planned)
                if plan is not None:
                    announcements.enter_context(announced(plan.destination.log, plan.job.began))
                    ready.append(_Waiting(number, session, plan))
        # Alone, the buckets of a round are told one by one, as they come.
        joint = ready if len(ready) > 1 else []
        outcomes = run_jobs(engine, [each.plan.job for each in joint]) if joint else [None] * len(ready)
        open_sessions = {each.number: each.session for each in chosen}
        for (number, session, plan), outcome in zip(ready, outcomes, strict=True):
            with session.failing():
                session.run_round(plan, engine if outcome is None else partial(_given, outcome))
            if session.is_over:
                yield number, open_sessions.pop(number).ending()
    for number, session in open_sessions.items():
        with session.failing():
            session.run()
        yield number, session.ending()


def _given(outcome: Outcome, _: RoundJob) -> Iterator[BucketResult]:
    if isinstance(outcome, SiltstoneError):
        raise outcome
    return iter(outcome)


def run_session(request: Request, engine: Engine, progress: Progress | None = None) -> SessionResult:
    """Run rounds until all that was there at the start is compacted; what is written meanwhile may be left to others.

    Raises: as `plan_partition`; ConflictError where others keep being faster.
    """
    session = _Session(request, engine, progress or (lambda event: None))
    session.run()
    return session.result()


class _Session:
    """The rounds of one partition, until all that was there at the start is compacted."""

    def __init__(
        self, request: Request, engine: Engine, progress: Progress, planned: PartitionPlan | None = None
    ) -> None:
        self.is_over = False
        self._failure: SiltstoneError | None = None
        self._request = request
        self._engine = engine
        self._progress = progress
        self._started = time.perf_counter()
        self._rounds: list[RoundCompletion] = []
        self._rows = _row_counts(planned)
        self._high_watermark = 0 if planned is None else planned.state.watermark
        self._goal: int | None = None
        self._conflicts = 0

    def result(self) -> SessionResult:
        """Return what was done so far."""
        seconds = time.perf_counter() - self._started
        return SessionResult(self._rounds, seconds, self._conflicts, *self._rows, self._high_watermark)

    def ending(self) -> Ending:
        """Return what was done, or why it failed."""
        return self._failure or self.result()

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """End the session where it fails by itself, and note why: others, which ran together with it, go on."""
        try:
            yield
        except (*LASTING_ERRORS, ConflictError) as error:
            self.is_over = True
            self._failure = error

    def run(self) -> None:
        """Run rounds until there is nothing left. Raises: as `run_session`."""
        while not self.is_over:
            plan = self.prepare()
            if plan is not None:
                self.run_round(plan, self._engine)

    def prepare(self, planned: RoundPlan | None = None) -> RoundPlan | None:
        """Return the next round, None where there is none; what was `planned` before, if that still holds."""
        is_first, is_alone = not self._rounds, not (self._rounds or self._conflicts)
        plan = _prepared(self._request, planned, is_first=is_first, is_alone=is_alone)
        if isinstance(plan, RoundPlan) and plan.is_cut and self._request.max_round_bytes is None:
            # Not earlier: an engine that is to say how many cores it has is started, which takes some work to do.
            self._request = replace(self._request, max_round_bytes=_round_bytes(self._engine))
            if self._request.max_round_bytes != MAX_ROUND_BYTES:
                plan = _prepared(self._request, None, is_first=is_first, is_alone=is_alone)
        self._rows, self._high_watermark = _row_counts(plan), plan.state.watermark
        if not isinstance(plan, RoundPlan):
            self.is_over = True
            return None
        # Going on to the newest delta of any time would never end where writers are as fast as rounds.
        self._goal = plan.newest_position if self._goal is None else self._goal
        return plan

    def run_round(self, plan: RoundPlan, engine: Engine) -> None:
        """Run a round and commit it; where another was faster, the next attempt plans again.

        Then what this one reads may be vacuumed already. Raises: ConflictError, CorruptionError.
        """
        try:
            with announced(plan.destination.log, plan.job.began):
                completion = _run_round(plan, engine, self._progress)
        except (ConflictError, CorruptionError) as error:
            if isinstance(error, CorruptionError) and current_entry(plan.destination) == plan.state.current:
                raise
            self._conflicts += 1
            if self._conflicts > _CONFLICTS:
                raise
        else:
            self._rounds.append(completion)
            self._rows = completion.live_rows, completion.dead_rows
            self._high_watermark = completion.high_watermark
            self.is_over = self._goal is not None and completion.high_watermark >= self._goal


def _row_counts(plan: PartitionPlan | None) -> tuple[int, int]:
    """Return the live and the dead rows of the round that a plan starts from."""
    if plan is None:
        return 0, 0
    if plan.previous is not None:
        return plan.previous.live_rows, plan.previous.dead_rows
    entry = plan.state.current if plan.is_idle else None
    return (0, 0) if entry is None else (entry["live_rows"], entry["record_count"] - entry["live_rows"])


def _prepared(request: Request, planned: RoundPlan | None, *, is_first: bool, is_alone: bool) -> PartitionPlan:
    """Plan the next round. If there is one, everybody knows first that its deltas are needed and where its rows will be.

    Tables that need that also have their stream closed first. What was found before any of this is asked again.
    """
    plan = None if planned is None else _still_planned(planned)
    if plan is None:
        plan = plan_partition(request, is_first=is_first, is_alone=is_alone)
    source, is_round = plan.source, isinstance(plan, RoundPlan)
    if (is_round or plan.state.current is not None) and (
        source.partition is None or source.locator != own_partition(plan.destination.locator)
    ):
        # Its deltas have not made the partition known to its table.
        register_destination(plan.destination)
    if not isinstance(plan, RoundPlan):
        return plan
    is_new = follow_source(plan.destination, plan.state.current, source, plan.start_watermark)
    _warn_of_unsure_time(source, plan.job.due_ms)
    if close_stream(source.version, source.stream, plan.job.due_ms, root=request.root) or is_new:
        return plan_partition(request, is_first=is_first, is_alone=is_alone)
    return plan


def _still_planned(plan: RoundPlan) -> PartitionPlan | None:
    """Return a plan that was made some time ago, None where the partition has changed since."""
    state = read_state(plan.destination)
    if (state.current, state.holds) != (plan.state.current, plan.state.holds):
        return None
    # Its files are written from now on.
    return replace(plan, state=state, job=replace(plan.job, began=state.batch_id))


def _warn_of_unsure_time(source: SourceState, now_ms: int) -> None:
    """Warn that changes of a table whose stream is to be closed are not compacted yet, where the time is not sure."""
    if delay_of(source.version.properties, source.version.locator) is not None:
        warning = source.log.time_warning(now_ms)
        if warning is not None:
            _log.warning("%s: later changes are compacted later: %s", source.locator, warning)


def _run_round(plan: RoundPlan, engine: Engine, progress: Progress) -> RoundCompletion:
    """Run one round and commit it. Raises: ConflictError; then its files are deleted again."""
    started = time.perf_counter()
    progress(
        RoundStarted(
            partition=tuple(plan.destination.locator.partition_values),
            round_id=plan.round_id,
            deltas=plan.delta_count,
            bytes=plan.job.input_bytes,
            buckets=len(plan.job.buckets),
            high_watermark=plan.high_watermark,
        )
    )
    results = _Results()
    for result in engine(plan.job):
        results.add(result)
        progress(BucketMerged(plan.round_id, result.action, result.accounting))
    merged_at = time.perf_counter()
    completion = _complete(plan, results)
    completion.seconds = {
        "tasks": merged_at - started,
        "merge": results.merge_seconds,
        "write": results.write_seconds,
        "total": time.perf_counter() - started,
    }
    if plan.previous is not None and not plan.replaced_rows and plan.job.kind == ROWS_KIND:
        completion.deaths = write_deaths(plan.job.root, plan.destination.folder, plan.job.began, results.died)
    written = write_completion(plan.destination, completion, plan.job.began, plan.job.settings.page_buckets)
    try:
        commit_round(
            plan.destination,
            completion,
            written,
            plan.state.round_id,
            holds=plan.state.holds,
            action=_rebase_action(completion),
        )
    except ConflictError:
        after = bucket_objects(line.bucket for lines in results.buckets.values() for line in lines)
        # What was carried over was written by rounds that began before the one that this was planned on.
        new = [uri for uri in after if began_at(uri).batch_id == plan.job.began]
        open_objects(plan.job.root).delete([*written.uris, *new])
        raise
    progress(RoundCommitted(plan.round_id, completion.live_rows))
    return completion


def _rebase_action(completion: RoundCompletion) -> Action | None:
    """Return what somebody asked for where a round begins the partition anew; other rounds follow from what was written."""
    if completion.origin is None or completion.origin.round_id != completion.round_id:
        return None
    rows_of = completion.rebase_source_partition_locator
    details: dict[str, int | str | list[str]] = {"round": completion.round_id, "watermark": completion.high_watermark}
    return Action("rebase", {**details, "from": "" if rows_of is None else rows_of.table_locator.full_name})


class _Results:
    """What the buckets of a round became, and all else of their results as sums: there may be very many."""

    def __init__(self) -> None:
        self.buckets: dict[int, Sequence[BucketLine]] = {}
        self.actions: Counter[str] = Counter()
        self.accounting: Counter[str] = Counter()
        self.died: list[Died] = []
        self.merge_seconds = self.write_seconds = 0.0
        self.written_files = self.written_bytes = self.written_rows = 0

    def add(self, result: BucketResult) -> None:
        """Add the result of a bucket."""
        self.buckets[result.number] = result.buckets
        self.actions[result.action] += 1
        for name, count in result.accounting.items():
            self.accounting[name] += count
        self.died += result.died
        self.merge_seconds += result.merge_seconds
        self.write_seconds += result.write_seconds
        self.written_files += result.written_files
        self.written_bytes += result.written_bytes
        self.written_rows += result.written_rows


def _complete(plan: RoundPlan, results: _Results) -> RoundCompletion:
    job = plan.job
    buckets = job.buckets.replaced(results.buckets)
    actions = results.actions + Counter(untouched=len(job.buckets) - len(results.buckets))
    untouched = job.buckets.totals.live_count - results.accounting["base_rows"]
    total = Accounting.sum(
        [
            Accounting(**results.accounting),
            Accounting(base_rows=untouched, live_rows=untouched),
            Accounting(base_rows=plan.replaced_rows, deleted_rows=plan.replaced_rows),
        ]
    )
    _check_arrival(plan, total)
    files, written_files = buckets.totals.file_count, results.written_files
    return RoundCompletion(
        round_id=plan.round_id,
        previous_round_id=plan.state.round_id,
        source_partition_locator=plan.source.locator,
        source_folder=plan.source.folder,
        destination_partition_locator=plan.destination.locator,
        rebase_source_partition_locator=plan.rebase_source,
        origin=plan.origin,
        high_watermark=plan.high_watermark,
        read_watermark=plan.read_watermark,
        primary_keys=list(job.primary_keys),
        sort_keys=list(job.sort_keys),
        floor=job.floor_after,
        merge_engine=job.merge_engine,
        drop_duplicates=job.drop_duplicates,
        fields=[SchemaField.from_serializable(column) for column in job.fields],
        buckets=buckets,
        delta_count=plan.delta_count,
        input_bytes=job.input_bytes,
        written_files=written_files,
        written_bytes=results.written_bytes,
        written_rows=results.written_rows,
        carried_files=files - written_files,
        copied_by_reference_ratio=(files - written_files) / files if files else 0.0,
        bucket_actions=dict(actions),
        accounting=total,
        completed_at=open_objects(job.root).now_ms(),
    )


def _check_arrival(plan: RoundPlan, total: Accounting) -> None:
    """Refuse a round in which rows that the deltas have reached no bucket; only before-images go nowhere."""
    reads = [read for read in plan.job.reads if not read.is_delete]
    rows = sum(read.live_count for read in reads)
    may_be_fewer = any(read.op_column is not None for read in reads)
    if total.input_rows > rows or (total.input_rows < rows and not may_be_fewer):
        raise CorruptionError(
            f"{plan.destination.locator}: the deltas have {rows} rows, but {total.input_rows} of them were merged, so nothing "
            "is committed; keep the data and report this"
        )


@dataclass(frozen=True)
class BucketPlan:
    """What a round would do to one bucket, and why."""

    bucket: str
    action: str
    reason: str
    base_rows: int
    new_rows: int
    dead_rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class RoundPreview:
    """The next round of one partition: what it would read and do; what comes after it is left over."""

    partition: Sequence[object]
    round_id: int
    rebase_from: str | None
    previous_high_watermark: int
    high_watermark: int
    deltas: int
    rows: int
    bytes: int
    deltas_left_over: int
    # Those that the round would look at, unless all were asked for; of any others it touches none.
    buckets: Sequence[BucketPlan]
    bucket_count: int

    @property
    def bucket_actions(self) -> Counter[str]:
        """How many buckets there are by what would happen to them."""
        actions = Counter(bucket.action for bucket in self.buckets)
        return actions + Counter(untouched=self.bucket_count - len(self.buckets))


@dataclass(frozen=True)
class Plan:
    """The next round of each partition of a table that has one."""

    table: str
    partitions: int
    stream_position: int
    rounds: Sequence[RoundPreview]


ResolverOf = Callable[[RoundJob], Resolve]
"""Returns what finds out the changes of buckets, by the kind of the table."""


def preview_table(
    request: TableRequest, resolver_of: ResolverOf, progress: Progress | None = None, *, every: bool = False
) -> Plan:
    """Preview the next round of each partition in this process, writing nothing.

    With `every`, all buckets are listed, for which all pages are read. `progress` is called before each file and each
    stretch of buckets is read.
    Raises: NotFoundError, InvalidInputError, CorruptionError.
    """
    plans = plan_partitions(partition_requests(request))
    newest = max((plan.source.newest_position for plan in plans), default=0)
    progress = progress or (lambda event: None)
    rounds = [plan for plan in plans if isinstance(plan, RoundPlan)]
    previews = [_preview(plan, resolver_of(plan.job), progress, every=every) for plan in rounds]
    return Plan(request.name, len(plans), newest, previews)


def _preview(plan: RoundPlan, resolve: Resolve, progress: Progress, *, every: bool) -> RoundPreview:
    is_rebase, job = plan.request.rebase_source is not None, plan.job
    buckets: list[BucketPlan] = []

    def tell(done: int) -> None:
        progress(TasksDone("read", done, len(job.reads)))

    for stretch in gather_here(job, progress=tell, every=every):
        progress(TasksDone("merge", stretch.numbers[0], len(job.buckets)))
        buckets += _plan_stretch(job, stretch, resolve)
    return RoundPreview(
        partition=plan.source.locator.partition_values,
        round_id=plan.round_id,
        rebase_from=str(plan.request.source) if is_rebase else None,
        # What a rebase replaces does not count.
        previous_high_watermark=0 if is_rebase else plan.start_watermark,
        high_watermark=plan.high_watermark,
        deltas=plan.delta_count,
        rows=sum(read.record_count for read in job.reads),
        bytes=job.input_bytes,
        deltas_left_over=plan.deltas_left_over,
        buckets=buckets,
        bucket_count=len(job.buckets),
    )


def _plan_stretch(job: RoundJob, stretch: Stretch, resolve: Resolve) -> Iterator[BucketPlan]:
    """Yield what a round would do to each bucket of a stretch; those that no delta has rows for are not read."""
    has_all = any(part.buckets is None for part in stretch.parts)
    touched = {
        number for part in stretch.parts if part.buckets is not None for number in np.unique(part.buckets).tolist()
    }
    is_read = bool(stretch.parts) or any(map(job.visits, stretch.buckets))
    changes = resolve(job, stretch, StretchFiles(job.root, stretch.buckets)) if is_read else None
    for place, (number, bucket) in enumerate(zip(stretch.numbers, stretch.buckets, strict=True)):
        new_rows = dead_rows = 0
        action, reason = "untouched", "no delta has rows for it"
        if changes is not None and (has_all or number in touched or job.visits(bucket)):
            new_rows, dead_rows = changes[place].rows.row_count, changes[place].dead_count
            action, reason, _ = choose(job, bucket, new_rows, changes[place].dead_counts)
        yield BucketPlan(
            bucket=bucket.name,
            action=action,
            reason=reason,
            base_rows=bucket.live_count,
            new_rows=new_rows,
            dead_rows=dead_rows,
            files=len(bucket.files),
            bytes=bucket.content_length,
        )
