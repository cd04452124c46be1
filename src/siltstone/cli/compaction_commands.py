"""`siltstone compact`, `plan`, `rounds` and `show`."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.shell import Debug, Json, Root, Shell, examples, shell_of
from siltstone.cli.table_commands import PartitionOption, TableName

if TYPE_CHECKING:
    from siltstone.cli.compacting import Tell

COMPACT_EXAMPLES = examples(
    "siltstone compact shop.orders",
    "siltstone compact shop.orders --to 120 --master 'local[4]'",
    "siltstone compact shop.orders --rebase-from shop.old_orders --high-watermark 120 --dry-run",
    "siltstone compact shop.orders --rebase-from shop.orders",
)
PLAN_EXAMPLES = examples(
    "siltstone plan shop.orders --to 120",
    "siltstone plan shop.orders --rebase-from shop.old_orders --high-watermark 120",
)
ROUNDS_EXAMPLES = examples("siltstone rounds shop.orders")
SHOW_EXAMPLES = examples("siltstone show shop.orders 3", "siltstone show shop.orders 3 --partition eu,2026-11-15")

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
    typer.Option("--on-behalf-of", metavar="S2", help="The table whose deltas are compacted, where it is another one."),
]
HighWatermark = Annotated[
    int | None,
    typer.Option(
        "--high-watermark", metavar="POSITION", min=0, help="Go on after this position of the deltas, which S1 has."
    ),
]


def compact(
    context: typer.Context,
    name: TableName,
    to: To = None,
    full: Full = False,
    rebase_from: RebaseFrom = None,
    on_behalf_of: OnBehalfOf = None,
    high_watermark: HighWatermark = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Where Spark runs, e.g. local[4] or spark://host:7077."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, as `siltstone plan`.")] = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compact the deltas of a table that are new since the last round.

    Each round commits by itself: what is interrupted goes on where it was. `siltstone plan` shows what would happen.
    S1 and S2 are tables, or streams of one, as `siltstone show` names them.
    """
    shell = shell_of(context, root, json, debug)
    if dry_run:
        _plan(shell, name, to, full, rebase_from, on_behalf_of, high_watermark)
        return
    from siltstone.cli.compacting import compact_table
    from siltstone.rounds.request import TableRequest

    output, lake = shell.output, shell.lake
    asked = TableRequest(name, lake.root, to, full, rebase_from, on_behalf_of, high_watermark)
    with watched_progress(shell) as tell:
        compacted = compact_table(lake, asked, master=master, tell=tell)
    output.compacted(compacted)


@contextlib.contextmanager
def watched_progress(shell: Shell) -> "Iterator[Tell]":
    """Give a function that shows how far a compaction is, as long as somebody watches."""
    if not shell.is_watched:
        yield lambda event: None
        return
    from siltstone.cli.compaction_progress import shown_progress

    with shown_progress() as tell:
        yield tell


def plan(
    context: typer.Context,
    name: TableName,
    to: To = None,
    full: Full = False,
    rebase_from: RebaseFrom = None,
    on_behalf_of: OnBehalfOf = None,
    high_watermark: HighWatermark = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what the next round would do, bucket by bucket, with reasons; nothing is written, Spark is not started."""
    shell = shell_of(context, root, json, debug)
    _plan(shell, name, to, full, rebase_from, on_behalf_of, high_watermark)


def _plan(
    shell: Shell,
    name: str,
    to: int | None,
    full: bool,
    rebase_from: str | None,
    on_behalf_of: str | None,
    high_watermark: int | None,
) -> None:
    from siltstone.cli.planning import plan_table
    from siltstone.rounds.request import TableRequest

    lake = shell.lake
    asked = TableRequest(name, lake.root, to, full, rebase_from, on_behalf_of, high_watermark)
    with shell.progress() as report:
        planned = plan_table(lake, asked, report=report)
    shell.output.planned(planned)


def rounds(
    context: typer.Context,
    name: TableName,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the rounds that compacted a table, oldest first."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.rounds import list_table_rounds

    shell.output.rounds(name, list_table_rounds(shell.lake, name))


def show(
    context: typer.Context,
    name: TableName,
    round_id: Annotated[int, typer.Argument(metavar="ROUND", min=1, help="Its number.", show_default=False)],
    partition: PartitionOption = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a round: what it read, where the rows went, and the buckets with their files after it."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.rounds import show_round

    shell.output.round(show_round(shell.lake, name, round_id, partition))
