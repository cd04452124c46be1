"""The state of a table that is published: one cut over all partitions, all of whose rows are in compacted files.

A read merges deltas where a partition's round is behind the others. A publisher cannot: it only names files. So it takes
the newest position at which no partition has deltas that wait.
"""

from typing import NamedTuple

from siltstone.errors import ConflictError, InvalidInputError
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.table.completion import Destination, compacted_partition, is_kept
from siltstone.table.snapshot import TableSnapshot, take_snapshot


def take_cut(name: str, *, root: str) -> TableSnapshot:
    """Return the newest snapshot of a table of rows in which no delta waits.

    Raises: NotFoundError, CorruptionError, InvalidInputError for documents, ConflictError where partitions are compacted
    to such different positions that there is none.
    """
    snapshot = newest = take_snapshot(name, root=root)
    if KIND.of(newest.version.properties, newest.version.locator) != ROWS_KIND:
        raise InvalidInputError(
            f"{name}: holds documents, which other formats have no rows for; only tables are published"
        )
    while snapshot.waiting:
        position = min(delta.locator.stream_position for delta in snapshot.waiting) - 1
        if len(snapshot.streams) > 1 or position <= 0:
            raise ConflictError(
                f"{name}: partitions are compacted up to different positions, so that no state of all is in files; compact "
                "the table, and publish again"
            )
        snapshot = take_snapshot(name, as_of=position, root=root)
    return snapshot


class Target(NamedTuple):
    """Where a table is published, what somebody else did there, if anything, and whether that is taken back."""

    folder: str
    address: str
    foreign: str | None
    replaces: bool


def take_cut_for(name: str, target: Target, *, root: str) -> TableSnapshot:
    """Return the cut that is published there next.

    Raises: as `take_cut`; ConflictError where others have written there, or where the table was replaced.
    """
    if target.foreign is not None and not target.replaces:
        raise ConflictError(
            f"{name}: {target.foreign} at {target.address}; nobody but Siltstone may write there. `siltstone publish "
            "--replace` takes back what they changed"
        )
    snapshot = take_cut(name, root=root)
    if any(not partition.folder.startswith(f"{target.folder}/") for partition in snapshot.partitions):
        raise ConflictError(f"{name}: was replaced by another version of the table meanwhile; publish again")
    return snapshot


def rounds_of(snapshot: TableSnapshot) -> dict[str, int]:
    """Return the round of each partition that has one, by the id of the partition."""
    return {
        partition.own.partition_id: partition.completion.round_id
        for partition in snapshot.partitions
        if partition.completion is not None
    }


def are_kept(snapshot: TableSnapshot) -> bool:
    """Return whether all rounds of a snapshot are still in the logs, so that a file of theirs that is missing is damage."""
    return all(
        is_kept(
            Destination(compacted_partition(partition.own), partition.folder, snapshot.root),
            {"round_id": partition.completion.round_id},
        )
        for partition in snapshot.partitions
        if partition.completion is not None
    )
