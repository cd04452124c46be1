"""Values of formats without encodings of their own: numbers, and text that reads as a column's type does."""

import binascii
import datetime
import decimal
import math
import re
from collections.abc import Callable
from typing import Any, Literal

import orjson
import pyarrow as pa

from siltstone.cdc.changes import Options
from siltstone.cdc.encodings import encoding_of_type
from siltstone.cdc.event_values import NUMBER_SHAPE, InexactNumberError, UnfitError, from_base64, value_of
from siltstone.model.schema import describe_type

BinaryText = Literal["base64", "latin-1", "hex"]
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}\Z")
_NUMBER = re.compile(NUMBER_SHAPE.removesuffix("$") + r"\Z")
_TRUTHS = {"1": True, "true": True, "t": True, "0": False, "false": False, "f": False}
_DURATION = re.compile(r"(-?)(\d+):(\d{2}):(\d{2})(?:\.(\d{1,6}))?\Z")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}


def plain_value(value: Any, kind: pa.DataType, binary: BinaryText) -> Any:
    """Return a value as `pa.array` takes it for a type; `binary` is how bytes are written. Raises: UnfitError."""
    if value is None:
        return None
    types = pa.types
    for check, read in _READERS:
        if check(kind):
            return read(value, kind)
    if types.is_binary(kind):
        return _bytes(value, binary)
    return value_of(value, encoding_of_type(kind, "", Options()), kind)


def _unfit(value: Any, kind: pa.DataType) -> UnfitError:
    return UnfitError(f"{value!r:.80} does not fit {describe_type(kind)}")


def _decimal(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, float):
        raise InexactNumberError(f"{value!r} may have more digits than were read")
    encoding = encoding_of_type(kind, "", Options(decimals="text"))
    return value_of(value.strip() if isinstance(value, str) else value, encoding, kind)


def _integer(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, str) and _INTEGER.match(value.strip()):
        value = int(value)
    if isinstance(value, decimal.Decimal) and value == value.to_integral_value():
        value = int(value)
    limit = 1 << (kind.bit_width - 1)
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise _unfit(value, kind)
    return value


def _float(value: Any, kind: pa.DataType) -> float:
    if isinstance(value, str) and value.strip().lower() in _NOT_FINITE:
        return _NOT_FINITE[value.strip().lower()]
    if isinstance(value, str) and _NUMBER.match(value.strip()):
        return float(value)
    if isinstance(value, float | decimal.Decimal) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 1 << 53
    ):
        return float(value)
    raise _unfit(value, kind)


def _boolean(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, bool):
        return value
    if (isinstance(value, int) and value in (0, 1)) or (isinstance(value, str) and value.lower() in _TRUTHS):
        return _TRUTHS[str(value).lower()]
    raise _unfit(value, kind)


def _text(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, dict | list):
        # A column of JSON, whose text the source took apart.
        return orjson.dumps(value, default=_plain_number).decode()
    if not isinstance(value, str):
        raise _unfit(value, kind)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UnfitError(f"{value!r:.80} is not valid text") from None
    return value


def _plain_number(value: Any) -> float:
    if isinstance(value, decimal.Decimal) and decimal.Decimal(repr(float(value))) == value:
        return float(value)
    raise UnfitError(f"{value} has more digits than a JSON number is safe with")


def _bytes(value: Any, binary: BinaryText) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _unfit(value, pa.binary())
    try:
        if binary == "latin-1":
            return value.encode("latin-1")
        return from_base64(value) if binary == "base64" else binascii.unhexlify(value.removeprefix("0x"))
    except (UnicodeEncodeError, binascii.Error):
        raise UnfitError(f"{value!r:.80} is not bytes written as {binary}") from None


def _moment(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return _native_moment(value, kind)
    if not isinstance(value, str):
        raise _unfit(value, kind)
    text = value.strip()
    if pa.types.is_timestamp(kind):
        if len(text) == len("2024-01-02"):
            text += "T00:00:00"
        text = re.sub(r"\A(\d{4}-\d{2}-\d{2}) ", r"\1T", text)
    return value_of(text, encoding_of_type(kind, "", Options()), kind)


def _native_moment(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if isinstance(value, datetime.datetime):
        has_zone = value.tzinfo is not None
        if types.is_date(kind) and not has_zone and value.time() == datetime.time():
            return value.date()
        if types.is_timestamp(kind) and has_zone == (kind.tz is not None):
            return value
        raise _unfit(value, kind)
    fits = types.is_date(kind) if isinstance(value, datetime.date) else types.is_time(kind)
    if not fits:
        raise _unfit(value, kind)
    return value


def _duration(value: Any, kind: pa.DataType) -> Any:
    found = _DURATION.match(value) if isinstance(value, str) else None
    if isinstance(value, datetime.timedelta):
        return value
    if found is None:
        raise _unfit(value, kind)
    sign, hours, minutes, seconds, fraction = found.groups()
    total = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 10**6 + int((fraction or "").ljust(6, "0"))
    return -total if sign else total


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...] = (
    (pa.types.is_decimal, _decimal),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_string, _text),
    (pa.types.is_date, _moment),
    (pa.types.is_time, _moment),
    (pa.types.is_timestamp, _moment),
    (pa.types.is_duration, _duration),
)
