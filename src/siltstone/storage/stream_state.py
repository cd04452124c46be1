"""A stream at one moment: its position, partitions and deltas, and the table version, from one state of one log."""

import datetime
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from siltstone.errors import InvalidInputError
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import DEFAULT_STREAM, Delta, Follower, Partition, StreamLocator, Table, TableVersion
from siltstone.model.entities import VersionEntry
from siltstone.storage import tables
from siltstone.storage.deltas import position_in_key, read_delta
from siltstone.storage.layout import delta_prefix, partition_key, partition_prefix, version_log
from siltstone.storage.streams import Located, read_followers, read_partition
from siltstone.storage.versions import choose_version, version_of

T = TypeVar("T")


class StreamState:
    """A stream as one state of its version's log has it; to be used only while that state stands still."""

    def __init__(self, place: Located, state: LogState, stream: StreamLocator) -> None:
        self.version: TableVersion = place.version
        self.locator = stream
        self.log = place.log
        self.log_address = place.log.address()
        self.stream_position: int = place.read(state, stream.stream).stream_position
        self._state = state

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions by their ids."""
        entries = self._state.scan(partition_prefix(self.locator.stream))
        found = [read_partition(entry, self.locator) for entry in entries]
        return {partition.locator.partition_id: partition for partition in found}

    def partition(self, partition_id: str) -> Partition | None:
        """Return the partition of an id, None where there is none."""
        entry = self._state.get(partition_key(self.locator.stream, partition_id))
        return None if entry is None else read_partition(entry, self.locator)

    def followers(self) -> list[Follower]:
        """Return who follows any of the partitions."""
        return read_followers(self._state, self.locator)

    def expiry_ms(self) -> int:
        """Return the time by which things may expire."""
        return self.log.expiry_in(self._state)

    def delta_keys(self) -> dict[str, dict[int, str]]:
        """Return the log keys of each partition's deltas, by partition id and position; those trimmed are not there."""
        keys: dict[str, dict[int, str]] = defaultdict(dict)
        for key in self._state.keys(delta_prefix(self.locator.stream)):
            keys[key.rpartition("/")[2]][position_in_key(self._state, key)] = key
        return keys

    def delta(self, key: str) -> Delta:
        """Return the delta under a log key. Raises: CorruptionError."""
        return read_delta(self._entry(key), self.locator)

    def position_at(self, moment: datetime.datetime) -> int:
        """Return the newest position that was committed by a time, 0 before the first.

        Raises: InvalidInputError where deltas are trimmed of which nothing says whether they were.
        """
        time_ms = int(moment.timestamp() * 1000)
        if time_ms >= self._state.time_ms:
            return self.stream_position
        position, following = 0, self.stream_position + 1
        for key in self._state.keys(delta_prefix(self.locator.stream)):
            own, entry = position_in_key(self._state, key), self._entry(key)
            with decoding(entry):
                is_by_then = int(entry.get("committed_at", 0)) <= time_ms
            if is_by_then:
                position = max(position, own)
            else:
                following = min(following, own)
        trimmed = max((each.trimmed_stream_position for each in self.partitions().values()), default=0)
        if trimmed > position and following > position + 1:
            raise InvalidInputError(
                f"{self.locator}: deltas up to position {trimmed} are trimmed, so which of them were committed by "
                f"{moment.isoformat()} is not known any more; give a position, or a later time"
            )
        return position

    def _entry(self, key: str) -> Entry:
        entry = self._state.get(key)
        assert entry is not None, key
        return entry


class StreamLog(NamedTuple):
    """A stream of a table version, found once; each `read` is of the newest state of the version's log."""

    locator: StreamLocator
    table: Table
    version: VersionEntry
    root: str

    @property
    def folder(self) -> str:
        """The folder of the stream."""
        return f"{self.version.folder}/{self.locator.stream}"

    def read(self, look: Callable[[StreamState], T]) -> T:
        """Call `look` on the stream, which stands still meanwhile. Raises: NotFoundError, CorruptionError."""
        log = version_log(self.root, self.version.folder)

        def read(state: LogState) -> T:
            version = version_of(state, log, self.table, self.version)
            return look(StreamState(Located(version, self.version.folder, log, state.batch_id), state, self.locator))

        return log.read(read)


def find_stream(
    namespace: str, table: str, table_version: str | None = None, stream: str = DEFAULT_STREAM, *, root: str
) -> StreamLog:
    """Find a stream of a table version, by default the deltas of the newest active one. Raises: NotFoundError."""
    known = tables.get_table(namespace, table, root=root)
    chosen = choose_version(known, table_version)
    locator = StreamLocator(namespace=namespace, table=table, table_version=chosen.version, stream=stream)
    return StreamLog(locator, known, chosen, root)


def find_stream_in(folder: str, *, root: str) -> StreamLog | None:
    """Find the stream that is kept in a folder, None where its table was dropped: names change, folders do not."""
    version_folder, _, stream = folder.rpartition("/")
    for table in tables.list_tables(root=root):
        for version in table.versions:
            if version.folder == version_folder:
                locator = StreamLocator(**table.locator, table_version=version.version, stream=stream)
                return StreamLog(locator, table, version, root)
    return None
