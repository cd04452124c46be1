"""Values that people type, read as the type of a column."""

import datetime
import re
from typing import Any

import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model.schema import describe_type

_TRUTHS = {"true": True, "false": False}
_INTEGER = re.compile(r"[+-]?[0-9]+")


def parse_literal(text: str, field: "pa.Field[Any]") -> "pa.Scalar[Any]":
    """Read a value as the type of a column; times without a zone are in UTC. Raises: InvalidInputError."""
    try:
        return pa.scalar(_value(text, field.type), field.type)
    except (ValueError, ArithmeticError, OverflowError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"column {field.name!r}: {text!r} is not of its type, {describe_type(field.type)}"
        ) from error


def _value(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return _TRUTHS[text.lower()] if text.lower() in _TRUTHS else _refuse(text)
    if pa.types.is_integer(kind):
        return int(text) if _INTEGER.fullmatch(text) else _refuse(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(text)
    if pa.types.is_time(kind):
        return datetime.time.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        return _time(text, has_zone=kind.tz is not None)
    if pa.types.is_decimal(kind):
        return pa.scalar(text).cast(kind).as_py()
    return _refuse(text)


def _time(text: str, *, has_zone: bool) -> datetime.datetime:
    time = datetime.datetime.fromisoformat(text)
    if has_zone:
        return time.replace(tzinfo=time.tzinfo or datetime.UTC)
    return time if time.tzinfo is None else _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)
