"""`siltstone write` and `siltstone deltas`."""

import enum
import sys
from typing import Annotated

import typer

from siltstone.cli.shell import Debug, DryRun, Json, Root, examples, shell_of
from siltstone.cli.table_commands import Delimiter, FormatOption, TableName
from siltstone.cli.units import parse_idempotency, parse_names

WRITE_EXAMPLES = examples(
    "siltstone write shop.orders january.csv february.csv",
    "siltstone write shop.orders changes.jsonl.gz --op-column op --idempotency orders-job:17",
    "siltstone write shop.orders gone.csv --type delete --delete-columns customer_id",
    "tail -n 1000 events.jsonl | siltstone write shop.orders -",
)
DELTAS_EXAMPLES = examples("siltstone deltas shop.orders --from 10 --limit 20")


class DeltaTypeChoice(enum.StrEnum):
    """What the rows of a delta mean."""

    upsert = "upsert"
    append = "append"
    delete = "delete"
    add = "add"
    chrono = "chrono"


def write(
    context: typer.Context,
    name: TableName,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Parquet, CSV or JSON lines; - for JSON lines from standard input.",
            show_default=False,
        ),
    ],
    type: Annotated[DeltaTypeChoice, typer.Option("--type", help="What the rows mean.")] = DeltaTypeChoice.upsert,
    delete_columns: Annotated[
        list[str] | None,
        typer.Option("--delete-columns", metavar="A,B", help="Delete rows equal in these columns, not in the key."),
    ] = None,
    op_column: Annotated[
        str | None, typer.Option("--op-column", metavar="COLUMN", help="Says per row whether it is a delete.")
    ] = None,
    idempotency: Annotated[
        str | None,
        typer.Option("--idempotency", metavar="APP:BATCH", help="Your name for this write: twice commits once."),
    ] = None,
    stream_position: Annotated[
        int | None, typer.Option("--stream-position", metavar="N", min=1, help="Commit at this position.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse columns and types that the table does not have.")
    ] = False,
    format: FormatOption = None,
    delimiter: Delimiter = None,
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write data files to a table, all of them as one delta in one atomic commit.

    CSV and JSON lines are read with the types of the table's columns. An empty CSV field is null, a quoted empty one is
    empty text.
    """
    shell = shell_of(context, root, json, debug)
    batch = parse_idempotency(idempotency) if idempotency is not None else None
    if "-" in files and sys.stdin.isatty():
        typer.echo("Reading JSON lines from the terminal; end with Ctrl-D.", err=True)
    from siltstone.cli import writing
    from siltstone.cli.rehearsal import WriteRules

    output = shell.output
    with shell.progress() as report:
        written = writing.write_files(
            shell.lake,
            name,
            files,
            WriteRules(
                type=type.value,
                delete_columns=parse_names(delete_columns) if delete_columns else None,
                op_column=op_column,
                idempotency=batch,
                stream_position=stream_position,
                evolve=not strict,
            ),
            writing.Reading(format.value if format else None, delimiter),
            dry_run=dry_run,
            report=report,
            warn=output.warning,
        )
    output.written(written)


def deltas(
    context: typer.Context,
    name: TableName,
    first: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, help="The first stream position to show.")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="N", min=0, help="The last one.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N of them.")] = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the deltas of a table, oldest first."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import writing

    shell.output.deltas(name, writing.list_deltas(shell.lake, name, first=first, last=last, limit=limit))
