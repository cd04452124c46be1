"""Tables and deltas as text."""

import json
from collections.abc import Iterator

from rich.text import Text

from siltstone.cli.render.parts import Shown, grid_of, indented, new_facts, new_grid, render, to_text
from siltstone.cli.results import DeltaList, TableChanged, TableList
from siltstone.ingest.dry_run import Written
from siltstone.table.description import DeltaReport, TableDescription
from siltstone.text import format_bytes, format_count, format_number, format_partition, format_time


@render.register
def _(tables: TableList) -> Iterator[Shown]:
    """One line per table."""
    if not tables.items:
        yield f"No tables in {tables.root}."
        return
    grid = new_grid("table", "primary key", ">columns", "engine", ">position", "description")
    for table in tables.items:
        if table.problem is not None:
            grid.add_row(to_text(table.name), *[""] * 4, Text(table.problem, style="red"))
            continue
        keys = ", ".join(table.primary_keys)
        facts = (table.name, keys, table.columns, table.merge_engine, table.stream_position, table.description)
        grid.add_row(*map(to_text, facts))
    yield grid


@render.register
def _(table: TableDescription) -> Iterator[Shown]:
    """Values, then columns."""
    yield Text(table.name, style="bold")
    if table.description:
        yield f"  {table.description}"
    yield indented(new_facts(_facts(table)))
    yield ""
    grid = new_grid("column", "type", "")
    for column in table.columns:
        kind = column.type if isinstance(column.type, str) else json.dumps(column.type)
        grid.add_row(to_text(column.name), to_text(kind), to_text(_roles(column.name, column.nullable, table)))
    yield indented(grid)


def _facts(table: TableDescription) -> Iterator[tuple[str, object]]:
    within = "; keys are unique within a partition" if table.unique_within_partition else ""
    yield "primary key", ", ".join(table.primary_keys) or "none"
    yield "sort key", ", ".join(table.sort_keys)
    yield "partitioned by", ", ".join(table.partition_keys) + within
    yield "merge engine", table.merge_engine if table.drop_duplicates else f"{table.merge_engine}, keeps duplicates"
    yield "version", f"{table.version}, schema {table.schema_id}"
    if table.folder is not None:
        yield "created", f"{format_time(table.created_at)} UTC"
        yield "position", table.stream_position
        yield "deltas", f"{table.deltas:,} with {format_count(table.rows, 'row')}, {format_bytes(table.bytes)}"
        yield "partitions", table.partitions if table.partition_keys else ""
        yield "folder", table.folder
    for name, value in table.properties.items():
        yield f"property {name}", value or '""'


def _roles(column: str, nullable: bool, table: TableDescription) -> str:
    keys = {"primary key": table.primary_keys, "sort key": table.sort_keys, "partition key": table.partition_keys}
    roles = [role for role, columns in keys.items() if column in columns]
    return ", ".join([*roles, *([] if nullable else ["not null"])])


@render.register
def _(change: TableChanged) -> Iterator[Shown]:
    """Each change on a line of its own, then the table where that helps."""
    if not change.changes:
        yield f"{change.name} is like that already; nothing to change."
    elif change.dry_run:
        yield "Dry run; nothing has changed. Without it:"
    yield from (f"  {line}" if change.dry_run else line for line in change.changes)
    if change.written is not None:
        yield from render(change.written)
    if change.table is not None:
        yield ""
        yield from render(change.table)


@render.register
def _(written: Written) -> Iterator[Shown]:
    """One sentence, and what is new about the schema."""
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
    if written.null_lines:
        yield f"Skipped {format_count(written.null_lines, 'null line')} (tombstones of a change stream)."
    if written.new_columns:
        yield f"New columns: {', '.join(written.new_columns)}."


@render.register
def _(deltas: DeltaList) -> Iterator[Shown]:
    """One line per delta."""
    if not deltas.items:
        yield f"No such deltas of {deltas.table}."
        return
    yield grid_of(
        deltas.items,
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


def _kind(delta: DeltaReport) -> str:
    if delta.op_column:
        return f"{delta.type} by {delta.op_column}"
    if delta.delete_columns:
        return f"{delta.type} on {', '.join(delta.delete_columns)}"
    return delta.type
