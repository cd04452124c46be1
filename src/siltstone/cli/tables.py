"""What the table commands do: describe, create, alter, rename and drop tables, each also as a dry run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.cli.hints import find_table
from siltstone.cli.results import Column, TableChanged, TableDetails, TableSummary
from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError, SiltstoneError
from siltstone.lake import Lake
from siltstone.model import Delta, MergeEngine, TableVersion, TableVersionLocator
from siltstone.model.names import did_you_mean, split_table_name
from siltstone.model.properties import change_properties
from siltstone.model.schema import (
    normalize_schema,
    schema_from_json,
    schema_to_json,
    type_from_json,
)
from siltstone.storage import object_store as storage
from siltstone.storage.versions import change_columns


def list_tables(lake: Lake, namespace: str | None = None) -> list[TableSummary]:
    """Summarize the tables of one namespace or of all; one that is damaged does not hide the others."""
    try:
        tables = lake.tables(namespace)
    except NotFoundError as error:
        assert namespace is not None
        raise NotFoundError(f"{error}{did_you_mean(namespace, lake.namespaces())}") from error
    return [_summarize(lake, table.name) for table in tables]


def _summarize(lake: Lake, name: str) -> TableSummary:
    try:
        version = catalog.get_table_version(name, root=lake.root)
        stream = storage.get_stream(catalog.delta_stream(name, root=lake.root), root=lake.root)
    except SiltstoneError as error:
        return TableSummary(name, problem=str(error))
    return TableSummary(
        name=name,
        primary_keys=version.primary_keys,
        columns=len(version.fields),
        merge_engine=version.merge_engine,
        stream_position=stream.stream_position,
        description=version.description,
    )


def describe_table(lake: Lake, name: str) -> TableDetails:
    """Tell all about a table. Raises: NotFoundError."""
    table = find_table(lake, name)
    stream = catalog.delta_stream(name, root=lake.root)
    folder = catalog.get_table(name, root=lake.root).choose_version(stream.table_version).folder
    deltas = table.deltas()
    files = distinct_files(deltas)
    return _details(
        table.version,
        folder=f"{lake.root}/{folder}",
        stream_position=storage.get_stream(stream, root=lake.root).stream_position,
        partitions=len(storage.list_partitions(stream, root=lake.root)),
        deltas=len(deltas),
        rows=sum(rows for rows, _ in files.values()),
        bytes=sum(size for _, size in files.values()),
    )


def distinct_files(deltas: Sequence[Delta]) -> dict[str, tuple[int, int]]:
    """Return rows and bytes of the files of deltas; a delete for every partition has its files in each of them."""
    return {
        entry.uri: (entry.record_count, entry.content_length) for delta in deltas for entry in delta.manifest.entries
    }


def _details(version: TableVersion, **of_deltas: Any) -> TableDetails:
    return TableDetails(
        name=version.locator.table_locator.full_name,
        version=version.locator.table_version,
        schema_id=version.schema_id,
        columns=[Column(each.name, each.type, each.nullable) for each in version.fields],
        primary_keys=version.primary_keys,
        sort_keys=version.sort_keys,
        partition_keys=version.partition_keys,
        merge_engine=version.merge_engine,
        drop_duplicates=version.drop_duplicates,
        unique_within_partition=bool(version.partition_keys_outside),
        description=version.description,
        properties=version.properties,
        created_at=version.created_at,
        **of_deltas,
    )


def read_schema_file(path: str) -> pa.Schema:
    """Read a schema written as JSON. Raises: InvalidInputError that names the file."""
    try:
        return schema_from_json(orjson.loads(Path(path).read_bytes()))
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read ({error.strerror}); give a JSON file") from error
    except ValueError as error:
        # Errors of ours about bad fields are value errors, too.
        raise InvalidInputError(f"{path}: {error}") from error


def create_table(
    lake: Lake,
    name: str,
    *,
    schema: pa.Schema,
    primary_keys: Sequence[str] = (),
    sort_keys: Sequence[str] = (),
    partition_keys: Sequence[str] = (),
    merge_engine: MergeEngine = "deduplicate",
    drop_duplicates: bool = True,
    unique_within_partition: bool = False,
    description: str = "",
    properties: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> TableChanged:
    """Create a table. Raises: AlreadyExistsError, InvalidInputError, in a dry run as well."""
    namespace, table = split_table_name(name)
    planned = TableVersion(
        locator=TableVersionLocator(namespace=namespace, table=table, table_version="1"),
        fields=schema_to_json(normalize_schema(schema)),
        primary_keys=list(primary_keys),
        sort_keys=list(sort_keys),
        partition_keys=list(partition_keys),
        merge_engine=merge_engine,
        drop_duplicates=drop_duplicates,
        unique_within_partition=unique_within_partition,
        description=description,
        properties=change_properties({}, properties or {}, name),
    )
    _refuse_existing(lake, name)
    if not dry_run:
        lake.create_table(
            name,
            schema=schema,
            primary_keys=primary_keys,
            sort_keys=sort_keys,
            partition_keys=partition_keys,
            merge_engine=merge_engine,
            drop_duplicates=drop_duplicates,
            unique_within_partition=unique_within_partition,
            description=description,
            properties=properties,
        )
    details = _details(planned) if dry_run else describe_table(lake, name)
    return TableChanged(name, "created", [f"created {name}"], dry_run, details)


def _refuse_existing(lake: Lake, name: str) -> None:
    if lake.has_table(name):
        raise AlreadyExistsError(f"{lake.root}: table {name} exists already; drop it first, or choose another name")


def drop_table(lake: Lake, name: str, *, dry_run: bool = False) -> TableChanged:
    """Drop a table; its files stay until they are vacuumed. Raises: NotFoundError."""
    table = find_table(lake, name)
    if not dry_run:
        table.drop()
    return TableChanged(name, "dropped", [f"dropped {name}; its files stay until they are vacuumed"], dry_run)


def rename_table(lake: Lake, name: str, new_name: str, *, dry_run: bool = False) -> TableChanged:
    """Rename a table. Raises: NotFoundError, AlreadyExistsError."""
    table = find_table(lake, name)
    namespace, _ = split_table_name(new_name)
    if new_name == name:
        return TableChanged(name, "renamed", [], dry_run)
    _refuse_existing(lake, new_name)
    if namespace not in lake.namespaces():
        raise NotFoundError(
            f"{lake.root}: there is no namespace {namespace}{did_you_mean(namespace, lake.namespaces())}"
        )
    if not dry_run:
        table.rename(new_name)
    return TableChanged(new_name, "renamed", [f"renamed {name} to {new_name}"], dry_run)


def parse_columns(texts: Sequence[str]) -> pa.Schema | None:
    """Read columns, each written as `name:type`; none give None. Raises: InvalidInputError."""
    return pa.schema([_parse_column(text) for text in texts]) if texts else None


def _parse_column(text: str) -> "pa.Field[Any]":
    """Read `name:type`, where a nested type is JSON. Raises: InvalidInputError."""
    name, colon, kind = text.partition(":")
    if not colon or not name.strip() or not kind.strip():
        raise InvalidInputError(f"{text!r} is not of the form name:type, e.g. note:string")
    try:
        spelled = orjson.loads(kind) if kind.strip().startswith("{") else kind.strip()
    except orjson.JSONDecodeError as error:
        raise InvalidInputError(f"column {name.strip()!r}: the type {kind!r} is no JSON ({error})") from error
    return pa.field(name.strip(), type_from_json(spelled, name.strip()))


def alter_table(
    lake: Lake,
    name: str,
    *,
    add_columns: pa.Schema | None = None,
    rename_columns: Mapping[str, str] | None = None,
    drop_columns: Sequence[str] = (),
    unique_within_partition: bool | None = None,
    description: str | None = None,
    properties: Mapping[str, str | None] | None = None,
    dry_run: bool = False,
) -> TableChanged:
    """Drop, rename, add or widen columns, describe, set or unset properties. Raises: NotFoundError, InvalidInputError."""
    table = find_table(lake, name)
    before = table.version
    after = table.version
    change_columns(after, add_columns=add_columns, rename_columns=rename_columns, drop_columns=drop_columns)
    changes = [
        *(f"dropped column {column}" for column in drop_columns),
        *(f"renamed column {old} to {new}" for old, new in (rename_columns or {}).items() if old != new),
        *_column_changes(before, after),
        *(_uniqueness_changes(before, unique_within_partition)),
        *([f"changed the description to {description!r}"] if description not in (None, before.description) else []),
        *_property_changes(name, before.properties, properties or {}),
    ]
    if changes and not dry_run:
        table.alter(
            add_columns=add_columns,
            rename_columns=rename_columns,
            drop_columns=drop_columns,
            unique_within_partition=unique_within_partition,
            description=description,
            properties=properties,
        )
    return TableChanged(name, "altered", changes, dry_run)


def _uniqueness_changes(before: TableVersion, wanted: bool | None) -> list[str]:
    if wanted is None or wanted == before.unique_within_partition:
        return []
    return ["said that keys are unique within a partition only"]


def _column_changes(before: TableVersion, after: TableVersion) -> list[str]:
    changes = []
    types = {column.id: column.type for column in before.fields}
    for column in after.fields:
        if column.id not in types:
            changes.append(f"added column {column.name} {column.type}")
        elif column.type != types[column.id]:
            changes.append(f"widened column {column.name} from {types[column.id]} to {column.type}")
    return changes


def _property_changes(table: str, before: Mapping[str, str], wanted: Mapping[str, str | None]) -> list[str]:
    changes = []
    for name, text in wanted.items():
        is_change = change_properties(before, {name: text}, table) != before
        if text is None and not is_change:
            raise NotFoundError(f"{table}: property {name} is not set{did_you_mean(name, list(before))}")
        if is_change:
            changes.append(f"removed property {name}" if text is None else f"set property {name}={text}")
    return changes
