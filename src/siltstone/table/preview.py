"""The first compacted rows of a table, for people who want to see what is in it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from siltstone.ingest.export import plain_rows
from siltstone.table.scan import scan_of
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot, take_snapshot


@dataclass(frozen=True)
class Preview:
    """Some compacted rows of a table, with values that JSON can hold.

    `total_rows` is how many compacted rows there are; the rows of `waiting_deltas` are not among them.
    """

    table: str
    columns: Sequence[str]
    rows: Sequence[Mapping[str, object]]
    total_rows: int
    waiting_deltas: int


def read_preview(name: str, limit: int, columns: Sequence[str] | None = None, *, root: str) -> Preview:
    """Return the first rows that rounds have written; a row group, or a few small ones, is read of as many files as it takes.

    Deltas that wait are not merged, so that the cost does not depend on how many there are.
    Raises: NotFoundError, InvalidInputError, CorruptionError.
    """
    snapshot = take_snapshot(name, root=root)
    names = scan_of(snapshot, columns).columns
    rows = (
        row
        for partition in snapshot.partitions
        for table in _compacted_rows(snapshot, partition, names)
        for batch in table.slice(0, limit).to_batches()
        for row in plain_rows(batch)
    )
    completions = [each.completion for each in snapshot.partitions if each.completion is not None]
    return Preview(
        table=name,
        columns=names,
        rows=list(itertools.islice(rows, limit)),
        total_rows=sum(each.live_rows for each in completions),
        waiting_deltas=snapshot.newer + len(snapshot.waiting),
    )


def _compacted_rows(
    snapshot: TableSnapshot, partition: PartitionSnapshot, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows that the round of a partition left, a row group at a time."""
    if partition.completion is None:
        return
    reader = scan_of(replace(snapshot, partitions=(replace(partition, waiting=()),)), columns).reader
    for bucket in partition.completion.buckets:
        for file in bucket.files:
            yield from reader.read_file([file])
