"""Table versions: schema, keys and rules, kept in each version's own log."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes, Commit, CommitLog
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import (
    DEFAULT_STREAM,
    Namespace,
    NamespaceLocator,
    Stream,
    StreamLocator,
    Table,
    TableRules,
    TableVersion,
    TableVersionLocator,
)
from siltstone.model.entities import HISTORY_COLUMNS, DroppedField, LifecycleState, VersionEntry, history_fields
from siltstone.model.properties import HISTORY_TRACK, KIND, ROWS_KIND, change_properties
from siltstone.model.schema import (
    SchemaField,
    check_known,
    evolve,
    normalize_schema,
    schema_from_json,
    schema_to_json,
)
from siltstone.objects import keep_reserve
from siltstone.storage import tables
from siltstone.storage.layout import (
    STREAM_PREFIX,
    VERSION_KEY,
    catalog_log,
    namespace_key,
    new_version_folder,
    stream_key,
    table_key,
    version_log,
)

# Every operation needs the version, several times; a copy of one that was checked costs a sixth of checking it anew.
_parsed_versions: dict[tuple[bytes, str, str, str], bytes] = {}
_PARSED_VERSIONS_LIMIT = 1024


def list_table_versions(namespace: str, table: str, *, root: str) -> list[TableVersion]:
    """List the versions of a table in order of creation."""
    parent = tables.get_table(namespace, table, root=root)
    return [_read_version(parent, entry, root) for entry in parent.versions]


def get_table_version(
    namespace: str, table: str, table_version: str | None = None, *, recall: bool = False, root: str
) -> TableVersion:
    """Get one version, by default the newest active one."""
    parent = tables.get_table(namespace, table, recall=recall, root=root)
    return _read_version(parent, parent.choose_version(table_version), root, recall=recall)


def get_latest_table_version(namespace: str, table: str, *, root: str) -> TableVersion:
    """Get the version created last."""
    parent = tables.get_table(namespace, table, root=root)
    if not parent.versions:
        raise NotFoundError(f"table {namespace}.{table} has no version yet; create one")
    return _read_version(parent, parent.versions[-1], root)


def get_latest_active_table_version(namespace: str, table: str, *, root: str) -> TableVersion:
    """Get the active version created last."""
    return get_table_version(namespace, table, root=root)


def table_version_exists(namespace: str, table: str, table_version: str, *, root: str) -> bool:
    """Return whether the version exists."""
    try:
        parent = tables.get_table(namespace, table, root=root)
    except NotFoundError:
        return False
    return any(entry.version == table_version for entry in parent.versions)


def create_table_version(
    namespace: str,
    table: str,
    table_version: str | None = None,
    *,
    schema: pa.Schema,
    rules: TableRules | None = None,
    lifecycle_state: LifecycleState = "active",
    description: str = "",
    properties: Mapping[str, str] | None = None,
    reserved_properties: Mapping[str, str] | None = None,
    create_parents: bool = False,
    dry_run: bool = False,
    root: str,
) -> TableVersion:
    """Create a version with its stream of deltas.

    The version's log is written first, in a folder that nobody knows; the commit to the catalog makes it real.
    """
    log = catalog_log(root)
    checked = change_properties({}, properties or {}, f"{namespace}.{table}")
    fresh = tables.new_table(namespace, table) if create_parents else None

    def prepare(state: LogState) -> Commit[TableVersion]:
        changes: dict[str, Entry | None] = {}
        if fresh is not None:
            tables.refuse_existing_table(state, namespace, table, root)
            if namespace_key(namespace) not in state:
                parent = Namespace(locator=NamespaceLocator(namespace=namespace), created_at=log.now_ms())
                changes[namespace_key(namespace)] = tables.namespace_entry(parent)
            parent_table = Table.from_serializable({**fresh, "created_at": log.now_ms(), "versions": []})
        else:
            parent_table = tables.known_table(state, namespace, table, root)
        number = table_version or _next_number(parent_table)
        if any(entry.version == number for entry in parent_table.versions):
            raise AlreadyExistsError(
                f"{root}: table {namespace}.{table} already has a version {number}; choose another"
            )
        version = TableVersion(
            locator=TableVersionLocator(namespace=namespace, table=table, table_version=number),
            fields=schema_to_json(_with_history(normalize_schema(schema), rules or TableRules())),
            **(rules or TableRules()),
            lifecycle_state=lifecycle_state,
            description=description,
            properties={**checked, **(reserved_properties or {})},
            created_at=log.now_ms(),
        )
        if dry_run:
            return Commit({}, version)
        folder = new_version_folder(namespace, table, number)
        _write_first_batch(folder, version, root)
        parent_table.versions = [
            *parent_table.versions,
            VersionEntry(version=number, folder=folder, lifecycle_state=lifecycle_state),
        ]
        changes[table_key(namespace, table)] = tables.table_entry(parent_table)
        return Commit(changes, version)

    action = Action("create" if create_parents else "create version", table=f"{namespace}.{table}")
    version = log.commit("create table version", prepare, action=action).result
    if not dry_run:
        keep_reserve(root)
    return version


def _with_history(schema: pa.Schema, rules: TableRules) -> pa.Schema:
    """Return the columns of a new table with those that its merge engine adds. Raises: InvalidInputError."""
    if rules.merge_engine != "history" or len(rules.sort_keys) != 1 or rules.sort_keys[0] not in schema.names:
        return schema
    own = {name.lower() for name in HISTORY_COLUMNS}
    taken = [name for name in schema.names if name.lower() in own]
    if taken:
        raise InvalidInputError(
            f"column {taken[0]!r}: merge engine history adds one of that name; leave it out, or rename it"
        )
    return pa.schema([*schema, *history_fields(schema.field(rules.sort_keys[0]).type)])


def _write_first_batch(folder: str, version: TableVersion, root: str) -> None:
    stream = Stream(locator=StreamLocator(**version.locator, stream=DEFAULT_STREAM), created_at=version.created_at)
    changes = {VERSION_KEY: nameless(version), stream_key(DEFAULT_STREAM): nameless(stream)}
    version_log(root, folder).commit("create table version", lambda _: changes)


def update_table_version(
    namespace: str,
    table: str,
    table_version: str | None = None,
    *,
    add_columns: pa.Schema | None = None,
    rename_columns: Mapping[str, str] | None = None,
    drop_columns: Sequence[str] = (),
    unique_within_partition: bool | None = None,
    lifecycle_state: LifecycleState | None = None,
    description: str | None = None,
    properties: Mapping[str, str | None] | None = None,
    dry_run: bool = False,
    root: str,
) -> TableVersion:
    """Drop, rename and add columns, set properties, describe, or change the state of a version."""
    parent = tables.get_table(namespace, table, root=root)
    chosen = parent.choose_version(table_version)
    log = version_log(root, chosen.folder)

    def prepare(state: LogState) -> Commit[TableVersion]:
        version = version_of(state, log, parent, chosen)
        before = nameless(version)
        _drop_columns(version, drop_columns, _newest_position(state))
        _rename_columns(version, rename_columns or {})
        if add_columns is not None:
            evolve_version(version, normalize_schema(add_columns))
        if unique_within_partition is not None:
            version.unique_within_partition = unique_within_partition
            version.validate()
        if description is not None:
            version.description = description
        tracked = HISTORY_TRACK.text_in(version.properties)
        version.properties = change_properties(version.properties, properties or {}, f"{namespace}.{table}")
        if HISTORY_TRACK.text_in(version.properties) != tracked:
            raise InvalidInputError(
                f"{namespace}.{table}: property {HISTORY_TRACK.name} is set when a table is created, since stored versions "
                "follow from it; create another table, and write the deltas to it"
            )
        after = nameless(version)
        return Commit({} if dry_run or after == before else {VERSION_KEY: after}, version)

    if dry_run:
        return log.read(prepare).result
    log.commit(
        "update table version",
        prepare,
        action=Action(
            "alter",
            {
                "dropped": list(drop_columns),
                "renamed": [f"{old} to {new}" for old, new in (rename_columns or {}).items()],
                "added": [] if add_columns is None else list(add_columns.names),
                "properties": sorted(properties or {}),
            },
        ),
    )
    if lifecycle_state is not None:
        _update_lifecycle(parent, chosen.version, lifecycle_state, root)
        chosen.lifecycle_state = lifecycle_state
    return _read_version(parent, chosen, root)


def _update_lifecycle(table: Table, version: str, lifecycle_state: LifecycleState, root: str) -> None:
    name = table.locator

    def prepare(state: LogState) -> Changes:
        updated = tables.known_table(state, name.namespace, name.table, root)
        for entry in updated.versions:
            if entry.version == version:
                entry.lifecycle_state = lifecycle_state
        return {table_key(name.namespace, name.table): tables.table_entry(updated)}

    action = Action("set lifecycle state", {"version": version, "to": lifecycle_state}, table=name.full_name)
    catalog_log(root).commit("update lifecycle state", prepare, action=action)


def get_table_version_schema(namespace: str, table: str, table_version: str | None = None, *, root: str) -> pa.Schema:
    """Get the Arrow schema of a version."""
    return get_table_version(namespace, table, table_version, root=root).schema


def get_table_version_column_names(
    namespace: str, table: str, table_version: str | None = None, *, root: str
) -> list[str]:
    """Get the column names of a version, in order."""
    return [column.name for column in get_table_version(namespace, table, table_version, root=root).fields]


def evolve_version(version: TableVersion, schema: pa.Schema, names_in_files: Mapping[str, str] | None = None) -> None:
    """Let a version's schema take over new columns and wider types; new ones may have names inside files already.

    Raises: InvalidInputError.
    """
    before = version.schema
    version.refuse_history_columns(schema.names)
    after = evolve(before, schema)
    if version.keeps_history:
        after = evolve(after, pa.schema(history_fields(after.field(version.sort_keys[0]).type)))
    if after.equals(before):
        return
    columns = {column.name: column for column in version.fields}
    stored_names = names_in_files or {}
    for column in schema_to_json(after):
        if column.name in columns:
            columns[column.name].type = column.type
            continue
        version.last_column_id += 1
        column.id = version.last_column_id
        name = stored_names.get(column.name) or version.new_name_in_files(column.name, column.id)
        column.stored_name = None if name == column.name else name
        version.fields = [*version.fields, column]
    version.schema_id += 1


def take_columns(version: TableVersion, fields: Sequence[SchemaField]) -> None:
    """Let a version's schema take over the columns of files that were staged on this version or an earlier one.

    Raises: ConflictError where a column was renamed or dropped since in a way that those files cannot follow;
    InvalidInputError.
    """
    by_id = {column.id: column for column in version.fields}
    by_name = {column.name: column for column in version.fields}
    used = {column.name_in_files.lower() for column in [*version.fields, *version.dropped_fields]}
    incoming = []
    names_in_files = {}
    for column in fields:
        name = column.name
        if column.id is not None:
            current = by_id.get(column.id)
            if current is None:
                raise ConflictError(f"column {name!r} was dropped while this was being written; write it again")
            if current.type == column.type:
                # As nearly all columns are: nothing changes.
                continue
            name = current.name
        elif name in by_name:
            if by_name[name].name_in_files != column.name_in_files:
                raise ConflictError(f"column {name!r} became another one while this was being written; write it again")
        elif column.name_in_files.lower() in used:
            raise ConflictError(f"column {name!r} was dropped or renamed while this was being written; write it again")
        names_in_files[name] = column.name_in_files
        incoming.append(SchemaField(name=name, type=column.type, nullable=column.nullable))
    if incoming:
        evolve_version(version, schema_from_json(incoming), names_in_files)


def _newest_position(state: LogState) -> int:
    return max((int(entry.get("stream_position", 0)) for entry in state.scan(STREAM_PREFIX)), default=0)


def _drop_columns(version: TableVersion, columns: Sequence[str], newest_position: int) -> None:
    if not columns:
        return
    _check_changeable(version, columns)
    for what in ("primary_keys", "sort_keys", "partition_keys"):
        needed = [column for column in columns if column in version[what]]
        if needed:
            raise InvalidInputError(
                f"{_name(version)}: column {needed[0]!r} is one of the {what.replace('_', ' ')}, so it cannot be dropped"
            )
    tracked = [column for column in columns if version.keeps_history and column in version.tracked_columns]
    if tracked:
        raise InvalidInputError(
            f"{_name(version)}: column {tracked[0]!r} is tracked: versions are there since it changed, so it cannot be dropped"
        )
    kept = [column for column in version.fields if column.name not in columns]
    if not kept:
        raise InvalidInputError(f"{_name(version)}: cannot drop all columns; drop the table instead")
    version.dropped_fields = [
        *version.dropped_fields,
        *(
            DroppedField(**column, stream_position=newest_position)
            for column in version.fields
            if column.name in columns
        ),
    ]
    version.fields = kept
    version.schema_id += 1


def _rename_columns(version: TableVersion, names: Mapping[str, str]) -> None:
    """Rename all columns at once, so that two can swap their names."""
    if not names:
        return
    _check_changeable(version, list(names))
    fields = []
    for column in version.fields:
        name = names.get(column.name, column.name)
        stored = None if column.name_in_files == name else column.name_in_files
        fields.append(SchemaField.from_serializable({**column, "name": name, "stored_name": stored}))
    try:
        schema_from_json(fields)
    except InvalidInputError as error:
        raise InvalidInputError(f"{_name(version)}: {error}") from error
    version.fields = fields
    for what in ("primary_keys", "sort_keys", "partition_keys"):
        version[what] = [names.get(column, column) for column in version[what]]
    if HISTORY_TRACK.text_in(version.properties) is not None:
        tracked = [names.get(column, column) for column in version.tracked_columns]
        version.properties = {**version.properties, HISTORY_TRACK.name: ", ".join(tracked)}
        version.validate()
    version.schema_id += 1


def _check_changeable(version: TableVersion, columns: Sequence[str]) -> None:
    try:
        check_known(columns, version.schema, "column")
    except InvalidInputError as error:
        raise InvalidInputError(f"{_name(version)}: {error}") from error
    own = [column for column in columns if version.keeps_history and column in HISTORY_COLUMNS]
    if own:
        raise InvalidInputError(
            f"{_name(version)}: column {own[0]!r} is kept by merge engine history; it stays as it is"
        )
    kind = KIND.of(version.properties, _name(version))
    if kind != ROWS_KIND:
        raise InvalidInputError(f"{_name(version)}: is a table of {kind}, whose columns are fixed")


def _name(version: TableVersion) -> str:
    return version.locator.table_locator.full_name


def version_of(state: LogState, log: CommitLog, table: Table, chosen: VersionEntry) -> TableVersion:
    """Return the version from the state of its log. Raises: CorruptionError."""
    line = state.lines.get(VERSION_KEY)
    if line is None:
        raise CorruptionError(f"{log.address()}: the log of {table.locator.full_name} is missing or empty; restore it")
    key = (line, table.locator.full_name, chosen.version, chosen.lifecycle_state)
    pickled = _parsed_versions.get(key)
    if pickled is None:
        entry = state.get(VERSION_KEY) or {}
        locator = TableVersionLocator(**table.locator, table_version=chosen.version)
        with decoding(entry):
            parsed = named(TableVersion, {**entry, "lifecycle_state": chosen.lifecycle_state}, locator)
        pickled = pickle.dumps(parsed)
        if len(_parsed_versions) >= _PARSED_VERSIONS_LIMIT:
            _parsed_versions.clear()
        _parsed_versions[key] = pickled
    # What is handed out may be changed, so everybody gets a copy.
    version: TableVersion = pickle.loads(pickled)  # noqa: S301
    return version


def _read_version(table: Table, chosen: VersionEntry, root: str, *, recall: bool = False) -> TableVersion:
    log = version_log(root, chosen.folder)
    return (log.recall if recall else log.read)(lambda state: version_of(state, log, table, chosen))


def _next_number(table: Table) -> str:
    return str(max((int(entry.version) for entry in table.versions if entry.version.isdigit()), default=0) + 1)


def nameless(model: Any) -> Entry:
    """Write a model for a version's log: without its locator, since tables can be renamed, and without defaults."""
    return {key: value for key, value in model.without_defaults().items() if key != "locator"}


def named(kind: Any, entry: Entry, locator: Any) -> Any:
    """Read a model from a version's log, with the locator it has by today's table name."""
    with decoding(entry):
        return kind.from_serializable(
            {"locator": locator, **{key: value for key, value in entry.items() if key != "key"}}
        )
