"""Followers of a stream's partitions: the compacted partitions that still need its deltas, kept in the version's log."""

from siltstone.log.commit import Changes, LogState
from siltstone.log.keyed import Entry
from siltstone.model import Follower, PartitionLocator, StreamLocator
from siltstone.storage.layout import follower_key, follower_prefix
from siltstone.storage.streams import locate_stream
from siltstone.storage.versions import named, nameless


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

    return place.log.commit("add follower", prepare) is not None


def remove_follower(follower: Follower, *, root: str) -> bool:
    """Forget a follower that is still exactly as given; return whether it was."""
    place = locate_stream(follower.locator, root=root)
    key = _key(follower)

    def prepare(state: LogState) -> Changes:
        place.read(state, follower.locator.stream)
        entry = state.get(key)
        is_same = entry is not None and _read(entry, follower.locator.stream_locator) == follower
        return {key: None} if is_same else {}

    return place.log.commit("remove follower", prepare) is not None


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
