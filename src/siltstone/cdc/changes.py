"""What a decoder is given about a table, and what it returns: rows to write, truncates, and events that do not fit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import pyarrow as pa

from siltstone.errors import InvalidInputError

ChangeFormat = Literal["debezium", "dms", "maxwell", "canal", "goldengate"]
CHANGE_FORMATS: tuple[ChangeFormat, ...] = ("debezium", "dms", "maxwell", "canal", "goldengate")
Decimals = Literal["base64", "text"]
TimeUnit = Literal["ms", "us", "ns"]

OP_COLUMN = "_op"
"""The operation of each row: `c`, `r`, `u` or `d`."""
SOURCE_POSITION = "_source_position"
"""Where a change happened at the source: bytes that sort as the changes followed each other."""
UNAVAILABLE = "__debezium_unavailable_value"

FindRows = Callable[[pa.Table, Sequence[str]], pa.Table]
"""Returns those rows of the table, with these columns and the key, that have one of the keys in a table of keys.

A key that is deleted, and still known, has a row with nothing but its source position and `d` as `_op`.
"""


@dataclass(frozen=True)
class Target:
    """What a decoder knows of the table: its columns and its keys."""

    schema: pa.Schema
    primary_keys: Sequence[str]

    @property
    def columns(self) -> pa.Schema:
        """The columns that events fill: all but the source position."""
        return pa.schema([column for column in self.schema if column.name != SOURCE_POSITION])


@dataclass(frozen=True)
class Options:
    """What events do not tell by themselves.

    `decimals`: how text of a decimal column is meant where messages have no schemas; `times`: the unit of integers in
    columns of times, by column, or for all others under the name `*`; `placeholder`: what stands for a large value
    that did not change; `header`: the leading columns of DMS files, where `columns` of the table follow.
    """

    decimals: Decimals | None = None
    times: Mapping[str, TimeUnit] = field(default_factory=dict)
    placeholder: str = UNAVAILABLE
    header: Sequence[str] | None = None


def read_times(text: str) -> dict[str, TimeUnit]:
    """Read the units of times: `us`, `created=ms`, or several with commas between them. Raises: InvalidInputError."""
    times: dict[str, TimeUnit] = {}
    for each in filter(None, text.split(",")):
        column, equals, unit = each.rpartition("=")
        if unit not in get_args(TimeUnit):
            raise InvalidInputError(f"{each!r} is neither ms, us or ns, nor COLUMN=ms")
        times[column if equals else "*"] = unit  # type: ignore[assignment]
    return times


@dataclass(frozen=True)
class Changes:
    """Rows that give values for the same columns, with `_op` and `_source_position`, in the order they are to be applied."""

    rows: pa.Table


@dataclass(frozen=True)
class Truncate:
    """All rows of the table with a lower source position are gone. `before` counts the changes that come before it."""

    position: bytes
    before: int


@dataclass(frozen=True)
class Reject:
    """An event that does not fit, where it stood, counting from 1, and why."""

    line: int
    reason: str
    event: bytes


@dataclass(frozen=True)
class Carry:
    """A row whose key changed, and whose columns the source did not send: their values are in the row of the old key."""

    line: int
    key: Mapping[str, object]
    old_key: Mapping[str, object] | None
    position: bytes
    columns: Sequence[str]


@dataclass(frozen=True)
class Decoded:
    """What events mean for one table.

    Write `changes` one after another in one commit, each as an upsert with `op_column=OP_COLUMN`, the truncates between
    them. A row that is in several of them is newest in the last. `new_fields` are columns that the table does not have;
    `columns` are those that events could fill; `skipped` counts what is no change of a row: tombstones, heartbeats, transaction markers, changes of definitions.
    """

    changes: Sequence[Changes] = ()
    truncates: Sequence[Truncate] = ()
    rejects: Sequence[Reject] = ()
    new_fields: Sequence["pa.Field[pa.DataType]"] = ()
    carries: Sequence[Carry] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    events: int = 0
    columns: Sequence[str] = ()

    @property
    def left_out(self) -> list[str]:
        """The columns that some rows leave out, so that the table has to merge rows by `partial_update`."""
        given = [set(each.rows.column_names) for each in self.changes]
        every = {name: None for each in self.changes for name in each.rows.column_names} | dict.fromkeys(self.columns)
        return [name for name in every if any(name not in names for names in given)]

    def refuse_rejects(self, name: str) -> None:
        """Stop at the first event that does not fit. Raises: InvalidInputError."""
        if self.rejects:
            first = self.rejects[0]
            others = f" ({len(self.rejects) - 1} more do not fit)" if len(self.rejects) > 1 else ""
            raise InvalidInputError(
                f"{name}, line {first.line}: {first.reason}{others}; nothing was written: correct it, or set such events "
                "aside with --rejects DIR"
            )
