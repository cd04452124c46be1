"""While this machine's clock and the store's time are far apart, nothing is deleted and nothing expires."""

import datetime
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.clock import MAX_SKEW_MS, StoreClock
from siltstone.documents import record
from siltstone.documents.merge import run_here
from siltstone.documents.record import ChangeIds, new_change_id
from siltstone.errors import InvalidInputError
from siltstone.log.commit import CommitLog
from siltstone.objects import canonical_root, replaced
from siltstone.rounds.request import TableRequest, partition_requests
from siltstone.rounds.session import run_session
from siltstone.rows.job import RoundJob
from siltstone.service.lake_tables import LakeTables
from siltstone.table.completion import closed_before
from siltstone.testing.simulation.clocks import DAY_MS, HOUR_MS, MINUTE_MS, ProcessClock, TrueTime
from siltstone.testing.simulation.store import SimulatedObjects
from tests.unit.service.cycling import trim_one

ASKED_AGAIN_MS = 11 * MINUTE_MS


class Site:
    """A machine and a store, each with a clock of its own."""

    def __init__(self, root: str) -> None:
        self.time = TrueTime()
        self.store, self.machine = ProcessClock(self.time), ProcessClock(self.time)
        known = StoreClock(lambda: self.store.now_ms())
        self.objects = SimulatedObjects(canonical_root(root), self.store, lambda name, path, do: do(), lambda: known)
        self.root = self.objects.root

    def set_apart(self, *, machine_ms: int = 0, store_ms: int = 0) -> None:
        """Set the clocks wrong by so much, and wait until the store is asked again."""
        self.machine.change("set", machine_ms)
        self.store.change("set", store_ms)
        self.time.pass_ms(ASKED_AGAIN_MS)


@pytest.fixture
def site(new_root: Callable[[str], str]) -> Iterator[Site]:
    made = Site(new_root("memory"))
    with clock.replaced(made.machine), replaced(made.root, made.objects):
        yield made


def make_table(site: Site, name: str = "shop.orders") -> siltstone.Table:
    table = siltstone.open(site.root).create_table(name, schema={"id": "int64"}, primary_keys=["id"])
    table.write(pa.table({"id": [1, 2]}))
    return table


def compact(table: siltstone.Table, *, full: bool = False) -> list[RoundJob]:
    jobs = []
    for request in partition_requests(TableRequest(table.name, table.lake.root, full=full)):
        run_session(request, lambda job: (jobs.append(job), run_here(job))[1])  # type: ignore[func-returns-value]
    return jobs


def make_orphan(site: Site, table: siltstone.Table) -> str:
    folder = table.deltas()[0].manifest.entries[0].uri.rpartition("/")[0]
    site.objects.put(f"{folder}/orphan.parquet", b"staged and forgotten")
    return f"{folder}/orphan.parquet"


@pytest.mark.parametrize("machine_ms", [HOUR_MS, -HOUR_MS, 40 * DAY_MS])
def test_a_vacuum_removes_nothing_while_clocks_differ_and_says_why(site: Site, machine_ms: int) -> None:
    table = make_table(site)
    compact(table)
    compact(table, full=True)
    orphan = make_orphan(site, table)
    site.time.pass_ms(30 * DAY_MS)
    site.set_apart(machine_ms=machine_ms)
    before = set(site.objects.contents)
    report = table.vacuum()
    assert (report.removed_files, report.expired_rounds) == ([], [])
    assert set(site.objects.contents) == before
    assert report.unsure_time is not None
    apart = "ahead of" if machine_ms > 0 else "behind"
    for part in (f"minutes {apart} the time of the store {site.root}", "NTP", "siltstone doctor", "--confirm-time"):
        assert part in report.unsure_time
    assert table.vacuum(dry_run=True, confirm_time=True).removed_files == []
    confirmed = table.vacuum(confirm_time=True)
    assert orphan in confirmed.removed_files
    assert (confirmed.expired_rounds, confirmed.unsure_time) == ([1], None)
    assert table.to_arrow().num_rows == 2
    assert table.fsck(deep=True) == []


def test_a_vacuum_goes_on_once_the_clocks_agree_again(site: Site) -> None:
    table = make_table(site)
    orphan = make_orphan(site, table)
    site.time.pass_ms(30 * DAY_MS)
    site.set_apart(machine_ms=HOUR_MS)
    assert table.vacuum().removed_files == []
    site.set_apart(machine_ms=MAX_SKEW_MS)
    report = table.vacuum()
    assert (report.removed_files, report.unsure_time) == ([orphan], None)


def test_dropped_tables_stay_while_clocks_differ(site: Site) -> None:
    table = make_table(site)
    table.lake.drop_table(table.name)
    site.time.pass_ms(30 * DAY_MS)
    site.set_apart(machine_ms=-HOUR_MS)
    report = table.lake.vacuum_dropped()
    assert (report.removed_files, len(report.waiting)) == (0, 1)
    assert "60 minutes behind" in str(report.unsure_time)
    confirmed = table.lake.vacuum_dropped(confirm_time=True)
    assert (len(confirmed.removed_folders), confirmed.unsure_time) == (1, None)


def test_a_table_dropped_while_the_store_is_behind_is_kept_for_the_whole_retention(site: Site) -> None:
    table = make_table(site)
    site.set_apart(store_ms=-40 * DAY_MS)
    table.lake.drop_table(table.name)
    site.set_apart()
    assert len(table.lake.vacuum_dropped().waiting) == 1


def test_writes_reads_and_rounds_go_on_while_clocks_differ_but_tombstones_do_not_expire(site: Site) -> None:
    table = make_table(site)
    (before,) = compact(table)
    assert before.expiry_ms == site.store.now_ms()
    site.set_apart(machine_ms=-HOUR_MS)
    table.write(pa.table({"id": [3]}))
    (job,) = compact(table)
    assert job.expiry_ms == 0
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3]


def test_entries_do_not_expire_by_the_time_of_a_store_whose_clock_stepped(site: Site) -> None:
    log = CommitLog(site.root, "log")
    log.commit("test", lambda _: {"id": {"expires_at": site.store.now_ms() + 30 * DAY_MS}})
    sure_ms = log.read(lambda state: state.sure_ms)
    site.set_apart(store_ms=40 * DAY_MS)
    for number in range(25):
        log.commit("test", lambda _, number=number: {"other": {"number": number}})  # type: ignore[misc]
    log.checkpoint()
    for reader in (log, CommitLog(site.root, "log")):
        assert reader.read(lambda state: (state.sure_ms, "id" in state)) == (sure_ms, True)
        assert reader.expiry_ms() == 0


def test_commit_times_that_were_ahead_are_not_taken_for_sure_once_the_store_is_right_again(site: Site) -> None:
    log = CommitLog(site.root, "log")
    log.commit("test", lambda _: {"id": {"expires_at": site.store.now_ms() + 30 * DAY_MS}})
    site.set_apart(store_ms=40 * DAY_MS)
    log.commit("test", lambda _: {"other": {"number": 1}})
    site.set_apart()
    assert log.expiry_ms() == site.time.now_ms
    log.commit("test", lambda _: {"other": {"number": 2}})
    log.checkpoint()
    state = CommitLog(site.root, "log").read(lambda state: (state.time_ms, state.sure_ms, "id" in state))
    assert state == (site.time.now_ms + 40 * DAY_MS - ASKED_AGAIN_MS, site.time.now_ms, True)
    log.confirm_time()
    assert log.expiry_ms() == site.time.now_ms, "what is confirmed is the time now, not one that was stored"


def test_the_service_trims_nothing_while_clocks_differ_and_logs_it_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(site)
    tables = LakeTables(table.lake, engine=run_here, delta_retention_seconds=3600)
    (partition,) = table._sources()
    compact(table)
    site.time.pass_ms(30 * DAY_MS)
    site.set_apart(machine_ms=HOUR_MS)
    assert [trim_one(tables, partition, 1), trim_one(tables, partition, 1)] == [0, 0]
    (record,) = caplog.records
    assert "60 minutes ahead" in record.reason  # type: ignore[attr-defined]
    site.set_apart()
    assert trim_one(tables, partition, 1) == 1


def test_document_streams_are_not_closed_while_clocks_differ(site: Site) -> None:
    documents = siltstone.open(site.root).create_document_table("shop.carts", full_consistency_delay=60)
    documents.update("a", '{"n":1}')
    site.set_apart(machine_ms=HOUR_MS)
    compact(documents.table)
    assert closed_before(documents.table.properties) is None
    documents.update("a", '{..,"m":2}')
    assert documents.get("a")["m"] == 2
    deltas = [{"id": new_change_id(site.store.now_ms() - DAY_MS), "delta": '{"n":1}', "tags": []}]
    with pytest.raises(InvalidInputError, match="60 minutes ahead of the time of the store"):
        documents.import_documents([{"key": "b", "deltas": deltas, "compactions": []}])
    site.set_apart()
    compact(documents.table)
    assert closed_before(documents.table.properties) is not None


class TestDisk:
    """On a local disk, this machine's clock is all there is; a month ahead, it may have been set wrong."""

    @pytest.fixture
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessClock]:
        # Else ids would be later than all that this process made before, at another time.
        monkeypatch.setattr(record, "_ids", ChangeIds())
        machine = ProcessClock(TrueTime())
        with clock.replaced(machine):
            yield machine

    @pytest.fixture
    def documents(self, machine: ProcessClock, new_root: Callable[[str], str]) -> siltstone.DocumentTable:
        lake = siltstone.open(new_root("local"))
        documents = lake.create_document_table("shop.carts", full_consistency_delay=60)
        documents.update("a", '{"n":1}')
        return documents

    def test_a_hold_ends_only_by_a_time_that_is_sure(
        self, machine: ProcessClock, documents: siltstone.DocumentTable
    ) -> None:
        documents.hold(until=datetime.timedelta(hours=1))
        machine.change("set", 31 * DAY_MS)
        documents.update("a", '{..,"m":2}')
        (job,) = compact(documents.table)
        assert job.hold_floor_ms is not None

    def test_nothing_is_due_by_a_time_that_is_not_sure_and_a_warning_says_why(
        self, machine: ProcessClock, documents: siltstone.DocumentTable, caplog: pytest.LogCaptureFixture
    ) -> None:
        compact(documents.table)
        tables = LakeTables(documents.lake, engine=run_here)
        machine.change("set", 31 * DAY_MS)
        assert tables.find_work(lambda: None) == []
        documents.update("b", '{"n":1}')
        compact(documents.table)
        assert "vacuum once with --confirm-time" in caplog.text
        assert tables.find_work(lambda: None) == []
        documents.table.vacuum(confirm_time=True)
        machine.change("set", 31 * DAY_MS + HOUR_MS)
        assert len(tables.find_work(lambda: None)) == 1
        compact(documents.table)
        assert tables.find_work(lambda: None) == []
