"""Who reads whose deltas: what a compacted partition follows, what waits for it, and what a trim must keep."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from siltstone.catalog import main as catalog
from siltstone.errors import AlreadyExistsError, CorruptionError, NotFoundError
from siltstone.log.state import Entry
from siltstone.model import (
    COMPACTED_STREAM,
    DEFAULT_STREAM,
    Delta,
    Follower,
    Partition,
    PartitionLocator,
    PartitionValue,
    StreamLocator,
    TableVersion,
)
from siltstone.model.locators import split_table_name
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState
from siltstone.table.completion import (
    Destination,
    DestinationState,
    compacted_partition,
    current_completion,
    current_entry,
    destination_in,
    held_watermark,
    is_partition_due,
    locate_compacted,
    locate_destination,
    read_state,
)


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

    def now_ms(self) -> int:
        """Return the time that it is, by the store or this machine."""
        return open_objects(self.log.root).now_ms()

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
    stream: StreamLog, partitions: Iterable[PartitionLocator], after: Mapping[str, int], *, recall: bool = False
) -> dict[str, SourceState]:
    """Return partitions of one stream by their ids, all at one moment; `after` has the position that each is read from.

    With `recall`, as this process knows the stream already. Raises: NotFoundError where the table is gone, CorruptionError.
    """

    def read(state: StreamState) -> dict[str, SourceState]:
        followers, expiry_ms = tuple(state.followers()), state.expiry_ms()
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
                tuple(state.deltas(locator.partition_id, after.get(locator.partition_id, 0))),
                followers,
            )
            for locator in partitions
        }

    try:
        return stream.recall(read) if recall else stream.read(read)
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


OnDamage = Callable[[PartitionLocator, CorruptionError], None]
"""Called with a partition of deltas and why what is compacted beside it cannot be read."""


class Followed(NamedTuple):
    """A compacted partition, by the partition of deltas that it stands beside, what it reads next, and what its log says.

    `source` is None where the table that it follows was dropped. `own_position` is the newest one of the table's own
    deltas.
    """

    own: PartitionLocator
    source: PartitionLocator | None
    destination: Destination
    state: DestinationState = DestinationState()
    own_position: int = 0


class FollowedTable(NamedTuple):
    """A table with all its partitions, also those that only the table it follows has yet."""

    stream: StreamLog
    version: TableVersion
    stream_position: int
    partitions: list[Followed]

    @property
    def rounds(self) -> list[tuple[Destination, Entry]]:
        """All rounds, where they were read, each with where it was compacted to; those of a partition oldest first."""
        return [(each.destination, entry) for each in self.partitions for entry in each.state.rounds]


def read_own(
    name: str,
    *,
    with_rounds: bool = False,
    recall: bool = False,
    on_damage: OnDamage | None = None,
    root: str,
) -> FollowedTable:
    """Return the partitions that a table knows by itself, whatever they follow: no log of another table is read.

    Its own log is read once, and so is that of each partition. With `recall`, the table is looked up in the catalog as
    this process knows it. With `on_damage`, that is told of partitions whose logs are damaged, and they are left out.
    Raises: NotFoundError, CorruptionError.
    """
    stream = storage.find_stream(*split_table_name(name), recall=recall, root=root)
    version, position, partitions = stream.read(
        lambda state: (state.version, state.stream_position, list(state.partitions().values()))
    )
    own = []
    for partition in partitions:
        destination = _destination(stream, partition.locator)
        try:
            state = read_state(destination, with_rounds=with_rounds)
        except CorruptionError as error:
            if on_damage is None:
                raise
            on_damage(partition.locator, error)
            continue
        own.append(Followed(partition.locator, None, destination, state, own_position=partition.stream_position))
    return FollowedTable(stream, version, position, own)


def read_followed(
    name: str,
    *,
    with_rounds: bool = False,
    recall: bool = False,
    on_damage: OnDamage | None = None,
    root: str,
) -> FollowedTable:
    """Return what each partition of a table follows, also of those that only the table it follows has yet.

    See `read_own`. Raises: NotFoundError, CorruptionError.
    """
    damaged: set[str] = set()

    def leave_out(tell: OnDamage, partition: PartitionLocator, error: CorruptionError) -> None:
        damaged.add(partition.partition_id)
        tell(partition, error)

    told = None if on_damage is None else partial(leave_out, on_damage)
    table = read_own(name, with_rounds=with_rounds, recall=recall, on_damage=told, root=root)
    stream, position, known = table.stream, table.stream_position, _Streams(table.stream)
    there = {partition.own.partition_id: partition for partition in table.partitions}
    folders = {str(each.state.current["source_folder"]) for each in there.values() if each.state.current is not None}
    whole = None if position else known.only(folders)
    for key, each in there.items():
        entry = each.state.current
        values = each.own.partition_values
        source = _beside(whole or stream.locator, values) if entry is None else known.source(entry, each.own)
        there[key] = each._replace(source=source)
    for partition in [] if whole is None else storage.list_partitions(whole, root=root):
        own = _beside(stream.locator, partition.locator.partition_values)
        if own.partition_id not in damaged:
            there.setdefault(own.partition_id, Followed(own, partition.locator, _destination(stream, own)))
    return table._replace(partitions=list(there.values()))


class _Streams:
    """The streams that a table's rounds are from, by their folders, each found once."""

    def __init__(self, own: StreamLog) -> None:
        self._own = own
        self._found: dict[str, StreamLocator | None] = {own.folder: own.locator}

    def at(self, folder: str) -> StreamLocator | None:
        if folder not in self._found:
            self._found[folder] = _stream_at(folder, self._own.root)
        return self._found[folder]

    def only(self, folders: Iterable[str]) -> StreamLocator | None:
        """Return the stream that all partitions in some folders belong to, None where it is the table's own."""
        streams = {folder.rpartition("/")[0] for folder in folders}
        stream = self.at(streams.pop()) if len(streams) == 1 else None
        return None if stream == self._own.locator else stream

    def source(self, entry: Entry | RoundCompletion, own: PartitionLocator) -> PartitionLocator | None:
        """Return where the deltas of a round came from, by the name of today; None where that is gone."""
        place, _, segment = str(entry["source_folder"]).rpartition("/")
        stream = self.at(place)
        if stream is None or own.partition_id == segment:
            return None if stream is None else _beside(stream, own.partition_values)
        partitions = (partition.locator for partition in storage.list_partitions(stream, root=self._own.root))
        return next((partition for partition in partitions if partition.partition_id == segment), None)


def round_source(entry: Entry | RoundCompletion, own: PartitionLocator, *, root: str) -> PartitionLocator | None:
    """Return where the deltas of a round came from, by the name of today; None where that is gone."""
    return _Streams(storage.locate_stream(own, root=root)).source(entry, own)


class Sources:
    """What partitions of one table follow; logs that they have in common are read once."""

    def __init__(self, own: StreamLocator, *, root: str) -> None:
        self._stream = storage.locate_stream(own, root=root)
        self._streams = _Streams(self._stream)

    def destination(self, own: PartitionLocator) -> Destination:
        """Return where the table keeps the compacted rows of one of its partitions."""
        return _destination(self._stream, own)

    def followed_by(self, own: PartitionLocator, newest: RoundCompletion | Entry | None) -> PartitionLocator:
        """Return the partition whose deltas come after a round; see `followed_partition`."""
        if newest is None:
            return _beside(self._whole or self._stream.locator, own.partition_values)
        source = self._streams.source(newest, own)
        if source is None:
            raise NotFoundError(
                f"{compacted_partition(own)}: was compacted from {newest['source_folder']}, whose table was dropped; "
                "rebase to change the source"
            )
        return source

    @cached_property
    def _whole(self) -> StreamLocator | None:
        return followed_stream(self._stream.locator, root=self._stream.root)


def followed_partition(own: PartitionLocator, newest: RoundCompletion | Entry | None, *, root: str) -> PartitionLocator:
    """Return the partition whose deltas come after a round: the table's own, or that of the table it stands in for.

    The round is given by its completion or its entry in the log. Raises: NotFoundError where that table was dropped.
    """
    return Sources(own.stream_locator, root=root).followed_by(own, newest)


def followed_stream(own: StreamLocator, *, root: str) -> StreamLocator | None:
    """Return the stream of another table that a table follows as a whole, None where there is no such.

    It does if it has no deltas of its own, and all its rounds are from that stream: then it also follows partitions
    that begin there later.
    """
    stream = storage.locate_stream(own, root=root)
    position, partitions = stream.read(lambda state: (state.stream_position, list(state.partitions().values())))
    if position:
        return None
    entries = [current_entry(_destination(stream, partition.locator)) for partition in partitions]
    return _Streams(stream).only(str(entry["source_folder"]) for entry in entries if entry is not None)


class PartitionWork(NamedTuple):
    """A compacted partition, and its source with the deltas that no round has read."""

    followed: Followed
    source: SourceState

    @property
    def own(self) -> PartitionLocator:
        """The partition of deltas that the compacted one stands beside."""
        return self.followed.own

    @property
    def deltas(self) -> tuple[Delta, ...]:
        """The deltas that no round has read."""
        return self.source.deltas

    @property
    def is_waiting(self) -> bool:
        """Whether there are such deltas, or a bucket is due without any."""
        state, expiry_ms = self.followed.state, self.source.expiry_ms
        if self.source.newest_position > state.watermark:
            return True
        # A round goes by the time that it is, too: that is asked only where it matters.
        return is_partition_due(state, expiry_ms) and is_partition_due(state, min(expiry_ms, self.source.now_ms()))


def read_work(
    name: str, *, root: str, keep_alive: Callable[[], None] = lambda: None, on_damage: OnDamage | None = None
) -> list[PartitionWork]:
    """Return what there is to compact in each partition of a table, by the logs alone; each is read once.

    Partitions that follow a table that was dropped have nothing to do. See `read_own`. Raises: NotFoundError,
    CorruptionError.
    """
    return work_in(read_followed(name, on_damage=on_damage, root=root), keep_alive=keep_alive)


def work_in(
    table: FollowedTable, *, recall: bool = False, keep_alive: Callable[[], None] = lambda: None
) -> list[PartitionWork]:
    """Do as `read_work` does for a table that was read already; with `recall`, its own deltas are not looked for again."""
    by_stream: dict[str, list[Followed]] = defaultdict(list)
    for each in table.partitions:
        if each.source is not None:
            by_stream[str(each.source.stream_locator)].append(each)
    work = []
    for group in by_stream.values():
        keep_alive()
        sources = [each.source for each in group if each.source is not None]
        own = sources[0].stream_locator == table.stream.locator
        stream = table.stream if own else storage.locate_stream(sources[0], root=table.stream.root)
        after = {source.partition_id: each.state.watermark for source, each in zip(sources, group, strict=True)}
        states = read_sources(stream, sources, after, recall=own and recall)
        work += [
            PartitionWork(*pair) for pair in zip(group, (states[each.partition_id] for each in sources), strict=True)
        ]
    return work


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
    known = {partition.locator.partition_id for partition in storage.list_partitions(stream, root=root)}
    found = []
    for segment in sorted(set(open_objects(root).list_folders(folder)) - known):
        compacted = compacted_partition(_beside(stream, []))
        completion = current_completion(Destination(compacted, f"{folder}/{segment}", root))
        if completion is not None:
            values = completion.destination_partition_locator.partition_values
            found.append(locate_compacted(_beside(stream, values), root=root))
    return found


def follow(destination: Destination, source: PartitionLocator, start_position: int) -> bool:
    """Record that a destination is about to read a partition from a position on, where that is not known already.

    Returns whether it was recorded: what was trimmed before that must then be asked again.
    """
    entry = current_entry(destination)
    state = read_source(source, after=start_position, root=destination.root)
    return follow_source(destination, entry, state, start_position)


def follow_source(destination: Destination, entry: Entry | None, source: SourceState, start_position: int) -> bool:
    """Do as `follow` does, going by the current round and the state of the source that are given."""
    is_own = _is_beside(destination.folder, source.folder)
    if entry is None:
        goes_on = is_own
    else:
        goes_on = entry["source_folder"] == source.folder and int(entry["high_watermark"]) <= start_position
        goes_on = goes_on and (is_own or _is_recorded(destination, source))
    if goes_on:
        return False
    after_round = 0 if entry is None else int(entry["round_id"])
    follower = Follower(
        locator=source.locator, folder=destination.folder, start_position=start_position, after_round=after_round
    )
    return storage.add_follower(follower, root=destination.root)


def keep_following(work: PartitionWork) -> None:
    """Record a destination that was compacted from another table, where earlier versions of Siltstone did not."""
    followed, source = work
    if source.stream != followed.own.stream_locator and followed.state.current is not None:
        follow_source(followed.destination, followed.state.current, source, followed.state.watermark)


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
        raise lost_commits(watermark, state.stream_position, state.locator, state.log_address, destination)


def lost_commits(
    watermark: int, position: int, stream: StreamLocator, log_address: str, destination: PartitionLocator
) -> CorruptionError:
    """Return the error for a log that ends before what a round has read of it."""
    return CorruptionError(
        f"{log_address}: it ends at position {position} of {stream}, but {destination} has "
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
    own = locate_compacted(source, root=root).folder
    by_folder = {record.folder: record for record in records if record.locator.partition_id == source.partition_id}
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
        destination = Destination(place.source, folder, place.root)
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
    for folder in dict.fromkeys(record.folder.rsplit("/", 2)[0] for record in records):
        stream = _stream_at(f"{folder}/{DEFAULT_STREAM}", place.root)
        with _blocking(place, folder):
            is_whole = stream is not None and followed_stream(stream, root=place.root) == place.source.stream_locator
        if is_whole:
            found.append(f"{folder}/{COMPACTED_STREAM}/{place.source.partition_id}")
    return found


@contextlib.contextmanager
def _blocking(place: _Place, folder: str) -> Iterator[None]:
    """Raise that a follower that cannot be read keeps everything, since nobody knows what it needs."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(
            f"{place.source}: is followed by {folder}, which cannot be read, so nothing is trimmed; restore it, or "
            f"drop its table ({error})"
        ) from error


def _is_there(folder: str, root: str, *, is_registered: bool) -> bool:
    """Return whether the table of a compacted partition is still there, and has the partition if it once had."""
    place, _, segment = folder.rpartition("/")
    stream = _stream_at(place, root)
    if stream is None or stream.stream != COMPACTED_STREAM or not is_registered:
        return stream is not None
    deltas = StreamLocator(**{**stream, "stream": DEFAULT_STREAM})
    return any(partition.locator.partition_id == segment for partition in storage.list_partitions(deltas, root=root))


def _is_recorded(destination: Destination, source: SourceState) -> bool:
    return any(
        follower.folder == destination.folder and follower.locator.partition_id == source.locator.partition_id
        for follower in source.followers
    )


def _is_beside(folder: str, source_folder: str) -> bool:
    version, stream, partition = folder.rsplit("/", 2)
    return stream == COMPACTED_STREAM and source_folder == f"{version}/{DEFAULT_STREAM}/{partition}"


def _stream_at(folder: str, root: str) -> StreamLocator | None:
    """Return the stream that is kept in a folder, None where its table was dropped: names change, folders do not."""
    found = storage.find_stream_in(folder, root=root)
    return None if found is None else found.locator


def _destination(stream: StreamLog, own: PartitionLocator) -> Destination:
    """Return where a table keeps the compacted rows of a partition of its stream of deltas."""
    return destination_in(stream.version_folder, compacted_partition(own), root=stream.root)


def _beside(stream: StreamLocator, values: Sequence[PartitionValue]) -> PartitionLocator:
    return PartitionLocator(**stream, partition_values=list(values))
