"""`siltstone read`, `siltstone lookup` and `siltstone explain-key`."""

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.cli.options import Delimiter, DryRun, Format, Shell, TableName, command, parse_names, parse_pairs
from siltstone.cli.results import DeltaList, Explained, Exported, FoundRows, Rows
from siltstone.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa


SHOWN_ROWS = 20

KeyArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE...", help="The value of each key column.", show_default=False),
]
NullOption = Annotated[
    list[str] | None, typer.Option("--null", metavar="COLUMN", help="A text key column whose value is null.")
]

app = typer.Typer()


@command(
    app,
    "read",
    "siltstone read shop.orders --where \"amount >= 9.5 and status = 'paid'\" --columns order_id,amount",
    "siltstone read shop.orders --as-of 2024-05-01T08:00:00Z --output orders.parquet",
    "siltstone read shop.orders --include-uncompacted --json | head",
)
def read(
    shell: Shell,
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
            "--where",
            metavar="CONDITION",
            help="E.g. amount > 9 and city in ('Oslo', 'Lima'); also or, not, between, like, is null.",
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the --output file if it exists.")] = False,
) -> None:
    """Read the rows of a table, as compacted or as of any position or time; --json shows one object per line."""
    from siltstone.ingest.export import check_output, write_rows
    from siltstone.table.snapshot import parse_moment

    file_format = check_output(to_file, overwrite=overwrite) if to_file is not None else None
    table = shell.lake.table(name)
    try:
        moment = None if as_of is None else parse_moment(as_of)
    except InvalidInputError as error:
        raise InvalidInputError(f"--as-of: {error}") from error
    scan = table.scan(parse_names(columns) or None, where, fresh=include_uncompacted, as_of=moment)
    is_as_compacted = moment is None and not include_uncompacted
    shown = SHOWN_ROWS if limit is None and to_file is None and not shell.json else None
    rows = Rows(
        table=name,
        schema=scan.schema,
        batches=limited(scan.to_batches(), limit if shown is None else shown + 1),
        total=scan.snapshot.row_count if is_as_compacted and where is None else None,
        uncompacted=scan.snapshot.newer if is_as_compacted else 0,
        shown=shown,
    )
    if to_file is None or file_format is None:
        shell.emit(rows)
        return
    with shell.progress() as progress:
        progress(f"Writing {to_file}")
        count, size = write_rows(rows.batches, rows.schema, to_file, file_format)
    shell.emit(Exported(name, to_file, count, size))


def limited(batches: "Iterable[pa.RecordBatch]", limit: int | None) -> "Iterator[pa.RecordBatch]":
    """Yield at most this many rows; batches after them are not read."""
    left = limit
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


@command(app, "lookup", "siltstone lookup shop.orders order_id=17")
def lookup(shell: Shell, name: TableName, key: KeyArgument = None, null: NullOption = None) -> None:
    """Find the compacted row of a primary key by its index, reading a few pages of it only."""
    pairs = _key_of(key, null)
    from siltstone.table.explain import parse_key
    from siltstone.table.scan import read_key

    snapshot = shell.lake.table(name).snapshot()
    rows = read_key(snapshot, parse_key(snapshot.version, pairs))
    shell.emit(FoundRows(name, pairs, rows, snapshot.newer))


@command(
    app,
    "explain-key",
    "siltstone explain-key shop.orders order_id=17",
    "siltstone explain-key shop.prices sku=A-7 --null region",
)
def explain_key(shell: Shell, name: TableName, key: KeyArgument = None, null: NullOption = None) -> None:
    """Show every delta that touched a key, in order, what each one did, and why the row is what it is."""
    pairs = _key_of(key, null)
    from siltstone.table.explain import parse_key

    table = shell.lake.table(name)
    values = parse_key(table.version, pairs)
    with shell.progress() as progress:
        progress(f"Reading the deltas of {name}")
        explanations = table.explain_key(values)
    shell.emit(Explained(name, pairs, explanations))


def _key_of(key: list[str] | None, null: list[str] | None) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {**parse_pairs(key, "KEY=VALUE...")}
    for column in parse_names(null):
        if column in pairs:
            raise typer.BadParameter(f"{column!r} has a value too", param_hint="--null")
        pairs[column] = None
    if not pairs:
        raise typer.BadParameter("name the value of each key column, e.g. order_id=17", param_hint="KEY=VALUE...")
    return pairs


DeltaType = Literal["upsert", "append", "delete", "add", "chrono"]


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
