"""The geometry of charts: records become bars in a box of 1000 by 100 that pages stretch as they like."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from siltstone.service.results import Attempt, CycleDetails, CycleRecord
from siltstone.table.report import TableRound
from siltstone.text import format_bytes, format_duration, format_number

STATUS_WORDS = {
    "IDLE": "waiting",
    "STARTED": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "EXPIRED": "expired",
    "ABANDONED": "handed back",
}
WIDTH, HEIGHT = 1000.0, 100.0
_LEAST_HEIGHT = 1.5
_LEAST_WIDTH = 4.0
_MAX_SLOT = 40.0
format_short = partial(format_duration, drop_zero=True)


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
class TimelineRow:
    """All attempts at one partition."""

    partition: str
    table: str
    attempts: Sequence[Attempt]
    bars: Sequence[Bar]


def history_chart(records: Sequence[CycleRecord]) -> Chart | None:
    """Draw finished cycles, newest first, as bars of their duration with the newest at the right."""
    if not records:
        return None
    oldest_first = list(reversed(records))
    top = max(record.duration_ms for record in records) or 1
    failed = sum(record.status == "FAILED" for record in records)
    longest = max(records, key=lambda record: record.duration_ms)
    bars = [
        _column(
            number,
            len(records),
            record.duration_ms / top,
            record.status.lower(),
            f"Cycle {record.cycle_count}: {format_status(record.status)} in {format_short(record.duration_ms)}",
            f"/cycles/{record.cycle_count}",
        )
        for number, record in enumerate(oldest_first)
    ]
    summary = (
        f"Durations of the last {len(records)} cycles, of which {failed} failed; the longest, cycle "
        f"{longest.cycle_count}, took {format_short(longest.duration_ms)}."
    )
    return Chart(bars, format_short(top), format_short(top // 2), summary, _is_full(len(bars)))


def size_chart(rounds: Sequence[TableRound]) -> Chart | None:
    """Draw the bytes of a table after each round, oldest first."""
    measured = [report for report in rounds if report.table_bytes is not None]
    return _rounds_chart(measured, [report.table_bytes or 0 for report in measured], "Size", format_bytes)


def rows_chart(rounds: Sequence[TableRound]) -> Chart | None:
    """Draw the rows of a table after each round, oldest first."""
    measured = [report for report in rounds if report.table_rows is not None]
    return _rounds_chart(measured, [report.table_rows or 0 for report in measured], "Rows", format_number)


def timeline_rows(details: CycleDetails, now_ms: int) -> list[TimelineRow]:
    """Draw each partition's attempts along the time of their cycle, in order of their first one."""
    start = details.start_time_ms
    ends = [attempt.ended_at or now_ms for attempt in details.timeline]
    length = max([(details.end_time_ms or now_ms) - start, *(end - start for end in ends)]) or 1
    by_partition: dict[str, list[Attempt]] = {}
    for attempt in details.timeline:
        by_partition.setdefault(attempt.partition, []).append(attempt)
    return [
        TimelineRow(partition, tries[0].table, tries, [_stretch(attempt, start, length, now_ms) for attempt in tries])
        for partition, tries in by_partition.items()
    ]


def _rounds_chart(
    rounds: Sequence[TableRound], values: Sequence[int], what: str, form: Callable[[int], str]
) -> Chart | None:
    if not rounds:
        return None
    top = max(values) or 1
    bars = [
        _column(number, len(rounds), value / top, "size", f"Round {report.round_id}: {form(value)}")
        for number, (report, value) in enumerate(zip(rounds, values, strict=True))
    ]
    summary = f"{what} after each of the last {len(rounds)} rounds; now {form(values[-1])}, at most {form(top)}."
    return Chart(bars, form(top), form(top // 2), summary, _is_full(len(bars)))


def _column(number: int, count: int, share: float, kind: str, title: str, link: str | None = None) -> Bar:
    slot = min(WIDTH / count, _MAX_SLOT)
    height = max(share * HEIGHT, _LEAST_HEIGHT)
    x = WIDTH - (count - number) * slot
    return Bar(
        round(x + slot * 0.12, 2), round(HEIGHT - height, 2), round(slot * 0.76, 2), round(height, 2), kind, title, link
    )


def _is_full(count: int) -> bool:
    return count * _MAX_SLOT >= WIDTH


def _stretch(attempt: Attempt, start: int, length: int, now_ms: int) -> Bar:
    ended = attempt.ended_at or now_ms
    width = max((ended - attempt.started_at) / length * WIDTH, _LEAST_WIDTH)
    x = min((attempt.started_at - start) / length * WIDTH, WIDTH - width)
    took = format_short(ended - attempt.started_at)
    title = f"Attempt {attempt.attempt} by {attempt.worker or 'nobody'}: {format_status(attempt.status)}, {took}"
    return Bar(round(max(x, 0), 2), 0, round(width, 2), HEIGHT, attempt.status.lower(), title)
