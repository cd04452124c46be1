"""Namespaces and tables: what the catalog log holds."""

import contextlib
from collections.abc import Mapping

from siltstone.errors import AlreadyExistsError, ConflictError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes, Commit
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import Namespace, NamespaceLocator, Table, TableLocator
from siltstone.model.locators import check_name, check_namespace
from siltstone.model.properties import change_properties
from siltstone.storage.layout import (
    NAMESPACE_PREFIX,
    TABLE_PREFIX,
    catalog_log,
    dropped_key,
    namespace_key,
    table_key,
)


def list_namespaces(*, root: str) -> list[Namespace]:
    """List all namespaces by name."""
    entries = catalog_log(root).read(lambda state: state.scan(NAMESPACE_PREFIX))
    return sorted(map(_namespace, entries), key=lambda namespace: namespace.locator.namespace)


def get_namespace(namespace: str, *, root: str) -> Namespace:
    """Get a namespace."""
    check_namespace(namespace)
    return catalog_log(root).read(lambda state: _known_namespace(state, namespace, root))


def namespace_exists(namespace: str, *, root: str) -> bool:
    """Return whether the namespace exists."""
    check_namespace(namespace)
    return catalog_log(root).read(lambda state: namespace_key(namespace) in state)


def create_namespace(namespace: str, *, properties: Mapping[str, str] | None = None, root: str) -> Namespace:
    """Create a namespace."""
    log = catalog_log(root)
    own = change_properties({}, properties or {}, f"namespace {namespace}", of_table=False)
    made = Namespace(locator=NamespaceLocator(namespace=namespace), properties=own)

    def prepare(state: LogState) -> Commit[Namespace]:
        if namespace_key(namespace) in state:
            raise AlreadyExistsError(f"{root}: namespace {namespace} exists already; use it, or choose another name")
        made.created_at = log.now_ms()
        return Commit({namespace_key(namespace): namespace_entry(made)}, made)

    return log.commit("create namespace", prepare, action=Action("create namespace", {"namespace": namespace})).result


def update_namespace(namespace: str, *, properties: Mapping[str, str | None], root: str) -> Namespace:
    """Set properties; None removes one."""

    def prepare(state: LogState) -> Commit[Namespace]:
        updated = _known_namespace(state, namespace, root)
        updated.properties = change_properties(updated.properties, properties, f"namespace {namespace}", of_table=False)
        return Commit({namespace_key(namespace): namespace_entry(updated)}, updated)

    action = Action("alter namespace", {"namespace": namespace, "properties": sorted(properties)})
    return catalog_log(root).commit("update namespace", prepare, action=action).result


def delete_namespace(namespace: str, *, root: str) -> None:
    """Delete an empty namespace."""

    def prepare(state: LogState) -> Changes:
        _known_namespace(state, namespace, root)
        tables = state.keys(f"{TABLE_PREFIX}{namespace}/")
        if tables:
            raise ConflictError(f"{root}: namespace {namespace} still has {len(tables)} tables; drop them first")
        return {namespace_key(namespace): None}

    catalog_log(root).commit("delete namespace", prepare, action=Action("drop namespace", {"namespace": namespace}))


def list_tables(namespace: str | None = None, *, root: str) -> list[Table]:
    """List the tables of one namespace or of all, by name."""

    def query(state: LogState) -> list[Entry]:
        if namespace is None:
            return state.scan(TABLE_PREFIX)
        _known_namespace(state, namespace, root)
        return state.scan(f"{TABLE_PREFIX}{namespace}/")

    return sorted(map(_table, catalog_log(root).read(query)), key=lambda table: table.locator.canonical_string())


def get_table(namespace: str, table: str, *, recall: bool = False, root: str) -> Table:
    """Get a table."""
    TableLocator(namespace=namespace, table=table)
    log = catalog_log(root)
    if recall:
        with contextlib.suppress(NotFoundError):
            return log.recall(lambda state: known_table(state, namespace, table, root))
    return log.read(lambda state: known_table(state, namespace, table, root))


def table_exists(namespace: str, table: str, *, root: str) -> bool:
    """Return whether the table exists."""
    TableLocator(namespace=namespace, table=table)
    return catalog_log(root).read(lambda state: table_key(namespace, table) in state)


def create_table(
    namespace: str, table: str, *, description: str = "", properties: Mapping[str, str] | None = None, root: str
) -> Table:
    """Create a table that has no version yet."""
    log = catalog_log(root)
    made = new_table(namespace, table, description=description, properties=properties)

    def prepare(state: LogState) -> Commit[Table]:
        _known_namespace(state, namespace, root)
        refuse_existing_table(state, namespace, table, root)
        made.created_at = log.now_ms()
        return Commit({table_key(namespace, table): table_entry(made)}, made)

    return log.commit("create table", prepare, action=Action("create", table=f"{namespace}.{table}")).result


def update_table(
    namespace: str,
    table: str,
    *,
    new_namespace: str | None = None,
    new_table: str | None = None,
    description: str | None = None,
    properties: Mapping[str, str | None] | None = None,
    root: str,
) -> Table:
    """Rename, move to another namespace, describe, or set properties, in one commit."""
    target = TableLocator(namespace=new_namespace or namespace, table=new_table or table)

    def prepare(state: LogState) -> Commit[Table]:
        updated = known_table(state, namespace, table, root)
        changes: dict[str, Entry | None] = {}
        if target != updated.locator:
            _known_namespace(state, target.namespace, root)
            refuse_existing_table(state, target.namespace, target.table, root)
            changes[table_key(namespace, table)] = None
            updated.locator = target
        if description is not None:
            updated.description = description
        updated.properties = _own_properties(updated, properties or {})
        changes[table_key(target.namespace, target.table)] = table_entry(updated)
        return Commit(changes, updated)

    named = {"to": "" if (target.namespace, target.table) == (namespace, table) else target.full_name}
    changed = {"properties": sorted(properties or {})}
    action = Action("rename" if named["to"] else "alter", {**named, **changed}, table=f"{namespace}.{table}")
    return catalog_log(root).commit("update table", prepare, action=action).result


def delete_table(namespace: str, table: str, *, root: str) -> None:
    """Delete a table with all its versions; its files become orphans, which the catalog remembers."""
    log = catalog_log(root)

    def prepare(state: LogState) -> Changes:
        doomed = known_table(state, namespace, table, root)
        dropped: Entry = {"table": doomed.locator.full_name, "dropped_at": max(log.now_ms(), state.time_ms)}
        return {
            table_key(namespace, table): None,
            **{dropped_key(version.folder): dropped for version in doomed.versions},
        }

    log.commit("delete table", prepare, action=Action("drop", table=f"{namespace}.{table}"))


def new_table(
    namespace: str, table: str, *, description: str = "", properties: Mapping[str, str] | None = None
) -> Table:
    """Make a table that is not committed yet."""
    made = Table(locator=TableLocator(namespace=namespace, table=table), description=description)
    made.properties = _own_properties(made, properties or {})
    return made


def known_table(state: LogState, namespace: str, table: str, root: str) -> Table:
    """Return a table from the catalog's state. Raises: NotFoundError."""
    entry = state.get(table_key(check_namespace(namespace), check_name(table, "table")))
    if entry is None:
        raise NotFoundError(
            f"{root}: there is no table {namespace}.{table}; `siltstone table list` shows what there is"
        )
    return _table(entry)


def refuse_existing_table(state: LogState, namespace: str, table: str, root: str) -> None:
    """Refuse a name that is taken. Raises: AlreadyExistsError."""
    if table_key(namespace, table) in state:
        raise AlreadyExistsError(
            f"{root}: table {namespace}.{table} exists already; drop it first, or choose another name"
        )


def _own_properties(table: Table, changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the properties after changes; those with a meaning belong to the versions of a table."""
    where = f"table {table.locator.full_name}, outside of its versions"
    return change_properties(table.properties, changes, where, of_table=False)


def namespace_entry(namespace: Namespace) -> Entry:
    """Write a namespace for the log."""
    return namespace.to_serializable()


def table_entry(table: Table) -> Entry:
    """Write a table for the log."""
    return table.to_serializable()


def _known_namespace(state: LogState, namespace: str, root: str) -> Namespace:
    entry = state.get(namespace_key(check_namespace(namespace)))
    if entry is None:
        raise NotFoundError(f"{root}: there is no namespace {namespace}; create it first")
    return _namespace(entry)


def _namespace(entry: Entry) -> Namespace:
    with decoding(entry):
        return Namespace.from_serializable({name: value for name, value in entry.items() if name != "key"})


def _table(entry: Entry) -> Table:
    with decoding(entry):
        return Table.from_serializable({name: value for name, value in entry.items() if name != "key"})
