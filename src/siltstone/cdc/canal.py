"""Canal's flat JSON, which TiCDC writes, too: several rows an event, all values as text, with MySQL's types."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from siltstone.cdc.changes import Decoded, FindRows, Options, Target
from siltstone.cdc.event_lines import Events
from siltstone.cdc.event_values import UnfitError
from siltstone.cdc.images import TRUNCATE
from siltstone.cdc.position import pack
from siltstone.cdc.records import Record, SkippedEventError, decode_records

_OPERATIONS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
_DECIMAL = re.compile(r"(?:decimal|numeric)\((\d+)(?:,\s*(\d+))?\)")
_TYPES: dict[str, pa.DataType] = {
    "tinyint": pa.int16(), "smallint": pa.int32(), "mediumint": pa.int32(), "int": pa.int64(), "integer": pa.int64(),
    "bigint": pa.int64(), "year": pa.int32(), "float": pa.float32(), "double": pa.float64(), "real": pa.float64(),
    "date": pa.date32(), "datetime": pa.timestamp("us"), "timestamp": pa.timestamp("us"), "time": pa.duration("us"),
    "binary": pa.binary(), "varbinary": pa.binary(), "blob": pa.binary(), "tinyblob": pa.binary(),
    "mediumblob": pa.binary(), "longblob": pa.binary(),
}  # fmt: skip
_TEXTS = ("char", "varchar", "text", "tinytext", "mediumtext", "longtext", "json", "enum", "set")


def decode_canal(events: Events, target: Target, options: Options, find_rows: FindRows | None) -> Decoded:
    """Decode Canal's or TiCDC's events of one table. Raises: InvalidInputError where they are of several."""
    return decode_records(events, _records, "latin-1", target, find_rows)


def _records(event: Mapping[str, Any]) -> Iterator[Record]:
    kind = str(event.get("type"))
    table = f"{event.get('database')}.{event.get('table')}"
    extension = event.get("_tidb") or {}
    extension = extension if isinstance(extension, dict) else {}
    start = _start(event, extension.get("commitTs"))
    if kind == "TRUNCATE":
        yield Record(TRUNCATE, {}, _position(start), table=table)
        return
    if event.get("isDdl") or kind == "TIDB_WATERMARK" or kind not in _OPERATIONS:
        if "type" not in event or ("data" in event and event["data"] and not event.get("isDdl")):
            raise UnfitError(f"the type {kind!r} is unknown; there are {', '.join(_OPERATIONS)}")
        raise SkippedEventError("watermark" if kind == "TIDB_WATERMARK" else "change of definitions")
    data, old = event.get("data"), event.get("old") or []
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data) or not isinstance(old, list):
        raise UnfitError("an event of Canal needs 'data', a list with an object for each row")
    if kind != "DELETE" and (extension.get("onlyHandleKey") or extension.get("claimCheckLocation")):
        raise UnfitError(
            "the row was too large for its message, which has the key only; have TiCDC send whole rows (max-message-bytes, "
            'large-message-handle-option = "none")'
        )
    types = column_types(event.get("mysqlType"))
    for number, row in enumerate(data):
        before = old[number] if number < len(old) and isinstance(old[number], dict) else {}
        yield Record(_OPERATIONS[kind], row, _position(start, number), before, table=table, types=types)


def _start(event: Mapping[str, Any], commit: Any) -> list[int] | None:
    """Return when an event was, and its number or that of its commit; None where it does not tell the time."""
    milliseconds = event.get("es")
    if not isinstance(milliseconds, int) or isinstance(milliseconds, bool):
        return None
    order = next((each for each in (commit, event.get("id")) if isinstance(each, int)), 0)
    return [milliseconds * 1000, order]


def _position(start: Sequence[int] | None, row: int = 0) -> bytes | None:
    return None if start is None else pack("canal", [*start, row])


def column_types(given: Any) -> dict[str, pa.DataType | None]:
    """Return the types of columns by MySQL's, None where that does not tell."""
    if not isinstance(given, dict):
        return {}
    return {name: _type(str(text).lower()) for name, text in given.items()}


def _type(text: str) -> pa.DataType | None:
    """Return the type of a new column by MySQL's, None where that does not tell."""
    found = _DECIMAL.match(text)
    if found is not None:
        digits, scale = int(found[1]), int(found[2] or 0)
        return pa.decimal128(digits, scale) if 0 < digits <= 38 and scale <= digits else None
    name = re.split(r"[\s(]", text)[0]
    if name == "bigint" and "unsigned" in text:
        return pa.decimal128(20, 0)
    return pa.string() if name in _TEXTS else _TYPES.get(name)
