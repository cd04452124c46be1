"""How many of Spark's tasks the work of a round is shared among."""

from pathlib import Path

from siltstone.model.buckets import Bucket, Buckets, CompactedFile
from siltstone.rows.job import ReadTask, RoundJob, Settings
from siltstone.spark.tasks import merge_tasks
from tests.unit.rows.test_absorb import make_job

GIGABYTE = 1 << 30


def job_of(root: Path, read: ReadTask, *, full: bool = False) -> RoundJob:
    """Return a job on a table of 64 GB in 1,024 buckets."""
    file = CompactedFile(uri="one.parquet", record_count=3_000_000, content_length=GIGABYTE // 16)
    buckets = Buckets.of([Bucket(depth=10, bits=number, files=[file]) for number in range(1024)])
    return make_job(str(root), Settings(full=full), buckets=buckets, reads=(read,))


def read_of(size: int, *columns: str) -> ReadTask:
    is_delete = bool(columns)
    return ReadTask("delta.parquet", 0, 0, 1000, size, is_delete, delete_columns=columns)


def test_tasks_of_a_small_round_go_by_what_is_read_and_not_by_the_table(tmp_path: Path) -> None:
    assert merge_tasks(job_of(tmp_path, read_of(1 << 20)), is_full=False) == 3
    assert merge_tasks(job_of(tmp_path, read_of(100 << 20)), is_full=False) == 102
    assert merge_tasks(job_of(tmp_path, read_of(1000, "id")), is_full=False) == 2


def test_a_delete_by_other_columns_is_searched_for_in_as_many_tasks_as_the_table_needs(tmp_path: Path) -> None:
    assert merge_tasks(job_of(tmp_path, read_of(1000, "v")), is_full=False) == 64 * 8 + 2
    assert merge_tasks(job_of(tmp_path, read_of(1000, "id", "v")), is_full=False) == 64 * 8 + 2


def test_a_large_delete_by_other_columns_is_not_copied_to_so_many_tasks(tmp_path: Path) -> None:
    assert merge_tasks(job_of(tmp_path, read_of(8 << 20, "v")), is_full=False) == 8 + 128 + 2
    assert merge_tasks(job_of(tmp_path, read_of(2 << 30, "v")), is_full=False) == 2048


def test_a_rewrite_has_as_many_tasks_as_the_table_needs_up_to_a_limit(tmp_path: Path) -> None:
    assert merge_tasks(job_of(tmp_path, read_of(1000), full=True), is_full=True) == 2048
