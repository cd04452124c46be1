"""The changes of a published version in files of their own, where its data files do not tell them.

Readers of Delta Lake's change data feed take what a version adds for inserts, and what it removes, or lets die, for deletes. That
is what changed where rounds only added. A round that merges or rewrites files also moves rows that are as they were; then
the version names files with all its changes, and readers take these alone.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import NotFoundError
from siltstone.model import PartitionValue
from siltstone.model.schema import nullable
from siltstone.publish.cut import rounds_of
from siltstone.publish.live_files import PartitionChange
from siltstone.storage.parquet import DataFileWriter
from siltstone.table.change_feed import CHANGE_TYPE, Changes
from siltstone.table.round_bounds import find_spans
from siltstone.table.snapshot import TableSnapshot

CHANGE_FOLDER = "_change_data"
# As Delta Lake has them; those of inserts and deletes are the same.
_TYPES = {"update_before": "update_preimage", "update_after": "update_postimage"}


class ChangeFile(NamedTuple):
    """A file with changes of one partition."""

    uri: str
    size: int
    partition_values: Sequence[PartitionValue]


def changes_to_write(
    snapshot: TableSnapshot, rounds: Mapping[str, int], changes: Sequence[PartitionChange]
) -> Changes | None:
    """Return what changed since the rounds that are published; None where that is no longer known.

    A round that was published may be forgotten, or a partition gone.
    """
    if any(change.round_id is None for change in changes):
        return None
    known = {partition.own.partition_id for partition in snapshot.partitions}
    after = {partition: number for partition, number in rounds.items() if partition in known}
    version = snapshot.version
    columns = tuple(column.name for column in version.fields if column.name not in version.partition_keys)
    try:
        spans = find_spans(snapshot, after, rounds_of(snapshot), {})
    except NotFoundError:
        return None
    return Changes(snapshot.root, snapshot.name, version, columns, tuple(spans))


def write_change_files(changes: Changes, snapshot: TableSnapshot, folder: str) -> list[ChangeFile]:
    """Write changes into the folder of a table version, and return the files; none where nothing changed.

    Raises: CorruptionError, and NotFoundError where a round was vacuumed meanwhile.
    """
    values = {each.own.partition_id: each.own.partition_values for each in snapshot.partitions}
    version = changes.version.as_in_files()
    own = [nullable(version.schema).field(name) for name in changes.version.names_in_files(changes.columns)]
    schema = pa.schema([*own, pa.field(CHANGE_TYPE, pa.string())])
    files: list[ChangeFile] = []
    for span in changes.spans:
        names = (f"{folder}/{CHANGE_FOLDER}/cdc-{uuid.uuid4()}.parquet" for _ in repeat(None))
        writer = DataFileWriter(snapshot.root, names, schema)
        try:
            for batch in _renamed(replace(changes, spans=(span,)), schema):
                writer.write(batch)
            written = writer.close()
        except BaseException:
            # A vacuum removes them.
            writer.abandon()
            raise
        files += [ChangeFile(entry.uri, entry.content_length, values[span.partition_id]) for entry in written]
    return files


def _renamed(changes: Changes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield changes with the names of columns in files, and the types of changes that Delta Lake has."""
    for batch in changes:
        types = batch.column(CHANGE_TYPE)
        for ours, theirs in _TYPES.items():
            types = pc.if_else(pc.equal(types, ours), theirs, types)
        columns = [batch.column(name) for name in changes.columns]
        yield pa.RecordBatch.from_arrays([*columns, types], schema=schema)
