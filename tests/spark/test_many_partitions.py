"""Several partitions of a table, compacted as one job of Spark's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from tests.unit.rounds.compaction import MINOR, compact, make_table, overwrite
from tests.unit.rounds.compaction import rows as made_rows
from tests.unit.service.cycling import World

import siltstone
from siltstone.errors import CorruptionError
from siltstone.rows.job import Outcome, RoundJob
from siltstone.service.lake_tables import LakeTables
from siltstone.spark import tasks
from siltstone.spark.compaction import LazyEngine
from siltstone.testing.oracle import oracle_of, same_rows

DAYS = [f"day {number}" for number in range(40)]


@pytest.fixture
def visits(local_root: str) -> siltstone.Table:
    table = siltstone.open(local_root).create_table(
        "web.visits",
        schema={"day": "string", "id": "int64", "v": "string"},
        primary_keys=["day", "id"],
        partition_keys=["day"],
    )
    table.write(rows("a", range(3)))
    return table


def rows(value: str, numbers: range, days: Sequence[str] = DAYS) -> pa.Table:
    keys = [(day, number) for day in days for number in numbers]
    return pa.table({"day": [day for day, _ in keys], "id": [number for _, number in keys], "v": [value] * len(keys)})


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rounds each job of Spark's had."""
    ran: list[int] = []
    run_all = tasks._SparkEngine.run_all

    def counted(engine: tasks._SparkEngine, jobs: Sequence[RoundJob]) -> Sequence[Outcome]:
        ran.append(len(jobs))
        return run_all(engine, jobs)

    monkeypatch.setattr(tasks._SparkEngine, "run_all", counted)
    return ran


def test_all_partitions_with_changes_are_one_job_and_commit_by_themselves(
    spark: SparkSession, visits: siltstone.Table, together: list[int]
) -> None:
    visits.compact(spark=spark)
    visits.write(rows("b", range(2, 5), DAYS[:25]))
    visits.write(pa.table({"v": ["a"]}), "delete", ["v"])
    compacted = visits.compact(spark=spark)
    assert together == [40, 40]
    assert len(compacted.rounds) == 40
    same_rows(visits.to_arrow(), oracle_of(visits).rows())
    assert visits.compact(spark=spark, full=True).rounds
    same_rows(visits.to_arrow(), oracle_of(visits).rows())
    assert together == [40, 40, 25]
    assert visits.fsck(deep=True) == []


@pytest.mark.parametrize("damaged", ["delta", "index"])
def test_a_partition_that_fails_does_not_keep_the_others_from_being_compacted(
    spark: SparkSession, visits: siltstone.Table, damaged: str
) -> None:
    visits.compact(spark=spark)
    written = rows("b", range(2))
    visits.write(written)
    bad = visits.current_rounds()[7]
    values = bad.destination_partition_locator.partition_values
    root = visits.lake.root
    if damaged == "delta":
        (delta,) = [each for each in visits.deltas(2) if each.partition_values == values]
        path = delta.manifest.entries[0].uri
    else:
        path = bad.files[0].index_uri or ""
    overwrite(root, path, b"damaged")
    with pytest.raises(CorruptionError, match=path):
        visits.compact(spark=spark)
    watermarks = {
        tuple(round_.destination_partition_locator.partition_values): round_.high_watermark
        for round_ in visits.current_rounds()
    }
    assert watermarks.pop(tuple(values)) == 1
    assert set(watermarks.values()) == {2}
    assert len(watermarks) == 39


def test_a_claim_of_the_service_is_one_job(
    spark: SparkSession, visits: siltstone.Table, together: list[int], tmp_path: Path
) -> None:
    world = World(f"sqlite:///{tmp_path}/service.db", tables="")
    world.tables = LakeTables(visits.lake, session=lambda: spark)  # type: ignore[assignment]
    (bad,) = [each for each in visits.deltas() if each.partition_values == [DAYS[3]]]
    overwrite(visits.lake.root, bad.manifest.entries[0].uri, b"damaged")
    leader, worker = world.begin(), world.worker()
    while worker.step():
        pass
    record = leader.tick().record
    assert record is not None
    assert together == [40]
    assert (record.completed, record.failed, record.rows) == (39, 1, 3 * 39)
    assert [failed.partition for failed in record.failed_partitions] == [str(bad.locator.partition_locator)]
    world.close()


@pytest.mark.jvm
def test_rounds_go_by_the_cores_of_the_session_however_it_is_given(spark: SparkSession) -> None:
    cores = spark.sparkContext.defaultParallelism
    assert LazyEngine(spark).core_count() == LazyEngine(lambda: spark).core_count() == cores > 0


def test_no_part_of_a_fresh_read_gives_rows_without_changes_that_cannot_be_read(
    spark: SparkSession, local_root: str
) -> None:
    table = make_table(local_root)
    table.write(made_rows(range(4000)))
    compact(table, replace(MINOR, bucket_rows=100))
    table.write(made_rows(range(4000), "again"))
    overwrite(local_root, table.deltas(2)[0].manifest.entries[0].uri, b"damaged")
    # Only the last rows are asked for, so that not every task is run.
    with pytest.raises(PythonException, match="CorruptionError"):
        table.scan(fresh=True).to_spark(spark).tail(1)
