"""The charts of the pages: bars in boxes, drawn here, shown as inline SVG by the templates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

from siltstone import text
from siltstone.service.results import Attempt, CycleDetails, CycleRecord
from siltstone.table.report import BucketSize, TableRound

# Charts are bars in a box of this size, which pages stretch as they like.
WIDTH, HEIGHT = 1000.0, 100.0
# The lanes of a worker that compacts several tables at the same time are so high each, and so far apart.
LANE_HEIGHT, LANE_GAP = 16, 3
# So many partitions have a map of their buckets.
MAX_MAPS = 12
_LEAST_HEIGHT = 1.5
_LEAST_WIDTH = 4.0
_MAX_SLOT = 40.0
STATUS_WORDS = {
    "IDLE": "waiting",
    "STARTED": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "STOPPED": "stopped",
    "EXPIRED": "expired",
    "ABANDONED": "handed back",
}
# Of several attempts in one bar, the first of these that there is gives the colour.
_WORST_FIRST = ("FAILED", "EXPIRED", "ABANDONED", "STARTED", "COMPLETED")
format_short = partial(text.format_duration, drop_zero=True)


def format_status(status: str) -> str:
    """Return the word for a status."""
    return STATUS_WORDS.get(status, status.lower())


@dataclass(frozen=True)
class Bar:
    """One bar; `kind` chooses its colour, `title` is shown by pointing at it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str
    link: str | None = None


class Column(NamedTuple):
    """What a bar of a chart stands for."""

    value: int
    kind: str
    title: str
    link: str | None = None


@dataclass(frozen=True)
class Chart:
    """Bars with what the eye needs: the top of the scale, its middle, and the sentence that says it all."""

    bars: Sequence[Bar]
    top: str
    middle: str
    summary: str
    # False where bars begin in the middle, because there are few.
    is_full: bool = True


@dataclass(frozen=True)
class Lane:
    """What a worker did in a cycle: a bar for each table that it claimed, in rows where several overlap."""

    worker: str
    bars: Sequence[Bar]
    rows: int
    partitions: int
    failed: int
    busy_ms: int

    @property
    def height(self) -> int:
        """The height of all rows."""
        return self.rows * LANE_HEIGHT + (self.rows - 1) * LANE_GAP


@dataclass(frozen=True)
class BucketMap:
    """The buckets of a partition along the key hashes: as wide as their share of them, as high as they are large."""

    partition: Sequence[object]
    bars: Sequence[Bar]
    summary: str


def history_chart(records: Sequence[CycleRecord]) -> Chart | None:
    """Draw finished cycles, newest first, as bars of their duration with the newest at the right."""
    if not records:
        return None
    failed = sum(record.status == "FAILED" for record in records)
    longest = max(records, key=lambda record: record.duration_ms)
    summary = (
        f"Durations of the last {len(records)} cycles, of which {failed} failed; the longest, cycle "
        f"{longest.cycle_count}, took {format_short(longest.duration_ms)}."
    )
    columns = [
        Column(
            record.duration_ms,
            record.outcome.lower(),
            f"Cycle {record.cycle_count}: {format_status(record.outcome)} in {format_short(record.duration_ms)}",
            f"/cycles/{record.cycle_count}",
        )
        for record in reversed(records)
    ]
    return _chart(columns, format_short, summary)


def size_chart(rounds: Sequence[TableRound]) -> Chart | None:
    """Draw the bytes of a table after each round, oldest first."""
    return _rounds_chart([(report, report.table_bytes) for report in rounds], "Size after", text.format_bytes)


def rows_chart(rounds: Sequence[TableRound]) -> Chart | None:
    """Draw the rows of a table after each round, oldest first."""
    return _rounds_chart([(report, report.table_rows) for report in rounds], "Rows after", text.format_number)


def bytes_charts(rounds: Sequence[TableRound]) -> list[tuple[str, Chart]]:
    """Draw the bytes that each round read, wrote and carried on, oldest first, each on a scale of its own."""
    charts = [
        ("In", _rounds_chart([(each, each.input_bytes) for each in rounds], "Bytes read by", text.format_bytes, "in")),
        (
            "Out",
            _rounds_chart(
                [(each, each.written_bytes) for each in rounds], "Bytes written by", text.format_bytes, "out"
            ),
        ),
        (
            "Carried",
            _rounds_chart(
                [(each, each.carried_bytes) for each in rounds], "Bytes carried on by", text.format_bytes, "carried"
            ),
        ),
    ]
    return [(name, chart) for name, chart in charts if chart is not None]


def lag_chart(rounds: Sequence[TableRound], now_lag_ms: int | None) -> Chart | None:
    """Draw how old the oldest delta of each round was when it was compacted, and how old that is which waits now."""
    known = [(report.round_id, report.lag_ms) for report in rounds if report.lag_ms is not None]
    columns = [Column(lag, "lag", f"Round {number}: {format_short(lag)}") for number, lag in known]
    if not columns and now_lag_ms is None:
        return None
    now = "nothing waits"
    if now_lag_ms is not None:
        columns.append(Column(now_lag_ms, "waiting", f"Waiting now: {format_short(now_lag_ms)}"))
        now = f"the oldest that waits now is {format_short(now_lag_ms)} old"
    return _chart(columns, format_short, f"Age of the oldest delta in each of the last {len(known)} rounds; {now}.")


def timeline_rows(details: CycleDetails, now_ms: int) -> list[tuple[Sequence[Attempt], Sequence[Bar]]]:
    """Draw each partition's attempts along the time of their cycle, in order of their first one."""
    start, length = _span(details, now_ms)
    by_partition: dict[str, list[Attempt]] = {}
    for attempt in details.timeline:
        by_partition.setdefault(attempt.partition, []).append(attempt)
    return [
        (attempts, [_stretch(attempt, start, length, now_ms) for attempt in attempts])
        for attempts in by_partition.values()
    ]


def worker_lanes(details: CycleDetails, now_ms: int) -> list[Lane]:
    """Draw what each worker did along the time of a cycle, in order of their names."""
    start, length = _span(details, now_ms)
    by_worker: dict[str, list[Attempt]] = {}
    for attempt in details.timeline:
        if attempt.worker is not None:
            by_worker.setdefault(attempt.worker, []).append(attempt)
    return [_lane(worker, by_worker[worker], start, length, now_ms) for worker in sorted(by_worker)]


def bucket_maps(buckets: Sequence[BucketSize]) -> list[BucketMap]:
    """Draw the buckets of each partition; of many partitions, those of the first ones."""
    most = max((bucket.bytes for bucket in buckets), default=0) or 1
    by_partition = groupby(buckets, key=lambda bucket: list(bucket.partition))
    return [_bucket_map(values, list(group), most) for values, group in by_partition][:MAX_MAPS]


def _bucket_map(values: Sequence[object], buckets: Sequence[BucketSize], most: int) -> BucketMap:
    bars = [bar for bucket in buckets for bar in _bucket_bars(bucket, most)]
    depths = [bucket.depth for bucket in buckets]
    dead, stored = sum(each.dead_rows for each in buckets), sum(each.rows + each.dead_rows for each in buckets)
    largest = max(buckets, key=lambda bucket: bucket.bytes)
    of_depth = f"of depth {min(depths)}" if min(depths) == max(depths) else f"of depths {min(depths)} to {max(depths)}"
    summary = (
        f"{text.format_count(len(buckets), 'bucket')} {of_depth}; the largest, {largest.bucket}, has "
        f"{text.format_bytes(largest.bytes)}; {text.format_number(dead)} of {text.format_count(stored, 'stored row')} are dead."
    )
    return BucketMap(values, bars, summary)


def _bucket_bars(bucket: BucketSize, most: int) -> Iterable[Bar]:
    """Yield a bar, at its place among the hashes, and over it the share of it that is dead rows."""
    width = WIDTH / (1 << bucket.depth)
    x = 0.0 if not bucket.depth else int(bucket.bucket, 2) * width
    height = max(bucket.bytes / most * HEIGHT, _LEAST_HEIGHT)
    stored = bucket.rows + bucket.dead_rows
    dead = height * bucket.dead_rows / stored if stored else 0.0
    gap = min(width * 0.06, 1.0)
    title = (
        f"Bucket {bucket.bucket}: {text.format_bytes(bucket.bytes)}, {text.format_count(bucket.rows, 'row')}, "
        f"{text.format_number(bucket.dead_rows)} dead, {text.format_count(bucket.files, 'file')}, depth {bucket.depth}"
    )
    place = round(x + gap, 2), round(width - 2 * gap, 2)
    yield Bar(place[0], round(HEIGHT - height, 2), place[1], round(height, 2), "size", title)
    if dead:
        yield Bar(place[0], round(HEIGHT - height, 2), place[1], round(dead, 2), "dead", title)


def _lane(worker: str, attempts: Sequence[Attempt], start: int, length: int, now_ms: int) -> Lane:
    bars: list[Bar] = []
    # When each row is free again.
    rows: list[int] = []
    busy_ms, busy_until = 0, start
    for claim in _claims(attempts, now_ms):
        begun, ended = _times(claim, now_ms)
        busy_ms += max(ended - max(begun, busy_until), 0)
        busy_until = max(busy_until, ended)
        row = next((number for number, free_at in enumerate(rows) if free_at <= begun), len(rows))
        rows[row : row + 1] = [ended]
        x, width = _place(begun, ended, start, length)
        y = row * (LANE_HEIGHT + LANE_GAP)
        status = next(each for each in _WORST_FIRST if any(attempt.status == each for attempt in claim))
        title = _claim_title(claim, ended - begun)
        bars.append(Bar(x, y, width, LANE_HEIGHT, status.lower(), title))
    failed = sum(attempt.status == "FAILED" for attempt in attempts)
    return Lane(worker, bars, len(rows), len({each.partition for each in attempts}), failed, busy_ms)


def _claims(attempts: Sequence[Attempt], now_ms: int) -> list[list[Attempt]]:
    """Put attempts together that a worker made at the same time at partitions of one table, by their beginnings."""
    claims: list[list[Attempt]] = []
    newest: dict[str, list[Attempt]] = {}
    for attempt in sorted(attempts, key=lambda each: each.started_at):
        claim = newest.get(attempt.table)
        if claim is None or _times(claim, now_ms)[1] <= attempt.started_at:
            claim = newest[attempt.table] = []
            claims.append(claim)
        claim.append(attempt)
    return claims


def _times(attempts: Sequence[Attempt], now_ms: int) -> tuple[int, int]:
    begun = min(attempt.started_at for attempt in attempts)
    return begun, max(begun, *(attempt.ended_at or now_ms for attempt in attempts))


def _claim_title(claim: Sequence[Attempt], took_ms: int) -> str:
    counts = {status: sum(each.status == status for each in claim) for status in _WORST_FIRST}
    said = ", ".join(f"{count:,} {format_status(status)}" for status, count in counts.items() if count)
    outcome = format_status(claim[0].status) if len(claim) == 1 else said
    return f"{claim[0].table}: {outcome}, {format_short(took_ms)}"


def _rounds_chart(
    rounds: Sequence[tuple[TableRound, int | None]], what: str, form: Callable[[int], str], kind: str = "size"
) -> Chart | None:
    columns = [
        Column(value, kind, f"Round {report.round_id}: {form(value)}") for report, value in rounds if value is not None
    ]
    if not columns:
        return None
    now, most = columns[-1].value, max(column.value for column in columns) or 1
    summary = f"{what} each of the last {len(columns)} rounds; now {form(now)}, at most {form(most)}."
    return _chart(columns, form, summary)


def _chart(columns: Sequence[Column], form: Callable[[int], str], summary: str) -> Chart:
    top = max(column.value for column in columns) or 1
    slot = min(WIDTH / len(columns), _MAX_SLOT)
    bars = []
    for number, column in enumerate(columns):
        height = max(column.value / top * HEIGHT, _LEAST_HEIGHT)
        x = WIDTH - (len(columns) - number) * slot + slot * 0.12
        place = (round(x, 2), round(HEIGHT - height, 2), round(slot * 0.76, 2), round(height, 2))
        bars.append(Bar(*place, column.kind, column.title, column.link))
    return Chart(bars, form(top), form(top // 2), summary, is_full=len(columns) * _MAX_SLOT >= WIDTH)


def _span(details: CycleDetails, now_ms: int) -> tuple[int, int]:
    """Return the start of a cycle, and how long it is drawn."""
    ends = [details.end_time_ms or now_ms, *(attempt.ended_at or now_ms for attempt in details.timeline)]
    return details.start_time_ms, max(ends) - details.start_time_ms or 1


def _place(begun: int, ended: int, start: int, length: int) -> tuple[float, float]:
    width = max((ended - begun) / length * WIDTH, _LEAST_WIDTH)
    x = min((begun - start) / length * WIDTH, WIDTH - width)
    return round(max(x, 0), 2), round(width, 2)


def _stretch(attempt: Attempt, start: int, length: int, now_ms: int) -> Bar:
    ended = attempt.ended_at or now_ms
    x, width = _place(attempt.started_at, ended, start, length)
    took = format_short(ended - attempt.started_at)
    title = f"Attempt {attempt.attempt} by {attempt.worker or 'nobody'}: {format_status(attempt.status)}, {took}"
    return Bar(x, 0, width, HEIGHT, attempt.status.lower(), title)
