import json
from collections.abc import Callable
from pathlib import Path

import pytest

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
