import json
from collections.abc import Callable, Mapping

import pytest

from siltstone.lake import Lake
from siltstone.storage import object_store as storage
from tests.unit.cli.command_line import Cli

Orders = Callable[..., Cli]


@pytest.fixture
def prices(orders: Orders, without_spark: list[Mapping[str, str]]) -> Cli:
    """A composite key with nulls, late rows and row-level deletes."""
    cli = orders(
        "--key", "sku,region", "--sort-key", "at", sku="int64", region="string", at="timestamp_utc", price="double"
    )
    changes: list[list[dict[str, object]]] = [
        [{"sku": 1, "region": "eu", "at": "2024-05-01T08:00:00Z", "price": 1}, {"sku": 2, "region": None, "price": 9}],
        [
            {"sku": 1, "region": "eu", "at": "2024-05-01T10:00:00Z", "price": 2},
            {"sku": 1, "region": "eu", "at": "2024-05-01T09:00:00Z", "price": 3},
            {"sku": 1, "region": "us", "at": "2024-05-01T09:00:00Z", "price": 4},
        ],
        [{"op": "d", "sku": 2, "region": None, "at": "2024-05-01T11:00:00Z"}],
    ]
    for number, each in enumerate(changes):
        file = cli.file(f"{number}.jsonl", "\n".join(map(json.dumps, each)))
        cli("write", "shop.orders", file, *(["--op-column", "op"] if number == 2 else []))
    return cli


def test_every_delta_that_touched_the_key_is_told_and_why_the_winner_won(prices: Cli) -> None:
    (story,) = prices.json("explain-key", "shop.orders", "sku=1", "region=eu")
    assert story["key"] == {"sku": 1, "region": "eu"}
    events = [(each["stream_position"], each["row"], each["is_winner"]) for each in story["events"]]
    assert events == [(1, 0, False), (2, 0, True), (2, 1, False)]
    assert story["events"][2]["effect"] == "stays out: its sort key is older than that of position 2"
    assert story["events"][0]["values"]["at"] == "2024-05-01T08:00:00Z"
    assert story["row"]["price"] == 2
    assert story["compacted_row"] is None
    assert "position 2 counts: nothing after it has as great a sort key (at 2024-05-01T10:00:00Z)" in story["why"]
    told = prices("explain-key", "shop.orders", "sku=1", "region=eu").stdout
    assert "→         2" in told
    assert "replaces the row of position 1" in told
    assert "3 changes not compacted yet." in told


def test_a_null_key_of_text_is_asked_for_by_an_option(prices: Cli) -> None:
    (story,) = prices.json("explain-key", "shop.orders", "sku=2", "--null", "region")
    assert [each["kind"] for each in story["events"]] == ["upsert", "row-level delete"]
    assert story["row"] is None
    assert story["why"] == "There is no row: position 3 deleted it, and nothing brought it back."
    assert prices.json("explain-key", "shop.orders", "sku=2", "region=null") == []
    assert "no delta has sku=2, region=null." in prices("explain-key", "shop.orders", "sku=2", "region=null").stdout
    assert prices.json("explain-key", "shop.orders", "sku=null", "region=eu") == []


def test_what_is_compacted_is_told_apart_from_what_is_not(prices: Cli) -> None:
    prices("compact", "shop.orders", "--to", "1")
    (story,) = prices.json("explain-key", "shop.orders", "sku=1", "region=eu")
    assert [each["is_compacted"] for each in story["events"]] == [True, False, False]
    assert story["high_watermark"] == 1
    assert (story["compacted_row"]["price"], story["row"]["price"]) == (1, 2)
    told = prices("explain-key", "shop.orders", "sku=1", "region=eu").stdout
    assert "2 changes not compacted since the last round, which went up to position 1." in told
    prices("compact", "shop.orders")
    (story,) = prices.json("explain-key", "shop.orders", "sku=1", "region=eu")
    assert story["compacted_row"] == story["row"]
    assert story["notes"] == []


def test_what_cannot_be_told_any_more_is_said(prices: Cli) -> None:
    prices("compact", "shop.orders")
    table = Lake(prices.root).table("shop.orders")
    (source,) = table._sources()
    storage.delete_deltas(source, last_stream_position=3, root=table.lake.root)
    (story,) = prices.json("explain-key", "shop.orders", "sku=1", "region=us")
    assert story["compacted_row"]["price"] == 4
    told = prices("explain-key", "shop.orders", "sku=1", "region=us").stdout
    assert "Deltas up to position 3 are trimmed" in told
    assert "4.0" in told


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("deduplicate", "The row of position 2 counts: it came last."),
        ("first_row", "The row of position 1 counts: it was the first."),
        ("partial_update", "The row is made of 2 changes, of which that of position 2 was applied last."),
    ],
)
def test_the_reason_is_that_of_the_merge_engine(orders: Orders, engine: str, why: str) -> None:
    cli = orders("--key", "order_id", "--merge-engine", engine)
    for number in range(2):
        cli("write", "shop.orders", cli.file("a.csv", f"order_id,customer\n7,{number}\n"))
    (story,) = cli.json("explain-key", "shop.orders", "order_id=7")
    assert story["why"] == why
    cli("write", "shop.orders", cli.file("b.csv", "order_id\n8\n"))
    if engine != "partial_update":
        told = cli("explain-key", "shop.orders", "order_id=8").stdout
        assert ("it was the first" if engine == "first_row" else "there is no other") in told


def test_each_partition_that_had_the_key_is_told(orders: Orders) -> None:
    cli = orders(
        "--key", "order_id", "--partition-by", "region", "--unique-within-partition", order_id="int64", region="string"
    )
    cli("write", "shop.orders", cli.file("a.csv", "order_id,region\n1,eu\n1,us\n2,us\n"))
    assert [each["partition"] for each in cli.json("explain-key", "shop.orders", "order_id=1")] == [["eu"], ["us"]]
    assert "partition us: order_id = 2" in cli("explain-key", "shop.orders", "order_id=2").stdout


def test_wrong_keys_are_refused(prices: Cli) -> None:
    explain = ["explain-key", "shop.orders"]
    assert "region=… is missing" in prices.fails(*explain, "sku=1")
    assert "did you mean region?" in prices.fails(*explain, "sku=1", "regoin=eu")
    assert "'sku': 'one' is not of its type, int64" in prices.fails(*explain, "sku=one", "region=eu")
    assert "did you mean shop.orders?" in prices.fails("explain-key", "shop.order", "sku=1", "region=eu")
    assert "has a value too" in prices.misused(*explain, "sku=1", "region=eu", "--null", "region")
    assert "name=value" in prices.misused(*explain, "1")
    assert "KEY=VALUE" in prices.misused(*explain)


def test_tables_whose_keys_have_many_rows_have_no_winner(orders: Orders) -> None:
    cli = orders("--key", "order_id", "--keep-duplicates")
    assert "keeps all rows of a key" in cli.fails("explain-key", "shop.orders", "order_id=1")


def test_tables_without_a_key_say_so(orders: Orders) -> None:
    assert "has no primary key" in orders().fails("explain-key", "shop.orders", "order_id=1")
