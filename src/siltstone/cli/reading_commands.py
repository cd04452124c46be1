"""`siltstone read` and `siltstone lookup`."""

from typing import Annotated

import typer

from siltstone.cli.shell import Debug, Json, Root, examples, shell_of
from siltstone.cli.table_commands import TableName
from siltstone.cli.units import parse_names, parse_pairs

READ_EXAMPLES = examples(
    "siltstone read shop.orders --where \"amount >= 9.5 and status = 'paid'\" --columns order_id,amount",
    "siltstone read shop.orders --as-of 2024-05-01T08:00:00Z --output orders.parquet",
    "siltstone read shop.orders --include-uncompacted --json | head",
)
LOOKUP_EXAMPLES = examples("siltstone lookup shop.orders order_id=17")
EXPLAIN_EXAMPLES = examples(
    "siltstone explain-key shop.orders order_id=17",
    "siltstone explain-key shop.prices sku=A-7 --null region",
)
SHOWN_ROWS = 20


def read(
    context: typer.Context,
    name: TableName,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", metavar="WHEN", help="A stream position, or an ISO 8601 time (UTC without a zone)."),
    ] = None,
    include_uncompacted: Annotated[
        bool, typer.Option("--include-uncompacted", help="Also take the deltas since the last round into account.")
    ] = False,
    columns: Annotated[
        list[str] | None, typer.Option("--columns", metavar="A,B", help="Only these columns, in this order.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="CONDITION", help="Comparisons joined by and: = != < <= > >=, is null, is not null."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help=f"At most N rows; as text {SHOWN_ROWS}, else all."),
    ] = None,
    to_file: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="Write the rows to a .parquet, .csv or .jsonl file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the --output file if it is there.")] = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Read the rows of a table, as compacted or as of any position or time; --json shows one object per line."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import reading
    from siltstone.cli.results import Exported
    from siltstone.ingest import export as exporting

    file_format = exporting.check_output(to_file, overwrite=overwrite) if to_file is not None else None
    is_cut = limit is None and to_file is None and not shell.json
    rows = reading.read_table(
        shell.lake,
        name,
        columns=parse_names(columns) if columns else None,
        where=where,
        as_of=as_of,
        include_uncompacted=include_uncompacted,
        limit=SHOWN_ROWS + 1 if is_cut else limit,
    )
    if to_file is not None and file_format is not None:
        with shell.progress() as report:
            report(f"Writing {to_file}")
            count, size = exporting.write_rows(rows.batches, rows.schema, to_file, file_format)
        shell.output.exported(Exported(name, to_file, count, size))
    else:
        shell.output.rows(name, rows, SHOWN_ROWS if is_cut else None)


KeyArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="The value of each key column.", show_default=False),
]
NullOption = Annotated[
    list[str] | None, typer.Option("--null", metavar="COLUMN", help="A key column of text that is to be null.")
]


def lookup(
    context: typer.Context,
    name: TableName,
    key: KeyArgument = None,
    null: NullOption = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Find the compacted row of a primary key by its index, reading a few pages of it only."""
    shell = shell_of(context, root, json, debug)
    pairs = _key_of(key, null)
    from siltstone.cli import reading

    found = reading.look_up(shell.lake, name, pairs)
    shell.output.found(name, pairs, found.rows, found.uncompacted)


def explain_key(
    context: typer.Context,
    name: TableName,
    key: KeyArgument = None,
    null: NullOption = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every delta that touched a key, in order, what each one did, and why the row is what it is."""
    shell = shell_of(context, root, json, debug)
    pairs = _key_of(key, null)
    from siltstone.cli.explaining import explain_key

    with shell.progress() as report:
        report(f"Reading the deltas of {name}")
        stories = explain_key(shell.lake, name, pairs)
    shell.output.explained(name, pairs, stories)


def _key_of(key: list[str] | None, null: list[str] | None) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {**parse_pairs(key or [], "KEY=VALUE...")}
    for column in parse_names(null or []):
        if column in pairs:
            raise typer.BadParameter(f"{column!r} has a value too", param_hint="--null")
        pairs[column] = None
    if not pairs:
        raise typer.BadParameter("give the value of each key column, e.g. order_id=17", param_hint="KEY=VALUE...")
    return pairs
