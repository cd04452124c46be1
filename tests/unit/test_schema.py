"""Which types tables hold, how they are written, and how they evolve."""

from typing import Any

import pyarrow as pa
import pytest

from siltstone.errors import InvalidInputError
from siltstone.model.schema import (
    MAX_NESTING,
    evolve,
    normalize_schema,
    normalize_type,
    schema_from_json,
    schema_to_json,
    type_from_json,
    type_to_json,
    widest,
)


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


ALL_TYPES: list[Any] = [
    "bool", "int8", "int16", "int32", "int64", "float", "double", "string", "binary", "date", "time", "timestamp",
    "timestamp_utc", "duration", "decimal(38,10)", {"list": "int64"}, {"map": ["string", {"list": "double"}]},
    {"struct": [{"name": "a", "type": "int8", "nullable": False}, {"name": "b", "type": {"list": "date"}, "nullable": True}]},
]  # fmt: skip


@pytest.mark.parametrize("kind", ALL_TYPES, ids=str)
def test_every_type_is_written_and_read_back(kind: Any) -> None:
    schema = schema_from_json([{"name": "c", "type": kind, "nullable": False}])
    (stored,) = schema_to_json(schema)
    assert stored == {"name": "c", "type": kind, "nullable": False, "id": None, "stored_name": None}
    assert normalize_schema(schema) == schema
    assert schema_from_json([stored]) == schema


def test_a_schema_can_be_a_plain_mapping() -> None:
    assert schema_from_json({"id": "bigint", "name": " String ", "price": "decimal( 10 , 2 )"}) == columns(
        id=pa.int64(), name=pa.string(), price=pa.decimal128(10, 2)
    )


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary(7), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.time32("s"), pa.time64("us")),
        (pa.duration("ns"), pa.duration("us")),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.list_(pa.uint8(), 3), pa.list_(pa.int16())),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)),
    ],
    ids=str,
)
def test_foreign_types_have_one_stored_type(given: pa.DataType, stored: pa.DataType) -> None:
    assert normalize_type(given, "c") == stored


@pytest.mark.parametrize("kind", [pa.null(), pa.month_day_nano_interval(), pa.decimal256(50, 2)], ids=str)
def test_types_that_cannot_be_held_are_refused_by_column(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="'c'"):
        normalize_type(kind, "c")


@pytest.mark.parametrize(
    "kind", ["strng", "decimal(99,1)", "decimal(3,5)", {"list": "x"}, {"set": "int8"}, 7, None, {}]
)
def test_unknown_type_names_are_refused_by_column(kind: Any) -> None:
    with pytest.raises(InvalidInputError, match="'c'"):
        type_from_json(kind, "c")


@pytest.mark.parametrize("fields", [[], ["id"], [{"type": "int8"}], [{"name": "", "type": "int8"}], 7, "id", {}])
def test_what_is_no_schema_is_refused(fields: Any) -> None:
    with pytest.raises(InvalidInputError):
        schema_from_json(fields)


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int16(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(8, 2), pa.decimal128(10, 2), pa.decimal128(10, 2)),
        (pa.decimal128(8, 2), pa.decimal128(8, 4), pa.decimal128(10, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
        (pa.int64(), pa.float64(), None),
        (pa.int32(), pa.string(), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.list_(pa.int8()), pa.list_(pa.int64()), None),
        (
            pa.list_(pa.field("item", pa.int8(), nullable=False)),
            pa.list_(pa.int8()),
            pa.list_(pa.field("item", pa.int8(), nullable=False)),
        ),
    ],
    ids=str,
)
def test_types_widen_only_where_nothing_is_lost(
    one: pa.DataType, other: pa.DataType, result: pa.DataType | None
) -> None:
    assert widest(one, other) == result


def test_evolution_adds_nullable_columns_last_and_keeps_the_rest() -> None:
    table = columns(id=pa.int32(), name=pa.string()).set(0, pa.field("id", pa.int32(), nullable=False))
    delta = columns(id=pa.int64()).insert(0, pa.field("new", pa.bool_(), nullable=False))
    expected = columns(id=pa.int64(), name=pa.string(), new=pa.bool_())
    assert evolve(table, delta) == expected.set(0, pa.field("id", pa.int64(), nullable=False))


def test_an_incompatible_column_is_named_with_both_types() -> None:
    with pytest.raises(InvalidInputError, match="'id' is int64 in the table but string in the data"):
        evolve(columns(id=pa.int64()), columns(id=pa.string()))


def test_columns_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="case"):
        evolve(columns(id=pa.int64()), columns(ID=pa.int64()))


@pytest.mark.parametrize("names", [("a", "a"), ("a", "A"), ("id", "x", "id")])
def test_a_column_cannot_be_there_twice(names: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError, match="differ only in case or not at all"):
        normalize_schema(pa.schema([pa.field(name, pa.int64()) for name in names]))


def nested(levels: int) -> tuple[Any, pa.DataType]:
    """Return structs in structs, as they are stored and as Arrow has them."""
    stored: Any = "int64"
    arrow: pa.DataType = pa.int64()
    for _ in range(levels):
        stored = {"struct": [{"name": "inner", "type": stored, "nullable": True}]}
        arrow = pa.struct([pa.field("inner", arrow)])
    return stored, arrow


def test_structs_nested_as_deep_as_allowed_are_checked_in_one_pass() -> None:
    stored, arrow = nested(MAX_NESTING)
    assert type_from_json(stored, "c") == arrow
    assert normalize_type(arrow, "c") == arrow
    (written,) = schema_to_json(pa.schema([pa.field("c", arrow)]))
    assert written.to_serializable()["type"] == stored
    assert schema_from_json([written]) == columns(c=arrow)


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 400])
def test_structs_nested_too_deep_are_refused(levels: int) -> None:
    stored, arrow = nested(levels)
    with pytest.raises(InvalidInputError, match=f"nested more than {MAX_NESTING} levels"):
        normalize_type(arrow, "c")
    with pytest.raises(InvalidInputError, match=f"nested more than {MAX_NESTING} levels"):
        type_from_json(stored, "c")


@pytest.mark.parametrize("wrap", [pa.list_, lambda kind: pa.map_(pa.string(), kind)], ids=["list", "map"])
def test_lists_and_maps_count_as_two_levels(wrap: Any) -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(MAX_NESTING // 2):
        kind = wrap(kind)
    assert type_from_json(type_to_json(normalize_type(kind, "c")), "c") == kind
    with pytest.raises(InvalidInputError, match="lists and maps count as two"):
        normalize_type(wrap(kind), "c")
