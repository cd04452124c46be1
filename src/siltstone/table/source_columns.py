"""How the columns of a source are called in the files of a destination.

Columns can be renamed and dropped; inside files they keep their names. Rounds and reads work with the names inside the
files of the destination's table. Where the source is another table, columns that have the same name in both tables
today belong together, and of the others those with the same name in files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model import PartitionLocator, TableVersion
from siltstone.model.schema import SchemaField, schema_from_json
from siltstone.storage import object_store as storage


@dataclass(frozen=True)
class SourceColumns:
    """The columns of a source with the names and ids of the destination's files.

    `names` has those that are called otherwise in the source's own files. `dropped_at` has the columns that were
    dropped from the source, and the newest position there was at that time; `dropped_here` those that the destination's
    table has dropped.
    """

    schema: pa.Schema
    dropped: pa.Schema
    dropped_at: Mapping[str, int]
    dropped_here: frozenset[str]
    sort_keys: list[str]
    names: Mapping[str, str]

    def schema_after(self, watermark: int) -> pa.Schema:
        """Return the columns that a round has to keep which reads deltas after a watermark.

        A column stays until the last delta from before it was dropped is compacted: one of them may be a delete that has to
        find its rows by it.
        """
        return pa.schema([*self.schema, *(each for each in self.dropped if self.dropped_at[each.name] > watermark)])

    def renamed(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return what columns of the source's files are called in the destination's."""
        return tuple(self.names.get(column, column) for column in columns)


def version_of(partition: PartitionLocator, *, root: str) -> TableVersion:
    """Return the table version that a partition belongs to. Raises: NotFoundError."""
    return storage.get_table_version(partition.namespace, partition.table, partition.table_version, root=root)


def source_columns(source: TableVersion, table: TableVersion) -> SourceColumns:
    """Find out how the columns of a source are called in the files of a destination's table.

    Raises: InvalidInputError where one would get the name of another.
    """
    by_name = {column.name: column.name_in_files for column in table.fields}
    names = {column.name: by_name[column.name] for column in source.fields if column.name in by_name}
    for column in source.fields:
        if column.name in names:
            continue
        if column.name_in_files in names.values():
            raise InvalidInputError(
                f"{source.locator}: column {column.name!r} is called {column.name_in_files!r} in files, as another "
                f"column of {table.locator} is; add a column {column.name!r} to that table first"
            )
        names[column.name] = column.name_in_files
    ids = {column.name_in_files: column.id for column in [*table.fields, *table.dropped_fields]}
    own = {column.name_in_files: names[column.name] for column in source.fields}
    is_same = source.locator == table.locator
    for column in source.dropped_fields:
        # The other table may come to have a column of that name, in which none of these values belong.
        own[column.name_in_files] = column.name_in_files if is_same else f"{column.name_in_files}_dropped_{column.id}"
    return SourceColumns(
        schema=_named(source.fields, own, ids),
        dropped=_named(source.dropped_fields, own, ids),
        dropped_at={own[column.name_in_files]: column.stream_position for column in source.dropped_fields},
        dropped_here=frozenset(column.name_in_files for column in table.dropped_fields),
        sort_keys=[names[key] for key in source.sort_keys],
        names={stored: name for stored, name in own.items() if stored != name},
    )


def _named(columns: Sequence[SchemaField], names: Mapping[str, str], ids: Mapping[str, int | None]) -> pa.Schema:
    fields = []
    for column in columns:
        name = names[column.name_in_files]
        fields.append(SchemaField(name=name, type=column.type, nullable=column.nullable, id=ids.get(name)))
    return schema_from_json(fields) if fields else pa.schema([])
