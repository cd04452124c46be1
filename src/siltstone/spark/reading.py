"""Compacted rows as data frames: plain Parquet where nothing is dead and the JVM reaches it, Arrow elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from siltstone.compactor.files import StoredFile
from siltstone.compactor.live import live_rows
from siltstone.compactor.state import CompactedFile
from siltstone.objects import local_folder
from siltstone.spark.access import reaching


@dataclass(frozen=True)
class FileSet:
    """The files of a table's compacted rows, and the columns to read."""

    root: str
    files: tuple[CompactedFile, ...]
    schema: pa.Schema


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark types of a table's columns."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def read_files(spark: SparkSession, files: FileSet) -> DataFrame:
    """Return the live rows of files as a data frame."""
    folder = local_folder(files.root)
    whole = [file for file in files.files if file.deletion_vector is None and folder is not None]
    others = [file for file in files.files if file.deletion_vector is not None or folder is None]
    schema = spark_schema(files.schema)
    if not whole:
        return _read_in_python(spark, files, others, schema)
    native = spark.read.schema(schema).parquet(*(f"file://{folder}/{file.uri}" for file in whole))
    return native.unionByName(_read_in_python(spark, files, others, schema)) if others else native


def _read_in_python(
    spark: SparkSession, files: FileSet, chosen: Sequence[CompactedFile], schema: StructType
) -> DataFrame:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                for table in live_rows(StoredFile(files.root, chosen[number]), files.schema):
                    yield from table.to_batches()

    return spark.range(0, len(chosen), 1, max(1, len(chosen))).mapInArrow(reaching(files.root, read), schema)
