"""What `siltstone plan` finds out: what the next round of each partition would do, in this process, writing nothing."""

from siltstone.cli.compacting import find_requests, newest_position
from siltstone.cli.options import Report
from siltstone.cli.results import BucketPlan, RoundPreview, TablePlan
from siltstone.documents.merge import resolver_of
from siltstone.lake import Lake
from siltstone.rounds.plan import Request, RoundPlan, new_deltas, plan_round
from siltstone.rounds.request import TableRequest, requests_with_work
from siltstone.rows.absorb import choose
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.rows.parts import GatheredParts, read_parts
from siltstone.table.completion import current_completion


def plan_table(lake: Lake, asked: TableRequest, *, report: Report) -> TablePlan:
    """Plan the next round of each partition. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    requests = find_requests(lake, asked)
    previews = []
    for request in requests_with_work(requests):
        plan = plan_round(request, is_first=True)
        if plan is not None:
            previews.append(_preview(request, plan, report))
    return TablePlan(asked.name, len(requests), newest_position(requests), previews)


def _preview(request: Request, plan: RoundPlan, report: Report) -> RoundPreview:
    is_rebase = request.rebase_source is not None
    # What a rebase replaces is not read, so that it can be planned where that is damaged.
    previous = None if is_rebase else current_completion(plan.destination)
    watermark = previous.high_watermark if previous is not None else 0
    if request.rebase_high_watermark is not None and not is_rebase:
        watermark = request.rebase_high_watermark
    return RoundPreview(
        partition=plan.source.partition_values,
        round_id=plan.round_id,
        rebase_from=str(request.source) if is_rebase else None,
        previous_high_watermark=watermark,
        high_watermark=plan.high_watermark,
        deltas=plan.delta_count,
        rows=sum(read.record_count for read in plan.job.reads),
        bytes=plan.input_bytes,
        deltas_left_over=len(new_deltas(request, plan.source, plan.high_watermark)),
        buckets=_plan_buckets(plan.job, report),
    )


def _plan_buckets(job: RoundJob, report: Report) -> list[BucketPlan]:
    parts = GatheredParts()
    for number, read in enumerate(job.reads):
        report(f"Reading file {number + 1:,} of {len(job.reads):,}")
        for bucket, part in read_parts(job, [read]):
            parts.add(bucket, part)
    plans = []
    for number in range(len(job.buckets)):
        report(f"Looking at bucket {number + 1:,} of {len(job.buckets):,}")
        plans.append(_plan_bucket(job, number, parts.take(number)))
    return plans


def _plan_bucket(job: RoundJob, number: int, parts: list[bytes]) -> BucketPlan:
    bucket = job.buckets[number]
    new_rows = dead_rows = 0
    action, reason = "untouched", "no delta has rows for it"
    if parts or job.visits(bucket):
        change = resolver_of(job)(job, bucket, [StoredFile(job.root, file) for file in bucket.files], parts)
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
