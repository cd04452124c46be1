"""The log of the files a query has read."""

import itertools
from pathlib import Path

import pytest

from siltstone.errors import CorruptionError
from siltstone.log import SourceEntry, SourceLog
from siltstone.log.spark_logs import SOURCE_CODEC
from siltstone.objects import open_objects

_numbers = itertools.count()


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "sources/0") if request.param == "local" else f"memory://source-tests-{next(_numbers)}"


def made(batch_id: int) -> SourceEntry:
    return SourceEntry(f"file:///in/{batch_id}.txt", 1480730949000, batch_id)


def filled(folder: str, last: int, interval: int) -> SourceLog:
    log = SourceLog(folder, default_interval=interval, min_batches_to_retain=100)
    for batch_id in range(last + 1):
        log.add(batch_id, [made(batch_id)])
    return log


def test_an_entry_is_written_byte_for_byte_as_spark_does() -> None:
    line = b'{"path":"file:///in/a.txt","timestamp":1480730949000,"batchId":0}'
    assert SOURCE_CODEC.encode(SourceEntry("file:///in/a.txt", 1480730949000, 0)) == line


def test_each_batch_of_a_range_has_its_own_entries_only(folder: str) -> None:
    log = filled(folder, 6, 3)
    assert log.get_range() == [(batch_id, [made(batch_id)]) for batch_id in range(7)]
    assert log.get_range(2, 5) == [(batch_id, [made(batch_id)]) for batch_id in range(2, 6)]
    assert log.get_range(4, None) == [(batch_id, [made(batch_id)]) for batch_id in range(4, 7)]


def test_expired_batches_are_recovered_from_the_compact_file(folder: str) -> None:
    log = filled(folder, 2, 2)
    open_objects(folder).delete(["0"])
    assert log.get_range(0, 2) == [(0, [made(0)]), (1, [made(1)]), (2, [made(2)])]


def test_a_batch_that_read_nothing_is_recovered_as_such(folder: str) -> None:
    log = SourceLog(folder, default_interval=2)
    log.add(0, [])
    log.add(1, [made(1)])
    open_objects(folder).delete(["0"])
    assert log.get_range() == [(0, []), (1, [made(1)])]


def test_a_range_that_ends_before_it_starts_is_empty(folder: str) -> None:
    assert filled(folder, 3, 3).get_range(3, 2) == []


def test_a_batch_that_never_was_is_missing(folder: str) -> None:
    with pytest.raises(CorruptionError, match=r"batches \(4\) don't exist"):
        filled(folder, 3, 3).get_range(2, 4)
    with pytest.raises(CorruptionError, match="batch 0 doesn't exist"):
        SourceLog(f"{folder}-none").get_range(0, 1)


def test_a_query_that_starts_again_knows_all_files_and_goes_on(folder: str) -> None:
    filled(folder, 4, 3)
    log = SourceLog(folder, default_interval=10)
    assert log.interval == 3
    assert log.restore() == log.all_files() == [made(batch_id) for batch_id in range(5)]
    log.add(5, [made(5)])
    assert [entry.batch_id for entry in log.get(5) or []] == list(range(6))


def test_entries_of_another_batch_do_not_count_for_the_batch_whose_file_holds_them(folder: str) -> None:
    log = SourceLog(folder)
    log.add(0, [made(0)])
    log.add(1, [made(0), made(1)])
    assert log.get_range(1, 1) == [(1, [made(1)])]
