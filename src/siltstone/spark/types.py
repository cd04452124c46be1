"""Which Spark type a column is handed over in, whichever way it is read, and the Arrow values that Spark takes for it.

Every type has its Spark namesake but `time`: Spark has a type TIME only where a setting allows it, and refuses a whole
table with such a column elsewhere. So a time of day is handed over as the interval since midnight, INTERVAL DAY TO SECOND,
also inside lists, structs and maps. It has microseconds, it compares, and added to a date it is a timestamp.
"""

import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from siltstone.errors import InvalidInputError
from siltstone.rows.columns import align

_MIDNIGHT_DISTANCE = pa.duration("us")
_DAY_MICROSECONDS = 24 * 3600 * 1_000_000


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types of a table's columns."""
    return from_arrow_schema(handed_schema(schema), prefer_timestamp_ntz=True)


def handed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow types in which Spark is given a table's columns."""
    handed = [field.with_type(_with_times_as(field.type, _MIDNIGHT_DISTANCE)) for field in schema]
    return pa.schema([field.remove_metadata() for field in handed])


def handed_over(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Bring rows to a table's schema, and then to the types in which Spark is given them."""
    aligned = align(table, schema)
    columns = [_column(aligned.column(field.name), field.type) for field in schema]
    return pa.Table.from_arrays(columns, names=schema.names)


def taken_back(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows that come from Spark with intervals as times where the table has these. Raises: InvalidInputError."""
    times = {field.name for field in schema if pa.types.is_time(field.type)}
    for position, field in enumerate(batch.schema):
        if field.name in times and pa.types.is_duration(field.type):
            array = _time_of_day(batch.column(position), field.name)
            batch = batch.set_column(position, field.with_type(array.type), array)
    return batch


def _time_of_day(array: "pa.Array[object]", name: str) -> "pa.Array[object]":
    since_midnight = array.cast(_MIDNIGHT_DISTANCE).cast(pa.int64())
    for bound in pc.min_max(since_midnight).as_py().values():
        if bound is not None and not 0 <= bound < _DAY_MICROSECONDS:
            raise InvalidInputError(
                f"column {name!r} has {datetime.timedelta(microseconds=bound)}, which is not a time of day; "
                "give an interval since midnight of less than 24 hours"
            )
    return since_midnight.cast(pa.time64("us"))


def _column(column: "pa.ChunkedArray[object]", kind: pa.DataType) -> "pa.ChunkedArray[object]":
    handed = _with_times_as(kind, _MIDNIGHT_DISTANCE)
    # Arrow casts times to intervals by way of their numbers only.
    return column if handed.equals(kind) else column.cast(_with_times_as(kind, pa.int64())).cast(handed)


def _with_times_as(kind: pa.DataType, time: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return time
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_times_as(kind.value_type, time)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_times_as(field.type, time)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_with_times_as(kind.key_type, time)),
            kind.item_field.with_type(_with_times_as(kind.item_type, time)),
        )
    return kind
