"""`siltstone write` and `siltstone deltas`."""

import re
import sys
from typing import Annotated, Literal

import typer

from siltstone.cli.options import Delimiter, DryRun, Format, Shell, TableName, command, parse_names
from siltstone.cli.results import DeltaList

DeltaType = Literal["upsert", "append", "delete", "add", "chrono"]

app = typer.Typer()


@command(
    app,
    "write",
    "siltstone write shop.orders january.csv february.csv",
    "siltstone write shop.orders changes.jsonl.gz --op-column op --idempotency orders-job:17",
    "siltstone write shop.orders gone.csv --type delete --delete-columns customer_id",
    "tail -n 1000 events.jsonl | siltstone write shop.orders -",
)
def write(
    shell: Shell,
    name: TableName,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Parquet, CSV or JSON lines; - for JSON lines from standard input.",
            show_default=False,
        ),
    ],
    type: Annotated[DeltaType, typer.Option("--type", help="What the rows mean.")] = "upsert",
    delete_columns: Annotated[
        list[str] | None,
        typer.Option("--delete-columns", metavar="A,B", help="Delete rows equal in these columns, not in the key."),
    ] = None,
    op_column: Annotated[
        str | None, typer.Option("--op-column", metavar="COLUMN", help="The column with each row's operation.")
    ] = None,
    idempotency: Annotated[
        str | None,
        typer.Option("--idempotency", metavar="APP:BATCH", help="Your id of this write; a repeated one commits once."),
    ] = None,
    stream_position: Annotated[
        int | None, typer.Option("--stream-position", metavar="N", min=1, help="Commit at this position.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse columns and types that the table does not have.")
    ] = False,
    format: Format = None,
    delimiter: Delimiter = None,
    dry_run: DryRun = False,
) -> None:
    """Write data files to a table, all of them as one delta in one atomic commit.

    CSV and JSON lines are read with the types of the table's columns. An empty CSV field is null, a quoted empty one is
    empty text.
    """
    batch = None if idempotency is None else parse_idempotency(idempotency)
    if "-" in files and sys.stdin.isatty():
        typer.echo("Reading JSON lines from the terminal; end with Ctrl-D.", err=True)
    with shell.progress() as progress:
        written = shell.lake.table(name).write_files(
            files,
            format=format,
            delimiter=delimiter,
            type=type,
            delete_columns=parse_names(delete_columns) or None,
            op_column=op_column,
            idempotency=batch,
            stream_position=stream_position,
            evolve=not strict,
            dry_run=dry_run,
            progress=progress,
        )
    shell.emit(written)


def parse_idempotency(text: str) -> tuple[str, int]:
    """Read `app:batch`, e.g. `orders-job:17`. Raises: typer.BadParameter."""
    app_id, colon, batch_id = text.rpartition(":")
    if not colon or not app_id or not re.fullmatch(r"[0-9]+", batch_id, re.ASCII):
        raise typer.BadParameter(
            f"{text!r} is not of the form app:batch with a whole number, e.g. orders-job:17",
            param_hint="--idempotency",
        )
    return app_id, int(batch_id)


@command(app, "deltas", "siltstone deltas shop.orders --from 10 --limit 20")
def deltas(
    shell: Shell,
    name: TableName,
    first: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="The first stream position to show.")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="N", min=0, help="The last position to show.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N of them.")] = None,
) -> None:
    """List the deltas of a table, oldest first."""
    deltas = shell.lake.table(name).delta_reports(first, last)
    shell.emit(DeltaList(name, deltas[-limit if limit else 0 :]))
