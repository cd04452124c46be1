"""Every encoding of a value, by the schema in the message and by the table's type alone, in both ways of decoding."""

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
import pytest

from siltstone.cdc import Decoded, Events, Options, Target, decode
from tests.unit.cdc.messages import UNAVAILABLE, base64_of, change, lines, told, with_schema

D = decimal.Decimal
KAFKA = "org.apache.kafka.connect.data."
TIME = "io.debezium.time."
DATA = "io.debezium.data."
NUMERIC = {"parameters": {"scale": "4", "connect.decimal.precision": "12"}}
UTC = datetime.UTC
NOON = datetime.datetime(2024, 1, 2, 3, 4, 5)
NOON_US = 1_704_164_645_000_000

TOLD: list[tuple[dict[str, Any], Any, pa.DataType, Any]] = [
    (told("v", "bytes", f"{KAFKA}Decimal", **NUMERIC), "HL6Y+7I=", pa.decimal128(12, 4), D("12345678.1234")),
    (told("v", "bytes", f"{KAFKA}Decimal", **NUMERIC), base64_of(-1), pa.decimal128(12, 4), D("-0.0001")),
    (told("v", "bytes", f"{KAFKA}Decimal", **NUMERIC), 12.5, pa.decimal128(12, 4), D("12.5")),
    (told("v", "bytes", f"{KAFKA}Decimal", parameters={"scale": "0"}), base64_of(7), pa.string(), "7"),
    (
        told("v", "bytes", f"{KAFKA}Decimal", parameters={"scale": "2046"}),
        base64_of(300 * 10**2046),
        pa.decimal128(5, 0),
        D(300),
    ),
    (told("v", "struct", f"{DATA}VariableScaleDecimal"), {"scale": 3, "value": base64_of(1500)}, pa.string(), "1.500"),
    (
        told("v", "struct", f"{DATA}VariableScaleDecimal"),
        {"scale": 3, "value": base64_of(1500)},
        pa.decimal128(9, 2),
        D("1.5"),
    ),
    (told("v", "string"), "1.25", pa.decimal128(9, 2), D("1.25")),
    (told("v", "int32", f"{TIME}Date"), 19724, pa.date32(), datetime.date(2024, 1, 2)),
    (told("v", "int32", f"{KAFKA}Date"), -1, pa.date32(), datetime.date(1969, 12, 31)),
    (told("v", "int32", f"{TIME}Time"), 3_600_001, pa.time64("us"), datetime.time(1, 0, 0, 1000)),
    (told("v", "int64", f"{TIME}MicroTime"), 3_600_000_001, pa.time64("us"), datetime.time(1, 0, 0, 1)),
    (told("v", "int32", f"{KAFKA}Time"), 3_600_001, pa.time64("us"), datetime.time(1, 0, 0, 1000)),
    (told("v", "int64", f"{TIME}NanoTime"), 3_600_000_001_000, pa.time64("us"), datetime.time(1, 0, 0, 1)),
    (told("v", "int64", f"{TIME}MicroTime"), -1, pa.duration("us"), datetime.timedelta(microseconds=-1)),
    (told("v", "int64", f"{TIME}Timestamp"), NOON_US // 1000, pa.timestamp("us"), NOON),
    (told("v", "int64", f"{KAFKA}Timestamp"), NOON_US // 1000, pa.timestamp("us"), NOON),
    (told("v", "int64", f"{TIME}MicroTimestamp"), NOON_US, pa.timestamp("us"), NOON),
    (told("v", "int64", f"{TIME}NanoTimestamp"), NOON_US * 1000, pa.timestamp("us"), NOON),
    (
        told("v", "string", f"{TIME}ZonedTimestamp"),
        "2024-01-02T03:04:05.5Z",
        pa.timestamp("us", "UTC"),
        NOON.replace(microsecond=500_000, tzinfo=UTC),
    ),
    (
        told("v", "string", f"{TIME}ZonedTimestamp"),
        "2024-01-02T05:04:05+02:00",
        pa.timestamp("us", "UTC"),
        NOON.replace(tzinfo=UTC),
    ),
    (told("v", "string", f"{TIME}ZonedTime"), "12:00:00Z", pa.string(), "12:00:00Z"),
    (told("v", "string", f"{TIME}IsoDate"), "2024-01-02Z", pa.date32(), datetime.date(2024, 1, 2)),
    (told("v", "string", f"{TIME}IsoTime"), "03:04:05Z", pa.time64("us"), datetime.time(3, 4, 5)),
    (told("v", "string", f"{TIME}IsoTimestamp"), "2024-01-02T03:04:05Z", pa.timestamp("us"), NOON),
    (told("v", "int64", f"{TIME}MicroDuration"), 5, pa.duration("us"), datetime.timedelta(microseconds=5)),
    (told("v", "int64", f"{TIME}NanoDuration"), 5000, pa.duration("us"), datetime.timedelta(microseconds=5)),
    (told("v", "string", f"{TIME}Interval"), "P1Y", pa.string(), "P1Y"),
    (told("v", "int32", f"{TIME}Year"), 2024, pa.int32(), 2024),
    (told("v", "string", f"{DATA}Uuid"), "b68a35a7-17ad-35b3-af2a-ae46edb4545b", pa.string(), ...),
    *((told("v", "string", f"{DATA}{name}"), "a.b", pa.string(), ...) for name in ("Json", "Xml", "Ltree", "EnumSet")),
    (told("v", "string", f"{DATA}Enum", parameters={"allowed": "a.b,c"}), "a.b", pa.string(), ...),
    # NaN in the mode of strings, MariaDB's precise unsigned integers, an array of arrays as PostgreSQL's connector sends it.
    (told("v", "string"), "NAN", pa.string(), ...),
    (
        told("v", "bytes", f"{KAFKA}Decimal", parameters={"scale": "0"}),
        base64_of(2**64 - 1),
        pa.decimal128(20),
        D(2**64 - 1),
    ),
    (told("v", "bytes", f"{KAFKA}Decimal", parameters={"scale": "0"}), base64_of(7), pa.int64(), 7),
    (told("v", "array", items=told("", "int32")), [None, None], pa.list_(pa.int32()), ...),
    (told("v", "bytes", f"{DATA}Bits", parameters={"length": "12"}), "AwI=", pa.binary(), b"\x03\x02"),
    (told("v", "boolean"), True, pa.bool_(), True),
    (told("v", "int16"), 1, pa.bool_(), True),
    (told("v", "int64"), -(2**63), pa.int64(), -(2**63)),
    (told("v", "double"), "NaN", pa.float64(), math.nan),
    (told("v", "double"), "-Infinity", pa.float64(), -math.inf),
    (told("v", "float"), 1.5, pa.float32(), 1.5),
    (told("v", "bytes"), "AP8=", pa.binary(), b"\x00\xff"),
    (told("v", "array", items=told("", "int32")), [1, None, 3], pa.list_(pa.int32()), [1, None, 3]),
    (told("v", "array", items=told("", "int32")), [], pa.list_(pa.int32()), []),
    (
        told("v", "array", items=told("", "bytes", f"{KAFKA}Decimal", **NUMERIC)),
        [base64_of(15000), None],
        pa.list_(pa.decimal128(12, 4)),
        [D("1.5"), None],
    ),
    (
        told("v", "struct", "io.debezium.data.geometry.Point", fields=[told("x", "double"), told("wkb", "bytes")]),
        {"x": 1.5, "wkb": "AAE="},
        pa.struct([("x", pa.float64()), ("wkb", pa.binary())]),
        {"x": 1.5, "wkb": b"\x00\x01"},
    ),
    (
        told("v", "map", keys=told("", "string"), values=told("", "int32")),
        {"a": 1},
        pa.map_(pa.string(), pa.int32()),
        [("a", 1)],
    ),
]

UNTOLD: list[tuple[Any, pa.DataType, Any]] = [
    ("HL6Y+7I=", pa.decimal128(12, 4), D("12345678.1234")),
    ("12.5", pa.decimal128(12, 4), D("12.5")),
    ("-7", pa.decimal128(12, 4), D(-7)),
    (12345678.1234, pa.decimal128(12, 4), D("12345678.1234")),
    (10**20 + 1, pa.decimal128(38, 0), D(10**20 + 1)),
    ({"scale": 1, "value": base64_of(15)}, pa.decimal128(12, 4), D("1.5")),
    (19724, pa.date32(), datetime.date(2024, 1, 2)),
    ("2024-01-02", pa.date32(), datetime.date(2024, 1, 2)),
    (NOON_US, pa.timestamp("us"), NOON),
    ("2024-01-02T03:04:05Z", pa.timestamp("us"), NOON),
    ("2024-01-02T03:04:05Z", pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC)),
    (3_600_000_001, pa.time64("us"), datetime.time(1, 0, 0, 1)),
    (0, pa.time64("us"), datetime.time()),
    ("AP8=", pa.binary(), b"\x00\xff"),
    ("AP8=", pa.string(), "AP8="),
    ("Infinity", pa.float64(), math.inf),
    (3, pa.float64(), 3.0),
]


def decode_one(value: Any, kind: pa.DataType, count: int, field: dict[str, Any] | None, **options: Any) -> Decoded:
    rows = [{"id": number, "v": value} for number in range(count)]
    messages = [change("u", number + 1, row) for number, row in enumerate(rows)]
    if field is not None:
        messages = [with_schema(message, [told("id", "int64"), field]) for message in messages]
    target = Target(pa.schema([("id", pa.int64()), ("v", kind), ("_source_position", pa.binary())]), ["id"])
    return decode(Events.of_lines(lines(messages)), "debezium", target, Options(**options))


def values(decoded: Decoded) -> list[Any]:
    assert not decoded.rejects, decoded.rejects[0]
    (changes,) = decoded.changes
    found: list[Any] = changes.rows.column("v").to_pylist()
    return found


def same(found: Any, expected: Any) -> bool:
    return found == expected or (isinstance(expected, float) and math.isnan(expected) and math.isnan(found))


# One event goes the slow way, a hundred the fast one.
@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(("field", "value", "kind", "expected"), TOLD)
def test_a_schema_tells_how_a_value_is_written(
    field: dict[str, Any], value: Any, kind: pa.DataType, expected: Any, count: int
) -> None:
    expected = value if expected is ... else expected
    found = values(decode_one(value, kind, count, field))
    assert len(found) == count
    assert all(same(each, expected) for each in found), found[:2]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(("value", "kind", "expected"), UNTOLD)
def test_without_a_schema_the_tables_type_tells(value: Any, kind: pa.DataType, expected: Any, count: int) -> None:
    found = values(decode_one(value, kind, count, None))
    assert len(found) == count
    assert all(same(each, expected) for each in found), found[:2]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(
    ("value", "kind", "reason"),
    [
        ("1234", pa.decimal128(12, 4), "--decimals"),
        ("+123", pa.decimal128(12, 4), "--decimals"),
        ("1e10", pa.decimal128(12, 0), "--decimals"),
        ("1.23456", pa.decimal128(12, 4), "exactly"),
        (base64_of(10**12), pa.decimal128(12, 4), "does not fit"),
        (True, pa.decimal128(12, 4), "does not fit"),
        (NOON_US // 1000, pa.timestamp("us"), "--times"),
        (5_000_000, pa.time64("us"), "--times"),
        (86_400_000_000, pa.time64("us"), "--times"),
        ("24:00:00", pa.time64("us"), "not a time"),
        ("2024-01-02T24:00:00Z", pa.timestamp("us", "UTC"), "not a time"),
        ("-infinity", pa.timestamp("us", "UTC"), "time zone"),
        ("2024-01-02T03:04:05", pa.timestamp("us", "UTC"), "time zone"),
        ("2024-01-02T03:04:05.1234567Z", pa.timestamp("us", "UTC"), "microseconds"),
        (2**31, pa.int32(), "does not fit"),
        (1.5, pa.int64(), "does not fit"),
        ("7", pa.int64(), "does not fit"),
        (7, pa.string(), "does not fit"),
        ("no base64!", pa.binary(), "base64"),
        (2, pa.bool_(), "does not fit"),
        ([1, "x"], pa.list_(pa.int32()), "does not fit"),
    ],
)
def test_what_does_not_fit_or_may_mean_two_things_is_refused(
    value: Any, kind: pa.DataType, reason: str, count: int
) -> None:
    decoded = decode_one(value, kind, count, None)
    assert [reject.line for reject in decoded.rejects] == list(range(1, count + 1))
    assert reason in decoded.rejects[0].reason
    assert "'v'" in decoded.rejects[0].reason
    assert not decoded.changes


TOLD_WRONG: list[tuple[dict[str, Any], Any, pa.DataType]] = [
    (told("v", "bytes", f"{KAFKA}Decimal", **NUMERIC), "12.5", pa.decimal128(12, 4)),
    (told("v", "bytes", f"{KAFKA}Decimal", **NUMERIC), "", pa.decimal128(12, 4)),
    (told("v", "bytes", f"{KAFKA}Decimal", parameters={"scale": "0"}), base64_of(2**64 - 1), pa.int64()),
    (told("v", "struct", f"{DATA}VariableScaleDecimal"), {"scale": 3}, pa.string()),
    (told("v", "string"), "POSITIVE_INFINITY", pa.decimal128(9, 2)),
    (told("v", "int64", f"{TIME}MicroTime"), 86_400_000_000, pa.time64("us")),
    (told("v", "int64", f"{TIME}MicroTime"), -1, pa.time64("us")),
    (told("v", "int64", f"{TIME}NanoTime"), 1, pa.time64("us")),
    (told("v", "int64", f"{TIME}NanoTimestamp"), 1, pa.timestamp("us")),
    (told("v", "string", f"{TIME}ZonedTimestamp"), "-infinity", pa.timestamp("us", "UTC")),
    (told("v", "int32", f"{TIME}Date"), 2**31, pa.date32()),
    (told("v", "bytes"), "b68a35a7", pa.string()),
    (told("v", "bytes"), "\\x00ff", pa.binary()),
    (told("v", "int64"), "7", pa.int64()),
    (told("v", "string"), 7, pa.string()),
    (told("v", "boolean"), "true", pa.bool_()),
    (told("v", "double"), "x", pa.float64()),
    (told("v", "array", items=told("", "int32")), 3, pa.list_(pa.int32())),
]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(("field", "value", "kind"), TOLD_WRONG)
def test_a_value_that_is_not_as_its_schema_says_is_refused(
    field: dict[str, Any], value: Any, kind: pa.DataType, count: int
) -> None:
    decoded = decode_one(value, kind, count, field)
    assert [reject.line for reject in decoded.rejects] == list(range(1, count + 1))
    assert "'v'" in decoded.rejects[0].reason
    assert not decoded.changes


@pytest.mark.parametrize("count", [1, 100])
def test_options_say_what_is_ambiguous(count: int) -> None:
    kind = pa.decimal128(20, 4)
    assert values(decode_one("1234", kind, count, None, decimals="text"))[0] == D(1234)
    assert (
        values(decode_one("1234", kind, count, None, decimals="base64"))[0]
        == D(int.from_bytes(b"\xd7m\xf8", "big", signed=True)) / 10**4
    )
    milliseconds = decode_one(NOON_US // 1000, pa.timestamp("us"), count, None, times={"*": "us", "v": "ms"})
    assert values(milliseconds)[0] == NOON


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (UNAVAILABLE, pa.string()),
        ("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", pa.binary()),
        ([UNAVAILABLE], pa.list_(pa.string())),
        (list(UNAVAILABLE.encode()), pa.list_(pa.int32())),
        (list(UNAVAILABLE.encode()), pa.list_(pa.int64())),
        (["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], pa.list_(pa.string())),
    ],
)
def test_a_placeholder_in_any_form_is_no_value(value: Any, kind: pa.DataType, count: int) -> None:
    decoded = decode_one(value, kind, count, None)
    assert [each.rows.column_names for each in decoded.changes] == [["id", "_op", "_source_position"]]
    assert decoded.changes[0].rows.num_rows == count


def test_a_wider_type_at_the_source_widens_the_column() -> None:
    decoded = decode_one(2**40, pa.int32(), 1, told("v", "int64"))
    assert decoded.changes[0].rows.schema.field("v").type == pa.int64()
