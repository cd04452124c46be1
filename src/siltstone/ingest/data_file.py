"""What a data file is to its readers: a name, bytes that can be read again, columns and rows; and the types of columns of text."""

import bz2
import contextlib
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError
from siltstone.objects import open_objects

Compression = Literal["gzip", "bz2"]
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2"}
RowProgress = Callable[[int], None]

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


def compression_of(name: str) -> Compression | None:
    """Return how a file is compressed, by its name."""
    return _COMPRESSIONS.get(Path(name).suffix.lower())


class Location(NamedTuple):
    """Where bytes come from; `name` is for messages."""

    name: str
    path: str
    compression: Compression | None

    @contextlib.contextmanager
    def opened(self, follow: Callable[[IO[bytes]], None] = lambda raw: None) -> Iterator[IO[bytes]]:
        """Open from the start, unpacked; errors of Arrow and the system name the file. Raises: InvalidInputError.

        `follow` is given the file as it is stored.

        A Python file on purpose: Arrow's CSV reader reads ahead in a thread of its own, also after the file was
        closed. A file of Arrow's then goes on with the bare descriptor, which by that time may be another file's,
        and steals from it; a Python file refuses.
        """
        try:
            with self._raw() as raw:
                follow(raw)
                if self.compression is None:
                    yield raw
                else:
                    with gzip.open(raw) if self.compression == "gzip" else bz2.open(raw) as unpacked:
                        yield cast("IO[bytes]", unpacked)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidInputError(f"{self.name}: cannot be read: {reason}") from error
        except pa.ArrowException as error:
            raise InvalidInputError(f"{self.name}: {error}") from error

    def _raw(self) -> IO[bytes]:
        if "://" in self.path:
            folder, _, name = self.path.rpartition("/")
            return open_objects(folder).open_reader(name)
        return Path(self.path).open("rb")


class InputFile:
    """One file; it can be read several times."""

    def __init__(self, location: Location) -> None:
        self.name = location.name
        self.null_lines = 0
        """How many lines were null, and so not rows, when the rows were last read."""
        self.size = 0
        """How many bytes it has, as it is stored; 0 before it was opened for the first time."""
        self.row_count = 0
        """How many rows it has, as far as its schema told; 0 where it did not."""
        self._location = location
        self._raw: IO[bytes] | None = None

    @property
    def position(self) -> int:
        """How many of its bytes were read since it was opened last, about; all of them once it is closed."""
        if self._raw is None or self._raw.closed:
            return self.size
        try:
            # Of the descriptor: a thread of Arrow's may be reading, and the file's own count is not for two of them.
            return os.lseek(self._raw.fileno(), 0, os.SEEK_CUR)
        except OSError:
            return self._raw.tell()

    def _opened_bytes(self) -> AbstractContextManager[IO[bytes]]:
        """Open the file from the start, unpacked, and follow how far it is read."""
        return self._location.opened(self._follow)

    def _follow(self, raw: IO[bytes]) -> None:
        if raw.seekable():
            self.size = raw.seek(0, os.SEEK_END)
            raw.seek(0)
            self._raw = raw

    def schema(self, table_schema: pa.Schema, progress: RowProgress) -> pa.Schema:
        """Return the file's columns, those of the table with its types where the file has none of its own.

        A column without any value has the null type. `progress` gets the number of rows as they are read.
        """
        raise NotImplementedError

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows with the columns of `schema`, which `schema()` returned."""
        raise NotImplementedError


class TextColumn:
    """What is known about a column of text so far; a type stays possible while every value converts to it."""

    def __init__(self, *, times_only: bool = False) -> None:
        self._possible = [(kind, shape) for kind, shape in _CANDIDATES if not times_only or pa.types.is_temporal(kind)]
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
    try:
        if pa.types.is_temporal(kind):
            values.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
