"""The progress of a compaction, live on a terminal: the phase, a bar of buckets, the rows so far."""

import contextlib
import functools
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
        self._update = functools.partial(bar.update, bar.add_task("Finding new deltas", total=None, detail=""))
        self._input = ""
        self._buckets = 0
        self._merged = 0
        self._rows = 0

    def show(self, event: Event | SparkStarting) -> None:
        """Show an event, if it matters to people."""
        buckets = format_count(self._buckets, "bucket")
        if isinstance(event, SparkStarting):
            self._update(description="Starting Spark")
        elif isinstance(event, RoundStarted):
            self._buckets, self._merged, self._rows = event.buckets, 0, 0
            partition = format_partition(event.partition)
            self._input = f"{format_count(event.deltas, 'delta')}, {format_bytes(event.bytes)}"
            description = f"Round {event.round_id}" + (f" of partition {partition}" if partition else "")
            self._update(description=description, total=None, completed=0, detail=self._input)
        elif isinstance(event, TasksDone):
            step = {"read": f"reading {self._input}", "merge": f"merging {buckets}"}.get(event.step, event.step)
            detail = f"{step}, {event.done} of {format_count(event.tasks, 'task')}"
            self._update(total=event.tasks, completed=event.done, detail=detail)
        elif isinstance(event, BucketMerged):
            self._merged += 1
            self._rows += event.accounting.live_rows
            detail = f"{self._merged} of {buckets}, {format_count(self._rows, 'row')}"
            self._update(total=self._buckets, completed=self._merged, detail=detail)
        elif isinstance(event, RoundCommitted):
            detail = format_count(event.live_rows, "row")
            self._update(total=self._buckets, completed=self._buckets, detail=detail)
