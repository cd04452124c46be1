"""Who reads whose deltas: what a compacted partition follows, what waits for it, and what a trim must keep.

The partition beside which a compacted one stands follows implicitly. Any other, and one that goes back to an earlier
position, is first recorded in the log of the deltas that it is going to read. A trim commits to that log too, and only
if the records are those that it went by: so no delta is forgotten that somebody has said to need.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from siltstone.catalog import main as catalog
from siltstone.errors import AlreadyExistsError, CorruptionError, NotFoundError
from siltstone.log.commit import commit_log
from siltstone.log.state import Entry
from siltstone.model import (
    COMPACTED_STREAM,
    DEFAULT_STREAM,
    Delta,
    Follower,
    PartitionLocator,
    PartitionValue,
    StreamLocator,
)
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState
from siltstone.table.completion import (
    Destination,
    compacted_partition,
    current_completion,
    current_entry,
    locate_destination,
)
from siltstone.table.holds import held_watermark, is_partition_due


class Followed(NamedTuple):
    """A compacted partition, by the partition of deltas that it stands beside, and what it reads next.

    `source` is None where the table that it follows was dropped.
    """

    own: PartitionLocator
    source: PartitionLocator | None
    watermark: int


def followed_partitions(name: str, *, root: str) -> list[Followed]:
    """Return all partitions of a table, also those that only the table it follows has yet. Raises: NotFoundError."""
    stream = catalog.delta_stream(name, root=root)
    whole = followed_stream(stream, root=root)
    found: dict[str, Followed] = {}
    for partition in storage.list_partitions(stream, root=root):
        own = partition.locator
        entry = current_entry(locate_destination(compacted_partition(own), root=root))
        source = (
            _beside(whole or stream, own.partition_values) if entry is None else round_source(entry, own, root=root)
        )
        found[own.partition_id] = Followed(own, source, 0 if entry is None else int(entry["high_watermark"]))
    for partition in [] if whole is None else storage.list_partitions(whole, root=root):
        source = partition.locator
        own = _beside(stream, source.partition_values)
        found.setdefault(own.partition_id, Followed(own, source, 0))
    return list(found.values())


def followed_partition(own: PartitionLocator, newest: RoundCompletion | Entry | None, *, root: str) -> PartitionLocator:
    """Return the partition whose deltas come after a round: the table's own, or that of the table it stands in for.

    The round is given by its completion or its entry in the log. Raises: NotFoundError where that table was dropped.
    """
    if newest is None:
        return _beside(followed_stream(own.stream_locator, root=root) or own.stream_locator, own.partition_values)
    source = round_source(newest, own, root=root)
    if source is None:
        raise NotFoundError(
            f"{compacted_partition(own)}: was compacted from {newest['source_folder']}, whose table was dropped; rebase "
            "to change the source"
        )
    return source


def followed_stream(own: StreamLocator, *, root: str) -> StreamLocator | None:
    """Return the stream of another table that a table follows as a whole, None where there is no such.

    It does if it has no deltas of its own, and all its rounds are from that stream: then it also follows partitions
    that begin there later.
    """
    if storage.get_stream(own, root=root).stream_position:
        return None
    folders = set()
    for partition in storage.list_partitions(own, root=root):
        entry = current_entry(locate_destination(compacted_partition(partition.locator), root=root))
        if entry is not None:
            folders.add(entry["source_folder"].rpartition("/")[0])
    stream = _stream_at(folders.pop(), root) if len(folders) == 1 else None
    return None if stream == own else stream


class WaitingPartition(NamedTuple):
    """A partition with something to do: deltas that no round has read, or none, but a bucket that is due."""

    own: PartitionLocator
    deltas: list[Delta]


def waiting_partitions(
    name: str, *, root: str, keep_alive: Callable[[], None] = lambda: None
) -> list[WaitingPartition]:
    """Return the partitions of a table that have something to do, by the logs alone. Raises: NotFoundError."""
    by_stream: dict[str, list[Followed]] = defaultdict(list)
    for each in followed_partitions(name, root=root):
        if each.source is not None:
            by_stream[str(each.source.stream_locator)].append(each)
    waiting: list[WaitingPartition] = []
    for group in by_stream.values():
        waiting += _waiting_in_stream(group, root, keep_alive)
    return waiting


def _waiting_in_stream(group: Sequence[Followed], root: str, keep_alive: Callable[[], None]) -> list[WaitingPartition]:
    assert group[0].source is not None
    stream = group[0].source.stream_locator
    newest = {each.locator.partition_id: each.stream_position for each in storage.list_partitions(stream, root=root)}
    log = storage.locate_stream(stream, root=root)
    waiting: dict[str, Followed] = {}
    for each in group:
        keep_alive()
        key = each.own.partition_id
        if newest.get(key, 0) > each.watermark or _is_due(each.own, log, root):
            waiting[key] = each
    deltas: dict[str, list[Delta]] = defaultdict(list)
    lowest = min((each.watermark for each in waiting.values()), default=0)
    for delta in storage.list_deltas(stream, first_stream_position=lowest + 1, root=root) if waiting else ():
        key = delta.locator.partition_id
        if key in waiting and delta.stream_position > waiting[key].watermark:
            deltas[key].append(delta)
    return [WaitingPartition(each.own, deltas[key]) for key, each in waiting.items()]


def _is_due(own: PartitionLocator, log: StreamLog, root: str) -> bool:
    return is_partition_due(locate_destination(compacted_partition(own), root=root), log.expiry_ms)


def register_destination(destination: Destination) -> None:
    """Make the partition of a destination known to its table, so that readers find what is compacted there."""
    locator = destination.locator
    if locator.stream != COMPACTED_STREAM:
        return
    own = own_partition(locator)
    if not storage.partition_exists(own, root=destination.root):
        staged = storage.stage_partition(own.stream_locator, own.partition_values, root=destination.root)
        with contextlib.suppress(AlreadyExistsError):
            storage.commit_partition(staged, root=destination.root)


def unregistered_destinations(name: str, *, root: str) -> list[Destination]:
    """Return the compacted partitions with rounds that a table does not know. Raises: NotFoundError, CorruptionError."""
    stream = catalog.delta_stream(name, root=root)
    folder = f"{catalog.version_folder(name, root=root)}/{COMPACTED_STREAM}"
    known = {each.locator.partition_id for each in storage.list_partitions(stream, root=root)}
    found = []
    for segment in sorted(set(open_objects(root).list_folders(folder)) - known):
        place = f"{folder}/{segment}"
        compacted = compacted_partition(_beside(stream, []))
        completion = current_completion(Destination(compacted, place, commit_log(root, f"{place}/log"), root))
        if completion is not None:
            values = completion.destination_partition_locator.partition_values
            found.append(locate_destination(compacted_partition(_beside(stream, values)), root=root))
    return found


def follow(destination: Destination, source: PartitionLocator, start_position: int) -> bool:
    """Record that a destination is about to read a partition from a position on, where that is not known already.

    Returns whether it was recorded: what was trimmed before that must then be asked again.
    """
    root = destination.root
    source_folder = locate_destination(source, root=root).folder
    is_own = _is_beside(destination.folder, source_folder)
    entry = current_entry(destination)
    if entry is None:
        goes_on = is_own
    else:
        goes_on = entry["source_folder"] == source_folder and int(entry["high_watermark"]) <= start_position
        goes_on = goes_on and (is_own or _is_recorded(destination, source))
    if goes_on:
        return False
    after_round = 0 if entry is None else int(entry["round_id"])
    follower = Follower(
        locator=source, folder=destination.folder, start_position=start_position, after_round=after_round
    )
    return storage.add_follower(follower, root=root)


def keep_following(followed: Followed, *, root: str) -> None:
    """Record a destination that was compacted from another table, where earlier versions of Siltstone did not."""
    if followed.source is not None and followed.source.stream_locator != followed.own.stream_locator:
        destination = locate_destination(compacted_partition(followed.own), root=root)
        if current_entry(destination) is not None:
            follow(destination, followed.source, followed.watermark)


def own_partition(destination: PartitionLocator) -> PartitionLocator:
    """Return the partition of deltas that a compacted one stands beside."""
    return PartitionLocator(**{**destination, "stream": DEFAULT_STREAM})


def trimmed_position(partition: PartitionLocator, *, root: str) -> int:
    """Return up to where the deltas of a partition are trimmed, 0 where it does not exist yet."""
    if not storage.partition_exists(partition, root=root):
        return 0
    return storage.get_partition(partition, root=root).trimmed_stream_position


def refuse_lost_commits(entry: Entry | RoundCompletion, destination: PartitionLocator, *, root: str) -> None:
    """Refuse a log that ends before what a round has read of it: its newest batches are gone. Raises: CorruptionError."""
    stream = storage.find_stream_in(str(entry["source_folder"]).rpartition("/")[0], root=root)
    if stream is not None:
        # A stream that was deleted has no state to compare with.
        with contextlib.suppress(NotFoundError):
            stream.read(lambda state: refuse_end_before(int(entry["high_watermark"]), state, destination))


def refuse_end_before(watermark: int, state: StreamState, destination: PartitionLocator) -> None:
    """Refuse a state of a stream that is newer than a round, and has less than that has read. Raises: CorruptionError."""
    if state.stream_position < watermark:
        raise CorruptionError(
            f"{state.log_address}: it ends at position {state.stream_position} of {state.locator}, but {destination} has "
            f"read it up to {watermark}, so its newest batches are missing; restore them from a copy"
        )


class TrimLimit(NamedTuple):
    """The position up to which no follower needs the deltas of a partition, and the records that say so."""

    position: int
    followers: list[Follower]


def trim_limit(source: PartitionLocator, now_ms: int, *, root: str) -> TrimLimit:
    """Return up to where a partition may be trimmed; 0 where nobody has compacted it.

    Records of followers that are gone, or follow others now, are removed. Raises: CorruptionError where a follower
    cannot be read, and so may need everything; ConflictError.
    """
    records = storage.list_followers(source.stream_locator, root=root)
    kept = list(records)
    place = _Place(source, locate_destination(source, root=root).folder, now_ms, root)
    needs = []
    own = locate_destination(compacted_partition(source), root=root).folder
    by_folder = {each.folder: each for each in records if each.locator.partition_id == source.partition_id}
    for folder in dict.fromkeys([own, *by_folder, *_whole_followers(place, records)]):
        record = by_folder.get(folder)
        need = _need(place, folder, record, counts_before_a_round=record is None)
        if need is not None:
            needs.append(need)
        elif record is not None and storage.remove_follower(record, root=root):
            kept.remove(record)
    return TrimLimit(min(needs, default=0), kept)


class _Place(NamedTuple):
    source: PartitionLocator
    folder: str
    now_ms: int
    root: str


def _need(place: _Place, folder: str, record: Follower | None, *, counts_before_a_round: bool) -> int | None:
    """Return the position above which a follower needs all deltas, None where it follows no more."""
    if not _is_there(folder, place.root, is_registered=record is not None):
        return None
    with _blocking(place, folder):
        destination = Destination(place.source, folder, commit_log(place.root, f"{folder}/log"), place.root)
        entry, held = current_entry(destination), held_watermark(destination, place.now_ms)
    needs = [] if held is None else [held]
    if entry is None and counts_before_a_round:
        needs.append(0)
    if entry is not None and entry["source_folder"] == place.folder:
        needs.append(int(entry["high_watermark"]))
    if record is not None and (entry is None or int(entry["round_id"]) <= record.after_round):
        needs.append(record.start_position)
    return min(needs, default=None)


def _whole_followers(place: _Place, records: Sequence[Follower]) -> list[str]:
    """Return where tables that follow the whole stream compact the partition, or will."""
    found = []
    for folder in dict.fromkeys(each.folder.rsplit("/", 2)[0] for each in records):
        stream = _stream_at(f"{folder}/{DEFAULT_STREAM}", place.root)
        with _blocking(place, folder):
            is_whole = stream is not None and followed_stream(stream, root=place.root) == place.source.stream_locator
        if is_whole:
            found.append(f"{folder}/{COMPACTED_STREAM}/{place.source.partition_id}")
    return found


@contextlib.contextmanager
def _blocking(place: _Place, folder: str) -> Iterator[None]:
    """Say that a follower that cannot be read keeps everything, since nobody knows what it needs."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(
            f"{place.source}: is followed by {folder}, which cannot be read, so nothing is trimmed; restore it, or "
            f"drop its table ({error})"
        ) from error


def _is_there(folder: str, root: str, *, is_registered: bool) -> bool:
    """Tell whether the table of a compacted partition is still there, and has the partition if it once had."""
    place, _, segment = folder.rpartition("/")
    stream = _stream_at(place, root)
    if stream is None or stream.stream != COMPACTED_STREAM or not is_registered:
        return stream is not None
    deltas = StreamLocator(**{**stream, "stream": DEFAULT_STREAM})
    return any(each.locator.partition_id == segment for each in storage.list_partitions(deltas, root=root))


def _is_recorded(destination: Destination, source: PartitionLocator) -> bool:
    records = storage.list_followers(source.stream_locator, root=destination.root)
    return any(
        each.folder == destination.folder and each.locator.partition_id == source.partition_id for each in records
    )


def _is_beside(folder: str, source_folder: str) -> bool:
    version, stream, partition = folder.rsplit("/", 2)
    return stream == COMPACTED_STREAM and source_folder == f"{version}/{DEFAULT_STREAM}/{partition}"


def round_source(entry: Entry | RoundCompletion, own: PartitionLocator, *, root: str) -> PartitionLocator | None:
    """Return where the deltas of a round came from, by the name of today; None where that is gone."""
    if entry["source_folder"] == locate_destination(own, root=root).folder:
        return own
    place, _, segment = str(entry["source_folder"]).rpartition("/")
    stream = _stream_at(place, root)
    if stream is None or own.partition_id == segment:
        return None if stream is None else _beside(stream, own.partition_values)
    for partition in storage.list_partitions(stream, root=root):
        if partition.locator.partition_id == segment:
            return partition.locator
    return None


def _stream_at(folder: str, root: str) -> StreamLocator | None:
    """Return the stream that is kept in a folder, None where its table was dropped: names change, folders do not."""
    found = storage.find_stream_in(folder, root=root)
    return None if found is None else found.locator


def _beside(stream: StreamLocator, values: Sequence[PartitionValue]) -> PartitionLocator:
    return PartitionLocator(**stream, partition_values=list(values))
