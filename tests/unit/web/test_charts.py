"""What is drawn: lanes of workers and maps of buckets."""

from siltstone.service.results import Attempt, CycleDetails
from siltstone.service.schema import AttemptStatus
from siltstone.table.report import BucketSize
from siltstone.web.charts import LANE_GAP, LANE_HEIGHT, bucket_maps, worker_lanes


def attempt(
    worker: str | None,
    table: str,
    started_at: int,
    ended_at: int | None,
    status: AttemptStatus = "COMPLETED",
    part: str = "_",
) -> Attempt:
    return Attempt(f"{table}/{part}", table, 1, worker, status, started_at, ended_at, None, None, 1, 1, 1, 1)


def cycle(*attempts: Attempt) -> CycleDetails:
    return CycleDetails(1, "COMPLETED", 1000, 2000, "request", "node", None, [], attempts)


def test_each_worker_has_a_lane_by_name_and_attempts_of_nobody_have_none() -> None:
    lanes = worker_lanes(
        cycle(attempt("b", "t", 1000, 1500), attempt("a", "u", 1000, 2000), attempt(None, "w", 1000, 1000)), 9000
    )
    assert [(lane.worker, lane.rows, lane.partitions, lane.busy_ms) for lane in lanes] == [
        ("a", 1, 1, 1000), ("b", 1, 1, 500),
    ]  # fmt: skip
    assert (lanes[1].bars[0].x, lanes[1].bars[0].width) == (0, 500)


def test_partitions_of_one_claim_are_one_bar_whose_colour_is_the_worst_outcome() -> None:
    parts = [attempt("a", "t", 1000, 1100 + number, part=str(number)) for number in range(50)]
    (lane,) = worker_lanes(cycle(*parts, attempt("a", "t", 1000, 1300, "FAILED", "x")), 9000)
    (bar,) = lane.bars
    assert (bar.kind, bar.title) == ("failed", "t: 1 failed, 50 completed, 300 ms")
    assert (lane.partitions, lane.failed, lane.busy_ms) == (51, 1, 300)


def test_tables_that_a_worker_compacts_at_the_same_time_lie_below_each_other() -> None:
    (lane,) = worker_lanes(
        cycle(attempt("a", "t", 1000, 1400), attempt("a", "u", 1200, 1600), attempt("a", "w", 1400, 1500)), 9000
    )
    assert [bar.y for bar in lane.bars] == [0, LANE_HEIGHT + LANE_GAP, 0]
    assert (lane.rows, lane.height) == (2, 2 * LANE_HEIGHT + LANE_GAP)
    assert lane.busy_ms == 600, "time that overlaps counts once"


def test_what_runs_goes_up_to_now() -> None:
    (lane,) = worker_lanes(cycle(attempt("a", "t", 1000, None, "STARTED")), 3000)
    assert (lane.bars[0].kind, lane.bars[0].width, lane.busy_ms) == ("started", 1000, 2000)


def bucket(name: str, size: int, rows: int = 10, dead: int = 0, partition: str = "eu") -> BucketSize:
    return BucketSize([partition], name, rows, dead, 1, size, 0, 0 if name == "all" else len(name))


def test_a_bucket_lies_at_its_hashes_and_is_as_wide_as_its_share_of_them() -> None:
    (drawn,) = bucket_maps([bucket("0", 100), bucket("10", 50), bucket("11", 25, rows=3, dead=1)])
    whole = [bar for bar in drawn.bars if bar.kind == "size"]
    assert [round(bar.x) for bar in whole] == [1, 501, 751]
    assert [round(bar.width) for bar in whole] == [498, 248, 248]
    assert [bar.height for bar in whole] == [100, 50, 25]
    (dead,) = [bar for bar in drawn.bars if bar.kind == "dead"]
    assert dead.height == 25 / 4
    assert drawn.summary == ("3 buckets of depths 1 to 2; the largest, 0, has 100 B; 1 of 24 stored rows are dead.")


def test_partitions_have_maps_on_one_scale() -> None:
    eu, us = bucket_maps([bucket("all", 100), bucket("all", 10, partition="us")])
    assert [eu.bars[0].height, us.bars[0].height] == [100, 10]
    assert [eu.partition, us.partition] == [["eu"], ["us"]]
    assert bucket_maps([]) == []
