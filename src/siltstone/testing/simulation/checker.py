"""The checker: it knows every write that was begun or acknowledged, and says what a table may not be.

A write is recognised by the files that were staged for it, so what it left in the log is known though its answer was lost.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from siltstone.catalog.main import delta_stream
from siltstone.lake import Table
from siltstone.model import Delta, DeltaType
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import Oracle, comparable
from siltstone.testing.simulation.clocks import DAY_MS

Contents = frozenset[tuple[Any, int]]
MAX_AHEAD_MS = DAY_MS
_SHOWN_ROWS = 6


class ViolationError(AssertionError):
    """Something happened that must not. `kind` is short and stable, so that failures can be told apart."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True)
class Write:
    """A write that was begun."""

    number: int
    data: pa.Table
    type: DeltaType
    op_column: str | None
    idempotency: tuple[str, int] | None


@dataclass
class Reading:
    """A read that was begun: the position that it may not be older than, unless states have gone back since."""

    floor: int
    resets: int
    what: str


@dataclass
class Ledger:
    """What is known of a table from outside."""

    oracle: Oracle
    ignored: frozenset[str] = frozenset()
    writes: dict[int, Write] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    number_at: dict[int, int] = field(default_factory=dict)
    files_at: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    states: dict[int, Contents] = field(default_factory=dict)
    writer_of: dict[str, int] = field(default_factory=dict)
    compacted_to: int = 0
    resets: int = 0
    is_going_back: int = 0
    trimmed: dict[str, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    _newest_time_ms: int = 0

    def __post_init__(self) -> None:
        """Begin with an empty table."""
        self.states[0] = frozenset()

    @property
    def newest(self) -> int:
        """The newest position that is known."""
        return max(self.states)

    def acknowledge(self, number: int, position: int) -> None:
        """Remember an answer. Raises: ViolationError where an earlier answer was another one."""
        before = self.acknowledged.setdefault(number, position)
        if before != position:
            raise ViolationError(
                "doubled write", f"write {number} was acknowledged at position {before} and then at {position}"
            )

    def compacted(self, high_watermark: int) -> None:
        """Remember that a session has compacted up to a position."""
        self.compacted_to = max(self.compacted_to, high_watermark)

    @contextlib.contextmanager
    def going_back(self) -> Iterator[None]:
        """Remember that compacted states may become older, now or until this is over."""
        self.is_going_back += 1
        try:
            yield
        finally:
            self.is_going_back -= 1
            self.resets += 1
            self.compacted_to = 0

    def begin_read(self, *, is_fresh: bool) -> Reading:
        """Note what a read that begins now must see."""
        if is_fresh:
            return Reading(max(self.acknowledged.values(), default=0), 0, "fresh read")
        return Reading(0 if self.is_going_back else self.compacted_to, self.resets, "read")

    def check_read(self, found: pa.Table, reading: Reading, position: int | None = None) -> None:
        """Check that rows are those of one position, and of one that is not too old. Raises: ViolationError."""
        contents = contents_of(found.to_pylist())
        if position is not None:
            if contents != self.states[position]:
                raise ViolationError("wrong read", f"as of {position}: {difference(contents, self.states[position])}")
            return
        positions = [each for each, state in self.states.items() if state == contents]
        if not positions:
            nearest = min(self.states.items(), key=lambda each: (distance(contents, each[1]), -each[0]))
            raise ViolationError(
                f"torn {reading.what}",
                f"the rows are those of no position from 0 to {self.newest}; nearest is {nearest[0]}: "
                f"{difference(contents, nearest[1])}",
            )
        floor = reading.floor if reading.resets == self.resets else 0
        if max(positions) < floor:
            raise ViolationError(
                f"stale {reading.what}", f"the rows are those of {positions}, but {floor} was acknowledged before"
            )

    def observe(self, table: Table, stored: Mapping[str, bytes], now_ms: int) -> None:
        """Look at all committed deltas, and take in those that are new. Raises: ViolationError."""
        by_position: dict[int, list[Delta]] = {}
        for delta in table.deltas():
            by_position.setdefault(delta.stream_position, []).append(delta)
        for position, deltas in sorted(by_position.items()):
            number = self._number_of(deltas)
            known = self.number_at.get(position)
            if known is None:
                self._take_in(position, number, deltas, now_ms)
            elif known != number:
                raise ViolationError("lost write", f"position {position} was write {known} and is write {number} now")
        self._check_listed(table, by_position)
        self.check_files(stored)
        self._check_acknowledged()

    def _check_listed(self, table: Table, by_position: Mapping[int, Sequence[Delta]]) -> None:
        """Check that all deltas that were ever seen are there, but for those that are trimmed."""
        stream = delta_stream(table.name, root=table.lake.root)
        partitions = storage.list_partitions(stream, root=table.lake.root)
        self.trimmed = {partition.locator.partition_id: partition.trimmed_stream_position for partition in partitions}
        for position, files in self.files_at.items():
            expected = {partition for partition, _ in files}
            listed = {delta.locator.partition_id for delta in by_position.get(position, ())}
            lost = [each for each in expected - listed if position > self.trimmed.get(each, 0)]
            if lost:
                raise ViolationError(
                    "lost write",
                    f"position {position}, write {self.number_at[position]}, is gone from partition {lost}",
                )

    def _number_of(self, deltas: Sequence[Delta]) -> int:
        numbers = {self.writer_of.get(entry.uri) for delta in deltas for entry in delta.manifest.entries}
        if len(numbers) != 1 or None in numbers:
            raise ViolationError("foreign delta", f"position {deltas[0].stream_position} is of writes {numbers}")
        (number,) = numbers
        assert number is not None
        return number

    def check_files(self, stored: Mapping[str, bytes]) -> None:
        """Check that no file is gone that a committed delta names, also where the log does not say so any more."""
        for position, files in self.files_at.items():
            for partition, uri in files:
                if uri not in stored and uri not in self.damaged and position > self.trimmed.get(partition, 0):
                    number = self.number_at[position]
                    raise ViolationError("missing file", f"{uri} of write {number}, position {position}, was deleted")

    def _take_in(self, position: int, number: int, deltas: Sequence[Delta], now_ms: int) -> None:
        for before, known in self.number_at.items():
            if known == number:
                raise ViolationError("doubled write", f"write {number} is at position {before} and at {position}")
        if position < self.newest:
            raise ViolationError("lost write", f"position {position} appeared after {self.newest}")
        if "commit time" not in self.ignored:
            self._check_time(position, max(delta.committed_at for delta in deltas), now_ms)
        write = self.writes[number]
        self.oracle.write(write.data, write.type, op_column=write.op_column)
        self.number_at[position] = number
        self.files_at[position] = [
            (delta.locator.partition_id, entry.uri) for delta in deltas for entry in delta.manifest.entries
        ]
        self.states[position] = contents_of(self.oracle.rows())

    def _check_time(self, position: int, time_ms: int, now_ms: int) -> None:
        if time_ms < self._newest_time_ms:
            raise ViolationError("commit time", f"position {position} is {self._newest_time_ms - time_ms} ms older")
        if time_ms > now_ms + MAX_AHEAD_MS:
            raise ViolationError("commit time", f"position {position} is {time_ms - now_ms} ms ahead of the store")
        self._newest_time_ms = time_ms

    def _check_acknowledged(self) -> None:
        for number, position in self.acknowledged.items():
            found = self.number_at.get(position)
            if found != number:
                raise ViolationError(
                    "lost write", f"write {number} was acknowledged at position {position}, where {found} is"
                )


def contents_of(rows: Sequence[Mapping[str, object]]) -> Contents:
    """Return rows so that they can be compared, in any order."""
    return frozenset(Counter(map(comparable, rows)).items())


def distance(one: Contents, other: Contents) -> int:
    """Return how many rows differ."""
    return len(one ^ other)


def difference(found: Contents, expected: Contents) -> str:
    """Say which rows differ."""
    parts = []
    for title, rows in (("missing", expected - found), ("not expected", found - expected)):
        shown = sorted(str({name: value[2] for name, value in row[2]}) for row, _ in rows)
        parts += (
            [f"{title} {', '.join(shown[:_SHOWN_ROWS])}{' …' if len(shown) > _SHOWN_ROWS else ''}"] if shown else []
        )
    return "; ".join(parts)
