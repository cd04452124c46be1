"""`write --format debezium` and its like, and `table create --cdc`, on the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cdc.messages import change, lines, told, with_schema
from tests.unit.cli.command_line import Cli

FIELDS = [told("id", "int64"), told("name", "string")]


def keyed(op: str, lsn: int, key: int, name: str | None = "a", **more: Any) -> dict[str, Any]:
    return {"key": {"id": key}, "value": with_schema(change(op, lsn, {"id": key, "name": name}, **more), FIELDS)}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines([keyed("c", 1, 1), keyed("c", 2, 2), keyed("d", 3, 2), {"key": {"id": 2}, "value": None}]))
    return file


def test_a_table_is_created_from_events_and_takes_them_again(cli: Cli, events: Path) -> None:
    created = json.loads(
        cli("table", "create", "shop.orders", "--from", str(events), "--format", "debezium", "--write", "--json").stdout
    )
    assert created["written"]["rows"] == 3
    assert created["table"]["sort_keys"] == ["_source_position"]
    assert created["table"]["merge_engine"] == "partial_update"
    written = json.loads(cli("write", "shop.orders", str(events), "--format", "debezium", "--json").stdout)
    assert (written["stream_position"], written["skipped"], written["deletes"]) == (2, {"tombstone": 1}, 1)
    rows = cli("read", "shop.orders", "--fresh", "--columns", "id,name", "--json").stdout.splitlines()
    assert [json.loads(row) for row in rows] == [{"id": 1, "name": "a"}]
    shown = cli("write", "shop.orders", str(events), "--format", "debezium", "--dry-run").stdout
    assert "would write 3 rows of 4 events, 1 delete among them" in shown


def test_events_of_several_tables_go_where_the_template_says(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines([keyed("c", 1, 1), keyed("c", 2, 2, table="items")]))
    written = json.loads(
        cli("write", str(file), "--format", "debezium", "--into", "shop.{table}", "--create", "--json").stdout
    )
    assert [each["table"] for each in written] == ["shop.orders", "shop.items"]


def test_what_does_not_fit_is_put_aside_or_stops_the_write(cli: Cli, events: Path, tmp_path: Path) -> None:
    cli("table", "create", "shop.orders", "--from", str(events), "--format", "debezium")
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(lines([keyed("c", 4, 4), keyed("c", 5, 5, 7)]))  # type: ignore[arg-type]
    refused = cli("write", "shop.orders", str(bad), "--format", "debezium", exit_code=1)
    assert "bad.jsonl, line 2: column 'name'" in refused.stderr
    shown = cli("write", "shop.orders", str(bad), "--format", "debezium", "--rejects", str(tmp_path / "rejects")).stdout
    assert "1 event did not fit; see" in shown
    assert len(list((tmp_path / "rejects").iterdir())) == 1


def test_options_that_do_not_go_together_are_wrong_usage(cli: Cli, events: Path, tmp_path: Path) -> None:
    cli("table", "create", "shop.orders", "--from", str(events), "--format", "debezium")
    for options in (
        ["--format", "debezium", "--op-column", "x"],
        ["--format", "debezium", "--type", "delete"],
        ["--format", "debezium", "--times", "hours"],
        ["--rejects", str(tmp_path)],
        ["--decimals", "text"],
    ):
        cli("write", "shop.orders", str(events), *options, exit_code=2)
    cli("write", "shop.orders", exit_code=2)
    cli("table", "create", "shop.x", "--cdc", "debezium", "--from", str(events), "--sort-key", "id", exit_code=2)
