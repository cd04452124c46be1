"""A small shop in under a minute: `python -m examples.demo`, with `--keep` to look around afterwards."""

import datetime
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated

import duckdb
import numpy as np
import pyarrow as pa
import typer

from siltstone.cli import rounds, rows, tables
from siltstone.cli.options import Shell
from siltstone.lake import Lake, Table
from siltstone.text import format_count

NAME = "shop.orders"
FIRST_ORDERS = 200_000
MORE_ORDERS = 30_000
WATCHED_ORDER = 4711
CITIES = np.array(["Berlin", "Lagos", "Lima", "Oslo", "Osaka", "Porto", "Quito", "Turin"])
OPENED = datetime.datetime(2024, 5, 1, 8, tzinfo=datetime.UTC)
REVENUE = """\
SELECT city, count(*) AS orders, round(sum(amount), 2) AS revenue
FROM orders WHERE status <> 'new' GROUP BY city ORDER BY revenue DESC LIMIT 5"""


def main(keep: Annotated[bool, typer.Option("--keep", help="Leave the lake there.")] = False) -> None:
    """Create a lake in a temporary folder and use it."""
    folder = Path(tempfile.mkdtemp(prefix="siltstone-demo-"))
    started = time.perf_counter()
    try:
        play(folder)
    finally:
        if not keep:
            shutil.rmtree(folder)
    seconds = f"{time.perf_counter() - started:.0f} seconds"
    if keep:
        say(f"That took {seconds}. The lake stays there; look around with")
        for command in ("table show", "deltas", "rounds", "plan", "fsck --deep"):
            typer.echo(f"  siltstone --root {folder / 'lake'} {command} {NAME}")
    else:
        say(f"That took {seconds}, and the lake is gone again; `python -m examples.demo --keep` leaves it there.")


def play(folder: Path) -> None:
    """Open the shop, feed ten deltas, compact them in three rounds, and ask what became of them."""
    lake, shop = Lake(folder / "lake"), Shop()
    open_shop(lake)
    for day in (shop.first_day, shop.second_day, shop.third_day):
        day(lake.table(NAME))
    look_around(lake)


def open_shop(lake: Lake) -> None:
    """Create the table."""
    say("A shop keeps its orders in a table: one row for each order, and of two versions the later one counts.")
    run("table create shop.orders --key order_id --sort-key updated_at --schema orders.json")
    schema = {
        "order_id": "int64",
        "city": "string",
        "status": "string",
        "amount": "double",
        "updated_at": "timestamp_utc",
    }
    lake.create_table(NAME, schema=schema, primary_keys=["order_id"], sort_keys=["updated_at"])
    tables.show(Shell(lake.root), NAME)


class Shop:
    """What happens in the shop, day by day; the same each time."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(7)
        self._amounts = np.round(self._chance.gamma(2.0, 20.0, FIRST_ORDERS + MORE_ORDERS), 2)

    def first_day(self, table: Table) -> None:
        """Open with many orders, of which some are paid."""
        say(f"Day 1. The first {FIRST_ORDERS:,} orders come in, then two batches of payments.")
        table.write(self._orders(np.arange(FIRST_ORDERS), "new", hour=0))
        for hour in (2, 4):
            table.write(self._orders(self._some(20_000), "paid", hour=hour))
        compact(table)

    def second_day(self, table: Table) -> None:
        """Ship, cancel, and hear of things late."""
        say("Day 2. Parcels leave; 2,000 orders are cancelled; 5,000 payments arrive late, with times of yesterday.")
        table.write(self._orders(self._some(5_000), "shipped", hour=26))
        table.write(self._orders(self._some(5_000), "paid", hour=1))
        cancelled = self._chance.choice(FIRST_ORDERS, 2_000, replace=False)
        table.write(pa.table({"order_id": cancelled[cancelled != WATCHED_ORDER]}), type="delete")
        compact(table)

    def third_day(self, table: Table) -> None:
        """Grow, learn a column, and take over the changes of a database as they are."""
        say(
            f"Day 3. {MORE_ORDERS:,} new orders, a column nobody had before, a database's own log of changes, more cancelled."
        )
        table.write(self._orders(np.arange(FIRST_ORDERS, FIRST_ORDERS + MORE_ORDERS), "new", hour=48))
        gifts = self._orders(self._some(5_000), "paid", hour=50)
        table.write(gifts.append_column("gift", pa.array(self._chance.random(len(gifts)) < 0.5)))
        changes = self._orders(self._some(10_000), "returned", hour=52)
        operations = np.where(self._chance.random(len(changes)) < 0.1, "d", "u")
        operations[changes["order_id"].to_numpy() == WATCHED_ORDER] = "u"
        table.write(changes.append_column("op", pa.array(operations)), op_column="op")
        table.write(pa.table({"city": ["Turin"], "status": ["new"]}), type="delete", delete_columns=["city", "status"])
        compact(table)

    def _some(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        chosen = self._chance.choice(FIRST_ORDERS, count, replace=False)
        return np.unique(np.append(chosen[1:], WATCHED_ORDER))

    def _orders(self, numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]", status: str, *, hour: int) -> pa.Table:
        start = int((OPENED + datetime.timedelta(hours=hour)).timestamp())
        times = (start + self._chance.integers(0, 3600, len(numbers))) * 1_000_000
        return pa.table(
            {
                "order_id": numbers,
                "city": CITIES[numbers % len(CITIES)],
                "status": [status] * len(numbers),
                "amount": self._amounts[numbers],
                "updated_at": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )


def compact(table: Table) -> None:
    """Compact what is new, and show what that did."""
    run(f"compact {NAME}")
    rounds.compact(Shell(table.lake.root), NAME)


def look_around(lake: Lake) -> None:
    """Show the deltas and rounds, one key, and the answer to a question."""
    shell, key = Shell(lake.root), [f"order_id={WATCHED_ORDER}"]
    deltas = lake.table(NAME).deltas()
    changes = sum(delta.manifest.record_count for delta in deltas)
    say(f"{changes:,} changes came in {format_count(len(deltas), 'delta')}, each one commit:")
    run(f"deltas {NAME}")
    rows.deltas(shell, NAME)

    say(
        "Three rounds took them in. The later ones wrote beside the files of the first, and marked which rows are dead:"
    )
    run(f"rounds {NAME}")
    rounds.rounds(shell, NAME)

    say("Why is an order as it is? Every delta that touched it, in order; the late one could do no harm:")
    run(f"explain-key {NAME} order_id={WATCHED_ORDER}")
    rows.explain_key(shell, NAME, key)

    say("The same row, found through the index of keys by reading a few pages:")
    run(f"lookup {NAME} order_id={WATCHED_ORDER}")
    rows.lookup(shell, NAME, key)

    say("And any engine that reads Arrow can ask questions; DuckDB, for one:")
    typer.echo(REVENUE)
    with duckdb.connect() as connection:
        connection.register("orders", lake.table(NAME).to_arrow(["city", "status", "amount"]))
        typer.echo(str(connection.sql(REVENUE)).rstrip())


def say(line: str) -> None:
    """Tell what happens next."""
    typer.secho(f"\n{line}", bold=True)


def run(command: str) -> None:
    """Show the command that does what follows."""
    typer.secho(f"$ siltstone {command}", fg=typer.colors.CYAN)


if __name__ == "__main__":
    typer.run(main)
