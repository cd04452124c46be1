"""From which round to which: positions, times and rounds as bounds of changes, rounded to rounds, one cut for all partitions."""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import orjson

from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.log.state import Entry
from siltstone.model.locators import check_position
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamState
from siltstone.table.completion import Destination, list_rounds
from siltstone.table.scan import destination_of
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot, parse_moment
from siltstone.table.tags import rounds_of_tag

Bound: TypeAlias = int | str | datetime.datetime | Mapping[str, int]
"""A stream position; a time; a tag; `round:12`, where a table has one partition; or the round of each partition, by its id.

As text also a position, an ISO 8601 time, or an object with the rounds in JSON.
"""
_ROUND = re.compile(r"round:([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True)
class Span:
    """The rounds of one partition after one of them, None before the first, up to another; `rounds` has all after the first."""

    partition_id: str
    destination: Destination
    older: Entry | None
    rounds: tuple[Entry, ...]

    @property
    def newer(self) -> Entry | None:
        """The last round."""
        return self.rounds[-1] if self.rounds else self.older


def parse_bound(text: str) -> Bound:
    """Read a bound. Raises: InvalidInputError."""
    if _ROUND.fullmatch(text):
        return text
    if text.startswith("{"):
        try:
            return _checked(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise InvalidInputError(f"{text!r} is not valid JSON: {error}") from error
    try:
        return parse_moment(text)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{text!r} is neither a position, nor a time, a tag or a round; write e.g. 120, 2024-05-01T08:00:00Z or round:12"
        ) from error


def _checked(rounds: Mapping[str, object]) -> dict[str, int]:
    wrong = {name: number for name, number in rounds.items() if type(number) is not int or number < 0}
    if wrong:
        raise InvalidInputError(f"{wrong} are not rounds of partitions; give whole numbers, 0 before the first")
    return {name: number for name, number in rounds.items() if isinstance(number, int)}


def find_spans(
    snapshot: TableSnapshot, after: Bound, upto: Bound | None, acknowledged: Mapping[str, int]
) -> list[Span]:
    """Return from which round to which each partition goes; `snapshot` has the newest rounds, and all deltas that wait.

    Positions and times are rounded down to rounds such that all partitions are at one position: no commit is in one of
    them and not in another. Partitions of which rounds are acknowledged start there instead of at `after`.
    Raises: NotFoundError where a round was vacuumed, InvalidInputError.
    """
    members = [_Member(partition, snapshot.root) for partition in snapshot.partitions]
    starts = _resolved(snapshot, [each for each in members if each.key not in acknowledged], after)
    starts |= {each.key: each.round(acknowledged[each.key]) for each in members if each.key in acknowledged}
    ends = _resolved(snapshot, members, upto, starts)
    return [member.span(starts[member.key], ends[member.key]) for member in members]


class _Member:
    """A partition with the rounds that its log has, up to that of the snapshot."""

    def __init__(self, partition: PartitionSnapshot, root: str) -> None:
        self.partition = partition
        self.key = partition.own.partition_id
        self.destination = destination_of(partition, root)
        completion = partition.completion
        newest = 0 if completion is None else completion.round_id
        self.rounds = [entry for entry in list_rounds(self.destination) if round_id(entry) <= newest] if newest else []
        if newest and (not self.rounds or round_id(self.rounds[-1]) != newest):
            raise NotFoundError(f"{self.destination.locator}: round {newest} was vacuumed meanwhile; try again")

    def round(self, number: int) -> Entry | None:
        """Return a round, None before the first. Raises: NotFoundError."""
        if number == 0:
            return None
        for entry in self.rounds:
            if round_id(entry) == number:
                return entry
        if not self.rounds or number > round_id(self.rounds[-1]):
            newest = round_id(self.rounds[-1]) if self.rounds else "none"
            raise NotFoundError(
                f"{self.destination.locator}: there is no round {number} yet; the newest one is {newest}"
            )
        raise self.vacuumed(f"round {number}")

    def vacuumed(self, what: str) -> NotFoundError:
        """Return the error that something lies before what is kept."""
        oldest = self.rounds[0]
        return NotFoundError(
            f"{self.destination.locator}: {what} was vacuumed; the oldest round there is is {oldest['round_id']}, of "
            f"position {oldest['high_watermark']}"
        )

    def upto(self, entries: Sequence[Entry], position: int) -> Entry | None:
        """Return the newest of some rounds that read nothing after a position; those from another source do not count."""
        source = self.rounds[-1]["source_folder"] if self.rounds else None
        fitting = [each for each in entries if watermark(each) <= position and each["source_folder"] == source]
        return fitting[-1] if fitting else None

    def newest(self, entries: Sequence[Entry], position: int) -> Entry | None:
        """Return the same, None before the first round. Raises: NotFoundError where that was vacuumed."""
        found = self.upto(entries, position)
        following = [each for each in self.rounds if round_id(each) > round_id(found)]
        is_next = not following or round_id(following[0]) == round_id(found) + 1
        if not is_next and watermark(found) < position:
            raise self.vacuumed(f"the round of position {position}")
        return found

    def span(self, older: Entry | None, newer: Entry | None) -> Span:
        """Return the rounds after one up to another. Raises: InvalidInputError where they are the other way round."""
        first, last = round_id(older), round_id(newer)
        if last < first:
            raise InvalidInputError(
                f"{self.destination.locator}: round {last} is before round {first}; give bounds in their order"
            )
        between = tuple(entry for entry in self.rounds if first < round_id(entry) <= last)
        # One that was not used yet, which can be sent elsewhere.
        return Span(self.key, replace(self.destination), older, between)


_Rounds: TypeAlias = dict[str, Entry | None]


def round_id(entry: Entry | None) -> int:
    """Return the number of a round, 0 before the first."""
    return 0 if entry is None else int(entry["round_id"])


def watermark(entry: Entry | None) -> int:
    """Return the position that a round has come to, 0 before the first."""
    return 0 if entry is None else int(entry["high_watermark"])


def _resolved(
    snapshot: TableSnapshot, members: Sequence[_Member], bound: Bound | None, starts: _Rounds | None = None
) -> _Rounds:
    """Return the round of each partition that a bound stands for, and none before `starts`."""
    bound = parse_bound(bound) if isinstance(bound, str) else bound
    if isinstance(bound, str) and not _ROUND.fullmatch(bound):
        bound = rounds_of_tag(snapshot.name, bound, root=snapshot.root)
    if isinstance(bound, str):
        if len(members) > 1:
            raise InvalidInputError(
                f"{snapshot.name}: has {len(members)} partitions, each of which counts its own rounds; give a position or a "
                'time instead of a round, or the round of each, e.g. {"eu": 12, "us": 9}'
            )
        number = int(bound.removeprefix("round:"))
        return {member.key: member.round(number) for member in members}
    if isinstance(bound, Mapping):
        return _exact(snapshot, members, _checked(bound), starts)
    position = time_ms = None
    if isinstance(bound, datetime.datetime):
        time_ms = round(bound.timestamp() * 1000)
    elif bound is not None:
        position = check_position(bound, f"{snapshot.name}: position")
    found: _Rounds = {}
    for stream in snapshot.streams:
        own = [each for each in members if _follows(each, stream.locator)]
        candidates = {each.key: _candidates(each, time_ms, starts) for each in own}
        found |= _one_cut(
            own, candidates, stream.position if position is None else min(position, stream.position), starts
        )
    # What followed a table that is gone has come as far as it will.
    return found | {each.key: each.rounds[-1] if each.rounds else None for each in members if each.key not in found}


def _exact(
    snapshot: TableSnapshot, members: Sequence[_Member], rounds: Mapping[str, int], starts: _Rounds | None
) -> _Rounds:
    unknown = rounds.keys() - {member.key for member in members}
    if any(rounds[key] for key in unknown):
        raise InvalidInputError(f"{snapshot.name}: has no partition {', '.join(sorted(unknown))}")
    known = starts or {}
    return {
        member.key: member.round(rounds[member.key]) if member.key in rounds else known.get(member.key)
        for member in members
    }


def _follows(member: _Member, stream: object) -> bool:
    source = member.partition.source
    return source is not None and source.stream_locator == stream


def _candidates(member: _Member, time_ms: int | None, starts: _Rounds | None) -> list[Entry]:
    first = 0 if starts is None else round_id(starts[member.key])
    entries = [entry for entry in member.rounds if round_id(entry) > first]
    if time_ms is None:
        return entries
    within = [entry for entry in entries if int(entry["completed_at"]) <= time_ms]
    if not within and starts is None and member.rounds and round_id(member.rounds[0]) > 1:
        raise member.vacuumed("the round of that time")
    return within


def _one_cut(
    members: Sequence[_Member], candidates: Mapping[str, Sequence[Entry]], position: int, starts: _Rounds | None
) -> _Rounds:
    """Return the newest rounds of partitions that together have all deltas up to one position, and none after it."""
    while True:
        found: _Rounds = {}
        lowest = position
        for member in members:
            own = candidates[member.key]
            if starts is None:
                entry = member.newest(own, position)
            else:
                # What was seen before stays, also where others have not come that far.
                entry = max(member.upto(own, position), starts[member.key], key=round_id)
            found[member.key] = entry
            lowest = min(lowest, _complete_upto(member, watermark(entry), position))
        if lowest == position:
            return found
        position = lowest


def _complete_upto(member: _Member, after: int, position: int) -> int:
    """Return how far a partition is complete that has all deltas up to `after`: up to its next delta."""
    source = member.partition.source
    assert source is not None
    if position <= after:
        return position

    def read(state: StreamState) -> int:
        partition = state.partition(source.partition_id)
        if partition is not None and after < min(partition.trimmed_stream_position, position):
            return after
        deltas = state.deltas(source.partition_id, after, position)
        return min((delta.stream_position - 1 for delta in deltas), default=position)

    return storage.locate_stream(source, root=member.destination.root).recall(read)


def steps_of(spans: Iterable[Span]) -> list[tuple[Span, Entry | None, Entry]]:
    """Return each round of all partitions with the one before it, in the order in which they were committed."""
    steps: list[tuple[int, Span, Entry | None, Entry]] = []
    for span in spans:
        before, time_ms = span.older, 0
        for entry in span.rounds:
            # Of one partition, rounds stay in their order, whatever the clocks say.
            time_ms = max(time_ms, int(entry["completed_at"]))
            steps.append((time_ms, span, before, entry))
            before = entry
    steps.sort(key=lambda step: step[0])
    return [(span, before, entry) for _, span, before, entry in steps]
