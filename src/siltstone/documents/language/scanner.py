"""Reading tokens and plain JSON values out of text."""

import math
import re
from collections.abc import Callable, Container
from typing import Final, NoReturn, TypeVar

import orjson

from siltstone.documents.language.values import (
    CONTAINERS,
    MAX_DEPTH,
    MAX_INTEGER,
    MIN_INTEGER,
    UNDEFINED,
    Json,
    Value,
    string_text,
)
from siltstone.errors import InvalidInputError

_Item = TypeVar("_Item")
_BLANKS: Final = re.compile(r"[\x00-\x20]*")
_STRING: Final = re.compile(r'[\x00-\x20]*"([^"\\\x00-\x1f]*)"')
_KEY: Final = re.compile(r'[\x00-\x20]*"([^"\\\x00-\x1f]*)"[\x00-\x20]*:')
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")
_TOKEN: Final = re.compile(r'[\x00-\x20]*([^\x00-\x20,:\]})>/\\"\[{(<;=#?]+)')
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}
# An integer of more digits does not fit into 64 bits, and Python refuses to convert very long ones.
_INTEGER_DIGITS: Final = 20
_SHOWN: Final = 24
# Less text than this has no room for too many brackets.
_DEEP_CHARACTERS: Final = 2 * MAX_DEPTH
_MAX_LEVELS_TRIED: Final = 2000


def read_plain(text: str) -> Value:
    """Read JSON by orjson; return UNDEFINED where the parser has to read it."""
    try:
        value: Json = orjson.loads(text)
    except orjson.JSONDecodeError:
        return UNDEFINED
    around = value
    if len(text) > _DEEP_CHARACTERS:
        for _ in range(_SPARE_LEVELS):
            around = [around]
    try:
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


def _fits(value: Json, levels: int = MAX_DEPTH) -> bool:
    """Look at all members: whether they are not too deep, and integers not too large."""
    if not isinstance(value, CONTAINERS):
        return type(value) is not int or value <= MAX_INTEGER
    if not levels:
        return False
    for member in value.values() if isinstance(value, dict) else value:  # noqa: SIM110, a generator doubles the frames
        if not _fits(member, levels - 1):
            return False
    return True


def _writable_levels() -> int:
    """Find out how many levels orjson writes."""
    value: Json = []
    for levels in range(1, _MAX_LEVELS_TRIED):
        try:
            orjson.dumps(value)
        except orjson.JSONEncodeError:
            return levels - 1
        value = [value]
    raise AssertionError("this orjson writes values of any depth, so that deep ones go unnoticed")


_SPARE_LEVELS: Final = _writable_levels() - MAX_DEPTH


class Scanner:
    """A position in a text that moves forward. `what` names the text in errors."""

    def __init__(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise InvalidInputError(f"a {what} is text, not {type(text).__name__}")
        self.text = text
        self.what = what
        self.position = 0
        self.depth = 0
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                self.fail("text without halves of surrogate pairs", at=error.start)

    def fail(self, expected: str, at: int | None = None, found: str | None = None) -> NoReturn:
        """Refuse the text for what should be at a position, by default the present one. Raises: InvalidInputError."""
        position = self.position if at is None else at
        found = found or self.text[position : position + 1]
        found = _visible(found[:_SHOWN]) if found else "the end"
        self.reject(f"expected {expected}, found {found}", position)

    def reject(self, reason: str, position: int) -> NoReturn:
        """Refuse the text for what is wrong at a position, and show what is around it. Raises: InvalidInputError."""
        text = self.text
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        before, after = text[max(0, position - _SHOWN) : position], text[position : position + _SHOWN]
        start, end = "…" * (position > _SHOWN), "…" * (position + _SHOWN < len(text))
        around = f"{start}{_visible(before)}<HERE>{_visible(after)}{end}"
        raise InvalidInputError(f"{self.what}, line {line}, column {column}: {reason} in {around}")

    def peek(self) -> str:
        """Skip blanks; return the next character without taking it, "" at the end."""
        character = self.text[self.position : self.position + 1]
        if character > " ":
            return character
        match = _BLANKS.match(self.text, self.position)
        assert match is not None
        self.position = match.end()
        return self.text[self.position : self.position + 1]

    def take(self, character: str, expected: str | None = None) -> None:
        """Skip blanks and take this character."""
        if self.peek() != character:
            self.fail(expected or f"'{character}'")
        self.position += 1

    def more(self, close: str) -> bool:
        """Take a comma, then there is more, or the closing bracket."""
        character = self.text[self.position : self.position + 1]
        if character != "," and character != close:
            character = self.peek()
            if character != "," and character != close:
                self.fail(f"',' or '{close}'")
        self.position += 1
        return character == ","

    def items(self, close: str, take: Callable[[], _Item]) -> list[_Item]:
        """Take what is between commas, up to the closing bracket."""
        if self.peek() == close:
            self.position += 1
            return []
        items = [take()]
        while self.more(close):
            items.append(take())
        return items

    def enter(self) -> None:
        """Go one level deeper, not too deep."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} levels of nesting")

    def end(self) -> None:
        """Make sure that nothing follows."""
        if self.peek():
            self.fail("nothing more")

    def token(self) -> str:
        """Skip blanks and take a word or number, "" where none is."""
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            self.peek()
            return ""
        self.position = match.end()
        return match[1]

    def string(self, expected: str = "a string in double quotes") -> str:
        """Skip blanks and take a string."""
        match = _STRING.match(self.text, self.position)
        if match is not None:
            self.position = match.end()
            return match[1]
        if self.peek() != '"':
            self.fail(expected)
        return self._escaped_string()

    def value(self, expected: str = "a JSON value") -> Json:
        """Skip blanks and take a JSON value."""
        character = self.peek()
        if character == '"':
            return self.string()
        if character == "[":
            return self.array()
        if character == "{":
            return self._object()
        return self.scalar(self.token(), expected)

    def array(self) -> list[Json]:
        """Take a JSON array, whose bracket was seen."""
        self.enter()
        self.position += 1
        values: list[Json] = []
        more = self.peek() != "]"
        self.position += not more
        while more:
            values.append(self.value())
            more = self.more("]")
        self.depth -= 1
        return values

    def scalar(self, token: str, expected: str) -> Json:
        """Return what a token stands for; it was taken just now."""
        if token in _WORDS:
            return _WORDS[token]
        start = self.position - len(token)
        match = _NUMBER.fullmatch(token)
        if match is None:
            self.fail(expected, at=start, found=token)
        if match[1] is None and match[2] is None and len(token) <= _INTEGER_DIGITS:
            integer = int(token)
            if MIN_INTEGER <= integer <= MAX_INTEGER:
                return integer
        number = float(token)
        if not math.isfinite(number):
            self.fail("a number that fits into 64 bits", at=start, found=token)
        return number

    def _object(self) -> dict[str, Json]:
        self.enter()
        self.position += 1
        values: dict[str, Json] = {}
        more = self.peek() != "}"
        self.position += not more
        while more:
            key = self.key(values)
            values[key] = self.value()
            more = self.more("}")
        self.depth -= 1
        return values

    def key(self, *seen: Container[object]) -> str:
        """Take a key that has not occurred yet, and the colon after it."""
        start = self.position
        match = _KEY.match(self.text, start)
        if match is not None:
            key = match[1]
            self.position = match.end()
        else:
            key = self.string("a key in double quotes")
            self.take(":")
        for keys in seen:
            if key in keys:
                self.reject(f"the key {string_text(key[:_SHOWN])} occurs twice", self.text.index('"', start))
        return key

    def _escaped_string(self) -> str:
        text = self.text
        start = self.position
        self.position += 1
        parts: list[str] = []
        while True:
            match = _PLAIN.match(text, self.position)
            if match is not None:
                parts.append(match[0])
                self.position = match.end()
            character = text[self.position : self.position + 1]
            if character == '"':
                self.position += 1
                return "".join(parts)
            if character == "\\":
                parts.append(self._escape())
            elif character:
                self.fail("a control character to be written as an escape")
            else:
                self.fail("a string that ends with a double quote", at=start)

    def _escape(self) -> str:
        character = self.text[self.position + 1 : self.position + 2]
        if character < " ":
            self.fail("a character after the backslash", at=self.position + 1)
        if character != "u":
            self.position += 2
            return _ESCAPES.get(character, character)
        code = self._code_unit()
        if not 0xD800 <= code < 0xE000:
            return chr(code)
        if code < 0xDC00 and self.text.startswith("\\u", self.position):
            low = self._code_unit()
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + low - 0xDC00)
            self.position -= 6
        return self.fail("both halves of a surrogate pair", at=self.position - 6)

    def _code_unit(self) -> int:
        match = _HEX.match(self.text, self.position + 2)
        if match is None:
            self.fail("four hexadecimal digits after \\u", at=self.position + 2)
        self.position = match.end()
        return int(match[0], 16)


def _visible(text: str) -> str:
    """Return text that can be shown within a line of UTF-8."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
