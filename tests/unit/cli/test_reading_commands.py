import datetime
import json
import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.cli.rows import rows_text
from siltstone.ingest.export import plain
from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli


def lines(cli: Cli, *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli("read", "shop.orders", "--json", *args).stdout.splitlines()]


def test_read_shows_what_is_compacted_and_counts_the_rest(changed_orders: Cli) -> None:
    result = changed_orders("read", "shop.orders")
    assert result.stdout.splitlines()[1].split() == ["0", "c0", "0.50", "2024-05-01"]
    assert len(result.stdout.splitlines()) == 21
    assert "20 of 100 rows" in result.stderr
    assert "2 deltas not compacted yet" in result.stderr


def test_read_json_is_one_object_per_line_without_a_limit(changed_orders: Cli) -> None:
    assert len(lines(changed_orders)) == 100
    assert lines(changed_orders, "--limit", "1") == [
        {"order_id": 0, "customer": "c0", "amount": "0.50", "day": "2024-05-01"}
    ]


def test_read_with_deltas_that_are_not_compacted(changed_orders: Cli) -> None:
    fresh = lines(changed_orders, "--fresh")
    assert lines(changed_orders, "--include-uncompacted") == fresh
    changed_orders("compact", "shop.orders")
    assert sorted(map(str, fresh)) == sorted(map(str, lines(changed_orders)))
    assert {row["order_id"] for row in fresh} == {*range(101)} - {3}


def test_read_as_of_a_position_or_a_time(changed_orders: Cli) -> None:
    changed_orders("compact", "shop.orders")
    assert len(lines(changed_orders, "--as-of", "2")) == 102
    assert len(lines(changed_orders, "--as-of", "0")) == 0
    deltas = Lake(changed_orders.root).table("shop.orders").deltas()
    time = datetime.datetime.fromtimestamp(deltas[1].committed_at / 1000, datetime.UTC)
    assert len(lines(changed_orders, "--as-of", time.isoformat())) == 102
    assert len(lines(changed_orders, "--as-of", time.replace(tzinfo=None).isoformat())) == 102
    assert "neither a position, nor a time" in changed_orders.fails("read", "shop.orders", "--as-of", "5 days")


def test_read_chosen_columns_where_others_tell_which_rows(changed_orders: Cli) -> None:
    assert lines(changed_orders, "--columns", "customer", "--where", "order_id = 8") == [{"customer": "c1"}]
    assert "did you mean customer?" in changed_orders.fails("read", "shop.orders", "--columns", "custmer")
    assert "twice" in changed_orders.fails("read", "shop.orders", "--columns", "day,day")


def test_read_says_when_there_are_no_rows(changed_orders: Cli) -> None:
    result = changed_orders("read", "shop.orders", "--where", "order_id < 0")
    assert result.stdout == ""
    assert "no rows" in result.stderr


def test_read_does_not_say_how_many_rows_match_as_only_reading_all_would_tell(changed_orders: Cli) -> None:
    assert changed_orders("read", "shop.orders", "--where", "order_id > 5").stderr.startswith("20 rows;")


SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "price": pa.decimal128(10, 2),
        "ratio": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "local": pa.timestamp("us"),
        "hour": pa.time64("us"),
        "paid": pa.bool_(),
        "two words": pa.string(),
        "tags": pa.list_(pa.string()),
        "raw": pa.binary(),
    }
)
ROW = {
    "id": 7,
    "name": "it's",
    "price": Decimal("9.50"),
    "ratio": 0.25,
    "day": datetime.date(2024, 5, 1),
    "at": datetime.datetime(2024, 5, 1, 8, tzinfo=datetime.UTC),
    "local": datetime.datetime(2024, 5, 1, 8),
    "hour": datetime.time(8, 30),
    "paid": True,
    "two words": None,
    "tags": [],
    "raw": b"",
}


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_what_is_read_into_a_file_can_be_written_again(changed_orders: Cli, ending: str) -> None:
    file = changed_orders.folder / f"out.{ending}"
    exported = changed_orders.json("read", "shop.orders", "--output", str(file))
    assert (exported["rows"], exported["bytes"]) == (100, file.stat().st_size)
    before = Lake(changed_orders.root).table("shop.orders").to_arrow()
    changed_orders("write", "shop.orders", str(file))
    changed_orders("compact", "shop.orders")
    after = Lake(changed_orders.root).table("shop.orders").to_arrow()
    assert after.sort_by("order_id").slice(0, 1).to_pylist() == before.slice(0, 1).to_pylist()


def test_an_output_file_is_not_replaced_unless_asked(changed_orders: Cli) -> None:
    file = Path(changed_orders.file("out.csv", "mine"))
    assert "--overwrite" in changed_orders.fails("read", "shop.orders", "--output", str(file))
    assert file.read_text() == "mine"
    changed_orders("read", "shop.orders", "--output", str(file), "--overwrite", "--limit", "2")
    assert file.read_text().count("\n") == 3


def test_an_output_that_fails_leaves_nothing(changed_orders: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("siltstone.ingest.export.plain_rows", interrupted)
    before = set(os.listdir(changed_orders.folder))
    changed_orders("read", "shop.orders", "--output", str(changed_orders.folder / "out.jsonl"), exit_code=130)
    assert set(os.listdir(changed_orders.folder)) == before


@pytest.mark.parametrize("name", ["out.xls", "s3://bucket/out.csv", "nosuch/out.csv"])
def test_outputs_that_cannot_be(changed_orders: Cli, name: str) -> None:
    changed_orders.fails("read", "shop.orders", "--output", name)


def test_csv_holds_what_has_no_spelling_of_its_own(tmp_path: Path) -> None:
    from siltstone.ingest.export import write_rows

    file = tmp_path / "all.csv"
    batch = pa.RecordBatch.from_pylist([ROW | {"tags": ["a"], "raw": b"\xff"}], schema=SCHEMA)
    write_rows([batch], SCHEMA, str(file), "csv")
    assert '"[""a""]","/w=="' in file.read_text()
    write_rows([batch], SCHEMA, str(tmp_path / "all.parquet"), "parquet")
    assert pq.read_table(tmp_path / "all.parquet").to_pylist()[0]["raw"] == b"\xff"


def test_json_values() -> None:
    assert plain(float("nan")) == "NaN"
    assert plain(float("-inf")) == "-Infinity"
    assert plain(datetime.timedelta(seconds=1)) == 1_000_000
    assert plain({"a": [Decimal("1E+2")]}) == {"a": ["100"]}


def test_rows_that_do_not_fit_the_window_go_one_column_below_the_other() -> None:
    batch = pa.RecordBatch.from_pylist([{f"column_{n}": "x\ny" for n in range(30)}] * 2)
    narrow = list(rows_text(iter([batch]), batch.schema, 80))
    assert len(narrow) == 3
    wide = list(rows_text(iter([batch]), batch.schema, 1000))
    assert len(wide) == 1


def test_many_rows_come_in_chunks_under_one_header(orders: Callable[..., Cli], without_spark: object) -> None:
    cli = orders("--key", "order_id", order_id="int64")
    cli("write", "shop.orders", cli.file("a.csv", "order_id\n" + "\n".join(map(str, range(2500)))))
    cli("compact", "shop.orders")
    told = cli("read", "shop.orders", "--limit", "2400").stdout.splitlines()
    assert len(told) == 2401
    assert told.count("order_id") == 1


def test_lookup_finds_the_row_of_a_key(changed_orders: Cli) -> None:
    changed_orders("compact", "shop.orders")
    assert changed_orders.json("lookup", "shop.orders", "order_id=2") == [
        {"order_id": 2, "customer": "new", "amount": "1.00", "day": None}
    ]
    assert "new" in changed_orders("lookup", "shop.orders", "order_id=2").stdout
    assert changed_orders.json("lookup", "shop.orders", "order_id=3") == []


def test_lookup_without_a_row_says_what_may_have_it(changed_orders: Cli) -> None:
    told = changed_orders("lookup", "shop.orders", "order_id=100").stdout
    assert "no compacted row has order_id=100; 2 deltas not compacted yet" in told


def test_lookup_by_something_else_than_the_key(changed_orders: Cli) -> None:
    assert "'customer' is not in the primary key" in changed_orders.fails("lookup", "shop.orders", "customer=Ada")
    assert "not of its type" in changed_orders.fails("lookup", "shop.orders", "order_id=x")
    changed_orders.misused("lookup", "shop.orders", "7")


def test_lookup_needs_the_whole_key(orders: Callable[..., Cli], without_spark: list[Mapping[str, str]]) -> None:
    cli = orders("--key", "a,b", a="string", b="date")
    cli("write", "shop.orders", cli.file("a.jsonl", '{"a": "x=1", "b": null}\n{"a": "null", "b": "2024-05-01"}\n'))
    cli("compact", "shop.orders")
    assert "b=… is missing" in cli.fails("lookup", "shop.orders", "a=x")
    assert cli.json("lookup", "shop.orders", "a=x=1", "b=null") == [{"a": "x=1", "b": None}]
    assert cli.json("lookup", "shop.orders", "b=2024-05-01", "a=null") == [{"a": "null", "b": "2024-05-01"}]


def test_lookup_needs_a_key(orders: Callable[..., Cli]) -> None:
    assert "has no primary key" in orders().fails("lookup", "shop.orders", "order_id=1")


def test_a_table_with_waiting_deltas_only_says_so_before_anything_else(orders: Callable[..., Cli]) -> None:
    cli = orders("--key", "order_id")
    assert cli("read", "shop.orders").stderr == "shop.orders: no rows.\n"
    cli("write", "shop.orders", cli.file("one.csv", "order_id,customer\n1,Ada\n"))
    told = (
        "shop.orders: nothing is compacted yet, but 1 delta is waiting: --fresh reads what waits, and `siltstone compact shop.orders` "
        "compacts it.\n"
    )
    assert cli("read", "shop.orders").output == told
    as_json = cli("read", "shop.orders", "--json")
    assert (as_json.stdout, as_json.stderr) == ("", told)
    assert [
        row["customer"] for row in map(json.loads, cli("read", "shop.orders", "--fresh", "--json").stdout.splitlines())
    ] == ["Ada"]
    cli("write", "shop.orders", cli.file("two.csv", "order_id,customer\n2,Ben\n"))
    assert "but 2 deltas are waiting" in cli("read", "shop.orders", "--output", str(cli.folder / "none.csv")).stderr
    cli("compact", "shop.orders", "--engine", "local")
    assert cli("read", "shop.orders", "--json").stderr == ""
