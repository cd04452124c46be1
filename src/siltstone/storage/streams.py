"""Streams of deltas, their partitions, and who follows them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from siltstone.log.commit import Changes, Commit, CommitLog
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import Follower, Partition, PartitionLocator, PartitionValue, Stream, StreamLocator, TableVersion
from siltstone.model.properties import change_properties
from siltstone.storage import tables
from siltstone.storage.layout import (
    STREAM_PREFIX,
    delta_prefix,
    follower_key,
    follower_prefix,
    partition_key,
    partition_prefix,
    stream_key,
    version_log,
)
from siltstone.storage.versions import choose_version, named, nameless, version_of


class Located(NamedTuple):
    """A table version with its log and folder: where its streams, partitions and deltas are found."""

    version: TableVersion
    folder: str
    log: CommitLog
    batch_id: int
    """Of the log, when it was looked at."""

    def stream(self, name: str) -> StreamLocator:
        """Return the locator of one of its streams."""
        return StreamLocator(**self.version.locator, stream=name)

    def read(self, state: LogState, stream: str) -> Stream:
        """Return a stream from the state of the log. Raises: NotFoundError."""
        entry = state.get(stream_key(stream))
        if entry is None:
            there = ", ".join(key.removeprefix(STREAM_PREFIX) for key in state.keys(STREAM_PREFIX))
            raise NotFoundError(f"{self.version.locator}: there is no stream {stream}; there are: {there}")
        found: Stream = named(Stream, entry, self.stream(stream))
        return found


def locate(namespace: str, table: str, table_version: str | None, *, root: str) -> Located:
    """Find a table version, by default the newest active one. Raises: NotFoundError."""
    known = tables.get_table(namespace, table, root=root)
    chosen = choose_version(known, table_version)
    log = version_log(root, chosen.folder)
    return log.read(lambda state: Located(version_of(state, log, known, chosen), chosen.folder, log, state.batch_id))


def locate_stream(stream: StreamLocator, *, root: str) -> Located:
    """Find the table version of a stream, partition or delta. Raises: NotFoundError."""
    return locate(stream.namespace, stream.table, stream.table_version, root=root)


def list_streams(namespace: str, table: str, table_version: str | None = None, *, root: str) -> list[Stream]:
    """List the committed streams of a version."""
    place = locate(namespace, table, table_version, root=root)
    names = place.log.read(lambda state: [key.removeprefix(STREAM_PREFIX) for key in state.keys(STREAM_PREFIX)])
    return [place.log.read(lambda state, name=name: place.read(state, name)) for name in names]  # type: ignore[misc]


def get_stream(stream: StreamLocator, *, root: str) -> Stream:
    """Get a committed stream."""
    place = locate_stream(stream, root=root)
    return place.log.read(lambda state: place.read(state, stream.stream))


def stream_exists(stream: StreamLocator, *, root: str) -> bool:
    """Say whether there is such a committed stream."""
    try:
        get_stream(stream, root=root)
    except NotFoundError:
        return False
    return True


def stage_stream(stream: StreamLocator, *, properties: Mapping[str, str] | None = None, root: str) -> Stream:
    """Make a stream that nobody sees until it is committed."""
    place = locate_stream(stream, root=root)
    own = change_properties({}, properties or {}, f"stream {stream.stream}", of_table=False)
    return Stream(locator=place.stream(stream.stream), state="staged", properties=own)


def commit_stream(stream: Stream, *, root: str) -> Stream:
    """Commit a staged stream."""
    place = locate_stream(stream.locator, root=root)
    key = stream_key(stream.locator.stream)

    def prepare(state: LogState) -> Commit[Stream]:
        if key in state:
            raise AlreadyExistsError(f"{stream.locator}: exists already; choose another name")
        stream.state = "committed"
        stream.created_at = place.log.now_ms()
        return Commit({key: nameless(stream)}, stream)

    return place.log.commit("commit stream", prepare).result


def delete_stream(stream: StreamLocator, *, root: str) -> None:
    """Delete a stream with its partitions and deltas; files become orphans."""
    place = locate_stream(stream, root=root)

    def prepare(state: LogState) -> Changes:
        place.read(state, stream.stream)
        name = stream.stream
        prefixes = (partition_prefix(name), delta_prefix(name), follower_prefix(name))
        return dict.fromkeys([stream_key(name), *(key for prefix in prefixes for key in state.keys(prefix))])

    place.log.commit("delete stream", prepare)


def list_partitions(stream: StreamLocator, *, root: str) -> list[Partition]:
    """List the committed partitions of a stream."""
    place = locate_stream(stream, root=root)

    def look(state: LogState) -> list[Entry]:
        place.read(state, stream.stream)
        return state.scan(partition_prefix(stream.stream))

    return [read_partition(entry, stream) for entry in place.log.read(look)]


def get_partition(partition: PartitionLocator, *, root: str) -> Partition:
    """Get a committed partition."""
    place = locate_stream(partition, root=root)
    return place.log.read(lambda state: known_partition(state, place, partition))


def partition_exists(partition: PartitionLocator, *, root: str) -> bool:
    """Say whether there is such a committed partition."""
    try:
        get_partition(partition, root=root)
    except NotFoundError:
        return False
    return True


def stage_partition(stream: StreamLocator, partition_values: Sequence[PartitionValue] = (), *, root: str) -> Partition:
    """Make a partition that nobody sees until it is committed."""
    place = locate_stream(stream, root=root)
    check_partition_values(place.version, partition_values)
    locator = PartitionLocator(**place.stream(stream.stream), partition_values=list(partition_values))
    return Partition(locator=locator, state="staged")


def commit_partition(partition: Partition, *, root: str) -> Partition:
    """Commit a staged partition; committing a delta into it does so too."""
    locator = partition.locator
    place = locate_stream(locator, root=root)
    key = partition_key(locator.stream, locator.partition_id)

    def prepare(state: LogState) -> Commit[Partition]:
        place.read(state, locator.stream)
        if key in state:
            raise AlreadyExistsError(f"{locator}: exists already")
        partition.state = "committed"
        partition.created_at = place.log.now_ms()
        return Commit({key: partition_entry(partition)}, partition)

    return place.log.commit("commit partition", prepare).result


def delete_partition(partition: PartitionLocator, *, root: str) -> None:
    """Delete a partition with its deltas; files become orphans."""
    place = locate_stream(partition, root=root)

    def prepare(state: LogState) -> Changes:
        known_partition(state, place, partition)
        deltas = partition_delta_keys(state, partition)
        return dict.fromkeys([partition_key(partition.stream, partition.partition_id), *deltas])

    place.log.commit("delete partition", prepare)


def known_partition(state: LogState, place: Located, partition: PartitionLocator) -> Partition:
    """Return a partition from the state of the log. Raises: NotFoundError."""
    stream = place.read(state, partition.stream)
    entry = state.get(partition_key(partition.stream, partition.partition_id))
    if entry is None:
        raise NotFoundError(f"{partition}: there is no such partition; it begins with the first delta written to it")
    return read_partition(entry, stream.locator)


def partition_delta_keys(state: LogState, partition: PartitionLocator) -> list[str]:
    """Return the log keys of a partition's deltas, in order of their position."""
    ending = f"/{partition.partition_id}"
    return [key for key in state.keys(delta_prefix(partition.stream)) if key.endswith(ending)]


def check_partition_values(version: TableVersion, values: Sequence[PartitionValue]) -> None:
    """Refuse values that are not one for each partition key. Raises: InvalidInputError."""
    if len(values) != len(version.partition_keys):
        keys = ", ".join(version.partition_keys) or "none"
        raise InvalidInputError(
            f"{version.locator}: {len(values)} partition values {list(values)!r} for the partition keys: {keys}"
        )


def partition_entry(partition: Partition) -> Entry:
    """Write a partition for the log."""
    return {"values": list(partition.locator.partition_values), **nameless(partition)}


def read_partition(entry: Entry, stream: StreamLocator) -> Partition:
    """Read a partition from the log."""
    with decoding(entry):
        locator = PartitionLocator(
            namespace=stream.namespace,
            table=stream.table,
            table_version=stream.table_version,
            stream=stream.stream,
            partition_values=entry.pop("values"),
        )
        found: Partition = named(Partition, entry, locator)
        return found


def list_followers(stream: StreamLocator, *, root: str) -> list[Follower]:
    """List the followers of all partitions of a stream."""
    place = locate_stream(stream, root=root)

    def look(state: LogState) -> list[Follower]:
        place.read(state, stream.stream)
        return read_followers(state, stream)

    return place.log.read(look)


def add_follower(follower: Follower, *, root: str) -> bool:
    """Let a compacted partition follow a partition; return whether that changed anything."""
    place = locate_stream(follower.locator, root=root)
    key = _key(follower)

    def prepare(state: LogState) -> Changes:
        place.read(state, follower.locator.stream)
        entry = state.get(key)
        known = None if entry is None else _read(entry, follower.locator.stream_locator)
        if known is not None and (
            known.after_round > follower.after_round
            or (known.after_round == follower.after_round and known.start_position <= follower.start_position)
        ):
            return {}
        return {key: _entry(follower)}

    return place.log.commit("add follower", prepare).batch_id is not None


def remove_follower(follower: Follower, *, root: str) -> bool:
    """Forget a follower that is still exactly as given; return whether it was."""
    place = locate_stream(follower.locator, root=root)
    key = _key(follower)

    def prepare(state: LogState) -> Changes:
        place.read(state, follower.locator.stream)
        entry = state.get(key)
        is_same = entry is not None and _read(entry, follower.locator.stream_locator) == follower
        return {key: None} if is_same else {}

    return place.log.commit("remove follower", prepare).batch_id is not None


def read_followers(state: LogState, stream: StreamLocator) -> list[Follower]:
    """Return the followers of a stream from the state of its log."""
    return [_read(entry, stream) for entry in state.scan(follower_prefix(stream.stream))]


def _key(follower: Follower) -> str:
    return follower_key(follower.locator.stream, follower.locator.partition_id, follower.folder)


def _entry(follower: Follower) -> Entry:
    return {"values": list(follower.locator.partition_values), **nameless(follower)}


def _read(entry: Entry, stream: StreamLocator) -> Follower:
    locator = PartitionLocator(
        namespace=stream.namespace,
        table=stream.table,
        table_version=stream.table_version,
        stream=stream.stream,
        partition_values=entry.pop("values"),
    )
    found: Follower = named(Follower, entry, locator)
    return found
