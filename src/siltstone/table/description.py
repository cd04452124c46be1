"""What a table is, for people and programs: its columns, keys and properties, and the deltas it has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siltstone.catalog import main as catalog
from siltstone.errors import SiltstoneError
from siltstone.ingest.dry_run import distinct_files
from siltstone.model import Delta, TableVersion
from siltstone.storage import object_store as storage


@dataclass(frozen=True)
class Column:
    """One column of a table; `type` is text, or an object for nested types."""

    name: str
    type: object
    nullable: bool = True


@dataclass(frozen=True)
class TableSummary:
    """One line of a list of tables; `problem` says why nothing else is known."""

    name: str
    primary_keys: Sequence[str] = ()
    columns: int | None = None
    merge_engine: str | None = None
    stream_position: int | None = None
    description: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class TableDescription:
    """All about one table; times are in milliseconds since 1970."""

    name: str
    version: str
    schema_id: int
    columns: Sequence[Column]
    primary_keys: Sequence[str]
    sort_keys: Sequence[str]
    partition_keys: Sequence[str]
    merge_engine: str
    drop_duplicates: bool
    unique_within_partition: bool
    description: str
    properties: Mapping[str, str]
    created_at: int
    folder: str | None = None
    stream_position: int = 0
    partitions: int = 0
    deltas: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class DeltaReport:
    """One committed delta of one partition."""

    stream_position: int
    committed_at: int
    type: str
    partition: Sequence[object]
    rows: int
    bytes: int
    files: int
    columns: Sequence[str]
    delete_columns: Sequence[str] | None = None
    op_column: str | None = None
    idempotency: str | None = None


def summarize_table(name: str, *, root: str) -> TableSummary:
    """Return a table as one line of a list; what is wrong with it is part of it."""
    try:
        version = catalog.get_table_version(name, root=root)
        stream = storage.get_stream(catalog.delta_stream(name, root=root), root=root)
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


def describe_table(name: str, *, root: str) -> TableDescription:
    """Return all about a table and its deltas. Raises: NotFoundError."""
    stream = catalog.delta_stream(name, root=root)
    deltas = storage.list_deltas(stream, root=root)
    files = distinct_files(deltas)
    return describe_version(
        catalog.get_table_version(name, root=root),
        folder=f"{root}/{catalog.version_folder(name, root=root)}",
        stream_position=storage.get_stream(stream, root=root).stream_position,
        partitions=len(storage.list_partitions(stream, root=root)),
        deltas=len(deltas),
        rows=sum(rows for rows, _ in files.values()),
        bytes=sum(size for _, size in files.values()),
    )


def describe_version(version: TableVersion, **of_deltas: Any) -> TableDescription:
    """Return what a version says of its table, with what is known of its deltas."""
    return TableDescription(
        name=version.locator.table_locator.full_name,
        version=version.locator.table_version,
        schema_id=version.schema_id,
        columns=[Column(field.name, field.type, field.nullable) for field in version.fields],
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


def report_delta(delta: Delta, names: Mapping[str, str]) -> DeltaReport:
    """Return a delta in numbers; `names` has the columns' names by those in files."""
    return DeltaReport(
        stream_position=delta.stream_position,
        committed_at=delta.committed_at,
        type=delta.type,
        partition=delta.partition_values,
        rows=delta.manifest.record_count,
        bytes=delta.manifest.content_length,
        files=len(delta.manifest.entries),
        columns=[names.get(column, column) for column in delta.columns],
        delete_columns=delta.delete_columns and [names.get(column, column) for column in delta.delete_columns],
        op_column=delta.op_column,
        idempotency=f"{delta.idempotency.app_id}:{delta.idempotency.batch_id}" if delta.idempotency else None,
    )


def changes_between(before: TableVersion, after: TableVersion) -> Iterator[str]:
    """Yield what is different about a table, in words."""
    columns = {column.id: column for column in before.fields}
    left = {column.id for column in after.fields}
    yield from (f"dropped column {column.name}" for column in before.fields if column.id not in left)
    kept = [(columns[column.id], column) for column in after.fields if column.id in columns]
    yield from (f"renamed column {old.name} to {new.name}" for old, new in kept if old.name != new.name)
    for column in after.fields:
        if column.id not in columns:
            yield f"added column {column.name} {column.type}"
        elif column.type != columns[column.id].type:
            yield f"widened column {column.name} from {columns[column.id].type} to {column.type}"
    if before.unique_within_partition != after.unique_within_partition:
        yield "said that keys are unique within a partition only"
    if before.description != after.description:
        yield f"changed the description to {after.description!r}"
    yield from _property_changes(before.properties, after.properties)


def _property_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    yield from (f"set property {name}={value}" for name, value in after.items() if before.get(name) != value)
    yield from (f"removed property {name}" for name in before if name not in after)
