"""From what events say to what is written: truncates apart, values carried to where the source left them out, rows by
the columns that they give.

Along a key, in the order of the source, a row gives at least the columns that the rows before it gave: what it leaves
out is taken from them. So rows that give fewer columns can be written first, and no order is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.cdc.changes import (
    OP_COLUMN,
    SOURCE_POSITION,
    Carry,
    Changes,
    Decoded,
    FindRows,
    Reject,
    Target,
    Truncate,
)
from siltstone.cdc.event_lines import Lines
from siltstone.cdc.images import TRUNCATE, Collected, Images

Key = tuple[Any, ...]
# Without its last number, a position is the same for the delete and the create that a changed key is.
_MOVE_BYTES = 25


def settle(collected: Collected, target: Target, events: int, find_rows: FindRows | None = None) -> Decoded:
    """Return what collected rows mean for a table. Raises: InvalidInputError."""
    images = collected.images()
    truncates: list[Truncate] = []
    groups: list[Changes] = []
    carries: list[Carry] = []
    if images is not None:
        parts, marks = _cut(images, target)
        for part, mark in zip(parts, [*marks, None], strict=True):
            done, left = _settle_rows(part, target, find_rows, collected.rejects)
            groups += done
            carries += left
            if mark is not None:
                truncates.append(Truncate(mark, len(groups)))
    known = set(target.schema.names)
    schemas = [each.rows.schema for each in groups]
    fields = {field.name: field for schema in schemas for field in schema if field.name not in known}
    new = [field for name, field in fields.items() if name not in (OP_COLUMN, SOURCE_POSITION)]
    return Decoded(
        changes=groups,
        truncates=truncates,
        rejects=sorted(collected.rejects, key=lambda reject: reject.line),
        new_fields=new,
        carries=carries,
        skipped=dict(collected.skipped),
        warnings=list(dict.fromkeys(collected.warnings)),
        events=events,
        columns=target.columns.names,
    )


def _cut(images: Images, target: Target) -> tuple[list[Images], list[bytes]]:
    """Cut rows at truncates, in the order of the source where the table goes by that, or else as they came."""
    is_truncate = pc.equal(images.ops, TRUNCATE).to_numpy()
    if not is_truncate.any():
        return [images], []
    if SOURCE_POSITION in target.schema.names:
        # The position tells which rows it concerns, wherever they are.
        positions = images.rows.column(SOURCE_POSITION).filter(pa.array(is_truncate)).to_pylist()
        newest = max(position or b"" for position in positions)
        return [images.take(np.flatnonzero(~is_truncate)), images.take(np.zeros(0, np.int64))], [newest]
    parts: list[Images] = []
    marks: list[bytes] = []
    start = 0
    for place in np.flatnonzero(is_truncate).tolist():
        parts.append(images.take(np.arange(start, place)))
        marks.append(images.rows.column(SOURCE_POSITION)[place].as_py() or b"")
        start = place + 1
    return [*parts, images.take(np.arange(start, len(is_truncate)))], marks


def _settle_rows(
    images: Images, target: Target, find_rows: FindRows | None, rejects: list[Reject]
) -> tuple[list[Changes], list[Carry]]:
    if not len(images.lines):
        return [], []
    if not images.absent:
        return [Changes(images.rows)], []
    images = _in_order(images, target)
    walk = _Walk(images, target)
    carries = walk.fill({})
    if find_rows is None:
        return _by_presence(walk.filled(), []), carries
    found = _found(carries, target, find_rows)
    lost = walk.lost(walk.fill(found), found)
    rejects += [Reject(line, _lost_reason(carry), b"") for line, carry in lost.items()]
    return _by_presence(walk.filled(), list(lost)), []


def _lost_reason(carry: Carry) -> str:
    return (
        f"the source did not send the value of {', '.join(carry.columns)}, since only the key changed, and the row of the "
        f"old key{'' if carry.old_key is None else f' {dict(carry.old_key)!r}'} is not in the table; set REPLICA IDENTITY "
        "FULL for it, and write a snapshot"
    )


def _in_order(images: Images, target: Target) -> Images:
    """Bring rows to the order of the source, each once, where the table goes by that."""
    if SOURCE_POSITION not in target.schema.names:
        return images
    positions = images.rows.column(SOURCE_POSITION).to_pylist()
    order = sorted(range(len(positions)), key=lambda row: positions[row] or b"")
    keys, ops = _keys(images.rows, target), images.ops.to_pylist()
    seen: set[tuple[Any, ...]] = set()
    kept = []
    for row in order:
        identity = (positions[row], keys[row], ops[row])
        if positions[row] is None or identity not in seen:
            seen.add(identity)
            kept.append(row)
    return images.take(np.array(kept, np.int64))


def _keys(rows: pa.Table, target: Target) -> list[Key]:
    names = [name for name in target.primary_keys if name in rows.column_names]
    return list(zip(*(rows.column(name).to_pylist() for name in names), strict=True)) if names else []


@dataclass(frozen=True)
class _Found:
    """A row that the table has: its values, and where it is in the order of the source."""

    values: Mapping[str, Any]
    position: bytes | None
    is_deleted: bool

    def is_before(self, position: bytes | None) -> bool:
        """Return whether the row is from before a position, as far as either is known."""
        return self.position is None or position is None or self.position < position


class _Walk:
    """Goes along the rows, in order, and knows at each which rows gave the values that its key has then."""

    def __init__(self, images: Images, target: Target) -> None:
        self._images = images
        self._target = target
        self._columns = [name for name, flags in images.absent.items() if flags.any()]
        self._keys = _keys(images.rows, target)
        self._ops = images.ops.to_pylist()
        self._positions = images.rows.column(SOURCE_POSITION).to_pylist()
        self._sources: dict[str, Lines] = {name: np.arange(len(self._ops)) for name in self._columns}
        self._values: dict[str, list[Any]] = {name: [] for name in self._columns}

    def fill(self, found: Mapping[Key, _Found]) -> list[Carry]:
        """Take what rows leave out from rows before them, and from those that were found in the table.

        Returns the rows of changed keys that still lack values.
        """
        states: dict[Key, dict[str, int]] = {}
        moves: dict[bytes, tuple[Key, dict[str, int]]] = {}
        missing: list[Carry] = []
        for row, (key, op, position) in enumerate(zip(self._keys, self._ops, self._positions, strict=True)):
            place = None if position is None else position[:_MOVE_BYTES]
            if op == "d":
                state = states.pop(key, {})
                if place is not None:
                    moves[place] = (key, state)
                continue
            state = states.setdefault(key, {})
            old_key, old = moves.get(place, (None, {})) if op == "c" and place is not None else (None, {})
            lost = []
            for name in self._columns:
                if not self._images.absent[name][row]:
                    state[name] = row
                    continue
                source = state.get(name, old.get(name))
                if source is None and old_key is not None and self._has(found, old_key, position):
                    source = len(self._ops) + len(self._values[name])
                    self._values[name].append(found[old_key].values.get(name))
                if source is not None:
                    state[name] = source
                    self._sources[name][row] = source
                elif op == "c":
                    lost.append(name)
            if lost:
                missing.append(self._carry(row, key, old_key, position, lost))
        return missing

    def _has(self, found: Mapping[Key, _Found], key: Key, position: bytes | None) -> bool:
        return key in found and not found[key].is_deleted and found[key].is_before(position)

    def _carry(self, row: int, key: Key, old_key: Key | None, position: bytes | None, columns: Sequence[str]) -> Carry:
        names = self._target.primary_keys
        return Carry(
            line=int(self._images.lines[row]),
            key=dict(zip(names, key, strict=True)),
            old_key=None if old_key is None else dict(zip(names, old_key, strict=True)),
            position=position or b"",
            columns=columns,
        )

    def lost(self, carries: Sequence[Carry], found: Mapping[Key, _Found]) -> dict[int, Carry]:
        """Return, by line, the rows of changed keys whose values are nowhere, and which nothing here replaces.

        Where the table has the row of the new key, as it was then or later, this one came before.
        """
        newest: dict[Key, int] = {}
        for row, key in enumerate(self._keys):
            newest[key] = row
        lines = {int(line): row for row, line in enumerate(self._images.lines)}
        lost = {}
        for carry in carries:
            key = tuple(carry.key.values())
            own = found.get(key)
            came_before = own is not None and not own.is_before(carry.position)
            last = newest[key]
            is_moot = last != lines[carry.line] and (self._ops[last] == "d" or self._gives_all(last, carry.columns))
            if not came_before and not is_moot:
                lost[carry.line] = carry
                # Rows after it have no more to go by than it has.
                for row in range(lines[carry.line] + 1, len(self._keys)):
                    if self._keys[row] == key and not self._gives_all(row, carry.columns):
                        lost[int(self._images.lines[row])] = carry
        return lost

    def _gives_all(self, row: int, columns: Sequence[str]) -> bool:
        return all(self._sources[name][row] != row or not self._images.absent[name][row] for name in columns)

    def filled(self) -> Images:
        """Return the rows with what was taken over."""
        rows, absent = self._images.rows, {}
        for name in self._columns:
            sources = self._sources[name]
            column = rows.column(name)
            values = pa.chunked_array([*column.chunks, pa.array(self._values[name], column.type)], column.type)
            rows = rows.set_column(rows.column_names.index(name), name, values.take(pa.array(sources)))
            absent[name] = self._images.absent[name] & (sources == np.arange(len(sources)))
        return Images(rows, self._images.lines, absent)


def _found(carries: Sequence[Carry], target: Target, find_rows: FindRows) -> dict[Key, _Found]:
    """Look up the rows of the old keys, and of the new ones, in the table."""
    if not carries:
        return {}
    keys = [each for carry in carries for each in (carry.old_key, carry.key) if each is not None]
    schema = pa.schema([target.schema.field(name) for name in target.primary_keys])
    columns = list(dict.fromkeys(name for carry in carries for name in carry.columns if name in target.schema.names))
    has_position = SOURCE_POSITION in target.schema.names
    rows = find_rows(
        pa.Table.from_pylist([dict(key) for key in keys], schema=schema),
        [*columns, *([SOURCE_POSITION] if has_position else [])],
    )
    return {
        tuple(row[name] for name in target.primary_keys): _Found(
            row, row.get(SOURCE_POSITION), row.get(OP_COLUMN) == "d"
        )
        for row in rows.to_pylist()
    }


def _by_presence(images: Images, lost: Sequence[int]) -> list[Changes]:
    """Divide rows by the columns that they give: those that give fewer first. Deletes go with the rows before them."""
    keep = ~np.isin(images.lines, np.array(lost, np.int64)) if lost else np.ones(len(images.lines), np.bool_)
    names = list(images.absent)
    flags = np.stack([images.absent[name] for name in names]) if names else np.zeros((0, len(images.lines)), np.bool_)
    patterns = [tuple(column) for column in flags.T.tolist()]
    groups = []
    for pattern in sorted(set(patterns), key=lambda each: (-sum(each), each)):
        chosen = np.array([each == pattern for each in patterns], np.bool_) & keep
        if chosen.any():
            left_out = [name for name, absent in zip(names, pattern, strict=True) if absent]
            rows = images.rows.filter(pa.array(chosen))
            groups.append(Changes(rows.drop_columns(left_out) if left_out else rows))
    return groups
