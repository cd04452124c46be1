"""A compaction session: rounds, each planned on the current state and committed by itself, until nothing is left."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from siltstone.errors import ConflictError, CorruptionError
from siltstone.log.horizon import announced
from siltstone.model.rounds import Accounting, Bucket, RoundCompletion, ratio
from siltstone.model.schema import SchemaField
from siltstone.objects import open_objects
from siltstone.rounds.events import BucketMerged, Progress, RoundCommitted, RoundStarted, TasksDone
from siltstone.rounds.plan import PartitionPlan, RoundPlan, plan_partition, plan_partitions
from siltstone.rounds.request import Request, TableRequest, partition_requests
from siltstone.rows.absorb import choose
from siltstone.rows.files import StoredFile
from siltstone.rows.job import BucketResult, Engine, RoundJob
from siltstone.rows.merge import Resolve
from siltstone.rows.parts import GatheredParts, read_parts
from siltstone.table.completion import (
    bucket_objects,
    close_stream,
    commit_round,
    delay_of,
    read_state,
    write_completion,
)
from siltstone.table.followers import follow_source, own_partition, register_destination
from siltstone.table.report import RoundReport, report_round

_log = logging.getLogger(__name__)

_CONFLICTS = 20
_STEPS = ("tasks", "merge", "write")


@dataclass(frozen=True)
class SessionResult:
    """The rounds that a session committed; none where there was nothing new. `current` is the round that is, in the end."""

    rounds: list[RoundCompletion] = field(default_factory=list)
    seconds: float = 0.0
    conflicts: int = 0
    current: RoundCompletion | None = None


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


def compact_table(asked: TableRequest, engine: Engine, progress: Progress | None = None) -> Compacted:
    """Compact what is new in each partition of a table. All are planned, and so checked, before any changes.

    The engine is not called unless there is something to do. Raises: as `run_session`.
    """
    started = time.perf_counter()
    plans = plan_partitions(partition_requests(asked))
    planned_at = time.perf_counter()
    results = tuple(
        SessionResult(current=plan.previous)
        if plan.round is None
        else run_session(plan.request, engine, progress, planned=plan)
        for plan in plans
    )
    position = max((plan.source.newest_position for plan in plans), default=0)
    seconds = {"plan": planned_at - started, "total": time.perf_counter() - started}
    return _sum_up(asked.name, position, results, seconds)


def _sum_up(table: str, position: int, results: tuple[SessionResult, ...], seconds: dict[str, float]) -> Compacted:
    rounds = [report_round(completion) for result in results for completion in result.rounds]
    current = [result.current for result in results if result.current is not None]
    rows, live_rows = sum(each.record_count for each in current), sum(each.live_rows for each in current)

    def total(name: str) -> int:
        return sum(getattr(round_, name) for round_ in rounds)

    return Compacted(
        table=table,
        partitions=len(results),
        stream_position=position,
        rounds=rounds,
        deltas=total("deltas"),
        delta_rows=total("delta_rows"),
        superseded_rows=total("superseded_rows"),
        deleted_rows=total("deleted_rows"),
        duplicate_rows=total("duplicate_rows"),
        live_rows=live_rows,
        dead_rows=rows - live_rows,
        read_amplification=ratio(rows, live_rows),
        input_bytes=total("input_bytes"),
        written_bytes=total("written_bytes"),
        carried_bytes=total("carried_bytes"),
        write_amplification=ratio(total("written_bytes"), total("input_bytes")),
        conflicts=sum(result.conflicts for result in results),
        seconds=seconds | {step: sum(round_.seconds.get(step, 0.0) for round_ in rounds) for step in _STEPS},
        results=results,
    )


def run_session(
    request: Request, engine: Engine, progress: Progress | None = None, *, planned: PartitionPlan | None = None
) -> SessionResult:
    """Run rounds until all that was there at the start is compacted; what is written meanwhile may be left to others.

    What was `planned` already is the first round. Raises: as `plan_partition`; ConflictError where others keep being
    faster.
    """
    started = time.perf_counter()
    rounds: list[RoundCompletion] = []
    current: RoundCompletion | None = None
    goal: int | None = None
    conflicts = 0
    while goal is None or not rounds or rounds[-1].high_watermark < goal:
        plan = _prepared(request, planned, is_first=not rounds, is_alone=not (rounds or conflicts))
        planned, current = None, plan.previous
        if plan.round is None:
            break
        # Going on to the newest delta of any time would never end where writers are as fast as rounds.
        goal = plan.round.newest_position if goal is None else goal
        try:
            current = run_round(plan.round, engine, progress)
            rounds.append(current)
        except ConflictError:
            conflicts += 1
            if conflicts > _CONFLICTS:
                raise
    return SessionResult(rounds, time.perf_counter() - started, conflicts, current)


def _prepared(request: Request, planned: PartitionPlan | None, *, is_first: bool, is_alone: bool) -> PartitionPlan:
    """Plan the next round. If there is one, everybody knows first that its deltas are needed and where its rows will be.

    Tables that need that also have their stream closed first. What was found before any of this is asked again.
    """
    plan = None if planned is None else _still_planned(planned)
    if plan is None:
        plan = plan_partition(request, is_first=is_first, is_alone=is_alone)
    if plan.round is not None or plan.state.current is not None:
        _register(plan)
    if plan.round is None:
        return plan
    source, job = plan.source, plan.round.job
    is_new = follow_source(plan.destination, plan.state.current, source, plan.round.start_watermark)
    _warn_of_doubt(plan.round)
    if close_stream(source.version, source.stream, min(job.now_ms, job.expiry_ms), root=request.root) or is_new:
        plan = plan_partition(request, is_first=is_first, is_alone=is_alone)
    return plan


def _still_planned(plan: PartitionPlan) -> PartitionPlan | None:
    """Return a plan that was made some time ago, None where the partition has changed since."""
    state = read_state(plan.destination)
    if plan.round is None or (state.current, state.holds) != (plan.state.current, plan.state.holds):
        return None
    # Its files are written from now on.
    job = replace(plan.round.job, began=state.batch_id)
    return replace(plan, state=state, round=replace(plan.round, job=job))


def _register(plan: PartitionPlan) -> None:
    """Make the partition known to its table, where its deltas have not done so."""
    if plan.source.partition is None or plan.source.locator != own_partition(plan.destination.locator):
        register_destination(plan.destination)


def _warn_of_doubt(plan: RoundPlan) -> None:
    """Warn that changes of a table whose stream is to be closed are not compacted yet, where the time is not sure."""
    version = plan.source.version
    if delay_of(version.properties, version.locator) is not None:
        doubt = plan.source.log.doubt(min(plan.job.now_ms, plan.job.expiry_ms))
        if doubt is not None:
            _log.warning("%s: later changes are compacted later: %s", plan.source.locator, doubt)


def run_round(plan: RoundPlan, engine: Engine, progress: Progress | None = None) -> RoundCompletion:
    """Run one round and commit it. Raises: ConflictError; then its files are deleted again."""
    with announced(plan.destination.log, plan.job.began):
        return _run_announced(plan, engine, progress)


def _run_announced(plan: RoundPlan, engine: Engine, progress: Progress | None) -> RoundCompletion:
    started = time.perf_counter()
    progress = progress or (lambda event: None)
    progress(
        RoundStarted(
            partition=tuple(plan.destination.locator.partition_values),
            round_id=plan.round_id,
            deltas=plan.delta_count,
            bytes=plan.input_bytes,
            buckets=len(plan.job.buckets),
            high_watermark=plan.high_watermark,
        )
    )
    results: list[BucketResult] = []
    for result in engine(plan.job):
        results.append(result)
        progress(BucketMerged(plan.round_id, result.action, result.accounting))
    merged_at = time.perf_counter()
    completion = _complete(plan, results)
    completion.seconds = {
        "tasks": merged_at - started,
        "merge": sum(result.merge_seconds for result in results),
        "write": sum(result.write_seconds for result in results),
        "total": time.perf_counter() - started,
    }
    written = write_completion(plan.destination, completion, plan.job.began)
    try:
        commit_round(plan.destination, completion, written, plan.previous_round_id, holds=plan.holds)
    except ConflictError:
        open_objects(plan.job.root).delete([written.uri, *_new_files(plan, completion.buckets)])
        raise
    progress(RoundCommitted(plan.round_id, completion.live_rows))
    return completion


def _complete(plan: RoundPlan, results: Sequence[BucketResult]) -> RoundCompletion:
    job = plan.job
    by_number = {result.number: result for result in results}
    buckets: list[Bucket] = []
    total = Accounting()
    actions: dict[str, int] = {}
    for number, bucket in enumerate(job.buckets):
        result = by_number.get(number)
        action = result.action if result else "untouched"
        actions[action] = actions.get(action, 0) + 1
        if result is None:
            buckets.append(bucket)
            total = total.plus(Accounting(base_rows=bucket.live_count, live_rows=bucket.live_count))
            continue
        buckets += result.buckets
        total = total.plus(result.accounting)
    _check_arrival(plan, total)
    before = {file.uri for bucket in job.buckets for file in bucket.files}
    files = [file for bucket in buckets for file in bucket.files]
    carried = sum(file.uri in before for file in files)
    return RoundCompletion(
        round_id=plan.round_id,
        previous_round_id=plan.previous_round_id,
        source_partition_locator=plan.source.locator,
        source_folder=plan.source.folder,
        destination_partition_locator=plan.destination.locator,
        rebase_source_partition_locator=plan.rebase_source,
        origin=plan.origin,
        high_watermark=plan.high_watermark,
        read_watermark=plan.read_watermark,
        primary_keys=list(job.primary_keys),
        sort_keys=list(job.sort_keys),
        merge_engine=job.merge_engine,
        drop_duplicates=job.drop_duplicates,
        fields=[SchemaField.from_serializable(each) for each in job.fields],
        buckets=buckets,
        delta_count=plan.delta_count,
        input_bytes=plan.input_bytes,
        written_files=sum(result.written_files for result in results),
        written_bytes=sum(result.written_bytes for result in results),
        written_rows=sum(result.written_rows for result in results),
        carried_files=carried,
        copied_by_reference_ratio=carried / len(files) if files else 0.0,
        bucket_actions=actions,
        accounting=total,
        completed_at=open_objects(job.root).now_ms(),
    )


def _check_arrival(plan: RoundPlan, total: Accounting) -> None:
    """Refuse a round in which rows that the deltas have reached no bucket; only before-images go nowhere."""
    reads = [read for read in plan.job.reads if not read.is_delete]
    given = sum(
        read.record_count - (read.deletion_vector.record_count if read.deletion_vector else 0) for read in reads
    )
    arrived = total.delta_rows + total.removal_rows
    may_be_fewer = any(read.op_column is not None for read in reads)
    if arrived > given or (arrived < given and not may_be_fewer):
        raise CorruptionError(
            f"{plan.destination.locator}: the deltas have {given} rows, but {arrived} of them were merged, so nothing is "
            "committed; keep the data and report this"
        )


def _new_files(plan: RoundPlan, buckets: Iterable[Bucket]) -> list[str]:
    """Return the objects that only this round names."""
    before = set(bucket_objects(plan.job.buckets))
    return [uri for uri in bucket_objects(buckets) if uri not in before]


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
    buckets: Sequence[BucketPlan]


@dataclass(frozen=True)
class Plan:
    """The next round of each partition of a table that has one."""

    table: str
    partitions: int
    stream_position: int
    rounds: Sequence[RoundPreview]


ResolverOf = Callable[[RoundJob], Resolve]
"""Returns what finds out the changes of a bucket, by the kind of the table."""


def preview_table(asked: TableRequest, resolver_of: ResolverOf, progress: Progress | None = None) -> Plan:
    """Preview the next round of each partition. `progress` is called before each file and each bucket is read.

    Raises: NotFoundError, InvalidInputError, CorruptionError.
    """
    plans = plan_partitions(partition_requests(asked))
    newest = max((plan.source.newest_position for plan in plans), default=0)
    progress = progress or (lambda event: None)
    previews = [_preview(plan, plan.round, resolver_of, progress) for plan in plans if plan.round is not None]
    return Plan(asked.name, len(plans), newest, previews)


def _preview(plan: PartitionPlan, round_: RoundPlan, resolver_of: ResolverOf, progress: Progress) -> RoundPreview:
    is_rebase = plan.request.rebase_source is not None
    return RoundPreview(
        partition=plan.source.locator.partition_values,
        round_id=round_.round_id,
        rebase_from=str(plan.request.source) if is_rebase else None,
        # What a rebase replaces does not count.
        previous_high_watermark=0 if is_rebase else round_.start_watermark,
        high_watermark=round_.high_watermark,
        deltas=round_.delta_count,
        rows=sum(read.record_count for read in round_.job.reads),
        bytes=round_.input_bytes,
        deltas_left_over=round_.deltas_left_over,
        buckets=_plan_buckets(round_.job, resolver_of(round_.job), progress),
    )


def _plan_buckets(job: RoundJob, resolve: Resolve, progress: Progress) -> list[BucketPlan]:
    parts = GatheredParts()
    for number, read in enumerate(job.reads):
        progress(TasksDone("read", number, len(job.reads)))
        for bucket, part in read_parts(job, [read]):
            parts.add(bucket, part)
    plans = []
    for number in range(len(job.buckets)):
        progress(TasksDone("merge", number, len(job.buckets)))
        plans.append(_plan_bucket(job, number, parts.take(number), resolve))
    return plans


def _plan_bucket(job: RoundJob, number: int, parts: list[bytes], resolve: Resolve) -> BucketPlan:
    bucket = job.buckets[number]
    new_rows = dead_rows = 0
    action, reason = "untouched", "no delta has rows for it"
    if parts or job.visits(bucket):
        change = resolve(job, bucket, [StoredFile(job.root, file) for file in bucket.files], parts)
        new_rows, dead_rows = change.rows.num_rows, change.dead_count
        action, reason = choose(job, bucket, new_rows, dead_rows)
    return BucketPlan(
        bucket=bucket.name,
        action=action,
        reason=reason,
        base_rows=bucket.live_count,
        new_rows=new_rows,
        dead_rows=dead_rows,
        files=len(bucket.files),
        bytes=bucket.content_length,
    )
