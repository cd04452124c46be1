"""The progress of a compaction, live on a terminal: the phase, a bar of buckets, the rows so far."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from siltstone.cli.parts import new_console
from siltstone.cli.spark import SparkStarting
from siltstone.rounds.events import BucketMerged, Event, RoundCommitted, RoundStarted, TasksDone
from siltstone.text import format_bytes, format_count, format_partition


@contextlib.contextmanager
def shown_progress() -> Iterator[Callable[[Event | SparkStarting], None]]:
    """Yield a function that shows events on a line of standard error, which is removed at the end."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=new_console(sys.stderr),
        transient=True,
    )
    with bar:
        yield _Events(bar).show


class _Events:
    """Turns events into what the line says: a bar of tasks while they run, of buckets as they come in."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("Finding new deltas", total=None, detail="")
        self._round = ""
        self._input = ""
        self._buckets = 0
        self._merged = 0
        self._rows = 0

    def show(self, event: Event | SparkStarting) -> None:
        """Show an event, if it matters to people."""
        if isinstance(event, SparkStarting):
            self._bar.update(self._task, description="Starting Spark")
        elif isinstance(event, RoundStarted):
            self._round_started(event)
        elif isinstance(event, TasksDone):
            self._tasks_done(event)
        elif isinstance(event, BucketMerged):
            self._bucket_merged(event)
        elif isinstance(event, RoundCommitted):
            self._round_committed(event)

    def _round_started(self, event: RoundStarted) -> None:
        self._buckets, self._merged, self._rows = event.buckets, 0, 0
        partition = format_partition(event.partition)
        self._round = f"Round {event.round_id}" + (f" of partition {partition}" if partition else "")
        self._input = f"{format_count(event.deltas, 'delta')}, {format_bytes(event.bytes)}"
        self._bar.update(self._task, description=self._round, total=None, completed=0, detail=self._input)

    def _tasks_done(self, event: TasksDone) -> None:
        step = {"read": f"reading {self._input}", "merge": f"merging {format_count(self._buckets, 'bucket')}"}
        detail = f"{step.get(event.step, event.step)}, {event.done} of {format_count(event.tasks, 'task')}"
        self._bar.update(self._task, total=event.tasks, completed=event.done, detail=detail)

    def _bucket_merged(self, event: BucketMerged) -> None:
        self._merged += 1
        self._rows += event.accounting.live_rows
        detail = f"{self._merged} of {format_count(self._buckets, 'bucket')}, {format_count(self._rows, 'row')}"
        self._bar.update(self._task, total=self._buckets, completed=self._merged, detail=detail)

    def _round_committed(self, event: RoundCommitted) -> None:
        self._bar.update(
            self._task, total=self._buckets, completed=self._buckets, detail=format_count(event.live_rows, "row")
        )
