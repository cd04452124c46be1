"""Columns as numbers: equal values get equal ids, greater sort keys get greater ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.rows.hashing import normalized

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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


def bare_rows(count: int) -> pa.Table:
    """Return so many rows without a column."""
    return pa.table({"": pa.nulls(count)}).select([])


def equal_ids(tables: Sequence[pa.Table], columns: Sequence[str]) -> tuple[list[Integers], int]:
    """Number the distinct values of `columns` over all tables; return each table's numbers, and how many there are.

    The columns must have the same types in all tables. Null equals null, NaN equals NaN, -0.0 equals 0.0.
    """
    sizes = [table.num_rows for table in tables]
    ids = np.zeros(sum(sizes), np.int64)
    count = 1 if sum(sizes) else 0
    for column in columns:
        chunks = [chunk for table in tables for chunk in _chunks(table.column(column))]
        if not chunks:
            break
        encoded = pa.concat_arrays(chunks).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        ids, count = _pair_ids(ids, codes, len(encoded.dictionary))
    return list(np.split(ids, np.cumsum(sizes)[:-1])), count


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
    for column in columns:
        chunks = [_sortable(chunk) for table in tables for chunk in _chunks(table.column(column))]
        if not chunks:
            break
        values = pa.concat_arrays(chunks)
        own = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
        if values.null_count:
            own[pc.is_null(values).to_numpy(zero_copy_only=False)] = 0
        # Ranks stay below the number of rows, so that the next column's fit below them.
        _, ranks = np.unique(ranks * (len(own) + 1) + own, return_inverse=True)
    return list(np.split(ranks.astype(np.int64), np.cumsum(sizes)[:-1]))


def _chunks(column: Any) -> list[Any]:
    return [normalized(chunk) for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])]


def _sortable(values: Any) -> Any:
    if pa.types.is_floating(values.type):
        bits = np.ascontiguousarray(pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False), np.float64).view(np.int64)
        ordered = np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)
        return pa.array(ordered, mask=pc.is_null(values).to_numpy(zero_copy_only=False))
    return values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
