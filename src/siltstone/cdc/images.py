"""What events say, one row for each, in the order they came: the common form that every format is decoded to."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from siltstone.cdc.changes import OP_COLUMN, SOURCE_POSITION, Reject
from siltstone.cdc.encodings import Encoding
from siltstone.cdc.event_columns import Flags
from siltstone.cdc.event_lines import Lines
from siltstone.cdc.event_values import value_of
from siltstone.errors import InvalidInputError
from siltstone.model.schema import describe_type, widest

TRUNCATE = "t"


@dataclass(frozen=True)
class Images:
    """Rows with their operations and source positions; `absent` flags, by column, the rows that do not tell its value.

    A delete has its key only. A truncate has no values.
    """

    rows: pa.Table
    lines: Lines
    absent: Mapping[str, Flags] = field(default_factory=dict)

    @property
    def ops(self) -> "pa.ChunkedArray[Any]":
        """The operation of each row."""
        return self.rows.column(OP_COLUMN)

    def take(self, places: "Lines") -> "Images":
        """Return some rows, in the given order."""
        absent = {name: flags[places] for name, flags in self.absent.items()}
        return Images(self.rows.take(pa.array(places)), self.lines[places], absent)


@dataclass(frozen=True)
class Column:
    """A column of events: how its values are written, and the type that the table has or gets for them."""

    name: str
    encoding: Encoding
    type: pa.DataType


class RowBuilder:
    """Collects rows that are decoded one by one."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._values: list[list[Any]] = [[] for _ in columns]
        self._absent: dict[str, list[int]] = {}
        self._ops: list[str] = []
        self._positions: list[bytes | None] = []
        self._lines: list[int] = []

    def add(
        self, line: int, op: str, position: bytes | None, values: Sequence[Any], absent: Iterable[str] = ()
    ) -> None:
        """Add a row; values are as `pa.array` takes them, in the order of the columns."""
        for column, value in zip(self._values, values, strict=True):
            column.append(value)
        for name in absent:
            self._absent.setdefault(name, []).append(len(self._lines))
        self._ops.append(op)
        self._positions.append(position)
        self._lines.append(line)

    def images(self) -> Images:
        """Return all rows so far."""
        arrays = [pa.array(values, column.type) for values, column in zip(self._values, self._columns, strict=True)]
        names = [column.name for column in self._columns]
        arrays += [pa.array(self._ops, pa.string()), pa.array(self._positions, pa.binary())]
        absent = {}
        for name, places in self._absent.items():
            absent[name] = np.zeros(len(self._lines), np.bool_)
            absent[name][places] = True
        rows = pa.Table.from_arrays(arrays, names=[*names, OP_COLUMN, SOURCE_POSITION])
        return Images(rows, np.array(self._lines, np.int64), absent)


@dataclass
class Collected:
    """All that the events of one table gave, while they are decoded."""

    parts: list[Images] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)

    def images(self) -> Images | None:
        """Return the rows of all parts in the order of their lines, with one schema. Raises: InvalidInputError."""
        parts = [part for part in self.parts if part.rows.num_rows]
        if not parts:
            return None
        schema = _common_schema([part.rows.schema for part in parts])
        rows = pa.concat_tables([_aligned(part.rows, schema) for part in parts])
        names = {name for part in parts for name in part.absent}
        absent = {
            name: np.concatenate([part.absent.get(name, np.zeros(len(part.lines), np.bool_)) for part in parts])
            for name in sorted(names)
        }
        images = Images(rows, np.concatenate([part.lines for part in parts]), absent)
        if np.any(images.lines[1:] < images.lines[:-1]):
            images = images.take(np.argsort(images.lines, kind="stable"))
        return images


def _common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for column in schema:
            before = types.get(column.name, column.type)
            wider = widest(before, column.type)
            if wider is None:
                raise InvalidInputError(
                    f"column {column.name!r} is {describe_type(before)} in some events and {describe_type(column.type)} "
                    "in others; write the events from before and after the change one after another"
                )
            types[column.name] = wider
    own = (OP_COLUMN, SOURCE_POSITION)
    names = [*(name for name in types if name not in own), *own]
    return pa.schema([pa.field(name, types[name]) for name in names])


def _aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(each.name).cast(each.type) if each.name in rows.column_names else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def decoded(value: Any, column: Column) -> Any:
    """Return one value of a column as `pa.array` takes it. Raises: ValueError that names the column."""
    try:
        return value_of(value, column.encoding, column.type)
    except ValueError as error:
        raise type(error)(f"column {column.name!r}: {error}") from None
