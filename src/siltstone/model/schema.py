"""Table schemas: which types a column may have, how they are written as JSON, how they may evolve.

A schema is stored as a list of fields, `{"name": "id", "type": "int64", "nullable": true}`, with nested types as
objects: `{"list": T}`, `{"struct": [fields]}`, `{"map": [K, V]}`.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model.dict_model import Model, field
from siltstone.model.locators import check_column, did_you_mean

_SIMPLE: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp_utc": pa.timestamp("us", tz="UTC"),
    "duration": pa.duration("us"),
}
_NAMES = {arrow: name for name, arrow in _SIMPLE.items()}
_ALIASES = {
    "boolean": "bool", "byte": "int8", "short": "int16", "int": "int32", "integer": "int32", "long": "int64",
    "bigint": "int64", "float32": "float", "float64": "double", "str": "string", "text": "string", "date32": "date",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)\Z")
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_STORED_AS: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    **dict.fromkeys((pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), pa.binary()),
    **dict.fromkeys((pa.time32("s"), pa.time32("ms"), pa.time64("ns")), pa.time64("us")),
    **dict.fromkeys((pa.duration("s"), pa.duration("ms"), pa.duration("ns")), pa.duration("us")),
}
_EXTENSIONS = {"arrow.uuid": pa.string(), "arrow.json": pa.string(), "arrow.bool8": pa.bool_()}
HOUR_24 = re.compile(r"(?:^|[T ])24")
"""The hour 24 in a time as text: Python 3.14 takes it for midnight, of the next day where there is a date; earlier ones refuse it."""

FIELD_ID = b"PARQUET:field_id"
_PARTITION_TYPES = (*_INTEGERS, pa.bool_(), pa.string(), pa.date32())
MAX_NESTING = 60
"""How many levels of Parquet a column may have; Arrow's readers refuse deeper ones. Lists and maps take two each."""


class _StoredField(Model):
    """A column or a field of a struct, whose type is checked by whoever reads it."""

    name: str = field(check=check_column)
    type: Any
    nullable: bool = True
    id: int | None = None


class SchemaField(_StoredField):
    """One column. Files know it by its id and stored name, which stay when it is renamed; None: the name itself."""

    stored_name: str | None = field(default=None, check=check_column)

    @property
    def name_in_files(self) -> str:
        """The column's name inside data files."""
        return self.stored_name or self.name

    def validate(self) -> None:
        """Check that the type is one we can store."""
        type_from_json(self.type, self.name)


def schema_from_json(fields: Iterable[Mapping[str, Any]] | Mapping[str, Any], level: int = 0) -> pa.Schema:
    """Make an Arrow schema of stored fields, or of a plain `{"column": "type"}` mapping. Raises: InvalidInputError.

    `level` is how deep the fields are nested in a column, here and below.
    """
    if isinstance(fields, Mapping):
        fields = fields.get("fields") or [{"name": name, "type": kind} for name, kind in fields.items()]
    if isinstance(fields, str | bytes) or not isinstance(fields, Iterable):
        raise InvalidInputError('a schema is a list of {"name", "type"} fields or an object of "column": "type"')
    schema = pa.schema([_arrow_field(field, level) for field in fields])
    check_columns(schema)
    return schema


def schema_of(fields: Iterable[Mapping[str, Any]]) -> pa.Schema:
    """Return what `schema_from_json` makes of fields that were checked: the same ones are asked for again and again."""
    return _schema_of(orjson.dumps(list(fields)))


@functools.lru_cache(1024)
def _schema_of(fields: bytes) -> pa.Schema:
    return schema_from_json(orjson.loads(fields))


def _arrow_field(stored: object, level: int) -> "pa.Field[Any]":
    if not isinstance(stored, Mapping):
        raise InvalidInputError(f'a schema field is an object with "name" and "type", not {stored!r}')
    column = _StoredField.from_serializable(dict(stored))
    metadata = None if column.id is None else {FIELD_ID: str(column.id)}
    return pa.field(column.name, type_from_json(column.type, column.name, level), column.nullable, metadata)


def schema_to_json(schema: pa.Schema) -> list[SchemaField]:
    """Write a normalized Arrow schema as fields."""
    return [
        SchemaField(name=field.name, type=type_to_json(field.type), nullable=field.nullable, id=field_id(field))
        for field in schema
    ]


def field_id(column: "pa.Field[Any]") -> int | None:
    """Return the id that an Arrow field carries, where Parquet files carry it too."""
    text = (column.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


# Ids of what is inside a nested column begin after its own one times this.
_NESTED_IDS = 1 << 12


def nested_ids(column_id: int) -> Iterator[int]:
    """Return the ids of what is inside a nested column, in the order of its fields, outer ones first."""
    return itertools.count(column_id * _NESTED_IDS + 1)


def with_nested_ids(column: "pa.Field[Any]") -> "pa.Field[Any]":
    """Return a column that has an id with ids for all that is inside it."""
    number = field_id(column)
    return column if number is None else column.with_type(_numbered(column.type, nested_ids(number)))


def _numbered(kind: pa.DataType, ids: Iterator[int]) -> pa.DataType:
    if pa.types.is_list(kind):
        number = next(ids)
        return pa.list_(_identified(kind.value_field, _numbered(kind.value_type, ids), number))
    if pa.types.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        key = _identified(kind.key_field, _numbered(kind.key_type, ids), key_id)
        return pa.map_(key, _identified(kind.item_field, _numbered(kind.item_type, ids), value_id))
    if pa.types.is_struct(kind):
        fields = []
        for place in range(kind.num_fields):
            number = next(ids)
            fields.append(_identified(kind.field(place), _numbered(kind.field(place).type, ids), number))
        return pa.struct(fields)
    return kind


def _identified(field: "pa.Field[Any]", kind: pa.DataType, number: int) -> "pa.Field[Any]":
    return pa.field(field.name, kind, field.nullable, {FIELD_ID: str(number)})


def without_ids(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields carry no ids."""
    return pa.schema([column.remove_metadata() for column in schema])


def type_from_json(kind: Any, column: str, level: int = 0) -> pa.DataType:
    """Read one type. Raises: InvalidInputError that names the column."""
    _check_nesting(level, column)
    if isinstance(kind, str):
        text = kind.strip().lower()
        simple = _SIMPLE.get(_ALIASES.get(text, text))
        if simple is not None:
            return simple
        decimal = _DECIMAL.match(text)
        if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
    elif isinstance(kind, Mapping) and len(kind) == 1:
        ((shape, inner),) = kind.items()
        if shape == "list":
            return pa.list_(type_from_json(inner, column, level + 2))
        if shape == "struct" and isinstance(inner, list):
            return pa.struct(list(schema_from_json(inner, level + 1)))
        if shape == "map" and isinstance(inner, list) and len(inner) == 2:
            return pa.map_(*(type_from_json(part, column, level + 2) for part in inner))
    raise InvalidInputError(
        f"column {column!r} has the unknown type {kind!r}; use one of {', '.join(_SIMPLE)}, decimal(p,s), "
        '{"list": T}, {"struct": [fields]} or {"map": [K, V]}'
    )


def _check_nesting(level: int, column: str) -> None:
    if level > MAX_NESTING:
        raise InvalidInputError(
            f"column {column!r} is nested more than {MAX_NESTING} levels deep, where lists and maps count as two; "
            "flatten it, or keep it as JSON text"
        )


def type_to_json(kind: pa.DataType) -> Any:
    """Write one normalized type."""
    if kind in _NAMES:
        return _NAMES[kind]
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return {"list": type_to_json(kind.value_type)}
    if pa.types.is_struct(kind):
        fields = [{"name": field.name, "type": type_to_json(field.type), "nullable": field.nullable} for field in kind]
        return {"struct": fields}
    if pa.types.is_map(kind):
        return {"map": [type_to_json(kind.key_type), type_to_json(kind.item_type)]}
    raise InvalidInputError(f"type {kind} is not normalized")


def describe_type(kind: pa.DataType) -> str:
    """Write a type for people, in messages."""
    try:
        written = type_to_json(normalize_type(kind, ""))
    except InvalidInputError:
        return str(kind)
    return written if isinstance(written, str) else str(kind)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose columns may all be null, as they may in rows that are deletes."""
    return pa.schema([field.with_nullable(True) for field in schema])


def normalize_schema(schema: pa.Schema, level: int = 0) -> pa.Schema:
    """Bring every column to the one type we store for its kind. Raises: InvalidInputError."""
    check_columns(schema)
    return pa.schema(
        [pa.field(field.name, normalize_type(field.type, field.name, level), field.nullable) for field in schema]
    )


def normalize_type(kind: pa.DataType, column: str, level: int = 0) -> pa.DataType:
    """Return the stored type of an Arrow type: microseconds, UTC, no unsigned, no dictionaries, no large variants."""
    _check_nesting(level, column)
    types = pa.types
    if kind in _NAMES:
        return kind
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return normalize_type(kind.value_type, column, level)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name in _EXTENSIONS:
            return _EXTENSIONS[kind.extension_name]
        raise InvalidInputError(
            f"column {column!r} has the extension type {kind.extension_name}, which tables cannot hold; convert it first"
        )
    if kind in _STORED_AS:
        return _STORED_AS[kind]
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_map(kind):
        return pa.map_(*(normalize_type(part, column, level + 2) for part in (kind.key_type, kind.item_type)))
    if types.is_struct(kind):
        return pa.struct(list(normalize_schema(pa.schema(list(kind)), level + 1)))
    if is_list_like(kind):
        return pa.list_(normalize_type(kind.value_type, column, level + 2))
    if types.is_null(kind):
        raise InvalidInputError(f"column {column!r} has only nulls and so no type; give it one")
    raise InvalidInputError(f"column {column!r} has the type {kind}, which tables cannot hold; convert it first")


def is_extension(kind: pa.DataType, name: str) -> bool:
    """Return whether a type is the extension of that name."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == name


def is_list_like(kind: pa.DataType) -> bool:
    """Return whether values are lists, however they are laid out."""
    types = pa.types
    checks = (
        types.is_list,
        types.is_large_list,
        types.is_fixed_size_list,
        types.is_list_view,
        types.is_large_list_view,
    )
    return any(check(kind) for check in checks)


def has_map(kind: pa.DataType) -> bool:
    """Return whether a type is a map, or has one inside."""
    return pa.types.is_map(kind) or any(has_map(kind.field(number).type) for number in range(kind.num_fields))


def same_values(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether two stored types hold the same values, whatever they say of nulls inside."""
    return bool(_plain_type(left).equals(_plain_type(right)))


def check_columns(schema: pa.Schema) -> None:
    """Refuse names that Spark could not tell apart. Raises: InvalidInputError."""
    if not len(schema):
        raise InvalidInputError("the schema has no columns; give at least one")
    seen: dict[str, str] = {}
    for name in schema.names:
        check_column(name)
        other = seen.get(name.lower())
        if other is not None:
            raise InvalidInputError(
                f"columns {other!r} and {name!r} differ only in case or not at all; rename one, since Spark cannot "
                "tell them apart"
            )
        seen[name.lower()] = name


def check_known(columns: Sequence[str], schema: pa.Schema, what: str) -> None:
    """Refuse a list of columns with duplicates, or with one that is not there. Raises: InvalidInputError."""
    if len(set(columns)) != len(columns):
        raise InvalidInputError(f"{what} {', '.join(columns)} names a column twice")
    for column in columns:
        if column not in schema.names:
            raise InvalidInputError(
                f"{what} {column!r} is not a column; there are {', '.join(schema.names)}"
                f"{did_you_mean(column, schema.names)}"
            )


def check_key_types(columns: Sequence[str], schema: pa.Schema, what: str) -> None:
    """Refuse keys that cannot be compared. Raises: InvalidInputError."""
    for column in columns:
        if pa.types.is_nested(schema.field(column).type):
            raise InvalidInputError(f"{what} {column!r} is of the nested type {schema.field(column).type}; use scalars")


def check_partition_types(columns: Sequence[str], schema: pa.Schema) -> None:
    """Refuse partition keys whose values do not make good folder names. Raises: InvalidInputError."""
    for column in columns:
        kind = schema.field(column).type
        if kind not in _PARTITION_TYPES:
            raise InvalidInputError(
                f"partition key {column!r} is of type {describe_type(kind)}; use text, integers, booleans or dates"
            )


def evolve(table: pa.Schema, delta: pa.Schema, *, add_columns: bool = True) -> pa.Schema:
    """Return the table's schema after a delta with the normalized schema `delta`.

    New columns come last and are nullable; a wider type widens the column. Raises: InvalidInputError that names
    the column and both types for anything else.
    """
    fields = {field.name: field for field in table}
    lowered = {name.lower(): name for name in table.names}
    for incoming in delta:
        column = fields.get(incoming.name)
        if column is None:
            same = lowered.get(incoming.name.lower())
            if same is not None:
                raise InvalidInputError(
                    f"column {incoming.name!r} differs from the table's {same!r} only in case; rename it"
                )
            if not add_columns:
                raise InvalidInputError(f"column {incoming.name!r} is not in the table ({', '.join(table.names)})")
            fields[incoming.name] = incoming.with_nullable(True)
            lowered[incoming.name.lower()] = incoming.name
            continue
        wider = widest(column.type, incoming.type)
        if wider is None:
            raise InvalidInputError(
                f"column {incoming.name!r} is {describe_type(column.type)} in the table "
                f"but {describe_type(incoming.type)} in the data; convert it "
                "(only wider integers, floats and decimals are taken over)"
            )
        # Files that were written before columns had ids know none.
        identity = column if field_id(column) is not None else incoming
        fields[incoming.name] = column.with_type(wider).with_metadata(identity.metadata)
    return pa.schema(list(fields.values()))


def check_unchanged(table: pa.Schema, after: pa.Schema) -> None:
    """Refuse data that would change a table's schema. Raises: InvalidInputError that names the column."""
    for column in after:
        if column.name not in table.names:
            raise InvalidInputError(
                f"column {column.name!r} is not in the table ({', '.join(table.names)}), and this write is strict: rename "
                f"it, or add it with `siltstone table alter`{did_you_mean(column.name, table.names)}"
            )
        before = table.field(column.name)
        if before.type != column.type:
            raise InvalidInputError(
                f"column {column.name!r} is {describe_type(before.type)} in the table and would become "
                f"{describe_type(column.type)}; this write is strict: convert it, or widen the column with `siltstone table alter`"
            )


def widest(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type that holds all values of both, or None if no wider type does."""
    if left.equals(right) or same_values(left, right):
        return left
    if left in _INTEGERS and right in _INTEGERS:
        return max(left, right, key=_INTEGERS.index)
    if pa.types.is_floating(left) and pa.types.is_floating(right):
        return pa.float64()
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        scale = max(left.scale, right.scale)
        precision = scale + max(left.precision - left.scale, right.precision - right.scale)
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Forget nested nullability and field names of lists, which do not change what values fit."""
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in kind])
    return kind
