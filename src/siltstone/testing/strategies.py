"""Hypothesis strategies for random tables and for random histories of writes that `Table.write` accepts.

A choice is a byte and a row is a few bytes, which is fast to draw and shrinks towards the first of each list here.
Values come from tiny domains, so that keys meet again and again.
"""

import datetime
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal, TypeVar

import pyarrow as pa

from siltstone.errors import require_packages

require_packages("random tables", ("hypothesis",), "siltstone[testing]")

from hypothesis import strategies as st

from siltstone.lake import Lake, Table
from siltstone.model import DeltaType, MergeEngine
from siltstone.model.entities import REMOVALS
from siltstone.testing.oracle import Oracle

T = TypeVar("T")
_OPERATIONS = (("c", "r", "u", "d"), ("I", "U", "D"), ("+I", "-U", "+U", "-D"))
_OP_COLUMN = "op"
MERGE_ENGINES: tuple[MergeEngine, ...] = ("deduplicate", "deduplicate", "partial_update", "first_row", "history")
_SETTING_BYTES = 40
_WRITE_BYTES = 24
_KEY_VALUES = {1: 3, 2: 2, 3: 2}
_SORT_VALUES = {1: 4, 2: 3}
_PAYLOAD_VALUES = 3


@dataclass(frozen=True)
class Kind:
    """A type with values of it, and a wider type with values that only that one holds."""

    type: pa.DataType
    values: tuple[object, ...]
    wider: pa.DataType | None = None
    wider_values: tuple[object, ...] = ()


_UTC = datetime.UTC
_FLOATS = (0.0, -0.0, math.nan, None, math.inf, 0.1)
_STRINGS = Kind(pa.string(), ("a", "", None, "b", "a|b", "é", "\U0001f642", "\uffff"))
_INT32 = Kind(pa.int32(), (1, 2, None, 0, -1, 2**31 - 1), pa.int64(), (2**40,))
_SCALARS = (
    Kind(pa.int64(), (1, 2, None, -1, 2**63 - 1, -(2**63))),
    _STRINGS,
    _INT32,
    Kind(pa.int8(), (1, 2, None, 0, -128), pa.int32(), (300,)),
    Kind(pa.int16(), (1, 2, None, 0, -1), pa.int64(), (2**40,)),
    Kind(pa.bool_(), (True, False, None)),
    Kind(pa.float64(), _FLOATS),
    Kind(pa.float32(), _FLOATS, pa.float64(), (1e300, 0.2)),
    Kind(pa.date32(), (datetime.date(2026, 11, 15), datetime.date(1970, 1, 1), None, datetime.date(1905, 2, 28))),
    Kind(
        pa.timestamp("us"),
        (datetime.datetime(2026, 1, 1), None, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ),
    Kind(
        pa.timestamp("us", tz="UTC"),
        (datetime.datetime(2026, 1, 1, tzinfo=_UTC), None, datetime.datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=_UTC)),
    ),
    Kind(
        pa.decimal128(6, 2),
        (Decimal("1.50"), Decimal("0.00"), None, Decimal("-9999.99")),
        pa.decimal128(10, 4),
        (Decimal("1.5005"), Decimal("123456.7890")),
    ),
    Kind(pa.binary(), (b"a", b"", None, b"\x00\xff", b"\x80")),
)
_NESTED = (
    Kind(pa.list_(pa.int32()), ([1, None], [], None)),
    Kind(
        pa.struct([pa.field("a", pa.float64()), pa.field("b", pa.string())]),
        ({"a": 1.5, "b": ""}, {"a": None, "b": None}, None),
    ),
    Kind(
        pa.list_(pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.string()))])),
        ([{"a": 1, "b": ["x", None]}, None], [], [{"a": None, "b": None}]),
    ),
    Kind(pa.map_(pa.string(), pa.int64()), ([("k", 1), ("l", None)], [], None)),
)
_PARTITION_KINDS = (Kind(pa.string(), ("eu", "us", None, "", "a/b")), _INT32, Kind(pa.int64(), (1, 2, None)))


@dataclass(frozen=True)
class Column:
    """A column and the few values it has in this history."""

    name: str
    kind: Kind
    values: tuple[object, ...]
    nullable: bool = True

    def never_null(self) -> "Column":
        """Return the same column where null is refused."""
        return replace(self, values=tuple(value for value in self.values if value is not None), nullable=False)

    def array(
        self, choices: Sequence[int], *, is_wider: bool, has_nulls: bool = False
    ) -> "pa.Array[pa.Scalar[pa.DataType]]":
        """Return the values that the bytes choose; with nulls, every other one is null."""
        kind, values = self.kind.type, self.values
        if is_wider and self.kind.wider is not None:
            kind, values = self.kind.wider, values + self.kind.wider_values
        chosen = (None if has_nulls and choice > 127 else values[choice % len(values)] for choice in choices)
        return pa.array(chosen, kind)


@dataclass(frozen=True)
class TableSettings:
    """The settings of a random table; keys that are not unique in the whole table are unique within a partition."""

    columns: tuple[Column, ...]
    primary_keys: tuple[str, ...] = ()
    sort_keys: tuple[str, ...] = ()
    partition_keys: tuple[str, ...] = ()
    merge_engine: MergeEngine = "deduplicate"
    drop_duplicates: bool = True
    tracked_columns: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([pa.field(column.name, column.kind.type, column.nullable) for column in self.columns])

    def create(self, lake: Lake, name: str = "shop.orders") -> Table:
        """Create the table in a lake."""
        return lake.create_table(
            name,
            schema=self.schema,
            primary_keys=self.primary_keys,
            sort_keys=self.sort_keys,
            partition_keys=self.partition_keys,
            merge_engine=self.merge_engine,
            drop_duplicates=self.drop_duplicates,
            unique_within_partition=not set(self.partition_keys) <= set(self.primary_keys),
            properties=None if self.tracked_columns is None else {"history.track": ", ".join(self.tracked_columns)},
        )

    def oracle(self) -> Oracle:
        """Return the oracle of the empty table."""
        return Oracle(
            columns=self.schema.names,
            primary_keys=self.primary_keys,
            sort_keys=self.sort_keys,
            partition_keys=self.partition_keys,
            merge_engine=self.merge_engine,
            drop_duplicates=self.drop_duplicates,
            tracked_columns=self.tracked_columns,
        )


@dataclass(frozen=True)
class Write:
    """What one call of `Table.write` takes."""

    data: pa.Table
    type: DeltaType = "upsert"
    delete_columns: tuple[str, ...] | None = None
    op_column: str | None = None
    overwrite: Literal["table", "partitions"] | None = None

    def __repr__(self) -> str:
        types = ", ".join(f"{field.name} {field.type}" for field in self.data.schema)
        settings = f"type={self.type!r}, delete_columns={self.delete_columns!r}, op_column={self.op_column!r}"
        settings += f", overwrite={self.overwrite!r}"
        return f"Write(<{types}> {self.data.to_pylist()!r}, {settings})"

    def write_to(self, table: Table) -> int:
        """Write it to a table and return the stream position."""
        mode: Literal["append", "overwrite"] = "append" if self.overwrite is None else "overwrite"
        partitions: Literal["present"] | None = "present" if self.overwrite == "partitions" else None
        return table.write(self.data, self.type, self.delete_columns, self.op_column, mode=mode, partitions=partitions)

    def apply_to(self, oracle: Oracle) -> None:
        """Apply it to an oracle."""
        oracle.write(self.data, self.type, self.delete_columns, self.op_column, overwrite=self.overwrite)


class _Choices:
    """Bytes as a row of choices; byte 0 chooses the first option."""

    def __init__(self, drawn: bytes) -> None:
        self._drawn = iter(drawn)

    def one_of(self, options: Sequence[T]) -> T:
        return options[next(self._drawn) % len(options)]

    def one_in(self, count: int) -> bool:
        return next(self._drawn) % count == count - 1

    def some_of(self, options: Sequence[T]) -> list[T]:
        bits = next(self._drawn)
        return [option for number, option in enumerate(options) if bits >> number % 8 & 1]

    def column(self, name: str, kinds: Sequence[Kind], count: int) -> Column:
        kind = self.one_of(kinds)
        start = next(self._drawn) % len(kind.values)
        return Column(name, kind, (kind.values[start:] + kind.values[:start])[:count])


def _bytes(size: int) -> st.SearchStrategy[bytes]:
    """Draw bytes: as they come, which shrinks well, or from a seed, without the many zeros and repetitions of those."""
    seeds = st.integers(0, (1 << 32) - 1)
    return st.binary(min_size=size, max_size=size) | seeds.map(lambda seed: random.Random(seed).randbytes(size))


# Wide, so that a wrong winner shows; and columns that writes add, which have one type wherever they appear.
_VALUE = Column("v", Kind(pa.int32(), (), pa.int64()), tuple(range(256)))
_ADDED = (
    Column("x0", _INT32, _INT32.values[:_PAYLOAD_VALUES]),
    Column("x1", _STRINGS, _STRINGS.values[:_PAYLOAD_VALUES]),
    Column("x2", _NESTED[1], _NESTED[1].values),
)


def tables(
    *, with_partitions: bool = True, engines: Sequence[MergeEngine] = MERGE_ENGINES
) -> st.SearchStrategy[TableSettings]:
    """Make random table settings: keys of any scalar type, sort keys, partitions, engines, nested columns.

    Where there is a key, the engine is one of `engines`. Partition keys are part of the primary key, or there is no
    primary key: otherwise a key could move between partitions, which are compacted each by itself.
    """
    return _bytes(_SETTING_BYTES).map(lambda choices: _settings(_Choices(choices), with_partitions, engines))


def _settings(choices: _Choices, with_partitions: bool, engines: Sequence[MergeEngine]) -> TableSettings:
    key_count = choices.one_of((1, 1, 1, 1, 2, 2, 3, 0))
    partition_count = choices.one_of((0, 0, 0, 1, 2)) if with_partitions else 0
    engine = choices.one_of(engines) if key_count else "deduplicate"
    sort_count = choices.one_of((0, 0, 1, 1, 2)) if key_count and engine != "first_row" else 0
    sort_count = 1 if engine == "history" else sort_count
    allows_duplicates = engine == "deduplicate" and choices.one_in(5)
    keys = [choices.column(f"k{number}", _SCALARS, _KEY_VALUES[key_count]) for number in range(key_count)]
    sorts = [choices.column(f"s{number}", _SCALARS, _SORT_VALUES[sort_count]) for number in range(sort_count)]
    payload = [
        choices.column(f"c{number}", _SCALARS + _NESTED, _PAYLOAD_VALUES)
        for number in range(choices.one_of((0, 1, 2, 3)))
    ]
    if choices.one_in(4):
        payload.append(Column(_OP_COLUMN, Kind(pa.string(), ()), (None, "d", "x")))
    partitions = [choices.column(f"p{number}", _PARTITION_KINDS, 2) for number in range(partition_count)]
    partition_keys = tuple(column.name for column in partitions)
    is_unique_within_partition = bool(partitions) and choices.one_in(2)
    columns = [*keys, *sorts, _VALUE, *payload, *partitions]
    # Partial updates, and deletes that are kept, may leave out what is not a key, so that must not be refused.
    may_be_strict = [*keys, *sorts, *partitions] if engine in ("partial_update", "history") else columns
    strict = choices.some_of(may_be_strict) if choices.one_in(3) else []
    # A delete that is kept is a row of one partition, which it names.
    strict += partitions if engine == "history" else []
    tracked = choices.some_of([_VALUE, *payload]) if engine == "history" else []
    return TableSettings(
        columns=tuple(column.never_null() if column in strict else column for column in columns),
        primary_keys=(
            *(() if is_unique_within_partition or not keys else partition_keys),
            *(column.name for column in keys),
        ),
        sort_keys=tuple(column.name for column in sorts),
        partition_keys=partition_keys,
        merge_engine=engine,
        drop_duplicates=not allows_duplicates,
        tracked_columns=tuple(column.name for column in tracked) or None,
    )


def writes(
    table: TableSettings, *, min_writes: int = 1, max_writes: int = 8, max_rows: int = 12
) -> st.SearchStrategy[list[Write]]:
    """Make histories of a table that has been created and not been written to yet."""
    width = len(table.columns) + len(_ADDED) + 1
    row = _bytes(width)
    rows = st.lists(row, max_size=max_rows) | st.lists(row, min_size=max_rows // 2, max_size=max_rows)
    drawn = st.tuples(_bytes(_WRITE_BYTES), rows)
    return st.lists(drawn, min_size=min_writes, max_size=max_writes).map(lambda history: _history(table, history))


def histories(
    *,
    with_partitions: bool = True,
    min_writes: int = 1,
    max_writes: int = 8,
    max_rows: int = 12,
    engines: Sequence[MergeEngine] = MERGE_ENGINES,
) -> st.SearchStrategy[tuple[TableSettings, list[Write]]]:
    """Make random tables, each with random writes to it."""
    return tables(with_partitions=with_partitions, engines=engines).flatmap(
        lambda table: st.tuples(
            st.just(table), writes(table, min_writes=min_writes, max_writes=max_writes, max_rows=max_rows)
        )
    )


def _history(table: TableSettings, history: Sequence[tuple[bytes, list[bytes]]]) -> list[Write]:
    known = list(table.columns)
    omitted: list[str] = []
    made: list[Write] = []
    for drawn, rows in history:
        choices = _Choices(drawn)
        # What has no place in time cannot be written to a history.
        can_delete = table.merge_engine != "history"
        if choices.one_in(2 if omitted else 4 if made else 16) and can_delete:
            made.append(_delete(table, known, omitted, choices, rows))
        else:
            made.append(_upsert(table, choices, rows))
            if made[-1].op_column is None and choices.one_in(6):
                made[-1] = replace(made[-1], overwrite=choices.one_of(("table", "partitions")))
            names = made[-1].data.column_names
            known += [column for column in _ADDED if column.name in names and column not in known]
            omitted = [column.name for column in known if column.name not in names]
    return made


def _upsert(table: TableSettings, choices: _Choices, rows: list[bytes]) -> Write:
    required = {*table.primary_keys, *table.sort_keys, *table.partition_keys}
    required |= {column.name for column in table.columns if not column.nullable}
    omitted = choices.some_of([column.name for column in table.columns if column.name not in required])
    omits = choices.one_of(
        (False, True, True, True) if table.merge_engine == "partial_update" else (False, False, False, True)
    )
    if len(omitted) == len(table.columns) or not omits:
        omitted = []
    columns = [column for column in table.columns if column.name not in omitted]
    if choices.one_in(4):
        columns += choices.some_of(_ADDED)
    operations = choices.one_of(_OPERATIONS)
    has_operations = choices.one_in(2) and bool(table.primary_keys)
    types: tuple[DeltaType, ...] = ("upsert", "upsert", "upsert", "append", "add", "chrono")
    delta_type = "upsert" if has_operations else choices.one_of(types)
    data = _data(table, columns, choices, rows)
    if has_operations:
        chosen = pa.array([operations[row[-1] % len(operations)] for row in rows], pa.string())
        if _OP_COLUMN in data.column_names:
            data = data.drop_columns(_OP_COLUMN)
        data = data.append_column(_OP_COLUMN, chosen)
        if choices.one_in(2):
            kept = {*table.primary_keys, *table.partition_keys, _OP_COLUMN}
            data = _without_values_of_deletes(data, kept if choices.one_in(3) else {*kept, *table.sort_keys})
    return Write(data, delta_type, op_column=_OP_COLUMN if has_operations else None)


def _without_values_of_deletes(data: pa.Table, kept: set[str]) -> pa.Table:
    """Leave no more than some columns in the rows that are deletes, as change streams do."""
    is_delete = [operation in REMOVALS for operation in data.column(_OP_COLUMN).to_pylist()]
    for place, field in enumerate(data.schema):
        if field.name not in kept:
            values = zip(data.column(place).to_pylist(), is_delete, strict=True)
            left = pa.array([None if is_gone else value for value, is_gone in values], field.type)
            data = data.set_column(place, field.name, left)
    return data


def _delete(
    table: TableSettings, known: Sequence[Column], omitted: Sequence[str], choices: _Choices, rows: list[bytes]
) -> Write:
    """Delete by the primary key or by any scalar columns that the table has by now; data may have more columns.

    Columns that the last rows did not have are picked more often: there, a row may be composed of several.
    """
    scalars = [column.name for column in known if not pa.types.is_nested(column.kind.type)]
    usable = [name for name in scalars if name != _VALUE.name] or [_VALUE.name]
    absent = [name for name in scalars if name in omitted]
    by_key = choices.one_of((False, False, False, True) if absent else (True, False)) and bool(table.primary_keys)
    first = choices.one_of(absent if absent and not choices.one_in(4) else usable)
    picked = [first, *([choices.one_of(usable)] if choices.one_in(3) else [])]
    names = table.primary_keys if by_key else tuple(dict.fromkeys(picked))
    has_more = choices.one_in(4)
    columns = known if has_more else [column for column in known if column.name in names]
    # Domains are tiny: many rows of one column would delete all there is, whichever row they are compared with.
    described = rows if by_key or choices.one_in(4) else rows[: choices.one_of((1, 1, 2))]
    data = _data(table, columns, choices, described, has_nulls=choices.one_in(2))
    return Write(data, "delete", None if by_key else names)


def _data(
    table: TableSettings,
    columns: Sequence[Column],
    choices: _Choices,
    rows: list[bytes],
    *,
    has_nulls: bool = False,
) -> pa.Table:
    wider = choices.some_of([column.name for column in columns]) if choices.one_in(5) else []
    places = {column.name: place for place, column in enumerate((*table.columns, *_ADDED))}
    arrays = {
        column.name: column.array(
            [row[places[column.name]] for row in rows], is_wider=column.name in wider, has_nulls=has_nulls
        )
        for column in columns
    }
    return pa.table(arrays)
