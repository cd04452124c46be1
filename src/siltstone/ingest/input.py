"""Files as input: finding them, opening them, and choosing a reader by their format."""

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.errors import InvalidInputError
from siltstone.ingest.csv import CsvFile
from siltstone.ingest.json_lines import JsonLinesFile
from siltstone.ingest.location import Compression, InputFile, Location, RowProgress
from siltstone.storage.conversion import columns_without_index

BATCH_ROWS = 1 << 16


class ParquetFile:
    """A Parquet file."""

    def __init__(self, location: Location) -> None:
        self.name = location.name
        self.null_lines = 0
        self._location = location

    @contextlib.contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        with self._location.opened() as stream, pq.ParquetFile(stream) as file:
            yield file

    def schema(self, table_schema: pa.Schema, progress: RowProgress) -> pa.Schema:
        """Return the file's own columns, without a pandas index that has no name."""
        with self._opened() as file:
            schema = file.schema_arrow
            return pa.schema([schema.field(name) for name in columns_without_index(schema)])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield batches of the file's row groups."""
        with self._opened() as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=schema.names):
                yield batch.select(schema.names)


Format = Literal["parquet", "csv", "jsonl"]
STANDARD_INPUT = "-"
_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".bz2": "bz2"}


@contextlib.contextmanager
def open_input(name: str, format: Format | None = None, delimiter: str | None = None) -> Iterator[InputFile]:
    """Open a data file, `-` for JSON lines from standard input. Raises: InvalidInputError."""
    if name != STANDARD_INPUT:
        if "://" not in name:
            _check_file(name)
        yield _input_file(Location(name, name, _COMPRESSIONS.get(Path(name).suffix.lower())), format, delimiter)
        return
    # It is read twice, and a pipe can be read once.
    with tempfile.NamedTemporaryFile(prefix="siltstone-stdin-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield _input_file(Location("standard input", copy.name, None), format or "jsonl", delimiter)


def _check_file(name: str) -> None:
    path = Path(name)
    if path.is_dir():
        raise InvalidInputError(f"{name}: is a folder; name the files in it, e.g. {name.rstrip('/')}/*.parquet")
    if not path.exists():
        raise InvalidInputError(f"{name}: no such file")


def _input_file(location: Location, format: Format | None, delimiter: str | None) -> InputFile:
    suffixes = [suffix.lower() for suffix in Path(location.name).suffixes]
    if location.compression is not None:
        suffixes = suffixes[:-1]
    suffix = suffixes[-1] if suffixes else ""
    chosen = format or _FORMATS.get(suffix)
    if chosen is None:
        raise InvalidInputError(f"{location.name}: unknown file format; use --format parquet, csv or jsonl")
    if chosen == "parquet":
        if location.compression is not None:
            raise InvalidInputError(f"{location.name}: unpack it first; Parquet files are compressed inside")
        return ParquetFile(location)
    if chosen == "csv":
        return CsvFile(location, delimiter or ("\t" if suffix == ".tsv" else ","))
    return JsonLinesFile(location)
