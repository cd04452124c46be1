"""What rows mean: deltas folded one row at a time in plain Python, for engines to be compared with.

Nothing here is fast and nothing is shared with an engine, so that both are not wrong in the same way.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import pyarrow as pa

from siltstone.catalog.main import delta_stream
from siltstone.errors import InvalidInputError
from siltstone.lake import Table
from siltstone.model import DeltaType, MergeEngine, PartitionValue, TableVersion
from siltstone.model.entities import HISTORY_COLUMNS, IS_DELETED, VALID_FROM, VALID_TO
from siltstone.model.properties import HISTORY_TRACK
from siltstone.storage import object_store as storage

Row = dict[str, object]
Replaced = Literal["table", "partitions"] | Sequence[Sequence[object]]
"""What is overwritten: the table, the partitions of the rows that come, or those with these values."""
Key = tuple[tuple[int, str, Any], ...]

_UPSERTS = ("c", "r", "u", "I", "U", "+I", "+U")
_DELETES = ("d", "D", "-D")
_BEFORE_IMAGE = "-U"
_SHOWN_ROWS = 20


class Oracle:
    """The rows of a table after some writes.

    A key has a current row, or a tombstone, or neither. Each partition is by itself: a row of one never replaces a
    row of another. Tombstones do not expire here.
    """

    def __init__(
        self,
        *,
        columns: Iterable[str] = (),
        primary_keys: Sequence[str] = (),
        sort_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        merge_engine: MergeEngine = "deduplicate",
        drop_duplicates: bool = True,
        tracked_columns: Sequence[str] | None = None,
    ) -> None:
        if merge_engine == "first_row" and sort_keys:
            raise InvalidInputError("merge engine first_row goes by arrival; leave out the sort keys")
        self.columns = list(columns)
        self._primary_keys = list(primary_keys)
        self._partition_keys = list(partition_keys)
        self._partitions: dict[Key, list[object]] = {}
        self._identity = [*partition_keys, *primary_keys] if primary_keys else []
        self._one_row_per_key = bool(primary_keys) and drop_duplicates
        self._sort_keys = list(sort_keys) if self._one_row_per_key else []
        self._merge_engine = merge_engine
        self._rows: dict[Key, list[Row]] = {}
        self._tombstones: dict[Key, Row] = {}
        # Of each partition there is, and of those that come later.
        self._floors: dict[Key, bytes | None] = {}
        self._floor: bytes | None = None
        self._tracked = None if tracked_columns is None else list(tracked_columns)
        self._keeps_history = merge_engine == "history"
        # By key, then by sort key: the event there, with a removal's values, and whether it is one.
        self._events: dict[Key, dict[Key, tuple[Row, bool]]] = {}
        if self._keeps_history:
            self.columns += [name for name in HISTORY_COLUMNS if name not in self.columns]

    @classmethod
    def of_version(cls, version: TableVersion) -> Self:
        """Make the oracle of a table that has no rows yet."""
        return cls(
            columns=version.schema.names,
            primary_keys=version.primary_keys,
            sort_keys=version.sort_keys,
            partition_keys=version.partition_keys,
            merge_engine=version.merge_engine,
            drop_duplicates=version.drop_duplicates,
            tracked_columns=HISTORY_TRACK.of(version.properties, version.locator),
        )

    def rows(self) -> list[Row]:
        """Return the rows, each with all columns known so far: the current ones, or all versions where it keeps history."""
        if self._keeps_history:
            return [row for events in self._events.values() for row in self._versions(events)]
        return [{name: row.get(name) for name in self.columns} for rows in self._rows.values() for row in rows]

    def _versions(self, events: Mapping[Key, tuple[Row, bool]]) -> list[Row]:
        """Return the events of one key as rows, each with the time it was valid."""
        order = self._sort_keys[0]
        told = [events[place] for place in sorted(events)]
        versions: list[Row] = []
        begin: object = None
        is_going_on = False
        for number, (row, is_removal) in enumerate(told):
            following, is_next_removal = told[number + 1] if number + 1 < len(told) else (None, True)
            own, end = row[order], None if following is None else following[order]
            begin = begin if is_going_on else own
            is_going_on = (
                not is_removal and not is_next_removal and following is not None and self._same(row, following)
            )
            if is_removal or is_going_on:
                point = end if own is None else own
                validity: Row = {VALID_FROM: point, VALID_TO: point}
            else:
                validity = {VALID_FROM: begin, VALID_TO: end}
            whole = {name: row.get(name) for name in self.columns}
            versions.append({**whole, **validity, IS_DELETED: is_removal})
        return versions

    def _same(self, row: Row, other: Row) -> bool:
        """Say whether two events of a key are equal in all tracked columns."""
        untracked = {*self._primary_keys, *self._sort_keys, *HISTORY_COLUMNS}
        tracked = [name for name in self.columns if name not in untracked] if self._tracked is None else self._tracked
        return _key(row, tracked) == _key(other, tracked)

    def tombstones(self) -> list[Row]:
        """Return the key and sort-key columns of each row-level delete that keeps older rows of its key out."""
        return [dict(tombstone) for tombstone in self._tombstones.values()]

    def write(
        self,
        data: pa.Table,
        type: DeltaType = "upsert",
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        partition: Sequence[object] | None = None,
        overwrite: Replaced | None = None,
    ) -> None:
        """Apply what `Table.write` would write, or what it writes to one partition."""
        if overwrite is not None:
            self._clear(data, overwrite)
        self.apply(
            data.to_pylist(),
            type=type,
            columns=data.column_names,
            delete_columns=delete_columns,
            op_column=op_column,
            partition=partition,
        )

    def _clear(self, data: pa.Table, overwrite: Replaced) -> None:
        """Forget all rows and tombstones of what is overwritten."""
        arriving = {_key(row, self._partition_keys) for row in data.to_pylist()} if self._partition_keys else {()}
        doomed = arriving
        if not isinstance(overwrite, str):
            doomed = {
                _key(dict(zip(self._partition_keys, values, strict=True)), self._partition_keys) for values in overwrite
            }
        for key, rows in list(self._rows.items()):
            self._rows[key] = [
                row for row in rows if overwrite != "table" and _key(row, self._partition_keys) not in doomed
            ]
        for key, events in list(self._events.items()):
            partition = {_key(row, self._partition_keys) for row, _ in events.values()}
            if overwrite == "table" or partition <= doomed:
                del self._events[key]
        if overwrite == "table" or not self._partition_keys:
            self._floor = None
        for key in {*self._floors, *arriving}:
            if overwrite == "table" or key in doomed:
                self._floors[key] = None
        for key, tombstone in list(self._tombstones.items()):
            if overwrite == "table" or _key(tombstone, self._partition_keys) in doomed:
                del self._tombstones[key]

    def apply(
        self,
        rows: Sequence[Mapping[str, object]],
        *,
        type: DeltaType = "upsert",
        columns: Sequence[str] | None = None,
        delete_columns: Sequence[str] | None = None,
        op_column: str | None = None,
        partition: Sequence[object] | None = None,
    ) -> None:
        """Apply a delta with these columns (by default, those of its rows); what a row lacks of them is null.

        A row-level delete that has no value of a partition key outside the primary key concerns all partitions that there
        are, those of this delta included; where the delta is that of one `partition`, that one.
        """
        if type == "delete":
            self._delete(rows, self._primary_keys if delete_columns is None else delete_columns)
            return
        columns = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
        # The operation column is no column of the table, unless the table has one of that name.
        columns = [name for name in columns if name != op_column or name in self.columns]
        self.columns += [name for name in columns if name not in self.columns]
        operations = ["u" if op_column is None else row[op_column] for row in rows]
        taken = [{name: row.get(name) for name in columns} for row in rows]
        everywhere = [self._is_everywhere(*each) for each in zip(taken, operations, strict=True)]
        for row, is_everywhere in zip(taken, everywhere, strict=True):
            if self._partition_keys and not is_everywhere:
                values = [row.get(name) for name in self._partition_keys]
                self._partitions[_key(row, self._partition_keys)] = values
        for row, operation, is_everywhere in zip(taken, operations, everywhere, strict=True):
            if not is_everywhere:
                self._apply_row(row, operation)
                continue
            for values in list(self._partitions.values()) if partition is None else [list(partition)]:
                self._apply_row({**row, **dict(zip(self._partition_keys, values, strict=True))}, operation)

    def truncate(self, floor: bytes, partition: Sequence[object] | None = None) -> None:
        """Remove all rows with a lower sort key, and refuse those that come later; without one, all rows there are.

        It holds for all partitions, those that begin later included, or for one.
        """
        if partition is not None:
            own = dict(zip(self._partition_keys, partition, strict=True))
            self._truncate_partition(_key(own, self._partition_keys), floor)
            return
        for values in [*self._floors]:
            self._truncate_partition(values, floor)
        self._floor = max(floor, self._floor or b"") or None

    def _truncate_partition(self, values: Key, floor: bytes) -> None:
        for key, current in self._rows.items():
            self._rows[key] = [
                row
                for row in current
                if _key(row, self._partition_keys) != values or (floor and not self._is_below(row, floor))
            ]
        self._floors[values] = max(floor, self._floors.get(values) or b"") or None

    def _is_below(self, row: Mapping[str, object], floor: object) -> bool:
        return comparable(row.get(self._sort_keys[0])) < comparable(floor)

    def _is_everywhere(self, row: Row, operation: object) -> bool:
        outside = [name for name in self._partition_keys if self._primary_keys and name not in self._primary_keys]
        return operation in _DELETES and any(row.get(name) is None for name in outside)

    def _delete(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> None:
        doomed = {_key(row, columns) for row in rows}
        for key, current in list(self._rows.items()):
            self._rows[key] = [row for row in current if _key(row, columns) not in doomed]

    def _apply_row(self, row: Row, operation: object) -> None:
        if operation == _BEFORE_IMAGE:
            return
        assert operation in _UPSERTS or operation in _DELETES, operation
        key = _key(row, self._identity)
        if self._keeps_history:
            self._take_event(row, key, is_removal=operation in _DELETES)
            return
        current = self._rows.setdefault(key, [])
        floor = self._floors.setdefault(_key(row, self._partition_keys), self._floor)
        if floor is not None and self._is_below(row, floor):
            return
        if self._one_row_per_key and self._is_late(row, key):
            return
        if operation in _DELETES:
            current.clear()
            if self._sort_keys:
                self._tombstones[key] = {name: row[name] for name in [*self._identity, *self._sort_keys]}
            return
        self._tombstones.pop(key, None)
        if not self._one_row_per_key or not current:
            current.append(row)
        elif self._merge_engine == "partial_update":
            current[0] = {**current[0], **row}
        elif self._merge_engine == "deduplicate":
            current[0] = row

    def _take_event(self, row: Row, key: Key, *, is_removal: bool) -> None:
        """Take an event of a history in place of any that was there; a removal before all time leaves nothing."""
        place = _key(row, self._sort_keys)
        events = self._events.setdefault(key, {})
        if is_removal and row.get(self._sort_keys[0]) is None:
            events.pop(place, None)
        else:
            events[place] = (row, is_removal)

    def _is_late(self, row: Row, key: Key) -> bool:
        """Say whether the key has a row or tombstone with greater sort keys."""
        standing = [*self._rows[key], *([self._tombstones[key]] if key in self._tombstones else [])]
        return any(_key(row, self._sort_keys) < _key(each, self._sort_keys) for each in standing)


def comparable(value: object) -> tuple[int, str, Any]:
    """Return what stands for a value in comparisons: null equals null and is least, NaN greatest, -0.0 is 0.0."""
    if value is None:
        return 0, "", None
    if isinstance(value, float):
        return (2, "float", None) if value != value else (1, "float", value + 0.0)
    if isinstance(value, bytes | bytearray):
        return 1, "bytes", bytes(value)
    if isinstance(value, list | tuple):
        return 1, "list", tuple(comparable(each) for each in value)
    if isinstance(value, Mapping):
        return 1, "struct", tuple((name, comparable(value[name])) for name in sorted(value))
    return 1, type(value).__name__, value


def _key(row: Mapping[str, object], columns: Sequence[str]) -> Key:
    return tuple(comparable(row.get(name)) for name in columns)


def oracle_of(table: Table, upto: int | None = None, *, partition: Sequence[PartitionValue] | None = None) -> Oracle:
    """Fold the committed deltas of a table, or of one partition, up to a stream position, inclusive.

    Columns are those of the table now. Raises: InvalidInputError where deltas have been trimmed.
    """
    root = table.lake.root
    for each in storage.list_partitions(delta_stream(table.name, root=root), root=root):
        if each.trimmed_stream_position:
            raise InvalidInputError(f"{each.locator}: deltas up to {each.trimmed_stream_position} are trimmed")
    oracle = Oracle.of_version(table.version)
    for delta in table.deltas(last_stream_position=upto):
        if partition is None or delta.partition_values == list(partition):
            data = storage.download_delta(delta, root=root)
            values = _typed(delta.partition_values, table.version)
            for floor in (delta.inherited_floor, delta.floor):
                if floor is not None:
                    oracle.truncate(bytes.fromhex(floor), values)
            if delta.floor is not None:
                continue
            overwrite = [values] if delta.replaces else None
            oracle.write(data, delta.type, delta.delete_columns, delta.op_column, values, overwrite)
    return oracle


def _typed(values: Sequence[PartitionValue], version: TableVersion) -> list[object]:
    """Return the values of partition keys as rows have them; dates are stored as text."""
    types = [version.schema.field(name).type for name in version.partition_keys]
    return [
        None if value is None else pa.scalar(value).cast(kind).as_py()
        for value, kind in zip(values, types, strict=False)
    ]


def same_rows(found: pa.Table | Sequence[Mapping[str, object]], expected: Sequence[Mapping[str, object]]) -> None:
    """Compare rows by value, in any order; null equals null, NaN equals NaN, -0.0 equals 0.0, 1 differs from 1.0.

    Raises: AssertionError that shows which rows are missing and which are not expected.
    """
    rows: Sequence[Mapping[str, object]] = found.to_pylist() if isinstance(found, pa.Table) else found
    have, want = Counter(map(comparable, rows)), Counter(map(comparable, expected))
    if have == want:
        return
    by_value = {comparable(row): row for row in [*rows, *expected]}
    lines = [f"{len(rows)} rows instead of {len(expected)}"]
    for title, left in (("missing", want - have), ("not expected", have - want)):
        lines += [f"{title}: {left.total()}"]
        lines += [f"  {count} x {dict(by_value[row])!r}" for row, count in left.most_common(_SHOWN_ROWS)]
        lines += ["  ..."] if len(left) > _SHOWN_ROWS else []
    raise AssertionError("\n".join(lines))
