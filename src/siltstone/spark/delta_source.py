"""The rows of deltas as a stream by `format("siltstone")`: as they were written, before compaction."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from siltstone.errors import InvalidInputError
from siltstone.model import Delta
from siltstone.spark.change_source import TaskReader
from siltstone.spark.feed_options import EARLIEST, LATEST, Size
from siltstone.spark.stream_limits import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from siltstone.table.change_feed import Changes
from siltstone.table.delta_feed import DeltaFeed, delta_schema, snapshot_rows
from siltstone.table.snapshot import parse_moment

Offset = dict[str, Any]
"""A position, and the folder of the stream that it is of; after a snapshot, also the rounds that that is of."""


@dataclass(frozen=True)
class SnapshotPart:
    """A part of the whole table, compacted up to a position, as rows of deltas are."""

    changes: Changes
    position: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return snapshot_rows(self.changes, self.position)


class DeltaStreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of deltas as they come; a batch is whole commits. An empty offset is before a snapshot."""

    _end: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query starts. Raises: InvalidInputError, NotFoundError."""
        feed, start = self._options.deltas(), self._options.after
        feed.refuse_followers()
        if self._options.snapshot:
            return {}
        if start == EARLIEST:
            return _offset(feed, 0)
        return _offset(feed, feed.newest if start == LATEST else feed.position_of(parse_moment(start.strip())))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch has at most."""
        return self._options.limits.of_spark

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at what there is now."""
        self._end = self._options.deltas().newest

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return how far a batch goes: at least to the next position, whatever the limit. Raises: NotFoundError."""
        feed = self._options.deltas()
        if not start:
            changes = self._options.changes(None, None)
            return {**_offset(feed, changes.positions[1]), "rounds": changes.upto}
        position = _position(feed, start)
        newest = feed.newest
        if newest < position:
            raise InvalidInputError(
                f"{feed.name}: the query has come to position {position}, but the newest one is {newest}; is this an older copy of the "
                "lake? Begin anew, with a new checkpoint"
            )
        end = newest if self._end is None else max(min(self._end, newest), position)
        if end == position:
            return start
        if not isinstance(limit, ReadAllAvailable):
            end = self._options.limits.last_within(_sizes(feed.after(position, end))) or end
        return _offset(feed, end)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks: small files together. Raises: NotFoundError where deltas are trimmed, InvalidInputError."""
        feed = self._options.deltas()
        self._checked(delta_schema(feed.version, feed.columns))
        upto = _position(feed, end)
        if not start:
            changes = self._options.changes(None, end["rounds"])
            return [InputPartition(SnapshotPart(part, upto)) for part in changes.parts()]
        return [InputPartition(part) for part in feed.parts(feed.after(_position(feed, start), upto))]

    def commit(self, end: Offset) -> None:
        """Do nothing: the checkpoint of the query says how far it is."""


def _offset(feed: DeltaFeed, position: int) -> Offset:
    return {"position": position, "stream": feed.stream.folder}


def _position(feed: DeltaFeed, offset: Offset) -> int:
    """Return the position of an offset. Raises: InvalidInputError where it is of another table."""
    if offset.get("stream") != feed.stream.folder or not isinstance(offset.get("position"), int):
        raise InvalidInputError(
            f"{feed.name}: the checkpoint is of a query of other deltas, {offset}; those of this table are in {feed.stream.folder}. "
            "Begin anew, with a new checkpoint"
        )
    return int(offset["position"])


def _sizes(deltas: list[Delta]) -> list[Size]:
    """Return what each position has."""
    sizes = []
    for position, members in groupby(deltas, lambda delta: delta.stream_position):
        manifests = [delta.manifest for delta in members]
        rows, size = sum(each.record_count for each in manifests), sum(each.content_length for each in manifests)
        sizes.append(Size(position, rows, size))
    return sizes
