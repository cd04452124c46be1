"""What a Debezium message is, seen from outside: with or without a schema, an envelope, a flat row, or no row at all."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.cdc.encodings import Encoding, encoding_of_field
from siltstone.cdc.event_lines import Events

Shape = Literal["envelope", "flat", "heartbeat", "transaction marker", "change of definitions", "message"]
ENVELOPE_FIELDS = frozenset({"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns", "transaction", "schema"})
OPERATIONS = ("c", "r", "u", "d", "t", "m")
SIGNAL_TABLE = "debezium_signal"
_PAYLOAD = re.compile(rb'\s*,\s*"payload"\s*:\s*')
_MOST_SCHEMAS = 64


@dataclass(frozen=True)
class TableSchema:
    """What a message's schema says: the columns of rows, and whether they are inside an envelope."""

    columns: Mapping[str, Encoding]
    is_envelope: bool


@dataclass(frozen=True)
class Group:
    """Events with one schema, which is taken off their values, or without any."""

    events: Events
    schema: TableSchema | None


def shape_of(payload: Mapping[str, Any]) -> Shape:
    """Return what a payload is; columns may have any names, so that only the whole tells."""
    names = payload.keys()
    if "op" in names and "source" in names and names <= ENVELOPE_FIELDS and isinstance(payload["source"], dict):
        return "message" if payload["op"] == "m" else "envelope"
    if "op" in names and payload["op"] == "m" and "message" in names and isinstance(payload.get("source"), dict):
        return "message"
    if names == {"ts_ms"} or names == {"ts_ms", "ts_us", "ts_ns"}:
        return "heartbeat"
    if {"status", "id"} <= names and payload["status"] in ("BEGIN", "END") and "event_count" in names:
        return "transaction marker"
    if "ddl" in names and ("databaseName" in names or "source" in names):
        return "change of definitions"
    return "flat"


def groups_of(events: Events) -> Iterator[Group]:
    """Yield the events by schema: the text of one is the same in all messages, so that it is read once and cut off."""
    rest = _without_line_breaks(events)
    for _ in range(_MOST_SCHEMAS):
        if not len(rest):
            return
        cut = _schema_prefix(rest.values[0].as_py())
        if cut is None:
            prefix, told = b"", None
            is_same = pc.invert(pc.starts_with(rest.values, b'{"schema":'))
            if not is_same[0].as_py():
                break
            if pc.all(is_same).as_py():
                yield Group(rest, None)
                return
        else:
            prefix, told = cut
            is_same = pc.starts_with(rest.values, prefix)
        flags = is_same.to_numpy(zero_copy_only=False)
        same = rest.take(flags)
        if cut is not None:
            same = Events(pc.binary_slice(same.values, len(prefix), -1), same.keys, same.lines)
        yield Group(same, told)
        rest = rest.take(~flags)
    # Each of these has a schema of its own, or one that is written unlike all others, which is refused.
    if len(rest):
        yield Group(rest, None)


def _without_line_breaks(events: Events) -> Events:
    """Return events that have schemas without what follows their last brace."""
    has_schemas = pc.any(pc.starts_with(events.values, b'{"schema"')).as_py()
    if not has_schemas or pc.all(pc.ends_with(events.values, b"}")).as_py():
        return events
    return Events(
        pa.array([value.rstrip() for value in events.values.to_pylist()], pa.binary()), events.keys, events.lines
    )


def is_with_schema(value: Any) -> bool:
    """Return whether a message is a schema and a payload."""
    return (
        isinstance(value, dict) and value.keys() == {"schema", "payload"} and isinstance(value["schema"], dict | None)
    )


def _schema_prefix(value: bytes) -> tuple[bytes, TableSchema | None] | None:
    """Return what a message starts with up to its payload, which is all that follows but a brace, and the schema in it."""
    if not re.match(rb'\s*\{\s*"schema"\s*:', value) or not value.endswith(b"}"):
        return None
    for separator in _PAYLOAD.finditer(value):
        try:
            head = orjson.loads(value[: separator.start()] + b"}")
        except orjson.JSONDecodeError:
            continue
        if not isinstance(head, dict) or head.keys() != {"schema"}:
            return None
        return value[: separator.end()], None if head["schema"] is None else read_schema(head["schema"])
    return None


def read_schema(schema: Any) -> TableSchema | None:
    """Read a schema as Kafka Connect writes it; None where it describes no rows. Raises: ValueError."""
    if not isinstance(schema, dict) or schema.get("type") != "struct":
        return None
    fields = {each["field"]: each for each in schema.get("fields") or [] if isinstance(each, dict) and "field" in each}
    row = fields.get("after") or fields.get("before")
    is_envelope = "op" in fields and "source" in fields and row is not None and row.get("type") == "struct"
    if is_envelope and row is not None:
        fields = {each["field"]: each for each in row.get("fields") or []}
    return TableSchema({name: encoding_of_field(each) for name, each in fields.items()}, is_envelope)
