"""One table in detail: its newest rounds, how it grew, and its buckets."""

from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.lake import Lake
from siltstone.model.rounds import Bucket, RoundCompletion
from siltstone.service.overview import TableOverview, table_overview
from siltstone.table.completion import (
    compacted_partition,
    current_rounds,
    list_rounds,
    locate_destination,
    read_completion,
    source_partitions,
)

MAX_ROUNDS = 60
MAX_BUCKETS = 256


@dataclass(frozen=True)
class RoundView:
    """One committed round; the totals of the table after it, unless an unread round of a partition would be missing."""

    partition: str
    round_id: int
    completed_at: int
    high_watermark: int
    deltas: int
    rows_in: int
    superseded_rows: int
    deleted_rows: int
    live_rows: int
    files: int
    bytes: int
    input_bytes: int
    written_bytes: int
    seconds: float
    table_rows: int | None = None
    table_bytes: int | None = None


@dataclass(frozen=True)
class BucketView:
    """A bucket as it is now."""

    partition: str
    bucket: str
    rows: int
    dead_rows: int
    files: int
    bytes: int
    tombstones: int


@dataclass(frozen=True)
class TableDetails:
    """A table at a glance, its newest rounds, oldest first, and its largest buckets."""

    overview: TableOverview
    rounds: Sequence[RoundView] = ()
    buckets: Sequence[BucketView] = ()
    bucket_count: int = 0


def table_details(lake: Lake, name: str) -> TableDetails:
    """Look at one table. Raises: SiltstoneError."""
    overview = table_overview(lake, name)
    if overview.problem is not None:
        return TableDetails(overview)
    buckets = [
        _bucket_view(completion, bucket)
        for completion in current_rounds(name, root=lake.root)
        for bucket in completion.buckets
    ]
    largest = sorted(buckets, key=lambda each: each.bytes, reverse=True)[:MAX_BUCKETS]
    shown = sorted(largest, key=lambda each: (each.partition, each.bucket))
    return TableDetails(overview, recent_rounds(lake, name), shown, len(buckets))


def recent_rounds(lake: Lake, name: str) -> list[RoundView]:
    """Return the newest rounds of all partitions, oldest first. Raises: SiltstoneError."""
    sources = source_partitions(name, root=lake.root)
    each_at_most = max(MAX_ROUNDS // max(len(sources), 1), 2)
    found: list[RoundView] = []
    # Of partitions that are left out altogether, nothing is ever seen.
    unseen = {source.partition_id for source in sources[MAX_ROUNDS:]}
    for source in sources[:MAX_ROUNDS]:
        destination = locate_destination(compacted_partition(source), root=lake.root)
        entries = list_rounds(destination)
        if len(entries) > each_at_most:
            unseen.add(source.partition_id)
        found += [_round_view(read_completion(destination, entry)) for entry in entries[-each_at_most:]]
    return _with_totals(sorted(found, key=lambda each: (each.completed_at, each.round_id)), unseen)


def _with_totals(rounds: Sequence[RoundView], unseen: set[str]) -> list[RoundView]:
    latest: dict[str, RoundView] = {}
    totalled = []
    for each in rounds:
        latest[each.partition] = each
        if unseen <= latest.keys():
            rows, size = sum(one.live_rows for one in latest.values()), sum(one.bytes for one in latest.values())
            each = RoundView(**{**vars(each), "table_rows": rows, "table_bytes": size})
        totalled.append(each)
    return totalled


def _round_view(completion: RoundCompletion) -> RoundView:
    files, accounting = completion.files, completion.accounting
    return RoundView(
        partition=completion.source_partition_locator.partition_id,
        round_id=completion.round_id,
        completed_at=completion.completed_at,
        high_watermark=completion.high_watermark,
        deltas=completion.delta_count,
        rows_in=accounting.delta_rows + accounting.removal_rows,
        superseded_rows=accounting.superseded_rows,
        deleted_rows=accounting.deleted_rows,
        live_rows=completion.live_rows,
        files=len(files),
        bytes=sum(file.content_length for file in files),
        input_bytes=completion.input_bytes,
        written_bytes=completion.written_bytes,
        seconds=completion.seconds.get("total", 0.0),
    )


def _bucket_view(completion: RoundCompletion, bucket: Bucket) -> BucketView:
    stored = sum(file.record_count for file in bucket.files)
    return BucketView(
        partition=completion.source_partition_locator.partition_id,
        bucket=bucket.name,
        rows=bucket.live_count,
        dead_rows=stored - bucket.live_count,
        files=len(bucket.files),
        bytes=bucket.content_length,
        tombstones=bucket.tombstones.record_count if bucket.tombstones else 0,
    )
