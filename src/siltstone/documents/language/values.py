"""What the language is made of: values of JSON, the intrinsic fields of a document, and expressions; their order and text."""

import enum
import math
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn, Protocol, TypeAlias, TypeVar, Union, dataclass_transform

import orjson

from siltstone.errors import InvalidInputError

Json: TypeAlias = Union[bool, int, float, str, list["Json"], dict[str, "Json"], None]  # noqa: UP007


class Undefined(enum.Enum):
    """The value of what is not there: different from null."""

    UNDEFINED = "undefined"

    def __repr__(self) -> str:
        return "UNDEFINED"


UNDEFINED: Final = Undefined.UNDEFINED
Value: TypeAlias = Union[Json, Undefined]  # noqa: UP007

MAX_DEPTH: Final = 200
MIN_INTEGER: Final = -(1 << 63)
MAX_INTEGER: Final = (1 << 63) - 1
CONTAINERS: Final = (dict, list)
_PLAIN: Final = frozenset({str, int, bool, type(None)})
# Deltas and conditions are data classes, which are not values.
_SORTED: Final = orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_FIXED_FROM: Final = 1e-3
_FIXED_BELOW: Final = 1e7
_Identity: TypeAlias = str | tuple[type, object] | None
_RANKS: Final = {type(None): 0, bool: 1, list: 2, dict: 3, int: 4, float: 4, str: 5}

ID: Final = "~id"
TABLE: Final = "~table"
VERSION: Final = "~version"
SIGNATURE: Final = "~signature"
DELETED: Final = "~deleted"
FIRST_UPDATE_AT: Final = "~firstUpdateAt"
LAST_UPDATE_AT: Final = "~lastUpdateAt"
LAST_MUTATE_AT: Final = "~lastMutateAt"
PLACEMENT: Final = "~placement"
TAGS: Final = "~tags"

# A version depends on which deltas have been seen so far, so no condition may rest on it.
ASKABLE: Final = (ID, TABLE, SIGNATURE, DELETED, FIRST_UPDATE_AT, LAST_UPDATE_AT, LAST_MUTATE_AT, PLACEMENT)
RESERVED: Final = frozenset({*ASKABLE, VERSION, TAGS})

_MASK: Final = 0xFFFFFFFF
_C = TypeVar("_C")


def value_text(value: object) -> str:
    """Write a JSON value: keys in order with `~` first, no blanks, characters as they are."""
    return (_plain_text(value) if _is_plain(value) else None) or _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{string_text(key)}:{_text(value[key])}" for key in ordered_keys(value)]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_text(member) for member in value]) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value) if isinstance(value, float) else str(value)


def string_text(text: str) -> str:
    """Write a string in quotes; only quotes, backslashes and control characters are escaped."""
    return f'"{_ESCAPED.sub(_escape, text)}"' if _ESCAPED.search(text) else f'"{text}"'


def number_text(number: float) -> str:
    """Write a double with the fewest digits that read back equal, in Java's form: `0.001`, `1.0E7`, `-3.5E-10`."""
    if number == 0 or _FIXED_FROM <= abs(number) < _FIXED_BELOW:
        return repr(number)
    mantissa, _, exponent = f"{number!r}".partition("e")
    sign, mantissa = ("-", mantissa[1:]) if number < 0 else ("", mantissa)
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    significant = digits.lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(digits) - len(significant))
    significant = significant.rstrip("0")
    return f"{sign}{significant[0]}.{significant[1:] or '0'}E{power}"


def ordered_keys(keys: dict[str, object] | list[str]) -> list[str]:
    """Return keys in order: those that start with `~` first, then by UTF-16 code units."""
    ordered = sorted(keys)
    if not "".join(ordered).isascii():
        ordered.sort(key=utf16)
    if any(key.startswith("~") for key in ordered):
        ordered.sort(key=lambda key: not key.startswith("~"))
    return ordered


def _is_plain(value: object) -> bool:
    """Return whether there is a map or list, and no double in it, which orjson writes in another form."""
    if not isinstance(value, CONTAINERS):
        return False
    members = value.values() if isinstance(value, dict) else value
    kinds = set(map(type, members))
    if kinds <= _PLAIN:
        return True
    if float in kinds:
        return False
    for member in members:  # noqa: SIM110, a generator doubles the frames of deep nesting
        if isinstance(member, CONTAINERS) and not _is_plain(member):
            return False
    return True


def _plain_text(value: object) -> str | None:
    """Let orjson write what it writes as we do: ASCII, no `~`, no controls that have no short escape."""
    written = orjson.dumps(value, option=_SORTED)
    if not written.isascii() or b"~" in written or b"\\u" in written:
        return None
    return written.decode("ascii")


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04X}"


def strictly_equal(one: Value, other: Value) -> bool:
    """Return whether two values are the same: 5 is not 5.0, true is not 1, -0.0 is not 0.0, keys have no order."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, float):
        return one != 0 or math.copysign(1, one) == math.copysign(1, other)  # type: ignore[arg-type]
    if isinstance(one, CONTAINERS):
        # Equal to Python; what is left are kinds of numbers and signs of zeros somewhere inside, which the text shows.
        return orjson.dumps(one, option=_SORTED) == orjson.dumps(other, option=_SORTED)
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
    members: dict[object, Json] = {}
    for value in values:
        members.setdefault(identity(value), value)
    return members


def in_order(values: Iterable[Json]) -> list[Json]:
    """Return the members of a set in their order."""
    members = list(values)
    if all(type(member) is str and member.isascii() for member in members):
        # Their code units are their characters.
        return sorted(members)  # type: ignore[type-var]
    return sorted(members, key=order_key)


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
            raise InvalidInputError(f"{value} is not a JSON number; use null or a string")
        return float(value)
    if isinstance(value, list | tuple):
        return [checked(member, depth + 1) for member in value]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInputError(f"{_shown(key)} is not a key of a map; use a string")
        return {_checked_string(key): checked(member, depth + 1) for key, member in value.items()}
    if isinstance(value, uuid.UUID):
        return str(value)
    raise InvalidInputError(f"{_shown(value)} is not a JSON value; use None, bool, int, float, str, list or dict")


def _checked_string(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{string_text(text[:40])}: character {error.start + 1} is half of a surrogate pair; use valid text"
        ) from error
    return str(text)


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:40] + "…"


class Intrinsics(Protocol):
    """A document as it was before the delta that asks."""

    def intrinsic(self, name: str) -> Json:
        """Return one of `ASKABLE`; times as ISO 8601 in milliseconds, null before the first delta."""

    def partition(self, count: int) -> int:
        """Return which of `count` partitions the document is in, from 1."""


def partition_of(table: str, key: str, count: int) -> int:
    """Return the partition, from 1 to `count`, that a document of this table and key belongs to."""
    unsigned = _murmur3((table + key).encode())
    signed = unsigned - (1 << 32) if unsigned >> 31 else unsigned
    return abs(signed) % count + 1


def _murmur3(data: bytes) -> int:
    """Return the 32-bit MurmurHash3 with seed 0."""
    state = 0
    for start in range(0, len(data), 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & _MASK
        state ^= _rotated(word, 15) * 0x1B873593 & _MASK
        if start + 4 <= len(data):
            state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


class Expression:
    """A condition or a delta: immutable, and made already simplified.

    The text is canonical, but for the order of conditions inside `and(…)` and `or(…)`, which stays as it was written.
    Two of a kind are equal if their texts are, whatever that order.
    """

    __slots__ = ()
    _noun: ClassVar[str]

    def _text(self, is_sorted: bool) -> str:
        """Return the text; sorted, what is inside `and(…)` and `or(…)` is in one order: the same for equal ones."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __str__(self) -> str:
        return self._text(False)

    def __repr__(self) -> str:
        return f"<{self._noun} {self}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._noun == other._noun and self._text(True) == other._text(True)

    def __hash__(self) -> int:
        return hash(self._text(True))


@dataclass_transform(eq_default=False, frozen_default=True)
def immutable(cls: type[_C]) -> type[_C]:
    """Make a dataclass of a kind of expression, with slots; it is equal, printed and kept from changes as its base says."""
    made = dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)
    made.__setattr__ = Expression.__setattr__  # type: ignore[assignment, method-assign]
    return made
