from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from siltstone import clock
from siltstone.lake import Lake
from siltstone.storage import object_store as storage
from tests.unit.cli.command_line import Cli

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def compacted(changed_orders: Cli) -> Cli:
    """A lake whose shop.orders has two rounds: 100 rows each, at positions 1 and 3."""
    changed_orders("compact", "shop.orders")
    return changed_orders


def data_file(cli: Cli) -> Path:
    return cli.root / Lake(cli.root).table("shop.orders").current_rounds()[0].files[0].uri


class TestFsck:
    def test_a_sound_table(self, compacted: Cli) -> None:
        (checked,) = compacted.json("fsck", "shop.orders", "--deep")
        assert checked["findings"] == []
        assert (checked["deltas"], checked["rounds"], checked["live_rows"], checked["deep"]) == (3, 2, 100, True)
        assert "all is well" in compacted("fsck", "shop.orders").stdout

    def test_findings_are_told_with_what_to_do_and_the_exit_code_is_1(self, compacted: Cli) -> None:
        data_file(compacted).unlink()
        (checked,) = compacted.json("fsck", "shop.orders", exit_code=1)
        (finding,) = checked["findings"]
        assert finding["code"] == "compacted-file"
        assert data_file(compacted).name in finding["file"]
        told = compacted("fsck", "shop.orders", exit_code=1).stdout
        assert data_file(compacted).name in told
        assert "→ restore it from a copy, or run siltstone repair" in told
        assert "shop.orders: 1 finding." in told

    def test_all_tables_are_checked_where_none_is_named(self, compacted: Cli) -> None:
        schema = compacted.file("schema.json", '{"id": "int64"}')
        compacted("table", "create", "shop.empty", "--schema", schema)
        data_file(compacted).write_bytes(b"")
        checked = compacted.json("fsck", exit_code=1)
        assert [(each["table"], len(each["findings"])) for each in checked] == [("shop.empty", 0), ("shop.orders", 1)]
        assert "shop.empty: 0 deltas" in compacted("fsck", exit_code=1).stdout

    def test_damage_of_the_tables_own_log_is_a_finding(self, compacted: Cli) -> None:
        (log,) = (compacted.root / "tables").glob("shop/orders/*/log")
        (log / "2").write_bytes(b"v1\n{nonsense")
        (checked,) = compacted.json("fsck", "shop.orders", exit_code=1)
        assert any("log/2" in finding["file"] for finding in checked["findings"])

    def test_damage_of_the_log_of_rounds_is_a_finding(self, compacted: Cli) -> None:
        (log,) = (compacted.root / "tables").glob("shop/orders/*/compacted/_/log")
        (log / "0").write_bytes(b"v1\n{nonsense")
        (checked,) = compacted.json("fsck", "shop.orders", exit_code=1)
        assert any("_/log/0" in finding["file"] for finding in checked["findings"])

    def test_a_lake_without_tables(self, cli: Cli) -> None:
        assert cli.json("fsck") == []
        assert cli("fsck").stdout == f"No tables in {cli.root}.\n"

    def test_an_unknown_table(self, compacted: Cli) -> None:
        assert "did you mean shop.orders?" in compacted.fails("fsck", "shop.ordres")


class TestVacuum:
    def test_a_dry_run_names_the_files_and_removes_none(self, compacted: Cli) -> None:
        orphan = data_file(compacted).with_name("orphan.parquet")
        orphan.write_bytes(b"left behind")
        before = compacted.listing()
        told = compacted("vacuum", "shop.orders", "--grace", "0s", "--dry-run").stdout
        assert compacted.listing() == before
        assert told.splitlines()[0].endswith("/orphan.parquet")
        assert "would remove 1 file, 11 B;" in told
        planned = compacted.json("vacuum", "shop.orders", "--grace", "0s", "--dry-run")
        done = compacted.json("vacuum", "shop.orders", "--grace", "0s")
        assert done == {**planned, "dry_run": False}
        assert not orphan.exists()
        assert "removed 0 files" in compacted("vacuum", "--grace", "0s").stdout
        compacted("fsck", "--deep")

    def test_young_files_stay_by_default(self, compacted: Cli) -> None:
        data_file(compacted).with_name("orphan.parquet").write_bytes(b"maybe in use")
        before = compacted.listing()
        assert compacted.json("vacuum", "shop.orders")["tables"][0]["removed_files"] == []
        assert compacted.listing() == before

    def test_states_past_the_retention_are_forgotten(self, compacted: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        compacted("compact", "shop.orders", "--full")
        now = clock.now_ms()
        monkeypatch.setattr(clock, "now_ms", lambda: now + 3 * DAY_MS)
        (kept,) = compacted.json("vacuum", "shop.orders", "--retention", "7d")["tables"]
        assert (kept["expired_rounds"], kept["removed_files"]) == ([], [])
        (done,) = compacted.json("vacuum", "shop.orders", "--retention", "2d", "--confirm-time")["tables"]
        assert kept["unsure_time"].startswith("this machine's clock is 72 hours ahead")
        assert done["expired_rounds"] == [1, 2]
        assert done["removed_files"]
        assert [each["round_id"] for each in compacted.json("rounds", "shop.orders")] == [3]
        assert compacted.json("fsck", "--deep")[0]["live_rows"] == 100

    def test_dropped_tables_go_with_all_tables_after_the_retention(self, compacted: Cli) -> None:
        compacted("table", "drop", "shop.orders", "--yes")
        assert "1 folder within the retention" in compacted("vacuum").stdout
        (folder,) = compacted.json("vacuum", "--retention", "0s", "--grace", "0s", "--dry-run")["dropped"][
            "removed_folders"
        ]
        assert (compacted.root / folder).exists()
        assert compacted.json("vacuum", "--retention", "0s")["dropped"]["removed_folders"] == [], "it may be new"
        compacted("vacuum", "--retention", "0s", "--grace", "0s")
        assert not any((compacted.root / folder).rglob("*.parquet"))

    def test_a_damaged_state_keeps_all_files(self, compacted: Cli) -> None:
        completion = next((compacted.root / "tables").glob("shop/orders/*/compacted/_/rounds/1-*"))
        completion.write_bytes(b"{")
        assert completion.name in compacted.fails("vacuum", "shop.orders", "--grace", "0s")

    def test_wrong_usage(self, compacted: Cli) -> None:
        assert "--retention" in compacted.misused("vacuum", "shop.orders", "--retention", "soon")
        assert "--grace" in compacted.misused("vacuum", "--grace", "1")
        assert "did you mean shop.orders?" in compacted.fails("vacuum", "shop.ordres")
        assert Cli(compacted.folder / "elsewhere").json("vacuum")["tables"] == []


class TestRepair:
    def test_what_a_damaged_file_held_comes_back_from_an_earlier_round(self, compacted: Cli) -> None:
        table = Lake(compacted.root).table("shop.orders")
        before = table.to_arrow().sort_by("order_id")
        lost = data_file(compacted)
        lost.unlink()
        told = compacted("repair", "shop.orders", "--dry-run").stdout
        assert "would be repaired by round 3" in told
        assert lost.name in told
        assert lost.name in str(compacted.json("fsck", "shop.orders", exit_code=1))
        done = compacted.json("repair", "shop.orders")
        assert (done["lost_rows"], done["partitions"][0]["round_id"]) == (0, 3)
        assert compacted.json("fsck", "shop.orders", "--deep")[0]["findings"] == []
        assert table.to_arrow().sort_by("order_id").equals(before)
        assert "nothing is damaged" in compacted.fails("repair", "shop.orders")

    def test_a_loss_has_to_be_accepted_and_is_counted(self, compacted: Cli) -> None:
        compacted("vacuum", "shop.orders", "--retention", "0s", "--grace", "0s")
        (source,) = Lake(compacted.root).table("shop.orders")._sources()
        storage.delete_deltas(source, last_stream_position=3, root=str(compacted.root))
        data_file(compacted).unlink()
        assert "rows with key hashes from 0000000000000000" in compacted.fails("repair", "shop.orders")
        assert "would be lost, with --accept-loss" in compacted("repair", "shop.orders", "--dry-run").stdout
        told = compacted("repair", "shop.orders", "--accept-loss").stdout
        assert "rows lost" in told
        assert "lost" in compacted("show", "shop.orders", "3").stdout
        assert compacted.json("fsck", "shop.orders", "--deep")[0]["findings"] == []

    def test_a_table_that_is_not_there(self, compacted: Cli) -> None:
        assert "did you mean shop.orders?" in compacted.fails("repair", "shop.ordres")


class TestRollback:
    def test_an_earlier_state_is_current_again_and_what_came_since_is_compacted_anew(self, compacted: Cli) -> None:
        before = compacted.listing()
        told = compacted("rollback", "shop.orders", "--to", "1", "--dry-run").stdout
        assert compacted.listing() == before
        assert "would return to its state after round 1, by round 3: position 3 → 1, rows 100 → 100." in told
        done = compacted.json("rollback", "shop.orders", "--to", "1")
        assert (done["round"]["round_id"], done["round"]["rolled_back_to"]) == (3, 1)
        assert (done["previous_high_watermark"], done["deltas_to_compact"]) == (3, 2)
        assert compacted.json("lookup", "shop.orders", "order_id=3") != []
        assert "back to round 1" in compacted("rounds", "shop.orders").stdout
        assert "back to round 1" in compacted("show", "shop.orders", "3").stdout
        compacted("compact", "shop.orders")
        assert compacted.json("lookup", "shop.orders", "order_id=3") == []
        assert "rolled_back_to" in compacted.json("rounds", "shop.orders")[2]
        assert "back to round" not in compacted("show", "shop.orders", "4").stdout

    def test_people_are_told_what_to_do_next(self, compacted: Cli) -> None:
        told = compacted("rollback", "shop.orders", "--to", "1").stdout
        assert "2 deltas to compact again: `siltstone compact shop.orders`." in told

    def test_only_rounds_that_are_there_and_earlier(self, compacted: Cli) -> None:
        assert "there is no round 9" in compacted.fails("rollback", "shop.orders", "--to", "9")
        assert "round 2 is the current one" in compacted.fails("rollback", "shop.orders", "--to", "2", "--dry-run")
        assert "--to" in compacted.misused("rollback", "shop.orders")
        assert "--to" in compacted.misused("rollback", "shop.orders", "--to", "0")
        assert "did you mean shop.orders?" in compacted.fails("rollback", "shop.ordres", "--to", "1")

    def test_a_round_whose_files_are_gone_is_refused(self, compacted: Cli) -> None:
        compacted("compact", "shop.orders", "--full")
        first = compacted.json("show", "shop.orders", "1")["buckets"][0]["files"][0]["uri"]
        (compacted.root / first).unlink()
        message = compacted.fails("rollback", "shop.orders", "--to", "1")
        assert first in message
        assert "choose a later round" in message

    @pytest.mark.parametrize("spelled", ["region=eu", "eu"])
    def test_one_partition_of_several(
        self, orders: Callable[..., Cli], without_spark: list[Mapping[str, str]], spelled: str
    ) -> None:
        cli = orders(
            "--key",
            "order_id",
            "--partition-by",
            "region",
            "--unique-within-partition",
            order_id="int64",
            region="string",
        )
        for number in (1, 2):
            cli("write", "shop.orders", cli.file("a.csv", f"order_id,region\n{number},eu\n{number},us\n"))
            cli("compact", "shop.orders")
        assert "2 partitions have a round 1; say which" in cli.fails("rollback", "shop.orders", "--to", "1")
        assert "region=mars" in cli.fails("rollback", "shop.orders", "--to", "1", "--partition", "region=mars")
        assert "reigon=eu" in cli.fails("rollback", "shop.orders", "--to", "1", "--partition", "reigon=eu")
        done = cli.json("rollback", "shop.orders", "--to", "1", "--partition", spelled)
        assert done["round"]["partition"] == ["eu"]
        table = Lake(cli.root).table("shop.orders")
        assert {
            str(partition.own): partition.completion.live_rows
            for partition in table.snapshot().partitions
            if partition.completion
        } == {
            "shop/orders/1/deltas/eu": 1,
            "shop/orders/1/deltas/us": 2,
        }
        # A read is at one position for all partitions.
        assert len(table.to_arrow()) == 4
        cli("rollback", "shop.orders", "--to", "1", "--partition", "us")
        rows = [(row["region"], row["order_id"]) for row in table.to_arrow().to_pylist()]
        assert sorted(rows) == [("eu", 1), ("us", 1)]
