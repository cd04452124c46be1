"""Reading plain JSON by orjson, where that cannot differ from the grammar.

orjson accepts part of what the grammar does, and reads it alike but for three things: it lets the last of equal keys win, has
unsigned integers of 64 bits where the grammar goes on with doubles, and allows deeper nesting. Writing the value again,
which takes a fraction of the time, shows all three: a dropped key has taken its colon along, and orjson refuses to write
integers of more than 53 bits, or values that are too deep, which they are for it after some more levels around them.
"""

from typing import Final

import orjson

from siltstone.documents.language.values import CONTAINERS, MAX_DEPTH, MAX_INTEGER, UNDEFINED, Json, Value

# Less text than this has no room for too many brackets.
_DEEP_CHARACTERS: Final = 2 * MAX_DEPTH
_MAX_LEVELS_TRIED: Final = 2000


def read_plain(text: str) -> Value:
    """Read JSON by orjson; return UNDEFINED where the grammar has to look."""
    try:
        value: Json = orjson.loads(text)
    except orjson.JSONDecodeError:
        return UNDEFINED
    try:
        around = value if len(text) <= _DEEP_CHARACTERS else _surrounded(value)
        written = orjson.dumps(around, option=orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError:
        if not _fits(value):
            return UNDEFINED
        written = orjson.dumps(value)
    colons = text.count(":")
    if not colons or (type(value) is dict and len(value) == colons):
        return value
    # An escape can be a colon too.
    if written.count(b":") != colons or ("\\" in text and "\\u003" in text):
        return UNDEFINED
    return value


def _surrounded(value: Json) -> Json:
    for _ in range(_SPARE_LEVELS):
        value = [value]
    return value


def _fits(value: Json) -> bool:
    """Look at all members: whether they are not too deep, and integers not too large."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Json] = []
        for each in level:
            if type(each) is dict:
                inner.extend(each.values())
            elif type(each) is list:
                inner.extend(each)
            elif type(each) is int and each > MAX_INTEGER:
                return False
        if not inner:
            return True
        level = inner
    return not any(isinstance(each, CONTAINERS) or (type(each) is int and each > MAX_INTEGER) for each in level)


def _writable_levels() -> int:
    """Find out how many levels orjson writes."""
    value: Json = []
    for levels in range(1, _MAX_LEVELS_TRIED):
        try:
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            return levels - 1
        value = [value]
    raise AssertionError("this orjson writes values of any depth, so that it does not tell the deep ones")


_SPARE_LEVELS: Final = _writable_levels() - MAX_DEPTH
