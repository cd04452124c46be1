"""What people hand to `write`, as record batches: Arrow data, data frames, rows as dictionaries."""

import datetime
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model.schema import has_map
from siltstone.storage.conversion import UnfitValueError, can_hold, convert
from siltstone.storage.interface import ArrowData

_UNNAMED_INDEX = re.compile(r"__index_level_[0-9]+__")


def record_batches(data: ArrowData, known: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield all rows, after an empty batch where a schema alone is there to be checked.

    Rows that are dictionaries are read with the types of the columns that `known` has. Raises: InvalidInputError.
    """
    for batch in _batches(data, known):
        names = columns_without_index(batch.schema)
        yield batch if len(names) == batch.num_columns else batch.select(names)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows, of any types."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def columns_without_index(schema: pa.Schema) -> list[str]:
    """Return the columns less those that hold the index of a pandas frame that has no name: they number its rows."""
    index = _unnamed_index((schema.metadata or {}).get(b"pandas", b"{}"))
    return [name for name in schema.names if name not in index]


@functools.lru_cache(maxsize=16)
def _unnamed_index(metadata: bytes) -> frozenset[str]:
    columns = json.loads(metadata).get("index_columns", [])
    return frozenset(name for name in columns if isinstance(name, str) and _UNNAMED_INDEX.fullmatch(name))


def _batches(data: Any, known: pa.Schema) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        # An empty table has no batches, but its schema is still checked.
        yield from data.to_batches() or [empty_batch(data.schema)]
    elif isinstance(data, pa.RecordBatchReader):
        yield empty_batch(data.schema)
        yield from data
    elif data.__class__.__module__.startswith("pandas.") and hasattr(data, "index"):
        yield from _batches(_from_pandas(data), known)
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _batches(_from_stream(data), known)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping):
        yield from _from_items(iter(data), known)
    elif isinstance(data, Mapping):
        raise InvalidInputError(
            "data to write is one dictionary; give [row] for one row, or pa.table(columns) if it holds columns"
        )
    else:
        raise InvalidInputError(f"data to write is {type(data).__name__}; {_WANTED}")


_WANTED = (
    "give an Arrow table, record batches, a data frame that exports Arrow, or a list of dictionaries, one for each row"
)


def _from_pandas(frame: Any) -> pa.Table:
    """Take a data frame; a level of its index that has a name is a column like any other."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=any(name is not None for name in frame.index.names))
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(f"the data frame does not convert to Arrow: {error}") from error


def _from_stream(data: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except pa.ArrowException as error:
        raise InvalidInputError(f"data to write is {type(data).__name__}, which does not convert: {error}") from error


def _from_items(items: Iterator[object], known: pa.Schema) -> Iterator[pa.RecordBatch]:
    for first in items:
        if isinstance(first, Mapping):
            yield from _from_rows([first, *cast("Iterator[Mapping[str, object]]", items)], known).to_batches()
            return
        if not isinstance(first, pa.RecordBatch | pa.Table):
            raise InvalidInputError(f"data to write holds {type(first).__name__}; {_WANTED}")
        yield from _batches(first, known)


def _from_rows(rows: Sequence[Mapping[str, object]], known: pa.Schema) -> pa.Table:
    """Make a table of rows; a column that only some of them have is null in the others."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"row {number + 1} of the data is {type(row).__name__}, not a dictionary")
        names.update(dict.fromkeys(row))
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"the data has the column {name!r}; names of columns are text")
    columns = {
        name: _column(name, [row.get(name) for row in rows], known.field(name).type if name in known.names else None)
        for name in names
    }
    return pa.table(columns)


def _column(name: str, values: list[object], known: pa.DataType | None) -> "pa.Array[Any]":
    """Make an array of Python values, which have kinds but no widths: those are the column's."""
    try:
        if known is not None and has_map(known):
            return pa.array(values, known)
        inferred = pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidInputError(f"column {name!r}: its values have no type in common: {error}") from error
    if len({value.tzinfo is None for value in values if isinstance(value, datetime.datetime)}) > 1:
        raise InvalidInputError(f"column {name!r}: some of its times have a zone and others have none")
    if known is None or not can_hold(known, inferred.type):
        return inferred
    if pa.types.is_float32(known) and pa.types.is_floating(inferred.type):
        return inferred.cast(known)
    try:
        return convert(inferred, known)
    except UnfitValueError as error:
        raise InvalidInputError(error.message(name, known)) from error
