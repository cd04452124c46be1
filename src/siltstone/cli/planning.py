"""What `siltstone plan` finds out: what the next round of each partition would do, in this process, writing nothing."""

from siltstone.cli.compacting import compaction_request, newest_position
from siltstone.cli.hints import find_table
from siltstone.cli.results_rounds import BucketPlan, RoundPreview, TablePlan
from siltstone.cli.rounds import table_partitions
from siltstone.cli.shell import Report
from siltstone.compactor.absorb import choose
from siltstone.compactor.completion import current_completion
from siltstone.compactor.files import StoredFile
from siltstone.compactor.job import RoundJob
from siltstone.compactor.merge import resolve
from siltstone.compactor.plan import Request, RoundPlan, new_deltas, plan_round
from siltstone.compactor.reading import read_parts
from siltstone.lake import Lake


def plan_table(lake: Lake, name: str, *, report: Report, to: int | None = None, full: bool = False) -> TablePlan:
    """Plan the next round of each partition. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    table = find_table(lake, name)
    sources = table_partitions(lake, name)
    previews = []
    for source in sources:
        request = compaction_request(table, source, to=to, full=full)
        plan = plan_round(request, is_first=True)
        if plan is not None:
            previews.append(_preview(request, plan, report))
    return TablePlan(name, len(sources), newest_position(lake, sources), previews)


def _preview(request: Request, plan: RoundPlan, report: Report) -> RoundPreview:
    previous = current_completion(plan.destination)
    watermark = previous.high_watermark if previous is not None else 0
    return RoundPreview(
        partition=plan.source.partition_values,
        round_id=plan.round_id,
        previous_high_watermark=watermark,
        high_watermark=plan.high_watermark,
        deltas=plan.delta_count,
        rows=sum(read.record_count for read in plan.job.reads),
        bytes=plan.input_bytes,
        deltas_left_over=len(new_deltas(request, plan.source, watermark)) - plan.delta_count,
        buckets=_plan_buckets(plan.job, report),
    )


def _plan_buckets(job: RoundJob, report: Report) -> list[BucketPlan]:
    parts: dict[int, list[bytes]] = {}
    for number, read in enumerate(job.reads):
        report(f"Reading file {number + 1:,} of {len(job.reads):,}")
        for bucket, part in read_parts(job, [read]):
            parts.setdefault(bucket, []).append(part)
    plans = []
    for number in range(len(job.buckets)):
        report(f"Looking at bucket {number + 1:,} of {len(job.buckets):,}")
        plans.append(_plan_bucket(job, number, parts.pop(number, [])))
    return plans


def _plan_bucket(job: RoundJob, number: int, parts: list[bytes]) -> BucketPlan:
    bucket = job.buckets[number]
    new_rows = dead_rows = 0
    action, reason = "untouched", "no delta has rows for it"
    if parts or (job.settings.full and bucket.files):
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
