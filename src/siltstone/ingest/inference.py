"""Which type a column of text has, judged by all of its values, a batch at a time."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_INTEGER = r"^-?(0|[1-9][0-9]{0,17})$"
# More digits than a double holds are an identifier rather than a number, and so is what starts with a zero.
_NUMBER = r"^-?(0|[1-9][0-9]{0,14})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$|^-?(nan|NaN|inf|Infinity)$"
_TRUTH = r"^(true|false|True|False|TRUE|FALSE)$"
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"

_CANDIDATES: list[tuple[pa.DataType, str]] = [
    (pa.int64(), _INTEGER),
    (pa.float64(), _NUMBER),
    (pa.bool_(), _TRUTH),
    (pa.date32(), _DAY + "$"),
    (pa.timestamp("us"), _DAY),
    (pa.timestamp("us", tz="UTC"), _DAY),
]


class TextColumn:
    """What is known about a column of text so far; a type stays possible while every value converts to it."""

    def __init__(self, *, times_only: bool = False) -> None:
        self._possible = [
            candidate for candidate in _CANDIDATES if not times_only or pa.types.is_temporal(candidate[0])
        ]
        self._has_values = False

    def inspect(self, values: "pa.Array[Any] | pa.ChunkedArray[Any]") -> None:
        """Rule out the types that these values do not convert to."""
        present = values.drop_null()
        if not len(present):
            return
        self._has_values = True
        self._possible = [(kind, shape) for kind, shape in self._possible if _converts(present, kind, shape)]

    @property
    def type(self) -> pa.DataType | None:
        """The narrowest type that holds all values, text where no other does; None without any value."""
        if not self._has_values:
            return None
        return self._possible[0][0] if self._possible else pa.string()


def _converts(values: Any, kind: pa.DataType, shape: str) -> bool:
    if not pc.all(pc.match_substring_regex(values, shape)).as_py():
        return False
    if pa.types.is_temporal(kind):
        try:
            values.cast(kind)
        except pa.ArrowInvalid:
            return False
    return True
