"""A streaming query without Spark: it calls the writers of `format("siltstone")` as Spark does."""

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pyspark_siltstone import DefaultSource
from siltstone.spark.frames import spark_schema
from siltstone.spark.sink import StagedFiles

SCHEMA = spark_schema(pa.schema([pa.field("id", pa.int64()), pa.field("zone", pa.string())]))
Rows = Sequence[dict[str, Any]]


def rows(*ids: int, zone: str = "eu") -> Rows:
    return [{"id": number, "zone": zone} for number in ids]


class Stream:
    """A streaming query: it stages each task, and commits or aborts, by a writer that is made anew for each step."""

    def __init__(self, table: str, root: str, schema: StructType = SCHEMA, **options: str) -> None:
        self.options = {
            "root": root,
            "path": table,
            **({} if "checkpointlocation" in options else {"app_id": "query"}),
            **options,
        }
        self.schema = schema

    def writer(self) -> Any:
        return DefaultSource(self.options).streamWriter(self.schema, overwrite=False)

    def stage(self, *tasks: Rows) -> list[StagedFiles]:
        sent = pickle.dumps(self.writer())
        return [pickle.loads(pickle.dumps(pickle.loads(sent).write(iter(self._batches(task))))) for task in tasks]

    def _batches(self, task: Rows) -> list[pa.RecordBatch]:
        return [pa.RecordBatch.from_pylist([row], to_arrow_schema(self.schema)) for row in task]

    def run(self, batch_id: int, *tasks: Rows) -> None:
        self.writer().commit(self.stage(*tasks), batch_id)
