"""Models and storage calls reach Spark's executors as they are."""

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import siltstone
from siltstone.model import DeltaLocator
from siltstone.storage import object_store as storage


def test_models_travel_in_closures_and_storage_works_in_executors(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    for number in range(3):
        table.write(pa.table({"id": [number]}))
    deltas = table.deltas()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                delta = deltas[index or 0]
                assert isinstance(delta.locator, DeltaLocator)
                again = storage.get_delta(delta.locator, root=local_root)
                rows = storage.download_delta(again, root=local_root).to_pylist()
                text = json.dumps([str(delta.locator), rows, hash(delta.locator) == hash(again.locator)])
                yield pa.record_batch({"text": [text]})

    found = spark.range(3, numPartitions=2).mapInArrow(read, "text string").collect()
    assert sorted(row.text for row in found) == [
        json.dumps([f"shop/orders/1/deltas/_/{number + 1}", [{"id": number}], True]) for number in range(3)
    ]
