"""A partition of deltas at one moment: all that compacting it needs to know, from one state of its log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from siltstone.errors import NotFoundError
from siltstone.model import Delta, Follower, Partition, PartitionLocator, StreamLocator, TableVersion
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState


@dataclass(frozen=True)
class SourceState:
    """A partition, what its table is, its deltas after a position, and who follows its stream.

    `stream_position` is None where there is no such stream: compacted rows have none. `partition` is None where nothing
    was written to it yet. `expiry_ms` is the time by which things may expire.
    """

    locator: PartitionLocator
    folder: str
    version: TableVersion
    log: StreamLog
    expiry_ms: int
    # All streams of the version.
    streams: frozenset[str] = frozenset()
    stream_position: int | None = None
    partition: Partition | None = None
    deltas: tuple[Delta, ...] = ()
    followers: tuple[Follower, ...] = ()

    @property
    def log_address(self) -> str:
        """Where the log is."""
        return self.log.log_address

    @property
    def stream(self) -> StreamLocator:
        """The stream of the partition."""
        return self.locator.stream_locator

    @property
    def newest_position(self) -> int:
        """The position of the newest delta, 0 where there is none."""
        return 0 if self.partition is None else self.partition.stream_position

    @property
    def trimmed_position(self) -> int:
        """The position up to which deltas are trimmed."""
        return 0 if self.partition is None else self.partition.trimmed_stream_position

    def between(self, after: int, last: int | None) -> list[Delta]:
        """Return the deltas after a position and up to another."""
        return [
            delta
            for delta in self.deltas
            if delta.stream_position > after and (last is None or delta.stream_position <= last)
        ]


def read_source(partition: PartitionLocator, *, after: int = 0, root: str) -> SourceState:
    """Return a partition with its deltas after a position. Raises: NotFoundError, CorruptionError."""
    stream = storage.locate_stream(partition, root=root)
    return read_sources(stream, [partition], {partition.partition_id: after})[partition.partition_id]


def read_sources(
    stream: StreamLog, partitions: Iterable[PartitionLocator], after: Mapping[str, int]
) -> dict[str, SourceState]:
    """Return partitions of one stream by their ids, all at one moment; `after` has the position that each is read from.

    Raises: NotFoundError where the table is gone, CorruptionError.
    """

    def read(state: StreamState) -> dict[str, SourceState]:
        keys, followers, expiry_ms = state.delta_keys(), tuple(state.followers()), state.expiry_ms()
        streams = state.streams()
        return {
            locator.partition_id: SourceState(
                locator,
                f"{stream.folder}/{locator.partition_id}",
                state.version,
                stream,
                expiry_ms,
                streams,
                state.stream_position,
                state.partition(locator.partition_id),
                tuple(
                    state.delta(key)
                    for position, key in sorted(keys.get(locator.partition_id, {}).items())
                    if position > after.get(locator.partition_id, 0)
                ),
                followers,
            )
            for locator in partitions
        }

    try:
        return stream.read(read)
    except NotFoundError:
        table, root = stream.locator, stream.root
        version = storage.get_table_version(table.namespace, table.table, table.table_version, root=root)
        there = storage.list_streams(table.namespace, table.table, table.table_version, root=root)
        streams, expiry_ms = frozenset(each.locator.stream for each in there), stream.expiry_ms()
        return {
            partition.partition_id: SourceState(
                partition, f"{stream.folder}/{partition.partition_id}", version, stream, expiry_ms, streams
            )
            for partition in partitions
        }
