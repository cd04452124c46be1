"""Entries to JSON lines and back, byte for byte as Spark writes them."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, Generic, TypeVar, cast, get_type_hints

import orjson

from siltstone.errors import InvalidInputError
from siltstone.log.wire import check_objects

E = TypeVar("E")
R = TypeVar("R", bound=tuple[Any, ...])

DECODING_ERRORS = (ValueError, TypeError, LookupError)

_ESCAPE = re.compile(rb"\\(?:u(00[01][0-9a-f])|.)")


class Codec(Generic[E]):
    """How one kind of entry is written as a line of JSON: here, as any JSON value; subclass for another kind.

    Decoding raises one of DECODING_ERRORS for what is not such an entry; whoever knows the file makes it an error of ours.
    """

    has_objects: ClassVar[bool] = False
    """Whether every entry is a JSON object, so that each line is braced."""

    def encode(self, entry: E) -> bytes:
        """Return the entry as one line, keys in the order they have. Raises: InvalidInputError."""
        return dumps(entry)

    def decode(self, line: bytes) -> E:
        """Return the entry that a line states."""
        entry: E = orjson.loads(line)
        return entry

    def decode_block(self, block: bytes) -> list[E]:
        """Return the entries of a block; override where many at once are cheaper than one by one."""
        return list(map(self.decode, block.split(b"\n")))

    def check_block(self, block: bytes, *, edges_only: bool = False) -> None:
        """Raise ValueError if a block that is copied unparsed cannot be whole entries."""
        if self.has_objects:
            check_objects(block, edges_only=edges_only)
        elif not block or block.startswith(b"\n") or block.endswith(b"\n") or b"\n\n" in block:
            raise ValueError("a line is blank")


class JsonCodec(Codec[object]):
    """Entries that are any JSON value."""


class ObjectCodec(Codec[dict[str, object]]):
    """Entries that are JSON objects with any keys."""

    has_objects = True

    def decode(self, line: bytes) -> dict[str, object]:
        """Return the parsed object."""
        entry = super().decode(line)
        if type(entry) is not dict:
            raise TypeError("an entry must be a JSON object")
        return entry


class RecordCodec(Codec[R]):
    """Entries that are named tuples; `fields` are what JSON calls theirs. Unknown ones are dropped when read.

    Integers have 64 bits, those named in `short` 32. A field given twice is damage, as it is for Spark.
    """

    has_objects = True

    def __init__(self, record: type[R], fields: Sequence[str], *, short: Iterable[str] = ()) -> None:
        self.fields = tuple(fields)
        self._types: tuple[type, ...] = tuple(get_type_hints(record).values())
        self._limits = tuple(1 << (31 if name in short else 63) for name in self.fields)
        self._values = cast("Callable[[object], tuple[Any, ...]]", itemgetter(*self.fields))
        self._make = cast("Callable[[tuple[Any, ...]], R]", partial(tuple.__new__, record))

    def encode(self, entry: R) -> bytes:
        """Return compact JSON, fields in order."""
        try:
            self._check_types([entry])
        except (TypeError, ValueError) as error:
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
        if not _has_pairs(block, sum(map(len, parsed))):
            self._check_repetitions(block)
        return records

    def is_plain(self, block: bytes) -> bool:
        """Return whether each line is text with this codec's fields and no others, provided that each has all of them."""
        newlines = block.count(b"\n")
        # Arrow's reader of JSON crashes on a null before the first object.
        if not block.startswith(b"{") or block.count(b"\n{") != newlines:
            return False
        if not _has_pairs(block, len(self.fields) * (newlines + 1)):
            return False
        try:
            return block.isascii() or bool(block.decode())
        except UnicodeDecodeError:
            return False

    def _check_repetitions(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            names = [name for name, _ in json.loads(line, object_pairs_hook=list)]
            for field in self.fields:
                if names.count(field) > 1:
                    raise ValueError(f"{field} is given {names.count(field)} times")

    def _check_types(self, records: Iterable[R]) -> None:
        columns = zip(*records, strict=True)
        for name, expected, limit, column in zip(self.fields, self._types, self._limits, columns, strict=True):
            kinds = set(map(type, column))
            if kinds != {expected}:
                wrong = next(kind for kind in kinds if kind is not expected)
                raise TypeError(f"{name} must be {expected.__name__}, not {wrong.__name__}")
            if expected is int and not (-limit <= min(column) and max(column) < limit):
                raise ValueError(f"{name} must be from {-limit} to {limit - 1}")


def _has_pairs(block: bytes, count: int) -> bool:
    """Return whether a block of JSON objects surely has no more than `count` names with a value, at any depth.

    A name ends with a quote and a colon, unless there is a blank between them; what a text holds only adds to them.
    """
    return block.count(b'":') == count and b'" ' not in block and b'"\t' not in block


def dumps(entry: object) -> bytes:
    """Return compact JSON as Jackson writes it, that is, control characters in capitals. Raises: InvalidInputError."""
    try:
        line = orjson.dumps(entry)
    except TypeError as error:
        raise InvalidInputError(f"entry {entry!r:.200} cannot be written as JSON: {error}") from error
    if b"\\u00" in line:
        line = _ESCAPE.sub(lambda match: match[0] if match[1] is None else b"\\u" + match[1].upper(), line)
    return line
