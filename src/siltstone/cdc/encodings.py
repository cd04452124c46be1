"""How a source writes the values of a column in JSON: told by the schema inside a message, or by the table's type alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from siltstone.cdc.changes import Options, TimeUnit
from siltstone.model.schema import widest

EncodingName = Literal[
    "boolean", "integer", "number", "text", "base64", "decimal", "variable_decimal", "plain_decimal", "date", "time",
    "timestamp", "iso", "duration", "list", "struct", "map",
]  # fmt: skip
_KAFKA = "org.apache.kafka.connect.data."
_TIMES: dict[str, tuple[EncodingName, TimeUnit, pa.DataType]] = {
    f"{_KAFKA}Time": ("time", "ms", pa.time64("us")),
    f"{_KAFKA}Timestamp": ("timestamp", "ms", pa.timestamp("us")),
    "io.debezium.time.Time": ("time", "ms", pa.time64("us")),
    "io.debezium.time.MicroTime": ("time", "us", pa.time64("us")),
    "io.debezium.time.NanoTime": ("time", "ns", pa.time64("us")),
    "io.debezium.time.Timestamp": ("timestamp", "ms", pa.timestamp("us")),
    "io.debezium.time.MicroTimestamp": ("timestamp", "us", pa.timestamp("us")),
    "io.debezium.time.NanoTimestamp": ("timestamp", "ns", pa.timestamp("us")),
    "io.debezium.time.MicroDuration": ("duration", "us", pa.duration("us")),
    "io.debezium.time.NanoDuration": ("duration", "ns", pa.duration("us")),
}
_ISO: dict[str, pa.DataType] = {
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", tz="UTC"),
    "io.debezium.time.IsoDate": pa.date32(),
    "io.debezium.time.IsoTime": pa.time64("us"),
    "io.debezium.time.IsoTimestamp": pa.timestamp("us"),
}
_PLAIN: dict[str, tuple[EncodingName, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "int8": ("integer", pa.int8()),
    "int16": ("integer", pa.int16()),
    "int32": ("integer", pa.int32()),
    "int64": ("integer", pa.int64()),
    "float": ("number", pa.float32()),
    "float32": ("number", pa.float32()),
    "double": ("number", pa.float64()),
    "float64": ("number", pa.float64()),
    "string": ("text", pa.string()),
    "bytes": ("base64", pa.binary()),
}
_MOST_DIGITS = 38


@dataclass(frozen=True)
class Encoding:
    """How values are written, and the type that a column of them has where no table says otherwise.

    `is_told`: a schema says so; where it does not, the table's type is all there is, and what could mean two things
    is refused.
    """

    name: EncodingName
    type: pa.DataType
    is_told: bool = True
    scale: int | None = None
    unit: TimeUnit | None = None
    item: "Encoding | None" = None
    fields: tuple[tuple[str, "Encoding"], ...] = ()
    decimals: str | None = None

    def type_in(self, column: pa.DataType | None) -> pa.DataType:
        """Return the type of decoded values for a table's column, which is wider where the source's is."""
        if column is None or not self.is_told:
            return self.type if column is None else column
        return widest(column, self.type) or column


def encoding_of_field(told: Mapping[str, Any]) -> Encoding:
    """Return the encoding that a field of a message's schema describes. Raises: ValueError."""
    name, kind = told.get("name") or "", told.get("type")
    if name == f"{_KAFKA}Decimal":
        parameters = told.get("parameters") or {}
        scale = int(parameters.get("scale", 0))
        digits = int(parameters.get("connect.decimal.precision") or 0)
        is_storable = 0 < digits <= _MOST_DIGITS and 0 <= scale <= digits
        return Encoding("decimal", pa.decimal128(digits, scale) if is_storable else pa.string(), scale=scale)
    if name == "io.debezium.data.VariableScaleDecimal":
        return Encoding("variable_decimal", pa.string())
    if name in ("io.debezium.time.Date", f"{_KAFKA}Date"):
        return Encoding("date", pa.date32())
    if name in _TIMES:
        encoding, unit, arrow = _TIMES[name]
        return Encoding(encoding, arrow, unit=unit)
    if name in _ISO and kind == "string":
        return Encoding("iso", _ISO[name])
    if kind in _PLAIN:
        return Encoding(*_PLAIN[kind])
    if kind == "array":
        item = encoding_of_field(told.get("items") or {})
        return Encoding("list", pa.list_(item.type), item=item)
    if kind == "struct":
        fields = tuple((str(each["field"]), encoding_of_field(each)) for each in told.get("fields") or [])
        return Encoding("struct", pa.struct([(name, each.type) for name, each in fields]), fields=fields)
    if kind == "map":
        item = encoding_of_field(told.get("values") or {})
        return Encoding("map", pa.map_(pa.string(), item.type), item=item)
    raise ValueError(f"the schema has a field of the unknown type {kind!r}")


def encoding_of_type(kind: pa.DataType, column: str, options: Options) -> Encoding:
    """Return what values of a table's column must be where messages have no schemas."""
    types = pa.types
    unit = options.times.get(column, options.times.get("*"))
    if types.is_decimal(kind):
        return Encoding("plain_decimal", kind, is_told=False, scale=kind.scale, decimals=options.decimals)
    if types.is_list(kind):
        return Encoding("list", kind, is_told=False, item=encoding_of_type(kind.value_type, column, options))
    if types.is_struct(kind):
        fields = tuple((each.name, encoding_of_type(each.type, column, options)) for each in kind)
        return Encoding("struct", kind, is_told=False, fields=fields)
    if types.is_map(kind):
        return Encoding("map", kind, is_told=False, item=encoding_of_type(kind.item_type, column, options))
    name: EncodingName = "text"
    for check, each in _BY_TYPE:
        if check(kind):
            name = each
            break
    return Encoding(name, kind, is_told=False, unit=unit)


_BY_TYPE: Sequence[tuple[Any, EncodingName]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_floating, "number"),
    (pa.types.is_binary, "base64"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_duration, "duration"),
)
