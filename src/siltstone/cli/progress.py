"""Progress, live on a terminal: one line that says what is done, how far it is, since when, and for how long still."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from siltstone.cli.parts import new_console
from siltstone.cli.spark import SparkStarting
from siltstone.rounds.events import BucketMerged, Event, RoundCommitted, RoundStarted, TasksDone
from siltstone.text import format_bytes, format_count, format_partition

if TYPE_CHECKING:
    from siltstone.ingest.file_rows import FilesRead

Clock = Callable[[], float]
_BAR_WIDTH = 20
_NARROW_BAR_WIDTH = 8
_NARROW_WINDOW = 100
# Before that, a guess would be worth nothing.
_LEAST_SECONDS = 2.0
_shown: list[Live] = []


class Pace:
    """How far a step is, and how long it still takes: as reported, and between reports guessed from those before."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Begin a step of which nothing is known yet."""
        self._started = self._changed = self._clock()
        self._done = self._total = self._shown = 0.0
        self._changes = 0

    def report(self, done: float, total: float) -> None:
        """Take note of how much is done."""
        if total != self._total or done < self._done:
            self.restart()
        self._total = total
        if done > self._done:
            self._done, self._changed = done, self._clock()
            self._changes += 1

    @property
    def share(self) -> float | None:
        """The share that is done, between 0 and 1, which never falls; None where nothing is known, as at either end."""
        if not 0 < self._done < self._total:
            return None
        # Towards the next report, which is as large and as late as those before, but never there.
        step, pause = self._done / self._changes, max(1e-9, self._changed - self._started) / self._changes
        waited = 1 - math.exp(-(self._clock() - self._changed) / pause)
        self._shown = max(self._shown, min(1.0, (self._done + step * waited) / self._total))
        return self._shown

    @property
    def seconds_left(self) -> float | None:
        """How long the step still takes if it goes on as it did; None where that is too early to say."""
        taken = self._changed - self._started
        if not 0 < self._done < self._total or self._clock() - self._started < _LEAST_SECONDS:
            return None
        left = taken / self._done * (self._total - self._done) - (self._clock() - self._changed)
        return max(1.0, left)


class ProgressLine:
    """The line: a spinner, what is done, a bar, how far it is, the time since the beginning, and the time left."""

    def __init__(self, message: str = "", clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._spinner = Spinner("dots")
        self.pace = Pace(clock)
        self.message = message
        self.detail = ""

    def step(self, message: str, detail: str = "") -> None:
        """Show what is done now, of which nothing is known yet."""
        if (message, detail) != (self.message, self.detail):
            self.pace.restart()
        self.message, self.detail = message, detail

    def report(self, message: str, detail: str, done: float, total: float) -> None:
        """Show how far something is."""
        self.message, self.detail = message, detail
        self.pace.report(done, total)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        bar_width = _BAR_WIDTH if width >= _NARROW_WINDOW else _NARROW_BAR_WIDTH
        times = _clock_text(self._clock() - self._started)
        if self.pace.seconds_left is not None:
            times += f", {_clock_text(self.pace.seconds_left)} left"
        # What is said gives way, the times do not.
        room = max(0, width - bar_width - len(times) - 6)
        message, detail = Text(self.message), Text(self.detail)
        detail.truncate(max(0, min(len(detail), room - min(len(message), room // 2) - 1)), overflow="ellipsis")
        message.truncate(max(0, room - len(detail) - 1), overflow="ellipsis")
        share = self.pace.share
        bar = ProgressBar(1.0, share or 0.0, width=bar_width, pulse=share is None, animation_time=self._clock())
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_row(self._spinner, message, bar, *([detail] if detail else []), Text(times, style="cyan"))
        yield grid


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def shown_line(message: str = "") -> Iterator[ProgressLine]:
    """Show a line on standard error, which is removed at the end; what else is printed meanwhile goes above it."""
    line = ProgressLine(message)
    live = Live(line, console=new_console(sys.stderr), transient=True, refresh_per_second=10)
    _shown.append(live)
    try:
        live.start()
        yield line
    finally:
        clear()


def clear() -> None:
    """Remove the line, if there is one; also where an interrupt came before anybody could see to that."""
    while _shown:
        _shown[-1].stop()
        _shown.pop()


@contextlib.contextmanager
def shown_messages(message: str) -> "Iterator[Callable[[str | FilesRead], None]]":
    """Yield a function that shows messages, and how far files are read."""
    with shown_line(message) as line:

        def show(message: "str | FilesRead") -> None:
            if isinstance(message, str):
                line.step(message)
            else:
                _show_files(line, message)

        yield show


def _show_files(line: ProgressLine, read: "FilesRead") -> None:
    total, about = read.total_rows, ""
    if total is None and read.bytes:
        total, about = round(read.rows * read.total_bytes / read.bytes), "about "
    rows = f"{_rough(read.rows)} rows" if total is None else f"{_rough(read.rows)} of {about}{_rough(total)} rows"
    sizes = f"{format_bytes(read.bytes)} of {format_bytes(read.total_bytes)}"
    line.report(f"{read.step} {os.path.basename(read.file)}", f"{sizes}, {rows}", read.bytes, read.total_bytes)


def _rough(number: int) -> str:
    """Return a number with two or three digits that count."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}" if number < 10 * size else f"{number // size} {unit}"
    return str(number)


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[Event | SparkStarting], None]]:
    """Yield a function that shows the events of a compaction."""
    with shown_line("Finding new deltas") as line:
        yield CompactionLine(line).show


class CompactionLine:
    """Turns events into what the line says: a bar of tasks while they run, of buckets as they come in."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line
        self._round = ""
        self._input = ""
        self._step = ""
        self._buckets = 0
        self._merged = 0
        self._rows = 0

    def show(self, event: Event | SparkStarting) -> None:
        """Show an event, if it matters to people."""
        buckets = format_count(self._buckets, "bucket")
        if isinstance(event, SparkStarting):
            self._line.step("Starting Spark", self._round and f"for {self._round.lower()}, {self._input}")
        elif isinstance(event, RoundStarted):
            self._buckets, self._merged, self._rows, self._step = event.buckets, 0, 0, ""
            partition = format_partition(event.partition)
            self._input = f"{format_count(event.deltas, 'delta')}, {format_bytes(event.bytes)}"
            self._round = f"Round {event.round_id}" + (f" of partition {partition}" if partition else "")
            self._line.step(self._round, self._input)
        elif isinstance(event, TasksDone):
            if event.step != self._step:
                self._step = event.step
                self._line.pace.restart()
            step = {"read": f"reading {self._input}", "merge": f"merging {buckets}"}.get(event.step, event.step)
            detail = f"{step}, {event.done} of {format_count(event.tasks, 'task')}"
            self._line.report(self._round or "Finding new deltas", detail, event.done, event.tasks)
        elif isinstance(event, BucketMerged):
            self._merged += 1
            self._rows += event.accounting.live_rows
            detail = f"{self._merged} of {buckets}, {format_count(self._rows, 'row')}"
            if self._merged < self._buckets:
                self._line.report(self._round, detail, self._merged, self._buckets)
            else:
                self._line.step(self._round, f"committing {buckets}, {format_count(self._rows, 'row')}")
        elif isinstance(event, RoundCommitted):
            self._line.step(f"{self._round} committed", format_count(event.live_rows, "row"))
