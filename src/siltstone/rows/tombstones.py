"""Tombstones: sort keys of deleted rows, kept for a while so that late, older rows do not come back."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.log.horizon import new_round_name
from siltstone.model import ManifestEntry
from siltstone.model.rounds import Bucket
from siltstone.objects import open_objects
from siltstone.rows.columns import align
from siltstone.rows.fold import NONE, FoldInput, FoldResult
from siltstone.rows.hashing import hash_keys
from siltstone.rows.job import RoundJob
from siltstone.storage.parquet import open_writer, read_data_file

SINCE = "_siltstone_since"


@dataclass(frozen=True)
class Tombstones:
    """The tombstones of a bucket: key and sort columns, and since when."""

    table: pa.Table

    def after(self, job: RoundJob, inputs: FoldInput, result: FoldResult, rows: pa.Table) -> "Tombstones":
        """Return the tombstones after a fold: old ones that still stand and have not expired, and new ones."""
        keys = inputs.tombstone_keys
        stand = result.is_tombstone[keys] & (result.tombstone_rows[keys] == NONE)
        young = pc.greater_equal(self.table.column(SINCE), job.expiry_ms - job.tombstone_retention_ms)
        kept = self.table.filter(pc.and_(pa.array(stand), young))
        new = result.tombstone_rows[result.is_tombstone & (result.tombstone_rows != NONE)] - inputs.base_count
        added = rows.take(pa.array(new)).select([*job.primary_keys, *_sort_columns(job)])
        added = added.append_column(SINCE, pa.array(np.full(len(new), job.now_ms, np.int64)))
        return Tombstones(pa.concat_tables([kept, align(added, kept.schema)]))

    def of_bucket(self, job: RoundJob, bucket: Bucket) -> "Tombstones":
        """Return those whose key belongs to a bucket."""
        if not bucket.depth:
            return self
        hashes = hash_keys(self.table, job.primary_keys)
        inside = hashes >> np.uint64(64 - bucket.depth) == np.uint64(bucket.bits)
        return Tombstones(self.table.filter(pa.array(inside)))


def read_tombstones(job: RoundJob, bucket: Bucket) -> Tombstones:
    """Read a bucket's tombstones. Raises: CorruptionError."""
    schema = _schema(job)
    if bucket.tombstones is None:
        return Tombstones(schema.empty_table())
    return Tombstones(align(read_data_file(job.root, bucket.tombstones), schema))


def write_tombstones(job: RoundJob, tombstones: Tombstones) -> ManifestEntry | None:
    """Write tombstones under a new name; return None if there are none."""
    if not tombstones.table.num_rows:
        return None
    path = f"{job.folder}/{new_round_name(job.began)}.tombstones"
    with open_objects(job.root).open_writer(path) as file:
        with open_writer(file, tombstones.table, _schema(job)) as writer:
            writer.write_table(tombstones.table)
        size = file.tell()
    return ManifestEntry(uri=path, record_count=tombstones.table.num_rows, content_length=size)


def _schema(job: RoundJob) -> pa.Schema:
    columns = [job.schema.field(name) for name in (*job.primary_keys, *_sort_columns(job))]
    return pa.schema([*columns, pa.field(SINCE, pa.int64())])


def _sort_columns(job: RoundJob) -> list[str]:
    return [name for name in job.sort_keys if name not in job.primary_keys]
