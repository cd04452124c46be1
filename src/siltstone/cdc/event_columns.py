"""Whole columns of events: the type Arrow's JSON reader is to read them with, and their values as the table holds them.

What is here gives what `event_values` gives, value by value, or an error; then the slow way says which event is to blame.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.cdc.encodings import Encoding
from siltstone.cdc.event_values import NUMBER_SHAPE, UnfitError, surest_unit, value_of

Flags = npt.NDArray[np.bool_]
_TEXTS = ("text", "base64", "decimal", "iso")
_PLACEHOLDER_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"


def wire_type(encoding: Encoding, kind: pa.DataType, samples: Sequence[Any]) -> pa.DataType | None:
    """Return the type to read a column of JSON with, or None where only the slow way can; `samples` are some values."""
    has_text = any(isinstance(each, str) for each in samples)
    name = encoding.name
    if name == "list":
        inner = [each for sample in samples if isinstance(sample, list) for each in sample]
        item = None if encoding.item is None else wire_type(encoding.item, _item_type(kind), inner)
        return None if item is None else pa.list_(item)
    if name == "struct":
        return _wire_struct(encoding, kind, samples)
    if name in ("map", "variable_decimal"):
        return None if name == "map" else pa.struct([("scale", pa.int32()), ("value", pa.string())])
    if name == "plain_decimal":
        return pa.string() if has_text else kind
    if name in _TEXTS:
        return pa.string() if has_text or name != "decimal" or not any(each is not None for each in samples) else kind
    if name == "boolean":
        return pa.bool_()
    if name == "number":
        return pa.float64()
    return pa.string() if has_text else pa.int64()


def _item_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_list(kind) else kind


def _wire_struct(encoding: Encoding, kind: pa.DataType, samples: Sequence[Any]) -> pa.DataType | None:
    if not pa.types.is_struct(kind):
        return None
    fields = []
    for name, each in encoding.fields:
        index = kind.get_field_index(name)
        inner = [sample.get(name) for sample in samples if isinstance(sample, dict)]
        wire = None if index < 0 else wire_type(each, kind.field(index).type, inner)
        if wire is None:
            return None
        fields.append(pa.field(name, wire))
    return pa.struct(fields)


def array_of(wire: Any, encoding: Encoding, kind: pa.DataType) -> Any:
    """Return a column as the table holds it. Raises: UnfitError, pa.ArrowException."""
    if wire.type.equals(kind) and encoding.name in ("text", "boolean", "number", "plain_decimal"):
        return wire
    if wire.null_count == len(wire):
        return pa.nulls(len(wire), kind)
    name, types = encoding.name, pa.types
    if name == "integer" and types.is_integer(kind) and types.is_integer(wire.type):
        return wire.cast(kind)
    if name == "number" and types.is_floating(kind) and types.is_floating(wire.type):
        return wire.cast(kind, safe=False)
    if name == "base64" and types.is_binary(kind):
        return pa.array(
            [None if each is None else binascii.a2b_base64(each, strict_mode=True) for each in wire.to_pylist()], kind
        )
    if (
        types.is_decimal128(kind)
        and kind.scale == encoding.scale
        and types.is_string(wire.type)
        and _is_base64(wire, encoding)
    ):
        return _decimals(wire, kind)
    if name == "date" and types.is_date(kind) and types.is_integer(wire.type):
        return wire.cast(pa.int32()).cast(kind)
    if name in ("timestamp", "duration", "time") and types.is_integer(wire.type):
        return _times(wire, encoding, kind)
    if name in ("iso", "timestamp") and types.is_timestamp(kind) and kind.tz is not None and types.is_string(wire.type):
        return wire.cast(kind)
    if name == "list" and types.is_list(kind) and encoding.item is not None:
        values = array_of(wire.flatten(), encoding.item, kind.value_type)
        offsets = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(wire), 0).to_numpy())])
        mask = pc.is_null(wire) if wire.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind, mask=mask)
    return pa.array([value_of(each, encoding, kind) for each in wire.to_pylist()], kind)


def _is_base64(wire: Any, encoding: Encoding) -> bool:
    """Return whether text of decimals is base64 for certain; what may be a number as well is left to the slow way."""
    if encoding.name == "decimal" or encoding.decimals == "base64":
        return True
    is_plain = encoding.name == "plain_decimal" and encoding.decimals is None
    return is_plain and not pc.any(pc.match_substring_regex(wire, NUMBER_SHAPE)).as_py()


def _decimals(wire: Any, kind: pa.DataType) -> Any:
    limit = 10**kind.precision
    data = bytearray()
    nothing = bytes(16)
    for text in wire.to_pylist():
        if text is None:
            data += nothing
            continue
        found = binascii.a2b_base64(text, strict_mode=True)
        number = int.from_bytes(found, "big", signed=True)
        if not found or not -limit < number < limit:
            raise UnfitError(f"{text!r} does not fit")
        data += number.to_bytes(16, "little", signed=True)
    validity = pc.is_valid(wire).buffers()[1] if wire.null_count else None
    return pa.Array.from_buffers(kind, len(wire), [validity, pa.py_buffer(bytes(data))])


def _times(wire: Any, encoding: Encoding, kind: pa.DataType) -> Any:
    what = encoding.name
    unit: str | None = encoding.unit
    values = wire.cast(pa.int64())
    if unit is None:
        distinct = pc.min_max(values)
        least, most = distinct["min"].as_py(), distinct["max"].as_py()
        unit = surest_unit(least, what) if least == most or (least > 0) == (most > 0) else None
        if unit is None or surest_unit(most, what) != unit or least == 0:
            raise UnfitError("the unit is not certain")
    if what == "time":
        least, most = pc.min_max(values).as_py().values()
        per_day = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}[unit]
        if not pa.types.is_time(kind) or least < 0 or most >= per_day:
            raise UnfitError("not within a day")
    elif (what == "timestamp" and not pa.types.is_timestamp(kind)) or (
        what == "duration" and not pa.types.is_duration(kind)
    ):
        raise UnfitError("not a time")
    if unit == "ms":
        values = pc.multiply_checked(values, 1000)
    elif unit == "ns":
        if pc.any(pc.not_equal(pc.multiply(pc.divide(values, 1000), 1000), values)).as_py():
            raise UnfitError("not whole microseconds")
        values = pc.divide(values, 1000)
    return values.cast(kind)


class Placeholder:
    """What stands for a large value that did not change, in each of the forms that it takes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._base64 = base64.b64encode(text.encode()).decode()
        self._codes = list(text.encode())

    def is_value(self, value: Any) -> bool:
        """Return whether a JSON value is the placeholder."""
        if isinstance(value, str):
            return value in (self._text, self._base64)
        if isinstance(value, list) and value:
            return value == self._codes or value in ([self._text], [self._base64], [_PLACEHOLDER_UUID])
        return False

    def flags(self, wire: Any) -> Flags | None:
        """Flag the placeholders of a column as it was read; None without any."""
        if pa.types.is_string(wire.type):
            found = pc.is_in(wire, pa.array([self._text, self._base64]))
        elif pa.types.is_list(wire.type):
            lengths = pc.list_value_length(wire)
            found = pc.fill_null(pc.is_in(lengths, pa.array([1, len(self._codes)], lengths.type)), False)
            if pc.any(found).as_py():
                rows = np.flatnonzero(found.to_numpy(zero_copy_only=False))
                flags = np.zeros(len(wire), np.bool_)
                flags[[row for row in rows.tolist() if self.is_value(wire[row].as_py())]] = True
                return flags if flags.any() else None
        else:
            return None
        return found.to_numpy(zero_copy_only=False) if pc.any(found).as_py() else None
