"""Files that are dropped into a folder are taken once each, whatever they are called, however they arrive."""

import gzip
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone import clock
from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.ingest.drop_folder import compile_pattern
from siltstone.ingest.drop_log import DropLog, drop_logs
from siltstone.ingest.drop_options import DropOptions, Ingested, TakenRows
from siltstone.log.spark_logs import SourceLog
from siltstone.model import Idempotency
from siltstone.storage import object_store as storage

DAY_MS = 24 * 3600 * 1000
LONG_AGO = 1_700_000_000


class Place:
    """A table, and a folder beside its lake."""

    def __init__(self, tmp_path: Path, **rules: Any) -> None:
        self.folder = tmp_path / "drops"
        self.folder.mkdir()
        self.lake = siltstone.open(tmp_path / "lake")
        rules = {"primary_keys": ["id"], **rules}
        self.table = self.lake.create_table("shop.orders", schema={"id": "int64", "note": "string"}, **rules)
        self._clock = LONG_AGO

    def drop(self, name: str, *ids: int, note: str = "x", text: str | None = None) -> Path:
        """Put a file there that was last changed long ago, each a second after the one before."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"id": number, "note": note}) for number in ids]
        path.write_bytes(("\n".join(lines) if text is None else text).encode())
        self._clock += 1
        os.utime(path, (self._clock, self._clock))
        return path

    def take(self, **options: Any) -> Ingested:
        return self.table.ingest(self.folder, **options)

    def ids(self) -> list[int]:
        """Return the ids in the deltas, in the order that they were written, doubles included."""
        return [
            number
            for delta in self.table.deltas()
            for number in storage.download_delta(delta, root=self.lake.root).column("id").to_pylist()
        ]

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def keyless(tmp_path: Path) -> Place:
    return Place(tmp_path, primary_keys=[])


def die(*args: object, **options: object) -> int:
    raise KeyboardInterrupt


class LaterClock(clock.SystemClock):
    """A clock that is set ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


class SlowClock(clock.SystemClock):
    """A clock that does not wait, but calls something meanwhile."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.seconds = 0.0
        self.waits = 0
        self.meanwhile = meanwhile

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.waits += 1
        self.meanwhile()


def test_files_are_taken_once_in_order_of_their_time_and_name(place: Place) -> None:
    for name, number in (("b.jsonl", 1), ("a.jsonl", 2)):
        place.drop(name, number)
    later = [place.drop(name, number) for name, number in (("d.jsonl", 4), ("c.jsonl", 3))]
    for path in later:
        os.utime(path, (LONG_AGO + 99, LONG_AGO + 99))
    taken = place.take()
    assert (taken.files, taken.rows, taken.batches, taken.stream_position) == (4, 4, 1, 1)
    assert place.ids() == [1, 2, 3, 4]
    assert place.take().files == 0
    place.drop("e.jsonl", 5)
    assert place.take().stream_position == 2
    assert place.ids() == [1, 2, 3, 4, 5]
    assert place.names() == ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl", "e.jsonl"]


def test_all_formats_of_writes_are_taken(place: Place) -> None:
    place.drop("a.jsonl", 1)
    place.drop("b.csv", text="id,note\n2,x\n")
    place.drop("c.tsv", text="id\tnote\n3\tx\n")
    (place.folder / "d.jsonl.gz").write_bytes(gzip.compress(b'{"id": 4, "note": "x"}\n'))
    pq.write_table(pa.table({"id": [5], "note": ["x"]}), place.folder / "e.parquet")
    assert place.take(settle_seconds=0).rows == 5
    assert sorted(place.ids()) == [1, 2, 3, 4, 5]


def test_a_batch_has_so_many_files_and_bytes_at_most(place: Place) -> None:
    for number in range(7):
        place.drop(f"{number}.jsonl", number)
    size = (place.folder / "0.jsonl").stat().st_size
    assert place.take(max_files=3).batches == 3
    assert [report.rows for report in place.table.delta_reports()] == [3, 3, 1]
    for number in range(7, 10):
        place.drop(f"{number}.jsonl", number)
    assert place.take(max_bytes=size * 2).batches == 2
    place.drop("large.jsonl", *range(20, 30))
    assert place.take(max_bytes=size).files == 1


def test_names_of_hidden_and_unfinished_files_are_passed_over(place: Place) -> None:
    for name in (".hidden.jsonl", "_SUCCESS", "a.jsonl.tmp", "b.part", "c.crdownload", "D.TMP"):
        place.drop(name, 1)
    place.drop("e.jsonl", 2)
    os.symlink(place.folder / "e.jsonl", place.folder / "link.jsonl")
    os.mkfifo(place.folder / "pipe.jsonl")
    assert place.take().files == 1
    (place.folder / "a.jsonl.tmp").rename(place.folder / "a.jsonl")
    assert place.take().files == 1
    assert place.ids() == [2, 1]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", {"a.csv"}),
        ("**/*.csv", {"a.csv", "x/b.csv", "x/y/c.csv"}),
        ("x/*.csv", {"x/b.csv"}),
        ("?.csv", {"a.csv"}),
    ],
)
def test_a_pattern_chooses_files_and_goes_into_folders_only_where_it_says_so(pattern: str, expected: set[str]) -> None:
    names = ["a.csv", "a.csv.gz", "x/b.csv", "x/y/c.csv", "aXcsv"]
    assert {name for name in names if compile_pattern(pattern).fullmatch(name)} == expected


def test_folders_below_are_taken_by_a_pattern_but_not_what_was_moved_away(place: Place) -> None:
    place.drop("2026/11/a.jsonl", 1)
    place.drop("b.jsonl", 2)
    place.drop("bad/c.jsonl", text="{")
    options = {"pattern": "**/*.jsonl", "done": "move", "rejects": str(place.folder / "aside")}
    taken = place.take(**options, quarantine=True)
    assert (taken.files, [rejected.file for rejected in taken.rejected]) == (2, ["bad/c.jsonl"])
    assert place.names() == ["aside/bad/c.jsonl", "done/2026/11/a.jsonl", "done/b.jsonl"]
    assert place.take(**options, quarantine=True).files == 0
    assert place.ids() == [1, 2]


HOSTILE = [
    "new\nline.jsonl",
    "two  spaces .jsonl",
    "täg/ü.jsonl",
    "a%2Fb.jsonl",
    "a%.jsonl",
    "-.jsonl",
    "'\"$(x).jsonl",
    "😀.jsonl",
]


def test_hostile_names_are_taken_and_moved_like_others(place: Place) -> None:
    for number, name in enumerate(HOSTILE):
        place.drop(name, number)
    broken = os.fsencode(place.folder) + b"/\xff\xfe.jsonl"
    Path(os.fsdecode(broken)).write_text('{"id": 99}')
    os.utime(broken, (LONG_AGO, LONG_AGO))
    assert place.take(pattern="**/*.jsonl", max_files=1).files == len(HOSTILE) + 1
    assert place.take(pattern="**/*.jsonl", done="move").files == 0
    assert sorted(place.ids()) == [*range(len(HOSTILE)), 99]
    assert not [name for name in place.names() if not name.startswith("done/")]
    assert len(place.names()) == len(HOSTILE) + 1


def test_a_file_that_grows_is_not_taken_before_it_stays_the_same(place: Place) -> None:
    growing = place.folder / "a.jsonl"
    growing.write_text('{"id": 1}\n')

    def grow() -> None:
        with growing.open("a") as file:
            file.write('{"id": 2}\n')
        os.utime(growing, ns=(0, growing.stat().st_mtime_ns + 1000))

    drops = place.table.open_drops(place.folder)
    with clock.replaced(slow := SlowClock(grow)):
        assert (drops.take().files, slow.waits) == (0, 1)
        slow.meanwhile = lambda: None
        taken = drops.take()
        assert (taken.files, taken.rows, slow.waits) == (1, 2, 2)
        slow.seconds += 60
        assert (drops.take().files, slow.waits) == (0, 2), "nothing to wait for"


def test_a_file_that_was_seen_before_is_settled_at_the_next_look(place: Place) -> None:
    drops = place.table.open_drops(place.folder, DropOptions(settle_seconds=5))
    with clock.replaced(slow := SlowClock()):
        (place.folder / "a.jsonl").write_text('{"id": 1}\n')
        slow.meanwhile = lambda: (place.folder / "b.jsonl").write_text('{"id": 2}\n')
        taken = drops.take()
        assert (taken.files, taken.waiting_files) == (1, 1), "b came while it waited"
        slow.meanwhile = lambda: None
        slow.seconds += 5
        assert (drops.take().files, slow.waits) == (1, 1)


def test_a_file_that_changes_while_it_is_read_is_not_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place.drop("a.jsonl", 1)
    write = siltstone.Table.write_files
    calls = 0

    def replaced_meanwhile(self: siltstone.Table, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            check = options.pop("before_commit")

            def change() -> None:
                path.write_text('{"id": 2}\n')
                os.utime(path, (LONG_AGO + 50, LONG_AGO + 50))
                check()

            options["before_commit"] = change
        return write(self, *args, **options)

    monkeypatch.setattr(siltstone.Table, "write_files", replaced_meanwhile)
    drops = place.table.open_drops(place.folder)
    assert drops.take().files == 0, "what it is now was not there when it looked"
    assert place.ids() == []
    assert drops.take().files == 1
    assert place.ids() == [2]


def test_a_file_that_comes_again_with_other_content_is_taken_again_where_there_is_a_key(place: Place) -> None:
    place.drop("a.jsonl", 1)
    place.take()
    place.drop("a.jsonl", 1, note="new")
    assert place.take().rows == 1
    assert place.take().rows == 0
    assert place.table.scan(fresh=True).to_arrow().to_pylist() == [{"id": 1, "note": "new"}]


def test_a_changed_file_is_refused_where_there_is_no_key(keyless: Place) -> None:
    keyless.drop("a.jsonl", 1)
    keyless.take()
    keyless.drop("a.jsonl", 1, 2)
    keyless.drop("b.jsonl", 3)
    with pytest.raises(InvalidInputError, match=r"a\.jsonl: was taken in batch 0, and has changed since"):
        keyless.take()
    assert keyless.ids() == [1]
    taken = keyless.take(quarantine=True)
    assert (taken.files, len(taken.rejected)) == (1, 1)
    assert keyless.ids() == [1, 3]
    assert keyless.names() == ["b.jsonl", "rejected/a.jsonl"]


def test_a_changed_file_stays_known_where_its_batch_is_given_up_for_another_file(keyless: Place) -> None:
    keyless.drop("a.jsonl", 1)
    keyless.take()
    keyless.drop("a.jsonl", 1, 2)
    keyless.drop("b.jsonl", text="{")
    taken = keyless.take(quarantine=True)
    assert sorted(rejected.file for rejected in taken.rejected) == ["a.jsonl", "b.jsonl"]
    assert keyless.ids() == [1]
    keyless.drop("a.jsonl", 1, 2, 3)
    with pytest.raises(InvalidInputError, match="was taken in batch 0"):
        keyless.take()


@pytest.mark.parametrize("bad_at", [0, 1, 2])
def test_a_bad_file_stops_its_batch_and_nothing_is_half_written(place: Place, bad_at: int) -> None:
    for number in range(3):
        place.drop(f"{number}.jsonl", number, text='{"id": "no"}' if number == bad_at else None)
    with pytest.raises(InvalidInputError, match=rf"/{bad_at}\.jsonl: .*batch of 3 files was written.*quarantine"):
        place.take()
    assert place.table.deltas() == []
    place.drop(f"{bad_at}.jsonl", bad_at)
    assert place.take().rows == 3
    assert sorted(place.ids()) == [0, 1, 2]


@pytest.mark.parametrize("bad_at", [0, 1, 2])
def test_with_quarantine_a_bad_file_is_moved_and_the_others_are_taken(place: Place, bad_at: int) -> None:
    for number in range(3):
        place.drop(f"{number}.jsonl", number, text="{" if number == bad_at else None)
    taken = place.take(quarantine=True)
    assert (taken.files, taken.rows) == (2, 2)
    (rejected,) = taken.rejected
    assert rejected.file == f"{bad_at}.jsonl"
    assert rejected.reason.startswith("line 1")
    assert sorted(place.ids()) == [number for number in range(3) if number != bad_at]
    assert place.names()[-1] == f"rejected/{bad_at}.jsonl"
    (report,) = place.table.ingests()
    assert (report.files, report.rejected, report.recent_rejects) == (2, 1, [rejected])
    # It is taken once it is corrected and dropped again.
    place.drop(f"{bad_at}.jsonl", bad_at)
    assert place.take(quarantine=True).files == 1


def test_a_folder_of_bad_files_only_is_emptied(place: Place) -> None:
    for number in range(3):
        place.drop(f"{number}.jsonl", text="{")
    taken = place.take(quarantine=True)
    assert (taken.files, len(taken.rejected), place.table.deltas()) == (0, 3, [])
    assert all(name.startswith("rejected/") for name in place.names())


def test_a_file_of_an_unknown_format_is_a_bad_file(place: Place) -> None:
    place.drop("README", 1)
    with pytest.raises(InvalidInputError, match="README: unknown file format"):
        place.take()
    assert place.take(format="jsonl").rows == 1


def test_files_with_other_columns_go_into_commits_of_their_own(place: Place) -> None:
    for number in range(9):
        text = json.dumps({"id": number, **({"extra": 1} if number in (3, 4, 8) else {})})
        place.drop(f"{number}.jsonl", text=text)
    assert place.take().files == 9
    assert place.ids() == list(range(9))
    columns = [len(delta.columns) for delta in place.table.deltas()]
    assert 2 in columns
    assert place.take().files == 0


def test_empty_files_are_taken_and_write_nothing(place: Place) -> None:
    place.drop("a.jsonl", text="")
    taken = place.take(done="move")
    assert (taken.files, taken.rows, taken.stream_position) == (1, 0, None)
    assert place.names() == ["done/a.jsonl"]
    place.drop("a.jsonl", text="")
    place.drop("b.jsonl", 1)
    assert place.take().files == 2
    assert place.ids() == [1]


def test_an_empty_folder_is_nothing_and_a_missing_one_an_error(place: Place) -> None:
    assert place.take().files == 0
    place.folder.rmdir()
    with pytest.raises(NotFoundError, match="drops: no such folder"):
        place.take()
    place.folder.write_text("a file")
    with pytest.raises(NotFoundError, match="drops: no such folder"):
        place.take()


def test_a_folder_of_the_lake_is_refused(place: Place) -> None:
    for inside in (place.lake.root, f"{place.lake.root}/tables/shop"):
        with pytest.raises(InvalidInputError, match="is inside the lake"):
            place.table.ingest(inside)
    place.drop("../a.jsonl", 1)
    around = place.folder.parent
    assert place.table.ingest(around).files == 1
    with pytest.raises(InvalidInputError, match=r"the lake .* is below it"):
        place.table.ingest(around, pattern="**/*.jsonl")


def test_where_files_are_moved_a_name_may_come_again_without_a_key(keyless: Place) -> None:
    for number in range(2):
        keyless.drop("orders.jsonl", number)
        assert keyless.take(done="move").files == 1
    assert keyless.ids() == [0, 1]


@pytest.mark.parametrize("done", ["move", "delete"])
def test_taken_files_are_moved_or_deleted_and_forgotten(place: Place, done: str) -> None:
    for round_ in range(4):
        place.drop("a.jsonl", round_)
        assert place.take(done=done).files == 1
    moved = ["done/a.1.jsonl", "done/a.2.jsonl", "done/a.3.jsonl", "done/a.jsonl"]
    assert place.names() == (moved if done == "move" else [])
    assert place.ids() == [0, 1, 2, 3]
    (log,) = drop_logs(place.lake.root, version_folder(place))
    assert len(log.known(log.newest())) <= 2


def test_what_is_to_be_moved_is_moved_after_a_crash_and_what_came_since_stays(place: Place) -> None:
    place.drop("a.jsonl", 1)
    place.drop("b.jsonl", 2)
    place.take()
    place.drop("b.jsonl", 3)
    drops = place.table.open_drops(place.folder, DropOptions(done="delete", max_files=1))
    assert drops.take(is_stopping=lambda: True).files == 0
    assert place.names() == ["b.jsonl"], "a was taken, b is another file now"


def is_known(log: DropLog, path: str) -> bool:
    return path in {key.path for key in log.known(log.newest())}


def version_folder(place: Place) -> str:
    from siltstone.catalog import main as catalog

    return catalog.version_folder(place.table.name, root=place.lake.root)


def test_a_file_that_left_the_folder_is_remembered_for_a_week_and_then_forgotten(keyless: Place) -> None:
    keyless.drop("a.jsonl", 1)
    keyless.take()
    elsewhere = (keyless.folder / "a.jsonl").rename(keyless.folder.parent / "a.jsonl")
    with clock.replaced(later := LaterClock()):
        for number in range(2, 15):
            keyless.drop(f"{number}.jsonl", number)
            keyless.take()
        later.ahead_ms = 6 * DAY_MS
        elsewhere.rename(keyless.folder / "a.jsonl")
        assert keyless.take().files == 0, "it is the one that was taken"
        keyless.drop("20.jsonl", 20)
        keyless.take()
        (log,) = drop_logs(keyless.lake.root, version_folder(keyless))
        assert is_known(log, "a.jsonl")
        (keyless.folder / "a.jsonl").unlink()
        known = []
        for number in range(21, 24):
            keyless.drop(f"{number}.jsonl", number)
            keyless.take()
            known.append(is_known(log, "a.jsonl"))
            later.ahead_ms += 5 * DAY_MS
        assert known == [True, True, False], "the week begins when it left for good"
        # All others are still there, long after, and are not taken again.
        assert keyless.take().files == 0
    assert keyless.ids() == [1, *range(2, 15), 20, 21, 22, 23]


def test_the_log_stays_small_where_files_go(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.ingest.drop_log._KEPT_RECORDS", 10)
    for number in range(32):
        place.drop(f"{number}.jsonl", number)
        place.take(done="delete")
    (log,) = drop_logs(place.lake.root, version_folder(place))
    sizes = [file.size for file in log.objects.list_objects(log.folder, recursive=True)]
    assert max(sizes) < 1000, "a compact batch has the last few files, not all"
    assert len(log.objects.list_objects(f"{log.folder}/done")) == 10
    assert place.table.fsck() == []


def test_the_log_is_one_that_spark_and_our_tools_read(place: Place) -> None:
    place.drop("a b.jsonl", 1)
    place.take()
    (log,) = drop_logs(place.lake.root, version_folder(place))
    (entry,) = SourceLog(log.address()).restore()
    assert (entry.path, entry.batch_id, entry.timestamp_ms) == ("a b.jsonl", 0, (LONG_AGO + 1) * 1000)


def test_a_vacuum_keeps_what_was_taken_and_the_name_may_change(place: Place) -> None:
    place.drop("a.jsonl", 1)
    place.take()
    renamed = place.table.rename("shop.sales")
    report = renamed.vacuum(orphan_grace_ms=-DAY_MS)
    assert report.removed_files == []
    assert renamed.ingest(place.folder).files == 0
    assert renamed.fsck() == []
    renamed.drop()
    gone = place.lake.vacuum_dropped(retention_ms=-DAY_MS)
    assert len(gone.removed_folders) == 1
    assert not [path for path in Path(place.lake.root).rglob("ingest/**/*") if path.is_file()]


def test_fsck_finds_a_damaged_log(place: Place) -> None:
    for number in range(3):
        place.drop(f"{number}.jsonl", number)
        place.take()
    (log,) = drop_logs(place.lake.root, version_folder(place))
    for name, data in (("1", b"v1\n{"), ("done/2", b"{")):
        path = Path(log.address(name))
        before = path.read_bytes()
        path.write_bytes(data)
        assert [finding.code for finding in place.table.fsck()] == ["ingest-log"]
        path.write_bytes(before)
    Path(log.address("done/1")).unlink()
    (finding,) = place.table.fsck()
    assert "not how batch 1 ended" in finding.message


def test_a_source_with_a_name_of_its_own_may_move(place: Place) -> None:
    place.drop("a.jsonl", 1)
    place.take(source_id="orders")
    place.folder = place.folder.rename(place.folder.with_name("elsewhere"))
    assert place.take(source_id="orders").files == 0
    with pytest.raises(InvalidInputError, match="source id"):
        place.take(source_id="../x")


def test_two_folders_go_into_one_table(place: Place, tmp_path: Path) -> None:
    place.drop("a.jsonl", 1)
    place.take()
    other = place.folder = tmp_path / "other"
    place.drop("a.jsonl", 2)
    place.take()
    assert place.ids() == [1, 2]
    assert {report.source for report in place.table.ingests()} == {str(tmp_path / "drops"), str(other)}


def test_a_dry_run_counts_and_changes_nothing(place: Place) -> None:
    place.drop("a.jsonl", 1, 2)
    place.drop("b.jsonl", text="{")
    place.drop("c.jsonl", text="")
    taken = place.take(dry_run=True, done="delete")
    assert (taken.files, taken.rows, taken.dry_run, [bad.file for bad in taken.rejected]) == (2, 2, True, ["b.jsonl"])
    assert (place.names(), place.table.deltas()) == (["a.jsonl", "b.jsonl", "c.jsonl"], [])
    assert place.table.ingests() == []


def test_operations_and_types_of_writes_go_with_the_batch(place: Place) -> None:
    place.drop("a.jsonl", 1, 2)
    place.take()
    place.drop("b.jsonl", text='{"id": 1, "op": "d"}')
    place.take(op_column="op")
    place.drop("c.csv", text="id\n2\n")
    place.take(type="delete")
    assert place.table.scan(fresh=True).count() == 0


def test_whoever_finishes_a_batch_reads_it_as_its_list_says(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.drop("a.txt", text="id;note\n1;x\n")
    with monkeypatch.context() as patch:
        patch.setattr(siltstone.Table, "take_files", die)
        with pytest.raises(KeyboardInterrupt):
            place.take(format="csv", delimiter=";")
    assert place.take(pattern="*.jsonl").rows == 1
    assert place.ids() == [1]


def test_a_batch_that_is_given_up_is_never_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process sleeps in the middle of a write while another gives its batch up, for the file has changed."""
    place.drop("a.jsonl", 1)
    slow = place.table.open_drops(place.folder)
    take_files = siltstone.Table.take_files
    woken: list[Ingested] = []

    def overtaken(self: siltstone.Table, files: Any, how: Any, name: Any, check: Any, **options: Any) -> TakenRows:
        monkeypatch.setattr(siltstone.Table, "take_files", take_files)

        def check_then_sleep() -> None:
            check()
            place.drop("a.jsonl", 2)
            woken.append(place.take())

        return take_files(self, files, how, name, check_then_sleep, **options)

    monkeypatch.setattr(siltstone.Table, "take_files", overtaken)
    assert slow.take().files == 0
    assert [taken.files for taken in woken] == [1]
    assert place.ids() == [2]
    stream = storage.find_stream("shop", "orders", root=place.lake.root).locator
    name = Idempotency(app_id=f"ingest:{woken[0].source_id}", batch_id=1)
    assert storage.find_commit(stream, name, root=place.lake.root) == 1


def test_a_batch_is_known_to_be_written_long_after(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process dies between the commit and the record of it; months later, another one goes on."""

    place.drop("a.jsonl", 1)
    with clock.replaced(later := LaterClock()):
        with monkeypatch.context() as patch:
            patch.setattr("siltstone.ingest.drops.Drops._record", die)
            with pytest.raises(KeyboardInterrupt):
                place.take()
        for _ in range(12):
            later.ahead_ms += 30 * DAY_MS
            place.table.write([{"id": 7, "note": "between"}])
        assert place.take().rows == 1
    assert place.ids() == [1, *[7] * 12]


def test_files_that_change_without_end_are_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.drop("a.jsonl", 1)
    drops = place.table.open_drops(place.folder)
    monkeypatch.setattr(drops._folder, "changed", lambda files: ["a.jsonl"], raising=False)
    with pytest.raises(ConflictError, match="change again and again"):
        drops.take()
    assert place.ids() == []


def test_ten_thousand_files_are_taken_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    place.table = place.lake.create_table("shop.orders", schema={"id": "int64"})
    for number in range(10_000):
        path = f"{place.folder}/{number}.csv"
        with open(path, "w") as file:
            # Most are empty, which is quick to read.
            file.write(f"id\n{number}\n" if number % 20 == 0 else "")
        os.utime(path, (LONG_AGO, LONG_AGO))
    taken = place.take(done="move", max_files=4000)
    assert (taken.files, taken.rows, taken.batches) == (10_000, 500, 3)
    assert sorted(place.ids()) == list(range(0, 10_000, 20))
    assert place.take().files == 0
    assert len(os.listdir(place.folder / "done")) == 10_000


def test_change_events_are_decoded_and_not_taken_for_rows(place: Place) -> None:
    def event(op: str, before: object, after: object) -> str:
        return json.dumps({"op": op, "before": before, "after": after, "source": {"table": "orders"}, "ts_ms": 1})

    row = {"id": 1, "note": "x"}
    place.drop("a.jsonl", text=f"{event('c', None, row)}\n{event('c', None, {'id': 2, 'note': 'y'})}")
    place.drop("b.jsonl", text=event("d", row, None))
    assert place.take(format="debezium", max_files=1).files == 2
    assert place.take(format="debezium").files == 0
    assert place.table.scan(fresh=True).to_arrow().to_pylist() == [{"id": 2, "note": "y"}]
    assert place.table.schema.names == ["id", "note"]
    place.drop("c.jsonl", text=event("c", None, {"id": "no"}))
    assert place.take(format="debezium", quarantine=True).rejected[0].file == "c.jsonl"


def test_documents_are_taken_as_lines(tmp_path: Path) -> None:
    lake, folder = siltstone.open(tmp_path / "lake"), tmp_path / "drops"
    folder.mkdir()
    docs = lake.create_document_table("shop.reviews")
    (folder / "a.jsonl").write_text('{"key": "r1", "delta": {"stars": 4}}\n{"key": "r2", "delta": {"stars": 1}}\n')
    (folder / "b.jsonl").write_text('{"key": "r1", "delta": "{..,\\"stars\\":5}"}\n')
    taken = docs.table.ingest(folder, settle_seconds=0)
    assert (taken.files, taken.rows) == (2, 3)
    assert docs.table.ingest(folder, settle_seconds=0).files == 0
    assert docs.get("r1")["stars"] == 5
    (folder / "c.jsonl").write_text('{"key": "r1", "delta": "{.."}\n')
    with pytest.raises(InvalidInputError, match=r"c\.jsonl"):
        docs.table.ingest(folder, settle_seconds=0)
    assert docs.table.ingest(folder, settle_seconds=0, quarantine=True).rejected[0].file == "c.jsonl"
    (folder / "d.csv").write_text("key,delta\n")
    with pytest.raises(InvalidInputError, match="JSON lines"):
        docs.table.ingest(folder, settle_seconds=0, format="csv")


def test_options_are_checked(place: Place) -> None:
    for options, words in (
        ({"done": "burn"}, "keep, move or delete"),
        ({"max_files": 0}, "max_files is 0"),
        ({"settle_seconds": -1}, "settle_seconds is -1"),
        ({"pattern": "/etc/*"}, "relative to the folder"),
        ({"pattern": "../*"}, "relative to the folder"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            place.take(**options)


def test_the_last_error_is_kept_until_a_look_succeeds(place: Place) -> None:
    bad = place.drop("a.jsonl", text="{")
    drops = place.table.open_drops(place.folder)
    for _ in range(2):
        with pytest.raises(InvalidInputError):
            drops.take()
    (report,) = place.table.ingests()
    assert report.error is not None
    assert "a.jsonl" in report.error
    bad.unlink()
    drops.take()
    (report,) = place.table.ingests()
    assert (report.error, report.error_at, report.waiting_files) == (None, None, 0)
