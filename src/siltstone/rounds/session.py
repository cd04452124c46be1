"""A compaction session: rounds, each planned on the current state and committed by itself, until nothing is left."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from siltstone.errors import ConflictError, CorruptionError
from siltstone.log.horizon import announced
from siltstone.model.rounds import Accounting, Bucket, RoundCompletion
from siltstone.model.schema import SchemaField
from siltstone.objects import open_objects
from siltstone.rounds.events import BucketMerged, Progress, RoundCommitted, RoundStarted
from siltstone.rounds.plan import Request, RoundPlan, plan_round
from siltstone.rounds.request import check_request
from siltstone.rows.job import BucketResult, Engine
from siltstone.storage import object_store as storage
from siltstone.table.completion import bucket_objects, commit_round, current_entry, locate_destination, write_completion
from siltstone.table.followers import follow, register_destination
from siltstone.table.holds import close_stream, delay_of
from siltstone.table.jobs import version_of

_log = logging.getLogger(__name__)

_CONFLICTS = 20


@dataclass
class SessionResult:
    """The rounds that a session committed; none where there was nothing new."""

    rounds: list[RoundCompletion] = field(default_factory=list)
    seconds: float = 0.0
    conflicts: int = 0


def run_session(request: Request, engine: Engine, progress: Progress | None = None) -> SessionResult:
    """Run rounds until all that was there at the start is compacted; what is written meanwhile may be left to others.

    Raises: as `check_request` and `plan_round`; ConflictError where others keep being faster.
    """
    check_request(request)
    result = SessionResult()
    started = time.perf_counter()
    goal: int | None = None
    while goal is None or not result.rounds or result.rounds[-1].high_watermark < goal:
        plan = _plan(request, result)
        if plan is None:
            break
        # Going on to the newest delta of any time would never end where writers are as fast as rounds.
        goal = plan.newest_position if goal is None else goal
        try:
            result.rounds.append(run_round(plan, engine, progress))
        except ConflictError:
            result.conflicts += 1
            if result.conflicts > _CONFLICTS:
                raise
    result.seconds = time.perf_counter() - started
    return result


def _plan(request: Request, so_far: SessionResult) -> RoundPlan | None:
    """Plan the next round. If there is one, everybody knows first that its deltas are needed and where its rows will be.

    Tables that need that also have their stream closed first. What was found before any of this is asked again.
    """
    is_first, is_alone = not so_far.rounds, not (so_far.rounds or so_far.conflicts)
    destination = locate_destination(request.destination, root=request.root)
    began = destination.log.read(lambda state: state.batch_id)
    plan = plan_round(request, is_first=is_first, is_alone=is_alone)
    if plan is not None or current_entry(destination) is not None:
        register_destination(destination)
    if plan is None:
        return None
    is_new = follow(plan.destination, plan.source, plan.start_watermark)
    _warn_of_doubt(plan, request.root)
    if close_stream(plan.source, min(plan.job.now_ms, plan.job.expiry_ms), root=request.root) or is_new:
        plan = plan_round(request, is_first=is_first, is_alone=is_alone)
    return None if plan is None else replace(plan, job=replace(plan.job, began=began))


def _warn_of_doubt(plan: RoundPlan, root: str) -> None:
    """Say why changes of a table whose stream is to be closed are not compacted yet, where the time is not sure."""
    version = version_of(plan.source, root=root)
    if delay_of(version.properties, version.locator) is not None:
        doubt = storage.locate_stream(plan.source, root=root).doubt(min(plan.job.now_ms, plan.job.expiry_ms))
        if doubt is not None:
            _log.warning("%s: later changes are compacted later: %s", plan.source, doubt)


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
        source_partition_locator=plan.source,
        source_folder=plan.source_folder,
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
