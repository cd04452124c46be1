"""Why a key has the row it has: every delta that touched it, in order, and what each one did."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from siltstone.compactor.columns import align, equal_ids
from siltstone.compactor.live import key_table
from siltstone.model import Delta, TableVersion
from siltstone.storage.parquet import read_data_file
from siltstone.storage.staging import REMOVALS

Row = dict[str, Any]
BEFORE_IMAGE = "-U"


@dataclass
class KeyEvent:
    """One row of a delta that concerns the key, or one equality delete that does."""

    stream_position: int
    file: str
    row: int
    kind: str
    values: Row
    effect: str
    is_winner: bool = False


@dataclass
class Explanation:
    """All events of a key in one partition, in stream order, and the row that is current after them."""

    partition_values: list[Any]
    events: list[KeyEvent] = field(default_factory=list)
    row: Row | None = None
    trimmed_up_to: int = 0

    def with_names(self, names: Mapping[str, str]) -> "Explanation":
        """Return the same with other names of columns; values of columns that have none are left out."""

        def renamed(values: Row) -> Row:
            return {names[column]: value for column, value in values.items() if column in names}

        events = [replace(event, values=renamed(event.values)) for event in self.events]
        return replace(self, events=events, row=None if self.row is None else renamed(self.row))


def explain(
    root: str, version: TableVersion, deltas: Sequence[Delta], key: Mapping[str, Any], *, trimmed_up_to: int = 0
) -> Explanation:
    """Fold the deltas of one partition for one key, one row at a time. Raises: InvalidInputError, CorruptionError."""
    wanted = key_table(version.schema, version.primary_keys, key)
    story = _Story(version)
    for delta in deltas:
        for entry in delta.manifest.entries:
            table = read_data_file(root, entry)
            if delta.type == "delete":
                _explain_delete(story, version, delta, entry.uri, table)
                continue
            (own, theirs), _ = equal_ids([align(table, wanted.schema), wanted], version.primary_keys)
            for row in np.flatnonzero(own == theirs[0]).tolist():
                values: Row = table.slice(row, 1).to_pylist()[0]
                operation = values.get(delta.op_column) if delta.op_column else None
                story.take(
                    KeyEvent(
                        delta.stream_position,
                        entry.uri,
                        row,
                        "upsert",
                        {name: values[name] for name in delta.columns},
                        "",
                    ),
                    operation,
                )
    return Explanation(
        partition_values=list(deltas[0].partition_values) if deltas else [],
        events=story.finish(),
        row=story.current,
        trimmed_up_to=trimmed_up_to,
    )


def _explain_delete(story: "_Story", version: TableVersion, delta: Delta, file: str, table: pa.Table) -> None:
    if story.current is None:
        return
    columns = list(delta.delete_columns or version.primary_keys)
    fields = pa.schema([version.schema.field(name) for name in columns])
    current = pa.Table.from_pylist([{name: story.current[name] for name in columns}], schema=fields)
    (own, theirs), _ = equal_ids([align(table, fields), current], columns)
    for row in np.flatnonzero(own == theirs[0]).tolist()[:1]:
        values = table.slice(row, 1).to_pylist()[0]
        story.remove(KeyEvent(delta.stream_position, file, row, f"delete on {', '.join(columns)}", values, ""))


class _Story:
    """The key's row as it changes."""

    def __init__(self, version: TableVersion) -> None:
        self._version = version
        self._events: list[KeyEvent] = []
        self.current: Row | None = None
        self._holder: KeyEvent | None = None
        self._tombstone: KeyEvent | None = None

    def finish(self) -> list[KeyEvent]:
        if self.current is not None and self._holder is not None:
            self._holder.is_winner = True
        return self._events

    def take(self, event: KeyEvent, operation: str | None) -> None:
        self._events.append(event)
        if operation == BEFORE_IMAGE:
            event.kind, event.effect = "before-image", "passed over"
            return
        is_removal = operation in REMOVALS
        event.kind = "row-level delete" if is_removal else event.kind
        rival = self._tombstone or self._holder
        if self._version.sort_keys and rival is not None and self._rank(event) < self._rank(rival):
            event.effect = f"stays out: its sort key is older than that of position {rival.stream_position}"
        elif is_removal:
            event.effect = "deletes the row" if self.current is not None else "finds no row"
            self._forget()
            self._tombstone = event if self._version.sort_keys else None
        else:
            self._upsert(event)

    def _upsert(self, event: KeyEvent) -> None:
        before = self._holder
        names = self._version.schema.names
        if self.current is None:
            event.effect = "brings the row"
            self.current = {name: event.values.get(name) for name in names}
        elif self._version.merge_engine == "first_row":
            event.effect = f"stays out: the row of position {before.stream_position if before else 0} was first"
            return
        elif self._version.merge_engine == "partial_update":
            event.effect = f"updates {', '.join(event.values)}"
            self.current.update(event.values)
        else:
            event.effect = f"replaces the row of position {before.stream_position if before else 0}"
            self.current = {name: event.values.get(name) for name in names}
        self._holder, self._tombstone = event, None

    def remove(self, event: KeyEvent) -> None:
        self._events.append(event)
        event.effect = "deletes the row"
        self._forget()

    def _forget(self) -> None:
        self.current, self._holder = None, None

    def _rank(self, event: KeyEvent) -> list[tuple[int, Any]]:
        return [_sortable(event.values.get(name)) for name in self._version.sort_keys]


def _sortable(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value)
