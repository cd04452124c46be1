"""The files that reads are measured on: found where they are, or made, and beside each a table with the same rows."""

import functools
import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import siltstone
from benchmarks.orders import orders
from siltstone.objects import canonical_root, open_objects
from siltstone.spark import local_session

MADE = "made:"


@dataclass(frozen=True)
class Place:
    """A file, and a compacted table of the same rows."""

    uri: str
    rows: int
    size: int
    columns: tuple[str, ...]
    table: siltstone.Table


@functools.cache
def session() -> SparkSession:
    return local_session("benchmark", conf={"spark.driver.memory": "4g"})


def place_files(path: str, root: str) -> Place:
    """Make the file under the root where it is to be made, and the table in any case: in S3 for files in S3."""
    uri = make_file(int(path.removeprefix(MADE)), root) if path.startswith(MADE) else path
    folder, _, file = canonical_root(uri).rpartition("/")
    with open_objects(folder).open_reader(file) as reader:
        rows = pq.read_table(reader)
    found = open_objects(folder).info(file)
    assert found is not None
    return Place(uri, rows.num_rows, found.size, tuple(rows.schema.names), _table_of(rows, root))


def make_file(rows: int, root: str) -> str:
    """Write orders to a new file under the root."""
    name = f"{uuid.uuid4().hex}.parquet"
    objects = open_objects(root)
    with objects.open_writer(name) as sink:
        pq.write_table(orders(np.arange(rows), np.random.default_rng(0)), sink, compression="zstd", compression_level=1)
    return f"{objects.root}/{name}"


def _table_of(rows: pa.Table, root: str) -> siltstone.Table:
    lake = siltstone.open(f"{root}/lake")
    table = lake.create_table(f"reads.t{uuid.uuid4().hex[:8]}", schema=rows.schema, drop_duplicates=False)
    table.write(rows, type="append")
    table.compact(spark=session())
    return table
