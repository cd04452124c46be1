"""The compactible log: adding, compacting, expiring, reading."""

import logging
import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import cast

import pytest
from tests.unit.log.conftest import OpenLog, names, spelled
from tests.unit.log.faults import FaultyObjects

from siltstone.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from siltstone.log import CompactibleLog, JsonCodec, ObjectCodec
from siltstone.objects import Objects, open_objects


def add_all(log: CompactibleLog[object], last: int) -> None:
    for batch_id in range(last + 1):
        assert log.add(batch_id, [f"p{batch_id}"])


def upto(last: int) -> list[str]:
    return [f"p{batch_id}" for batch_id in range(last + 1)]


def faulty(objects: Objects, m: int = 100) -> tuple[FaultyObjects, CompactibleLog[object]]:
    store = FaultyObjects(objects)
    log = CompactibleLog(
        cast("Objects", store), "log", JsonCodec(), default_interval=3, cleanup_delay_ms=0, min_batches_to_retain=m
    )
    return store, log


def test_each_batch_leaves_the_whole_history_readable(open_log: OpenLog) -> None:
    log = open_log()
    for batch_id in range(11):
        assert log.add(batch_id, [f"p{batch_id}"])
        assert log.live_entries() == upto(batch_id)
        assert open_log().live_entries() == upto(batch_id)
        assert list(open_log().iter_entries()) == upto(batch_id)
    assert [log.get(2), log.get(5), log.get(8)] == [upto(2), upto(5), upto(8)]
    assert log.get(9) == ["p9"]
    assert log.get(11) is None


def test_files_are_named_by_the_interval(open_log: OpenLog, objects: Objects) -> None:
    log = open_log()
    add_all(log, 5)
    assert names(objects) == spelled("0 1 2c 3 4 5c")
    assert objects.read("log/1") == b'v1\n"p1"'
    assert objects.read("log/2.compact") == b'v1\n"p0"\n"p1"\n"p2"'


def test_a_log_reopened_with_another_default_keeps_its_interval(open_log: OpenLog, objects: Objects) -> None:
    add_all(open_log(k=2), 1)
    log = open_log(k=5)
    assert log.interval == 2
    log.add(2, [])
    log.add(3, [])
    assert "3.compact" in names(objects)


TWO_COMPACT_FILES = ["2c 3 4 5c", "2c 3 4 5c 6", "2c 3 4 5c 6 7", "2c 3 4 5c 6 7 8c"]


@pytest.mark.parametrize(
    ("m", "after_each"),
    [
        (1, ["0", "0 1", "0 1 2c", "2c 3", "2c 3 4", *TWO_COMPACT_FILES, "5c 6 7 8c 9"]),
        (2, ["0", "0 1", "0 1 2c", "0 1 2c 3", "2c 3 4", *TWO_COMPACT_FILES, "5c 6 7 8c 9"]),
    ],
)
def test_expired_batches_go_with_each_add(open_log: OpenLog, objects: Objects, m: int, after_each: list[str]) -> None:
    log = open_log(m=m)
    for batch_id, expected in enumerate(after_each):
        log.add(batch_id, [f"p{batch_id}"])
        assert names(objects) == spelled(expected)
        assert log.live_entries() == upto(batch_id)


def test_a_writer_that_comes_later_finds_the_interval_of_a_log_that_was_cleaned_up(open_log: OpenLog) -> None:
    add_all(open_log(m=1), 30)
    assert {open_log(k=default).interval for default in (2, 3, 10)} == {3}


def test_a_hundred_batches_stay_by_default(tmp_path: Path) -> None:
    objects = open_objects("memory://a-hundred-batches")
    log = CompactibleLog(objects, "log", JsonCodec(), cleanup_delay_ms=0)
    counts = []
    for batch_id in range(120):
        log.add(batch_id, [])
        counts.append(len(names(objects)))
    assert [counts[108], counts[109], counts[118], counts[119]] == [109, 101, 110, 101]
    assert log.listing().ids[0] == 19


def test_a_batch_expires_when_it_is_exactly_as_old_as_the_delay(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    now = 1_700_000_000_000
    delay = 600_000
    log = CompactibleLog(
        objects,
        "log",
        JsonCodec(),
        default_interval=3,
        min_batches_to_retain=1,
        cleanup_delay_ms=delay,
        now_ms=lambda: now,
    )
    add_all(log, 2)
    os.utime(tmp_path / "log/0", ns=(0, (now - delay) * 1_000_000))
    os.utime(tmp_path / "log/1", ns=(0, (now - delay + 1) * 1_000_000))
    log.add(3, [])
    assert names(objects) == spelled("1 2c 3")


def test_nothing_expires_within_the_delay_or_with_deletion_off(open_log: OpenLog, objects: Objects) -> None:
    log = open_log(m=1, delay=600_000)
    add_all(log, 4)
    open_log(m=1, deletes_expired=False).add(5, [])
    assert names(objects) == spelled("0 1 2c 3 4 5c")


def test_a_second_batch_with_the_same_id_is_not_added(open_log: OpenLog) -> None:
    log = open_log(contiguous=False)
    assert log.add(1, ["x"])
    assert not log.add(1, ["y"])
    assert log.get(1) == ["x"]


def test_losing_the_race_for_an_id_is_a_conflict_and_leaves_nothing(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    store, log = faulty(objects)
    log.add(0, ["mine"])
    store.listings = [objects.list_objects("log")]
    objects.create("log/1", b'v1\n"theirs"')
    with pytest.raises(ConflictError, match=r"Multiple streaming queries are concurrently using .*/log/1\."):
        log.add(1, ["mine"])
    assert sorted(os.listdir(tmp_path / "log")) == ["0", "1"]
    assert log.get(1) == ["theirs"]


@pytest.mark.parametrize("entries", [["late"], ["late", "later"], []])
@pytest.mark.parametrize("batch_id", [3, 4, 5])
@pytest.mark.parametrize("moment", ["before_create", "before_publish"])
def test_a_batch_that_compaction_passed_meanwhile_is_not_added(
    open_log: OpenLog, objects: Objects, batch_id: int, entries: list[object], moment: str
) -> None:
    add_all(open_log(), batch_id - 1)

    def overtake(path: str) -> None:
        for number in range(batch_id, 13):
            assert open_log(m=1).add(number, [f"p{number}"])

    store, late = faulty(objects)
    setattr(store, moment, overtake)
    assert late.add(batch_id, entries) is False
    assert names(objects) == spelled("8c 9 10 11c 12")
    assert open_log().live_entries() == upto(12)


def test_a_batch_that_compaction_took_in_at_once_is_added(open_log: OpenLog, objects: Objects) -> None:
    add_all(open_log(), 2)

    def compact(path: str) -> None:
        for number in (4, 5):
            assert open_log().add(number, [f"p{number}"])

    store, quick = faulty(objects)
    store.after_create = compact
    assert quick.add(3, ["p3"]) is True
    assert open_log().live_entries() == upto(5)


@pytest.mark.parametrize("first_interval", [3, 4])
def test_of_two_writers_with_other_intervals_one_gets_the_batch(
    open_log: OpenLog, objects: Objects, first_interval: int
) -> None:
    add_all(open_log(k=10), 1)
    store = FaultyObjects(objects)
    slow = CompactibleLog(cast("Objects", store), "log", JsonCodec(), default_interval=7 - first_interval)

    def overtake(path: str) -> None:
        assert open_log(k=first_interval).add(2, ["first"]) is True

    store.before_create = overtake
    assert slow.add(2, ["second"]) is False
    assert open_log().live_entries() == ["p0", "p1", "first"]
    assert names(objects) == spelled("0 1 2c" if first_interval == 3 else "0 1 2")


def test_a_batch_that_could_not_be_checked_is_unknown(open_log: OpenLog, objects: Objects) -> None:
    store, log = faulty(objects)
    store.after_create = lambda path: setattr(store, "fail_list", True)
    with pytest.raises(CommitUnknownError, match=r"/log/0: the batch was written, but whether it counts"):
        log.add(0, ["p0"])
    assert open_log().live_entries() == ["p0"]


def test_racing_writers_commit_each_id_once(objects: Objects) -> None:
    def write(writer: int) -> None:
        log = CompactibleLog(objects, "log", JsonCodec())
        for batch_id in range(11):
            try:
                won[batch_id].append(writer) if log.add(batch_id, [f"{writer}-{batch_id}"]) else None
            except ConflictError:
                continue

    won: list[list[int]] = [[] for _ in range(11)]
    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(winners) for winners in won] == [1] * 11
    expected = [f"{winners[0]}-{batch_id}" for batch_id, winners in enumerate(won)]
    log = CompactibleLog(objects, "log", JsonCodec())
    assert [batch_id for batch_id, _ in log.get_range(None, 10)] == list(range(11))
    assert log.live_entries() == expected


def test_compaction_without_one_of_its_inputs_writes_nothing(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    store, log = faulty(objects)
    add_all(log, 1)
    store.listings = [objects.list_objects("log")]
    objects.delete(["log/1"])
    with pytest.raises(NotFoundError, match=r"Unable to find batch .*/log/1\."):
        log.add(2, [])
    gappy = CompactibleLog(objects, "log", JsonCodec(), default_interval=3, contiguous=False)
    with pytest.raises(NotFoundError, match=r"Unable to find batch .*/log/1\."):
        gappy.add(2, [])
    assert os.listdir(tmp_path / "log") == ["0"]


def test_a_reader_whose_files_were_compacted_away_starts_again(objects: Objects) -> None:
    store, log = faulty(objects)
    add_all(log, 4)
    before = objects.list_objects("log")
    log.add(5, ["p5"])
    objects.delete(["log/2.compact", "log/3", "log/4"])
    store.listings = [before]
    assert CompactibleLog(cast("Objects", store), "log", JsonCodec()).live_entries() == upto(5)
    objects.delete(["log/5.compact"])
    store.listings = [before]
    with pytest.raises(NotFoundError, match=r"latestId: 4, compactInterval: 3"):
        CompactibleLog(cast("Objects", store), "log", JsonCodec(), default_interval=3).live_entries()


def test_a_first_batch_other_than_0_is_refused_unless_asked_for(open_log: OpenLog, objects: Objects) -> None:
    with pytest.raises(InvalidInputError, match="batch 501 does not follow the latest one; add it as batch 0"):
        open_log(k=10).add(501, ["x"])
    assert names(objects) == []
    log = open_log(k=10, contiguous=False)
    assert log.add(501, ["x"])
    with pytest.raises(CorruptionError, match=r"499.compact doesn't exist \(latestId: 501, compactInterval: 10\)"):
        log.live_entries()


@pytest.mark.parametrize("batch_id", [-1, 2**63])
def test_an_impossible_id_is_refused(open_log: OpenLog, batch_id: int) -> None:
    with pytest.raises(InvalidInputError, match="out of range"):
        open_log(contiguous=False).add(batch_id, [])


def test_an_old_id_is_not_written_again_after_it_expired(open_log: OpenLog) -> None:
    log = open_log(m=1)
    add_all(log, 6)
    with pytest.raises(InvalidInputError, match="add it as batch 7"):
        log.add(0, ["again"])


def test_a_missing_batch_is_named(open_log: OpenLog, objects: Objects) -> None:
    log = open_log()
    add_all(log, 7)
    objects.delete(["log/6"])
    with pytest.raises(CorruptionError, match=r"/log/6 doesn't exist \(latestId: 7, compactInterval: 3\)"):
        log.live_entries()
    with pytest.raises(CorruptionError, match=r"batches \(6\) don't exist"):
        log.get_range()


def test_compactible_logs_refuse_to_purge(open_log: OpenLog) -> None:
    log = open_log()
    add_all(log, 2)
    with pytest.raises(InvalidInputError, match="Cannot purge as it might break internal state"):
        log.purge(2)
    with pytest.raises(InvalidInputError, match="Cannot purge"):
        log.purge_after(1)


def test_the_latest_id_is_known_without_opening_a_file(objects: Objects) -> None:
    store, log = faulty(objects)
    add_all(log, 2)
    store.opened.clear()
    assert log.latest_id() == 2
    assert store.opened == []
    assert log.latest() == (2, upto(2))
    assert store.opened == ["log/2.compact"]


def test_foreign_files_are_left_alone(open_log: OpenLog, objects: Objects) -> None:
    foreign = [".3.0f5b.temp", ".9.crc", "_x", "README", "007", "5.compact.compact", "9/0", "8/1"]
    for name in foreign:
        objects.create(f"log/{name}", b"?")
    log = open_log(m=1)
    assert log.latest_id() is None
    assert log.live_entries() == []
    add_all(log, 3)
    assert log.live_entries() == upto(3)
    assert names(objects) == sorted([*spelled("2c 3"), *(name for name in foreign if "/" not in name)])


def test_checksums_go_with_their_batch_and_a_stale_one_before_it(tmp_path: Path) -> None:
    objects = open_objects(tmp_path)
    log = CompactibleLog(objects, "log", JsonCodec(), default_interval=3, min_batches_to_retain=1, cleanup_delay_ms=0)
    add_all(log, 2)
    for name in (".0.crc", ".1.crc", ".2.compact.crc", ".3.crc"):
        (tmp_path / "log" / name).write_bytes(b"crc")
    log.add(3, ["p3"])
    assert sorted(os.listdir(tmp_path / "log")) == [".2.compact.crc", "2.compact", "3"]


def test_a_damaged_file_is_named_with_its_line(open_log: OpenLog, objects: Objects) -> None:
    log = open_log()
    objects.create("log/0", b'v1\n"a"\n"b')
    with pytest.raises(CorruptionError, match=r'Failed to read log file .*/log/0\. line 3, \'"b\''):
        log.get(0)
    with pytest.raises(CorruptionError, match="line 3"):
        log.live_entries()


def test_a_file_of_a_newer_format_is_refused(objects: Objects) -> None:
    CompactibleLog(objects, "log", JsonCodec(), version=2).add(0, ["x"])
    with pytest.raises(CorruptionError, match=r"Failed to read log file .*/0\. .*version is v1, but encountered v2"):
        CompactibleLog(objects, "log", JsonCodec(), version=1).get(0)
    assert CompactibleLog(objects, "log", JsonCodec(), version=3).get(0) == ["x"]


def test_a_torn_line_does_not_spread_by_compaction(objects: Objects) -> None:
    log = CompactibleLog(objects, "log", ObjectCodec(), default_interval=3)
    log.add(0, [{"a": 1}])
    objects.create("log/1", b'v1\n{"a":2}\n{"a"')
    with pytest.raises(CorruptionError, match=r"/log/1\..*'\{\"a\"'"):
        log.add(2, [{"a": 3}])
    assert names(objects) == spelled("0 1")


def test_carriage_returns_do_not_survive_compaction(open_log: OpenLog, objects: Objects) -> None:
    objects.create("log/0", b'v1\r\n"a"\r\n"b"\r\n')
    objects.create("log/1", b"v1\r\n")
    log = open_log()
    log.add(2, ["c"])
    assert objects.read("log/2.compact") == b'v1\n"a"\n"b"\n"c"'


def test_only_new_batches_are_read_again(objects: Objects) -> None:
    store, log = faulty(objects)
    add_all(log, 3)
    assert log.live_entries() == upto(3)
    store.opened.clear()
    assert log.live_entries() == upto(3)
    assert store.opened == []
    log.add(4, ["p4"])
    assert log.live_entries() == upto(4)
    assert store.opened == ["log/4"]


def test_a_callers_change_to_the_result_does_not_reach_later_results(open_log: OpenLog) -> None:
    log = open_log()
    add_all(log, 1)
    log.live_entries().clear()
    assert log.live_entries() == upto(1)


def test_a_failed_clean_up_does_not_fail_the_add(objects: Objects, caplog: pytest.LogCaptureFixture) -> None:
    store, log = faulty(objects, m=1)
    store.fail_delete = True
    with caplog.at_level(logging.WARNING):
        add_all(log, 3)
    assert "expired batches were not deleted" in caplog.text
    store.fail_delete = False
    log.add(4, ["p4"])
    assert names(objects) == spelled("2c 3 4")


@pytest.mark.parametrize("batch_id", [1, 2])
def test_a_batch_that_landed_although_the_store_failed_is_committed(objects: Objects, batch_id: int) -> None:
    store, log = faulty(objects)
    add_all(log, batch_id - 1)
    store.fail_after_create = lambda path: True
    assert log.add(batch_id, [f"p{batch_id}"])
    assert log.live_entries() == upto(batch_id)


def test_a_batch_that_did_not_land_fails_and_can_be_added_again(objects: Objects) -> None:
    store, log = faulty(objects)
    store.fail_before_create = lambda path: True
    with pytest.raises(StorageError):
        log.add(0, ["p0"])
    store.fail_before_create = lambda path: False
    assert log.add(0, ["p0"])


def test_a_store_that_fails_while_another_writer_wins_is_a_conflict(objects: Objects) -> None:
    store, log = faulty(objects)

    def other_wins(path: str) -> bool:
        objects.create(path, b'v1\n"theirs"')
        return True

    store.fail_before_create = other_wins
    with pytest.raises(ConflictError):
        log.add(0, ["mine"])


def test_a_commit_that_cannot_be_read_back_is_unknown(objects: Objects) -> None:
    store, log = faulty(objects)
    store.fail_after_create = store.fail_read = lambda path: True
    with pytest.raises(CommitUnknownError, match="list the log again"):
        log.add(0, ["p0"])


def test_no_entries_at_all_is_a_wrong_call(open_log: OpenLog) -> None:
    with pytest.raises(InvalidInputError, match="'null' metadata cannot be written to a metadata log"):
        open_log().add(0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"k": 0}, {"k": -1}, {"m": 0}])
def test_impossible_settings_are_refused_at_once(open_log: OpenLog, options: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="positive"):
        open_log(**options)


class KeyedLog(CompactibleLog[dict[str, object]]):
    """Entries with a key; one that says it is gone removes."""

    reconciles = True

    def key(self, entry: dict[str, object]) -> Hashable | None:
        return entry.get("key")

    def is_removal(self, entry: dict[str, object]) -> bool:
        return entry.get("gone") is True


def test_later_entries_supersede_and_remove_earlier_ones_of_their_key(objects: Objects) -> None:
    def opened() -> KeyedLog:
        return KeyedLog(objects, "log", ObjectCodec(), default_interval=3)

    log = opened()
    log.add(0, [{"key": "a", "v": 1}, {"key": "b", "v": 1}, {"note": "kept"}])
    log.add(1, [{"key": "a", "v": 2}, {"key": "b", "gone": True}, {"note": "kept"}])
    before = log.live_entries()
    assert before == [{"note": "kept"}, {"key": "a", "v": 2}, {"note": "kept"}]
    log.add(2, [{"key": "c", "v": 1}])
    assert (
        objects.read("log/2.compact") == b'v1\n{"note":"kept"}\n{"key":"a","v":2}\n{"note":"kept"}\n{"key":"c","v":1}'
    )
    log.add(3, [{"key": "b", "v": 3}, {"key": "c", "gone": True}])
    assert log.live_entries() == opened().live_entries() == [*before, {"key": "b", "v": 3}]


class RetainingLog(CompactibleLog[object]):
    """Keeps what sorts after the clock."""

    def retain(self, entry: object, now_ms: int) -> bool:
        return isinstance(entry, int) and entry >= now_ms


def test_entries_that_are_no_longer_wanted_leave_at_compaction_and_show_no_more(objects: Objects) -> None:
    now = [0]
    clock: Callable[[], int] = lambda: now[0]  # noqa: E731
    log = RetainingLog(objects, "log", JsonCodec(), default_interval=3, now_ms=clock)
    log.add(0, [1, 2])
    now[0] = 2
    log.add(1, [1, 5])
    assert log.live_entries() == [2, 5]
    log.add(2, [1, 3])
    assert objects.read("log/2.compact") == b"v1\n2\n5\n3"
    now[0] = 4
    assert log.live_entries() == [5]
    now[0] = 9
    log.add(3, [])
    log.add(4, [])
    log.add(5, [])
    assert objects.read("log/5.compact") == b"v1"


def test_a_compact_file_cut_short_does_not_spread_by_compaction(objects: Objects) -> None:
    log = CompactibleLog(objects, "log", ObjectCodec(), default_interval=2)
    for batch_id in range(3):
        log.add(batch_id, [{"a": batch_id}])
    objects.replace("log/1.compact", objects.read("log/1.compact")[:-1])
    with pytest.raises(CorruptionError, match=r"/log/1\.compact\."):
        log.add(3, [])
    assert names(objects) == spelled("0 1c 2")


@pytest.mark.parametrize("data", [b"v1\n\n1", b"v1\n1\n\n", b"v1\n\n"])
def test_a_blank_line_is_damage(open_log: OpenLog, objects: Objects, data: bytes) -> None:
    objects.create("log/0", data)
    objects.create("log/1", b"v1")
    with pytest.raises(CorruptionError, match="Failed to read log file"):
        open_log().live_entries()
    with pytest.raises(CorruptionError, match="Failed to read log file"):
        open_log().add(2, [])
