"""What happened to one key: the row, or the versions, that it has as events come one after another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from siltstone.ingest.export import plain
from siltstone.model import TableVersion
from siltstone.model.entities import IS_DELETED, REMOVALS, VALID_FROM, VALID_TO
from siltstone.model.rounds import RoundCompletion
from siltstone.rows.columns import value_ids
from siltstone.rows.validity import read_history
from siltstone.text import format_value

Row = dict[str, Any]
BEFORE_IMAGE = "-U"
REBASE = "rebase"
COMPACTED_ROW = "compacted row"
OVERWRITE = "overwrite"
FROM_ROUNDS = (REBASE, COMPACTED_ROW)


@dataclass
class KeyEvent:
    """One row of a delta that concerns the key, one equality delete that does, or a row that the partition began with.

    `is_compacted` says whether the current round has taken it in.
    """

    stream_position: int
    committed_at: int
    kind: str
    effect: str
    is_winner: bool
    is_compacted: bool
    file: str
    row: int
    values: Row


class FoundRow(NamedTuple):
    """A compacted row, and where it is."""

    file: str
    row: int
    values: dict[str, Any]


def round_event(completion: RoundCompletion, found: FoundRow, kind: str, effect: str) -> KeyEvent:
    """Return a row that a round left as an event."""
    position, time_ms = completion.high_watermark, completion.completed_at
    return KeyEvent(position, time_ms, kind, effect, False, True, found.file, found.row, found.values)


class RowEvents:
    """The key's row as it changes; the schema has also the columns that were dropped since, which deletes may name."""

    def __init__(self, version: TableVersion, schema: pa.Schema) -> None:
        self._version = version
        self.schema = schema
        self.all: list[KeyEvent] = []
        self.current: Row | None = None
        self.compacted: Row | None = None
        self._holder: KeyEvent | None = None
        self._tombstone: KeyEvent | None = None
        self.floor: str | None = None

    def finish(self) -> None:
        """Mark the event that brought the current row."""
        if self.current is not None and self._holder is not None:
            self._holder.is_winner = True

    def is_at(self, values: Row) -> bool:
        """Return whether the current row has these values, in the columns that were not dropped."""
        if self.current is None:
            return False
        known = pa.schema([self.schema.field(name) for name in self._version.schema.names])
        rows = [{name: row.get(name) for name in known.names} for row in (self.current, values)]
        # Of one type, a value is written in one way; NaN, which differs from itself, is too.
        own, theirs = pa.Table.from_pylist(rows, schema=known).to_pylist()
        return repr(own) == repr(theirs)

    def reach(self, completion: RoundCompletion, found: Sequence[FoundRow]) -> None:
        """Come to the row that a round left; it may differ, since tombstones expire and damaged rows are given up."""
        row = next(iter(found), None)
        if row is None and self.current is not None:
            effect = f"round {completion.round_id} left none, which the deltas do not explain"
            self.begin(round_event(completion, FoundRow("", 0, {}), COMPACTED_ROW, effect))
        elif row is not None and not self.is_at(row.values):
            effect = f"is what round {completion.round_id} left, which the deltas do not explain"
            self.begin(round_event(completion, row, COMPACTED_ROW, effect))
        self.compacted = None if row is None else row.values

    def begin(self, event: KeyEvent) -> None:
        """Take over what a round left: a row, a tombstone, or nothing."""
        self.all.append(event)
        self._forget()
        self._tombstone = None
        if event.kind == "tombstone":
            self._tombstone = event
        elif event.values:
            self.current = {name: event.values.get(name) for name in self.schema.names}
            self._holder = event

    def take(self, event: KeyEvent, operation: str | None) -> None:
        """Take a row of a delta, or a row-level delete."""
        self.all.append(event)
        if operation == BEFORE_IMAGE:
            event.kind, event.effect = "before-image", "passed over"
            return
        is_removal = operation in REMOVALS
        event.kind = "row-level delete" if is_removal else event.kind
        rival = self._tombstone or self._holder
        if self._is_below_floor(event):
            event.effect = "stays out: the table was truncated after it"
        elif self._version.sort_keys and rival is not None and self._rank(event) < self._rank(rival):
            event.effect = f"stays out: its sort key is older than that of position {rival.stream_position}"
        elif is_removal:
            event.effect = "deletes the row" if self.current is not None else "finds no row"
            self._forget()
            self._tombstone = event if self._version.sort_keys else None
        else:
            self._upsert(event)

    def _upsert(self, event: KeyEvent) -> None:
        before = self._holder
        if self.current is None:
            event.effect = "brings the row"
            self.current = {name: event.values.get(name) for name in self.schema.names}
        elif self._version.merge_engine == "first_row":
            event.effect = f"stays out: the row of position {before.stream_position if before else 0} was first"
            return
        elif self._version.merge_engine == "partial_update":
            event.effect = f"updates {', '.join(event.values)}"
            self.current.update(event.values)
        else:
            event.effect = f"replaces the row of position {before.stream_position if before else 0}"
            self.current = {name: event.values.get(name) for name in self.schema.names}
        self._holder, self._tombstone = event, None

    def truncate(self, event: KeyEvent, floor: str) -> None:
        """Remove the row if it is older than a truncate, and keep out what comes later and is."""
        if floor:
            self.floor = max(floor, self.floor or "")
        if self.current is not None and (not floor or (self._holder and self._is_below_floor(self._holder))):
            self.remove(event)

    def _is_below_floor(self, event: KeyEvent) -> bool:
        if not self.floor or not self._version.sort_keys:
            return False
        return self._rank(event)[0] < _sortable(bytes.fromhex(self.floor))

    def remove(self, event: KeyEvent) -> None:
        """Remove the row."""
        self.all.append(event)
        event.effect = "deletes the row"
        self._forget()

    def overwrite(self, event: KeyEvent) -> None:
        """Forget the row or tombstone, if there is one: all that was there before is gone."""
        if self.current is not None:
            self.remove(event)
        elif self._tombstone is not None:
            event.effect = "ends what a delete before it kept out"
            self.all.append(event)
        self._tombstone, self.floor = None, None

    def _forget(self) -> None:
        self.current, self._holder = None, None

    def _rank(self, event: KeyEvent) -> list[tuple[int, Any]]:
        return [_sortable(event.values.get(name)) for name in self._version.sort_keys]


class VersionEvents(RowEvents):
    """The versions of a key that keeps history; what became of each event is told when all are known."""

    def __init__(self, version: TableVersion, schema: pa.Schema) -> None:
        super().__init__(version, schema)
        self._taken: list[KeyEvent] = []
        # Where those come from that are not of a delta.
        self._origins: dict[int, str] = {}

    def begin(self, event: KeyEvent) -> None:
        """Take over a version that a round left."""
        self._origins[id(event)] = f"{event.effect}; "
        self._keep(event, is_removal=bool(event.values.get(IS_DELETED)))

    def take(self, event: KeyEvent, operation: str | None) -> None:
        """Take an event of a delta."""
        if operation == BEFORE_IMAGE:
            super().take(event, operation)
        else:
            self._keep(event, is_removal=operation in REMOVALS)

    def _keep(self, event: KeyEvent, *, is_removal: bool) -> None:
        self.all.append(event)
        self._taken.append(event)
        event.kind = "row-level delete" if is_removal else event.kind

    def overwrite(self, event: KeyEvent) -> None:
        """Forget all versions."""
        if self._taken:
            self._tell()
            event.effect = "deletes the row"
            self.all.append(event)
        self._taken = []

    def reach(self, completion: RoundCompletion, found: Sequence[FoundRow]) -> None:
        """Come to the versions that a round left."""
        rows = [row.values for row in found]
        if not self._are_at(rows):
            effect = f"is what round {completion.round_id} left, which the deltas do not explain"
            self._taken = []
            for row in found:
                self.begin(round_event(completion, row, COMPACTED_ROW, effect))
            if not found:
                effect = f"round {completion.round_id} left none, which the deltas do not explain"
                self.all.append(round_event(completion, FoundRow("", 0, {}), COMPACTED_ROW, effect))
        self.compacted = next((row for row in rows if row[VALID_TO] is None), None)

    def _are_at(self, rows: Sequence[Row]) -> bool:
        """Return whether the versions have these values, in the columns that were not dropped."""
        known = pa.schema([self.schema.field(name) for name in self._version.schema.names])
        told = self._tell()
        together = [{name: row.get(name) for name in known.names} for row in [*told, *rows]]
        table = pa.Table.from_pylist(together, schema=known)
        ids = np.stack([value_ids(column) for column in table.columns], axis=1).tolist()
        return sorted(ids[: len(told)]) == sorted(ids[len(told) :])

    def finish(self) -> None:
        """Find the version that is current."""
        versions = self._tell()
        for event, row in zip(self._told, versions, strict=True):
            if row[VALID_TO] is None:
                self.current, event.is_winner = row, True

    def _tell(self) -> list[Row]:
        """Return the versions, in order, and note what became of each event; `_told` has their events."""
        (order,) = self._version.sort_keys
        rows = [{column: event.values.get(column) for column in self.schema.names} for event in self._taken]
        removals = np.array([event.kind == "row-level delete" for event in self._taken], np.bool_)
        table = pa.Table.from_pylist(rows, schema=self.schema)
        winners, found = read_history(table, removals, order, self._version.tracked_columns)
        for event, winner in zip(self._taken, winners.tolist(), strict=True):
            if winner < 0 and event.kind == "row-level delete":
                event.effect = f"has no {order}, and so ends no version"
            elif winner < 0:
                event.effect = f"is no version: a delete without {order} took its place"
            else:
                event.effect = f"gave way to position {self._taken[winner].stream_position}, which has the same {order}"
        self._told = [self._taken[row] for row in found.rows.tolist()]
        versions = []
        for place, (row, begin, end) in enumerate(zip(*(each.tolist() for each in found), strict=True)):
            times = [None if at < 0 else rows[at][order] for at in (begin, end)]
            validity = dict(zip((VALID_FROM, VALID_TO), times, strict=True))
            versions.append({**rows[row], **validity, IS_DELETED: bool(removals[row])})
            self._told[place].effect = _effect(times, bool(removals[row]), begin == end, place, self._told)
        for event in self._taken:
            event.effect = self._origins.get(id(event), "") + event.effect
        return versions


def _effect(times: list[Any], is_removal: bool, is_empty: bool, place: int, told: Sequence[KeyEvent]) -> str:
    begin, end = (format_value(plain(time)) for time in times)
    if is_removal:
        return f"deletes the key from {begin} on"
    if is_empty:
        return f"is one version with position {told[place + 1].stream_position}, which changes no tracked column"
    if times[0] is None:
        return f"is valid until {end}" if times[1] is not None else "is valid at all times"
    return f"is valid from {begin} until {end}" if times[1] is not None else f"is valid from {begin} on"


def _sortable(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)
