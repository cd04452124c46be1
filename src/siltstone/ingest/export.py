"""Rows for others: as plain values, as JSON lines, CSV or Parquet; a file is there whole, or not at all."""

import base64
import contextlib
import datetime
import decimal
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from siltstone.errors import AlreadyExistsError, InvalidInputError

Format = Literal["parquet", "csv", "jsonl"]
_FORMATS: dict[str, Format] = {".parquet": "parquet", ".csv": "csv", ".jsonl": "jsonl"}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def check_output(path: str, *, overwrite: bool) -> Format:
    """Return the format by a file's suffix. Raises: InvalidInputError, AlreadyExistsError."""
    if "://" not in path and Path(path).suffix.lower() not in _FORMATS:
        raise InvalidInputError(f"{path}: unknown file format; use a name that ends in {', '.join(_FORMATS)}")
    check_place(path, overwrite=overwrite)
    return _FORMATS[Path(path).suffix.lower()]


def check_place(path: str, *, overwrite: bool) -> None:
    """Check that a file can be written there. Raises: InvalidInputError, AlreadyExistsError."""
    if "://" in path:
        raise InvalidInputError(f"{path}: rows are written to local files only; copy the file from there")
    if not Path(path).absolute().parent.is_dir():
        raise InvalidInputError(f"{path}: no folder {Path(path).parent}; create it first")
    if Path(path).is_dir():
        raise InvalidInputError(f"{path}: is a folder; name a file")
    if Path(path).exists() and not overwrite:
        raise AlreadyExistsError(f"{path}: already exists; choose another name, or use --overwrite")


def write_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: str, format: Format) -> tuple[int, int]:
    """Write rows to a local file as they come; return how many there were, and the file's bytes."""
    rows = 0
    with replacing(path) as unfinished:
        try:
            with _opened_writer(unfinished, schema, format) as write:
                for batch in batches:
                    write(batch)
                    rows += batch.num_rows
        except pa.ArrowNotImplementedError as error:
            raise InvalidInputError(
                f"{path}: {format} has no form for a column ({error}); cast it, or leave it out"
            ) from error
        size = os.path.getsize(unfinished)
    return rows, size


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield a temporary name beside `path`; that file replaces `path`, for good, unless an error is raised."""
    target = Path(path).absolute()
    unfinished = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        yield str(unfinished)
        _make_durable(unfinished)
        unfinished.replace(target)
        _make_durable(target.parent)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _make_durable(path: Path) -> None:
    """Wait until a file, or which files a folder has, would survive a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextlib.contextmanager
def _opened_writer(path: str, schema: pa.Schema, format: Format) -> Iterator[Callable[[pa.RecordBatch], object]]:
    """Yield what writes a batch to a file of a format."""
    if format == "parquet":
        with pq.ParquetWriter(path, schema, compression="zstd") as parquet:
            yield parquet.write_batch
    elif format == "csv":
        fields = [pa.field(field.name, _csv_type(field.type)) for field in schema]
        with pyarrow.csv.CSVWriter(path, pa.schema(fields)) as csv:
            yield lambda batch: csv.write_batch(
                pa.RecordBatch.from_arrays(
                    [_csv_values(batch.column(field.name), field.type) for field in fields], schema=pa.schema(fields)
                )
            )
    else:
        with Path(path).open("wb") as lines:
            yield lambda batch: lines.writelines(
                orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in plain_rows(batch)
            )


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """Return what CSV can hold of a type: a type without a CSV form is written as in JSON."""
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_interval(kind):
        return pa.string()
    return pa.int64() if pa.types.is_duration(kind) else kind


def _csv_values(values: Any, kind: pa.DataType) -> Any:
    if values.type.equals(kind):
        return values
    if pa.types.is_duration(values.type):
        return values.cast(kind)
    texts = [
        value if isinstance(value, str | None) else orjson.dumps(value).decode()
        for value in map(plain, values.to_pylist())
    ]
    return pa.array(texts, kind)


def plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as values that JSON can hold."""
    for row in batch.to_pylist():
        yield {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """Return a value as one that JSON can hold: decimals, times, NaN and bytes (in base64) as text, durations as microseconds.

    Intervals of months, days and nanoseconds are text of ISO 8601, e.g. `P1M2DT0.5S`.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, pa.MonthDayNano):
        seconds = decimal.Decimal(value.nanoseconds).scaleb(-9).normalize()
        return f"P{value.months}M{value.days}DT{seconds:f}S"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return [plain(item) for item in value]
