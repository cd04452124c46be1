"""What the footer of a data file says of its columns: nulls, least and greatest values, for any format to write down.

Columns go by their names inside files. Bounds are only given where every reader may skip a file by them:
- not for floating point numbers, since Parquet's bounds leave out NaN, which readers put above, below or beside all others;
- not for binary and nested columns, nor for booleans;
- not where a value is beyond what Python's dates can hold.
"""

import datetime
import decimal
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.errors import CorruptionError
from siltstone.storage.parquet import open_parquet

Bound = int | str | datetime.date | datetime.datetime | decimal.Decimal
_KINDS = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


@dataclass(frozen=True)
class ColumnStatistics:
    """What is known of a column in a file; None is not known."""

    null_count: int | None = None
    least: Bound | None = None
    greatest: Bound | None = None


@dataclass(frozen=True)
class FileStatistics:
    """What is known of a file: its rows, dead ones included, and those of its columns that were asked for."""

    row_count: int
    columns: dict[str, ColumnStatistics]


def read_statistics(root: str, uri: str, row_count: int, schema: pa.Schema) -> FileStatistics:
    """Read the footer of a data file; `schema` has the columns that are wanted, as files name them.

    A column that the file does not have is null in all its rows. Raises: CorruptionError.
    """
    with open_parquet(root, uri) as file:
        footer = file.metadata
        if footer.num_rows != row_count:
            raise CorruptionError(
                f"{root}/{uri}: has {footer.num_rows} rows instead of {row_count}; restore it, or rebase"
            )
        names = set(file.schema_arrow.names)
    paths = _leaf_positions(footer)
    columns = {}
    for column in schema:
        if column.name not in names:
            columns[column.name] = ColumnStatistics(row_count)
        elif not pa.types.is_nested(column.type) and column.name in paths:
            columns[column.name] = _column_statistics(footer, paths[column.name], column.type)
    return FileStatistics(row_count, columns)


def _leaf_positions(footer: pq.FileMetaData) -> dict[str, int]:
    """Return where plain columns are; what is inside nested ones has a path with dots, or the path of another."""
    positions: dict[str, int] = {}
    doubled = set()
    for position in range(footer.num_columns):
        path = footer.schema.column(position).path
        doubled |= {path} & positions.keys()
        positions[path] = position
    return {path: position for path, position in positions.items() if path not in doubled}


def _column_statistics(footer: pq.FileMetaData, position: int, kind: pa.DataType) -> ColumnStatistics:
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    chunks = [group.column(position).statistics for group in groups]
    if any(chunk is None or not chunk.has_null_count for chunk in chunks):
        return ColumnStatistics()
    nulls = sum(chunk.null_count for chunk in chunks if chunk is not None)
    if not any(check(kind) for check in _KINDS):
        return ColumnStatistics(nulls)
    filled = [
        chunk
        for chunk, group in zip(chunks, groups, strict=True)
        if chunk is not None and chunk.null_count < group.num_rows
    ]
    if not filled or not all(chunk.has_min_max for chunk in filled):
        return ColumnStatistics(nulls)
    try:
        least: Any = min(chunk.min for chunk in filled)
        greatest: Any = max(chunk.max for chunk in filled)
    except (ValueError, OverflowError, TypeError):
        return ColumnStatistics(nulls)
    # Text that is not UTF-8 comes as bytes.
    if isinstance(least, bytes) or isinstance(greatest, bytes):
        return ColumnStatistics(nulls)
    return ColumnStatistics(nulls, least, greatest)
