"""`siltstone changes` and `consumers` on the command line."""

import contextlib
import itertools
import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.lake import Lake
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FaultKind
from siltstone.testing.oracle import same_rows
from tests.unit.cli.command_line import Cli


@pytest.fixture
def two_rounds(changed_orders: Cli) -> Cli:
    """Return a lake whose shop.orders has two rounds: 100 inserts, then two updates, an insert and a delete."""
    changed_orders("compact", "shop.orders")
    return changed_orders


def test_changes_are_shown_with_the_rounds_that_they_are_of(two_rounds: Cli) -> None:
    result = two_rounds("changes", "shop.orders", "--after", "1", "--columns", "order_id,customer")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["order_id", "customer", "_change_type", "_round", "_position"],
        ["1", "c1", "update_before", "2", "3"],
        ["1", "new", "update_after", "2", "3"],
        ["2", "c2", "update_before", "2", "3"],
        ["2", "new", "update_after", "2", "3"],
        ["3", "c3", "delete", "2", "3"],
        ["100", "new", "insert", "2", "3"],
    ]
    assert result.stderr == "shop.orders: from round 1 to round 2, position 1 to 3.\n"
    result = two_rounds("changes", "shop.orders")
    assert "20 changes, and more; --json shows all" in result.stderr
    assert two_rounds("changes", "shop.orders", "--after", "3").stderr == "shop.orders: no round since position 3.\n"
    assert len(two_rounds("changes", "shop.orders", "--every-round", "--json").stdout.splitlines()) == 106
    after = two_rounds("changes", "shop.orders", "--after", "round:1", "--images", "after", "--format", "jsonl")
    assert [json.loads(line)["_change_type"] for line in after.stdout.splitlines()].count("update_before") == 0
    assert "there is no round 7 yet" in two_rounds.fails("changes", "shop.orders", "--after", "round:7")


def test_changes_are_written_to_files(two_rounds: Cli) -> None:
    parquet = two_rounds.folder / "changes.parquet"
    told = two_rounds.json("changes", "shop.orders", "--after", "1", "--output", str(parquet))
    assert (told["rows"], told["after"], told["upto"]) == (6, {"_": 1}, {"_": 2})
    assert pq.read_table(parquet).num_rows == 6
    assert "already exists" in two_rounds.fails("changes", "shop.orders", "-o", str(parquet), "--format", "debezium")
    assert "unknown file format" in two_rounds.fails("changes", "shop.orders", "-o", str(parquet) + ".x")
    assert "a table is shown" in two_rounds.misused("changes", "shop.orders", "-o", "x", "--format", "table")


@pytest.mark.parametrize("options", [[], ["--every-round"]])
def test_change_events_are_read_back_to_the_same_table(two_rounds: Cli, options: list[str]) -> None:
    events = str(two_rounds.folder / "events")
    (two_rounds.folder / "drops").mkdir()
    told = two_rounds.json("changes", "shop.orders", "--format", "debezium", "-o", events, *options)
    lines = [json.loads(line) for line in Path(events).read_bytes().splitlines()]
    assert told["rows"] == sum(line["value"] is not None for line in lines)
    payload = lines[-1]["value"]["payload"]
    assert sorted(payload) == ["after", "before", "op", "source", "ts_ms"]
    assert (payload["source"]["position"], payload["source"]["round"]) == (3, 2)
    (tombstone,) = [line["key"] for line in lines if line["value"] is None] or [{"payload": None}]
    assert tombstone["payload"] == ({"order_id": 3} if options else None)
    two_rounds("table", "create", "shop.copy", "--from", events, "--format", "debezium", "--write")
    two_rounds("table", "create", "shop.dropped", "--from", events, "--format", "debezium")
    shutil.copy(events, two_rounds.folder / "drops" / "events.jsonl")
    two_rounds("ingest", "shop.dropped", str(two_rounds.folder / "drops"), "--format", "debezium", "--settle", "0s")
    lake = Lake(two_rounds.root)
    names = ["order_id", "customer", "amount", "day"]
    for name in ("shop.copy", "shop.dropped"):
        assert lake.table(name).version.primary_keys == ["order_id"]
        copy = lake.table(name).to_arrow(names, include_uncompacted=True)
        same_rows(copy, lake.table("shop.orders").to_arrow(names).to_pylist())
    message = two_rounds.fails("changes", "shop.orders", "--format", "debezium", "--columns", "customer")
    assert "add order_id to --columns" in message


@pytest.mark.parametrize("kind", ["lose", "kill_after"])
def test_a_consumer_that_dies_at_any_call_misses_and_doubles_nothing(tmp_path: Path, kind: FaultKind) -> None:
    """It takes a file that is there, whatever became of the command, and of each partition only rounds that it has not taken."""
    cli = Cli(tmp_path)
    table = Lake(cli.root).create_table(
        "shop.orders", schema={"day": "string", "id": "int64"}, primary_keys=["day", "id"], partition_keys=["day"]
    )
    taken: dict[str, int] = {"a": 0, "b": 0}
    copy: Counter[tuple[str, int]] = Counter()

    def run(name: str) -> None:
        """Run the command, which may die, and take its file if there is one."""
        file = tmp_path / name
        try:
            cli("changes", "shop.orders", "--consumer", "bill", "--every-round", "-o", str(file))
        finally:
            rows = [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
            for row in rows:
                if row["_round"] > taken[row["day"]]:
                    copy[row["day"], row["id"]] += 1 if row["_change_type"] == "insert" else -1
            for row in rows:
                taken[row["day"]] = max(taken[row["day"]], row["_round"])

    def write(number: int) -> None:
        made = {"day": ["a", "b"] * 2, "id": [number, number, number - 1, number - 1], "op": ["c", "c", "d", "d"]}
        table.write(pa.table(made), op_column="op")
        table.compact(engine="local")

    def acknowledged() -> dict[str, int]:
        return {each.partition: each.round_id for each in table.consumers()}

    write(1)
    before = acknowledged()
    for call in itertools.count(1):
        with faults(str(cli.root), at_call=call, kind=kind) as store, contextlib.suppress(Killed, AssertionError):
            run(f"{call}.jsonl")
        after = acknowledged()
        assert all(last <= taken[partition] for partition, last in after.items())
        if after != before:
            run(f"{call}-again.jsonl")
            assert +copy == copy == Counter((row["day"], row["id"]) for row in table.to_arrow().to_pylist())
            before = acknowledged()
            write(call + 1)
        if store.calls < call:
            break
    assert call > 30


def test_a_consumer_goes_on_after_what_it_took(two_rounds: Cli) -> None:
    assert "goes with --json" in two_rounds.misused("changes", "shop.orders", "--consumer", "bill")
    message = two_rounds.misused("changes", "shop.orders", "--consumer", "bill", "-o", "x.jsonl", "--overwrite")
    assert "a file that was not taken yet would be lost" in message
    first = two_rounds("changes", "shop.orders", "--consumer", "bill", "--after", "1", "--json").stdout
    assert len(first.splitlines()) == 6
    assert two_rounds("changes", "shop.orders", "--consumer", "bill", "--json").stdout == ""
    (consumer,) = two_rounds.json("consumers", "shop.orders")
    assert (consumer["name"], consumer["round_id"], consumer["rounds_behind"]) == ("bill", 2, 0)
    assert "bill" in two_rounds("consumers", "shop.orders").stdout
    assert two_rounds.json("consumers", "shop.orders", "--remove", "bill", "--dry-run") == []
    assert "did you mean bill?" in two_rounds.fails("consumers", "shop.orders", "--remove", "bil")
    assert two_rounds.json("consumers", "shop.orders", "--remove", "bill") == []
    assert two_rounds("consumers", "shop.orders").stderr == "shop.orders: no consumers.\n"
