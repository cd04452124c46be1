"""The catalog implementation over storage: names, versions and properties; lookups and writes by name."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from siltstone.errors import CommitUnknownError, ConflictError, SiltstoneError
from siltstone.model import (
    Delta,
    DeltaType,
    Idempotency,
    Namespace,
    Overwrite,
    StreamLocator,
    Table,
    TableRules,
    TableVersion,
)
from siltstone.model.locators import check_position, split_table_name
from siltstone.storage import object_store as storage
from siltstone.storage.interface import ArrowData, StreamLog


def list_namespaces(*, root: str) -> list[Namespace]:
    """List all namespaces by name."""
    return storage.list_namespaces(root=root)


def create_namespace(namespace: str, *, properties: Mapping[str, str] | None = None, root: str) -> Namespace:
    """Create a namespace."""
    return storage.create_namespace(namespace, properties=properties, root=root)


def drop_namespace(namespace: str, *, root: str) -> None:
    """Drop an empty namespace."""
    storage.delete_namespace(namespace, root=root)


def list_tables(namespace: str | None = None, *, root: str) -> list[Table]:
    """List the tables of one namespace or of all, by name."""
    return storage.list_tables(namespace, root=root)


def get_table(name: str, *, recall: bool = False, root: str) -> Table:
    """Get a table."""
    return storage.get_table(*split_table_name(name), recall=recall, root=root)


def table_exists(name: str, *, root: str) -> bool:
    """Return whether the table exists."""
    return storage.table_exists(*split_table_name(name), root=root)


def create_table(
    name: str,
    *,
    schema: pa.Schema,
    rules: TableRules | None = None,
    description: str = "",
    properties: Mapping[str, str] | None = None,
    reserved_properties: Mapping[str, str] | None = None,
    dry_run: bool = False,
    root: str,
) -> TableVersion:
    """Create a table with its first version, and its namespace where that is missing, in one commit."""
    return storage.create_table_version(
        *split_table_name(name),
        schema=schema,
        rules=rules,
        description=description,
        properties=properties,
        reserved_properties=reserved_properties,
        create_parents=True,
        dry_run=dry_run,
        root=root,
    )


def get_table_version(name: str, table_version: str | None = None, *, recall: bool = False, root: str) -> TableVersion:
    """Get a version of a table, by default the newest active one."""
    return storage.get_table_version(*split_table_name(name), table_version, recall=recall, root=root)


def alter_table(
    name: str,
    table_version: str | None = None,
    *,
    add_columns: pa.Schema | None = None,
    rename_columns: Mapping[str, str] | None = None,
    drop_columns: Sequence[str] = (),
    unique_within_partition: bool | None = None,
    description: str | None = None,
    properties: Mapping[str, str | None] | None = None,
    dry_run: bool = False,
    root: str,
) -> TableVersion:
    """Drop, rename and add columns (or widen them), describe, set properties (None removes one)."""
    return storage.update_table_version(
        *split_table_name(name),
        table_version,
        add_columns=add_columns,
        rename_columns=rename_columns,
        drop_columns=drop_columns,
        unique_within_partition=unique_within_partition,
        description=description,
        properties=properties,
        dry_run=dry_run,
        root=root,
    )


def rename_table(name: str, new_name: str, *, root: str) -> Table:
    """Rename a table, also into another namespace that exists."""
    new_namespace, new_table = split_table_name(new_name)
    return storage.update_table(*split_table_name(name), new_namespace=new_namespace, new_table=new_table, root=root)


def drop_table(name: str, *, root: str) -> None:
    """Drop a table; its files become orphans."""
    storage.delete_table(*split_table_name(name), root=root)


def write_to_table(
    data: ArrowData,
    name: str,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    evolve: bool = True,
    idempotency: Idempotency | None = None,
    stream_position: int | None = None,
    expected_properties: Mapping[str, str | None] | None = None,
    overwrite: Overwrite | None = None,
    root: str,
) -> int:
    """Write data as one commit and return its stream position."""

    def stage(stream: StreamLog) -> list[Delta]:
        return storage.stage_deltas(
            data, stream, type=type, delete_columns=delete_columns, op_column=op_column, evolve=evolve, root=root
        )

    return write_staged(
        name,
        stage,
        idempotency=idempotency,
        stream_position=stream_position,
        expected_properties=expected_properties,
        overwrite=overwrite,
        root=root,
    )


def write_staged(
    name: str,
    stage: Callable[[StreamLog], list[Delta]],
    *,
    idempotency: Idempotency | None = None,
    rising_ids: bool = False,
    stream_position: int | None = None,
    expected_properties: Mapping[str, str | None] | None = None,
    overwrite: Overwrite | None = None,
    root: str,
) -> int:
    """Commit what `stage` makes for a table's stream of deltas; what was committed before is not staged again."""
    if stream_position is not None:
        check_position(stream_position, f"{name}:", least=1)
    stream = storage.find_stream(*split_table_name(name), root=root)
    stream.refresh()
    if idempotency is not None:
        before = storage.find_commit(stream, idempotency, root=root)
        if before is not None:
            return before
    with stream.announced():
        staged = stage(stream)
        with discarded_on_error(staged, root=root):
            committed = storage.commit_deltas(
                staged,
                stream,
                stream_position=stream_position,
                idempotency=idempotency,
                rising_ids=rising_ids,
                expected_properties=expected_properties,
                overwrite=overwrite,
                root=root,
            )
    return committed.stream_position


def commit_staged(
    staged: Sequence[Delta],
    stream: StreamLocator | None = None,
    *,
    idempotency: Idempotency | None = None,
    rising_ids: bool = False,
    expected_properties: Mapping[str, str | None] | None = None,
    overwrite: Overwrite | None = None,
    root: str,
) -> int:
    """Commit what other processes staged for one stream of deltas; return the stream position.

    Without a stream, it is that of the first delta. Where that fails, the files stay. Raises: as `commit_deltas`; ConflictError where the table is another one by now.
    """
    source = storage.locate_stream(stream or staged[0].locator.stream_locator, root=root)
    for entry in (entry for delta in staged for entry in delta.manifest.entries):
        if not entry.uri.startswith(f"{source.folder}/"):
            name = source.locator.table_locator.full_name
            raise ConflictError(f"{name}: was dropped and created again while this was being written; write it again")
    committed = storage.commit_deltas(
        staged,
        source,
        idempotency=idempotency,
        rising_ids=rising_ids,
        expected_properties=expected_properties,
        overwrite=overwrite,
        root=root,
    )
    return committed.stream_position


@contextlib.contextmanager
def discarded_on_error(staged: Sequence[Delta], *, root: str) -> Iterator[None]:
    """Delete the files of staged deltas if an error of ours says that they were not committed."""
    try:
        yield
    except CommitUnknownError:
        raise  # the commit may name these files
    except SiltstoneError:
        storage.discard_deltas(staged, root=root)
        raise


def list_deltas(
    name: str,
    *,
    first_stream_position: int | None = None,
    last_stream_position: int | None = None,
    root: str,
) -> list[Delta]:
    """List the committed deltas of a table, all partitions, by stream position."""
    return storage.list_deltas(
        delta_stream(name, root=root),
        first_stream_position=first_stream_position,
        last_stream_position=last_stream_position,
        root=root,
    )


def version_folder(name: str, *, root: str) -> str:
    """Return the folder of a table's newest active version."""
    return get_table(name, root=root).choose_version().folder


def delta_stream(name: str, *, root: str) -> StreamLocator:
    """Return the stream of deltas of a table's newest active version."""
    return storage.find_stream(*split_table_name(name), root=root).locator
