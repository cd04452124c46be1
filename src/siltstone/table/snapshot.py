"""A table at one moment, as one value: its version, a position of each stream that it follows, rounds, and what waits."""

import contextlib
import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.state import Entry, LogState
from siltstone.model import Delta, PartitionLocator, PartitionValue, StreamLocator, TableVersion
from siltstone.model.locators import check_position, check_tag, split_table_name
from siltstone.model.rounds import RoundCompletion
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState
from siltstone.table.completion import (
    CURRENT_KEY,
    ROUND_PREFIX,
    Destination,
    KeptCompletions,
    compacted_partition,
    destination_in,
    read_completion,
    recall_completion,
)
from siltstone.table.followers import refuse_end_before

if TYPE_CHECKING:
    from siltstone.table.scan import Scan, Where

Moment = int | datetime.datetime | str
"""A stream position, the time by which deltas were committed, or a tag; as text any of them."""


def parse_moment(text: str) -> Moment:
    """Read a stream position, an ISO 8601 time, in UTC where it has no zone, or the name of a tag. Raises: InvalidInputError."""
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        with contextlib.suppress(InvalidInputError):
            return check_tag(text)
        raise InvalidInputError(
            f"{text!r} is neither a position, nor a time, nor a tag; write e.g. 120, 2024-05-01T08:00:00Z or release-7"
        ) from error
    return time.replace(tzinfo=time.tzinfo or datetime.UTC)


@dataclass(frozen=True)
class FollowedStream:
    """A stream whose deltas a table reads, its table version, and the position up to which the deltas count."""

    locator: StreamLocator
    version: TableVersion
    position: int


@dataclass(frozen=True)
class PartitionSnapshot:
    """A partition at a position of the stream that it follows: the rows after a round, and the deltas to merge with them.

    `own` is the partition of the table's deltas, `folder` the folder of its compacted files, and `source` the partition
    whose deltas follow the round: that of another table after a rebase on its behalf, None if it no longer exists.
    `waiting` has the deltas after the round up to the position; `newer` counts those beyond the position.
    """

    own: PartitionLocator
    folder: str
    source: PartitionLocator | None
    completion: RoundCompletion | None
    waiting: Sequence[Delta] = ()
    newer: int = 0


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one moment: its version, one position of each stream that it follows, and its partitions.

    A plain value, which can be pickled. It does not keep files from being removed: once a vacuum has removed files
    that it names, reading fails with an error that names them. `left_out` counts partitions that a filter excludes.
    """

    root: str
    name: str
    version: TableVersion
    streams: tuple[FollowedStream, ...]
    partitions: tuple[PartitionSnapshot, ...]
    left_out: int = 0

    def __repr__(self) -> str:
        waiting = f", {len(self.waiting)} deltas waiting" if self.waiting else ""
        return f"<TableSnapshot of {self.name} at {self.positions}, {len(self.partitions)} partitions{waiting}>"

    @property
    def positions(self) -> dict[str, int]:
        """The position of each followed stream, by the stream's name, e.g. `shop/orders/1/deltas`."""
        return {str(stream.locator): stream.position for stream in self.streams}

    @property
    def waiting(self) -> list[Delta]:
        """The deltas of all partitions up to the positions that no round has read."""
        return [delta for partition in self.partitions for delta in partition.waiting]

    @property
    def newer(self) -> int:
        """How many deltas came after the positions; their rows are not included."""
        return sum(partition.newer for partition in self.partitions)

    @property
    def row_count(self) -> int | None:
        """The number of rows; None if deltas wait, since only merging them would tell."""
        if self.waiting:
            return None
        return sum(partition.completion.live_rows for partition in self.partitions if partition.completion is not None)

    def scan(self, columns: Sequence[str] | None = None, where: "Where | None" = None) -> "Scan":
        """Return a scan of some columns, by default all, of the rows that match a filter.

        The filter is text, e.g. `amount > 9 and status in ('paid', 'sent')`, or an Arrow expression; see `Scan`.
        Raises: InvalidInputError.
        """
        from siltstone.table.scan import scan_of

        return scan_of(self, columns, where)

    def version_of(self, partition: PartitionSnapshot) -> TableVersion:
        """Return the version of the table whose deltas a partition reads."""
        source = partition.source
        for stream in self.streams:
            if source is not None and stream.locator == source.stream_locator:
                return stream.version
        return self.version


Choose: TypeAlias = Callable[[TableVersion], Callable[[Sequence[PartitionValue]], bool]]
"""Tells, once the version is known, of which partitions a snapshot is wanted, by their values."""


def take_snapshot(
    name: str,
    *,
    as_of: Moment | None = None,
    fresh: bool = False,
    choose: Choose | None = None,
    kept: KeptCompletions | None = None,
    root: str,
) -> TableSnapshot:
    """Return a table as compacted: at the highest watermark of its partitions, in each stream that it follows.

    `fresh` is at the newest position instead, `as_of` at the one given, at the newest one that was committed by a
    time, or what a tag names. With `choose`, it has the partitions that are chosen only, and no more logs are read
    than say what those are. Of completions that are `kept`, none is read again.
    Raises: NotFoundError, InvalidInputError, CorruptionError.
    """
    as_of = parse_moment(as_of) if isinstance(as_of, str) else as_of
    if isinstance(as_of, str):
        from siltstone.table.tags import tagged_snapshot

        return tagged_snapshot(name, as_of, choose, root=root)
    if as_of is not None and not isinstance(as_of, datetime.datetime):
        check_position(as_of, f"{name}: position")
    rounds = _KnownRounds(storage.find_stream(*split_table_name(name), root=root), _Wanted(as_of, fresh), choose)
    while True:
        cut = _take_cut(rounds)
        if rounds.read_more(cut) or rounds.catch_up(cut.partitions):
            continue
        is_chosen = rounds.chooser(cut.version)
        chosen = [partition for partition in cut.partitions if is_chosen(partition.own.partition_values)]
        partitions = [_completed(each, rounds, kept) for each in chosen]
        if None not in partitions:
            return TableSnapshot(
                root,
                name,
                cut.version,
                tuple(cut.streams),
                tuple(partition for partition in partitions if partition is not None),
                left_out=len(cut.partitions) - len(chosen) + len(cut.unread),
            )


class _Wanted(NamedTuple):
    """Which position of a stream is asked for."""

    as_of: int | datetime.datetime | None
    is_fresh: bool

    @property
    def is_compacted(self) -> bool:
        return self.as_of is None and not self.is_fresh

    def position(self, state: StreamState, rounds: Sequence["_Rounds"]) -> int:
        if isinstance(self.as_of, datetime.datetime):
            return state.position_at(self.as_of)
        if self.as_of is not None:
            return min(self.as_of, state.stream_position)
        if self.is_fresh:
            return state.stream_position
        return max((round_.watermark for round_ in rounds), default=0)


class _Rounds(NamedTuple):
    """What the log of a compacted partition says: its current round, and all that it has if a position is asked for."""

    own: PartitionLocator
    current: Entry | None
    all: tuple[Entry, ...] = ()

    @property
    def watermark(self) -> int:
        return 0 if self.current is None else int(self.current["high_watermark"])

    @property
    def source_folder(self) -> str | None:
        return None if self.current is None else str(self.current["source_folder"])

    @property
    def stream_folder(self) -> str | None:
        return None if self.source_folder is None else self.source_folder.rpartition("/")[0]

    @property
    def source_id(self) -> str:
        """The id of the partition that is followed, which may be another one's after a rebase."""
        return self.own.partition_id if self.source_folder is None else self.source_folder.rpartition("/")[2]

    def upto(self, position: int) -> Entry | None:
        """Return the newest round that read nothing after a position; rounds from another source do not count."""
        if self.watermark <= position:
            return self.current
        older = [
            entry
            for entry in self.all
            if int(entry["high_watermark"]) <= position and entry["source_folder"] == self.source_folder
        ]
        return max(older, key=lambda entry: int(entry["round_id"]), default=None)


class _PartitionCut(NamedTuple):
    """A partition whose position is chosen; `lost_up_to` where deltas between its round and that position are trimmed."""

    own: PartitionLocator
    source: PartitionLocator | None
    entry: Entry | None
    waiting: Sequence[Delta] = ()
    newer: int = 0
    lost_up_to: int | None = None


class _StreamCut(NamedTuple):
    stream: FollowedStream
    partitions: list[_PartitionCut]


class _Cut(NamedTuple):
    """What is read of each partition. `unread` are those whose logs were not read, whatever they may say."""

    version: TableVersion
    streams: list[FollowedStream]
    partitions: list[_PartitionCut]
    stream_position: int
    unread: list[PartitionLocator]


class _Followers(NamedTuple):
    """The partitions of a table by the folder of the stream that they follow; `whole` if all of one other stream is."""

    version: TableVersion
    by_folder: dict[str, list[_Rounds]]
    whole: str | None
    unread: list[PartitionLocator]


class _KnownRounds:
    """The logs of a table's compacted partitions, each read once, and again only where it must have moved on.

    Which partitions there are is first taken from what this process knows: where there are others by now, that shows.
    """

    def __init__(self, own: StreamLog, wanted: _Wanted, choose: Choose | None) -> None:
        self.own = own
        self.wanted = wanted
        self._choose = choose
        self._read: dict[str, _Rounds] = {}
        self._read_logs(own.recall(self._chosen))
        if choose is not None and wanted.is_compacted:
            self._read_logs(own.recall(self._foreseen))

    def chooser(self, version: TableVersion) -> Callable[[Sequence[PartitionValue]], bool]:
        return (lambda _: True) if self._choose is None else self._choose(version)

    def _chosen(self, state: StreamState) -> list[PartitionLocator]:
        is_chosen = self.chooser(state.version)
        locators = [partition.locator for partition in state.partitions().values()]
        return [locator for locator in locators if is_chosen(locator.partition_values)]

    def _foreseen(self, state: StreamState) -> list[PartitionLocator]:
        """Return the partitions that were not chosen, if their watermarks will matter, as far as this process knows."""
        partitions = state.partitions()
        own = [(partitions[key], rounds) for key, rounds in self._read.items() if key in partitions]
        if all(partition.stream_position <= rounds.watermark for partition, rounds in own):
            return []
        return [each.locator for key, each in partitions.items() if key not in self._read]

    def _read_logs(self, partitions: Sequence[PartitionLocator]) -> None:
        for partition in partitions:
            self._read[partition.partition_id] = self._read_log(partition)

    def read_more(self, cut: _Cut) -> bool:
        """Read the logs that a cut turned out to depend on; return whether there were any."""
        is_chosen = self.chooser(cut.version)
        more = [each for each in cut.unread if is_chosen(each.partition_values)]
        if not more and self._depends_on_others(cut):
            more = cut.unread
        self._read_logs(more)
        return bool(more)

    def _depends_on_others(self, cut: _Cut) -> bool:
        """Return whether partitions that are not chosen matter for those that are.

        The highest watermark of all is asked for only where deltas come after a partition's own; and only a table
        without deltas of its own can follow another one as a whole.
        """
        if not cut.stream_position:
            return True
        return self.wanted.is_compacted and any(partition.waiting or partition.newer for partition in cut.partitions)

    def is_read(self, own: PartitionLocator) -> bool:
        return own.partition_id in self._read

    def of(self, own: PartitionLocator) -> _Rounds:
        """Return what is known of a partition; one that only another table has yet has no round."""
        return self._read.get(own.partition_id) or _Rounds(own, None)

    def destination(self, own: PartitionLocator) -> Destination:
        return destination_in(self.own.version_folder, compacted_partition(own), root=self.own.root)

    def read_again(self, own: PartitionLocator) -> bool:
        """Read a partition's log once more; return whether it says anything else."""
        before = self.of(own)
        self._read[own.partition_id] = self._read_log(own)
        return self.of(own) != before

    def catch_up(self, partitions: Sequence[_PartitionCut]) -> bool:
        """Read the logs again of partitions whose deltas are trimmed; return whether there were any.

        Raises: CorruptionError where no newer round has those deltas.
        """
        behind = [partition for partition in partitions if partition.lost_up_to is not None]
        for each in behind:
            if not self.read_again(each.own):
                watermark = 0 if each.entry is None else int(each.entry["high_watermark"])
                raise CorruptionError(
                    f"{each.source}: deltas up to {each.lost_up_to} are trimmed, but {compacted_partition(each.own)} is "
                    f"compacted up to {watermark} only; rebase from a partition that has them"
                )
        return bool(behind)

    def _read_log(self, own: PartitionLocator) -> _Rounds:
        def look(state: LogState) -> _Rounds:
            return _Rounds(
                own, state.get(CURRENT_KEY), tuple(state.scan(ROUND_PREFIX)) if self.wanted.as_of is not None else ()
            )

        return self.destination(own).log.read(look)


def _take_cut(rounds: _KnownRounds) -> _Cut:
    """Choose a position of each stream that is followed, and what is read of each partition for it."""
    own, wanted = rounds.own, rounds.wanted

    def read_own(state: StreamState) -> tuple[_Followers, _StreamCut, int]:
        followers = _followers(state, own, rounds)
        cut = _cut_stream(state, followers.by_folder.get(own.folder, []), wanted)
        return followers, cut, state.stream_position

    followers, own_cut, stream_position = own.read(read_own)
    cuts = [own_cut]
    gone: list[_PartitionCut] = []
    for folder, members in followers.by_folder.items():
        if folder != own.folder:
            try:
                cuts.append(_cut_other(own, folder, followers, rounds, wanted))
            except NotFoundError:
                if not wanted.is_compacted:
                    raise
                gone += [_PartitionCut(member.own, None, member.current) for member in members]
    streams = [cut.stream for cut in cuts if cut.partitions] or [own_cut.stream]
    partitions = [partition for cut in cuts for partition in cut.partitions] + gone
    return _Cut(followers.version, streams, partitions, stream_position, followers.unread)


def _followers(state: StreamState, own: StreamLog, rounds: _KnownRounds) -> _Followers:
    locators = [partition.locator for partition in state.partitions().values()]
    there = [rounds.of(locator) for locator in locators if rounds.is_read(locator)]
    unread = [locator for locator in locators if not rounds.is_read(locator)]
    folders = {each.stream_folder for each in there if each.stream_folder is not None}
    # A table without deltas of its own, all of whose rounds are from one other stream, also follows what begins there.
    is_whole = len(folders) == 1 and own.folder not in folders and not state.stream_position
    whole = folders.pop() if is_whole else None
    by_folder: dict[str, list[_Rounds]] = defaultdict(list)
    for each in there:
        by_folder[each.stream_folder or whole or own.folder].append(each)
    return _Followers(state.version, dict(by_folder), whole, unread)


def _cut_other(own: StreamLog, folder: str, followers: _Followers, rounds: _KnownRounds, wanted: _Wanted) -> _StreamCut:
    """Choose the position of a stream of another table. Raises: NotFoundError where that was dropped."""
    members = followers.by_folder[folder]
    stream = storage.find_stream_in(folder, root=own.root)
    if stream is None:
        raise NotFoundError(
            f"{compacted_partition(members[0].own)}: was compacted from {members[0].source_folder}, whose table was "
            "dropped; rebase to change the source"
        )

    def read(state: StreamState) -> _StreamCut:
        known = {member.own.partition_id for member in members}
        beyond = state.partitions().values() if folder == followers.whole else ()
        begun = [rounds.of(_partition(own.locator, each.locator.partition_values)) for each in beyond]
        return _cut_stream(state, [*members, *(each for each in begun if each.own.partition_id not in known)], wanted)

    return stream.read(read)


def _cut_stream(state: StreamState, members: Sequence[_Rounds], wanted: _Wanted) -> _StreamCut:
    """Choose a position of a stream, and what is read of each partition that follows it."""
    for member in members:
        refuse_end_before(member.watermark, state, compacted_partition(member.own))
    position = wanted.position(state, members)
    sources = state.partitions()
    partitions = []
    for member in members:
        source = sources.get(member.source_id)
        entry = member.upto(position)
        watermark = 0 if entry is None else int(entry["high_watermark"])
        waiting = state.deltas(member.source_id, watermark, position)
        trimmed = 0 if source is None else source.trimmed_stream_position
        partitions.append(
            _PartitionCut(
                member.own,
                _partition(state.locator, member.own.partition_values) if source is None else source.locator,
                entry,
                waiting,
                newer=len(state.deltas(member.source_id, max(watermark, position))),
                lost_up_to=trimmed if watermark < min(trimmed, position) else None,
            )
        )
    return _StreamCut(FollowedStream(state.locator, state.version, position), partitions)


def _completed(cut: _PartitionCut, rounds: _KnownRounds, kept: KeptCompletions | None) -> PartitionSnapshot | None:
    """Read the completion of the round that was chosen; None where that was vacuumed, and the log knows others now.

    Raises: CorruptionError.
    """
    destination = rounds.destination(cut.own)
    try:
        if cut.entry is None:
            completion = None
        elif kept is None:
            completion = read_completion(destination, cut.entry)
        else:
            completion = recall_completion(destination, cut.entry, kept)
    except CorruptionError:
        if rounds.read_again(cut.own):
            return None
        raise
    return PartitionSnapshot(cut.own, destination.folder, cut.source, completion, cut.waiting, cut.newer)


def _partition(stream: StreamLocator, values: Sequence[PartitionValue]) -> PartitionLocator:
    return PartitionLocator(**stream, partition_values=list(values))
