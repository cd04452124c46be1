"""The values of documents: JSON plus "undefined", their strict equality and their order.

Values are shared, never copied: whoever got one from a delta or a document must not change it.
"""

import enum
import math
import uuid
from collections.abc import Iterable
from typing import Final, TypeAlias, Union

import orjson

from siltstone.documents.language.text import string_text, value_text
from siltstone.errors import InvalidInputError

Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]  # noqa: UP007

MAX_DEPTH: Final = 200
CONTAINERS: Final = (dict, list)
MIN_INTEGER: Final = -(1 << 63)
MAX_INTEGER: Final = (1 << 63) - 1


class Undefined(enum.Enum):
    """The value of what is not there: different from null."""

    UNDEFINED = "undefined"

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined.UNDEFINED
Value: TypeAlias = Union[Json, Undefined]  # noqa: UP007

_Identity: TypeAlias = str | tuple[type, object] | None
_RANKS: Final = {type(None): 0, bool: 1, list: 2, dict: 3, int: 4, float: 4, str: 5}


def strictly_equal(one: Value, other: Value) -> bool:
    """Tell whether two values are the same: 5 is not 5.0, true is not 1, -0.0 is not 0.0, keys have no order."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, float):
        return one != 0 or math.copysign(1, one) == math.copysign(1, other)  # type: ignore[arg-type]
    if isinstance(one, CONTAINERS):
        # Equal to Python; what is left are kinds of numbers and signs of zeros somewhere inside, which the text shows.
        sort = orjson.OPT_SORT_KEYS
        return orjson.dumps(one, option=sort) == orjson.dumps(other, option=sort)
    return True


def identity(value: Json) -> _Identity:
    """Return something to hash: equal for two values if and only if these are strictly equal."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return float, repr(value)
    if isinstance(value, CONTAINERS):
        return type(value), value_text(value)
    return type(value), value


def utf16(text: str) -> bytes:
    """Return what orders strings by UTF-16 code units."""
    return text.encode("utf-16-be")


def order_key(value: Json) -> tuple[int, object, object]:
    """Return what orders the members of a set: null, booleans, lists, maps, numbers, strings."""
    rank = _RANKS[type(value)]
    if isinstance(value, str):
        return rank, utf16(value), 0
    if isinstance(value, CONTAINERS):
        return rank, utf16(value_text(value)), 0
    if isinstance(value, float):
        # Where an integer and a double are equal, the integer comes first.
        return rank, number_order(value), 1
    return rank, number_order(value or 0), 0


def number_order(number: int | float) -> tuple[int | float, int]:
    """Return what orders numbers, exactly whatever their kinds: -0.0 comes before 0.0 and 0, which are equal."""
    return number, -1 if number == 0 and math.copysign(1, number) < 0 else 0


def distinct(values: Iterable[Json]) -> dict[object, Json]:
    """Return the values by identity, the first of equal ones."""
    found: dict[object, Json] = {}
    for value in values:
        found.setdefault(identity(value), value)
    return found


def in_order(values: Iterable[Json]) -> list[Json]:
    """Return the members of a set in their order."""
    return sorted(values, key=order_key)


def checked(value: object, depth: int = 0) -> Json:
    """Return a copy of a Python value that is a JSON value indeed. Raises: InvalidInputError.

    Tuples become lists, and UUIDs their text.
    """
    if depth > MAX_DEPTH:
        raise InvalidInputError(f"a value is nested deeper than {MAX_DEPTH} levels; store it flatter")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _checked_string(value)
    if isinstance(value, int):
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise InvalidInputError(f"{_shown(value)} does not fit into 64 bits; use a float or a string")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInputError(f"{value} is no JSON number; use null or a string")
        return float(value)
    if isinstance(value, list | tuple):
        return [checked(each, depth + 1) for each in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInputError(f"{_shown(key)} is no key of a map; keys are strings")
        return {_checked_string(key): checked(each, depth + 1) for key, each in value.items()}
    if isinstance(value, uuid.UUID):
        return str(value)
    raise InvalidInputError(f"{_shown(value)} is no JSON value; use None, bool, int, float, str, list or dict")


def _checked_string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{string_text(text[:40])}: character {error.start + 1} is half of a surrogate pair, which is no text"
        ) from error
    return str(text)


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:40] + "…"
