"""What a data file is to its readers: a name, bytes that can be read again and again, columns and rows."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Protocol, cast

import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.objects import open_objects

Compression = Literal["gzip", "bz2", "zstd"]
Looked = Callable[[int], None]


class InputFile(Protocol):
    """One file; it can be read several times."""

    name: str

    def schema(self, known: pa.Schema, looked: Looked) -> pa.Schema:
        """Return the file's columns, those that `known` has with its types where the file has none of its own.

        A column without any value has the null type. `looked` is told of rows as they are looked at.
        """

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows with the columns of `schema`, which `schema()` gave."""


class Place(NamedTuple):
    """Where bytes come from; `name` is what people call it."""

    name: str
    path: str
    compression: Compression | None

    @contextlib.contextmanager
    def opened(self) -> Iterator[pa.NativeFile]:
        """Open from the start, unpacked."""
        with reading(self.name):
            if "://" in self.path:
                folder, _, name = self.path.rpartition("/")
                raw: Any = pa.PythonFile(cast("Any", open_objects(folder).open_reader(name)), mode="r")
            else:
                raw = pa.OSFile(self.path, "rb")
            with raw, pa.CompressedInputStream(raw, self.compression) if self.compression else raw as stream:
                yield stream


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what Arrow and the system say about a file into errors of ours that name it."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"{name}: cannot be read: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise InvalidInputError(f"{name}: {error}") from error
