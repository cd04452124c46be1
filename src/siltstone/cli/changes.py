"""What `siltstone write` and `siltstone table create` do with change events: options, calls, and what is shown."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, get_args

import typer

from siltstone.cli.options import Shell, option
from siltstone.cli.parts import Shown
from siltstone.text import format_bytes, format_count

if TYPE_CHECKING:
    from siltstone.cdc.source_tables import Layout
    from siltstone.change_writes import ChangesWritten
    from siltstone.ingest.file_rows import Report

ChangeFormat = Literal["debezium", "dms", "maxwell", "canal", "goldengate"]
TimeUnit = Literal["ms", "us", "ns"]
DecimalsName = Literal["base64", "text"]

Rejects = Annotated[
    str | None,
    option("--rejects DIR", "Write change events that do not fit to this folder, with the reason, and go on."),
]
DecimalsOption = Annotated[
    DecimalsName | None, option("--decimals", "How decimals are encoded in change events without schemas.")
]
Times = Annotated[
    list[str] | None,
    option("--times UNIT", "The unit (ms, us, ns) of times in change events without schemas; or COLUMN=UNIT."),
]
Header = Annotated[list[str] | None, option("--header A,B", "The columns before the table's own in CSV files of DMS.")]
Into = Annotated[
    str | None,
    option("--into TEMPLATE", "Write change events of several tables, e.g. to shop.{table}; replaces TABLE."),
]
Create = Annotated[bool, option("--create", "With --into, create the tables that are missing.")]
Cdc = Annotated[ChangeFormat | None, option("--cdc", "For change events of this format, in the order of their source.")]


def is_change_format(format: str | None) -> TypeGuard[ChangeFormat]:
    """Return whether a format is one of change events."""
    return format in get_args(ChangeFormat)


def parse_times(given: Sequence[str] | None) -> dict[str, TimeUnit]:
    """Read `us`, or `created=ms`. Raises: typer.BadParameter."""
    from siltstone.cdc.changes import read_times
    from siltstone.errors import InvalidInputError

    try:
        return read_times(",".join(given or []))
    except InvalidInputError as error:
        raise typer.BadParameter(str(error), param_hint="--times") from error


def write_changes(
    shell: Shell,
    files: Sequence[str],
    format: ChangeFormat,
    name: str,
    into: str | None,
    create: bool,
    idempotency: tuple[str, int] | None,
    given: dict[str, Any],
) -> None:
    """Write change events to one table, or to those that `into` names, and show what was written."""
    from siltstone.change_writes import ChangeOptions

    options = ChangeOptions(**given)
    shell.when_interrupted = "A write is one commit in each table, so that all its rows are there, or none."
    with shell.progress("Reading change events") as progress:
        if into is None:
            table = shell.lake.table(name)
            written = [table.write_change_files(files, format, options, idempotency=idempotency, progress=progress)]
        else:
            written = shell.lake.write_change_files(
                [name, *files],
                format,
                into=into,
                create=create,
                options=options,
                idempotency=idempotency,
                progress=progress,
            )
    shown = (line for each in written for line in changes_text(each))
    shell.emit(written[0] if into is None else written, shown)


def changes_text(written: "ChangesWritten") -> Iterator[Shown]:
    """Yield what was written in a sentence, and what was left out."""
    what = (
        f"{format_count(written.rows, 'row')} of {format_count(written.events, 'event')}, "
        f"{format_count(written.deletes, 'delete')} among them"
    )
    if written.repeated:
        yield f"{written.table}: was written before, at position {written.stream_position}; nothing to do."
        return
    if written.dry_run:
        yield f"{written.table}: would write {what}."
    elif written.stream_position is None:
        yield f"{written.table}: nothing to write in {format_count(written.events, 'event')}."
    else:
        size = f"{format_count(written.files, 'file')}, {format_bytes(written.bytes)}"
        yield f"{written.table}: wrote {what} ({size}) at position {written.stream_position}."
    if written.truncates:
        yield "The table was truncated at the source."
    if written.skipped:
        yield f"Skipped: {', '.join(format_count(count, what) for what, count in written.skipped.items())}."
    if written.new_columns:
        yield f"New columns: {', '.join(written.new_columns)}."
    if written.rejected:
        yield f"{format_count(written.rejected, 'event')} did not fit; see {written.rejects_file}."


def change_layout(
    format: ChangeFormat, from_file: str | None, schema_file: str | None, keys: Sequence[str], progress: "Report"
) -> "Layout":
    """Return what a table of change events has: the columns of a schema file, or what events tell.

    Raises: InvalidInputError.
    """
    from siltstone.cdc.source_tables import Layout, layout_of, leaves_out
    from siltstone.change_writes import read_change_files
    from siltstone.ingest.file_rows import read_schema

    if from_file is None:
        return Layout(read_schema(schema_file or ""), keys, leaves_out(format))
    return layout_of(read_change_files([from_file], format, progress=progress).events, format, keys)
