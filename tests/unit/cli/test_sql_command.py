"""`siltstone sql`; what queries mean is tested with `Lake.sql`."""

import json

import pytest

from tests.unit.cli.command_line import Cli


@pytest.fixture
def orders(cli: Cli) -> Cli:
    rows = "".join(f"{number},{number}.50\n" for number in range(30))
    cli("table", "create", "shop.orders", "--key", "id", "--from", cli.file("o.csv", f"id,amount\n{rows}"), "--write")
    return cli


def test_rows_are_shown_as_read_shows_them(orders: Cli) -> None:
    shown = orders("sql", "select id, amount::decimal(9,2) a, null n from shop.orders order by id", "--fresh")
    assert shown.stdout.splitlines()[:2] == ["id      a  n", " 0   0.50  null"]
    assert len(shown.stdout.splitlines()) == 21
    assert shown.stderr == "20 rows; --limit N shows more, --output FILE writes all.\n"
    assert "1 delta not compacted yet; --fresh" in orders("sql", "from shop.orders").stderr
    lines = orders("sql", "from shop.orders order by id", "--fresh", "--limit", "25").stdout.splitlines()
    assert len(lines) == 26


def test_json_has_values_as_json_can_hold_them(orders: Cli) -> None:
    select = (
        "select sum(id) whole, sum(amount)::decimal(9,2) d, 'nan'::double nan, timestamptz '2024-05-01 10:00+02' utc, "
        "[1, null] list, {'a': 1.5} struct, interval '1 month 36 hours' span, null nothing, 1 x, 2 x from shop.orders"
    )
    assert json.loads(orders("sql", select, "--fresh", "--json").stdout) == {
        "whole": 435,
        "d": "450.00",
        "nan": "NaN",
        "utc": "2024-05-01T08:00:00Z",
        "list": [1, None],
        "struct": {"a": "1.5"},
        "span": "P1M0DT129600S",
        "nothing": None,
        "x": 1,
        "x_1": 2,
    }


def test_moments_files_and_standard_input(orders: Cli) -> None:
    orders("write", "shop.orders", orders.file("more.csv", "id,amount\n99,1\n"))
    count = "select count(*) n from shop.orders"
    for as_of, expected in (("1", 30), ("2", 31), ("shop.orders=1", 30), ("shop.orders=2999-01-01", 31)):
        assert orders.json("sql", "-", "--as-of", as_of, input=count) == {"n": expected}
    assert "there is no tag 'x'" in orders.fails("sql", count, "--as-of", "shop.orders=x")
    assert "is not of the form name=value" in orders.misused("sql", count, "--as-of", "1", "--as-of", "2")
    path = str(orders.folder / "out.csv")
    assert orders.json("sql", count, "--fresh", "--output", path)["rows"] == 1
    assert "already exists" in orders.fails("sql", count, "--output", path)


def test_a_failure_is_one_line(orders: Cli) -> None:
    assert "syntax error at or near" in orders.fails("sql", "selec\n1")
    assert "did you mean shop.orders?" in orders.fails("sql", "from shop.ordrs")
    span = ("sql", "select interval 36 hour span", "--output")
    assert "parquet has no form for a column" in orders.fails(*span, str(orders.folder / "span.parquet"))
    orders(*span, str(orders.folder / "span.csv"))
    assert (orders.folder / "span.csv").read_text() == '"span"\n"P0M0DT129600S"\n'
    assert "only a SELECT" in orders.fails("sql", "install httpfs")
