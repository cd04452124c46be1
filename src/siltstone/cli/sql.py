"""`siltstone sql`: a SELECT over tables of the lake."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.options import Shell, argument, command, option
from siltstone.cli.rows import SHOWN_ROWS, emit_export, limited, parse_pairs, read_text
from siltstone.errors import InvalidInputError

if TYPE_CHECKING:
    from siltstone.table.snapshot import Moment

app = typer.Typer()


@command(
    app,
    "sql",
    'siltstone sql "select status, count(*), sum(amount) from shop.orders group by status"',
    'siltstone sql "select * from shop.orders o AT (VERSION => 12) join shop.customers using (customer_id)"',
    "siltstone sql - --as-of shop.orders=12 --json < report.sql",
)
def sql(
    shell: Shell,
    query: Annotated[str, argument("QUERY", "One SELECT, in DuckDB's SQL; - reads it from standard input.")],
    as_of: Annotated[
        list[str] | None,
        option(
            "--as-of [TABLE=]WHEN", "A time (UTC without a zone) or a tag for all tables; of one table also a position."
        ),
    ] = None,
    fresh: Annotated[bool, option("--fresh", "Also read the deltas that are not compacted yet.")] = False,
    limit: Annotated[
        int | None, option("--limit N", f"At most N rows; by default {SHOWN_ROWS} as text, else all.", min=1)
    ] = None,
    to_file: Annotated[
        str | None, option("--output FILE", "Write the rows to a .parquet, .csv or .jsonl file.")
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the --output file if it exists.")] = False,
) -> None:
    """Run a SELECT over tables of the lake, on DuckDB.

    Tables are named with their namespace, and each is read at one position, whatever is written meanwhile. Nothing can be
    changed. --json prints one object per line.
    """
    from siltstone.ingest.export import check_output, plain_rows, write_rows

    file_format = check_output(to_file, overwrite=overwrite) if to_file is not None else None
    opened = shell.lake.sql(sys.stdin.read() if query == "-" else query, as_of=_moments(as_of), fresh=fresh)
    shown = SHOWN_ROWS if limit is None and to_file is None and not shell.json else None
    batches = limited(opened.to_batches(), limit if shown is None else shown + 1)
    if to_file is not None and file_format is not None:
        shell.when_interrupted = f"{to_file} was not written."
        with shell.progress(f"Writing {to_file}"):
            count, size = write_rows(batches, opened.schema, to_file, file_format)
        emit_export(shell, "query", to_file, count, size)
        return
    newer = sum(table.newer for table in opened.tables)
    text = read_text("query", opened.schema, batches, shown, None, newer)
    # What DuckDB sums integers to has no type of its own in Arrow.
    whole = [field.name for field in opened.schema if getattr(field.type, "scale", None) == 0]
    rows = (row for batch in batches for row in plain_rows(batch))
    shell.emit_lines(({**row, **{name: row[name] and int(row[name]) for name in whole}} for row in rows), text)


def _moments(texts: list[str] | None) -> "Moment | Mapping[str, Moment] | None":
    """Read `WHEN`, or any number of `TABLE=WHEN`. Raises: InvalidInputError, typer.BadParameter."""
    from siltstone.table.snapshot import parse_moment

    try:
        if texts is not None and len(texts) == 1 and "=" not in texts[0]:
            return parse_moment(texts[0])
        pairs = parse_pairs(texts, "--as-of")
        return {table: parse_moment(when) for table, when in pairs.items()} or None
    except InvalidInputError as error:
        raise InvalidInputError(f"--as-of: {error}") from error
