"""Moments of a table: a position of its stream, or a time."""

import datetime
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.commit import commit_log
from siltstone.log.state import Entry, LogState
from siltstone.model import COMPACTED_STREAM, Delta, PartitionLocator, PartitionValue, StreamLocator, TableVersion
from siltstone.model.locators import check_position
from siltstone.model.names import split_table_name
from siltstone.model.rounds import RoundCompletion
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState
from siltstone.table.completion import (
    CURRENT_KEY,
    ROUND_PREFIX,
    Destination,
    compacted_partition,
    read_completion,
)
from siltstone.table.followers import refuse_end_before

if TYPE_CHECKING:
    from siltstone.table.scan import Scan, Where

Moment = int | datetime.datetime
"""A stream position, or the time by which deltas were committed."""


def parse_moment(text: str) -> Moment:
    """Read a stream position or an ISO 8601 time, in UTC where it has no zone. Raises: InvalidInputError."""
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text!r} is neither a position nor a time; write e.g. 120 or 2024-05-01T08:00:00Z"
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
    """A partition at a position of the stream that it follows: the rows after a round, and the deltas to merge into them.

    `own` is the partition of the table's deltas, `folder` where it is compacted to, and `source` the partition whose
    deltas follow the round: another table's after a rebase on behalf of that one, None where that is gone. `waiting`
    has the deltas after the round up to the position; `newer` counts those beyond the position.
    """

    own: PartitionLocator
    folder: str
    source: PartitionLocator | None
    completion: RoundCompletion | None
    waiting: tuple[Delta, ...] = ()
    newer: int = 0


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one moment: its version, one position of each stream that it follows, and its partitions.

    A plain value, which can be pickled. It holds nothing in place: once a vacuum has removed files that it names, reading
    them fails with an error that says which.
    """

    root: str
    name: str
    version: TableVersion
    streams: tuple[FollowedStream, ...]
    partitions: tuple[PartitionSnapshot, ...]

    @property
    def positions(self) -> dict[str, int]:
        """The position of each stream that is followed, by the stream's name, e.g. `shop/orders/1/deltas`."""
        return {str(stream.locator): stream.position for stream in self.streams}

    @property
    def waiting(self) -> list[Delta]:
        """The deltas of all partitions that no round has read, up to the positions."""
        return [delta for partition in self.partitions for delta in partition.waiting]

    @property
    def newer(self) -> int:
        """How many deltas came after the positions, so that their rows are not part of this."""
        return sum(partition.newer for partition in self.partitions)

    @property
    def row_count(self) -> int | None:
        """How many rows there are; None where deltas wait, since only merging them tells."""
        if self.waiting:
            return None
        return sum(each.completion.live_rows for each in self.partitions if each.completion is not None)

    def scan(self, columns: Sequence[str] | None = None, where: "Where | None" = None) -> "Scan":
        """Return a read of some columns, by default all, of the rows that a filter leaves.

        The filter is text, e.g. `amount > 9 and status in ('paid', 'sent')`, or an Arrow expression; see `Scan` for what can
        be done with it. Raises: InvalidInputError.
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


def take_snapshot(name: str, *, as_of: Moment | None = None, fresh: bool = False, root: str) -> TableSnapshot:
    """Return a table as compacted: at the highest watermark of its partitions, in each stream that it follows.

    `fresh` is at the newest position instead, `as_of` at the one given, or at the newest one that was committed by a time.
    Raises: NotFoundError, InvalidInputError, CorruptionError.
    """
    if as_of is not None and not isinstance(as_of, datetime.datetime):
        check_position(as_of, f"{name}: position")
    own = storage.find_stream(*split_table_name(name), root=root)
    wanted = _Wanted(as_of, fresh)
    rounds = _KnownRounds(own, wanted)
    rounds.read(own.recall(rounds.unread))
    while True:
        cut = _take_cut(own, rounds, wanted)
        if rounds.catch_up(cut.partitions):
            continue
        partitions = [_completed(each, rounds) for each in cut.partitions]
        if None not in partitions:
            return TableSnapshot(
                root, name, cut.version, tuple(cut.streams), tuple(each for each in partitions if each is not None)
            )


class _Wanted(NamedTuple):
    """Which position of a stream is asked for."""

    as_of: Moment | None
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
        return max((each.watermark for each in rounds), default=0)


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
    waiting: tuple[Delta, ...] = ()
    newer: int = 0
    lost_up_to: int | None = None


class _StreamCut(NamedTuple):
    stream: FollowedStream
    partitions: list[_PartitionCut]


class _Cut(NamedTuple):
    version: TableVersion
    streams: list[FollowedStream]
    partitions: list[_PartitionCut]


class _Followers(NamedTuple):
    """The partitions of a table by the folder of the stream that they follow; `whole` if all of one other stream is."""

    version: TableVersion
    by_folder: dict[str, list[_Rounds]]
    whole: str | None


class _KnownRounds:
    """The logs of a table's compacted partitions, each read once, and again only where it must have moved on."""

    def __init__(self, own: StreamLog, wanted: _Wanted) -> None:
        self._own = own
        self._needs_all = wanted.as_of is not None
        self._read: dict[str, _Rounds] = {}

    def unread(self, state: StreamState) -> list[PartitionLocator]:
        """Return the table's partitions whose logs are not read yet."""
        return [each.locator for key, each in state.partitions().items() if key not in self._read]

    def read(self, partitions: Iterable[PartitionLocator]) -> None:
        """Read the logs of partitions."""
        self._read |= {each.partition_id: self._read_log(each) for each in partitions}

    def of(self, own: PartitionLocator) -> _Rounds:
        """Return what is known of a partition; one of which the table knows nothing has no round."""
        return self._read.get(own.partition_id) or _Rounds(own, None)

    def destination(self, own: PartitionLocator) -> Destination:
        folder = f"{self._own.version_folder}/{COMPACTED_STREAM}/{own.partition_id}"
        root = self._own.root
        return Destination(compacted_partition(own), folder, commit_log(root, f"{folder}/log"), root)

    def read_again(self, own: PartitionLocator) -> bool:
        """Read a partition's log once more; return whether it says anything else."""
        before = self.of(own)
        self._read[own.partition_id] = self._read_log(own)
        return self.of(own) != before

    def catch_up(self, partitions: Sequence[_PartitionCut]) -> bool:
        """Read the logs again of partitions whose deltas are trimmed; return whether there were any.

        Raises: CorruptionError where no newer round has those deltas.
        """
        behind = [each for each in partitions if each.lost_up_to is not None]
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
            return _Rounds(own, state.get(CURRENT_KEY), tuple(state.scan(ROUND_PREFIX)) if self._needs_all else ())

        return self.destination(own).log.read(look)


def _take_cut(own: StreamLog, rounds: _KnownRounds, wanted: _Wanted) -> _Cut:
    """Choose a position of each stream that is followed, and what is read of each partition for it."""

    def read_own(state: StreamState) -> tuple[list[PartitionLocator], _Followers, _StreamCut]:
        followers = _followers(state, own, rounds)
        return rounds.unread(state), followers, _cut_stream(state, followers.by_folder.get(own.folder, []), wanted)

    begun, followers, own_cut = own.read(read_own)
    while begun:
        # Rounds are read before the stream, so that it has at least what they have read.
        rounds.read(begun)
        begun, followers, own_cut = own.read(read_own)
    cuts = [own_cut]
    gone: list[_PartitionCut] = []
    for folder, members in followers.by_folder.items():
        if folder != own.folder:
            try:
                cuts.append(_cut_other(own, folder, followers, rounds, wanted))
            except NotFoundError:
                if not wanted.is_compacted:
                    raise
                gone += [_PartitionCut(each.own, None, each.current) for each in members]
    streams = [cut.stream for cut in cuts if cut.partitions] or [own_cut.stream]
    return _Cut(followers.version, streams, [each for cut in cuts for each in cut.partitions] + gone)


def _followers(state: StreamState, own: StreamLog, rounds: _KnownRounds) -> _Followers:
    there = [rounds.of(each.locator) for each in state.partitions().values()]
    folders = {each.stream_folder for each in there if each.stream_folder is not None}
    # A table without deltas of its own, all of whose rounds are from one other stream, also follows what begins there.
    is_whole = len(folders) == 1 and own.folder not in folders and not state.stream_position
    whole = folders.pop() if is_whole else None
    by_folder: dict[str, list[_Rounds]] = defaultdict(list)
    for each in there:
        by_folder[each.stream_folder or whole or own.folder].append(each)
    return _Followers(state.version, dict(by_folder), whole)


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
        known = {each.own.partition_id for each in members}
        beyond = state.partitions().values() if folder == followers.whole else ()
        begun = [rounds.of(_partition(own.locator, each.locator.partition_values)) for each in beyond]
        return _cut_stream(state, [*members, *(each for each in begun if each.own.partition_id not in known)], wanted)

    return stream.read(read)


def _cut_stream(state: StreamState, members: Sequence[_Rounds], wanted: _Wanted) -> _StreamCut:
    """Choose a position of a stream, and what is read of each partition that follows it."""
    for each in members:
        refuse_end_before(each.watermark, state, compacted_partition(each.own))
    position = wanted.position(state, members)
    sources, keys = state.partitions(), state.delta_keys()
    partitions = []
    for each in members:
        source = sources.get(each.source_id)
        entry = each.upto(position)
        watermark = 0 if entry is None else int(entry["high_watermark"])
        after = sorted(item for item in keys.get(each.source_id, {}).items() if item[0] > watermark)
        waiting = tuple(state.delta(key) for own_position, key in after if own_position <= position)
        trimmed = 0 if source is None else source.trimmed_stream_position
        partitions.append(
            _PartitionCut(
                each.own,
                _partition(state.locator, each.own.partition_values) if source is None else source.locator,
                entry,
                waiting,
                newer=len(after) - len(waiting),
                lost_up_to=trimmed if watermark < min(trimmed, position) else None,
            )
        )
    return _StreamCut(FollowedStream(state.locator, state.version, position), partitions)


def _completed(cut: _PartitionCut, rounds: _KnownRounds) -> PartitionSnapshot | None:
    """Read the completion of the round that was chosen; None where that was vacuumed, and the log knows others now.

    Raises: CorruptionError.
    """
    destination = rounds.destination(cut.own)
    try:
        completion = None if cut.entry is None else read_completion(destination, cut.entry)
    except CorruptionError:
        if rounds.read_again(cut.own):
            return None
        raise
    return PartitionSnapshot(cut.own, destination.folder, cut.source, completion, cut.waiting, cut.newer)


def _partition(stream: StreamLocator, values: Sequence[PartitionValue]) -> PartitionLocator:
    return PartitionLocator(**stream, partition_values=list(values))
