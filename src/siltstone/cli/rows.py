"""`siltstone read`, `lookup`, `explain-key`, `write` and `deltas`."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer

from siltstone.cli.changes import (
    Create,
    DecimalsOption,
    Header,
    Into,
    Rejects,
    Times,
    is_change_format,
    parse_times,
    write_changes,
)
from siltstone.cli.completion import complete_tag
from siltstone.cli.options import DryRun, Shell, TableName, argument, command, option
from siltstone.cli.parts import Note, Shown, grid_of, indented, new_console, new_facts, new_grid, styled, to_text
from siltstone.errors import InvalidInputError
from siltstone.text import format_bytes, format_count, format_number, format_pairs, format_partition, format_time

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table
    from rich.text import Text

    from siltstone.ingest.dry_run import Written
    from siltstone.table.explain import Explanation
    from siltstone.table.report import DeltaReport

SHOWN_ROWS = 20
_CHUNK_ROWS = 1000
_NARROW = 16
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}

DeltaType = Literal["upsert", "append", "delete", "add", "chrono"]
FormatName = Literal["parquet", "csv", "jsonl", "debezium", "dms", "maxwell", "canal", "goldengate"]

KeyArgument = Annotated[list[str] | None, argument("KEY=VALUE...", "The value of each key column.")]
NullOption = Annotated[list[str] | None, option("--null COLUMN", "A text key column whose value is null.")]
Format = Annotated[
    FormatName | None, option("--format", "The format, if the file names do not show it, or that of change events.")
]


def _one_character(text: str | None) -> str | None:
    if text is not None and (len(text) != 1 or not text.isascii() or text in '"\r\n'):
        raise typer.BadParameter(f"{text!r} is not one ASCII character other than a quote or a line's end")
    return text


Delimiter = Annotated[
    str | None, option("--delimiter CHAR", "What separates CSV fields, where not a comma.", callback=_one_character)
]

app = typer.Typer()


@command(
    app,
    "read",
    "siltstone read shop.orders --where \"amount >= 9.5 and status = 'paid'\" --columns order_id,amount",
    "siltstone read shop.orders --as-of 2024-05-01T08:00:00Z --output orders.parquet",
    "siltstone read shop.orders --fresh --json | head",
    "siltstone read shop.prices --valid-at 2024-05-01",
)
def read(
    shell: Shell,
    name: TableName,
    as_of: Annotated[
        str | None,
        option(
            "--as-of WHEN",
            "A stream position, an ISO 8601 time (UTC without a zone), or a tag.",
            autocompletion=complete_tag,
        ),
    ] = None,
    fresh: Annotated[
        bool, option("--fresh", "Also read the deltas that are not compacted yet.", "--include-uncompacted")
    ] = False,
    current: Annotated[
        bool, option("--current", "Of a table that keeps history, only the versions that are valid now.")
    ] = False,
    valid_at: Annotated[
        str | None, option("--valid-at TIME", "Only the versions that were valid at this value of the sort key.")
    ] = None,
    columns: Annotated[list[str] | None, option("--columns A,B", "Only these columns, in this order.")] = None,
    where: Annotated[
        str | None,
        option(
            "--where CONDITION", "E.g. amount > 9 and city in ('Oslo', 'Lima'); also or, not, between, like, is null."
        ),
    ] = None,
    limit: Annotated[
        int | None, option("--limit N", f"At most N rows; by default {SHOWN_ROWS} as text, else all.", min=1)
    ] = None,
    to_file: Annotated[
        str | None, option("--output FILE", "Write the rows to a .parquet, .csv or .jsonl file.")
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the --output file if it exists.")] = False,
) -> None:
    """Read the rows of a table, now or as of any position or time.

    --json prints one object per line. Deltas that are not compacted yet are left out, unless --fresh is given.
    """
    from siltstone.ingest.export import check_output, plain_rows, write_rows
    from siltstone.table.snapshot import parse_moment

    file_format = check_output(to_file, overwrite=overwrite) if to_file is not None else None
    table = shell.lake.table(name)
    try:
        moment = None if as_of is None else parse_moment(as_of)
    except InvalidInputError as error:
        raise InvalidInputError(f"--as-of: {error}") from error
    scan = table.scan(
        parse_names(columns) or None, where, fresh=fresh, as_of=moment, current_only=current, valid_at=valid_at
    )
    is_as_compacted = moment is None and not fresh
    uncompacted = scan.snapshot.newer if is_as_compacted else 0
    if uncompacted and not scan.snapshot.row_count:
        # Before all else: otherwise, no rows would seem to be there at all.
        waiting = "1 delta is" if uncompacted == 1 else f"{uncompacted:,} deltas are"
        shell.note(
            f"{name}: nothing is compacted yet, but {waiting} waiting: --fresh reads what waits, and `siltstone compact {name}` "
            "compacts it."
        )
        if to_file is None:
            return
    shown = SHOWN_ROWS if limit is None and to_file is None and not shell.json else None
    batches = limited(scan.to_batches(), limit if shown is None else shown + 1)
    if to_file is not None and file_format is not None:
        shell.when_interrupted = f"{to_file} was not written."
        with shell.progress(f"Writing {to_file}"):
            count, size = write_rows(batches, scan.schema, to_file, file_format)
        emit_export(shell, name, to_file, count, size)
        return
    total = scan.snapshot.row_count if is_as_compacted and scan.where is None else None
    text = read_text(name, scan.schema, batches, shown, total, uncompacted)
    shell.emit_lines((row for batch in batches for row in plain_rows(batch)), text)


def limited(batches: "Iterable[pa.RecordBatch]", limit: int | None) -> "Iterator[pa.RecordBatch]":
    """Yield at most this many rows; batches after them are not read."""
    for batch in batches:
        yield batch if limit is None else batch.slice(0, limit)
        if limit is not None:
            limit -= batch.num_rows
            if limit <= 0:
                return


def emit_export(shell: Shell, table: str, file: str, rows: int, size: int, noun: str = "row") -> None:
    """Show that rows or documents of a table were written to a file."""
    sentence = f"{table}: wrote {format_count(rows, noun)} to {file} ({format_bytes(size)})."
    shell.emit({"table": table, "file": file, "rows": rows, "bytes": size}, [sentence])


def read_text(
    table: str,
    schema: "pa.Schema",
    batches: "Iterator[pa.RecordBatch]",
    shown: int | None,
    total: int | None,
    uncompacted: int,
) -> Iterator[Shown]:
    """Yield rows, at most as many as are `shown`; and how many there are, where `total` is known without reading."""
    is_cut, is_empty = False, True
    if shown is not None:
        # These are one more at most, which shows that there are more.
        read = list(batches)
        is_cut = sum(batch.num_rows for batch in read) > shown
        batches = limited(read, shown)
    for part in rows_text(batches, schema, new_console(sys.stdout).width):
        is_empty = False
        yield part
    if is_cut:
        of_all = f" of {total:,}" if total is not None else ""
        yield Note(f"{shown:,}{of_all} rows; --limit N shows more, --output FILE writes all.")
    elif is_empty:
        yield Note(f"{table}: no rows.")
    if uncompacted:
        yield Note(f"{format_count(uncompacted, 'delta')} not compacted yet; --fresh shows them too.")


def rows_text(batches: "Iterable[pa.RecordBatch]", schema: "pa.Schema", width: int) -> Iterator[Shown]:
    """Yield rows a chunk at a time, each as wide as the first one or wider."""
    import pyarrow as pa

    names = schema.names
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    numbers = [any(is_kind(field.type) for is_kind in is_number) for field in schema]
    widths = [0] * len(names)
    is_first = True
    for rows in _chunks(batches):
        cells = [[to_cell(row[name]) for name in names] for row in rows]
        if is_first:
            widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
        if sum(min(width, _NARROW) + 2 for width in widths) > width:
            for row in rows:
                yield from (() if is_first else ("",))
                yield record_text(row)
                is_first = False
            continue
        grid = new_grid(*(f">{name}" if number else f"{name}" for name, number in zip(names, numbers, strict=True)))
        grid.show_header = is_first
        for column, name, least in zip(grid.columns, names, widths, strict=True):
            column.header, column.no_wrap, column.min_width = to_text(name), False, min(least, _NARROW)
        for row_cells in cells:
            grid.add_row(*row_cells)
        yield grid
        is_first = False


def _chunks(batches: "Iterable[pa.RecordBatch]") -> Iterator[list[dict[str, Any]]]:
    waiting: list[dict[str, Any]] = []
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            waiting += batch.slice(start, _CHUNK_ROWS).to_pylist()
            if len(waiting) >= _CHUNK_ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def record_text(row: Mapping[str, Any]) -> "Table":
    """Return one row, a column on each line."""
    return new_facts((name, to_cell(value)) for name, value in row.items())


def to_cell(value: Any) -> "Text":
    """Return a value on one line."""
    if value is None:
        return styled(("null", "dim"))
    from siltstone.ingest.export import plain

    shown = plain(value)
    text = orjson.dumps(shown).decode() if isinstance(shown, bool | dict | list) else str(shown)
    return to_text(text.translate(_CONTROLS))


@command(app, "lookup", "siltstone lookup shop.orders order_id=17")
def lookup(shell: Shell, name: TableName, key: KeyArgument = None, null: NullOption = None) -> None:
    """Find the compacted row of a primary key.

    The key is looked up in the index, so that only a few pages are read, however large the table is.
    """
    pairs = key_of(key, null)
    from siltstone.table.explain import parse_key
    from siltstone.table.scan import read_key

    snapshot = shell.lake.table(name).snapshot()
    rows = read_key(snapshot, parse_key(snapshot.version, pairs))
    shell.emit(rows, _lookup_text(name, pairs, rows, snapshot.newer))


def _lookup_text(
    table: str, key: Mapping[str, str | None], rows: Sequence[Mapping[str, object]], uncompacted: int
) -> Iterator[Shown]:
    for number, row in enumerate(rows):
        yield from ([""] if number else [])
        yield record_text(row)
    if not rows:
        waiting = f"; {format_count(uncompacted, 'delta')} not compacted yet" if uncompacted else ""
        yield f"{table}: no compacted row has {format_pairs(key)}{waiting}."


@command(
    app,
    "explain-key",
    "siltstone explain-key shop.orders order_id=17",
    "siltstone explain-key shop.prices sku=A-7 --null region",
)
def explain_key(shell: Shell, name: TableName, key: KeyArgument = None, null: NullOption = None) -> None:
    """Explain why the row of a key is what it is.

    Shows every delta that touched the key, in order, and what each one did.
    """
    pairs = key_of(key, null)
    from siltstone.table.explain import parse_key

    table = shell.lake.table(name)
    values = parse_key(table.version, pairs)
    with shell.progress(f"Reading the deltas of {name}"):
        explanations = table.explain_key(values)
    shell.emit(explanations, _explanations_text(explanations, f"{name}: no delta has {format_pairs(pairs)}."))


def key_of(key: list[str] | None, null: list[str] | None) -> dict[str, str | None]:
    """Read the value of each key column, None where it is null. Raises: typer.BadParameter."""
    pairs: dict[str, str | None] = {**parse_pairs(key, "KEY=VALUE...")}
    for column in parse_names(null):
        if column in pairs:
            raise typer.BadParameter(f"{column!r} has a value too", param_hint="--null")
        pairs[column] = None
    if not pairs:
        raise typer.BadParameter("name the value of each key column, e.g. order_id=17", param_hint="KEY=VALUE...")
    return pairs


def _explanations_text(explanations: "Sequence[Explanation]", none: str) -> Iterator[Shown]:
    for number, explanation in enumerate(explanations):
        yield from ([""] if number else [])
        yield from _explanation_text(explanation)
    if not explanations:
        yield none


def _explanation_text(explanation: "Explanation") -> Iterator[Shown]:
    key = ", ".join(f"{name} = {to_cell(value)}" for name, value in explanation.key.items())
    partition = f", partition {format_partition(explanation.partition)}" if explanation.partition else ""
    yield styled((f"{explanation.table}{partition}: {key}", "bold"))
    if explanation.events:
        yield ""
        yield indented(_events_grid(explanation))
        yield ""
    if explanation.why:
        yield explanation.why
    yield from explanation.notes
    row = explanation.row if explanation.events else explanation.compacted_row
    if row is not None:
        yield ""
        yield indented(record_text(row))


def _events_grid(explanation: "Explanation") -> "Table":
    grid = grid_of(
        explanation.events,
        {
            "": lambda event: "→" if event.is_winner else "",
            ">position": lambda event: event.stream_position,
            "time (UTC)": lambda event: format_time(event.committed_at),
            "type": lambda event: event.kind,
            "what it did": lambda event: event.effect,
            "values": lambda event: ", ".join(
                f"{name} {to_cell(value)}" for name, value in event.values.items() if name not in explanation.key
            ),
        },
    )
    for row, event in zip(grid.rows, explanation.events, strict=True):
        row.style = "bold" if event.is_winner else ""
    return grid


@command(
    app,
    "write",
    "siltstone write shop.orders january.csv february.csv",
    "siltstone write shop.orders changes.jsonl.gz --op-column op --idempotency orders-job:17",
    "siltstone write shop.orders gone.csv --type delete --delete-columns customer_id",
    "siltstone write shop.orders november.csv --overwrite --partition month=2026-11",
    "tail -n 1000 events.jsonl | siltstone write shop.orders -",
    "siltstone write shop.orders events.jsonl --format debezium --rejects bad-events",
    "siltstone write events.jsonl --format debezium --into 'shop.{table}' --create",
)
def write(
    shell: Shell,
    name: TableName,
    files: Annotated[
        list[str] | None, argument("FILE...", "Parquet, CSV or JSON lines; - for JSON lines from standard input.")
    ] = None,
    type: Annotated[DeltaType, option("--type", "What the rows mean.")] = "upsert",
    delete_columns: Annotated[
        list[str] | None, option("--delete-columns A,B", "Delete rows equal in these columns, not in the key.")
    ] = None,
    op_column: Annotated[str | None, option("--op-column COLUMN", "The column with each row's operation.")] = None,
    idempotency: Annotated[
        str | None, option("--idempotency APP:BATCH", "Your id of this write; a repeated one commits once.")
    ] = None,
    stream_position: Annotated[int | None, option("--stream-position N", "Commit at this position.", min=1)] = None,
    strict: Annotated[bool, option("--strict", "Refuse columns and types that the table does not have.")] = False,
    overwrite: Annotated[bool, option("--overwrite", "Replace all rows of the table with these.")] = False,
    partition: Annotated[
        list[str] | None,
        option("--partition KEY=VALUE", "Replace only this partition; `present`: those that the rows belong to."),
    ] = None,
    format: Format = None,
    delimiter: Delimiter = None,
    rejects: Rejects = None,
    decimals: DecimalsOption = None,
    times: Times = None,
    header: Header = None,
    into: Into = None,
    create: Create = False,
    dry_run: DryRun = False,
) -> None:
    """Write data files to a table as one delta, in one commit.

    CSV and JSON lines are read with the types of the table's columns. An empty CSV field is null, a quoted empty one is
    empty text. Change events of databases are decoded by --format debezium, dms, maxwell, canal or goldengate.
    """
    files = files or []
    if not files and into is None:
        raise typer.BadParameter("name at least one file", param_hint="FILE...")
    batch = None if idempotency is None else parse_idempotency(idempotency)
    if partition and not overwrite:
        raise typer.BadParameter("goes with --overwrite; rows know their partition otherwise", param_hint="--partition")
    if is_change_format(format):
        if overwrite:
            raise typer.BadParameter("change events cannot replace a table; leave it out", param_hint="--overwrite")
        for hint, value in (("--op-column", op_column), ("--delete-columns", delete_columns)):
            if value is not None:
                raise typer.BadParameter("change events name the operation themselves", param_hint=hint)
        if type != "upsert" or stream_position is not None:
            raise typer.BadParameter(f"does not go with {format} events", param_hint="--type / --stream-position")
        given = {
            "decimals": decimals,
            "times": parse_times(times),
            "header": parse_names(header) or None,
            "rejects": rejects,
            "evolve": not strict,
            "dry_run": dry_run,
        }
        write_changes(shell, files, format, name, into, create, batch, given)
        return
    for hint, given_value in (
        ("--rejects", rejects),
        ("--decimals", decimals),
        ("--times", times),
        ("--header", header),
        ("--into", into),
        ("--create", create or None),
    ):
        if given_value is not None:
            raise typer.BadParameter("goes with change events; name their --format", param_hint=hint)
    shell.when_interrupted = f"Nothing was written to {name}."
    if "-" in files and sys.stdin.isatty():
        typer.echo("Reading JSON lines from the terminal; end with Ctrl-D.", err=True)

    def begin_commit() -> None:
        progress("Committing")
        shell.when_interrupted = f"The commit had begun; `siltstone deltas {name}` shows whether it was made."

    with shell.progress(f"Opening {files[0]}") as progress:
        written = shell.lake.table(name).write_files(
            files,
            format=plain_format(format),
            delimiter=delimiter,
            type=type,
            delete_columns=parse_names(delete_columns) or None,
            op_column=op_column,
            idempotency=batch,
            stream_position=stream_position,
            evolve=not strict,
            mode="overwrite" if overwrite else "append",
            partitions=parse_partitions(partition),
            dry_run=dry_run,
            progress=progress,
            before_commit=begin_commit,
        )
    shell.emit(written, written_text(written))


def parse_partitions(texts: list[str] | None) -> list[dict[str, str]] | Literal["present"] | None:
    """Read partitions, each `key=value` or `key=value,key=value`, or `present` alone. Raises: typer.BadParameter."""
    if not texts:
        return None
    if texts == ["present"]:
        return "present"
    return [parse_pairs(text.split(","), "--partition") for text in texts]


def plain_format(format: FormatName | None) -> Literal["parquet", "csv", "jsonl"] | None:
    """Return a format of rows; those of change events are gone by then."""
    return None if format is None or is_change_format(format) else format  # type: ignore[return-value]


def parse_idempotency(text: str) -> tuple[str, int]:
    """Read `app:batch`, e.g. `orders-job:17`. Raises: typer.BadParameter."""
    app_id, colon, batch_id = text.rpartition(":")
    if not colon or not app_id or not re.fullmatch(r"[0-9]+", batch_id, re.ASCII):
        raise typer.BadParameter(
            f"{text!r} is not of the form app:batch with a whole number, e.g. orders-job:17", param_hint="--idempotency"
        )
    return app_id, int(batch_id)


def written_text(written: "Written") -> Iterator[Shown]:
    """Yield what was written as one sentence, and what is new about the schema."""
    what = (
        f"{format_count(written.rows, 'row')} as {written.type} ({format_count(written.files, 'file')}, "
        f"{format_bytes(written.bytes)}, {format_count(written.partitions, 'partition')})"
    )
    if written.repeated:
        yield f"{written.table}: was written before, at position {written.stream_position}; nothing to do."
    elif written.dry_run:
        yield f"{written.table}: would write {what}."
    else:
        yield f"{written.table}: wrote {what} at position {written.stream_position}."
    if written.replaced_partitions and not written.repeated:
        replaced = format_count(written.replaced_partitions, "partition")
        yield f"{'Would replace' if written.dry_run else 'Replaced'} all that was in {replaced} before."
    if written.null_lines:
        yield f"Skipped {format_count(written.null_lines, 'null line')} (tombstones of a change stream)."
    if written.new_columns:
        yield f"New columns: {', '.join(written.new_columns)}."


@command(app, "deltas", "siltstone deltas shop.orders --from 10 --limit 20")
def deltas(
    shell: Shell,
    name: TableName,
    first: Annotated[int | None, option("--from N", "The first stream position to show.", min=0)] = None,
    last: Annotated[int | None, option("--to N", "The last position to show.", min=0)] = None,
    limit: Annotated[int | None, option("--limit N", "Only the newest N of them.", min=1)] = None,
) -> None:
    """List the deltas of a table, oldest first."""
    deltas = shell.lake.table(name).delta_reports(first, last)[-limit if limit else 0 :]
    shell.emit(deltas, _deltas_text(name, deltas))


def _deltas_text(table: str, deltas: "Sequence[DeltaReport]") -> Iterator[Shown]:
    if not deltas:
        yield f"No such deltas of {table}."
        return
    yield grid_of(
        deltas,
        {
            ">position": lambda delta: delta.stream_position,
            "time (UTC)": lambda delta: format_time(delta.committed_at),
            "type": _kind,
            "partition?": lambda delta: format_partition(delta.partition),
            ">rows": lambda delta: format_number(delta.rows),
            ">size": lambda delta: format_bytes(delta.bytes),
            ">files": lambda delta: delta.files,
            "idempotency?": lambda delta: delta.idempotency,
            "columns": lambda delta: ", ".join(delta.columns),
        },
    )


def _kind(delta: "DeltaReport") -> str:
    if delta.op_column:
        return f"{delta.type} by {delta.op_column}"
    if delta.delete_columns:
        return f"{delta.type} on {', '.join(delta.delete_columns)}"
    return f"{delta.type}, overwrites" if delta.replaces else delta.type


def parse_pairs(texts: Iterable[str] | None, param_hint: str) -> dict[str, str]:
    """Read `name=value` texts. Raises: typer.BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint=param_hint)
        if name.strip() in pairs:
            raise typer.BadParameter(f"{name.strip()!r} is given twice", param_hint=param_hint)
        pairs[name.strip()] = value.strip()
    return pairs


def parse_names(texts: Iterable[str] | None) -> list[str]:
    """Read column names, given one by one or separated by commas."""
    return [name.strip() for text in texts or () for name in text.split(",") if name.strip()]
