"""What the next round of each partition would do, found out in this process without writing anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from siltstone.rounds.events import Progress, TasksDone
from siltstone.rounds.plan import PartitionPlan, RoundPlan, plan_partitions
from siltstone.rounds.request import TableRequest, partition_requests
from siltstone.rows.absorb import choose
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.rows.merge import Resolve
from siltstone.rows.parts import GatheredParts, read_parts


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
