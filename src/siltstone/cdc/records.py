"""Formats whose events are taken one by one: what an event says, and how it becomes rows of the table."""

import decimal
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from siltstone.cdc.changes import Decoded, FindRows, Reject, Target
from siltstone.cdc.encodings import Encoding
from siltstone.cdc.event_lines import Events
from siltstone.cdc.event_values import InexactNumberError, UnfitError
from siltstone.cdc.images import TRUNCATE, Collected, Column, RowBuilder
from siltstone.cdc.plain_values import BinaryText, plain_value
from siltstone.cdc.settle import settle
from siltstone.errors import InvalidInputError


class SkippedEventError(Exception):
    """An event is no change of a row; the text says what it is."""


@dataclass(frozen=True)
class Record:
    """A change of one row: its operation, the row, the key that it had before, and where it was in the source's order.

    With `is_partial`, columns that the row does not have keep their values. `types` are those of the source's columns,
    where it tells them.
    """

    op: str
    image: Mapping[str, Any]
    position: bytes | None
    old: Mapping[str, Any] = field(default_factory=dict)
    is_partial: bool = False
    table: str | None = None
    types: Mapping[str, pa.DataType | None] | None = None


ReadEvent = Callable[[Mapping[str, Any]], Iterable[Record]]
"""Returns the changes that an event has. Raises: SkippedEventError, UnfitError."""


@dataclass(frozen=True)
class Line:
    """The changes of one line. Where its numbers were read with fewer digits than they have, `exactly` reads it again."""

    number: int
    value: bytes
    records: Sequence[Record]
    exactly: Callable[[], Sequence[Record]] | None = None


def decode_records(
    events: Events, read: ReadEvent, binary: BinaryText, target: Target, find_rows: FindRows | None
) -> Decoded:
    """Decode JSON events of one table, each read by `read`. Raises: InvalidInputError where they are of several."""
    collected = Collected()
    lines = list(_lines(events, read, collected))
    tables = {record.table: line.number for line in reversed(lines) for record in line.records if record.table}
    if len(tables) > 1:
        (one, first), (other, second), *_ = sorted(tables.items(), key=lambda each: each[1])
        raise InvalidInputError(
            f"the events are of several tables: {one} in line {first}, {other} in line {second}; write each to its own "
            "with --into 'NAMESPACE.{table}'"
        )
    add_records(lines, binary, target, collected)
    return settle(collected, target, len(events), find_rows)


def _lines(events: Events, read: ReadEvent, collected: Collected) -> Iterator[Line]:
    for number, value in zip(events.lines.tolist(), events.values.to_pylist(), strict=True):
        if value is None:
            collected.skipped["tombstone"] += 1
            continue
        try:
            payload = orjson.loads(value)
            if not isinstance(payload, dict):
                raise UnfitError(f"a change event is a JSON object, not {value[:40]!r}")
            yield Line(number, value, list(read(payload)), functools.partial(_read_exactly, value, read))
        except SkippedEventError as skipped:
            collected.skipped[str(skipped)] += 1
        except json.JSONDecodeError as error:
            collected.rejects.append(Reject(number, f"not valid JSON ({error})", value))
        except ValueError as error:
            collected.rejects.append(Reject(number, str(error), value))


def _read_exactly(value: bytes, read: ReadEvent) -> list[Record]:
    return list(read(json.loads(value, parse_float=decimal.Decimal)))


def add_records(lines: Sequence[Line], binary: BinaryText, target: Target, collected: Collected) -> None:
    """Bring records to the table's types; those that do not fit are rejected, with their reasons."""
    columns = _columns(lines, target)
    builder = RowBuilder(columns)
    for line in lines:
        try:
            try:
                rows = [row for record in line.records for row in _rows(record, columns, binary, target)]
            except InexactNumberError:
                if line.exactly is None:
                    raise
                rows = [row for record in line.exactly() for row in _rows(record, columns, binary, target)]
        except ValueError as error:
            collected.rejects.append(Reject(line.number, str(error), line.value))
            continue
        for row in rows:
            builder.add(line.number, *row)
    collected.parts.append(builder.images())


def _columns(lines: Sequence[Line], target: Target) -> list[Column]:
    """Return the table's columns, and those that only events have, where their types are certain."""
    columns = {each.name: each.type for each in target.columns}
    known = set(target.schema.names)
    for line in lines:
        for record in line.records:
            for name, value in record.image.items():
                if name in known or value is None or (name in columns and record.types is not None):
                    continue
                kind = _natural_type(value) if record.types is None else record.types.get(name)
                if kind is not None and columns.setdefault(name, kind) != kind:
                    # Values of two kinds: whichever does not fit the first is refused.
                    continue
    return [Column(name, Encoding("text", kind, is_told=False), kind) for name, kind in columns.items()]


def _natural_type(value: Any) -> pa.DataType | None:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    return pa.string() if isinstance(value, str) else None


Row = tuple[str, bytes | None, list[Any], list[str]]


def _rows(record: Record, columns: Sequence[Column], binary: BinaryText, target: Target) -> Iterator[Row]:
    """Yield the rows of a record, with their operations: a key that changes is a delete and a row."""
    if record.op == TRUNCATE:
        yield TRUNCATE, record.position, [None] * len(columns), []
        return
    keys = target.primary_keys
    if not keys and record.op in ("u", "d"):
        raise UnfitError("the table has no primary key, so that no row can be updated or deleted; create it with one")
    missing = [name for name in keys if name not in record.image]
    if missing:
        raise UnfitError(f"the event has no {missing[0]!r}, which is part of the primary key")
    old = {name: record.old.get(name, record.image[name]) for name in keys}
    if record.op != "d" and any(old[name] != record.image[name] for name in keys):
        yield "d", record.position, _values(old, columns, binary, keys), []
    if record.op == "d":
        yield "d", record.position, _values(record.image, columns, binary, keys), []
        return
    known = {column.name for column in columns}
    unknown = [name for name, value in record.image.items() if value is not None and name not in known]
    if unknown:
        raise UnfitError(
            f"column {unknown[0]!r} is new, and nothing tells its type; add it with `siltstone table alter TABLE "
            f"--add-column {unknown[0]}:TYPE`"
        )
    absent = [column.name for column in columns if record.is_partial and column.name not in record.image]
    yield record.op, record.position, _values(record.image, columns, binary), absent


def _values(
    image: Mapping[str, Any], columns: Sequence[Column], binary: BinaryText, only: Sequence[str] | None = None
) -> list[Any]:
    values = []
    for column in columns:
        value = image.get(column.name) if only is None or column.name in only else None
        try:
            values.append(plain_value(value, column.type, binary))
        except ValueError as error:
            raise type(error)(f"column {column.name!r}: {error}") from None
    return values
