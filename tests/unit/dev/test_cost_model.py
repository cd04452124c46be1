"""The cost model follows the rules of the compactor, and gives back what was measured."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from benchmarks import constants, cost_model
from benchmarks.cost_model import Constants, Layout, Life, cost_of, layout_of

from siltstone.rounds.request import MAX_ROUND_BYTES
from siltstone.rows.job import RoundJob, Settings
from siltstone.spark import tasks

PAGE = Path(__file__).parents[3] / "docs/scale.md"
TERABYTE, CORES = 1e12, 64
# Round numbers, so that what is measured anew changes no test.
MEASURED = Constants(
    row=20, index=8, vector=1, delta=25, shuffled=50, page=5e4, change_seconds=2e-6, bucket_seconds=5e-4,
    stored_row_seconds=4e-9, base_seconds=0.5, rewritten_a_second=3e7, driver_bucket=4e4, idle_worker_mb=200,
    worker_mb=150, bucket_row=100,
)  # fmt: skip


@pytest.mark.parametrize(("fraction", "rounds"), [(0.1, 4), (0.2, 2), (0.3, 1), (3, 1)])
def test_a_bucket_is_rewritten_for_its_dead_rows_or_its_new_ones(fraction: float, rounds: int) -> None:
    life = cost_model.life_of(1000, 1000 * fraction, 1, Settings())
    assert (life.rounds, life.carried) == (rounds, 0)


@pytest.mark.parametrize("base_files", [1, 2])
def test_a_bucket_of_few_changes_has_its_small_files_merged_until_it_is_rewritten(base_files: int) -> None:
    life = cost_model.life_of(1e7, 1e3, base_files, Settings())
    assert life.rounds > 3000
    assert 1e3 < life.carried < 1e4
    assert 4 < life.small < 8
    rewriting = cost_model.life_of(1e7, 1e3, base_files, Settings(max_carried_fraction=0))
    assert (rewriting.rounds, rewriting.carried) == (8, 0)


def test_a_compaction_of_more_than_a_round_reads_is_several_rounds_that_each_pay_for_their_buckets() -> None:
    fits = cost_model.round_bytes(CORES) * MEASURED.row / MEASURED.delta / TERABYTE
    one, two = (cost_of(TERABYTE, fraction, 1, CORES, MEASURED) for fraction in (fits, 2 * fits))
    assert (one.rounds, two.rounds) == (1, 2)
    assert two.touched == one.touched == one.buckets
    # The life of a bucket goes by rounds, and so does the time of a compaction.
    assert two.rounds_to_rewrite == one.rounds_to_rewrite
    assert two.compaction_seconds == pytest.approx(2 * one.compaction_seconds)
    assert two.core_hours_a_day == pytest.approx(2 * one.core_hours_a_day)
    assert two.request_dollars == pytest.approx(2 * one.request_dollars)
    # With twice the cores, all of it fits one round, which pays for its buckets once.
    wide = cost_of(TERABYTE, 2 * fits, 1, 2 * CORES, MEASURED)
    assert wide.rounds == 1
    buckets = one.buckets * MEASURED.bucket_seconds + TERABYTE / MEASURED.row * MEASURED.stored_row_seconds
    assert two.core_hours_a_day - wide.core_hours_a_day > 0.9 * buckets / 3600


@pytest.mark.parametrize(("cores", "times"), [(1, 1), (8, 1), (15, 1), (16, 2), (64, 8)])
def test_a_round_reads_more_for_every_eight_cores(cores: int, times: int) -> None:
    assert cost_model.round_bytes(cores) == times * MAX_ROUND_BYTES


@pytest.mark.parametrize("megabytes", [0, 1, 10, 5000])
def test_a_round_has_the_tasks_that_spark_is_given(megabytes: int) -> None:
    job = SimpleNamespace(input_bytes=megabytes << 20, due_numbers=list, copied_bytes=0)
    wanted = tasks.merge_tasks(cast("RoundJob", job), is_full=False)
    assert cost_model.merge_tasks(megabytes << 20, 10_000) == wanted
    assert cost_model.merge_tasks(megabytes << 20, 2) == 2


def test_a_round_is_not_spread_over_more_cores_than_it_has_tasks() -> None:
    # A round of 4 MB has six tasks, however many buckets it touches.
    fraction = 4.5 * (1 << 20) / MEASURED.delta * MEASURED.row / TERABYTE
    six, more = (cost_of(TERABYTE, fraction, 1, cores, MEASURED) for cores in (6, 640))
    assert six.tasks == 6 < six.touched
    assert more.round_seconds == six.round_seconds
    assert cost_of(TERABYTE, fraction, 1, 3, MEASURED).round_seconds > 1.8 * six.round_seconds
    # A large one has no more than the most.
    many = [cost_of(1e14, 0.01, 1, cores, MEASURED) for cores in (32_768, 65_536)]
    assert [each.rounds for each in many] == [1, 1]
    assert [each.tasks for each in many] == [2048, 2048]
    assert many[0].round_seconds == many[1].round_seconds


def test_a_round_that_finds_little_takes_what_planning_and_committing_take() -> None:
    assert cost_of(1e6, 0.01, 1, 1000, MEASURED).round_seconds > MEASURED.base_seconds


def test_a_task_needs_what_growth_measured() -> None:
    sizes = [(5_000_000, 8, 240), (20_000_000, 16, 317), (40_000_000, 16, 504)]
    small, _, large = ({"rows": rows, "buckets": buckets, "worker megabytes": mb} for rows, buckets, mb in sizes)
    worker_mb, bucket_row = cost_model.worker_memory(small, large, 12e6)
    measured = replace(MEASURED, worker_mb=worker_mb, bucket_row=bucket_row)
    needed = [cost_model.task_mb(rows / buckets, 12e6, buckets, measured) for rows, buckets, _ in sizes]
    assert (needed[0], needed[2]) == pytest.approx((240, 504))
    assert needed[1] == pytest.approx(317, rel=0.05)


def test_the_model_has_the_memory_of_what_was_measured_last() -> None:
    found = json.loads((cost_model.RESULTS / "growth.json").read_text())
    deltas = found["changes"] * constants.load()["delta_bytes"]
    measured = Constants.measured()
    expected = cost_model.worker_memory(found["sizes"][0], found["sizes"][-1], deltas)
    assert (measured.worker_mb, measured.bucket_row) == expected


def test_a_task_needs_more_for_buckets_of_more_rows_and_for_more_deltas() -> None:
    few, many = ({"rows": rows, "buckets": 10, "worker megabytes": mb} for rows, mb in ((1e6, 250), (1e7, 340)))
    fixed, row = cost_model.worker_memory(few, many, 0)
    assert (fixed, row) == pytest.approx((240, 100))
    measured = replace(MEASURED, worker_mb=fixed, bucket_row=row)
    assert cost_model.task_mb(1e6, 0, 10, measured) == pytest.approx(340)
    assert cost_model.task_mb(1e6, 8e6, 2, measured) == pytest.approx(340 + 4 * 4)
    # A worker is never smaller than one with little to do.
    assert cost_model.task_mb(0, 0, 10, replace(measured, idle_worker_mb=300)) == 300


@pytest.mark.parametrize(
    ("size", "rows", "files"), [(1, 1, 1), (1, 4_000_001, 2), ((128 << 20) + 1, 1, 2), (200 << 20, 11_000_000, 3)]
)
def test_a_file_of_a_rewrite_ends_at_its_bytes_or_at_its_rows(size: int, rows: int, files: int) -> None:
    assert cost_model.base_files(size, rows, Settings()) == files


def test_a_task_has_a_stretch_of_its_own_at_least() -> None:
    layout = layout_of(TERABYTE, 1e6, CORES, MEASURED, Settings())
    assert layout.tasks == layout.stretches == 25
    few_buckets = layout_of(TERABYTE, 1e6, CORES, MEASURED, Settings(stretch_buckets=10))
    assert few_buckets.stretches == 25 * -(-few_buckets.touched // 250)
    few_rows = layout_of(TERABYTE, 1e6, CORES, MEASURED, Settings(stretch_rows=10_000))
    assert few_rows.stretches == 25 * 4


def formula(kind: str, **values: float) -> float:
    """Evaluate a line of the page, such as `GET = 14 + d + p`."""
    (line,) = re.findall(rf"^{kind} += ([0-9a-z+* ]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return float(eval(line, {}, values))


LAYOUT = Layout(
    rounds=1, changed=1e3, delta_bytes=1e4, buckets=1280, bucket_rows=100, touched=40, base_files=1, tasks=1,
    stretches=4, pages=3, kept_pages=2,
)  # fmt: skip
# Never rewritten nor merged; so many small files in each stretch.
LIFE = Life(rounds=10**12, carried=0, merged=0, small=5, dead=10)


def test_requests_are_those_of_the_page() -> None:
    files = 40 + 4 * 5
    values = {"d": 1, "s": 4, "f": files, "w": 4 + 4 * 5, "v": 4, "p": 3, "q": 2}
    puts, gets = cost_model.request_counts(LAYOUT, LIFE, MEASURED)
    assert puts == pytest.approx(formula("PUT", **values))
    assert gets == pytest.approx(formula("GET", **values) + formula("HEAD", **values))


def test_more_deltas_more_tasks_and_large_indices_take_more_requests() -> None:
    _, gets = cost_model.request_counts(LAYOUT, LIFE, MEASURED)

    def more(layout: Layout) -> float:
        return cost_model.request_counts(layout, LIFE, MEASURED)[1] - gets

    assert more(replace(LAYOUT, delta_bytes=10 * (8 << 20))) == pytest.approx(9)
    assert more(replace(LAYOUT, tasks=4)) == pytest.approx(3)
    assert more(replace(LAYOUT, tasks=4, pages=0, kept_pages=0)) == pytest.approx(-5)
    assert more(replace(LAYOUT, bucket_rows=100_000)) == pytest.approx(40, abs=1e-3)


def test_what_is_merged_or_rewritten_is_read_and_written_too() -> None:
    puts, gets = cost_model.request_counts(LAYOUT, LIFE, MEASURED)
    merging = cost_model.request_counts(LAYOUT, replace(LIFE, merged=2), MEASURED)
    assert (merging[0] - puts, merging[1] - gets) == pytest.approx((0, 4 * 2 * 2))
    rewriting = cost_model.request_counts(LAYOUT, replace(LIFE, rounds=4), MEASURED)
    assert rewriting[0] - puts == pytest.approx(10 * 2)
    assert rewriting[1] - gets == pytest.approx(10 * (1 + 5) * 2, rel=0.01)


@pytest.mark.parametrize(("objects", "megabytes", "requests"), [(3, 24, 3), (1, 9, 4), (2, 40, 10)])
def test_a_large_object_is_begun_sent_in_parts_and_ended(objects: int, megabytes: int, requests: int) -> None:
    assert cost_model.put_count(objects, megabytes << 20) == requests


def test_pages_are_counted_and_those_in_which_buckets_stay_as_they_are() -> None:
    few = layout_of(1e13, 1, CORES, MEASURED, Settings())
    assert (few.pages, few.kept_pages) == pytest.approx((1, 1), rel=0.01)
    all_touched = layout_of(1e13, 1e9, CORES, MEASURED, Settings())
    assert all_touched.pages == pytest.approx(all_touched.buckets / 128)
    assert all_touched.kept_pages == pytest.approx(0)
    assert layout_of(1e8, 1e3, CORES, MEASURED, Settings()).pages == 0


def test_the_model_needs_only_what_the_benchmark_of_constants_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = constants.load()
    before = Constants.measured()
    monkeypatch.setattr(constants, "load", lambda: {name: found[name] for name in constants.WORDS})
    assert Constants.measured() == before


def test_a_compaction_that_ends_after_the_next_is_due_is_too_long() -> None:
    cost = replace(cost_of(TERABYTE, 0.01, 1, CORES, MEASURED), rounds=2, round_seconds=1800)
    assert cost_model.compaction_duration(cost, 24) == "3,600 s"
    assert cost_model.compaction_duration(cost, 25) == "3,600 s, too long"
