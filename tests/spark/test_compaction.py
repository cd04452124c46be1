"""Compaction on Spark gives the rows that the oracle says, and the files that it gives without Spark."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    check_rows,
    compact,
    compacted,
    completion_of,
    found_rows,
    make_table,
    meeting,
    only_partition,
    overwrite,
    rows,
)

import siltstone
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model import PartitionLocator
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.events import BucketMerged, Event, JobAwaited, RoundCommitted, RoundStarted, TasksDone
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.spark.compaction import compact_partition
from siltstone.spark.tasks import spark_engine

FEW = replace(MINOR, bucket_rows=40)


def shape(completion: RoundCompletion) -> list[tuple[str, list[tuple[int, int]], int]]:
    """Return what a state looks like, but for the names of its files, and which tasks had buckets that share them."""
    return [
        (
            bucket.name,
            [(file.record_count, file.live_count) for file in bucket.files],
            bucket.tombstones.record_count if bucket.tombstones else 0,
        )
        for bucket in completion.buckets
    ]


def check_both(
    spark: SparkSession, table: siltstone.Table, settings: Sequence[Settings], changes: Sequence[Callable[[], Any]]
) -> RoundCompletion:
    """Compact after each change, on Spark and in this process, and compare with the oracle and with each other."""
    for how, change in zip(settings, changes, strict=True):
        change()
        here = PartitionLocator(**{**compacted(table), "stream": "here"})
        on_spark = compact(table, how, engine=spark_engine(spark)).rounds
        alone = compact(table, how, engine=run_here, destination=here).rounds
        check_rows(table)
        assert found_rows(table) == found_rows(table, here), "in the same order, too"
        assert shape(completion_of(table)) == shape(completion_of(table, here))
        assert [each.accounting for each in on_spark] == [each.accounting for each in alone]
        assert [each.bucket_actions for each in on_spark] == [each.bucket_actions for each in alone]
    return completion_of(table)


def test_many_buckets_with_upserts_deletes_and_splits(spark: SparkSession, local_root: str) -> None:
    table = make_table(local_root)

    def delete() -> None:
        table.write(rows(range(0, 300, 7)).select(["id"]), "delete")
        table.write(pa.table({"v": ["b-11", "a-500"]}), "delete", ["v"])

    completion = check_both(
        spark,
        table,
        [FEW, FEW, FEW, replace(FEW, full=True), FEW],
        [
            lambda: table.write(rows([*range(300), None], "a-")),
            lambda: table.write(rows(range(0, 300, 11), "b-")),
            delete,
            lambda: table.write(rows(range(290, 900), "c-")),
            lambda: table.write(rows([5, None], "d-")),
        ],
    )
    assert len(completion.buckets) > 8


def test_sort_keys_with_row_level_deletes(spark: SparkSession, local_root: str) -> None:
    table = make_table(local_root, schema={"id": "string", "at": "double", "v": "int64"}, sort_keys=["at"])
    rng = np.random.default_rng(7)

    def write() -> None:
        count = 120
        ids = [f"key-{number}" for number in rng.integers(0, 90, count)]
        at = rng.integers(0, 50, count).astype(float).tolist()
        operations = rng.choice(["+I", "-U", "+U", "-D"], count).tolist()
        data = {"id": ids, "at": at, "v": rng.integers(0, 10**6, count), "op": operations}
        table.write(pa.table(data), op_column="op")

    completion = check_both(spark, table, [FEW, FEW, replace(FEW, full=True), FEW], [write, write, write, write])
    assert any(bucket.tombstones for bucket in completion.buckets)


def test_partial_updates_with_columns_that_come_later(spark: SparkSession, local_root: str) -> None:
    table = make_table(
        local_root,
        schema={"zone": "string", "id": "int32", "v": "string", "w": "string"},
        primary_keys=["zone", "id"],
        merge_engine="partial_update",
    )

    def write(ids: range, **columns: Any) -> None:
        zones = [("eu", "us", None)[number % 3] for number in ids]
        chosen = {name: [f"{value}{number}" for number in ids] for name, value in columns.items()}
        table.write(pa.table({"zone": zones, "id": pa.array(ids, pa.int32()), **chosen}))

    check_both(
        spark,
        table,
        [FEW, FEW, replace(FEW, full=True), FEW],
        [
            lambda: write(range(100), v="a", w="b"),
            lambda: write(range(50, 150), v="c"),
            lambda: write(range(0, 150, 4), w="d", later="e"),
            lambda: write(range(149, 0, -3), later="f"),
        ],
    )


def test_rows_without_a_key(spark: SparkSession, local_root: str) -> None:
    table = make_table(local_root, primary_keys=[])
    check_both(
        spark,
        table,
        [FEW, FEW, FEW],
        [
            lambda: table.write(rows([1] * 100, "a-"), "append"),
            lambda: table.write(rows(range(100), "a-"), "append"),
            lambda: table.write(pa.table({"v": ["a-1"]}), "delete", ["v"]),
        ],
    )
    assert completion_of(table).live_rows == 99


def test_a_file_of_many_row_groups_that_is_read_in_shares(
    spark: SparkSession, local_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.storage.parquet.ROW_GROUP_ROWS", 50)
    monkeypatch.setattr("siltstone.spark.tasks._BYTES_PER_TASK", 1500)
    table = make_table(local_root)
    check_both(
        spark,
        table,
        [FEW, FEW],
        [
            lambda: table.write(rows([number % 300 for number in range(900)], "a-")),
            lambda: table.write(rows([number % 310 for number in range(700)], "b-")),
        ],
    )
    assert all(delta.manifest.content_length > 3 * 1500 for delta in table.deltas()), "large enough to be shared"


def test_a_full_compaction_rewrites_every_bucket_and_nothing_new_makes_no_round(
    spark: SparkSession, local_root: str
) -> None:
    table = make_table(local_root)
    table.write(rows(range(200)))
    call: dict[str, Any] = {
        "source_partition_locator": only_partition(table),
        "destination_partition_locator": compacted(table),
        "primary_keys": ["id"],
        "compaction_artifact_path": local_root,
        "spark": spark,
    }
    events: list[Event] = []
    (first,) = compact_partition(**call, settings=FEW, progress=events.append).rounds
    told = [type(event) for event in events if not isinstance(event, TasksDone | JobAwaited)]
    assert told == [RoundStarted, *[BucketMerged] * len(first.buckets), RoundCommitted]
    assert {event.step for event in events if isinstance(event, TasksDone)} <= {"read", "merge"}
    assert compact_partition(**call).rounds == []
    (second,) = compact_partition(**call, full=True, records_per_compacted_file=20).rounds
    assert second.bucket_actions == {"major": 1}, "buckets that are too small are joined"
    assert all(file.record_count <= 20 for file in second.files)
    check_rows(table)
    with pytest.raises(InvalidInputError, match="which is after 0"):
        compact_partition(**call, last_stream_position_to_compact=0)


def test_the_root_is_given_once(spark: SparkSession, local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows([1]))
    for given in ({}, {"compaction_artifact_path": local_root, "compaction_artifact_s3_bucket": local_root}):
        with pytest.raises(InvalidInputError, match="either"):
            compact_partition(only_partition(table), compacted(table), {"id"}, spark=spark, **given)  # type: ignore[arg-type]


def test_two_sessions_that_meet_on_spark(spark: SparkSession, local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(100), "a-"))
    compact(table, FEW)
    table.write(rows(range(50, 120), "b-"))

    def other() -> None:
        compact(table, MAJOR)
        table.write(rows([1], "c-"))

    result = compact(table, FEW, engine=meeting(other, engine=spark_engine(spark)))
    assert (result.conflicts, [round_.delta_count for round_ in result.rounds]) == (1, [1])
    check_rows(table)


def test_damage_found_by_a_task_is_told_as_damage(spark: SparkSession, local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(10)))
    compact(table)
    before = completion_of(table)
    (file,) = before.files
    assert file.index_uri is not None
    overwrite(table.lake.root, file.index_uri, None)
    table.write(rows([1]))
    with pytest.raises(CorruptionError, match=file.index_uri):
        compact(table, engine=spark_engine(spark))
    assert completion_of(table) == before


def test_workers_are_forked_from_a_process_that_has_imported_what_they_need(spark: SparkSession) -> None:
    def program(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            main = sys.modules["__main__"].__spec__
            found = {"name": [main.name if main else ""], "spark": [pyspark.__file__], "parent": [os.getppid()]}
            yield pa.record_batch(found)

    found = spark.range(2).mapInArrow(program, "name string, spark string, parent long").collect()
    assert {row.name for row in found} == {"siltstone.spark.daemon"}
    # Of an archive, each file would be compiled anew.
    assert not [row.spark for row in found if ".zip" in row.spark]
    if isinstance(spark, SparkSession):
        parents = spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()
        assert {row.parent for row in found} == set(parents), "a worker that is started early serves data frames, too"


QUIET = """
import time
from siltstone.spark import local_session
spark = local_session(cores=4)

def wait(batches):
    for batch in batches:
        # So that each core gets a worker.
        time.sleep(0.05)
        yield batch

for _ in range(4):
    assert spark.range(0, 8, 1, 8).mapInArrow(wait, "id long").count() == 8
spark.stop()
# Whatever workers say now is still passed on.
time.sleep(1)
"""


def test_a_session_ends_without_a_word_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    environment["TMPDIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_functions_of_pandas_run_in_these_workers_too(spark: SparkSession) -> None:
    def doubled(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            yield frame * 2

    rows = spark.createDataFrame([(1.5,), (None,)], "x double").mapInPandas(doubled, "x double").collect()
    assert {row.x for row in rows} == {3.0, None}
