"""A table as Delta Lake describes it: column types, column mapping, partition values, statistics, and what a reader must know."""

import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model import PartitionValue, TableVersion
from siltstone.model.properties import PUBLISH_DELTA_CHANGES
from siltstone.model.schema import SchemaField, schema_of
from siltstone.publish.statistics import Bound, FileStatistics

LOCK_FEATURE = "siltstone"
"""A writer feature that nobody implements: whoever does not know it must not write to the table, nor vacuum it."""
DELETION_VECTORS = "deletionVectors"
COLUMN_MAPPING = "columnMapping"
TIMESTAMP_NTZ = "timestampNtz"
CHANGE_FEED = "changeDataFeed"
FEED_SETTING = "delta.enableChangeDataFeed"
READER_FEATURES = frozenset({DELETION_VECTORS, COLUMN_MAPPING, TIMESTAMP_NTZ})
# Columns that a reader of changes adds; a table that has one of them has no change data feed.
_CHANGE_COLUMNS = {"_change_type", "_commit_version", "_commit_timestamp"}
_SIMPLE = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
_MOST_COLUMNS = 32
_MOST_TEXT = 32
# Of more digits, some readers of JSON keep the first ones only.
_MOST_DIGITS = 15
_LAST_CHARACTER = "\U0010ffff"
# Ids of what is inside a nested column begin at its own one times this.
_NESTED_IDS = 1 << 12


class Description(NamedTuple):
    """What the metadata of a published version say of a table, and which features it needs for that."""

    name: str
    schema: str
    partition_columns: list[str]
    configuration: dict[str, str]
    features: frozenset[str]


def describe(name: str, version: TableVersion) -> Description:
    """Return how a table version is described. Raises: InvalidInputError that names columns without a type in Delta Lake."""
    arrow = schema_of(version.fields)
    is_mapped = any(column.name != column.name_in_files for column in version.fields)
    types = _Types(is_mapped)
    fields = [types.column(column, arrow.field(column.name).type) for column in version.fields]
    if types.refused:
        raise InvalidInputError(
            f"{name}: {', '.join(types.refused)} {'has a type' if len(types.refused) == 1 else 'have types'} that Delta "
            "Lake does not have (time and duration); drop or convert the column to publish the table"
        )
    configuration = {}
    if is_mapped:
        configuration = {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": str(max(types.last_id, version.last_column_id)),
        }
    features = ({COLUMN_MAPPING} if is_mapped else set()) | ({TIMESTAMP_NTZ} if types.has_local_times else set())
    if has_change_feed(name, version):
        features.add(CHANGE_FEED)
    schema = orjson.dumps({"type": "struct", "fields": fields}).decode()
    return Description(name, schema, list(version.partition_keys), configuration, frozenset(features))


def has_change_feed(name: str, version: TableVersion) -> bool:
    """Return whether versions are to tell what changed: the property is on, and no column is in the way.

    Raises: InvalidInputError.
    """
    names = {name.lower() for column in version.fields for name in (column.name, column.name_in_files)}
    return PUBLISH_DELTA_CHANGES.of(version.properties, name) and not names & _CHANGE_COLUMNS


class _Types:
    """Writes types, and remembers what it met."""

    def __init__(self, is_mapped: bool) -> None:
        self._is_mapped = is_mapped
        self._next_nested = 0
        self.last_id = 0
        self.refused: list[str] = []
        self.has_local_times = False

    def column(self, column: SchemaField, kind: pa.DataType) -> dict[str, Any]:
        number = column.id or 0
        self._next_nested = number * _NESTED_IDS
        before = len(self.refused)
        written = self._field(column.name, kind, column.name_in_files, number)
        if len(self.refused) > before:
            self.refused[before:] = [column.name]
        return written

    def _field(self, name: str, kind: pa.DataType, name_in_files: str, number: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        if self._is_mapped:
            metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name_in_files}
            self.last_id = max(self.last_id, number)
        # That a column has no nulls is for our writers to check, and old files may lack it.
        return {"name": name, "type": self._type(kind), "nullable": True, "metadata": metadata}

    def _type(self, kind: pa.DataType) -> Any:
        if kind in _SIMPLE:
            self.has_local_times |= kind == pa.timestamp("us")
            return _SIMPLE[kind]
        if pa.types.is_decimal(kind):
            return f"decimal({kind.precision},{kind.scale})"
        if pa.types.is_list(kind):
            return {"type": "array", "elementType": self._type(kind.value_type), "containsNull": True}
        if pa.types.is_map(kind):
            key, value = self._type(kind.key_type), self._type(kind.item_type)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        if pa.types.is_struct(kind):
            return {"type": "struct", "fields": [self._nested(field) for field in kind]}
        self.refused.append(str(kind))
        return str(kind)

    def _nested(self, field: "pa.Field[Any]") -> dict[str, Any]:
        self._next_nested += 1
        return self._field(field.name, field.type, field.name, self._next_nested)


def table_id(folder: str) -> str:
    """Return the id of the Delta table in a folder, the same each time."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"siltstone:{folder}"))


def partition_texts(name: str, version: TableVersion, values: Sequence[PartitionValue]) -> dict[str, str | None]:
    """Return partition values as Delta Lake writes them, by the names inside files.

    Raises: InvalidInputError for empty text, which Delta Lake takes for null.
    """
    texts: dict[str, str | None] = {}
    for key, in_files, value in zip(
        version.partition_keys, version.names_in_files(version.partition_keys), values, strict=True
    ):
        if value == "" and isinstance(value, str):
            raise InvalidInputError(
                f"{name}: a partition has the empty text as {key}, which Delta Lake cannot tell from null; it cannot be "
                "published as Delta"
            )
        texts[in_files] = None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def statistics_text(statistics: FileStatistics, partition_columns: Sequence[str], *, has_dead: bool) -> str:
    """Return statistics as Delta Lake has them in an action; bounds are not tight where rows are dead."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    names = [name for name in statistics.columns if name not in partition_columns]
    for name in names[:_MOST_COLUMNS]:
        column = statistics.columns[name]
        if column.null_count is not None:
            nulls[name] = column.null_count
        low = None if column.least is None else _lower_bound(column.least)
        high = None if column.greatest is None else _upper_bound(column.greatest)
        if low is not None and high is not None:
            least[name], greatest[name] = low, high
    return orjson.dumps(
        {
            "numRecords": statistics.row_count,
            "minValues": least,
            "maxValues": greatest,
            "nullCount": nulls,
            "tightBounds": not has_dead,
        }
    ).decode()


def loosened(statistics: str, *, has_dead: bool) -> str:
    """Return the statistics of a file of which other rows are dead than before."""
    values = orjson.loads(statistics)
    return orjson.dumps({**values, "tightBounds": not has_dead}).decode()


def _lower_bound(value: Bound) -> int | float | str | None:
    if isinstance(value, datetime.datetime):
        return _time(value)
    return value[:_MOST_TEXT] if isinstance(value, str) else _plain(value)


def _upper_bound(value: Bound) -> int | float | str | None:
    if isinstance(value, datetime.datetime):
        # Times have milliseconds in JSON.
        fraction = value.microsecond % 1000
        try:
            return _time(value + datetime.timedelta(microseconds=1000 - fraction) if fraction else value)
        except OverflowError:
            return None
    if isinstance(value, str) and len(value) > _MOST_TEXT:
        return value[:_MOST_TEXT] + _LAST_CHARACTER
    return value if isinstance(value, str) else _plain(value)


def _plain(value: int | datetime.date | decimal.Decimal) -> int | float | str | None:
    if isinstance(value, decimal.Decimal):
        number = float(value)
        is_exact = len(value.as_tuple().digits) <= _MOST_DIGITS and math.isfinite(number)
        return number if is_exact else None
    return value if isinstance(value, int) else value.isoformat()


def _time(value: datetime.datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"
