"""Changes by `format("siltstone")`: those between two bounds as a data frame, and those that come as a stream."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from siltstone.errors import InvalidInputError
from siltstone.model.schema import nullable
from siltstone.objects import canonical_root, share_access
from siltstone.spark.frames import handed_over, spark_schema
from siltstone.spark.options import FORMAT, column_names, is_true, option_texts
from siltstone.table.change_feed import Changes, Images, OnRebase, open_changes
from siltstone.table.completion import get_round
from siltstone.table.round_bounds import Bound, round_id, watermark

AFTER, FEED = "changes_after", "feed"
_NAMES = ("root", "table", "columns", "images", "net", "on_rebase")
_READ_NAMES = (*_NAMES, AFTER, "changes_upto")
_STREAM_NAMES = (*_NAMES, FEED, "start", "max_rows")
_EARLIEST, _LATEST = "earliest", "latest"


@dataclass(frozen=True)
class FeedOptions:
    """A table, and which of its changes are to be read."""

    root: str
    table: str
    columns: tuple[str, ...] | None = None
    images: Images = "both"
    net: bool = True
    on_rebase: OnRebase = "difference"
    after: str = _EARLIEST
    upto: str | None = None
    max_rows: int | None = None

    def changes(self, after: Bound | None, upto: Bound | None) -> Changes:
        """Return changes between two bounds. Raises: InvalidInputError, NotFoundError."""
        how = {"columns": self.columns, "images": self.images, "net": self.net, "on_rebase": self.on_rebase}
        return open_changes(self.table, after, upto, **how, root=self.root)  # type: ignore[arg-type]


def asks_for_changes(options: Mapping[str, str]) -> bool:
    """Return whether changes are to be read, and not rows."""
    return AFTER in options or FEED in options


def feed_options(options: Mapping[str, str]) -> FeedOptions:
    """Check the options of a read of changes. Raises: InvalidInputError."""
    texts = option_texts(options, _STREAM_NAMES if FEED in options else _READ_NAMES, "load")
    if texts.get(FEED, "changes") != "changes":
        raise InvalidInputError(f"format {FORMAT}: feed is {texts[FEED]!r}; there is changes")
    most = texts.get("max_rows")
    if most is not None and not (most.isdecimal() and int(most)):
        raise InvalidInputError(f"format {FORMAT}: max_rows is {most!r}; use a whole number of at least 1")
    return FeedOptions(
        root=canonical_root(texts["root"]),
        table=texts["table"],
        columns=column_names("columns", texts),
        images=cast("Images", texts.get("images", "both")),
        net=is_true("net", texts, default=True),
        on_rebase=cast("OnRebase", texts.get("on_rebase", "difference")),
        after=texts.get("start", _EARLIEST) if FEED in texts else texts[AFTER],
        upto=texts.get("changes_upto"),
        max_rows=None if most is None else int(most),
    )


def change_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of changes. Raises: InvalidInputError, NotFoundError."""
    # Spark wants batches to say of each column whether it may be null as it was told before.
    return spark_schema(nullable(feed_options(options).changes(None, None).schema))


class _TaskReader:
    """Reads the changes of one partition of the table in a task."""

    def __init__(self, options: FeedOptions) -> None:
        self._options = options
        self._access = share_access(options.root)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes; where there are none, Spark makes a partition without a value."""
        if partition.value is None:
            return
        self._access.use()
        changes: Changes = partition.value
        for batch in changes:
            yield from handed_over(pa.Table.from_batches([batch]), changes.schema).to_batches()


def _partitions(changes: Changes) -> list[InputPartition]:
    """Return the changes of each partition that has rounds, which a task reads one after another."""
    return [InputPartition(replace(changes, spans=(span,))) for span in changes.spans if span.rounds]


class ChangeReader(_TaskReader, DataSourceReader):
    """Reads changes between two bounds."""

    def partitions(self) -> list[InputPartition]:
        """Return one task for each partition. Raises: InvalidInputError, NotFoundError."""
        after = None if self._options.after == _EARLIEST else self._options.after
        return _partitions(self._options.changes(after, self._options.upto))


class ChangeStreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes as they come; an offset is the round of each partition, and a batch is whole positions of all of them."""

    def __init__(self, options: FeedOptions) -> None:
        super().__init__(options)
        self._end: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a new query starts. Raises: InvalidInputError, NotFoundError."""
        start = self._options.after
        if start == _EARLIEST:
            return {}
        if start == _LATEST:
            return _offset(self._options.changes(None, None).upto)
        return _offset(self._options.changes(start, None).after)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch has at most."""
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at what there is now."""
        self._end = _offset(self._options.changes(None, None).upto)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return how far a batch goes: at least to the next position, whatever the limit. Raises: NotFoundError."""
        # Where a partition was rolled back, others may have been further than all are together now.
        end = None if self._end is None else {name: max(last, start.get(name, 0)) for name, last in self._end.items()}
        changes = self._options.changes(start, end)
        if isinstance(limit, ReadMaxRows):
            changes = _limited(self._options, changes, limit.max_rows)
        return _offset({**start, **changes.upto})

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one task for each partition of the table. Raises: NotFoundError where a round was vacuumed."""
        return _partitions(self._options.changes(start, end))

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the checkpoint of the query says how far it is."""


def _offset(rounds: Mapping[str, int]) -> dict[str, int]:
    """Return rounds such that equal ones are written alike."""
    return {name: rounds[name] for name in sorted(rounds) if rounds[name]}


def _limited(options: FeedOptions, changes: Changes, max_rows: int) -> Changes:
    """Return changes up to the last position before which rounds read no more rows, and at least up to the first one."""
    rows: dict[int, int] = {}
    for span in changes.spans:
        for entry in span.rounds:
            accounting = get_round(span.destination, round_id(entry)).accounting
            rows[watermark(entry)] = rows.get(watermark(entry), 0) + accounting.input_rows
    total = 0
    upto: int | None = None
    for position in sorted(rows):
        total += rows[position]
        if upto is not None and total > max_rows:
            return options.changes(changes.after, upto)
        limited = options.changes(changes.after, position)
        upto = position if limited.upto != limited.after else None
    return changes
