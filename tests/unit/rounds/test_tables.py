"""Compacting and planning whole tables: one plan for all partitions, run where it was asked for."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

import siltstone
from siltstone.documents.merge import run_here
from siltstone.errors import InvalidInputError
from siltstone.objects import Objects, open_objects
from siltstone.rounds.events import Event, TasksDone
from siltstone.rounds.request import TableRequest
from siltstone.rounds.session import compact_table
from siltstone.rows import bucket_pages
from siltstone.rows.job import BucketResult, Engine, RoundJob
from siltstone.spark.compaction import compact_partition
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import MINOR, Cluster, compact, completion_of, make_table, objects_below, rows


@pytest.fixture
def days(local_root: str) -> siltstone.Table:
    """A table of two partitions, each with a delta."""
    table = siltstone.open(local_root).create_table(
        "shop.visits", schema={"id": "int64", "day": "string"}, primary_keys=["id", "day"], partition_keys=["day"]
    )
    table.write(pa.table({"id": [1, 2, 3], "day": ["mon", "mon", "tue"]}))
    return table


def test_what_is_planned_is_what_is_done_and_planning_writes_nothing(days: siltstone.Table) -> None:
    before = objects_below(days.lake.root)
    events: list[Event] = []
    plan = days.plan(progress=events.append)
    assert objects_below(days.lake.root) == before
    assert {event.step for event in events if isinstance(event, TasksDone)} == {"read", "merge"}
    done = days.compact(engine="local")
    assert (plan.table, plan.partitions, plan.stream_position) == (done.table, done.partitions, done.stream_position)
    for preview, report in zip(plan.rounds, done.rounds, strict=True):
        assert (preview.partition, preview.round_id, preview.high_watermark) == (
            report.partition,
            report.round_id,
            report.high_watermark,
        )
        assert sum(bucket.new_rows for bucket in preview.buckets) == report.live_rows
    assert days.plan().rounds == []


def test_a_plan_reads_the_pages_of_buckets_that_deltas_are_for_and_counts_the_others(
    local_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(local_root)
    table.write(rows(range(200)))
    compact(table, replace(MINOR, bucket_rows=8))
    buckets = len(completion_of(table).buckets)
    table.write(rows([7], "new"))
    read: list[str] = []

    def noted(root: str) -> Objects:
        read.append(root)
        return open_objects(root)

    monkeypatch.setattr(bucket_pages, "open_objects", noted)
    (preview,) = table.plan().rounds
    assert len(read) == 1
    (every,) = table.plan(every_bucket=True).rounds
    assert len(read) > 2
    (bucket,) = preview.buckets
    assert (bucket.new_rows, bucket.dead_rows, preview.bucket_count) == (1, 1, buckets)
    assert preview.bucket_actions == every.bucket_actions == {bucket.action: 1, "untouched": buckets - 1}
    assert len(every.buckets) == every.bucket_count == buckets
    assert bucket in every.buckets


def test_a_compaction_is_the_sequence_of_the_results_of_its_partitions(days: siltstone.Table) -> None:
    done = days.compact(engine="local")
    assert [len(result.rounds) for result in done] == [1, 1]
    assert (len(done), done[-1], done.live_rows, done.deltas) == (2, done.results[1], 3, 2)
    again = days.compact(engine="local")
    assert (list(again.rounds), again.live_rows, again.partitions) == ([], 3, 2)
    same_rows(days.to_arrow().to_pylist(), oracle_of(days, None).rows())


def test_a_partition_that_another_session_compacts_after_it_was_planned_is_planned_again(days: siltstone.Table) -> None:
    others: list[int] = []

    def meets_another(job: RoundJob) -> Iterator[BucketResult]:
        yield from run_here(job)
        if not others:
            # The other one runs into both partitions; here, the second is still waiting for its turn.
            others.append(sum(len(result.rounds) for result in days.compact(engine="local")))

    done = compact_table(TableRequest(days.name, days.lake.root), meets_another)
    assert others == [2]
    assert [(len(result.rounds), result.conflicts) for result in done] == [(0, 1), (0, 0)]
    assert done.live_rows == 3
    same_rows(days.to_arrow().to_pylist(), oracle_of(days, None).rows())


def test_rebases_of_partitions_are_one_job_however_much_they_leave_to_later_rounds(days: siltstone.Table) -> None:
    days.compact(engine="local")
    days.write(pa.table({"id": [4, 5], "day": ["mon", "tue"]}))
    engine = Cluster(64)
    (done, *others) = compact_table(
        TableRequest(days.name, days.lake.root, rebase_from=days.name, high_watermark=1), engine
    )
    assert len(others) == 1
    assert engine.jobs[0] == 2
    assert engine.asked == 0
    assert len(done.rounds) == 2
    same_rows(days.to_arrow().to_pylist(), oracle_of(days, None).rows())


def test_engines_that_make_no_sense_are_refused(days: siltstone.Table) -> None:
    with pytest.raises(InvalidInputError, match="unknown engine 'flink'; use spark, or local"):
        days.compact(engine="flink")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="a Spark session was given for the local engine"):
        days.compact(engine="local", spark=lambda: pytest.fail("Spark was started"))
    assert days.rounds() == []


def test_spark_is_started_once_there_is_work_and_not_before(
    days: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    def engine(session: object, *_: object) -> Engine:
        started.append(session)
        return run_here

    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", engine)
    days.compact(engine="local")
    session = object()
    assert days.compact(spark=lambda: session).rounds == []  # type: ignore[arg-type, return-value]
    assert started == []
    days.write(pa.table({"id": [4], "day": ["tue"]}))
    assert len(days.compact(spark=lambda: session).rounds) == 1  # type: ignore[arg-type, return-value]
    assert started == [session]


def test_compact_partition_is_public_also_where_it_was_before() -> None:
    assert siltstone.compact_partition is compact_partition
