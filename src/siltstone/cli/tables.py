"""`siltstone table …`: create, list, show, drop, rename and alter tables."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from siltstone.cli.changes import Cdc, change_layout, changes_text, is_change_format
from siltstone.cli.completion import complete_namespace
from siltstone.cli.options import DryRun, Shell, TableName, argument, command, new_group, option
from siltstone.cli.output import to_plain
from siltstone.cli.parts import Shown, indented, new_facts, new_grid, styled, to_text
from siltstone.cli.rows import Delimiter, Format, parse_names, parse_pairs, plain_format, written_text
from siltstone.errors import InvalidInputError, NotFoundError, SiltstoneError
from siltstone.text import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from siltstone.catalog.adopt import Adopted
    from siltstone.change_writes import ChangesWritten
    from siltstone.ingest.dry_run import Written
    from siltstone.publish.outcomes import Publication
    from siltstone.table.report import TableDescription, TableSummary

MergeEngine = Literal["deduplicate", "partial_update", "first_row", "history"]
ForeignFormat = Literal["delta", "iceberg", "parquet"]

app = new_group("Create, show and change tables.", "siltstone table list", "siltstone table show shop.orders")


@command(
    app,
    "create",
    "siltstone table create shop.orders --key order_id --from orders.csv --write",
    "siltstone table create shop.orders --key order_id --sort-key updated_at --schema orders.json --dry-run",
    "siltstone table create shop.orders --from events.jsonl --format debezium --write",
    "siltstone table create shop.orders --cdc debezium --schema orders.json --key order_id",
)
def create(
    shell: Shell,
    name: TableName,
    keys: Annotated[list[str] | None, option("--key COLUMN", "A primary key column.")] = None,
    sort_keys: Annotated[
        list[str] | None, option("--sort-key COLUMN", "Of two rows of one key, the greater here wins.")
    ] = None,
    partition_keys: Annotated[list[str] | None, option("--partition-by COLUMN", "A partition key column.")] = None,
    from_file: Annotated[
        str | None, option("--from FILE", "Take the columns of a Parquet, CSV or JSON lines file.")
    ] = None,
    schema_file: Annotated[
        str | None, option("--schema FILE", 'Take the columns of a JSON file, e.g. {"order_id": "int64"}.')
    ] = None,
    write: Annotated[bool, option("--write", "Also write the rows of the --from file.")] = False,
    format: Format = None,
    delimiter: Delimiter = None,
    cdc: Cdc = None,
    merge_engine: Annotated[
        MergeEngine | None, option("--merge-engine", "How rows of one key become one; by default, deduplicate.")
    ] = None,
    keep_duplicates: Annotated[
        bool, option("--keep-duplicates", "Keep all rows of a key, not only the newest.")
    ] = False,
    unique_within_partition: Annotated[
        bool, option("--unique-within-partition", "A key may have one row in each partition, not in the whole table.")
    ] = False,
    properties: Annotated[list[str] | None, option("--property NAME=VALUE", "A table property.")] = None,
    description: Annotated[str, option("--description", "What the table holds.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Create a table with the columns of a data or schema file."""
    if (from_file is None) == (schema_file is None):
        raise typer.BadParameter("use either --from FILE or --schema FILE", param_hint="--from / --schema")
    if write and from_file in (None, "-"):
        raise typer.BadParameter("needs the rows of a --from file", param_hint="--write")
    from siltstone.ingest.file_rows import infer_schema, read_schema
    from siltstone.model import TableRules

    lake = shell.lake
    written: Written | ChangesWritten | None = None
    changes = cdc or (format if is_change_format(format) else None)
    if changes is not None and sort_keys:
        raise typer.BadParameter("tables of change events go by the order of the source", param_hint="--sort-key")
    with shell.progress(f"Reading {from_file or schema_file}") as progress:
        primary_keys, order, engine = parse_names(keys), parse_names(sort_keys), merge_engine or "deduplicate"
        if changes is not None:
            layout = change_layout(changes, from_file, schema_file, primary_keys, progress)
            schema, primary_keys, order = layout.columns, list(layout.primary_keys), ["_source_position"]
            engine = merge_engine or ("partial_update" if layout.leaves_out else "deduplicate")
        elif from_file is None:
            schema = read_schema(schema_file or "")
        else:
            schema = infer_schema(from_file, plain_format(format), delimiter, progress=progress)
        rules = TableRules(
            primary_keys=primary_keys,
            sort_keys=order,
            partition_keys=parse_names(partition_keys),
            merge_engine=engine,
            drop_duplicates=not keep_duplicates,
            unique_within_partition=unique_within_partition,
        )
        about: dict[str, Any] = {"description": description, "properties": parse_pairs(properties, "--property")}
        planned = lake.plan_table(name, schema=schema, rules=rules, **about)
        if not dry_run:
            table = lake.create_table(name, schema=schema, **rules, **about)
            if write and from_file is not None:
                try:
                    written = (
                        table.write_files(
                            [from_file], format=plain_format(format), delimiter=delimiter, progress=progress
                        )
                        if changes is None
                        else table.write_change_files([from_file], changes, progress=progress)
                    )
                except SiltstoneError as error:
                    raise type(error)(f"{name} was created, but stays empty: {error}") from error
    details = planned if dry_run else lake.table(name).describe()
    _emit_change(shell, name, "created", [f"created {name}"], dry_run, details, written)


@command(
    app,
    "adopt",
    "siltstone table adopt shop.orders --from delta old/orders --key order_id",
    "siltstone table adopt shop.visits --from parquet visits/ --key day,id --dry-run",
)
def adopt(
    shell: Shell,
    name: TableName,
    source: Annotated[str, argument("PATH", "The folder of the table, or an Iceberg metadata file.")],
    format: Annotated[ForeignFormat, option("--from", "What the table is now.")],
    keys: Annotated[list[str] | None, option("--key COLUMN", "A primary key column.")] = None,
    sort_keys: Annotated[
        list[str] | None, option("--sort-key COLUMN", "Of two rows of one key, the greater here wins.")
    ] = None,
    partition_keys: Annotated[
        list[str] | None, option("--partition-by COLUMN", "A partition key column; else as the source has them.")
    ] = None,
    unpartitioned: Annotated[bool, option("--unpartitioned", "Leave out the partition keys of the source.")] = False,
    merge_engine: Annotated[MergeEngine, option("--merge-engine", "How rows of one key become one.")] = "deduplicate",
    unique_within_partition: Annotated[
        bool, option("--unique-within-partition", "A key may have one row in each partition, not in the whole table.")
    ] = False,
    description: Annotated[str, option("--description", "What the table holds.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Create a table from a Delta, Iceberg or Parquet table.

    The source is not changed. Where its data files can be used as they are, on the same disk, they are not copied. Compact
    the table next.
    """
    if unpartitioned and partition_keys:
        raise typer.BadParameter("leave out --partition-by", param_hint="--unpartitioned")
    shell.when_interrupted = "The source is unchanged; the same command continues."
    with shell.progress(f"Reading {source}") as progress:
        adopted = shell.lake.adopt_table(
            name,
            source,
            format,
            primary_keys=parse_names(keys),
            sort_keys=parse_names(sort_keys),
            partition_keys=[] if unpartitioned else parse_names(partition_keys) or None,
            merge_engine=merge_engine,
            unique_within_partition=unique_within_partition,
            description=description,
            dry_run=dry_run,
            progress=progress,
        )
    shell.emit(adopted, _adopted_text(adopted))


def _adopted_text(adopted: "Adopted") -> Iterator[Shown]:
    partitions = f", partitioned by {', '.join(adopted.partition_keys)}" if adopted.partition_keys else ""
    columns = f"{format_count(adopted.columns, 'column')}{partitions}"
    if adopted.dry_run:
        yield f"{adopted.table}: would adopt {adopted.source} ({columns})."
    elif adopted.repeated:
        yield f"{adopted.table}: was adopted before, at position {adopted.stream_position}; nothing to do."
    else:
        how = f", {adopted.linked_files:,} of them linked, not copied" if adopted.linked_files else ""
        rows = f"{format_count(adopted.rows, 'row')} in {format_count(adopted.files, 'file')}{how}"
        yield f"{adopted.table}: adopted {adopted.source}: {rows} ({columns})."
        yield f"Next: siltstone compact {adopted.table}"


@command(app, "list", "siltstone table list shop")
def list_tables(
    shell: Shell,
    namespace: Annotated[
        str | None, argument("NAMESPACE", "Only tables of this namespace.", autocompletion=complete_namespace)
    ] = None,
) -> None:
    """List the tables."""
    lake = shell.lake
    summaries = lake.summaries(namespace)
    shell.emit(summaries, _list_text(lake.root, summaries))


def _list_text(root: str, tables: "Sequence[TableSummary]") -> Iterator[Shown]:
    if not tables:
        yield f"No tables in {root}."
        return
    grid = new_grid("table", "primary key", ">columns", "engine", ">position", "description")
    for table in tables:
        if table.problem is not None:
            grid.add_row(to_text(table.name), *[""] * 4, styled((table.problem, "red")))
            continue
        keys = ", ".join(table.primary_keys)
        facts = (table.name, keys, table.columns, table.merge_engine, table.stream_position, table.description)
        grid.add_row(*map(to_text, facts))
    yield grid


@command(app, "show", "siltstone table show shop.orders")
def show(shell: Shell, name: TableName) -> None:
    """Show a table: columns, keys, properties, and what its deltas hold."""
    table = shell.lake.table(name)
    description, publications = table.describe(), table.published()
    shown = {field.name: to_plain(getattr(description, field.name), field.name) for field in fields(description)}
    shell.emit({**shown, "published": publications}, _description_text(description, publications))


def _description_text(table: "TableDescription", publications: "Sequence[Publication]" = ()) -> Iterator[Shown]:
    yield styled((table.name, "bold"))
    if table.description:
        yield f"  {table.description}"
    yield indented(new_facts([*_facts(table), *_published_facts(publications)]))
    yield ""
    grid = new_grid("column", "type", "")
    for column in table.columns:
        kind = column.type if isinstance(column.type, str) else json.dumps(column.type)
        grid.add_row(to_text(column.name), to_text(kind), to_text(_roles(column.name, column.nullable, table)))
    yield indented(grid)


def _facts(table: "TableDescription") -> Iterator[tuple[str, object]]:
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


def _published_facts(publications: "Sequence[Publication]") -> Iterator[tuple[str, object]]:
    for published in publications:
        behind = published.behind_rounds
        lag = f"{format_count(behind, 'round')} behind" if behind else "up to date"
        if published.oldest_unpublished_at is not None:
            lag += f" since {format_time(published.oldest_unpublished_at)} UTC"
        version = "not published yet" if published.version is None else f"version {published.version}"
        yield f"published as {published.format}", f"{version}, {lag}"
        if published.error is not None:
            yield "not published", published.error


def _roles(column: str, nullable: bool, table: "TableDescription") -> str:
    keys = {"primary key": table.primary_keys, "sort key": table.sort_keys, "partition key": table.partition_keys}
    roles = [role for role, columns in keys.items() if column in columns]
    return ", ".join([*roles, *([] if nullable else ["not null"])])


@command(app, "drop", "siltstone table drop shop.orders --dry-run")
def drop(
    shell: Shell,
    name: TableName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Drop a table; its files stay until they are vacuumed."""
    table = shell.lake.table(name)
    if not dry_run:
        if not yes:
            if shell.json or not sys.stdin.isatty():
                raise typer.BadParameter(
                    f"dropping {name} needs --yes where there is no terminal to ask on", param_hint="--yes"
                )
            typer.confirm(f"Drop {name}?", abort=True, err=True)
        table.drop()
    changes = [f"dropped {name}; its files stay until they are vacuumed"]
    _emit_change(shell, name, "dropped", changes, dry_run)


@command(app, "rename", "siltstone table rename shop.orders shop.old_orders")
def rename(
    shell: Shell, name: TableName, new_name: Annotated[str, argument("NEW", "The new name.")], dry_run: DryRun = False
) -> None:
    """Rename a table, also into another namespace."""
    table = shell.lake.table(name)
    renamed = table.rename(new_name, dry_run=dry_run or new_name == name)
    changes = [] if new_name == name else [f"renamed {name} to {new_name}"]
    _emit_change(shell, renamed.name, "renamed", changes, dry_run)


@command(
    app,
    "alter",
    "siltstone table alter shop.orders --add-column note:string --set user.owner=sales",
    "siltstone table alter shop.orders --rename-column lsat=last --drop-column fax --dry-run",
)
def alter(
    shell: Shell,
    name: TableName,
    columns: Annotated[
        list[str] | None, option("--add-column NAME:TYPE", "Add a column, or widen the one there is.")
    ] = None,
    to_rename: Annotated[
        list[str] | None, option("--rename-column OLD=NEW", "Rename a column; no file is rewritten.")
    ] = None,
    to_drop: Annotated[list[str] | None, option("--drop-column NAME", "Drop a column; no file is rewritten.")] = None,
    unique_within_partition: Annotated[
        bool, option("--unique-within-partition", "Confirm that a key may have one row in each partition.")
    ] = False,
    to_set: Annotated[list[str] | None, option("--set NAME=VALUE", "Set a property.")] = None,
    to_unset: Annotated[list[str] | None, option("--unset NAME", "Remove a property.")] = None,
    description: Annotated[str | None, option("--description", "What the table holds.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Add, widen, rename or drop columns, set properties, describe."""
    properties: dict[str, str | None] = {**parse_pairs(to_set, "--set")}
    for property_name in to_unset or []:
        if property_name in properties:
            raise typer.BadParameter(f"{property_name!r} is both set and unset", param_hint="--unset")
        properties[property_name] = None
    names = parse_pairs(to_rename, "--rename-column")
    is_idle = not columns and not names and not to_drop and not properties and description is None
    if is_idle and not unique_within_partition:
        raise typer.BadParameter(
            "name what to change",
            param_hint="--add-column / --rename-column / --drop-column / --set / --unset / --description",
        )
    from siltstone.model.locators import did_you_mean
    from siltstone.table.report import changes_between

    table = shell.lake.table(name)
    before = table.version
    rules: dict[str, Any] = {
        "add_columns": [parse_column(text) for text in columns] if columns else None,
        "rename_columns": names,
        "drop_columns": to_drop or [],
        "unique_within_partition": unique_within_partition or None,
        "description": description,
        "properties": properties,
    }
    after = table.alter(**rules, dry_run=True)
    for property_name, value in properties.items():
        if value is None and property_name not in before.properties:
            guess = did_you_mean(property_name, list(before.properties))
            raise NotFoundError(f"{name}: property {property_name} is not set{guess}")
    changes = list(changes_between(before, after))
    if changes and not dry_run:
        table.alter(**rules)
    _emit_change(shell, name, "altered", changes, dry_run)


def parse_column(text: str) -> dict[str, object]:
    """Read a column written as `name:type`, where a nested type is JSON. Raises: InvalidInputError."""
    name, colon, kind = (part.strip() for part in text.partition(":"))
    if not colon or not name or not kind:
        raise InvalidInputError(f"{text!r} is not of the form name:type, e.g. note:string")
    try:
        return {"name": name, "type": json.loads(kind) if kind.startswith("{") else kind}
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"column {name!r}: the type {kind!r} is not valid JSON ({error})") from error


def _emit_change(
    shell: Shell,
    name: str,
    action: Literal["created", "dropped", "renamed", "altered"],
    changes: Sequence[str],
    dry_run: bool,
    table: "TableDescription | None" = None,
    written: "Written | ChangesWritten | None" = None,
) -> None:
    """Show what happened, or would happen, to a table; no changes means it is as wished already."""

    from siltstone.ingest.dry_run import Written

    def text() -> Iterator[Shown]:
        if not changes:
            yield f"{name} is already like that; nothing to change."
        elif dry_run:
            yield "Dry run; nothing has changed. Without it:"
        yield from (f"  {line}" if dry_run else line for line in changes)
        if written is not None:
            yield from written_text(written) if isinstance(written, Written) else changes_text(written)
        if table is not None:
            yield ""
            yield from _description_text(table)

    about = {"name": name, "action": action, "changes": changes, "dry_run": dry_run}
    shell.emit({**about, "table": table, "written": written}, text())
