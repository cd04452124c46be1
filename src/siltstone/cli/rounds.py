"""`siltstone compact`, `plan`, `rounds` and `show`."""

import dataclasses
from typing import Annotated

import typer

from siltstone.cli.options import Master, Partition, Shell, TableName, command
from siltstone.cli.results import RoundList

To = Annotated[
    int | None, typer.Option("--to", metavar="POSITION", min=0, help="The last stream position to take, else all.")
]
Full = Annotated[bool, typer.Option("--full", help="Rewrite all buckets, also those without changes.")]
RebaseFrom = Annotated[
    str | None,
    typer.Option(
        "--rebase-from",
        metavar="S1",
        help="Start anew from what this table holds; from TABLE itself: read all its deltas again.",
    ),
]
OnBehalfOf = Annotated[
    str | None,
    typer.Option("--on-behalf-of", metavar="S2", help="The table whose deltas are compacted, if it is another table."),
]
HighWatermark = Annotated[
    int | None,
    typer.Option(
        "--high-watermark", metavar="POSITION", min=0, help="Go on after this position of the deltas, which S1 has."
    ),
]

app = typer.Typer()


@command(
    app,
    "compact",
    "siltstone compact shop.orders",
    "siltstone compact shop.orders --to 120 --master 'local[4]'",
    "siltstone compact shop.orders --rebase-from shop.old_orders --high-watermark 120 --dry-run",
    "siltstone compact shop.orders --rebase-from shop.orders",
)
def compact(
    shell: Shell,
    name: TableName,
    to: To = None,
    full: Full = False,
    rebase_from: RebaseFrom = None,
    on_behalf_of: OnBehalfOf = None,
    high_watermark: HighWatermark = None,
    master: Master = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, as `siltstone plan`.")] = False,
) -> None:
    """Compact the deltas of a table that are new since the last round.

    Each round commits by itself: what is interrupted goes on where it was. `siltstone plan` shows what would happen.
    S1 and S2 are tables, or streams of one, as `siltstone show` names them.
    """
    if dry_run:
        plan(shell, name, to, full, rebase_from, on_behalf_of, high_watermark)
        return
    from siltstone.cli.spark import SparkStarter

    table = shell.lake.table(name)
    with shell.compaction_progress() as progress, SparkStarter(master, progress) as start:
        compacted = table.compact(
            to=to,
            full=full,
            rebase_from=rebase_from,
            on_behalf_of=on_behalf_of,
            high_watermark=high_watermark,
            spark=start,
            progress=progress,
        )
    shell.emit(dataclasses.replace(compacted, seconds={**compacted.seconds, **start.seconds}))


@command(
    app,
    "plan",
    "siltstone plan shop.orders --to 120",
    "siltstone plan shop.orders --rebase-from shop.old_orders --high-watermark 120",
)
def plan(
    shell: Shell,
    name: TableName,
    to: To = None,
    full: Full = False,
    rebase_from: RebaseFrom = None,
    on_behalf_of: OnBehalfOf = None,
    high_watermark: HighWatermark = None,
) -> None:
    """Show what the next round would do, bucket by bucket, with reasons; nothing is written, Spark is not started."""
    from siltstone.rounds.events import Event, TasksDone

    with shell.progress() as report:

        def show(event: Event) -> None:
            if isinstance(event, TasksDone):
                step = "Reading file" if event.step == "read" else "Looking at bucket"
                report(f"{step} {event.done + 1:,} of {event.tasks:,}")

        planned = shell.lake.table(name).plan(
            to=to,
            full=full,
            rebase_from=rebase_from,
            on_behalf_of=on_behalf_of,
            high_watermark=high_watermark,
            progress=show,
        )
    shell.emit(planned)


@command(app, "rounds", "siltstone rounds shop.orders")
def rounds(shell: Shell, name: TableName) -> None:
    """List the rounds that compacted a table, oldest first."""
    shell.emit(RoundList(name, shell.lake.table(name).round_reports()))


@command(app, "show", "siltstone show shop.orders 3", "siltstone show shop.orders 3 --partition eu,2026-11-15")
def show(
    shell: Shell,
    name: TableName,
    round_id: Annotated[int, typer.Argument(metavar="ROUND", min=1, help="The round's number.", show_default=False)],
    partition: Partition = None,
) -> None:
    """Show a round: what it read, where the rows went, and the buckets with their files after it."""
    shell.emit(shell.lake.table(name).round(round_id, partition or ()))
