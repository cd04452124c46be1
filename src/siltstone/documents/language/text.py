"""Canonical text of JSON values: one text for strictly equal values, and different texts for different ones."""

import re
from typing import Final

import orjson

_CONTAINERS: Final = (dict, list)
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_ESCAPES: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_FIXED_FROM: Final = 1e-3
_FIXED_BELOW: Final = 1e7


def value_text(value: object) -> str:
    """Write a JSON value: keys in order with `~` first, no blanks, characters as they are."""
    return (_plain_text(value) if _is_plain(value) else None) or _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{string_text(key)}:{_text(value[key])}" for key in ordered_keys(value)]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_text(each) for each in value]) + "]"
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
        ordered.sort(key=lambda key: key.encode("utf-16-be"))
    if any(key.startswith("~") for key in ordered):
        ordered.sort(key=lambda key: not key.startswith("~"))
    return ordered


def _is_plain(value: object) -> bool:
    """Tell whether there is a map or list, and no double in it, which orjson writes in another form."""
    if not isinstance(value, _CONTAINERS):
        return False
    members = value.values() if isinstance(value, dict) else value
    kinds = set(map(type, members))
    if kinds <= _PLAIN:
        return True
    if float in kinds:
        return False
    for each in members:  # noqa: SIM110, a generator doubles the frames of deep nesting
        if isinstance(each, _CONTAINERS) and not _is_plain(each):
            return False
    return True


def _plain_text(value: object) -> str | None:
    """Let orjson write what it writes as we do: ASCII, no `~`, no controls that have no short escape."""
    written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if not written.isascii() or b"~" in written or b"\\u" in written:
        return None
    return written.decode("ascii")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPES.get(character) or f"\\u{ord(character):04X}"
