"""The data source `siltstone`: `spark.read.format("siltstone").option("root", …).load("shop.orders")`."""

import os
from collections.abc import Iterable, Iterator

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
from pyspark.sql.types import StructType

from siltstone.catalog import main as catalog
from siltstone.compactor.columns import align
from siltstone.compactor.completion import current_rounds
from siltstone.compactor.files import StoredFile
from siltstone.compactor.hashing import hash_keys
from siltstone.compactor.live import live_rows
from siltstone.compactor.pruning import Comparison, Operator
from siltstone.compactor.state import CompactedFile, RoundCompletion
from siltstone.errors import InvalidInputError
from siltstone.objects import canonical_root, share_access
from siltstone.spark.types import handed_over, spark_schema

FORMAT = "siltstone"
_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
}


def register(spark: SparkSession) -> None:
    """Make the format known to a session, with filter push-down, without which Spark refuses readers that have it."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SiltstoneSource)


class _FilePartition(InputPartition):
    def __init__(self, file: CompactedFile) -> None:
        self.file = file


class SiltstoneSource(DataSource):
    """A table's compacted rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def _place(self) -> tuple[str, str]:
        root, name = self.options.get("root") or os.environ.get("SILTSTONE_ROOT"), self.options.get("path")
        if not root or not name:
            raise InvalidInputError('say .option("root", …).load("namespace.table"), or set SILTSTONE_ROOT')
        return canonical_root(root), name

    def schema(self) -> StructType:
        """Return the table's columns."""
        root, name = self._place()
        return spark_schema(catalog.get_table_version(name, root=root).schema)

    def reader(self, schema: StructType) -> "SiltstoneReader":
        """Return a reader of the columns asked for."""
        root, name = self._place()
        version = catalog.get_table_version(name, root=root)
        known = version.as_in_files().schema
        wanted = pa.schema([known.field(column) for column in version.names_in_files(schema.names)])
        return SiltstoneReader(root, current_rounds(name, root=root), wanted, schema.names)


class SiltstoneReader(DataSourceReader):
    """Reads one file a task: only files of the bucket that a filter on the whole key leaves, and of these only the row
    groups whose statistics do not rule out a filter.
    """

    def __init__(self, root: str, rounds: list[RoundCompletion], schema: pa.Schema, names: list[str]) -> None:
        self._root = root
        self._names = names
        self._access = share_access(root)
        self._rounds = rounds
        self._schema = schema
        self._where: list[Comparison] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Remember comparisons; Spark applies all filters again, so none needs to be exact here."""
        for each in filters:
            operator = _OPERATORS.get(type(each))
            if operator is not None:
                # A path of several names leads into a struct, of which no statistics are kept under one name.
                path, value = getattr(each, "attribute"), getattr(each, "value")  # noqa: B009
                if len(path) == 1 and path[0] in self._names:
                    stored = self._schema.names[self._names.index(path[0])]
                    self._where.append(Comparison(stored, operator, value))
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the files to read."""
        return [_FilePartition(file) for completion in self._rounds for file in self._files(completion)]

    def _files(self, completion: RoundCompletion) -> list[CompactedFile]:
        keys = completion.primary_keys
        equal = {each.column: each.value for each in self._where if each.operator == "="}
        if not keys or not set(keys) <= set(equal):
            return completion.files
        fields = pa.schema([self._schema.field(name) for name in keys if name in self._schema.names])
        if len(fields) != len(keys):
            return completion.files
        key = align(pa.table({name: [equal[name]] for name in keys}), fields)
        (wanted,) = hash_keys(key, keys)
        return [file for bucket in completion.buckets if bucket.has(int(wanted)) for file in bucket.files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of a file."""
        assert isinstance(partition, _FilePartition)
        self._access.use()
        for table in live_rows(StoredFile(self._root, partition.file), self._schema, where=self._where):
            yield from handed_over(table, self._schema).rename_columns(self._names).to_batches()
