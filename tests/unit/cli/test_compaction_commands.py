import json
import signal
from collections.abc import Callable, Mapping

import pytest

from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli


def test_compact_says_where_every_row_went(changed_orders: Cli) -> None:
    compacted = changed_orders.json("compact", "shop.orders")
    (line,) = compacted["rounds"]
    assert (line["base_rows"], line["delta_rows"]) == (100, 5)
    gone = line["superseded_rows"], line["deleted_rows"], line["duplicate_rows"]
    assert gone == (2, 2, 1)
    assert line["live_rows"] == compacted["live_rows"] == 100
    assert line["base_rows"] + line["delta_rows"] == line["live_rows"] + sum(gone)
    assert (line["high_watermark"], line["deltas"], compacted["deltas"]) == (3, 2, 2)
    assert line["carried_files"] == 1
    assert line["bucket_actions"] == {"minor": 1}
    assert line["write_amplification"] == line["written_bytes"] / line["input_bytes"]
    assert {"plan", "spark_start", "tasks", "merge", "write", "total"} <= set(compacted["seconds"])


def test_compact_tells_people_the_same(changed_orders: Cli) -> None:
    told = changed_orders("compact", "shop.orders").stdout
    assert "compacted 2 deltas in 1 round; 100 rows now" in told
    for word in ("superseded", "duplicates", "amplified", "carried", "dead", "1 minor", "to start Spark"):
        assert word in told


def test_compact_without_news_says_so_and_does_not_start_spark(
    changed_orders: Cli, without_spark: list[Mapping[str, str]]
) -> None:
    changed_orders("compact", "shop.orders")
    assert len(without_spark) == 1
    before = changed_orders.listing()
    assert "nothing new" in changed_orders("compact", "shop.orders").stdout
    assert changed_orders.json("compact", "shop.orders")["rounds"] == []
    assert len(without_spark) == 1
    assert changed_orders.listing() == before


def test_compact_in_this_process_needs_no_spark(changed_orders: Cli, without_spark: list[Mapping[str, str]]) -> None:
    compacted = changed_orders.json("compact", "shop.orders", "--engine", "local")
    assert (compacted["live_rows"], without_spark) == (100, [])
    assert "spark_start" not in compacted["seconds"]
    refused = changed_orders("compact", "shop.orders", "--engine", "local", "--master", "local[2]", exit_code=2)
    assert "--engine local does not use Spark" in refused.stderr


def test_compact_up_to_a_position_leaves_the_rest(changed_orders: Cli) -> None:
    assert changed_orders.json("compact", "shop.orders", "--to", "2")["rounds"][0]["high_watermark"] == 2
    assert changed_orders.json("compact", "shop.orders", "--to", "2")["rounds"] == []
    assert changed_orders.json("compact", "shop.orders", "--to", "99")["rounds"][0]["high_watermark"] == 3


def test_a_full_compaction_rewrites_what_has_not_changed(changed_orders: Cli) -> None:
    changed_orders("compact", "shop.orders")
    (line,) = changed_orders.json("compact", "shop.orders", "--full")["rounds"]
    assert (line["bucket_actions"], line["files"], line["carried_files"]) == ({"major": 1}, 1, 0)
    assert line["write_amplification"] is None
    assert "1 major" in changed_orders("compact", "shop.orders", "--full").stdout


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,3]", "spark://host:7077", "yarn"])
def test_the_master_is_handed_to_spark(
    changed_orders: Cli, without_spark: list[Mapping[str, str]], master: str
) -> None:
    changed_orders("compact", "shop.orders", "--master", master)
    (conf,) = without_spark
    assert conf["spark.master"] == master
    assert (conf.get("spark.driver.bindAddress") is None) == master.startswith("local")


def test_a_master_that_spark_would_not_know_is_refused(changed_orders: Cli) -> None:
    assert "locl[2]" in changed_orders.fails("compact", "shop.orders", "--master", "locl[2]")


def test_a_mistyped_table_gets_a_suggestion(changed_orders: Cli) -> None:
    for args in (["compact"], ["plan"], ["rounds"]):
        assert "did you mean shop.orders?" in changed_orders.fails(*args, "shop.ordres")
    assert "did you mean shop.orders?" in changed_orders.fails("show", "shop.ordres", "1")


def test_a_table_without_deltas_has_nothing_new(orders: Callable[..., Cli]) -> None:
    cli = orders("--key", "order_id")
    for command in ("compact", "plan"):
        assert "nothing new" in cli(command, "shop.orders").stdout
    assert "not been compacted yet" in cli("rounds", "shop.orders").stdout
    assert cli.json("rounds", "shop.orders") == []


def test_plan_foretells_exactly_what_compact_does(changed_orders: Cli) -> None:
    before = changed_orders.listing()
    (preview,) = changed_orders.json("plan", "shop.orders")["rounds"]
    assert changed_orders.listing() == before
    (line,) = changed_orders.json("compact", "shop.orders")["rounds"]
    for name in ("round_id", "high_watermark", "deltas"):
        assert preview[name] == line[name]
    assert (preview["previous_high_watermark"], preview["rows"], preview["deltas_left_over"]) == (1, 7, 0)
    assert preview["bytes"] == line["input_bytes"]
    (bucket,) = preview["buckets"]
    assert line["bucket_actions"] == {bucket["action"]: 1}
    assert bucket["new_rows"] == line["written_rows"]
    assert bucket["base_rows"] - bucket["dead_rows"] + bucket["new_rows"] == line["live_rows"]


def test_plan_gives_a_reason_for_each_bucket(changed_orders: Cli) -> None:
    told = changed_orders("plan", "shop.orders").stdout
    assert "round 2 would" in told
    assert "costs less than to rewrite 100" in told
    assert "full compaction was asked for" in changed_orders("plan", "shop.orders", "--full").stdout


def test_rounds_lists_and_show_tells_all(changed_orders: Cli) -> None:
    changed_orders("compact", "shop.orders")
    first, second = changed_orders.json("rounds", "shop.orders")
    assert [first["round_id"], second["round_id"]] == [1, 2]
    assert changed_orders("rounds", "shop.orders").stdout.count("\n") == 3
    shown = changed_orders.json("show", "shop.orders", "2")
    assert shown["round"] == second
    (bucket,) = shown["buckets"]
    assert [file["dead_rows"] for file in bucket["files"]] == [3, 0]
    assert bucket["files"][0]["deletion_vector"] is not None
    told = changed_orders("show", "shop.orders", "2").stdout
    assert "deletion vector" in told
    assert "superseded" in told


def test_a_round_that_is_not_there(changed_orders: Cli) -> None:
    assert "there is no round 9; `siltstone rounds shop.orders`" in changed_orders.fails("show", "shop.orders", "9")
    changed_orders.misused("show", "shop.orders", "two")


def test_partitions_compact_by_themselves_and_are_told_apart(
    orders: Callable[..., Cli], without_spark: list[Mapping[str, str]]
) -> None:
    cli = orders(
        "--key", "order_id", "--partition-by", "region", "--unique-within-partition", order_id="int64", region="string"
    )
    cli("write", "shop.orders", cli.file("a.csv", "order_id,region\n1,eu\n2,us\n3,\n"))
    compacted = cli.json("compact", "shop.orders")
    assert sorted(line["partition"][0] or "" for line in compacted["rounds"]) == ["", "eu", "us"]
    assert len(without_spark) == 1
    cli("write", "shop.orders", cli.file("b.csv", "order_id,region\n4,eu\n"))
    assert [each["partition"] for each in cli.json("plan", "shop.orders")["rounds"]] == [["eu"]]
    told = cli("compact", "shop.orders").stdout
    assert "eu" in told
    assert "us" not in told.split()
    assert "--partition" in cli.fails("show", "shop.orders", "1")
    assert cli.json("show", "shop.orders", "1", "--partition", "us")["round"]["partition"] == ["us"]
    assert cli.json("show", "shop.orders", "1", "--partition", "null")["round"]["partition"] == [None]
    assert cli.json("show", "shop.orders", "2")["round"]["partition"] == ["eu"]
    assert "asia" in cli.fails("show", "shop.orders", "1", "--partition", "asia")


def test_an_interrupt_leaves_rounds_that_the_next_run_goes_on_from(
    changed_orders: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("siltstone.rounds.session.write_completion", interrupted)
        told = changed_orders("compact", "shop.orders", exit_code=130).stderr
    assert told.startswith("Interrupted. What was not committed has changed nothing; `siltstone compact shop.orders`")
    assert len(Lake(changed_orders.root).table("shop.orders").rounds()) == 1
    assert changed_orders.json("compact", "shop.orders")["live_rows"] == 100


def test_an_interrupt_while_spark_starts_ends_the_command_whatever_fails_then(
    changed_orders: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def start(*, conf: Mapping[str, str], is_short: bool) -> object:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise ConnectionRefusedError("Java is gone")

    monkeypatch.setattr("siltstone.spark.session.local_session", start)
    result = changed_orders("compact", "shop.orders", exit_code=130)
    assert result.stderr.startswith("Interrupted.")
    assert "Java is gone" not in result.output
    assert signal.getsignal(signal.SIGINT) is before


def test_a_summary_says_what_was_carried_and_what_readers_pass_over(changed_orders: Cli) -> None:
    compacted = changed_orders.json("compact", "shop.orders")
    (line,) = compacted["rounds"]
    assert line["carried_bytes"] + line["written_bytes"] == line["bytes"]
    assert (line["dead_rows"], compacted["dead_rows"]) == (3, 3)
    assert compacted["read_amplification"] == line["read_amplification"] == 103 / 100
    assert (compacted["delta_rows"], compacted["superseded_rows"]) == (5, 2)
    assert (compacted["deleted_rows"], compacted["duplicate_rows"]) == (2, 1)
    again = changed_orders.json("compact", "shop.orders")
    assert (again["rounds"], again["dead_rows"], again["live_rows"]) == ([], 3, 100)


def test_several_rounds_are_summed_up(orders: Callable[..., Cli], without_spark: list[Mapping[str, str]]) -> None:
    cli = orders(
        "--key", "order_id", "--partition-by", "region", "--unique-within-partition", order_id="int64", region="string"
    )
    cli("write", "shop.orders", cli.file("a.csv", "order_id,region\n1,eu\n2,us\n"))
    told = cli("compact", "shop.orders").stdout
    assert "In all: 2 rows in, 0 superseded, 0 deleted, 0 duplicates;" in told
    for step in ("to plan", "to start Spark", "in tasks", "merging", "writing", "to commit", "in all"):
        assert step in told


class TestRebase:
    """A table made anew, from another or from itself."""

    @pytest.fixture
    def moving(self, changed_orders: Cli) -> Cli:
        """Also shop.old: what another program made of the first two deltas."""
        schema = {"order_id": "int64", "customer": "string"}
        file = changed_orders.file("old.json", json.dumps(schema))
        changed_orders("table", "create", "shop.old", "--schema", file)
        changed_orders("write", "shop.old", changed_orders.file("old.csv", "order_id,customer\n1,old\n3,old\n"))
        return changed_orders

    def test_a_table_moves_over_and_goes_on_after_the_watermark(self, moving: Cli) -> None:
        rebase = ["shop.orders", "--rebase-from", "shop.old", "--high-watermark", "2"]
        before = moving.listing()
        (preview,) = moving.json("compact", *rebase, "--dry-run")["rounds"]
        assert moving.json("plan", *rebase)["rounds"] == [preview]
        assert moving.listing() == before
        assert preview["rebase_from"] == "shop/old/1/deltas/_"
        assert (preview["high_watermark"], preview["rows"], preview["deltas_left_over"]) == (2, 2, 1)
        assert "rebuild  from shop/old/1/deltas/_, then continue after position 2" in moving("plan", *rebase).stdout
        rebased, followed = moving.json("compact", *rebase)["rounds"]
        assert (rebased["high_watermark"], followed["high_watermark"], followed["deltas"]) == (2, 3, 1)
        assert [row["order_id"] for row in moving.json("lookup", "shop.orders", "order_id=1")] == [1]
        assert moving.json("lookup", "shop.orders", "order_id=3") == [], "deleted by the delta after the watermark"
        assert "rebased from" in moving("show", "shop.orders", "3").stdout

    def test_what_was_compacted_is_discarded_by_a_rebase_from_the_table_itself(self, moving: Cli) -> None:
        compacted = moving.json("compact", "shop.orders", "--rebase-from", "shop.orders")
        (line,) = compacted["rounds"]
        assert (line["round_id"], line["deltas"], line["base_rows"], line["live_rows"]) == (2, 3, 0, 100)

    def test_on_behalf_of_another_table_now_and_later(self, moving: Cli) -> None:
        schema = {"order_id": "int64", "customer": "string", "amount": "decimal(10,2)", "day": "date"}
        file = moving.file("copy.json", json.dumps(schema))
        moving("table", "create", "shop.copy", "--key", "order_id", "--schema", file)
        behalf = ["--on-behalf-of", "shop.orders"]
        moving("compact", "shop.copy", "--rebase-from", "shop.old", *behalf, "--high-watermark", "2", "--to", "2")
        assert "1 delta not compacted yet" in moving("read", "shop.copy").stderr
        assert [row["customer"] for row in moving.json("lookup", "shop.copy", "order_id=3")] == ["old"]
        (story,) = moving.json("explain-key", "shop.copy", "order_id=3")
        assert [each["committed_at"][:2] for each in story["events"]] == ["20", "20"]
        assert story["compacted_row"]["customer"] == "old"
        assert "rebase from shop/old" in story["events"][0]["effect"]
        assert moving.json("compact", "shop.copy", *behalf)["deltas"] == 1
        assert moving.json("lookup", "shop.copy", "order_id=3") == []
        assert "nothing new" in moving("compact", "shop.copy", *behalf).stdout

    def test_a_watermark_alone_says_where_to_go_on(self, moving: Cli) -> None:
        (preview,) = moving.json("plan", "shop.orders", "--high-watermark", "2")["rounds"]
        assert (preview["previous_high_watermark"], preview["deltas"], preview["rebase_from"]) == (2, 1, None)
        assert moving.json("compact", "shop.orders", "--high-watermark", "2")["deltas"] == 1
        assert "no delta" in moving.fails("compact", "shop.orders", "--high-watermark", "3")
