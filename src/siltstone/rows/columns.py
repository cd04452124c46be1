"""Columns as numbers: keys as hashes, equal values as equal ids, sort keys as ranks.

A hash has 64 bits and is the same for equal keys on every machine and in every version: hashes are stored (buckets,
primary key indices), so what is computed here must never change. Equal keys hash alike across widened types: integers
as 64-bit integers, floats as doubles with one NaN and one zero.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError
from siltstone.model.schema import is_list_like

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BYTE_FACTOR = np.uint64(0x00000100000001B3 | 0x5851F42D00000000)
_PRIME = np.uint64((1 << 61) - 1)
NULL_HASH = np.uint64(0x6E756C6C6E756C6C)
_ROWS_PER_STEP = 1 << 16
_COUNTED_BITS = 16


def hash_keys(table: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """Return one hash for each row, of the values of `columns` in this order."""
    result = np.zeros(table.num_rows, np.uint64)
    for position, column in enumerate(columns):
        array: Any = table.column(column)
        values = _hash_column(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
        with np.errstate(over="ignore"):
            result = values if position == 0 else _mix(result * _MIX_1 + values + _GOLDEN)
    return result


def is_exact(types: Sequence[pa.DataType]) -> bool:
    """Return whether different keys of these types always hash differently, null aside: then equal hashes mean equal keys."""
    return len(types) == 1 and (
        pa.types.is_integer(types[0]) or pa.types.is_temporal(types[0]) or pa.types.is_floating(types[0])
    )


def hash_sequence(numbers: Integers) -> Hashes:
    """Return hashes of plain numbers: where rows without a key go."""
    return _mix(numbers.view(np.uint64))


def _hash_column(column: "pa.Array[Any]") -> Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(column.cast(pa.binary()))
    elif pa.types.is_decimal128(kind):
        hashes = _hash_decimals(column)
    else:
        hashes = _mix(_as_integers(column).view(np.uint64))
    if column.null_count:
        hashes = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), NULL_HASH, hashes)
    return hashes


def _as_integers(column: "pa.Array[Any]") -> Integers:
    kind = column.type
    if pa.types.is_floating(kind):
        return _bits(_normalized(column))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        integers = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        integers = column.view(pa.int32()).cast(pa.int64())
    elif pa.types.is_temporal(kind):
        integers = column.view(pa.int64())
    else:
        raise InvalidInputError(f"type {kind} cannot be a key; use scalars")
    return np.ascontiguousarray(pc.fill_null(integers, 0).to_numpy(zero_copy_only=False), np.int64)


def _hash_decimals(column: "pa.Array[Any]") -> Hashes:
    """Hash the value, not its digits: 1.5 and 1.50 alike. It is taken modulo a prime, where tenths are whole numbers."""
    words = np.frombuffer(column.buffers()[1], np.uint64)
    words = words[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    high = np.mod(words[:, 1].view(np.int64), np.int64(_PRIME)).astype(np.uint64)
    # 2 ** 64 is 8 modulo the prime.
    digits = (high * np.uint64(8) % _PRIME + words[:, 0] % _PRIME) % _PRIME
    return _mix(_multiply(digits, pow(10, -column.type.scale, int(_PRIME))))


def _multiply(values: Hashes, factor: int) -> Hashes:
    """Multiply modulo the prime 2 ** 61 - 1, in halves that do not overflow."""
    low, high = values & np.uint64(0x7FFFFFFF), values >> np.uint64(31)
    factor_low, factor_high = np.uint64(factor & 0x7FFFFFFF), np.uint64(factor >> 31)
    middle = low * factor_high + high * factor_low
    carried = ((middle & np.uint64(0x3FFFFFFF)) << np.uint64(31)) + (middle >> np.uint64(30))
    return (high * factor_high * np.uint64(2) + carried % _PRIME + low * factor_low) % _PRIME


def _hash_bytes(column: "pa.Array[Any]") -> Hashes:
    """Hash byte strings by a polynomial over all rows at once; a step at a time, to bound the memory it takes."""
    steps = [_hash_step(column.slice(start, _ROWS_PER_STEP)) for start in range(0, len(column), _ROWS_PER_STEP)]
    return np.concatenate(steps) if steps else np.zeros(0, np.uint64)


def _hash_step(column: "pa.Array[Any]") -> Hashes:
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    sums = np.zeros(len(lengths), np.uint64)
    with np.errstate(over="ignore"):
        if last > first and data_buffer is not None:
            data = np.frombuffer(data_buffer, np.uint8)[first:last].astype(np.uint64)
            filled = lengths > 0
            starts = (offsets[:-1] - first)[filled]
            positions = np.arange(last - first) - np.repeat(starts, lengths[filled])
            powers = np.multiply.accumulate(np.full(int(lengths.max()) + 1, _BYTE_FACTOR, np.uint64))
            sums[filled] = np.add.reduceat((data + np.uint64(1)) * powers[positions], starts)
        return _mix(sums + lengths.astype(np.uint64) * _GOLDEN)


def _mix(values: Hashes) -> Hashes:
    """Spread the bits; different inputs give different outputs."""
    with np.errstate(over="ignore"):
        mixed = values + _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        return mixed ^ (mixed >> np.uint64(31))


def align(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring a table to a schema: columns it lacks become null, narrower types become wider.

    There are as many rows as before, also where there are no columns.
    """
    if not len(schema):
        return table.select([])
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.Table.from_arrays(columns, names=schema.names)


def equal_ids(tables: Sequence[pa.Table], columns: Sequence[str]) -> tuple[list[Integers], int]:
    """Number the distinct values of `columns` over all tables; return each table's numbers, and how many there are.

    The columns must have the same types in all tables. Null equals null, NaN equals NaN, -0.0 equals 0.0.
    """
    sizes = [table.num_rows for table in tables]
    ids = np.zeros(sum(sizes), np.int64)
    count = 1 if sum(sizes) else 0
    for column in columns if sum(sizes) else ():
        encoded = _values(tables, column).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        ids, count = _pair_ids(ids, codes, len(encoded.dictionary))
    return list(np.split(ids, np.cumsum(sizes)[:-1])), count


def value_ids(column: "pa.ChunkedArray[Any] | pa.Array[Any]") -> Integers:
    """Number the distinct values of a column of any type, nested ones included; equal as in `equal_ids`, inside them, too."""
    array: Any = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_struct(kind):
        ids = np.asarray(pc.is_null(array)).astype(np.int64)
        for part in array.flatten():
            codes = value_ids(part)
            ids, _ = _pair_ids(ids, codes, int(codes.max(initial=0)) + 1)
        return ids
    if pa.types.is_map(kind) or is_list_like(kind):
        array = _numbered_lists(array)
    codes = _normalized(array).dictionary_encode(null_encoding="encode").indices
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


def _numbered_lists(lists: Any) -> "pa.Array[Any]":
    """Return lists as byte strings that are equal for equal lists: the numbers of their values, one after another."""
    if pa.types.is_map(lists.type):
        entries = pa.struct([pa.field("key", lists.type.key_type), pa.field("item", lists.type.item_type)])
        lists = lists.cast(pa.list_(entries))
    is_null = np.asarray(pc.is_null(lists))
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]) * 8
    values = pa.py_buffer(value_ids(lists.flatten()))
    strings = pa.Array.from_buffers(pa.large_binary(), len(lists), [None, pa.py_buffer(offsets), values])
    return pc.if_else(pa.array(is_null), pa.scalar(None, pa.large_binary()), strings)


def rising_order(numbers: Integers | Hashes) -> Integers:
    """Return the order in which numbers rise, equal ones as they come.

    NumPy sorts words three times as fast as it finds the order of any. So each number, or as many of its highest bits as there is
    room for, becomes one word with its place behind it. The few that agree in these bits are put right at the end.
    """
    if len(numbers) <= 1:
        return np.arange(len(numbers))
    rest = (numbers - numbers.min()).view(np.uint64)
    bits = int(rest.max()).bit_length()
    if bits <= _COUNTED_BITS:
        # These it counts instead of comparing them.
        return np.argsort(rest.astype(np.uint16), kind="stable")
    place_bits = np.uint64((len(numbers) - 1).bit_length())
    lowest = np.uint64(max(bits + int(place_bits) - 64, 0))
    words = rest >> lowest
    words <<= place_bits
    words |= np.arange(len(numbers), dtype=np.uint64)
    words.sort()
    order: Integers = (words & ((np.uint64(1) << place_bits) - np.uint64(1))).view(np.int64)
    if lowest:
        words >>= place_bits
        is_same = words[1:] == words[:-1]
        if is_same.any():
            is_unsure = np.zeros(len(order), np.bool_)
            is_unsure[1:] = is_same
            is_unsure[:-1] |= is_same
            unsure = order[is_unsure]
            order[is_unsure] = unsure[np.argsort(rest[unsure], kind="stable")]
    return order


def hash_ids(hashes: Sequence[Hashes]) -> tuple[list[Integers], Hashes]:
    """Number the distinct hashes of all lists, rising; return each list's numbers, and the distinct hashes."""
    together = np.concatenate(hashes)
    order = rising_order(together)
    rising = together[order]
    is_first = np.ones(len(rising), np.bool_)
    np.not_equal(rising[1:], rising[:-1], out=is_first[1:])
    ids = np.empty(len(rising), np.int64)
    ids[order] = np.cumsum(is_first) - 1
    return list(np.split(ids, np.cumsum([len(each) for each in hashes])[:-1])), rising[is_first]


def are_among(rows: Sequence[Integers], others: Sequence[Integers]) -> Flags:
    """Flag the rows that equal one of the others; both are given by column, as numbers of values."""
    size = len(rows[0])
    ids = np.zeros(size + len(others[0]), np.int64)
    for own, theirs in zip(rows, others, strict=True):
        codes = np.concatenate([own, theirs])
        ids, _ = _pair_ids(ids, codes, int(codes.max(initial=0)) + 1)
    return np.isin(ids[:size], ids[size:])


def _pair_ids(ids: Integers, codes: Integers, code_count: int) -> tuple[Integers, int]:
    """Number the distinct pairs of an id and a code below `code_count`; return how many there are, too."""
    dense = pa.array(ids * max(code_count, 1) + codes).dictionary_encode()
    return dense.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(dense.dictionary)


def sort_ranks(tables: Sequence[pa.Table], columns: Sequence[str]) -> list[Integers]:
    """Rank the tuples of `columns` over all tables: equal tuples alike, nulls first, NaN last, -0.0 as 0.0."""
    sizes = [table.num_rows for table in tables]
    ranks = np.zeros(sum(sizes), np.int64)
    for column in columns if sum(sizes) else ():
        values = _sortable(_values(tables, column))
        own = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
        if values.null_count:
            own[pc.is_null(values).to_numpy(zero_copy_only=False)] = 0
        # Ranks stay below the number of rows, so that the next column's fit below them.
        _, ranks = np.unique(ranks * (len(own) + 1) + own, return_inverse=True)
    return list(np.split(ranks.astype(np.int64), np.cumsum(sizes)[:-1]))


def _values(tables: Sequence[pa.Table], column: str) -> "pa.Array[Any]":
    return pa.concat_arrays([_normalized(chunk) for table in tables for chunk in table.column(column).chunks])


def _normalized(column: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return key values such that equal keys are equal values: one zero, one NaN, in one float type."""
    if not pa.types.is_floating(column.type):
        return column
    # Adding zero turns -0.0 into 0.0; NaNs become the one that Arrow knows.
    doubles = pc.add(column.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(doubles), float("nan"), doubles)


def _sortable(values: "pa.Array[Any]") -> "pa.Array[Any]":
    if pa.types.is_floating(values.type):
        bits = _bits(values)
        ordered = np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
        return pa.array(ordered, mask=pc.is_null(values).to_numpy(zero_copy_only=False))
    return values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values


def _bits(doubles: "pa.Array[Any]") -> Integers:
    values = pc.fill_null(doubles, 0.0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values, np.float64).view(np.int64)
