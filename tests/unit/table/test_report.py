"""Tables and rounds in numbers."""

from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.documents.merge import run_here
from siltstone.errors import NotFoundError
from siltstone.log.commit import forget_logs
from siltstone.model.rounds import ratio
from siltstone.service.lake_tables import LakeTables
from siltstone.table import completion as completion_module
from siltstone.table import followers
from siltstone.table.report import TableRound, detail_round, report_round
from tests.contract.test_request_budgets import counted
from tests.unit.rounds.compaction import make_table, rows
from tests.unit.service.cycling import compact_one


def compact(root: str) -> None:
    tables = LakeTables(siltstone.open(root), engine=run_here)
    for pending in tables.find_work(lambda: None):
        assert pending.locator is not None
        compact_one(tables, pending.locator)


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    table = make_table(local_root, "shop.orders")
    table.write(rows(range(100), "a"))
    compact(local_root)
    table.write(rows(range(10), "b"))
    compact(local_root)
    return table


def test_a_round_knows_its_amplification_and_dead_rows(table: siltstone.Table) -> None:
    first, second = table.rounds()
    assert (first.dead_rows, first.read_amplification) == (0, 1.0)
    assert (second.record_count, second.live_rows, second.dead_rows) == (110, 100, 10)
    assert second.read_amplification == pytest.approx(1.1)
    assert second.write_amplification == second.written_bytes / second.input_bytes
    assert second.carried_bytes == first.content_length
    assert second.accounting.input_rows == 10


def test_a_round_that_a_vacuum_forgets_meanwhile_is_no_damage(
    table: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = completion_module.read_state(table._destinations()[0], with_rounds=True)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    monkeypatch.setattr(followers, "read_state", lambda destination, **_: entries)
    assert [completion.round_id for completion in table.rounds()] == [2]
    assert [report.round_id for report in table.round_reports()] == [2]
    assert table.report().problem is None
    with pytest.raises(NotFoundError, match="there is no round 1"):
        table.round(1)


def test_a_current_round_that_was_replaced_and_forgotten_meanwhile_is_read_as_it_is_now(table: siltstone.Table) -> None:
    (destination,) = table._destinations()
    replaced = completion_module.current_entry(destination)
    table.write(rows(range(5), "c"))
    compact(table.lake.root)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    completion = completion_module.current_completion(destination, replaced)
    assert completion is not None
    assert completion.round_id == 3


def test_a_ratio_to_nothing_is_not_known() -> None:
    assert (ratio(1, 2), ratio(1, 0)) == (0.5, None)


def test_a_rollback_says_to_which_round(table: siltstone.Table) -> None:
    assert report_round(table.rollback(1)).rolled_back_to == 1
    assert [round_report.rolled_back_to for round_report in table.round_reports()] == [None, None, 1]


def test_all_reports_of_a_round_have_the_same_numbers(table: siltstone.Table) -> None:
    completion = table.rounds()[-1]
    report = report_round(completion)
    assert table.report().last_round == report
    assert table.round_reports()[-1] == report
    assert detail_round(table.name, completion).round == report
    shown = table.details().rounds[-1]
    assert isinstance(shown, TableRound)
    assert shown.lag_ms is not None
    of_table = {"rows_in": 10, "table_rows": 100, "table_bytes": report.bytes, "lag_ms": shown.lag_ms}
    assert {**vars(report), **of_table} == vars(shown)


def test_a_damaged_round_has_its_problem_and_hides_no_other(table: siltstone.Table, local_root: str) -> None:
    (file,) = Path(local_root).glob("**/rounds/1-*.json")
    file.write_bytes(b"damaged")
    first, second = table.round_reports()
    assert "damaged" in (first.problem or "")
    assert (first.round_id, first.live_rows, first.files, second.problem) == (1, 100, 1, None)
    assert "damaged" in (table.report().problem or "")
    assert table.details().overview.problem == table.report().problem


@pytest.mark.parametrize("damaged", ["log", "rounds"])
def test_a_damaged_partition_is_named_and_hides_no_other(local_root: str, damaged: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.visits", schema={"id": "int64", "day": "string"}, primary_keys=["id", "day"], partition_keys=["day"]
    )
    for number in range(2):
        table.write(pa.table({"id": [number, number, number], "day": ["mon", "mon", "tue"]}))
        table.compact(engine="local")
    table.write(pa.table({"id": [9, 9], "day": ["mon", "tue"]}))
    (monday,) = (each for each in table._destinations() if each.locator.partition_values == ["mon"])
    for file in Path(local_root, monday.folder, damaged).iterdir():
        file.write_bytes(b"damaged")
    forget_logs(local_root)
    report = table.report()
    assert (report.rows, report.partitions, report.backlog_deltas) == (2, 1, 1)
    assert list(report.damaged_partitions) == [["mon"]]
    assert monday.folder in (report.problem or "")
    assert table.details().overview == report
    assert [each.partition for each in table.details().rounds] == [["tue"], ["tue"]]


def test_a_report_reads_each_log_and_each_completion_once(memory_table: siltstone.Table) -> None:
    with counted(memory_table.lake.root) as store:
        memory_table.report()
        store.take()
        for read in (memory_table.report, memory_table.details):
            read()
            requests = store.take()
            # The catalog, the table and its one compacted partition.
            assert (requests.probes, requests.completions) == (3, 2)


def test_reports_of_all_tables_read_the_completions_of_current_rounds_only_once_others_are_known(
    memory_table: siltstone.Table,
) -> None:
    lake = memory_table.lake
    with counted(lake.root) as store:
        first = lake.report()
        assert store.take().completions == 2
        assert lake.report() == first == [memory_table.report()]
        store.take()
        lake.report()
        assert store.take().completions == 1


@pytest.fixture
def memory_table(request: pytest.FixtureRequest) -> siltstone.Table:
    root = f"memory://{request.node.name}"
    table = make_table(root, "shop.orders")
    for number in range(2):
        table.write(rows([number]))
        compact(root)
    return table


def test_what_waits_is_what_a_fresh_snapshot_has_to_merge(local_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", lambda *_: run_here)
    orders, copy = make_table(local_root, "shop.orders"), make_table(local_root, "shop.copy")
    orders.write(rows([1]))
    compact(local_root)
    copy.compact(rebase_from=orders, on_behalf_of=orders, high_watermark=1, spark=object())  # type: ignore[arg-type]
    for number in range(2, 5):
        orders.write(rows([number]))
        for table in (orders, copy):
            waiting = table.snapshot(fresh=True).waiting
            report = table.report()
            assert len(waiting) == report.backlog_deltas == number - 1
            assert sum(delta.manifest.content_length for delta in waiting) == report.backlog_bytes
            assert report.oldest_at == waiting[0].committed_at
    compact(local_root)
    assert [table.report().backlog_deltas for table in (orders, copy)] == [0, 0]


def test_rounds_are_listed_though_the_log_of_the_table_that_is_followed_is_damaged(
    table: siltstone.Table, local_root: str
) -> None:
    copy = make_table(local_root, "shop.copy")
    copy.compact(rebase_from=table, on_behalf_of=table, engine="local")
    (log,) = Path(local_root).glob("tables/shop/orders/*/log")
    for batch in log.iterdir():
        if batch.is_file():
            batch.write_bytes(batch.read_bytes() + b"junk")
    forget_logs(local_root)
    assert [report.round_id for report in copy.round_reports()] == [1]
    assert [completion.round_id for completion in (*copy.rounds(), *copy.current_rounds())] == [1, 1]
    assert copy.round(1).round.round_id == 1
    with pytest.raises(siltstone.CorruptionError):
        table.deltas()
