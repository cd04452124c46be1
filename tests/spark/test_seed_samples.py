"""The calls that the compactor's user guide shows, word for word: migrating, going on, and discarding what is cached."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.unit.rounds.compaction import live_batches

import siltstone
from siltstone.catalog.main import delta_stream
from siltstone.model import PartitionLocator
from siltstone.model.rounds import RoundCompletion
from siltstone.storage import object_store as storage
from siltstone.table.completion import current_completion, locate_destination
from siltstone.testing.oracle import oracle_of, same_rows

MIGRATE = """
from siltstone.spark.compaction import compact_partition
compact_partition(
  source_partition_locator=old_compacted_partition,  # S1
  destination_partition_locator=deltacat_compacted_partition,  # D
  primary_keys=delta_source_primary_keys,
  compaction_artifact_s3_bucket=deltacat_s3_bucket,
  last_stream_position_to_compact=delta_source_last_stream_position,
  rebase_source_partition_locator=delta_source_partition,  # S2
  rebase_source_partition_high_watermark=delta_source_last_compacted_stream_position,
)
"""
GO_ON = """
from siltstone.spark.compaction import compact_partition
compact_partition(
  source_partition_locator=delta_source_partition,  # S2
  destination_partition_locator=deltacat_compacted_partition,  # D
  primary_keys=delta_source_primary_keys,
  compaction_artifact_s3_bucket=deltacat_s3_bucket,
  last_stream_position_to_compact=delta_source_last_stream_position,
)
"""
DISCARD = """
from siltstone.spark.compaction import compact_partition
compact_partition(
  source_partition_locator=source_partition_to_compact,
  destination_partition_locator=deltacat_compacted_partition,
  primary_keys=delta_source_primary_keys,
  compaction_artifact_s3_bucket=deltacat_s3_bucket,
  last_stream_position_to_compact=delta_source_last_stream_position,
  rebase_source_partition_locator=source_partition_to_compact,
)
"""
AFTER_DISCARDING = """
from siltstone.spark.compaction import compact_partition
compact_partition(
    source_partition_locator=source_partition_to_compact,
    destination_partition_locator=deltacat_compacted_partition,
    primary_keys=delta_source_primary_keys,
    compaction_artifact_s3_bucket=deltacat_s3_bucket,
    last_stream_position_to_compact=delta_source_last_stream_position,
)
"""


def only_partition(table: siltstone.Table) -> PartitionLocator:
    root = table.lake.root
    (partition,) = storage.list_partitions(delta_stream(table.name, root=root), root=root)
    return partition.locator


class Guide:
    """The variables that the samples use, and what to look at after each."""

    def __init__(self, root: str) -> None:
        lake = siltstone.open(root)
        schema = {"id": "int64", "v": "string"}
        self.source = lake.create_table("shop.orders", schema=schema, primary_keys=["id"])
        self.write([1, 2, 3], "one")
        self.write([2, 4], "two")
        self.source.write(pa.table({"id": [3]}), "delete")
        self.old = lake.create_table("shop.orders_copied_on_write", schema=schema)
        self.old.write(pa.table(self.columns(oracle_of(self.source).rows())), "append")
        locator = only_partition(self.source)
        self.variables: dict[str, Any] = {
            "old_compacted_partition": only_partition(self.old),
            "deltacat_compacted_partition": PartitionLocator(**{**locator, "stream": "compacted"}),
            "delta_source_primary_keys": {"id"},
            "deltacat_s3_bucket": lake.root,
            "delta_source_partition": locator,
            "source_partition_to_compact": locator,
            "delta_source_last_stream_position": 3,
            "delta_source_last_compacted_stream_position": 3,
        }

    @staticmethod
    def columns(rows: list[dict[str, object]]) -> dict[str, list[object]]:
        return {name: [row[name] for row in rows] for name in ("id", "v")}

    def write(self, ids: list[int], value: str) -> None:
        position = self.source.write(pa.table({"id": ids, "v": [f"{value}-{number}" for number in ids]}))
        if position > 3:
            self.variables["delta_source_last_stream_position"] = position

    def run(self, sample: str) -> RoundCompletion:
        """Run a sample as it stands, and return the completion that is current then."""
        exec(sample, dict(self.variables))
        destination = locate_destination(self.variables["deltacat_compacted_partition"], root=self.source.lake.root)
        completion = current_completion(destination)
        assert completion is not None
        assert completion.source_partition_locator == self.variables["delta_source_partition"]
        found = [row for batch in live_batches(destination.root, completion) for row in batch.to_pylist()]
        same_rows(found, oracle_of(self.source, self.variables["delta_source_last_stream_position"]).rows())
        return completion


@pytest.fixture
def guide(spark: SparkSession, new_root: Callable[[str], str]) -> Guide:
    return Guide(new_root("local"))


def test_migrating_from_an_old_compactor_and_going_on_incrementally(guide: Guide) -> None:
    rebased = guide.run(MIGRATE)
    assert (rebased.round_id, rebased.high_watermark, rebased.read_watermark) == (1, 3, 1)
    assert rebased.rebase_source_partition_locator == guide.variables["delta_source_partition"]
    assert all(file.index_uri for file in rebased.files)

    guide.write([1, 5], "four")
    guide.source.write(pa.table({"id": [4]}), "delete")
    guide.variables["delta_source_last_stream_position"] = 5
    done = guide.run(GO_ON)
    assert (done.round_id, done.high_watermark, done.delta_count) == (2, 5, 2)
    assert done.rebase_source_partition_locator == guide.variables["delta_source_partition"]

    guide.write([6], "six")
    guide.write([6], "not asked for")
    guide.variables["delta_source_last_stream_position"] = 6
    done = guide.run(GO_ON)
    assert (done.round_id, done.high_watermark, done.delta_count) == (3, 6, 1)
    assert guide.run(GO_ON) == done, "nothing is new"


def test_migrating_while_the_source_is_ahead_of_the_old_compactor(guide: Guide) -> None:
    guide.write([1, 5], "four")
    completion = guide.run(MIGRATE)
    assert completion.high_watermark == 4
    assert guide.run(GO_ON).high_watermark == 4
    guide.write([7], "five")
    assert guide.run(GO_ON).high_watermark == 5


def test_discarding_cached_results_and_going_on_as_usual(guide: Guide) -> None:
    guide.variables["delta_source_last_stream_position"] = 2
    first = guide.run(AFTER_DISCARDING)
    assert (first.high_watermark, first.rebase_source_partition_locator) == (2, None)

    guide.variables["delta_source_last_stream_position"] = 3
    rebased = guide.run(DISCARD)
    assert (rebased.high_watermark, rebased.read_watermark, rebased.delta_count) == (3, 3, 3)
    assert not {file.uri for file in rebased.files} & {file.uri for file in first.files}
    assert rebased.rebase_source_partition_locator == guide.variables["source_partition_to_compact"]

    guide.write([2, 9], "four")
    done = guide.run(AFTER_DISCARDING)
    assert (done.high_watermark, done.delta_count) == (4, 1)
    assert done.rebase_source_partition_locator == guide.variables["source_partition_to_compact"]
