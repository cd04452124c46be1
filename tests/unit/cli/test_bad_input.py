"""What is wrong is named with its remedy, fails with one line, and changes nothing."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from siltstone.lake import Lake
from siltstone.model.rounds import RoundCompletion
from tests.unit.cli.command_line import Cli

Damage = Callable[[Path], object]
DAMAGES: list[Damage] = [
    lambda path: path.unlink(),
    lambda path: path.write_bytes(path.read_bytes()[:-7]),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\0" * path.stat().st_size),
]
NAMES = ["deleted", "truncated", "emptied", "zeroed"]
damages = pytest.mark.parametrize("damage", DAMAGES, ids=NAMES)


def current(cli: Cli) -> RoundCompletion:
    (completion,) = Lake(cli.root).table("shop.orders").current_rounds()
    return completion


def completion_file(cli: Cli) -> Path:
    newest = current(cli).round_id
    (path,) = cli.root.glob(f"tables/shop/orders/*/compacted/_/rounds/{newest}-*.json")
    return path


@pytest.mark.parametrize(
    "args",
    [
        ["compact"],
        ["compact", "--dry-run"],
        ["compact", "--full"],
        ["plan"],
        ["rounds"],
        ["show", "1"],
        ["read"],
        ["lookup", "order_id=1"],
        ["explain-key", "order_id=1"],
        ["fsck"],
        ["repair"],
        ["vacuum"],
        ["rollback", "--to", "1"],
    ],
    ids=" ".join,
)
def test_an_unknown_table(changed_orders: Cli, args: list[str]) -> None:
    command, *rest = args
    message = changed_orders.fails(command, "shop.ordres", *rest)
    assert "there is no table shop.ordres" in message
    assert "did you mean shop.orders?" in message


@pytest.mark.parametrize("option", ["--rebase-from", "--on-behalf-of"])
def test_an_unknown_source(changed_orders: Cli, option: str) -> None:
    for command in (["compact"], ["compact", "--dry-run"], ["plan"]):
        assert "did you mean shop.orders?" in changed_orders.fails(*command, "shop.orders", option, "shop.oders")


def test_key_columns_that_are_missing_in_a_delta(changed_orders: Cli) -> None:
    file = changed_orders.file("keyless.csv", "customer\nAda\n")
    for options in ([], ["--type", "delete"], ["--dry-run"]):
        message = changed_orders.fails("write", "shop.orders", file, *options)
        assert "'order_id'" in message
    assert "nosuch" in changed_orders.fails(
        "write", "shop.orders", file, "--type", "delete", "--delete-columns", "nosuch"
    )


def test_a_position_to_write_at_that_is_taken(changed_orders: Cli) -> None:
    file = changed_orders.file("a.csv", "order_id\n7\n")
    message = changed_orders.fails("write", "shop.orders", file, "--stream-position", "2")
    assert "2" in message
    assert "3" in message


def test_positions_that_are_none(changed_orders: Cli) -> None:
    for option in ("--to", "--high-watermark"):
        for wrong in ("-1", "one", "1.5"):
            assert option in changed_orders.misused("compact", "shop.orders", option, wrong)
    assert "high watermark 9 is after the newest delta of shop.orders, 3" in changed_orders.fails(
        "compact", "shop.orders", "--high-watermark", "9"
    )
    assert "--to" in changed_orders.misused("rollback", "shop.orders", "--to", "first")
    assert "there is no tag 'soon'" in changed_orders.fails("read", "shop.orders", "--as-of", "soon")


def test_a_position_before_the_watermark(changed_orders: Cli) -> None:
    changed_orders("compact", "shop.orders")
    for command in (["compact"], ["compact", "--dry-run"], ["plan"], ["compact", "--full"]):
        message = changed_orders.fails(*command, "shop.orders", "--to", "2")
        assert "is compacted up to position 3 already, which is after 2" in message
        assert "give a later position, or roll back" in message


def test_a_source_that_changed_without_a_rebase(changed_orders: Cli) -> None:
    schema = {"order_id": "int64", "customer": "string", "amount": "decimal(10,2)", "day": "date"}
    file = changed_orders.file("schema.json", json.dumps(schema))
    changed_orders("table", "create", "shop.other", "--key", "order_id", "--schema", file)
    changed_orders("write", "shop.other", changed_orders.file("other.csv", "order_id\n7\n"))
    message = changed_orders.fails("compact", "shop.orders", "--on-behalf-of", "shop.other")
    assert "was compacted from shop/orders/1/deltas/_, not from shop/other/1/deltas/_" in message
    assert "rebase to change the source" in message
    changed_orders("compact", "shop.orders", "--rebase-from", "shop.other", "--on-behalf-of", "shop.other")
    assert [each["order_id"] for each in changed_orders.json("lookup", "shop.orders", "order_id=7")] == [7]
    assert "not from shop/orders/1/deltas/_; rebase" in changed_orders.fails("compact", "shop.orders")


@damages
def test_a_damaged_data_file_of_the_current_state(changed_orders: Cli, damage: Damage) -> None:
    path = changed_orders.root / current(changed_orders).files[0].uri
    damage(path)
    # A minor round looks at the size of a file that it keeps, and at its index; it does not read its rows.
    minor = [] if damage is DAMAGES[-1] else [["compact"]]
    for command in (*minor, ["compact", "--full"], ["read"], ["lookup", "order_id=1"]):
        message = changed_orders.fails(command[0], "shop.orders", *command[1:])
        assert path.name in message, command
        assert "rebase" in message, command
    changed_orders("fsck", "shop.orders", exit_code=1)
    changed_orders("compact", "shop.orders", "--rebase-from", "shop.orders")
    assert changed_orders.json("fsck", "shop.orders", "--deep")[0]["live_rows"] == 100


@damages
def test_a_damaged_data_file_of_a_delta(changed_orders: Cli, damage: Damage) -> None:
    delta = Lake(changed_orders.root).table("shop.orders").deltas()[1]
    path = changed_orders.root / delta.manifest.entries[0].uri
    whole = path.read_bytes()
    damage(path)
    for command in (["compact"], ["plan"], ["explain-key", "order_id=1"], ["read", "--include-uncompacted"]):
        message = changed_orders.fails(command[0], "shop.orders", *command[1:])
        assert path.name in message, command
        assert "restore" in message, command
    (checked,) = changed_orders.json("fsck", "shop.orders", "--deep", exit_code=1)
    assert [each["code"] for each in checked["findings"]] == ["delta-file"]
    path.write_bytes(whole)
    assert changed_orders.json("compact", "shop.orders")["live_rows"] == 100


@damages
def test_a_damaged_round_completion_file(changed_orders: Cli, damage: Damage) -> None:
    path = completion_file(changed_orders)
    damage(path)
    for command in (["compact"], ["plan"], ["read"], ["show", "1"], ["lookup", "order_id=1"]):
        message = changed_orders.fails(command[0], "shop.orders", *command[1:])
        assert path.name in message, command
        assert "rebase" in message, command
    (checked,) = changed_orders.json("fsck", "shop.orders", exit_code=1)
    assert path.name in checked["findings"][0]["message"]
    assert path.name in changed_orders.json("rounds", "shop.orders")[0]["problem"]
    assert path.name in changed_orders("rounds", "shop.orders").stdout
    assert "rebuild" in changed_orders("plan", "shop.orders", "--rebase-from", "shop.orders").stdout
    changed_orders("compact", "shop.orders", "--rebase-from", "shop.orders")
    assert changed_orders.json("fsck", "shop.orders", "--deep")[0]["live_rows"] == 100


def test_json_tells_of_failures_as_a_document(changed_orders: Cli) -> None:
    path = completion_file(changed_orders)
    path.write_bytes(b"{")
    error = changed_orders.json("compact", "shop.orders", exit_code=1)["error"]
    assert error["type"] == "CorruptionError"
    assert path.name in error["message"]


def test_spark_is_not_started_for_what_cannot_be_done(
    changed_orders: Cli, without_spark: list[Mapping[str, str]]
) -> None:
    changed_orders.fails("compact", "shop.orders", "--high-watermark", "9")
    changed_orders.fails("compact", "shop.orders", "--rebase-from", "shop.nosuch")
    completion_file(changed_orders).unlink()
    changed_orders.fails("compact", "shop.orders")
    assert without_spark == []


def test_a_mistyped_file_name_gets_a_suggestion(orders: Callable[..., Cli]) -> None:
    cli = orders("--key", "order_id")
    file = cli.file("orders.csv", "order_id\n1\n")
    told = cli.fails("write", "shop.orders", file.replace("orders.csv", "ordres.csv"))
    assert "no such file; did you mean orders.csv?" in told
    assert "did you mean" not in cli.fails("write", "shop.orders", "nosuch/orders.csv")
