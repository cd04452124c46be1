"""Changes by `format("siltstone")`: those between two bounds as a data frame, and those that come as a stream."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from siltstone.errors import InvalidInputError
from siltstone.model.schema import nullable
from siltstone.objects import share_access
from siltstone.spark.feed_options import EARLIEST, LATEST, FeedOptions, Limits, Size
from siltstone.spark.frames import handed_over, spark_schema
from siltstone.spark.stream_limits import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from siltstone.table.change_feed import Changes
from siltstone.table.completion import get_round
from siltstone.table.round_bounds import round_id, watermark


class TaskReader:
    """Reads changes, or rows of deltas, in a task."""

    def __init__(self, options: FeedOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._access = share_access(options.root)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows; where there are none, Spark makes a partition without a value."""
        if partition.value is None:
            return
        self._access.use()
        for batch in partition.value:
            yield from handed_over(pa.Table.from_batches([batch]), batch.schema).to_batches()

    def _checked(self, schema: pa.Schema) -> None:
        """Refuse columns whose types changed since the query began. Raises: InvalidInputError."""
        found = spark_schema(nullable(schema))
        if found.names != self._schema.names:
            raise InvalidInputError(
                f"{self._options.table}: the schema has {', '.join(self._schema.names)}, but what is read has {', '.join(found.names)}; "
                "leave out the schema, and choose with columns"
            )
        for expected, field in zip(self._schema, found, strict=True):
            if expected.dataType.simpleString() != field.dataType.simpleString():
                raise InvalidInputError(
                    f"{self._options.table}: column {field.name!r} is {field.dataType.simpleString()} now, and was "
                    f"{expected.dataType.simpleString()} when the query began; start it again, with the same checkpoint"
                )

    def _partitions(self, changes: Changes) -> list[InputPartition]:
        """Return the changes in parts, each of which a task reads."""
        self._checked(changes.schema)
        return [InputPartition(part) for part in changes.parts()]


class ChangeReader(TaskReader, DataSourceReader):
    """Reads changes between two bounds."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks: one for each partition, and more where much changed. Raises: InvalidInputError, NotFoundError."""
        after = None if self._options.after == EARLIEST else self._options.after
        return self._partitions(self._options.changes(after, self._options.upto))


class ChangeStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes as they come; an offset is the round of each partition, and a batch is whole positions of all of them."""

    _end: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a new query starts. Raises: InvalidInputError, NotFoundError."""
        start = self._options.after
        if start == EARLIEST:
            return {}
        if start == LATEST:
            return _offset(self._options.changes(None, None).upto)
        return _offset(self._options.changes(start, None).after)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch has at most."""
        return self._options.limits.of_spark

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at what there is now."""
        self._end = _offset(self._options.changes(None, None).upto)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return how far a batch goes: at least to the next position, whatever the limit. Raises: NotFoundError."""
        # Where a partition was rolled back, others may have been further than all are together now.
        end = None if self._end is None else {name: max(last, start.get(name, 0)) for name, last in self._end.items()}
        changes = self._options.changes(start, end)
        if not self._is_snapshot(start) and not isinstance(limit, ReadAllAvailable):
            changes = _limited(self._options, changes)
        return _offset({**start, **changes.upto})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the tasks: one for each partition of the table, and more where much changed.

        Raises: NotFoundError where a round was vacuumed, InvalidInputError.
        """
        changes = self._options.changes(start, end)
        return self._partitions(replace(changes, net=True) if self._is_snapshot(start) else changes)

    def _is_snapshot(self, start: dict[str, int]) -> bool:
        """Return whether a batch is all rows that there are, though rounds are asked for one by one, and within limits."""
        return self._options.snapshot and not start

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the checkpoint of the query says how far it is."""


def _offset(rounds: Mapping[str, int]) -> dict[str, int]:
    """Return rounds such that equal ones are written alike."""
    return {name: rounds[name] for name in sorted(rounds) if rounds[name]}


def _limited(options: FeedOptions, changes: Changes) -> Changes:
    """Return changes up to the last position within the limits, and at least up to the first one at which there are any."""
    sizes = _sizes(changes, options.limits)
    upto = options.limits.last_within(sizes)
    if upto is None:
        return changes
    for position in (each.position for each in sizes if each.position >= upto):
        limited = options.changes(changes.after, position)
        # A partition that has not come to a position makes the others wait.
        if limited.upto != limited.after:
            return limited
    return changes


def _sizes(changes: Changes, limits: Limits) -> list[Size]:
    """Return what rounds have read, by the position that they came to."""
    sizes: dict[int, Size] = {}
    for span in changes.spans:
        for entry in span.rounds:
            position = watermark(entry)
            known = sizes.get(position, Size(position, 0, 0))
            if limits.rows is None and limits.bytes is None:
                sizes[position] = known
                continue
            completion = get_round(span.destination, round_id(entry))
            rows, size = known.rows + completion.accounting.input_rows, known.bytes + completion.input_bytes
            sizes[position] = Size(position, rows, size)
    return [sizes[position] for position in sorted(sizes)]
