"""`siltstone table …`"""

import enum
import sys
from typing import Annotated

import typer

from siltstone.cli.shell import Debug, DryRun, Json, Root, examples, shell_of
from siltstone.cli.units import parse_names, parse_pairs

app = typer.Typer(no_args_is_help=True, help="Create, show and change tables.")


class MergeEngineChoice(enum.StrEnum):
    """How rows of one key become one."""

    deduplicate = "deduplicate"
    partial_update = "partial_update"
    first_row = "first_row"


class FormatChoice(enum.StrEnum):
    """How a data file is written."""

    parquet = "parquet"
    csv = "csv"
    jsonl = "jsonl"


def _one_character(text: str | None) -> str | None:
    if text is not None and (len(text) != 1 or not text.isascii() or text in '"\r\n'):
        raise typer.BadParameter(f"{text!r} is not one ASCII character other than a quote or a line's end")
    return text


FormatOption = Annotated[
    FormatChoice | None, typer.Option("--format", help="The format, where file names do not tell it.")
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        "--delimiter", metavar="CHAR", callback=_one_character, help="What separates CSV fields, where not a comma."
    ),
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table, e.g. shop.orders.", show_default=False)]
PartitionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--partition", metavar="KEY=VALUE", help="Which partition, where there are several; values alone will do: A,B."
    ),
]


@app.callback()
def table(context: typer.Context, root: Root = None, json: Json = False, debug: Debug = False) -> None:
    """Create, show and change tables."""
    shell_of(context, root, json, debug)


@app.command(
    "create",
    epilog=examples(
        "siltstone table create shop.orders --key order_id --from orders.csv --write",
        "siltstone table create shop.orders --key order_id --sort-key updated_at --schema orders.json --dry-run",
    ),
)
def create(
    context: typer.Context,
    name: TableName,
    keys: Annotated[list[str] | None, typer.Option("--key", metavar="COLUMN", help="A primary key column.")] = None,
    sort_keys: Annotated[
        list[str] | None,
        typer.Option("--sort-key", metavar="COLUMN", help="Of two rows of one key, the greater here wins."),
    ] = None,
    partition_keys: Annotated[
        list[str] | None, typer.Option("--partition-by", metavar="COLUMN", help="A partition key column.")
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from", metavar="FILE", help="Take the columns of a Parquet, CSV or JSON lines file."),
    ] = None,
    schema_file: Annotated[
        str | None,
        typer.Option("--schema", metavar="FILE", help='Take the columns of a JSON file, e.g. {"order_id": "int64"}.'),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Also write the rows of the --from file.")] = False,
    format: FormatOption = None,
    delimiter: Delimiter = None,
    merge_engine: Annotated[
        MergeEngineChoice, typer.Option("--merge-engine", help="How rows of one key become one.")
    ] = MergeEngineChoice.deduplicate,
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep all rows of a key, not only the newest.")
    ] = False,
    unique_within_partition: Annotated[
        bool,
        typer.Option(
            "--unique-within-partition", help="A key may have one row in each partition, not in the whole table."
        ),
    ] = False,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A table property.")
    ] = None,
    description: Annotated[str, typer.Option("--description", help="What the table holds.")] = "",
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Create a table with the columns of a data file or of a schema file."""
    shell = shell_of(context, root, json, debug)
    if (from_file is None) == (schema_file is None):
        raise typer.BadParameter("give one of --from FILE and --schema FILE", param_hint="--from / --schema")
    if write and from_file in (None, "-"):
        raise typer.BadParameter("needs the rows of a --from file", param_hint="--write")
    from siltstone.cli import tables, writing

    lake, output = shell.lake, shell.output
    with shell.progress() as report:
        if from_file is not None:
            reading = writing.Reading(format.value if format else None, delimiter)
            schema = writing.schema_of_file(from_file, reading, report=report, warn=output.warning)
        else:
            schema = tables.read_schema_file(schema_file or "")
        result = tables.create_table(
            lake,
            name,
            schema=schema,
            primary_keys=parse_names(keys or []),
            sort_keys=parse_names(sort_keys or []),
            partition_keys=parse_names(partition_keys or []),
            merge_engine=merge_engine.value,
            drop_duplicates=not keep_duplicates,
            unique_within_partition=unique_within_partition,
            description=description,
            properties=parse_pairs(properties or [], "--property"),
            dry_run=dry_run,
        )
        if write and from_file is not None and not dry_run:
            result = writing.write_first(lake, result, from_file, reading, report=report)
    output.changed(result)


@app.command("list", epilog=examples("siltstone table list shop"))
def list_tables(
    context: typer.Context,
    namespace: Annotated[str | None, typer.Argument(help="Only tables of this namespace.", show_default=False)] = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the tables."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import tables

    lake = shell.lake
    shell.output.tables(tables.list_tables(lake, namespace), lake.root)


@app.command("show", epilog=examples("siltstone table show shop.orders"))
def show(context: typer.Context, name: TableName, root: Root = None, json: Json = False, debug: Debug = False) -> None:
    """Show a table: columns, keys, properties, and what its deltas hold."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import tables

    shell.output.table(tables.describe_table(shell.lake, name))


@app.command("drop", epilog=examples("siltstone table drop shop.orders --dry-run"))
def drop(
    context: typer.Context,
    name: TableName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Drop a table; its files stay until they are vacuumed."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import tables

    planned = tables.drop_table(shell.lake, name, dry_run=True)
    if dry_run:
        shell.output.changed(planned)
        return
    if not yes:
        if shell.json or not sys.stdin.isatty():
            raise typer.BadParameter(f"dropping {name} needs --yes where nobody can be asked", param_hint="--yes")
        typer.confirm(f"Drop {name}?", abort=True, err=True)
    shell.output.changed(tables.drop_table(shell.lake, name))


@app.command("rename", epilog=examples("siltstone table rename shop.orders shop.old_orders"))
def rename(
    context: typer.Context,
    name: TableName,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="Its name from now on.", show_default=False)],
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Rename a table, also into another namespace."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli import tables

    shell.output.changed(tables.rename_table(shell.lake, name, new_name, dry_run=dry_run))


@app.command(
    "alter",
    epilog=examples(
        "siltstone table alter shop.orders --add-column note:string --set user.owner=sales",
        "siltstone table alter shop.orders --rename-column lsat=last --drop-column fax --dry-run",
    ),
)
def alter(
    context: typer.Context,
    name: TableName,
    columns: Annotated[
        list[str] | None,
        typer.Option("--add-column", metavar="NAME:TYPE", help="Add a column, or widen the one there is."),
    ] = None,
    to_rename: Annotated[
        list[str] | None,
        typer.Option("--rename-column", metavar="OLD=NEW", help="Rename a column; no file is written anew."),
    ] = None,
    to_drop: Annotated[
        list[str] | None,
        typer.Option("--drop-column", metavar="NAME", help="Drop a column; no file is written anew."),
    ] = None,
    unique_within_partition: Annotated[
        bool,
        typer.Option(
            "--unique-within-partition", help="Say that a key may have one row in each partition, as is meant."
        ),
    ] = False,
    to_set: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a property.")] = None,
    to_unset: Annotated[list[str] | None, typer.Option("--unset", metavar="NAME", help="Remove a property.")] = None,
    description: Annotated[str | None, typer.Option("--description", help="What the table holds.")] = None,
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Add, widen, rename or drop columns, set properties, describe."""
    shell = shell_of(context, root, json, debug)
    properties: dict[str, str | None] = {**parse_pairs(to_set or [], "--set")}
    for each in to_unset or []:
        if each in properties:
            raise typer.BadParameter(f"{each!r} is both set and unset", param_hint="--unset")
        properties[each] = None
    names = parse_pairs(to_rename or [], "--rename-column")
    is_idle = not columns and not names and not to_drop and not properties and description is None
    if is_idle and not unique_within_partition:
        raise typer.BadParameter(
            "say what to change",
            param_hint="--add-column / --rename-column / --drop-column / --set / --unset / --description",
        )
    from siltstone.cli import tables

    shell.output.changed(
        tables.alter_table(
            shell.lake,
            name,
            add_columns=tables.parse_columns(columns or []),
            rename_columns=names,
            drop_columns=to_drop or [],
            unique_within_partition=unique_within_partition or None,
            description=description,
            properties=properties,
            dry_run=dry_run,
        )
    )
