"""Streams of deltas, their partitions, and who follows them: what the log of a table version says at one moment."""

import bisect
import contextlib
import datetime
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar, overload

import orjson

from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Commit, CommitLog, Committed
from siltstone.log.horizon import announced
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import (
    DEFAULT_STREAM,
    Delta,
    DeltaLocator,
    Follower,
    Partition,
    PartitionLocator,
    PartitionValue,
    Stream,
    StreamLocator,
    Table,
    TableVersion,
)
from siltstone.model.entities import VersionEntry
from siltstone.model.properties import CLOSED_BEFORE_MS, change_properties
from siltstone.storage import interface, tables
from siltstone.storage.layout import (
    DELTA_KIND,
    STREAM_PREFIX,
    VERSION_KEY,
    delta_key,
    delta_prefix,
    follower_key,
    follower_prefix,
    partition_key,
    partition_prefix,
    stream_key,
    version_log,
)
from siltstone.storage.versions import named, nameless, version_of

T = TypeVar("T")
R = TypeVar("R")


class StoredState:
    """A stream as one state of its version's log has it; see `interface.StreamState`. Raises: NotFoundError."""

    def __init__(self, source: "StoredStream", state: LogState) -> None:
        self.locator = source.locator
        self.log_address = source.log_address
        self.entries = state
        self._source = source
        entry = state.get(stream_key(self.locator.stream))
        if entry is None:
            version = self.version
            streams = ", ".join(sorted(self.streams()))
            raise NotFoundError(f"{version.locator}: there is no stream {self.locator.stream}; there are: {streams}")
        self.stream: Stream = named(Stream, entry, self.locator)

    @functools.cached_property
    def version(self) -> TableVersion:
        """The version of the table."""
        return self._source.version_in(self.entries)

    @property
    def stream_position(self) -> int:
        """The newest position."""
        return self.stream.stream_position

    def streams(self) -> frozenset[str]:
        """Return the names of all streams of the version."""
        return frozenset(key.removeprefix(STREAM_PREFIX) for key in self.entries.keys(STREAM_PREFIX))

    def partitions(self) -> dict[str, Partition]:
        """Return the partitions by their ids."""
        entries = self.entries.scan(partition_prefix(self.locator.stream))
        partitions = [_read_partition(entry, self.locator) for entry in entries]
        return {partition.locator.partition_id: partition for partition in partitions}

    def partition(self, partition_id: str) -> Partition | None:
        """Return the partition with this id, or None."""
        entry = self.entries.get(partition_key(self.locator.stream, partition_id))
        return None if entry is None else _read_partition(entry, self.locator)

    def known_partition(self, partition: PartitionLocator) -> Partition:
        """Return a partition. Raises: NotFoundError."""
        existing = self.partition(partition.partition_id)
        if existing is None:
            raise NotFoundError(
                f"{partition}: there is no such partition; it begins with the first delta written to it"
            )
        return existing

    def followers(self) -> list[Follower]:
        """Return the followers of all partitions."""
        return [
            _read_follower(entry, self.locator) for entry in self.entries.scan(follower_prefix(self.locator.stream))
        ]

    def expiry_ms(self) -> int:
        """Return the time by which things may expire."""
        return self._source.log.expiry_in(self.entries)

    def deltas(self, partition_id: str, after: int = 0, upto: int | None = None) -> "StoredDeltas":
        """Return the deltas of a partition after a position and up to another, by position; those trimmed are not there.

        Raises: CorruptionError, also when one is asked for that is damaged.
        """
        positions, lines = self._lines().of(self.locator.stream, partition_id)
        end = len(positions) if upto is None else bisect.bisect_right(positions, upto)
        return StoredDeltas(self.locator, lines[bisect.bisect_right(positions, after) : end], self.entries.parse)

    def delta_keys(self, partition_id: str, upto: int | None = None) -> list[str]:
        """Return the log keys of a partition's deltas up to a position. Raises: CorruptionError."""
        stream = self.locator.stream
        positions, _ = self._lines().of(stream, partition_id)
        end = len(positions) if upto is None else bisect.bisect_right(positions, upto)
        return [delta_key(stream, position, partition_id) for position in positions[:end]]

    def _lines(self) -> "_DeltaLines":
        index = self.entries.index(DELTA_KIND, _DeltaLines)
        for key in index.damaged:
            with decoding(self._entry(key)):
                raise ValueError(f"{key!r} has no position")
        return index

    def positions(self) -> Iterator[tuple[int, str]]:
        """Yield the position and log key of each delta. Raises: CorruptionError."""
        self._lines()
        for key in self.entries.keys(delta_prefix(self.locator.stream)):
            yield int(key.split("/")[2]), key

    def delta(self, key: str) -> Delta:
        """Return the delta under a log key. Raises: CorruptionError."""
        return _read_delta(self._entry(key), self.locator)

    def position_at(self, moment: datetime.datetime) -> int:
        """Return the newest position that was committed by a time, 0 before the first.

        Raises: InvalidInputError where deltas are trimmed of which nothing says whether they were.
        """
        time_ms = int(moment.timestamp() * 1000)
        if time_ms >= self.entries.time_ms:
            return self.stream_position
        newest, following = 0, self.stream_position + 1
        for position, key in self.positions():
            entry = self._entry(key)
            with decoding(entry):
                is_by_then = int(entry.get("committed_at", 0)) <= time_ms
            if is_by_then:
                newest = max(newest, position)
            else:
                following = min(following, position)
        trimmed = max((partition.trimmed_stream_position for partition in self.partitions().values()), default=0)
        if trimmed > newest and following > newest + 1:
            raise InvalidInputError(
                f"{self.locator}: deltas up to position {trimmed} are trimmed, so which of them were committed by "
                f"{moment.isoformat()} is no longer known; give a position, or a later time"
            )
        return newest

    def _entry(self, key: str) -> Entry:
        entry = self.entries.get(key)
        assert entry is not None, key
        return entry


class StoredDeltas(Sequence[Delta]):
    """Deltas of one partition by position, each read from its line of the log when it is asked for."""

    def __init__(
        self, stream: StreamLocator, lines: Sequence[bytes], parse: Callable[[bytes], Entry] = orjson.loads
    ) -> None:
        self._stream = stream
        self._lines = lines
        self._parse = parse

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, number: int) -> Delta: ...

    @overload
    def __getitem__(self, number: slice) -> "StoredDeltas": ...

    def __getitem__(self, number: int | slice) -> "Delta | StoredDeltas":
        if isinstance(number, slice):
            return StoredDeltas(self._stream, self._lines[number], self._parse)
        return _read_delta(self._parse(self._lines[number]), self._stream)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as any list, it is compared by what it has

    def __repr__(self) -> str:
        return f"<{len(self)} deltas of {self._stream}>"

    def __reduce__(self) -> tuple[type["StoredDeltas"], tuple[StreamLocator, Sequence[bytes]]]:
        return StoredDeltas, (self._stream, self._lines)


class _DeltaLines:
    """The lines of all deltas in the log of a table version: by stream and partition, in order of their positions."""

    def __init__(self) -> None:
        self.damaged: list[str] = []
        self._by_partition: dict[tuple[str, str], tuple[list[int], list[bytes]]] = {}

    def of(self, stream: str, partition_id: str) -> tuple[list[int], list[bytes]]:
        return self._by_partition.get((stream, partition_id), ([], []))

    def add(self, key: str, line: bytes) -> None:
        try:
            _, stream, number, partition_id = key.split("/")
            position = int(number)
        except ValueError:
            self.damaged.append(key)
            return
        positions, lines = self._by_partition.setdefault((stream, partition_id), ([], []))
        place = bisect.bisect_left(positions, position)
        positions.insert(place, position)
        lines.insert(place, line)


class StoredStream(NamedTuple):
    """A stream of a table version, found once by its name; see `interface.StreamLog`."""

    locator: StreamLocator
    table: Table
    version: VersionEntry
    root: str

    @property
    def version_folder(self) -> str:
        """The folder of the table version."""
        return self.version.folder

    @property
    def folder(self) -> str:
        """The folder of the stream."""
        return f"{self.version_folder}/{self.locator.stream}"

    @property
    def log_address(self) -> str:
        """Where the log of the version is, for messages."""
        return self.log.address()

    @property
    def log(self) -> CommitLog:
        """The log of the version."""
        return version_log(self.root, self.version_folder)

    def version_in(self, state: LogState) -> TableVersion:
        """Return the version of the table. Raises: CorruptionError."""
        return version_of(state, self.log, self.table, self.version)

    def read(self, query: Callable[[StoredState], T]) -> T:
        """Call `query` on the stream, which stands still meanwhile. Raises: NotFoundError, CorruptionError."""
        return self.log.read(lambda state: query(StoredState(self, state)))

    def refresh(self) -> None:
        """Read what is new."""
        self.log.read(lambda _: None)

    def recall(self, query: Callable[[StoredState], T]) -> T:
        """Call `query` on the stream as this process knows it already; where it does not, as `read` does."""
        return self.log.recall(lambda state: query(StoredState(self, state)))

    def commit(
        self, operation: str, prepare: Callable[[StoredState], Commit[R]], *, action: Action | None = None
    ) -> Committed[R]:
        """Commit what `prepare` makes of the newest state; see `CommitLog.commit`. Raises: NotFoundError as well."""
        return self.log.commit(operation, lambda state: prepare(StoredState(self, state)), action=action)

    def expiry_ms(self) -> int:
        """Return the time by which things may expire; see `CommitLog.expiry_ms`."""
        return self.log.expiry_ms()

    def time_warning(self, expiry_ms: int) -> str | None:
        """Return why things expire by an earlier time than now, or None if they do not."""
        return self.log.time_warning(expiry_ms)

    def announced(self) -> contextlib.AbstractContextManager[None]:
        """Keep vacuums away from what is staged for the stream meanwhile."""
        return announced(self.log, self.log.recall(lambda state: state.batch_id))


def locate(stream: interface.StreamLike, root: str) -> StoredStream:
    """Find a stream, or that of a partition or delta, unless it is found already. Raises: NotFoundError."""
    if not isinstance(stream, StreamLocator):
        assert isinstance(stream, StoredStream), stream
        return stream
    return _find(stream.namespace, stream.table, stream.table_version, stream.stream, root)


def _find(
    namespace: str, table: str, table_version: str | None, stream: str, root: str, *, recall: bool = False
) -> StoredStream:
    parent = tables.get_table(namespace, table, recall=recall, root=root)
    chosen = parent.choose_version(table_version)
    locator = StreamLocator(namespace=namespace, table=table, table_version=chosen.version, stream=stream)
    return StoredStream(locator, parent, chosen, root)


def locate_stream(stream: StreamLocator, *, root: str) -> interface.StreamLog:
    """Find a stream, or that of a partition or delta."""
    return locate(stream, root)


def find_stream(
    namespace: str,
    table: str,
    table_version: str | None = None,
    stream: str = DEFAULT_STREAM,
    *,
    recall: bool = False,
    root: str,
) -> interface.StreamLog:
    """Find a stream of a table version, by default the deltas of the newest active one."""
    return _find(namespace, table, table_version, stream, root, recall=recall)


def find_stream_in(folder: str, *, root: str) -> interface.StreamLog | None:
    """Return the stream kept in a folder, or None if its table was dropped: names change, folders do not."""
    version_folder, _, stream = folder.rpartition("/")
    for table in tables.list_tables(root=root):
        for version in table.versions:
            if version.folder == version_folder:
                locator = StreamLocator(**table.locator, table_version=version.version, stream=stream)
                return StoredStream(locator, table, version, root)
    return None


def list_streams(namespace: str, table: str, table_version: str | None = None, *, root: str) -> list[Stream]:
    """List the committed streams of a version."""
    source = _find(namespace, table, table_version, DEFAULT_STREAM, root)

    def query(state: LogState) -> list[Stream]:
        locator = source.version_in(state).locator
        return [
            named(Stream, entry, StreamLocator(**locator, stream=entry["key"].removeprefix(STREAM_PREFIX)))
            for entry in state.scan(STREAM_PREFIX)
        ]

    return source.log.read(query)


def get_stream(stream: StreamLocator, *, root: str) -> Stream:
    """Get a committed stream."""
    return locate(stream, root).read(lambda state: state.stream)


def stream_exists(stream: StreamLocator, *, root: str) -> bool:
    """Return whether the stream exists and is committed."""
    try:
        get_stream(stream, root=root)
    except NotFoundError:
        return False
    return True


def stage_stream(stream: StreamLocator, *, properties: Mapping[str, str] | None = None, root: str) -> Stream:
    """Make a stream that nobody sees until it is committed."""
    source = locate(stream, root)
    own = change_properties({}, properties or {}, f"stream {stream.stream}", of_table=False)
    return Stream(locator=source.locator, state="staged", properties=own)


def commit_stream(stream: Stream, *, root: str) -> Stream:
    """Commit a staged stream."""
    log = locate(stream.locator, root).log
    key = stream_key(stream.locator.stream)

    def prepare(state: LogState) -> Commit[Stream]:
        if key in state:
            raise AlreadyExistsError(f"{stream.locator}: exists already; choose another name")
        stream.state = "committed"
        stream.created_at = log.now_ms()
        return Commit({key: nameless(stream)}, stream)

    return log.commit("commit stream", prepare).result


def delete_stream(stream: StreamLocator, *, root: str) -> None:
    """Delete a stream with its partitions and deltas; files become orphans."""
    name = stream.stream

    def prepare(state: StoredState) -> Commit[None]:
        prefixes = (partition_prefix(name), delta_prefix(name), follower_prefix(name))
        keys = [stream_key(name), *(key for prefix in prefixes for key in state.entries.keys(prefix))]
        return Commit(dict.fromkeys(keys), None)

    locate(stream, root).commit("delete stream", prepare, action=Action("delete stream", {"stream": name}))


def close_stream(stream: StreamLocator, *, before_ms: int, root: str) -> bool:
    """Close a stream up to a time, unless it is closed up to a later one; return whether that changed anything."""

    def prepare(state: StoredState) -> Commit[bool]:
        version = state.version
        closed_before_ms = CLOSED_BEFORE_MS.of(version.properties, "the table")
        if closed_before_ms is not None and closed_before_ms >= before_ms:
            return Commit({}, False)
        version.properties = {**version.properties, CLOSED_BEFORE_MS.name: str(before_ms)}
        return Commit({VERSION_KEY: nameless(version)}, True)

    return locate(stream, root).commit("close stream", prepare).result


def list_partitions(stream: StreamLocator, *, root: str) -> list[Partition]:
    """List the committed partitions of a stream."""
    return locate(stream, root).read(lambda state: list(state.partitions().values()))


def get_partition(partition: PartitionLocator, *, root: str) -> Partition:
    """Get a committed partition."""
    return locate(partition, root).read(lambda state: state.known_partition(partition))


def partition_exists(partition: PartitionLocator, *, root: str) -> bool:
    """Return whether the partition exists and is committed."""
    try:
        get_partition(partition, root=root)
    except NotFoundError:
        return False
    return True


def stage_partition(stream: StreamLocator, partition_values: Sequence[PartitionValue] = (), *, root: str) -> Partition:
    """Make a partition that nobody sees until it is committed."""
    source = locate(stream, root)
    source.log.read(source.version_in).check_partition_values(partition_values)
    locator = PartitionLocator(**source.locator, partition_values=list(partition_values))
    return Partition(locator=locator, state="staged")


def commit_partition(partition: Partition, *, root: str) -> Partition:
    """Commit a staged partition; committing a delta into it does so too."""
    source = locate(partition.locator, root)

    def prepare(state: StoredState) -> Commit[Partition]:
        if state.partition(partition.locator.partition_id) is not None:
            raise AlreadyExistsError(f"{partition.locator}: exists already")
        partition.state = "committed"
        partition.created_at = source.log.now_ms()
        return Commit(partition_change(partition), partition)

    return source.commit("commit partition", prepare).result


def delete_partition(partition: PartitionLocator, *, root: str) -> None:
    """Delete a partition with its deltas; files become orphans."""

    def prepare(state: StoredState) -> Commit[None]:
        state.known_partition(partition)
        deltas = state.delta_keys(partition.partition_id)
        return Commit(dict.fromkeys([partition_key(partition.stream, partition.partition_id), *deltas]), None)

    action = Action("delete partition", {"stream": partition.stream, "partition": partition.partition_id})
    locate(partition, root).commit("delete partition", prepare, action=action)


def partition_change(partition: Partition) -> dict[str, Entry]:
    """Write a partition for the log."""
    locator = partition.locator
    return {partition_key(locator.stream, locator.partition_id): _with_values(partition)}


def _read_delta(entry: Entry, stream: StreamLocator) -> Delta:
    with decoding(entry):
        values, position = entry.pop("values"), entry.pop("stream_position")
        locator = DeltaLocator(**stream, partition_values=values, stream_position=position)
        delta: Delta = named(Delta, entry, locator)
        return delta


def _with_values(model: Partition | Follower) -> Entry:
    return {"values": list(model.locator.partition_values), **nameless(model)}


def _read_partition(entry: Entry, stream: StreamLocator) -> Partition:
    with decoding(entry):
        locator = PartitionLocator(**stream, partition_values=entry.pop("values"))
        partition: Partition = named(Partition, entry, locator)
        return partition


def list_followers(stream: StreamLocator, *, root: str) -> list[Follower]:
    """List the followers of all partitions of a stream."""
    return locate(stream, root).read(lambda state: state.followers())


def add_follower(follower: Follower, *, root: str) -> bool:
    """Let a compacted partition follow a partition; return whether that changed anything."""

    def prepare(state: StoredState) -> Commit[bool]:
        existing = _known_follower(state, follower)
        if existing is not None and (
            existing.after_round > follower.after_round
            or (existing.after_round == follower.after_round and existing.start_position <= follower.start_position)
        ):
            return Commit({}, False)
        return Commit({_follower_key(follower): _with_values(follower)}, True)

    return locate(follower.locator, root).commit("add follower", prepare).result


def remove_follower(follower: Follower, *, root: str) -> bool:
    """Forget a follower that is still exactly as given; return whether it was."""

    def prepare(state: StoredState) -> Commit[bool]:
        is_same = _known_follower(state, follower) == follower
        return Commit({_follower_key(follower): None} if is_same else {}, is_same)

    return locate(follower.locator, root).commit("remove follower", prepare).result


def _follower_key(follower: Follower) -> str:
    return follower_key(follower.locator.stream, follower.locator.partition_id, follower.folder)


def _known_follower(state: StoredState, follower: Follower) -> Follower | None:
    entry = state.entries.get(_follower_key(follower))
    return None if entry is None else _read_follower(entry, state.locator)


def _read_follower(entry: Entry, stream: StreamLocator) -> Follower:
    with decoding(entry):
        locator = PartitionLocator(**stream, partition_values=entry.pop("values"))
        follower: Follower = named(Follower, entry, locator)
        return follower
