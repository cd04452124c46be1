"""A table as Iceberg describes it: column types with ids, the mapping of names, partitions, and bounds of values as bytes."""

import datetime
import decimal
import struct
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model import PartitionValue, TableVersion
from siltstone.model.schema import field_id, nested_ids, schema_of
from siltstone.publish.statistics import Bound

_SIMPLE = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
}
_FIRST_PARTITION_ID = 1000
_MOST_TEXT = 16
_EPOCH = datetime.datetime(1970, 1, 1)


class Description(NamedTuple):
    """What the metadata of a published version say of a table."""

    fields: list[dict[str, Any]]
    last_column_id: int
    name_mapping: str
    partition_fields: list[dict[str, Any]]


def describe(name: str, version: TableVersion) -> Description:
    """Return how a table version is described. Raises: InvalidInputError that names columns without a type in Iceberg."""
    arrow = schema_of(version.fields)
    refused = [column.name for column in version.fields if not _is_known(arrow.field(column.name).type)]
    if refused:
        raise InvalidInputError(
            f"{name}: {', '.join(refused)} {'has a type' if len(refused) == 1 else 'have types'} that Iceberg does not have "
            "(duration); drop or convert the column to publish the table"
        )
    fields, mapping, last = [], [], version.last_column_id
    for column in version.fields:
        ids = nested_ids(column.id or 0)
        kind, names = _type(arrow.field(column.name).type, ids)
        # That a column has no nulls is for our writers to check, and old files may lack it.
        fields.append({"id": column.id, "name": column.name, "required": False, "type": kind})
        mapping.append({"field-id": column.id, "names": [column.name_in_files], **({"fields": names} if names else {})})
        last = max(last, next(ids) - 1 if names else last)
    ids_by_name = {column.name: column.id for column in version.fields}
    partitions = [
        {"name": key, "transform": "identity", "source-id": ids_by_name[key], "field-id": _FIRST_PARTITION_ID + place}
        for place, key in enumerate(version.partition_keys)
    ]
    return Description(fields, last, orjson.dumps(mapping).decode(), partitions)


def _is_known(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return all(_is_known(kind.field(place).type) for place in range(kind.num_fields))
    return kind in _SIMPLE or pa.types.is_decimal(kind)


def _type(kind: pa.DataType, ids: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return a type, and the mapping of the names inside it."""
    if kind in _SIMPLE:
        return _SIMPLE[kind], []
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})", []
    if pa.types.is_list(kind):
        number = next(ids)
        inner, names = _type(kind.value_type, ids)
        mapped = {"field-id": number, "names": ["element", "list"], **({"fields": names} if names else {})}
        return {"type": "list", "element-id": number, "element": inner, "element-required": False}, [mapped]
    if pa.types.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        key, key_names = _type(kind.key_type, ids)
        value, value_names = _type(kind.item_type, ids)
        written = {"type": "map", "key-id": key_id, "key": key, "value-id": value_id, "value": value}
        return {**written, "value-required": False}, [
            {"field-id": key_id, "names": ["key"], **({"fields": key_names} if key_names else {})},
            {"field-id": value_id, "names": ["value"], **({"fields": value_names} if value_names else {})},
        ]
    fields, mapping = [], []
    for place in range(kind.num_fields):
        field, number = kind.field(place), next(ids)
        inner, names = _type(field.type, ids)
        fields.append({"id": number, "name": field.name, "required": False, "type": inner})
        mapping.append({"field-id": number, "names": [field.name], **({"fields": names} if names else {})})
    return {"type": "struct", "fields": fields}, mapping


def misfit(schema: pa.Schema, version: TableVersion) -> str | None:
    """Return the column of a data file that readers would take for another one, or for none; None where there is none.

    They go by the ids in a file where it has any, by the mapping of names where it has none.
    """
    own = {column.name_in_files: column.id for column in version.fields}
    ids = {column.name: field_id(column) for column in schema}
    if not any(number is not None for number in ids.values()):
        return None
    for column in schema:
        name: str = column.name
        expected = own.get(name)
        if expected is None:
            if ids[name] in own.values():
                return name
        elif ids[name] != expected or not _has_ids(column.type, nested_ids(expected)):
            return name
    return None


def _has_ids(kind: pa.DataType, ids: Any) -> bool:
    """Return whether what is inside a type has the ids that it should have."""
    if pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    elif pa.types.is_nested(kind):
        inner = [kind.field(place) for place in range(kind.num_fields)]
    else:
        return True
    if pa.types.is_struct(kind):
        return all(field_id(field) == next(ids) and _has_ids(field.type, ids) for field in inner)
    return [field_id(field) for field in inner] == [next(ids) for _ in inner] and all(
        _has_ids(field.type, ids) for field in inner
    )


def bound_bytes(kind: pa.DataType, value: Bound, *, is_upper: bool) -> bytes | None:
    """Return a bound as Iceberg's single values; None where it has none of a length that is worth it."""
    if isinstance(value, str):
        return _text_bound(value, is_upper=is_upper)
    return value_bytes(kind, value)


def value_bytes(kind: pa.DataType, value: PartitionValue | Bound) -> bytes | None:
    """Return a value as Iceberg's single values have it; None for null."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return struct.pack("<?", value)
    if isinstance(value, datetime.datetime):
        since = value.replace(tzinfo=None) - _EPOCH
        return struct.pack("<q", since // datetime.timedelta(microseconds=1))
    if isinstance(value, datetime.date):
        return struct.pack("<i", (value - _EPOCH.date()).days)
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(kind.scale))
        return unscaled.to_bytes(max(unscaled, ~unscaled).bit_length() // 8 + 1, "big", signed=True)
    return struct.pack("<q" if kind == pa.int64() else "<i", value)


def _text_bound(value: str, *, is_upper: bool) -> bytes | None:
    if len(value) <= _MOST_TEXT:
        return value.encode()
    if not is_upper:
        return value[:_MOST_TEXT].encode()
    # The next text after all that begin so; surrogates are no characters.
    for place in range(_MOST_TEXT - 1, -1, -1):
        code = ord(value[place]) + 1
        code = 0xE000 if 0xD800 <= code < 0xE000 else code
        if code <= 0x10FFFF:
            return (value[:place] + chr(code)).encode()
    return None


def partition_type(kind: pa.DataType) -> Any:
    """Return the Avro type of a partition value."""
    if kind == pa.date32():
        return {"type": "int", "logicalType": "date"}
    return {"boolean": "boolean", "int": "int", "long": "long", "string": "string"}[_SIMPLE[kind]]


def partition_value(kind: pa.DataType, value: PartitionValue) -> Any:
    """Return a partition value for Avro. Dates are kept as text in partitions."""
    if kind == pa.date32() and isinstance(value, str):
        return datetime.date.fromisoformat(value)
    return value
