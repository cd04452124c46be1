"""The rows of a snapshot: all of them, or those of a key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from siltstone.compactor.completion import Destination, compacted_partition
from siltstone.compactor.live import Versions, key_table, live_batches, lookup, lookup_merged, merging_job, rows_after
from siltstone.log.commit import commit_log
from siltstone.model import TableVersion
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import check_known
from siltstone.rounds.plan import Request
from siltstone.rows.columns import align
from siltstone.rows.job import RoundJob
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot


class Chosen(NamedTuple):
    """The columns of a read: as the table names them, and as its files do."""

    schema: pa.Schema
    in_files: pa.Schema


def choose_columns(version: TableVersion, columns: Sequence[str] | None) -> Chosen:
    """Return the columns asked for, by default all. Raises: InvalidInputError."""
    schema, in_files = version.schema, version.as_in_files().schema
    names = schema.names if columns is None else [columns] if isinstance(columns, str) else list(columns)
    check_known(names, schema, "column")
    return Chosen(
        pa.schema([schema.field(name) for name in names]),
        pa.schema([in_files.field(name) for name in version.names_in_files(names)]),
    )


class Reads(NamedTuple):
    """What a snapshot is read from: rounds whose files have all rows, and what rounds would do that merge deltas."""

    rounds: list[RoundCompletion]
    jobs: list[RoundJob]


def plan_reads(snapshot: TableSnapshot) -> Reads:
    """Return what has to be read of each partition."""
    rounds = [each.completion for each in snapshot.partitions if each.completion is not None and not each.waiting]
    return Reads(rounds, [merge_of(snapshot, each) for each in snapshot.partitions if each.waiting])


def merge_of(snapshot: TableSnapshot, partition: PartitionSnapshot) -> RoundJob:
    """Return what a round would have to do that merges the deltas that wait in a partition."""
    assert partition.source is not None
    root, locator = snapshot.root, compacted_partition(partition.own)
    request = Request(partition.source, locator, tuple(snapshot.version.primary_keys), root)
    destination = Destination(locator, partition.folder, commit_log(root, f"{partition.folder}/log"), root)
    versions = Versions(snapshot.version_of(partition), snapshot.version)
    return merging_job(request, destination, partition.completion, partition.waiting, versions)


def read_batches(snapshot: TableSnapshot, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """Return a reader of the rows; without columns, its batches have rows still.

    Raises: InvalidInputError, CorruptionError.
    """
    chosen = choose_columns(snapshot.version, columns)
    tables = (table for each in snapshot.partitions for table in _partition_rows(snapshot, each, chosen))
    return pa.RecordBatchReader.from_batches(chosen.schema, _batches(tables, chosen))


def _partition_rows(snapshot: TableSnapshot, partition: PartitionSnapshot, chosen: Chosen) -> Iterator[pa.Table]:
    if partition.waiting:
        yield from rows_after(merge_of(snapshot, partition))
    elif partition.completion is not None:
        yield from live_batches(snapshot.root, partition.completion, chosen.in_files)


def _batches(tables: Iterable[pa.Table], chosen: Chosen) -> Iterator[pa.RecordBatch]:
    for table in tables:
        rows = align(table, chosen.in_files)
        # Aligned columns are all nullable; what is read has the table's own schema.
        yield from (pa.Table.from_arrays(rows.columns, schema=chosen.schema) if rows.columns else rows).to_batches()


def read_key(snapshot: TableSnapshot, key: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the rows of a primary key, found by the index: one at most, but for each partition.

    Raises: InvalidInputError, CorruptionError.
    """
    version = snapshot.version
    in_files, names = version.as_in_files(), version.names_by_file()
    wanted = key_table(version.schema, version.primary_keys, key).rename_columns(in_files.primary_keys)
    found: list[dict[str, object]] = []
    for partition in snapshot.partitions:
        if partition.waiting:
            found += lookup_merged(merge_of(snapshot, partition), wanted, in_files.schema)
        elif partition.completion is not None:
            rows = lookup(snapshot.root, partition.completion, wanted, in_files.schema)
            found += [row.values for row in rows]
    return [{names[stored]: value for stored, value in row.items()} for row in found]
