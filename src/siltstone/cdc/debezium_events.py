"""Changes of a table as Debezium's JSON, with schemas: what `decode_debezium` reads back to the same rows."""

import base64
import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from siltstone.cdc.changes import SOURCE_POSITION
from siltstone.errors import InvalidInputError
from siltstone.model.schema import describe_type

_KAFKA = "org.apache.kafka.connect.data."
_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_PLAIN = {
    pa.bool_(): "boolean", pa.int8(): "int8", pa.int16(): "int16", pa.int32(): "int32", pa.int64(): "int64",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes",
}  # fmt: skip
# The type of numbers or text that stand for the value, and the name of what they mean.
_NAMED = {
    pa.date32(): ("int32", "io.debezium.time.Date"),
    pa.time64("us"): ("int64", "io.debezium.time.MicroTime"),
    pa.timestamp("us"): ("int64", "io.debezium.time.MicroTimestamp"),
    pa.timestamp("us", "UTC"): ("string", "io.debezium.time.ZonedTimestamp"),
    pa.duration("us"): ("int64", "io.debezium.time.MicroDuration"),
}
_SOURCE = {
    "connector": "string", "db": "string", "schema": "string", "table": "string", "ts_ms": "int64", "ts_us": "int64",
    "position": "int64", "round": "int64", "pos": "int64",
}  # fmt: skip
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_OPERATIONS = {"insert": "c", "update_after": "u", "delete": "d"}


def encode_changes(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str], table: tuple[str, str]
) -> Iterator[bytes]:
    """Yield each change as a line of JSON with key and value, that of a delete with a second one, a tombstone.

    Batches have the columns of `schema` and those of changes, with both images; `table` is its namespace and name.
    Raises: InvalidInputError where a column has a type that events cannot carry.
    """
    columns = [column for column in schema if column.name != SOURCE_POSITION]
    encoders = {column.name: _encoder(column.type, column.name) for column in columns}
    key_head = b'{"key":{"schema":' + orjson.dumps(_key_schema(schema, keys, table)) + b',"payload":'
    head = b'},"value":{"schema":' + orjson.dumps(_envelope(columns, table)) + b',"payload":'
    for batch in batches:
        before: dict[str, Any] | None = None
        for row in batch.to_pylist():
            image = {name: None if row[name] is None else encode(row[name]) for name, encode in encoders.items()}
            kind = row["_change_type"]
            if kind == "update_before":
                before = image
                continue
            older, newer = (image, None) if kind == "delete" else (before, image)
            source = _source(row, table)
            payload = {"before": older, "after": newer, "source": source, "op": _OPERATIONS[kind]}
            key = key_head + orjson.dumps({name: image[name] for name in keys})
            tombstone = key + b'},"value":null}\n' if newer is None else b""
            yield key + head + orjson.dumps({**payload, "ts_ms": source["ts_ms"]}) + b"}}\n" + tombstone
            before = None


def _source(row: Mapping[str, Any], table: tuple[str, str]) -> dict[str, Any]:
    time_us = (row["_committed_at"].replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    namespace, name = table
    return {
        "connector": "siltstone",
        "db": namespace,
        "schema": namespace,
        "table": name,
        "ts_ms": time_us // 1000,
        "ts_us": time_us,
        "position": row["_position"],
        "round": row["_round"],
        # What orders events of the same time, for readers that know nothing of rounds.
        "pos": row["_round"],
    }


def _key_schema(schema: pa.Schema, keys: Sequence[str], table: tuple[str, str]) -> dict[str, object]:
    fields = [_told(schema.field(name).type, name) | {"field": name} for name in keys]
    return {"type": "struct", "optional": False, "name": f"{'.'.join(table)}.Key", "fields": fields}


def _envelope(columns: "Sequence[pa.Field[Any]]", table: tuple[str, str]) -> dict[str, object]:
    fields = [_told(column.type, column.name) | {"field": column.name} for column in columns]
    name = ".".join(table)
    row = {"type": "struct", "optional": True, "name": f"{name}.Value", "fields": fields}
    source = [{"type": kind, "optional": False, "field": field} for field, kind in _SOURCE.items()]
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "fields": [
            row | {"field": "before"},
            row | {"field": "after"},
            {"type": "struct", "optional": False, "name": "siltstone.Source", "fields": source, "field": "source"},
            {"type": "string", "optional": False, "field": "op"},
            {"type": "int64", "optional": True, "field": "ts_ms"},
        ],
    }


def _told(kind: pa.DataType, column: str) -> dict[str, Any]:
    """Return the schema of a column or a part of one, as Kafka Connect writes it. Raises: InvalidInputError."""
    types = pa.types
    if kind in _PLAIN:
        return {"type": _PLAIN[kind], "optional": True}
    if kind in _NAMED:
        plain, name = _NAMED[kind]
        return {"type": plain, "optional": True, "name": name}
    if types.is_decimal(kind):
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return {"type": "bytes", "optional": True, "name": f"{_KAFKA}Decimal", "parameters": parameters}
    if types.is_list(kind):
        return {"type": "array", "optional": True, "items": _told(kind.value_type, column)}
    if types.is_struct(kind):
        fields = [_told(each.type, column) | {"field": each.name} for each in kind]
        return {"type": "struct", "optional": True, "fields": fields}
    if types.is_map(kind) and types.is_string(kind.key_type):
        keys = {"type": "string", "optional": False}
        return {"type": "map", "optional": True, "keys": keys, "values": _told(kind.item_type, column)}
    raise InvalidInputError(
        f"column {column!r} has the type {describe_type(kind)}, which Debezium's JSON cannot carry; leave it out with --columns"
    )


Encoder = Callable[[Any], Any]
"""Returns a value that is not null as JSON has it."""


def _encoder(kind: pa.DataType, column: str) -> Encoder:
    """Return what writes values of a type. Raises: InvalidInputError."""
    types = pa.types
    if types.is_list(kind):
        item = _nullable(_encoder(kind.value_type, column))
        return lambda values: [item(value) for value in values]
    if types.is_struct(kind):
        parts = {each.name: _nullable(_encoder(each.type, column)) for each in kind}
        return lambda values: {name: encode(values[name]) for name, encode in parts.items()}
    if types.is_map(kind):
        entry = _nullable(_encoder(kind.item_type, column))
        return lambda values: {name: entry(value) for name, value in values}
    for check, encode in _ENCODERS:
        if check(kind):
            return encode
    return lambda value: value


def _nullable(encode: Encoder) -> Encoder:
    return lambda value: None if value is None else encode(value)


def _decimal(value: Any) -> str:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def _timestamp(value: datetime.datetime) -> Any:
    if value.tzinfo is None:
        return (value - _EPOCH) // _MICROSECOND
    return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Encoder], ...] = (
    (pa.types.is_floating, lambda value: value if math.isfinite(value) else _NOT_FINITE[str(value)]),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_binary, lambda value: base64.b64encode(value).decode()),
    (pa.types.is_date, lambda value: (value - _EPOCH.date()).days),
    (pa.types.is_time, lambda value: (datetime.datetime.combine(_EPOCH, value) - _EPOCH) // _MICROSECOND),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_duration, lambda value: value // _MICROSECOND),
)
