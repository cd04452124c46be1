"""What `format("siltstone")` is asked for: every option it has, checked; what it does not know is refused."""

import datetime
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructField, StructType

from siltstone.catalog import main as catalog
from siltstone.errors import InvalidInputError
from siltstone.model.names import did_you_mean
from siltstone.model.rounds import CompactedFile, RoundCompletion
from siltstone.model.schema import check_known
from siltstone.objects import canonical_root, share_access
from siltstone.rows.columns import align
from siltstone.rows.files import Comparison, Operator, StoredFile
from siltstone.rows.hashing import hash_keys
from siltstone.rows.job import RoundJob
from siltstone.rows.parts import GatheredParts, read_parts
from siltstone.spark.merge import merge_tasks
from siltstone.spark.types import handed_over, spark_schema
from siltstone.table.scan import live_rows, merged_rows, plan_reads
from siltstone.table.snapshot import parse_moment, take_snapshot

FORMAT = "siltstone"
NAMES = ("root", "table", "columns", "as_of", "fresh")
# What `load("shop.orders")` gives, and the name that `to_spark` has for fresh reads.
_PATH = "path"
_ALIASES = {_PATH: "table", "include_uncompacted": "fresh"}
_CREATED_PREFIX = "option."
_HOW = (
    '.option("root", …).load("namespace.table"), or in SQL CREATE TABLE name USING siltstone '
    "OPTIONS (root '…', table 'namespace.table'), without columns; SILTSTONE_ROOT may name the root"
)


@dataclass(frozen=True)
class ReadOptions:
    """A table, and how it is to be read: as compacted, unless it is fresh or as of some moment."""

    root: str
    table: str
    columns: tuple[str, ...] | None = None
    as_of: int | datetime.datetime | None = None
    fresh: bool = False


def is_creation(given: Mapping[str, str]) -> bool:
    """Tell whether Spark asks on behalf of CREATE TABLE: what it gives then is all that is known about the table."""
    return given.get("provider", "").lower() == FORMAT


def options_of_creation(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options among what Spark gives at CREATE TABLE."""
    options = {name.removeprefix(_CREATED_PREFIX): text for name, text in given.items() if _is_option(name)}
    location = given.get("location")
    return options if location is None else {_PATH: location, **options}


def _is_option(name: str) -> bool:
    return name.startswith(_CREATED_PREFIX)


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Check options, by names in lower case as Spark gives them. Raises: InvalidInputError."""
    texts: dict[str, str] = {}
    for name, text in given.items():
        known = _ALIASES.get(name, name)
        if known not in NAMES:
            raise InvalidInputError(
                f"format {FORMAT}: there is no option {name}; there are {', '.join(NAMES)}"
                f"{did_you_mean(name, [*NAMES, *_ALIASES])}"
            )
        if texts.setdefault(known, text) != text:
            raise InvalidInputError(f"format {FORMAT}: {known} is given as {texts[known]!r} and {text!r}; give it once")
    root = texts.get("root") or os.environ.get("SILTSTONE_ROOT")
    if not root or not texts.get("table"):
        raise InvalidInputError(f"format {FORMAT}: {'table' if root else 'root'} is not given; write {_HOW}")
    as_of = texts.get("as_of")
    return ReadOptions(
        root=canonical_root(root),
        table=texts["table"],
        columns=_column_names(texts["columns"]) if "columns" in texts else None,
        as_of=None if as_of is None else parse_moment(as_of.strip()),
        fresh=_truth(texts.get("fresh", "false")),
    )


def _column_names(text: str) -> tuple[str, ...]:
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(","))
    try:
        names = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"format {FORMAT}: columns is {text!r}, which is not JSON ({error})") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"format {FORMAT}: columns is {text!r}; give a list of names")
    return tuple(names)


def _truth(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise InvalidInputError(f"format {FORMAT}: fresh is {text!r}; give true or false")
    return text.strip().lower() == "true"


_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
}


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and let Spark hand filters to it, so that less is read."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SiltstoneSource)


class SiltstoneSource(DataSource):
    """A table's rows.

    Spark gives the options of CREATE TABLE only while it creates the table, and later a schema alone; so the first
    column of that schema carries them.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns asked for. Raises: InvalidInputError, NotFoundError."""
        given = dict(self.options)
        if not is_creation(given):
            return spark_schema(_columns(read_options(given)))
        kept = options_of_creation(given)
        options = read_options(kept)
        first, *others = spark_schema(_columns(options))
        metadata = {FORMAT: {**kept, "root": options.root}}
        return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])

    def reader(self, schema: StructType) -> "SiltstoneReader":
        """Return a reader of the columns asked for. Raises: InvalidInputError, NotFoundError."""
        kept = schema.fields[0].metadata.get(FORMAT, {}) if schema.fields else {}
        options = read_options({**kept, **self.options})
        snapshot = take_snapshot(options.table, as_of=options.as_of, fresh=options.fresh, root=options.root)
        version = snapshot.version
        check_known(schema.names, version.schema, "column")
        for asked, field in zip(schema, spark_schema(_chosen(version.schema, schema.names)), strict=True):
            if asked.dataType.simpleString() != field.dataType.simpleString():
                raise InvalidInputError(
                    f"{options.table}: column {field.name!r} is {field.dataType.simpleString()}, but Spark expects "
                    f"{asked.dataType.simpleString()}; leave out the schema, or create the table in Spark again"
                )
        stored = _chosen(version.as_in_files().schema, version.names_in_files(schema.names))
        return SiltstoneReader(options.root, stored, schema.names, *plan_reads(snapshot))


def _columns(options: ReadOptions) -> pa.Schema:
    schema = catalog.get_table_version(options.table, root=options.root).schema
    if options.columns is None:
        return schema
    check_known(options.columns, schema, "column")
    return _chosen(schema, options.columns)


def _chosen(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


class _FilePartition(InputPartition):
    """A file to read."""

    def __init__(self, file: CompactedFile) -> None:
        self.file = file


class _BucketsPartition(InputPartition):
    """Buckets of a job that are merged with what came since."""

    def __init__(self, job: int, buckets: range) -> None:
        self.job = job
        self.buckets = buckets


class _FilterTaker:
    """A reader's `pushFilters`, which Spark may call, but takes for the one that all readers have.

    While push-down is off, as it is by default, Spark refuses a reader that has a `pushFilters` of its own.
    """

    def __init__(self, stored_names: Mapping[str, str], where: list[Comparison]) -> None:
        self._stored_names = stored_names
        self._where = where
        self.__func__: Callable[..., object] = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember comparisons; Spark applies all filters again, so none needs to be exact here."""
        for each in filters:
            operator = _OPERATORS.get(type(each))
            if operator is not None:
                # A path of several names leads into a struct, of which no statistics are kept under one name.
                path, value = getattr(each, "attribute"), getattr(each, "value")  # noqa: B009
                if len(path) == 1 and path[0] in self._stored_names:
                    self._where.append(Comparison(self._stored_names[path[0]], operator, value))
        return filters


class SiltstoneReader(DataSourceReader):
    """Reads one file a task: only files of the bucket that a filter on the whole key leaves, and of these only the row
    groups whose statistics do not rule out a filter. With jobs, reads what their rounds would lead to. The schema is that
    of the files, which may have other names for columns than the table has by now.
    """

    def __init__(
        self,
        root: str,
        schema: pa.Schema,
        names: list[str],
        rounds: list[RoundCompletion],
        jobs: list[RoundJob],
    ) -> None:
        self._root = root
        self._access = share_access(root)
        self._schema = schema
        self._names = names
        self._rounds = rounds
        self._jobs = jobs
        self._where: list[Comparison] = []
        self.pushFilters = _FilterTaker(dict(zip(names, schema.names, strict=True)), self._where)  # type: ignore[method-assign]

    def partitions(self) -> list[InputPartition]:
        """Return the files to read, and the buckets to merge."""
        partitions: list[InputPartition] = []
        for number, job in enumerate(self._jobs):
            tasks = min(len(job.buckets), merge_tasks(job, is_full=True))
            partitions += [_BucketsPartition(number, range(task, len(job.buckets), tasks)) for task in range(tasks)]
        return partitions + [_FilePartition(file) for completion in self._rounds for file in self._files(completion)]

    def _files(self, completion: RoundCompletion) -> list[CompactedFile]:
        keys = completion.primary_keys
        equal = {each.column: each.value for each in self._where if each.operator == "="}
        if not keys or not set(keys) <= set(equal):
            return completion.files
        fields = pa.schema([self._schema.field(name) for name in keys if name in self._schema.names])
        if len(fields) != len(keys):
            return completion.files
        try:
            key = align(pa.table({name: [equal[name]] for name in keys}), fields)
        except pa.ArrowException:
            # Spark's value is of another kind than the column, e.g. an interval for a time: any file may have it.
            return completion.files
        (wanted,) = hash_keys(key, keys)
        return [file for bucket in completion.buckets if bucket.has(int(wanted)) for file in bucket.files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        self._access.use()
        for table in self._tables(partition):
            yield from handed_over(table, self._schema).rename_columns(self._names).to_batches()

    def _tables(self, partition: InputPartition) -> Iterator[pa.Table]:
        if isinstance(partition, _FilePartition):
            yield from live_rows(StoredFile(self._root, partition.file), self._schema, where=self._where)
        elif isinstance(partition, _BucketsPartition):
            job, buckets = self._jobs[partition.job], partition.buckets
            parts = GatheredParts(part for part in read_parts(job, job.reads) if part[0] in buckets)
            for number in buckets:
                yield from merged_rows(job, number, parts.take(number))
