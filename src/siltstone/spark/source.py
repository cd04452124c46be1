"""Reading by `format("siltstone")`: its schema, filters and readers."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructField, StructType

from pyspark_siltstone import DefaultSource
from siltstone.catalog import main as catalog
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.model.buckets import CompactedFile
from siltstone.model.schema import check_known, nullable
from siltstone.objects import share_access
from siltstone.rows.job import RoundJob
from siltstone.rows.parts import Tasks
from siltstone.rows.slices import by_data_file
from siltstone.spark.change_source import ChangeReader, ChangeStreamReader
from siltstone.spark.delta_source import DeltaStreamReader
from siltstone.spark.feed_options import AFTER, FEED, asks_for_feed, feed_options
from siltstone.spark.frames import handed_batches, spark_schema
from siltstone.spark.options import FORMAT, ReadOptions, created_options, read_options, with_kept
from siltstone.spark.stream_limits import READS_STREAMS
from siltstone.spark.tasks import merge_tasks
from siltstone.table import where
from siltstone.table.delta_feed import delta_schema
from siltstone.table.scan import MergeTask, RowReader, Scan, open_scan
from siltstone.table.where import Condition, Node

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let Spark hand filters to it, so that less is read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(DefaultSource)


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns that options ask for; where they are those of CREATE TABLE, the first carries them along.

    Raises: InvalidInputError, NotFoundError.
    """
    kept = created_options(options)
    if asks_for_feed(options):
        return _feed_schema(options)
    if kept is None:
        return spark_schema(_columns(read_options(options)))
    chosen = read_options(kept)
    first, *others = spark_schema(_columns(chosen))
    metadata = {FORMAT: {**kept, "root": chosen.root}}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def open_reader(options: Mapping[str, str], schema: StructType) -> "SiltstoneReader | ChangeReader":
    """Return a reader of the columns of a schema, or of changes. Raises: InvalidInputError."""
    if FEED in options:
        raise InvalidInputError(
            f'format {FORMAT}: feed is for streams, spark.readStream; to read changes once, use .option("{AFTER}", …)'
        )
    if asks_for_feed(options):
        return ChangeReader(feed_options(options, schema), schema)
    return SiltstoneReader(read_options(with_kept(options, schema)), schema)


def open_stream_reader(options: Mapping[str, str], schema: StructType) -> ChangeStreamReader | DeltaStreamReader:
    """Return a reader of changes, or of deltas, as they come. Raises: InvalidInputError."""
    if FEED not in options:
        raise InvalidInputError(
            f'format {FORMAT}: a stream is one of changes or of deltas; say so with .option("feed", "changes")'
        )
    if not READS_STREAMS:
        raise InvalidInputError(
            f"format {FORMAT}: streams are read with Spark 4.2 or newer, and this is {pyspark.__version__}; use a newer one, or read "
            f'changes now and then with .option("{AFTER}", …)'
        )
    chosen = feed_options(options, schema)
    return (ChangeStreamReader if chosen.feed == "changes" else DeltaStreamReader)(chosen, schema)


def _feed_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of changes, or of rows of deltas. Raises: InvalidInputError, NotFoundError."""
    chosen = feed_options(options)
    if chosen.feed == "deltas":
        feed = chosen.deltas()
        return spark_schema(nullable(delta_schema(feed.version, feed.columns)))
    return spark_schema(nullable(chosen.changes(None, None).schema))


def _columns(options: ReadOptions) -> pa.Schema:
    # Spark compares the columns of batches with these, also by whether they may be null; those of batches all may.
    schema = nullable(catalog.get_table_version(options.table, root=options.root).schema)
    if options.columns is None:
        return schema
    check_known(options.columns, schema, "column")
    return pa.schema([schema.field(name) for name in options.columns])


class _Tasks(NamedTuple):
    """What all tasks of a read share: how rows are read, and the jobs that merge deltas."""

    reader: RowReader
    jobs: list[RoundJob]


class _Buckets(NamedTuple):
    """Buckets of one of the jobs."""

    job: int
    buckets: Sequence[int]


class SiltstoneReader(DataSourceReader):
    """Reads one file a task, of those that filters do not rule out; where deltas wait, some buckets with these merged in."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._spark_schema = schema
        self._access = share_access(options.root)
        self._filters: list[Filter] = []
        self.pushFilters = _FilterTaker(self._filters)  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, object]:
        """Return what tasks need. Spark asks for it before it asks for partitions, where it shows what fails as it is."""
        with contextlib.suppress(SiltstoneError):
            return {"_access": self._access, "_tasks": self._tasks}
        return {}

    def partitions(self) -> list[InputPartition]:
        """Return the files to read, and the buckets to merge. Raises: InvalidInputError, NotFoundError."""
        # Spark pickles each by itself, so that none has more than its own: a job names all buckets and files.
        work: list[_Buckets | tuple[CompactedFile, ...]] = []
        for number, merge in enumerate(self._scan.merges):
            tasks = Tasks(merge.buckets, min(len(merge.buckets), merge_tasks(merge.job, is_full=True)))
            work += [_Buckets(number, tasks.numbers_of(task)) for task in range(tasks.count)]
        return [InputPartition(item) for item in [*work, *by_data_file(self._scan.compacted_files)]]

    @cached_property
    def _tasks(self) -> "_Tasks":
        return _Tasks(self._scan.reader, [merge.job for merge in self._scan.merges])

    @cached_property
    def _scan(self) -> Scan:
        """A scan of the partitions that the filters do not rule out; no other is opened."""
        options, names = self._options, self._spark_schema.names
        condition = self._condition() if self._filters else None
        scan = open_scan(
            options.table,
            names,
            condition,
            as_of=options.as_of,
            fresh=options.fresh,
            current_only=options.current_only,
            valid_at=options.valid_at,
            root=options.root,
        )
        for expected, field in zip(self._spark_schema, spark_schema(scan.schema), strict=True):
            if expected.dataType.simpleString() != field.dataType.simpleString():
                raise InvalidInputError(
                    f"{options.table}: column {field.name!r} is {field.dataType.simpleString()}, but Spark expects "
                    f"{expected.dataType.simpleString()}; leave out the schema, or create the table in Spark again"
                )
        return scan

    def _condition(self) -> Condition | None:
        """Return those of the filters that can be applied here; Spark applies all of them again."""
        schema = catalog.get_table_version(self._options.table, root=self._options.root).schema
        columns: dict[Node, str] = {}
        for filter_ in self._filters:
            # A path of several names leads into a struct, of which nothing is known under one name.
            path: tuple[str, ...] = getattr(filter_, "attribute", ())
            if len(path) == 1 and path[0] in self._spark_schema.names and path[0] in schema.names:
                node = _as_node(filter_, schema.field(path[0]))
                if node is not None:
                    columns[node] = path[0]
        return where.condition_of(where.And(tuple(columns)), columns.values()) if columns else None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; where there are none, Spark makes one without a value."""
        if partition.value is None:
            return
        self._access.use()
        reader, jobs = self._tasks
        if isinstance(partition.value, _Buckets):
            task = MergeTask(jobs[partition.value.job], partition.value.buckets)
            yield from handed_batches(reader, reader.read_merged(task))
        else:
            yield from handed_batches(reader, reader.read_file(partition.value))


class _FilterTaker:
    """A reader's `pushFilters`, which Spark may call, but takes for the one that all readers have.

    While push-down is off, as it is by default, Spark refuses a reader that has a `pushFilters` of its own.
    """

    def __init__(self, taken: list[Filter]) -> None:
        self._taken = taken
        self.__func__: Callable[..., object] = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters, and return all of them: Spark then applies them, too."""
        self._taken.extend(filters)
        return filters


def _as_node(filter_: Filter, field: "pa.Field[Any]") -> Node | None:
    """Return a filter of Spark's as one of ours, or None if there is none."""
    if isinstance(filter_, IsNull | IsNotNull):
        is_null = where.IsNull(field.name)
        return is_null if isinstance(filter_, IsNull) else where.Not(is_null)
    if isinstance(filter_, In):
        values = [_typed(value, field) for value in filter_.value if value is not None]
        typed = tuple(value for value in values if value is not None)
        return where.In(field.name, typed) if typed and len(typed) == len(values) else None
    operator = _OPERATORS.get(type(filter_))
    # To Spark, NaN is greater than any number, to us it is not.
    if operator is None or (pa.types.is_floating(field.type) and operator in (">", ">=")):
        return None
    value = _typed(getattr(filter_, "value"), field)  # noqa: B009
    return None if value is None else where.Comparison(field.name, operator, value)


def _typed(value: object, field: "pa.Field[Any]") -> "pa.Scalar[Any] | None":
    """Return a value in the type of a column; None where it is of another kind, or NaN, which equals itself to Spark."""
    if value is None or value != value:
        return None
    try:
        return pa.scalar(value).cast(field.type)
    except (pa.ArrowException, TypeError, ValueError):
        return None
