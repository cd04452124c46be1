"""Documents by key: what is stored of some of them, found by the primary key index and in the deltas since."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.documents.intake import ChangeKey, Stored, Update
from siltstone.documents.record import Row
from siltstone.documents.schema import KEY, NAME_PROPERTY, SCHEMA, StoredRow, grouped
from siltstone.model import Delta
from siltstone.model.rounds import Bucket, RoundCompletion
from siltstone.rows.columns import align
from siltstone.rows.files import StoredFile
from siltstone.rows.hashing import Hashes, hash_keys
from siltstone.storage.parquet import read_data_file
from siltstone.table.snapshot import take_snapshot

_BATCH_KEYS: Final = 1000
_CHANGE_KEYS: Final = pa.schema([SCHEMA.field(name) for name in (KEY, "change_id")])


def hash_changes(table: pa.Table | pa.RecordBatch) -> Hashes:
    """Return a hash of each row's key and change id."""
    return hash_keys(table, _CHANGE_KEYS.names)


def changes_of(table: pa.Table, name: str) -> dict[ChangeKey, Stored]:
    """Return the changes among the rows of a table."""
    return {
        (stored.row.key, change_id): (text, tags)
        for stored in grouped(table, name)
        for change_id, text, tags in stored.row.changes
    }


@dataclass(frozen=True)
class Snapshot:
    """A state of a table of documents: what was compacted, and the deltas since."""

    root: str
    # What conditions know the table by.
    name: str
    completion: RoundCompletion | None = None
    deltas: Sequence[Delta] = ()

    def documents(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        """Return all that is stored of documents, by key; nothing where nothing was written. Raises: CorruptionError."""
        rows = {key: StoredRow(Row((), (), key, self.name), [], [], [], []) for key in keys}
        for start in range(0, len(keys), _BATCH_KEYS):
            table = self.rows_of(keys[start : start + _BATCH_KEYS])
            rows.update((stored.row.key, stored) for stored in grouped(table, self.name))
        return rows

    def stored_changes(self, updates: Sequence[Update]) -> dict[ChangeKey, Stored]:
        """Return the changes that are stored under the change ids of updates. Raises: CorruptionError."""
        ids = [(update.key, update.change_id) for update in updates if update.change_id is not None]
        keys = sorted({key for key, _ in ids})
        if len(keys) <= _BATCH_KEYS:
            return changes_of(self.rows_of(keys), self.name) if keys else {}
        hashes = hash_changes(pa.table(list(zip(*ids, strict=True)), [KEY, "change_id"]))
        return changes_of(self.changes_among(hashes), self.name)

    def rows_of(self, keys: Sequence[str]) -> pa.Table:
        """Return the rows of some documents, in the order in which they were committed. Raises: CorruptionError."""
        keys_table = pa.table({KEY: pa.array(keys, pa.string())})
        tables = [SCHEMA.empty_table()]
        if self.completion is not None:
            tables += self._compacted(self.completion, keys_table)
        for delta in self.deltas:
            for entry in delta.manifest.entries:
                own = pc.is_in(read_data_file(self.root, entry, [KEY]).column(KEY), keys_table.column(KEY))
                if pc.any(own).as_py():
                    tables.append(align(read_data_file(self.root, entry).filter(own), SCHEMA))
        return pa.concat_tables(tables)

    def keys_among(self, keys: Sequence[str]) -> set[str]:
        """Return the keys of which anything is stored. Raises: CorruptionError."""
        keys_table = pa.table({KEY: pa.array(keys, pa.string())})
        schema = pa.schema([SCHEMA.field(KEY)])
        tables = list(self._compacted(self.completion, keys_table, schema)) if self.completion is not None else []
        tables += [read_data_file(self.root, entry, [KEY]) for delta in self.deltas for entry in delta.manifest.entries]
        own = (table.column(KEY).filter(pc.is_in(table.column(KEY), keys_table.column(KEY))) for table in tables)
        return {key for column in own for key in column.to_pylist()}

    def changes_among(self, hashes: Hashes) -> pa.Table:
        """Return the rows whose key and change id have one of these hashes, see `hash_changes`. Raises: CorruptionError."""
        tables = [SCHEMA.empty_table()]
        for bucket in self.completion.buckets if self.completion is not None else ():
            # A bucket that is never due has nothing but one record of each document.
            for file in bucket.files if bucket.due_at is not None or bucket.held_at is not None else ():
                stored = StoredFile(self.root, file)
                live = np.flatnonzero(stored.live_flags())
                own = live[np.isin(hash_changes(stored.read_rows(live, _CHANGE_KEYS)), hashes)]
                if len(own):
                    tables.append(stored.read_rows(own, SCHEMA))
        for delta in self.deltas:
            for entry in delta.manifest.entries:
                is_own = np.isin(hash_changes(read_data_file(self.root, entry, _CHANGE_KEYS.names)), hashes)
                if is_own.any():
                    tables.append(align(read_data_file(self.root, entry).filter(pa.array(is_own)), SCHEMA))
        return pa.concat_tables(tables)

    def _compacted(
        self, completion: RoundCompletion, keys_table: pa.Table, schema: pa.Schema = SCHEMA
    ) -> Iterator[pa.Table]:
        hashes = np.unique(hash_keys(keys_table, [KEY]))
        for bucket in completion.buckets:
            own = hashes[_is_of(bucket, hashes)]
            if not len(own):
                continue
            for file in bucket.files:
                stored = StoredFile(self.root, file)
                rows = stored.live_among(stored.index.find(own)[0])
                if len(rows):
                    table = stored.read_rows(rows, schema)
                    yield table.filter(pc.is_in(table.column(KEY), keys_table.column(KEY)))


def _is_of(bucket: Bucket, hashes: Hashes) -> "np.typing.NDArray[np.bool_]":
    """Flag the hashes of keys that belong into a bucket."""
    if not bucket.depth:
        return np.ones(len(hashes), np.bool_)
    flags: np.typing.NDArray[np.bool_] = hashes >> np.uint64(64 - bucket.depth) == np.uint64(bucket.bits)
    return flags


def snapshot_of(name: str, *, root: str) -> Snapshot:
    """Return the newest state of a table of documents. Raises: NotFoundError, CorruptionError."""
    table = take_snapshot(name, fresh=True, root=root)
    condition_name = table.version.properties.get(NAME_PROPERTY, name)
    for partition in table.partitions:
        return Snapshot(root, condition_name, partition.completion, partition.waiting)
    return Snapshot(root, condition_name)
