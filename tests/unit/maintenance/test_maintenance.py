"""Rolling back, vacuuming and checking compacted tables."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.catalog import main as catalog
from siltstone.errors import ConflictError, CorruptionError
from siltstone.log import horizon
from siltstone.log.commit import CommitLog, commit_log, forget_logs
from siltstone.maintenance import recovery
from siltstone.maintenance.fsck import check_partition
from siltstone.model import PartitionLocator, StreamLocator
from siltstone.objects import open_objects, replaced
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.files import StoredFile
from siltstone.rows.index import write_index
from siltstone.rows.job import BucketResult, RoundJob
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.storage.layout import version_log
from siltstone.table.completion import (
    compacted_partition,
    list_rounds,
    locate_destination,
    read_completion,
    write_completion,
)
from siltstone.testing import FaultyObjects, faults
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import MINOR, destination_of, make_table, rows
from tests.unit.rounds.compaction import compact as compact_here

HOUR_MS = 3_600_000


def compact(table: siltstone.Table) -> None:
    for source in table._sources():
        keys = tuple(table.version.primary_keys)
        run_session(Request(source, compacted_partition(source), keys, table.lake.root), run_here)


@pytest.fixture
def orders(local_root: str) -> siltstone.Table:
    """A table with three rounds, of which the later ones keep files and mark rows dead."""
    table = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "n": "int64"}, primary_keys="id"
    )
    for number in range(3):
        table.write(
            pa.table(
                {"id": range(number, 100, 10 * number + 1), "n": [number] * len(range(number, 100, 10 * number + 1))}
            )
        )
        compact(table)
    return table


def files(table: siltstone.Table) -> set[str]:
    return {object_.path for object_ in open_objects(table.lake.root).list_objects("", recursive=True)}


def test_a_rollback_restores_an_earlier_state_and_the_next_round_goes_on_from_there(orders: siltstone.Table) -> None:
    before = orders.to_arrow(as_of=1).to_pylist()
    newest = orders.to_arrow().to_pylist()
    done = orders.rollback(1)
    assert (done.round_id, done.high_watermark, done["rolled_back_to"]) == (4, 1, 1)
    same_rows(orders.to_arrow(), before)
    compact(orders)
    same_rows(orders.to_arrow(), newest)
    assert [round_.round_id for round_ in orders.rounds()] == [1, 2, 3, 4, 5]


def test_a_rollback_needs_an_earlier_round_that_is_still_there(orders: siltstone.Table) -> None:
    with pytest.raises(siltstone.NotFoundError, match="round 9"):
        orders.rollback(9)
    with pytest.raises(siltstone.InvalidInputError, match="current"):
        orders.rollback(3)
    (Path(orders.lake.root) / orders.rounds()[0].files[0].uri).unlink()
    with pytest.raises(siltstone.InvalidInputError, match="gone"):
        orders.rollback(1)


def test_a_vacuum_keeps_all_that_any_readable_state_names(orders: siltstone.Table) -> None:
    before = files(orders)
    assert orders.vacuum(orphan_grace_ms=0).removed_files == []
    assert files(orders) == before


def test_a_vacuum_removes_orphans_past_the_grace_and_nothing_in_a_dry_run(orders: siltstone.Table) -> None:
    folder = orders.deltas()[0].manifest.entries[0].uri.rpartition("/")[0]
    open_objects(orders.lake.root).create(f"{folder}/orphan.parquet", b"staged and forgotten")
    before = files(orders)
    assert orders.vacuum().removed_files == [], "it is too young"
    report = orders.vacuum(orphan_grace_ms=0, dry_run=True)
    assert report.removed_files == [f"{folder}/orphan.parquet"]
    assert files(orders) == before
    assert orders.vacuum(orphan_grace_ms=0).removed_bytes == 20
    logs = {path for path in files(orders) - before if "/log/" in path}
    assert files(orders) - logs == before - {f"{folder}/orphan.parquet"}


def test_a_vacuum_forgets_expired_rounds_but_never_the_current_one(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = orders.to_arrow().to_pylist()
    now = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: now + 1000 * HOUR_MS)
    unsure = orders.vacuum(retention_ms=HOUR_MS)
    assert unsure.expired_rounds == []
    assert "1000 hours ahead" in str(unsure.unsure_time)
    report = orders.vacuum(retention_ms=HOUR_MS, confirm_time=True)
    assert (report.expired_rounds, report.unsure_time) == ([1, 2], None)
    assert [round_.round_id for round_ in orders.rounds()] == [3]
    same_rows(orders.to_arrow(), expected)
    assert orders.fsck(deep=True) == []
    orders.write(pa.table({"id": [1], "n": [9]}))
    compact(orders)
    same_rows(orders.to_arrow(), oracle_of(orders).rows())


def test_a_sound_table_has_no_findings(orders: siltstone.Table) -> None:
    assert orders.fsck() == orders.fsck(deep=True) == []


@pytest.mark.parametrize(
    ("victim", "code"),
    [
        (lambda table: table.deltas()[0].manifest.entries[0].uri, "delta-file"),
        (lambda table: table.rounds()[-1].files[0].uri, "compacted-file"),
        (lambda table: table.rounds()[-1].files[0].index_uri, "compacted-file"),
        (lambda table: table.rounds()[-1].files[0].deletion_vector.uri, "compacted-file"),
    ],
    ids=["delta", "data", "index", "vector"],
)
def test_missing_and_cut_files_are_found(
    orders: siltstone.Table, victim: Callable[[siltstone.Table], str], code: str
) -> None:
    path = Path(orders.lake.root) / victim(orders)
    path.write_bytes(path.read_bytes()[:-4])
    assert [finding.code for finding in orders.fsck()] == [code]
    path.unlink()
    (finding,) = orders.fsck()
    assert finding.code == code
    assert path.name.partition(".")[0] in finding.file + finding.message


def test_a_deep_check_finds_an_index_that_does_not_match(orders: siltstone.Table) -> None:
    file = orders.rounds()[-1].files[0]
    assert file.index_uri is not None
    hashes = StoredFile(orders.lake.root, file).index.hashes_by_row()
    (Path(orders.lake.root) / file.index_uri).unlink()
    assert write_index(orders.lake.root, file.index_uri, hashes[::-1]) == file.index_length
    assert orders.fsck() == []
    assert [(finding.code, finding.file) for finding in orders.fsck(deep=True)] == [("index", file.index_uri)]


def test_a_check_finds_a_flipped_bit_in_an_index_or_deletion_vector(orders: siltstone.Table) -> None:
    file = orders.rounds()[-1].files[0]
    assert file.deletion_vector is not None
    for uri in (file.index_uri, file.deletion_vector.uri):
        assert uri is not None
        path = Path(orders.lake.root) / uri
        data = path.read_bytes()
        path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
        (finding,) = orders.fsck()
        assert (finding.code, finding.file) == ("compacted-file", uri)
        path.write_bytes(data)
    assert orders.fsck(deep=True) == []


def test_compacted_rows_are_no_source_of_deltas_without_a_rebase(orders: siltstone.Table) -> None:
    (source,) = orders._sources()
    into = compacted_partition(source)
    other = siltstone.open(orders.lake.root).create_table("shop.copy", schema=orders.schema, primary_keys=["id"])
    other.write(pa.table({"id": [1]}))
    (destination,) = other._sources()
    request = Request(into, compacted_partition(destination), ("id",), orders.lake.root)
    with pytest.raises(siltstone.InvalidInputError, match="holds compacted rows, not deltas; rebase"):
        run_session(request, run_here)


def test_a_vacuum_keeps_what_was_compacted_here_from_other_tables_and_into_other_streams(
    orders: siltstone.Table,
) -> None:
    root = orders.lake.root
    (source,) = orders._sources()
    elsewhere = PartitionLocator(**{**source, "stream": "elsewhere"})
    run_session(Request(source, elsewhere, ("id",), root), run_here)
    empty = siltstone.open(root).create_table("shop.copy", schema=orders.schema, primary_keys=["id"])
    (version,) = (each.locator for each in [empty.version])
    copy = PartitionLocator(**version, stream="compacted", partition_values=[])
    run_session(Request(source, copy, ("id",), root), run_here)
    stream = storage.commit_stream(storage.stage_stream(StreamLocator(**version, stream="other"), root=root), root=root)
    (delta,) = storage.stage_deltas(pa.table({"id": [1]}), stream.locator, root=root)
    storage.commit_delta(delta, root=root)
    before = files(orders)
    for table in (orders, empty):
        assert table.vacuum(orphan_grace_ms=0).removed_files == []
    assert files(orders) == before
    for place in (elsewhere, copy):
        assert check_partition(locate_destination(place, root=root), deep=True) == []


def test_a_vacuum_leaves_alone_what_another_kind_of_log_governs(orders: siltstone.Table) -> None:
    folder = orders.deltas()[0].manifest.entries[0].uri.rpartition("/")[0].rpartition("/")[0].rpartition("/")[0]
    commit_log(orders.lake.root, f"{folder}/records/_/log").commit("other", lambda _: {"record/1": {"uri": "x"}})
    open_objects(orders.lake.root).create(f"{folder}/records/_/x.bin", b"of the other log")
    assert orders.vacuum(orphan_grace_ms=0).removed_files == []


def test_a_vacuum_removes_what_writers_left_half_written(orders: siltstone.Table) -> None:
    folder = Path(orders.lake.root) / orders.deltas()[0].manifest.entries[0].uri
    asides = [folder.parent / ".a.parquet.01.tmp", folder.parents[2] / "log" / ".17.02.tmp"]
    for aside in asides:
        aside.write_bytes(b"half")
    assert orders.vacuum().removed_files == [], "they are too young"
    report = orders.vacuum(orphan_grace_ms=0)
    assert (len(report.removed_files), report.removed_bytes) == (2, 8)
    assert not any(aside.exists() for aside in asides)


def test_a_rollback_to_a_round_that_is_vacuumed_meanwhile_is_refused(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = orders.to_arrow().to_pylist()
    real = write_completion

    def vacuum_first(*given: Any) -> Any:
        assert orders.vacuum(retention_ms=0, orphan_grace_ms=0).expired_rounds == [1, 2]
        return real(*given)

    monkeypatch.setattr(recovery, "write_completion", vacuum_first)
    with pytest.raises(siltstone.ConflictError, match=r"round 1.*vacuumed"):
        orders.rollback(1)
    monkeypatch.undo()
    same_rows(orders.to_arrow(), before)
    assert orders.vacuum(orphan_grace_ms=0).removed_files == []
    assert orders.fsck(deep=True) == []


def test_a_vacuum_that_another_one_is_faster_than_finds_no_damage(
    local_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(local_root)
    for value in "abcd":
        table.write(rows(range(40), value))
        compact_here(table, replace(MINOR, bucket_rows=3, max_dead_fraction=0.0))
    assert table.current_rounds()[0].buckets.pages
    others = [lambda: table.vacuum(retention_ms=-1000, orphan_grace_ms=-1000)]

    def read(*arguments: Any) -> Any:
        completion = read_completion(*arguments)
        while others:
            others.pop()()
        return completion

    monkeypatch.setattr("siltstone.maintenance.vacuum.read_completion", read)
    assert table.vacuum(retention_ms=-1000, orphan_grace_ms=-1000).expired_rounds == []
    assert table.fsck(deep=True) == []


def test_a_damaged_completion_file_stops_a_vacuum_before_anything_is_forgotten(orders: siltstone.Table) -> None:
    (entry,) = (round_ for round_ in list_rounds(destination_of(orders)) if round_["round_id"] == 3)
    (Path(orders.lake.root) / entry["uri"]).write_bytes(b"{")
    before = files(orders)
    with pytest.raises(siltstone.CorruptionError, match="completion file"):
        orders.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert files(orders) == before
    assert len(list_rounds(destination_of(orders))) == 3


def changes(note: int) -> pa.Table:
    return pa.table({"id": [1, 2], "n": [note, note]})


def staged_and_vacuumed(orders: siltstone.Table, vacuum: Callable[[], object]) -> Callable[[], int]:
    """Stage a write, let a vacuum go over it, and return what commits it then."""
    root = orders.lake.root
    stream = catalog.delta_stream(orders.name, root=root)
    deltas = storage.stage_deltas(changes(7), stream, root=root)
    forget_logs(root)  # the vacuum is another process
    vacuum()
    forget_logs(root)
    return lambda: storage.commit_deltas(deltas, stream, root=root).stream_position


def test_a_write_whose_files_a_vacuum_went_over_is_refused_when_it_commits(orders: siltstone.Table) -> None:
    expected = orders.to_arrow(include_uncompacted=True).to_pylist()
    commit = staged_and_vacuumed(orders, lambda: orders.vacuum(orphan_grace_ms=0))
    with pytest.raises(ConflictError, match="write the data again"):
        commit()
    assert orders.fsck(deep=True) == []
    same_rows(orders.to_arrow(include_uncompacted=True), expected)
    orders.write(changes(8))
    assert orders.fsck(deep=True) == []


def test_a_write_that_a_vacuum_left_alone_commits(orders: siltstone.Table) -> None:
    before = len(orders.deltas())
    staged_and_vacuumed(orders, orders.vacuum)()
    assert len(orders.deltas()) == before + 1
    assert orders.fsck(deep=True) == []


def test_work_that_announces_itself_is_not_refused_by_a_vacuum(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "ANNOUNCE_SECONDS", 0.001)
    root = orders.lake.root
    log = version_log(root, catalog.version_folder(orders.name, root=root))
    began = log.read(lambda state: state.batch_id)
    with horizon.announced(log, began):
        while not log.read(lambda state: state.keys(horizon.WORK_PREFIX)):
            pass
        commit = staged_and_vacuumed(orders, lambda: orders.vacuum(orphan_grace_ms=0))
        commit()
    assert log.read(lambda state: state.keys(horizon.WORK_PREFIX)) == []
    assert orders.fsck(deep=True) == []


def test_a_log_that_was_set_back_behind_its_rounds_is_noticed_by_all_who_use_it(
    orders: siltstone.Table, tmp_path: Path
) -> None:
    root = orders.lake.root
    folder = Path(root, catalog.version_folder(orders.name, root=root), "log")
    shutil.copytree(folder, tmp_path / "copy")
    rounds = Path(root, destination_of(orders).folder)
    orders.write(changes(7))
    compact(orders)
    for file in folder.iterdir():
        if not (tmp_path / "copy" / file.name).exists():
            file.unlink()
    forget_logs(root)
    assert {finding.code for finding in orders.fsck()} == {"lost-commits"}
    before = {each for each in rounds.rglob("*") if each.is_file()}
    for use in (
        orders.to_arrow,
        partial(orders.to_arrow, include_uncompacted=True),
        partial(compact, orders),
        orders.vacuum,
    ):
        with pytest.raises(CorruptionError, match=r"log: it ends at position 3 .* read it up to 4.* missing; restore"):
            use()
    assert {each for each in rounds.rglob("*") if each.is_file()} == before


class _Vacuuming(FaultyObjects):
    """Lets another process vacuum right before the commit of an operation."""

    def __init__(self, table: siltstone.Table, operation: str) -> None:
        super().__init__(open_objects(table.lake.root))
        self._vacuum = partial(table.vacuum, orphan_grace_ms=0)
        self._mark = f'"operation":"{operation}"'.encode()
        self.vacuums = 0

    def create(self, path: str, data: Any) -> None:
        if self._mark in data and not self.vacuums:
            self.vacuums += 1
            forget_logs(self.root)
            self._vacuum()
            forget_logs(self.root)
        super().create(path, data)


def test_long_work_is_not_refused_by_a_vacuum_that_comes_right_before_its_commit(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = orders.lake.root
    log = version_log(root, catalog.version_folder(orders.name, root=root))
    partition = destination_of(orders)

    def wait_for_announcement(log: CommitLog) -> None:
        while not CommitLog(root, log.folder).read(lambda state: state.keys(horizon.WORK_PREFIX)):
            pass
        monkeypatch.setattr(horizon, "ANNOUNCE_SECONDS", 600)

    def slow_rows() -> Iterator[pa.RecordBatch]:
        yield from changes(7).to_batches()
        wait_for_announcement(log)

    def slow_engine(job: RoundJob) -> Iterator[BucketResult]:
        yield from run_here(job)
        wait_for_announcement(partition.log)

    writing, compacting = _Vacuuming(orders, "commit deltas"), _Vacuuming(orders, "round")
    forget_logs(root)
    monkeypatch.setattr(horizon, "ANNOUNCE_SECONDS", 0.001)
    with replaced(root, writing):
        orders.write(slow_rows())
    (source,) = orders._sources()
    forget_logs(root)
    monkeypatch.setattr(horizon, "ANNOUNCE_SECONDS", 0.001)
    with replaced(root, compacting):
        result = run_session(Request(source, compacted_partition(source), ("id",), root), slow_engine)
    assert (len(result.rounds), result.conflicts) == (1, 0)
    assert (writing.vacuums, compacting.vacuums) == (1, 1)
    assert orders.fsck(deep=True) == []


def test_work_whose_announcement_is_from_a_clock_far_ahead_is_taken_for_dead(orders: siltstone.Table) -> None:
    root = orders.lake.root
    log = version_log(root, catalog.version_folder(orders.name, root=root))
    renewed_at = log.now_ms() + horizon.LEASE_MS + HOUR_MS
    log.commit("announce work", lambda _: {f"{horizon.WORK_PREFIX}x": {"began": 0, "renewed_at": renewed_at}})
    assert horizon.raise_horizon(log, 3) == 3


def test_a_round_that_a_vacuum_went_over_at_any_call_is_planned_again(new_root: Callable[[str], str]) -> None:
    def make() -> siltstone.Table:
        table = siltstone.open(new_root("memory")).create_table(
            "shop.orders", schema={"id": "int64", "n": "int64"}, primary_keys="id"
        )
        table.write(changes(1))
        return table

    orders = make()
    with faults(orders.lake.root) as store:
        compact(orders)
    for at_call in range(1, store.calls + 1, 3):
        orders = make()
        met = partial(orders.vacuum, orphan_grace_ms=0)
        with faults(orders.lake.root, at_call=at_call, kind="meet", act=met):
            compact(orders)
        same_rows(orders.to_arrow(), oracle_of(orders).rows())
        assert orders.fsck(deep=True) == [], at_call
