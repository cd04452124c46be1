"""Entries to JSON lines and back, byte for byte as Spark writes them."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

import orjson

from siltstone.errors import InvalidInputError
from siltstone.log.wire import check_lines, check_objects

E = TypeVar("E")
R = TypeVar("R", bound=tuple[Any, ...])

DECODING_ERRORS = (ValueError, TypeError, LookupError)

_ESCAPE = re.compile(rb"\\(?:u00[01][0-9a-f]|.)")


class Codec(Generic[E]):
    """How one kind of entry is written as a line of JSON; subclass for another kind.

    Decoding raises one of DECODING_ERRORS for what is no such entry; whoever knows the file makes it an error of ours.
    """

    def encode(self, entry: E) -> bytes:
        """Return the entry as one line. Raises: InvalidInputError."""
        raise NotImplementedError

    def decode(self, line: bytes) -> E:
        """Return the entry that a line states."""
        raise NotImplementedError

    def decode_block(self, block: bytes) -> list[E]:
        """Return the entries of a block; override where many at once are cheaper than one by one."""
        return list(map(self.decode, block.split(b"\n")))

    def check_block(self, block: bytes, *, edges_only: bool = False) -> None:
        """Look over a block that is copied unparsed; raise ValueError where it cannot be whole entries."""
        check_lines(block)


class JsonCodec(Codec[object]):
    """Entries that are any JSON value."""

    def encode(self, entry: object) -> bytes:
        """Return compact JSON."""
        return dumps(entry)

    def decode(self, line: bytes) -> object:
        """Return the parsed value."""
        return orjson.loads(line)


class ObjectCodec(Codec[dict[str, object]]):
    """Entries that are JSON objects with any keys."""

    def encode(self, entry: dict[str, object]) -> bytes:
        """Return compact JSON, keys in the order they have."""
        return dumps(entry)

    def decode(self, line: bytes) -> dict[str, object]:
        """Return the parsed object."""
        entry = orjson.loads(line)
        if type(entry) is not dict:
            raise TypeError("an entry must be a JSON object")
        return cast("dict[str, object]", entry)

    def check_block(self, block: bytes, *, edges_only: bool = False) -> None:
        """Check that lines are braced."""
        check_objects(block, edges_only=edges_only)


class RecordCodec(Codec[R]):
    """Entries that are named tuples; fields are written in order, unknown ones are dropped when read."""

    def __init__(self, record: type[R], types: Mapping[str, type]) -> None:
        self.fields = tuple(types)
        self._types = tuple(types.values())
        self._values = cast("Callable[[object], tuple[Any, ...]]", itemgetter(*self.fields))
        self._make = cast("Callable[[tuple[Any, ...]], R]", partial(tuple.__new__, record))

    def encode(self, entry: R) -> bytes:
        """Return compact JSON, fields in order."""
        try:
            self._check_types([entry])
        except TypeError as error:
            raise InvalidInputError(f"entry {entry!r:.200} cannot be written: {error}") from error
        return dumps(dict(zip(self.fields, entry, strict=True)))

    def decode(self, line: bytes) -> R:
        """Return the record of one line."""
        return self.decode_block(line)[0]

    def decode_block(self, block: bytes) -> list[R]:
        """Parse all lines as one array, which takes half the time of one by one."""
        parsed = orjson.loads(b"[" + block.replace(b"\n", b",") + b"]")
        if len(parsed) != block.count(b"\n") + 1:
            raise ValueError("a line must be one entry")
        records = list(map(self._make, map(self._values, parsed)))
        self._check_types(records)
        return records

    def check_block(self, block: bytes, *, edges_only: bool = False) -> None:
        """Check that lines are braced."""
        check_objects(block, edges_only=edges_only)

    def _check_types(self, records: Iterable[R]) -> None:
        for name, expected, column in zip(self.fields, self._types, zip(*records, strict=True), strict=True):
            found = set(map(type, column))
            if found != {expected}:
                wrong = next(kind for kind in found if kind is not expected)
                raise TypeError(f"{name} must be {expected.__name__}, not {wrong.__name__}")


def dumps(entry: object) -> bytes:
    """Return compact JSON as Jackson writes it: it spells control characters in capitals, orjson does not.

    Raises: InvalidInputError.
    """
    try:
        line = orjson.dumps(entry)
    except TypeError as error:
        raise InvalidInputError(f"entry {entry!r:.200} cannot be written as JSON: {error}") from error
    if b"\\u00" in line:
        line = _ESCAPE.sub(_with_capitals, line)
    return line


def _with_capitals(escape: re.Match[bytes]) -> bytes:
    text = escape.group()
    return b"\\u" + text[2:].upper() if text.startswith(b"\\u") else text
