"""What `siltstone read` and `siltstone lookup` do: rows as they are now or were, streamed, filtered, found by key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from siltstone.cli.hints import find_table
from siltstone.errors import InvalidInputError
from siltstone.lake import Lake
from siltstone.model import TableVersion
from siltstone.model.names import did_you_mean
from siltstone.table.scan import read_batches, read_key
from siltstone.table.snapshot import parse_moment
from siltstone.table.where import Condition, parse_condition, parse_literal


class Rows(NamedTuple):
    """Rows as they come in; `total` is how many there would be without a limit, None where only reading would tell.

    `uncompacted` is how many deltas are not in there.
    """

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    total: int | None
    uncompacted: int


def read_table(
    lake: Lake,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    as_of: str | None = None,
    include_uncompacted: bool = False,
    limit: int | None = None,
) -> Rows:
    """Read a table. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    table = find_table(lake, name)
    try:
        moment = parse_moment(as_of) if as_of is not None else None
    except InvalidInputError as error:
        raise InvalidInputError(f"--as-of: {error}") from error
    snapshot = table.snapshot(as_of=moment, fresh=include_uncompacted)
    schema = snapshot.version.schema
    chosen = list(columns) if columns else schema.names
    _check_columns(chosen, schema)
    condition = parse_condition(where, schema) if where is not None else None
    needed = chosen + [each for each in (condition.columns if condition else ()) if each not in chosen]
    batches = read_batches(snapshot, needed)
    is_as_compacted = moment is None and not include_uncompacted
    return Rows(
        schema=pa.schema([batches.schema.field(each) for each in chosen]),
        batches=_limited(_wanted(batches, condition, chosen), limit),
        total=snapshot.row_count if is_as_compacted and not condition else None,
        uncompacted=snapshot.newer if is_as_compacted else 0,
    )


def _check_columns(columns: Sequence[str], schema: pa.Schema) -> None:
    for number, column in enumerate(columns):
        if column not in schema.names:
            raise InvalidInputError(
                f"{column!r} is not a column; there are {', '.join(schema.names)}{did_you_mean(column, schema.names)}"
            )
        if column in columns[:number]:
            raise InvalidInputError(f"column {column!r} is named twice")


def _wanted(
    batches: Iterable[pa.RecordBatch], condition: Condition | None, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if condition is not None:
            batch = batch.filter(condition.expression)
        if batch.num_rows:
            yield batch.select(list(columns))


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield at most so many rows; batches after them are not read."""
    left = limit
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


class LookedUp(NamedTuple):
    """The rows of a key, and how many deltas are not compacted yet, so that they may have more."""

    rows: list[dict[str, object]]
    uncompacted: int


def look_up(lake: Lake, name: str, key: Mapping[str, str | None]) -> LookedUp:
    """Return the compacted rows of a primary key. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    snapshot = find_table(lake, name).snapshot()
    return LookedUp(read_key(snapshot, typed_key(snapshot.version, key)), snapshot.newer)


def typed_key(version: TableVersion, given: Mapping[str, str | None]) -> dict[str, object]:
    """Read the values of a key as the types of its columns; None, and `null` but for text, are null.

    Raises: InvalidInputError.
    """
    schema, keys, name = version.schema, version.primary_keys, version.locator.table_locator.full_name
    if not keys:
        raise InvalidInputError(f"{name}: has no primary key; `siltstone read --where` finds rows by any column")
    for column in given:
        if column not in keys:
            raise InvalidInputError(
                f"{name}: {column!r} is not in the primary key, {', '.join(keys)}{did_you_mean(column, keys)}"
            )
    for column in keys:
        if column not in given:
            raise InvalidInputError(f"{name}: the primary key is {', '.join(keys)}; {column}=… is missing")
    key: dict[str, object] = {}
    for column in keys:
        field, text = schema.field(column), given[column]
        if text is None or (text == "null" and not pa.types.is_string(field.type)):
            key[column] = None
        else:
            key[column] = parse_literal(text, field).as_py()
    return key
