import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from siltstone.documents.merge import run_here
from tests.unit.cli.command_line import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def orders(cli: Cli) -> Callable[..., Cli]:
    """A lake that has the table shop.orders, made with the given options."""

    def make(*options: str, **columns: str) -> Cli:
        schema = columns or {"order_id": "int64", "customer": "string", "amount": "decimal(10,2)", "day": "date"}
        cli("table", "create", "shop.orders", "--schema", cli.file("schema.json", json.dumps(schema)), *options)
        return cli

    return make


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Run the tasks of rounds in this process; tells with which settings Spark would have been started."""
    started: list[Mapping[str, str]] = []

    def start(*, conf: Mapping[str, str], is_short: bool) -> object:
        assert is_short, "a command ends soon"
        started.append(conf)
        return object()

    monkeypatch.setattr("siltstone.spark.session.local_session", start)
    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", lambda *_: run_here)
    return started


@pytest.fixture
def changed_orders(orders: Callable[..., Cli], without_spark: list[Mapping[str, str]]) -> Cli:
    """A lake whose shop.orders has 100 rows, compacted, and two deltas since: five changes, and two deletes."""
    cli = orders("--key", "order_id")
    many = "order_id,customer,amount,day\n" + "".join(f"{n},c{n % 7},{n}.50,2024-05-01\n" for n in range(100))
    cli("write", "shop.orders", cli.file("many.csv", many))
    cli("compact", "shop.orders")
    changes = "".join(f'{{"order_id": {n}, "customer": "new", "amount": 1}}\n' for n in (1, 2, 2, 100, 101))
    cli("write", "shop.orders", cli.file("changes.jsonl", changes))
    cli("write", "shop.orders", cli.file("gone.csv", "order_id\n3\n101\n"), "--type", "delete")
    without_spark.clear()
    return cli
