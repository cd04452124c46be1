"""Adopting a table of another format: its rows, as of one version, become the first delta of a table of ours."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.errors import AlreadyExistsError, InvalidInputError
from siltstone.ingest.file_rows import Report
from siltstone.ingest.foreign import ForeignTable
from siltstone.model import Delta, Idempotency, TableRules, TableVersion
from siltstone.storage import object_store as storage
from siltstone.storage.conversion import stored_type
from siltstone.storage.interface import StreamLog

# Says which version of which table a table began with; that it is set says that it was adopted.
ADOPTED_FROM = "user.adopted_from"
_ADOPTION = Idempotency(app_id="adopt", batch_id=0)


@dataclass(frozen=True)
class Adopted:
    """What was adopted; `linked_files` of the files were taken over without copying them.

    In a dry run there is no position, and rows and files are not counted. `repeated` says that it had been done before.
    """

    table: str
    source: str
    stream_position: int | None
    rows: int
    files: int
    linked_files: int
    partition_keys: list[str]
    columns: int
    repeated: bool
    dry_run: bool


def adopt(
    root: str,
    name: str,
    source: ForeignTable,
    *,
    rules: TableRules,
    partitions_as_source: bool,
    description: str,
    dry_run: bool,
    progress: Report,
) -> Adopted:
    """Create a table and write all rows of the source to it as one commit; see `Lake.adopt_table`."""
    if partitions_as_source:
        rules.partition_keys = list(source.partition_keys)
    schema = _schema(source)
    if not dry_run and catalog.table_exists(name, root=root):
        _check_begun(catalog.get_table_version(name, root=root), name, source)
    else:
        # Who comes second with the same table in mind finds it there.
        catalog.create_table(
            name,
            schema=schema,
            rules=rules,
            description=description,
            properties={ADOPTED_FROM: source.name},
            dry_run=dry_run,
            root=root,
        )
    if dry_run:
        return Adopted(name, source.name, None, 0, 0, 0, rules.partition_keys, len(schema), False, True)
    repeated = storage.find_commit(catalog.delta_stream(name, root=root), _ADOPTION, root=root) is not None
    linked = False

    def stage(stream: StreamLog) -> list[Delta]:
        nonlocal linked
        deltas = storage.stage_files(source.files, stream, root=root) if source.files else None
        linked = deltas is not None
        return storage.stage_deltas(_counted(source, progress), stream, root=root) if deltas is None else deltas

    position = catalog.write_staged(name, stage, idempotency=_ADOPTION, root=root)
    deltas = catalog.list_deltas(name, first_stream_position=position, last_stream_position=position, root=root)
    files = [entry for delta in deltas for entry in delta.manifest.entries]
    version = catalog.get_table_version(name, root=root)
    return Adopted(
        table=name,
        source=source.name,
        stream_position=position,
        rows=sum(entry.record_count for entry in files),
        files=len(files),
        linked_files=len(files) if linked else 0,
        partition_keys=list(version.partition_keys),
        columns=len(version.fields),
        repeated=repeated,
        dry_run=False,
    )


def _schema(source: ForeignTable) -> pa.Schema:
    """Return the columns of a source in the types that tables have. Raises: InvalidInputError."""
    fields = [pa.field(field.name, stored_type(field.type, None, field.name)) for field in source.schema]
    return pa.schema(fields)


def _check_begun(version: TableVersion, name: str, source: ForeignTable) -> None:
    """Refuse a table that is not what an adoption of this very version has begun or done."""
    begun = version.properties.get(ADOPTED_FROM)
    if begun is None:
        raise AlreadyExistsError(f"{name}: exists already; drop it first, or choose another name")
    if begun != source.name:
        raise InvalidInputError(
            f"{name}: was adopted from {begun}, not from {source.name}; write what is new since, or adopt it under another name"
        )


def _counted(source: ForeignTable, progress: Report) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in source.batches():
        yield batch
        rows += batch.num_rows
        progress(f"Reading {source.address}: {rows:,} rows")
