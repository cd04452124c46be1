"""What a merge of deltas into a compacted partition has to do, and how columns are called for it.

Columns can be renamed and dropped; inside files they keep their names. Rounds and reads work with the names inside the
files of the destination's table. Where the source is another table, columns that have the same name in both tables
today belong together, and of the others those with the same name in files.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.buckets import Buckets
from siltstone.model.properties import KIND, ROW_GROUP_ROWS, TOMBSTONE_RETENTION_SECONDS
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import SchemaField, evolve, schema_from_json, schema_to_json
from siltstone.objects import open_objects
from siltstone.rows.job import ReadTask, RoundJob, Settings, bucket_rows
from siltstone.storage import object_store as storage
from siltstone.table.completion import Destination


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


# A quarter of a million buckets, which is more than any table should have.
_FIRST_DEPTH = 18


class Keys(NamedTuple):
    """By what rows are merged; `sort` is None where the rules of the source's table tell."""

    primary: tuple[str, ...]
    sort: tuple[str, ...] | None = None

    def in_files(self, table: TableVersion) -> "Keys":
        """Return them as they are called in the files of their table."""
        sort = None if self.sort is None else tuple(table.names_in_files(self.sort))
        return Keys(tuple(table.names_in_files(self.primary)), sort)

    def with_default_sort(self, columns: SourceColumns) -> "Keys":
        """Return them with the sort keys of the source where none are given."""
        return self if self.sort is not None else Keys(self.primary, tuple(columns.sort_keys))


def since_overwrite(deltas: Sequence[Delta]) -> tuple[Sequence[Delta], bool]:
    """Return the deltas that count, and whether what was there before them does not: one may replace all before it."""
    for place in range(len(deltas) - 1, -1, -1):
        if deltas[place].replaces:
            return deltas[place:], True
    return deltas, False


def floor_before(deltas: Sequence[Delta]) -> str | None:
    """Return the floor that a partition began with, if its first delta is the first of these."""
    return deltas[0].inherited_floor if deltas else None


def delta_reads(deltas: Sequence[Delta], columns: SourceColumns) -> list[ReadTask]:
    """Return the files of deltas as tasks, numbered in stream order."""
    reads = []
    first_row = 0
    for run, delta in enumerate(deltas):
        for entry in delta.manifest.entries:
            reads.append(
                ReadTask(
                    uri=entry.uri,
                    run=run,
                    first_row=first_row,
                    record_count=entry.record_count,
                    content_length=entry.content_length,
                    is_delete=delta.type == "delete",
                    columns=columns.renamed(delta.columns),
                    op_column=delta.op_column,
                    delete_columns=columns.renamed(delta.delete_columns or ()),
                    names=tuple(columns.names.items()),
                    floor=delta.floor,
                )
            )
            first_row += entry.record_count
    return reads


def merging_job(
    destination: Destination,
    base: RoundCompletion | None,
    deltas: Sequence[Delta],
    keys: Keys,
    source: TableVersion,
    table: TableVersion,
    *,
    now_ms: int | None = None,
) -> RoundJob:
    """Return what a round from one state would have to do that reads the given deltas, all of them after that state."""
    columns = source_columns(source, table)
    schema = columns.schema_after(base.high_watermark if base else 0)
    counted, is_overwritten = since_overwrite(deltas)
    reads = delta_reads(counted, columns)
    return make_job(
        destination,
        base,
        reads,
        columns,
        keys.in_files(table),
        source,
        schema,
        now_ms=now_ms,
        is_overwritten=is_overwritten,
        floor=floor_before(counted),
    )


def make_job(
    destination: Destination,
    previous: RoundCompletion | None,
    reads: Sequence[ReadTask],
    columns: SourceColumns,
    keys: Keys,
    version: TableVersion,
    schema: pa.Schema,
    *,
    settings: Settings | None = None,
    now_ms: int | None = None,
    backlog: Sequence[Delta] = (),
    is_overwritten: bool = False,
    floor: str | None = None,
) -> RoundJob:
    """Return what a round does, starting from the one before, if any, and reading columns of `schema`.

    The rules are those of the source's version, all names those of the files of the destination's table. `backlog` has
    deltas that later rounds will read: a first round makes buckets for them, too. Where all rows from before are
    overwritten, the round begins with empty buckets, too. `floor` is that which deltas begin with; see `floor_before`.
    """
    settings = settings or Settings()
    if previous is not None:
        kept = [field for field in schema_from_json(previous.fields) if field.name not in columns.dropped_here]
        schema = evolve(pa.schema(kept), schema)
        # Hashes depend on the order of keys, so the order that was stored stays.
        keys = Keys(tuple(previous.primary_keys), tuple(previous.sort_keys))
    keys = keys.with_default_sort(columns)
    if version.keeps_history and keys.sort != tuple(columns.sort_keys):
        raise InvalidInputError(
            f"{destination.locator}: keeps history, whose versions are told apart by {', '.join(columns.sort_keys)}; it "
            f"cannot be sorted by {', '.join(keys.sort or ()) or 'nothing'}"
        )
    manifests = [delta.manifest for delta in backlog if delta.type != "delete"]
    coming = [(read.record_count, read.content_length) for read in reads if not read.is_delete]
    coming += [(manifest.record_count, manifest.content_length) for manifest in manifests]
    left_floor = None if previous is None or is_overwritten else previous.floor
    kept_buckets = None if previous is None or is_overwritten else previous.buckets
    coming += [(kept_buckets.totals.live_count, kept_buckets.totals.content_length)] if kept_buckets is not None else []
    rows, size = (sum(column) for column in zip(*coming, strict=True)) if coming else (0, 0)
    target = settings.bucket_rows or bucket_rows(rows, size)
    return RoundJob(
        root=destination.root,
        folder=destination.folder,
        fields=tuple(each.to_serializable() for each in schema_to_json(schema)),
        primary_keys=keys.primary,
        sort_keys=keys.sort or (),
        merge_engine=version.merge_engine,
        drop_duplicates=version.drop_duplicates,
        floor=max((each for each in (left_floor, floor) if each), default=None),
        buckets=_first_buckets(rows, target) if kept_buckets is None else kept_buckets,
        bucket_rows=target,
        reads=tuple(reads),
        settings=settings,
        now_ms=open_objects(destination.root).now_ms() if now_ms is None else now_ms,
        kind=KIND.of(version.properties, version.locator),
        table=version.locator.table_locator.full_name,
        properties=version.properties,
        seed=uuid.uuid4().int >> 64,
        row_group_rows=ROW_GROUP_ROWS.of(version.properties, version.locator),
        tracked=columns.renamed(version.names_in_files(version.tracked_columns)) if version.keeps_history else (),
        tombstone_retention_ms=round(TOMBSTONE_RETENTION_SECONDS.of(version.properties, version.locator) * 1000),
    )


def _first_buckets(rows: int, target: int) -> Buckets:
    """Return as many buckets as a table will need that begins with so many rows."""
    depth = 0
    # They split when they have twice the rows that they should have, so that half as many again are not too many.
    while rows >> depth > target * 3 // 2 and depth < _FIRST_DEPTH:
        depth += 1
    return Buckets.even(depth)
