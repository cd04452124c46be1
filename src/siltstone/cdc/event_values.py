"""One value of an event as the table holds it, or the reason why it does not fit. The slow and exact way."""

import binascii
import datetime
import decimal
import math
import re
from typing import Any

import pyarrow as pa

from siltstone.cdc.encodings import Encoding
from siltstone.model.schema import HOUR_24, describe_type

_PER_MICROSECOND = {"ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}
_DAY_MICROSECONDS = 86_400_000_000
# Beyond the year 5138, or before 1973: which of the two tells one unit from the next.
_SURELY_FINER = 10**14
NUMBER_SHAPE = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?$"
_NUMBER = re.compile(NUMBER_SHAPE.removesuffix("$") + r"\Z")
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}\Z")
_NOT_FINITE = {
    "NaN": math.nan, "NAN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf,
    "POSITIVE_INFINITY": math.inf, "NEGATIVE_INFINITY": -math.inf,
}  # fmt: skip
_EPOCH = datetime.datetime(1970, 1, 1)
_MOST_DECIMALS = decimal.Context(prec=5000)
_MOST_DIGITS = 4000


class UnfitError(ValueError):
    """A value does not fit; the text says why."""


class InexactNumberError(UnfitError):
    """A number was read with fewer digits than it has; read the event again, exactly."""


def value_of(value: Any, encoding: Encoding, kind: pa.DataType) -> Any:
    """Return a JSON value as `pa.array` takes it for a type. Raises: UnfitError."""
    if value is None:
        return None
    if encoding.name == "list":
        return _list(value, encoding, kind)
    if encoding.name == "struct":
        return _struct(value, encoding, kind)
    if encoding.name == "map":
        return _map(value, encoding, kind)
    types = pa.types
    if types.is_decimal(kind):
        return _decimal(_number_of(value, encoding, kind), kind)
    if types.is_string(kind):
        return _text(value, encoding, kind)
    if types.is_boolean(kind):
        return _boolean(value, encoding)
    if types.is_integer(kind):
        return _integer(value, encoding, kind)
    if types.is_floating(kind):
        return _float(value, encoding)
    if types.is_binary(kind):
        return _bytes(value, encoding)
    if types.is_date(kind):
        return _date(value, encoding)
    if types.is_time(kind):
        return _time(value, encoding)
    if types.is_timestamp(kind):
        return _timestamp(value, encoding, kind)
    if types.is_duration(kind):
        return _microseconds(value, encoding, "duration")
    raise _unfit(value, encoding, kind)


def _unfit(value: Any, encoding: Encoding, kind: pa.DataType) -> UnfitError:
    told = f" (a {encoding.name} at the source)" if encoding.is_told else ""
    return UnfitError(f"{value!r:.80}{told} does not fit {describe_type(kind)}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _boolean(value: Any, encoding: Encoding) -> bool:
    if isinstance(value, bool):
        return value
    # MySQL has no booleans, but TINYINT(1).
    if _is_integer(value) and value in (0, 1) and encoding.name in ("boolean", "integer"):
        return bool(value)
    raise _unfit(value, encoding, pa.bool_())


def _integer(value: Any, encoding: Encoding, kind: pa.DataType) -> int:
    if encoding.name == "decimal":
        value = _whole(_number_of(value, encoding, kind))
    if not _is_integer(value) or encoding.name not in ("integer", "decimal"):
        raise _unfit(value, encoding, kind)
    limit = 1 << (kind.bit_width - 1)
    if not -limit <= value < limit:
        raise _unfit(value, encoding, kind)
    return int(value)


def _whole(number: decimal.Decimal) -> int | decimal.Decimal:
    return int(number) if number == number.to_integral_value() else number


def _float(value: Any, encoding: Encoding) -> float:
    if isinstance(value, str) and value in _NOT_FINITE and encoding.name == "number":
        return _NOT_FINITE[value]
    if isinstance(value, decimal.Decimal):
        value = float(value)
    if isinstance(value, float) and encoding.name == "number":
        return value
    if _is_integer(value) and encoding.name in ("number", "integer") and abs(value) <= 1 << 53:
        return float(value)
    raise _unfit(value, encoding, pa.float64())


def _text(value: Any, encoding: Encoding, kind: pa.DataType) -> str:
    if encoding.name in ("decimal", "variable_decimal"):
        return format(_number_of(value, encoding, kind), "f")
    if encoding.name == "text" and isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnfitError(f"{value!r:.80} is not valid text") from None
        return value
    if encoding.name == "iso" and isinstance(value, str):
        return value
    raise _unfit(value, encoding, kind)


def _bytes(value: Any, encoding: Encoding) -> bytes:
    if encoding.name != "base64" or not isinstance(value, str):
        raise _unfit(value, encoding, pa.binary())
    return from_base64(value)


def from_base64(text: str) -> bytes:
    """Return bytes that are written as base64. Raises: UnfitError."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise UnfitError(f"{text!r:.80} is not base64") from None


def unscaled(data: bytes, scale: int) -> decimal.Decimal:
    """Return the number that big-endian bytes in two's complement, divided by a power of ten, stand for."""
    if not data or len(data) > _MOST_DIGITS:
        raise UnfitError(f"{len(data)} bytes are not a decimal number")
    return decimal.Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _MOST_DECIMALS)


def _number_of(value: Any, encoding: Encoding, kind: pa.DataType) -> decimal.Decimal:
    if encoding.name == "variable_decimal":
        if isinstance(value, dict) and isinstance(value.get("value"), str) and _is_integer(value.get("scale")):
            return unscaled(from_base64(value["value"]), value["scale"])
        raise _unfit(value, encoding, kind)
    if encoding.name == "decimal" and isinstance(value, str):
        return unscaled(from_base64(value), encoding.scale or 0)
    if encoding.name == "plain_decimal" and isinstance(value, dict):
        return _number_of(value, Encoding("variable_decimal", kind), kind)
    if encoding.name == "plain_decimal" and isinstance(value, str):
        return _decimal_text(value, encoding, kind)
    if encoding.name == "text" and isinstance(value, str):
        return _plain_number(value, kind)
    if encoding.name in ("decimal", "plain_decimal", "integer", "number"):
        if isinstance(value, float):
            raise InexactNumberError(f"{value!r} may have more digits than were read")
        if _is_integer(value) or isinstance(value, decimal.Decimal):
            return decimal.Decimal(value)
    raise _unfit(value, encoding, kind)


def _plain_number(value: str, kind: pa.DataType) -> decimal.Decimal:
    if not _NUMBER.match(value) or len(value) > _MOST_DIGITS:
        raise UnfitError(f"{value!r:.80} does not fit {describe_type(kind)}")
    return decimal.Decimal(value)


def _decimal_text(value: str, encoding: Encoding, kind: pa.DataType) -> decimal.Decimal:
    """Read text of a decimal column where no schema says what it is."""
    is_base64 = bool(value) and len(value) % 4 == 0 and bool(_BASE64.match(value))
    if encoding.decimals == "base64" or (encoding.decimals is None and is_base64 and not _NUMBER.match(value)):
        return unscaled(from_base64(value), encoding.scale or 0)
    if encoding.decimals is None and is_base64:
        raise UnfitError(
            f"{value!r} may be a number, or the base64 of one, and the message has no schema; say which with "
            "--decimals text or --decimals base64"
        )
    return _plain_number(value, kind)


def _decimal(number: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal:
    scaled = number.scaleb(kind.scale, _MOST_DECIMALS)
    if not number.is_finite() or scaled != scaled.to_integral_value(context=_MOST_DECIMALS):
        raise UnfitError(f"{number!s:.80} does not fit {describe_type(kind)} exactly")
    if abs(scaled) >= 10**kind.precision:
        raise UnfitError(f"{number!s:.80} does not fit {describe_type(kind)}")
    # Without zeros at its end, of which Arrow takes a few only.
    return decimal.Decimal(int(scaled)).scaleb(-kind.scale, _MOST_DECIMALS)


def _date(value: Any, encoding: Encoding) -> int:
    if isinstance(value, str) and encoding.name in ("iso", "text", "date"):
        try:
            text = value.removesuffix("Z")
            return (datetime.date.fromisoformat(text) - _EPOCH.date()).days
        except ValueError:
            raise UnfitError(f"{value!r:.80} is not a date") from None
    if encoding.name == "date" and _is_integer(value) and abs(value) < 1 << 31:
        return int(value)
    raise _unfit(value, encoding, pa.date32())


def _time(value: Any, encoding: Encoding) -> int:
    if isinstance(value, str) and encoding.name in ("iso", "text", "time"):
        found = _microseconds_of_text("1970-01-01T" + value, value)
    else:
        found = _microseconds(value, encoding, "time")
    if not 0 <= found < _DAY_MICROSECONDS:
        raise UnfitError(f"{value!r:.80} is not within one day, so it does not fit time; make the column a duration")
    return found


def _timestamp(value: Any, encoding: Encoding, kind: pa.DataType) -> int:
    if isinstance(value, str) and encoding.name in ("iso", "text", "timestamp"):
        if kind.tz is not None and not _has_zone(value):
            raise UnfitError(f"{value!r:.80} has no time zone; give the table's column the type timestamp")
        if kind.tz is None and encoding.name != "iso" and _has_zone(value) and not value.endswith("Z"):
            raise UnfitError(f"{value!r:.80} has a time zone; give the table's column the type timestamp_utc")
        return _microseconds_of_text(value, value)
    return _microseconds(value, encoding, "timestamp")


def _has_zone(value: str) -> bool:
    return bool(re.search(r"(Z|[+-]\d{2}(:?\d{2})?)\Z", value)) and ":" in value


def _microseconds_of_text(text: str, shown: str) -> int:
    try:
        fraction = re.search(r"\.(\d+)", text)
        if fraction and len(fraction[1]) > 6 and fraction[1][6:].strip("0"):
            raise UnfitError(f"{shown!r:.80} has more digits than microseconds")
        if HOUR_24.search(text):
            raise UnfitError(f"{shown!r:.80} is not a time")
        when = datetime.datetime.fromisoformat(text)
        when = when.astimezone(datetime.UTC).replace(tzinfo=None) if when.tzinfo is not None else when
        return (when - _EPOCH) // datetime.timedelta(microseconds=1)
    except (ValueError, OverflowError) as error:
        raise error if isinstance(error, UnfitError) else UnfitError(f"{shown!r:.80} is not a time") from None


def _microseconds(value: Any, encoding: Encoding, what: str) -> int:
    if not _is_integer(value) or encoding.name not in ("time", "timestamp", "duration"):
        raise _unfit(value, encoding, pa.timestamp("us"))
    unit = encoding.unit or surest_unit(value, what)
    if unit is None:
        raise UnfitError(
            f"{value} may count milliseconds or microseconds, and the message has no schema; say which with "
            "--times ms or --times us, or for one column, --times COLUMN=ms"
        )
    multiply, divide = _PER_MICROSECOND[unit]
    found, rest = divmod(value * multiply, divide)
    if rest:
        raise UnfitError(f"{value} nanoseconds are not whole microseconds, which is what tables hold")
    if abs(found) >= 1 << 63:
        raise UnfitError(f"{value} is beyond what a column of times holds")
    return int(found)


def surest_unit(value: int, what: str) -> str | None:
    """Return the one unit in which an integer makes sense, where no schema tells; None where several do."""
    if value == 0:
        return "us"
    if what == "timestamp":
        return None if abs(value) < _SURELY_FINER else "us" if abs(value) < _SURELY_FINER * 1000 else None
    if what == "time" and value > 0:
        in_a_day = [unit for unit, most in (("ms", 86_400_000), ("us", _DAY_MICROSECONDS)) if value < most]
        return in_a_day[0] if in_a_day == ["us"] else None
    return None


def _list(value: Any, encoding: Encoding, kind: pa.DataType) -> list[Any]:
    if not isinstance(value, list) or not pa.types.is_list(kind) or encoding.item is None:
        raise _unfit(value, encoding, kind)
    return [value_of(each, encoding.item, kind.value_type) for each in value]


def _struct(value: Any, encoding: Encoding, kind: pa.DataType) -> dict[str, Any]:
    if not isinstance(value, dict) or not pa.types.is_struct(kind):
        raise _unfit(value, encoding, kind)
    encodings = dict(encoding.fields)
    unknown = [name for name, each in value.items() if each is not None and kind.get_field_index(name) < 0]
    if unknown:
        raise UnfitError(f"field {unknown[0]!r} is not among those of {describe_type(kind)}")
    return {
        each.name: value_of(value.get(each.name), encodings[each.name], each.type)
        for each in kind
        if each.name in encodings
    }


def _map(value: Any, encoding: Encoding, kind: pa.DataType) -> list[tuple[str, Any]]:
    if not isinstance(value, dict) or not pa.types.is_map(kind) or encoding.item is None:
        raise _unfit(value, encoding, kind)
    return [(name, value_of(each, encoding.item, kind.item_type)) for name, each in value.items()]
