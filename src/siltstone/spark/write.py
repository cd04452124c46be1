"""Data frames into deltas: executors write the files, the driver puts together what they staged."""

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PythonException
from pyspark.sql import DataFrame

from siltstone.documents.intake import check_columns, checked_updates, with_ids
from siltstone.documents.record import new_change_id
from siltstone.documents.schema import WRITTEN_SCHEMA, stored_updates
from siltstone.errors import ConflictError, InvalidInputError
from siltstone.model import Delta, DeltaType, Manifest, StreamLocator
from siltstone.spark.frames import spark_schema
from siltstone.spark.tasks import translated, with_access
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLike

_MIDNIGHT_DISTANCE = pa.duration("us")
_DAY_MICROSECONDS = 24 * 3600 * 1_000_000


@dataclass(frozen=True)
class Staging:
    """How rows that come from Spark become deltas of a stream; it travels to where tasks run."""

    stream: StreamLocator
    root: str
    table_schema: pa.Schema
    type: DeltaType = "upsert"
    delete_columns: Sequence[str] | None = None
    op_column: str | None = None
    evolve: bool = True

    def check(self, schema: pa.Schema) -> list[Delta]:
        """Stage no rows, so that a wrong schema is refused before any task runs. Raises: as `stage_deltas`."""
        none = taken_back(pa.RecordBatch.from_pylist([], schema), self.table_schema)
        return self._stage([none], self.stream)

    def stage(self, batches: Iterable[pa.RecordBatch], stream: StreamLike | None = None) -> list[Delta]:
        """Write the files of a task's rows. Raises: as `stage_deltas`."""
        staged = self._stage((taken_back(batch, self.table_schema) for batch in batches), stream or self.stream)
        return [delta for delta in staged if delta.manifest.entries]

    def _stage(self, batches: Iterable[pa.RecordBatch], stream: StreamLike) -> list[Delta]:
        return storage.stage_deltas(
            batches,
            stream,
            type=self.type,
            delete_columns=self.delete_columns,
            op_column=self.op_column,
            evolve=self.evolve,
            root=self.root,
        )

    def combine(self, by_task: Sequence[Sequence[Delta]]) -> list[Delta]:
        """Return one delta for each partition, of those of all tasks.

        Raises: ConflictError where columns were renamed or dropped while tasks were writing; what they wrote is discarded.
        """
        deltas = [delta for task in by_task for delta in task]
        if len({json.dumps([delta.columns, delta.delete_columns, delta.op_column]) for delta in deltas}) > 1:
            storage.discard_deltas(deltas, root=self.root)
            raise ConflictError(
                f"{self.stream}: columns were renamed or dropped while this was being written; write it again"
            )
        return _combined(by_task)


def stage_on_spark(
    frame: DataFrame,
    stream: StreamLocator,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    evolve: bool = True,
    root: str,
) -> list[Delta]:
    """Stage a data frame; where it is empty, what its schema alone says.

    Raises: as `stage_deltas`; ConflictError where columns were renamed or dropped while tasks were writing.
    """
    version = stream.table_version_locator
    table_schema = storage.get_table_version_schema(version.namespace, version.table, version.table_version, root=root)
    staging = Staging(stream, root, table_schema, type, delete_columns, op_column, evolve)

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"deltas": [json.dumps(staging.stage(batches))]})

    empty = staging.check(frame.limit(0).toArrow().schema)
    try:
        rows = frame.mapInArrow(with_access(root, stage), "deltas string").collect()
    except PythonException as error:
        raise translated(error) from error
    return staging.combine([decoded(row.deltas) for row in rows]) or empty


def decoded(text: str) -> list[Delta]:
    """Return the deltas that a task staged, which travel as JSON."""
    return [Delta.from_serializable(delta) for delta in json.loads(text)]


def _combined(by_task: Sequence[Sequence[Delta]]) -> list[Delta]:
    """Return one delta for each partition, of those of all tasks.

    Deletes of a task that concern every partition are in its own files of the partitions that it has rows for; for those that
    only other tasks have rows for, they come from a file of their own.
    """
    touched = {delta.locator.partition_id: delta for task in by_task for delta in task if not delta.every_partition}
    combined: list[Delta] = []
    for partition, first in touched.items():
        entries = []
        for task in by_task:
            own = [delta for delta in task if not delta.every_partition and delta.locator.partition_id == partition]
            for delta in own or [delta for delta in task if delta.every_partition]:
                entries += delta.manifest.entries
        combined.append(Delta.from_serializable({**first, "manifest": Manifest(entries=entries)}))
    everywhere = [delta for task in by_task for delta in task if delta.every_partition]
    if everywhere:
        entries = [entry for delta in everywhere for entry in delta.manifest.entries]
        combined.append(Delta.from_serializable({**everywhere[0], "manifest": Manifest(entries=entries)}))
    return combined


def stage_updates(frame: DataFrame, stream: StreamLocator, *, now_ms: int, root: str) -> list[Delta]:
    """Check updates and stage them; executors make change ids of now where there are none. Raises: InvalidInputError."""
    check_columns(frame.columns)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from update_batches(batches, now_ms)

    checked = frame.mapInArrow(with_access(root, check), spark_schema(WRITTEN_SCHEMA))
    try:
        return stage_on_spark(checked, stream, type="append", root=root)
    except PythonException as error:
        raise translated(error) from error


def update_batches(batches: Iterable[pa.RecordBatch], now_ms: int) -> Iterator[pa.RecordBatch]:
    """Yield updates of documents as they are stored, those without a change id with one of now. Raises: InvalidInputError."""
    for batch in batches:
        updates = with_ids(checked_updates(batch.to_pylist()), lambda: new_change_id(now_ms))
        yield from stored_updates(updates).to_batches()


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
