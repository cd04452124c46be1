"""A shop whose tables the service compacts while orders come in: `python -m examples.demo_service`, Ctrl-C ends it."""

import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from examples.demo import CITIES, say
from siltstone.cli.output import Output
from siltstone.cli.process import ServeOptions, run_service
from siltstone.lake import Lake
from siltstone.rows.job import Engine
from siltstone.service import default_address, open_database, service_settings, set_up_logs, trigger_cycle

FIRST_ORDERS = 50_000
PAUSE_SECONDS = 1.0
SCHEMAS = {
    "shop.orders": {
        "order_id": "int64",
        "city": "string",
        "status": "string",
        "amount": "double",
        "updated_at": "timestamp_utc",
    },
    "shop.customers": {"customer_id": "int64", "name": "string", "city": "string", "visits": "int64"},
    "shop.stock": {"city": "string", "item": "int64", "count": "int64"},
    "shop.payments": {"payment_id": "int64", "order_id": "int64", "amount": "double"},
}


class Shop:
    """Tables of a shop, and what happens to them; the same each time."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._chance = np.random.default_rng(7)
        self._orders = FIRST_ORDERS
        self._payments = 0

    def open(self) -> None:
        """Create the tables and take the first orders."""
        self.lake.create_table(
            "shop.orders", schema=SCHEMAS["shop.orders"], primary_keys=["order_id"], sort_keys=["updated_at"]
        )
        self.lake.create_table("shop.customers", schema=SCHEMAS["shop.customers"], primary_keys=["customer_id"])
        self.lake.create_table(
            "shop.stock", schema=SCHEMAS["shop.stock"], primary_keys=["city", "item"], partition_keys=["city"]
        )
        self.lake.create_table("shop.payments", schema=SCHEMAS["shop.payments"])
        self._write_orders(np.arange(FIRST_ORDERS), "new")
        self._write_customers(np.arange(FIRST_ORDERS // 5))
        self._write_stock(len(CITIES) * 500)

    def go_on(self) -> None:
        """Take new orders, ship and cancel old ones, be paid, and count the stock."""
        fresh = int(self._chance.integers(200, 1500))
        self._write_orders(np.arange(self._orders, self._orders + fresh), "new")
        self._orders += fresh
        changed = np.unique(self._chance.integers(0, self._orders, 2 * fresh))
        self._write_orders(changed, str(self._chance.choice(["paid", "shipped", "returned"])))
        cancelled = np.unique(self._chance.integers(0, self._orders, fresh // 10))
        self.lake.table("shop.orders").write(pa.table({"order_id": cancelled}), type="delete")
        self._write_customers(np.unique(self._chance.integers(0, FIRST_ORDERS // 5, fresh)))
        self._write_payments(changed)
        if self._chance.random() < 0.4:
            self._write_stock(200)

    def _write_orders(self, numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]", status: str) -> None:
        now_us = time.time_ns() // 1000
        rows = {
            "order_id": numbers,
            "city": CITIES[numbers % len(CITIES)],
            "status": [status] * len(numbers),
            "amount": np.round(self._chance.gamma(2.0, 20.0, len(numbers)), 2),
            "updated_at": pa.array(np.full(len(numbers), now_us), pa.timestamp("us", "UTC")),
        }
        self.lake.table("shop.orders").write(pa.table(rows))

    def _write_customers(self, numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        rows = {
            "customer_id": numbers,
            "name": [f"customer {number}" for number in numbers],
            "city": CITIES[numbers % len(CITIES)],
            "visits": self._chance.integers(1, 100, len(numbers)),
        }
        self.lake.table("shop.customers").write(pa.table(rows))

    def _write_stock(self, count: int) -> None:
        items = self._chance.integers(0, 500, count)
        cities = self._chance.choice(CITIES[:3], count)
        rows = {"city": cities, "item": items, "count": self._chance.integers(0, 50, count)}
        self.lake.table("shop.stock").write(pa.table(rows))

    def _write_payments(self, orders: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        numbers = np.arange(self._payments, self._payments + len(orders))
        self._payments += len(orders)
        rows = {
            "payment_id": numbers,
            "order_id": orders,
            "amount": np.round(self._chance.gamma(2.0, 20.0, len(orders)), 2),
        }
        self.lake.table("shop.payments").write(pa.table(rows))


def main(
    seconds: Annotated[float | None, typer.Option("--seconds", help="End by itself after this long.")] = None,
    interval: Annotated[float, typer.Option("--interval", help="Seconds from cycle to cycle.")] = 15,
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.")] = 8765,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the lake there.")] = False,
) -> None:
    """Serve a lake in a temporary folder, with a feeder that writes to its tables."""
    set_up_logs("text")
    folder = Path(tempfile.mkdtemp(prefix="siltstone-demo-service-"))
    stopping = threading.Event()
    ending = threading.Timer(seconds if seconds is not None else threading.TIMEOUT_MAX, stopping.set)
    ending.daemon = True
    ending.start()
    try:
        play(folder, stopping, interval=interval, port=port)
    finally:
        ending.cancel()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    say(f"The lake stays in {folder}." if keep else "All has ended, and the lake is gone again.")


def play(
    folder: Path, stopping: threading.Event, *, interval: float = 15, port: int = 8765, engine: Engine | None = None
) -> bool:
    """Open the shop, feed it and serve it until somebody ends it; tell whether all went well."""
    lake = Lake(folder / "lake")
    say("A shop opens: four tables, and a feeder that writes orders, payments and deletes every second.")
    shop = Shop(lake)
    shop.open()
    ask_for_a_cycle(lake)
    feeder = threading.Thread(target=feed, args=(shop, stopping), name="feeder", daemon=True)
    options = ServeOptions(
        lake.root,
        port=port,
        node="demo",
        settings=service_settings(interval=interval, tick=0.5, retention=60),
        engine=engine,
    )
    feeder.start()
    try:
        return run_service(options, Output(), stopping)
    finally:
        stopping.set()
        feeder.join()


def ask_for_a_cycle(lake: Lake) -> None:
    """Let the first cycle begin at once, instead of after the interval."""
    database = open_database(default_address(lake.root))
    trigger_cycle(database, requester="demo")
    database.close()


def feed(shop: Shop, stopping: threading.Event) -> None:
    """Write until told to stop."""
    while not stopping.wait(PAUSE_SECONDS):
        shop.go_on()


if __name__ == "__main__":
    typer.run(main)
