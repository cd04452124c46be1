"""What is handed in for writing, as Arrow tables in the types of the table."""

import datetime
import functools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError
from siltstone.model.schema import (
    describe_type,
    has_map,
    is_extension,
    is_list_like,
    normalize_type,
    same_values,
    widest,
)
from siltstone.storage.interface import ArrowData

Integers = npt.NDArray[np.int64]
_UUID_DASHES = (8, 13, 18, 23)
_HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


class UnfitValueError(ValueError):
    """A value does not fit the column's type; `row` counts from 0 and is None if every value fits by itself."""

    def __init__(self, row: int | None, value: object, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.value = value

    def message(self, column: str, kind: pa.DataType, rows_before: int = 0) -> str:
        """Return a message that says which value does not fit, and in which row of all the data."""
        if self.row is None:
            return f"column {column!r} does not convert to {describe_type(kind)}: {self}"
        number = rows_before + self.row + 1
        return f"column {column!r}: row {number} has {self.value!r:.80}, which does not fit {describe_type(kind)} exactly: {self}"


def stored_type(kind: pa.DataType, target: pa.DataType | None, column: str) -> pa.DataType:
    """Return the type that data of a type is stored with, where `target` is what the table's column has.

    That is the column's own type where it can hold the values, or else, what they are by themselves, which may widen the
    column. Raises: InvalidInputError for what no table can hold.
    """
    if target is not None and pa.types.is_null(kind):
        return target
    normalized = normalize_type(kind, column)
    if target is None or widest(target, normalized) is not None or not can_hold(target, kind):
        return normalized
    return target


def can_hold(target: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a column of the type `target` takes values of the type `kind`, as far as they fit exactly."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return can_hold(target, kind.value_type)
    if types.is_null(kind):
        return True
    if is_extension(kind, "arrow.uuid") and types.is_binary(target):
        return True
    if types.is_integer(kind):
        return _is_any(target, types.is_integer, types.is_floating, types.is_decimal)
    if types.is_floating(kind):
        return _is_any(target, types.is_integer, types.is_floating)
    if types.is_decimal(kind):
        return _is_any(target, types.is_integer, types.is_decimal)
    if is_list_like(kind):
        return types.is_list(target) and can_hold(target.value_type, kind.value_type)
    if types.is_map(kind):
        return types.is_map(target) and all(
            can_hold(*pair) for pair in ((target.key_type, kind.key_type), (target.item_type, kind.item_type))
        )
    if types.is_struct(kind):
        return types.is_struct(target) and _has_fields(target, kind)
    return same_values(target, normalize_type(kind, ""))


def _is_any(kind: pa.DataType, *checks: Callable[[pa.DataType], bool]) -> bool:
    return any(check(kind) for check in checks)


def _has_fields(target: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a struct has all fields of another; those that the other has not become null."""
    names = [field.name for field in kind]
    return (
        len(set(names)) == len(names)
        and all(
            target.get_field_index(field.name) >= 0 and can_hold(target.field(field.name).type, field.type)
            for field in kind
        )
        and all(field.nullable or field.name in names for field in target)
    )


def convert(values: "pa.Array[Any]", kind: pa.DataType) -> "pa.Array[Any]":
    """Return the same values as an array of a stored type. Raises: UnfitValueError."""
    try:
        return _convert(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = _first_unfit(values, kind)
        raise UnfitValueError(row, None if row is None else values[row].as_py(), str(error)) from error


def _first_unfit(values: "pa.Array[Any]", kind: pa.DataType) -> int | None:
    """Return the first row that does not convert, by bisection, or None if every row converts by itself."""
    start, size = 0, len(values)
    while size > 1:
        half = size // 2
        if _fails(values.slice(start, half), kind):
            size = half
        elif _fails(values.slice(start + half, size - half), kind):
            start, size = start + half, size - half
        else:
            return None
    return start if size else None


def _fails(values: "pa.Array[Any]", kind: pa.DataType) -> bool:
    try:
        _convert(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return True
    return False


def _convert(values: Any, kind: pa.DataType) -> Any:
    source_type, types = values.type, pa.types
    if source_type.equals(kind):
        return values
    if types.is_null(source_type):
        return pa.nulls(len(values), kind)
    if types.is_dictionary(source_type):
        return _convert(values.dictionary, kind).take(values.indices)
    if types.is_run_end_encoded(source_type):
        return _convert(values.values, kind).take(_run_numbers(values))
    if isinstance(source_type, pa.BaseExtensionType):
        if is_extension(source_type, "arrow.uuid") and types.is_string(kind):
            return _uuid_text(values.storage)
        return _convert(values.storage, kind)
    if is_list_like(source_type):
        return _convert_lists(values, kind)
    if types.is_map(source_type):
        return _convert_maps(values, kind)
    if types.is_struct(source_type):
        return _convert_structs(values, kind)
    return _cast(values, kind)


def _run_numbers(values: Any) -> Any:
    """Return, for each value of an array of runs, the number of its run."""
    positions = np.arange(values.offset, values.offset + len(values))
    return pa.array(np.searchsorted(values.run_ends.to_numpy(), positions, side="right"))


def _convert_lists(values: Any, kind: pa.DataType) -> Any:
    starts, sizes = _extents(values)
    items = _items(values.values, kind.value_type, starts, sizes)
    return pa.ListArray.from_arrays(_offsets(sizes), items, type=kind, mask=_nulls(values))


def _convert_maps(values: Any, kind: pa.DataType) -> Any:
    starts, sizes = _extents(values)
    keys = _items(values.keys, kind.key_type, starts, sizes)
    items = _items(values.items, kind.item_type, starts, sizes)
    return pa.MapArray.from_arrays(_offsets(sizes), keys, items, type=kind, mask=_nulls(values))


def _extents(values: Any) -> tuple[Integers, Integers]:
    """Return where each list begins among the items of all, and how many it has; none where it is null."""
    kind, count = values.type, len(values)
    if pa.types.is_fixed_size_list(kind):
        starts = (np.arange(count) + values.offset) * kind.list_size
        sizes = np.full(count, kind.list_size)
    elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        starts, sizes = values.offsets.to_numpy().astype(np.int64), values.sizes.to_numpy().astype(np.int64)
    else:
        offsets = values.offsets.to_numpy().astype(np.int64)
        starts, sizes = offsets[:-1], np.diff(offsets)
    return starts, np.where(values.is_null().to_numpy(zero_copy_only=False), 0, sizes)


def _items(items: Any, kind: pa.DataType, starts: Integers, sizes: Integers) -> Any:
    """Convert the items of lists, one list after another."""
    used = sizes > 0
    starts, sizes = starts[used], sizes[used]
    first = int(starts.min(initial=len(items)))
    last = int((starts + sizes).max(initial=first))
    converted = _convert(items.slice(first, last - first), kind)
    positions = np.repeat(starts - first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    return converted if np.array_equal(positions, np.arange(len(converted))) else converted.take(pa.array(positions))


def _offsets(sizes: Integers) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def _convert_structs(values: Any, kind: pa.DataType) -> Any:
    columns = []
    for field in kind:
        index = values.type.get_field_index(field.name)
        columns.append(pa.nulls(len(values), field.type) if index < 0 else _convert(values.field(index), field.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=_nulls(values))


def _nulls(values: Any) -> Any:
    return pc.is_null(values) if values.null_count else None


def _cast(values: Any, kind: pa.DataType) -> Any:
    source_type, types = values.type, pa.types
    if types.is_integer(source_type) and types.is_decimal(kind):
        # Straight, Arrow wants room for all integers, whatever the values are.
        return values.cast(pa.decimal128(20, 0)).cast(kind)
    converted = values.cast(kind)
    if types.is_floating(source_type) and types.is_float32(kind):
        exact = pc.or_(pc.equal(converted.cast(pa.float64()), values.cast(pa.float64())), pc.is_nan(values))
        if pc.any(pc.invert(exact)).as_py():
            raise pa.ArrowInvalid(f"more digits than {kind} holds")
    return converted


def _uuid_text(values: Any) -> Any:
    """Write UUIDs as text, 8-4-4-4-12."""
    if not len(values):
        return pa.array([], pa.string())
    raw = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * 16 : (values.offset + len(values)) * 16]
    digits = _HEX_DIGITS[np.stack([raw >> 4, raw & 15], axis=1).reshape(len(values), 32)]
    text = np.full((len(values), 36), ord("-"), np.uint8)
    text[:, [position for position in range(36) if position not in _UUID_DASHES]] = digits
    offsets = pa.array(np.arange(0, 36 * len(values) + 1, 36), pa.int32()).buffers()[1]
    written = pa.StringArray.from_buffers(len(values), offsets, pa.py_buffer(text.tobytes()))
    return pc.if_else(pc.is_null(values), pa.scalar(None, pa.string()), written)


_UNNAMED_INDEX = re.compile(r"__index_level_[0-9]+__")


def record_batches(data: ArrowData, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield all rows, after an empty batch where a schema alone is there to be checked.

    Rows that are dictionaries are read with the types of the columns that `schema` has. Raises: InvalidInputError.
    """
    for batch in _batches(data, schema):
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


def _batches(data: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        # An empty table has no batches, but its schema is still checked.
        yield from data.to_batches() or [empty_batch(data.schema)]
    elif isinstance(data, pa.RecordBatchReader):
        yield empty_batch(data.schema)
        yield from data
    elif data.__class__.__module__.startswith("pandas.") and hasattr(data, "index"):
        yield from _batches(_from_pandas(data), schema)
    elif hasattr(data, "__arrow_c_stream__"):
        yield from _batches(_from_stream(data), schema)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping):
        yield from _from_items(iter(data), schema)
    elif isinstance(data, Mapping):
        raise InvalidInputError(
            "data to write is a dictionary; use [row] for one row, or pa.table(columns) if it holds columns"
        )
    else:
        raise InvalidInputError(f"data to write is {type(data).__name__}; {_ACCEPTED}")


_ACCEPTED = (
    "use an Arrow table, record batches, a data frame that exports Arrow, or a list of dictionaries, one per row"
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


def _from_items(items: Iterator[object], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for first in items:
        if isinstance(first, Mapping):
            yield from _from_rows([first, *cast("Iterator[Mapping[str, object]]", items)], schema).to_batches()
            return
        if not isinstance(first, pa.RecordBatch | pa.Table):
            raise InvalidInputError(f"data to write holds {type(first).__name__}; {_ACCEPTED}")
        yield from _batches(first, schema)


def _from_rows(rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Make a table of rows; a column that only some of them have is null in the others."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"row {number + 1} of the data is {type(row).__name__}, not a dictionary")
        names.update(dict.fromkeys(row))
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"the data has a column named {name!r}; column names must be text")
    columns = {
        name: _column(name, [row.get(name) for row in rows], schema.field(name).type if name in schema.names else None)
        for name in names
    }
    return pa.table(columns)


def _inferred(values: list[object]) -> "pa.Array[Any]":
    """Make an array of the type that values have; older releases of Arrow do not know UUIDs."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {uuid.UUID}:
        return pa.array([value.bytes if isinstance(value, uuid.UUID) else None for value in values], pa.uuid())
    return pa.array(values)


def _column(name: str, values: list[object], target: pa.DataType | None) -> "pa.Array[Any]":
    """Make an array of Python values, which have kinds but no widths: those are the column's."""
    try:
        if target is not None and has_map(target):
            return pa.array(values, target)
        inferred = _inferred(values)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidInputError(f"column {name!r}: its values have no type in common: {error}") from error
    if len({value.tzinfo is None for value in values if isinstance(value, datetime.datetime)}) > 1:
        raise InvalidInputError(
            f"column {name!r}: some of its times have a time zone and others do not; give all of them one"
        )
    if target is None or not can_hold(target, inferred.type):
        return inferred
    if pa.types.is_float32(target) and pa.types.is_floating(inferred.type):
        return inferred.cast(target)
    try:
        return convert(inferred, target)
    except UnfitValueError as error:
        raise InvalidInputError(error.message(name, target)) from error
