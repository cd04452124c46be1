"""From a PostgreSQL table to a compacted one: Debezium captures changes, and each batch of them is one commit.

`python -m examples.postgres_cdc` starts a PostgreSQL server of its own, changes a table while it is captured, and shows that both
have the same rows. `--port 5432 --tables public.orders --root my-lake` captures tables of your own server, which must have
`wal_level=logical`, until Ctrl-C.
"""

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import LiteralString, TypeAlias

import psycopg

import siltstone
from examples.debezium import DebeziumFeed, logical_postgres, postgres_settings
from siltstone.errors import NotInstalledError

Connection: TypeAlias = "psycopg.Connection[tuple[object, ...]]"

_CHANGES: tuple[LiteralString, ...] = (
    "INSERT INTO orders SELECT n, 'new', n * 1.25, repeat('note ' || n || ' ', 500) FROM generate_series(1, 1000) n",
    "UPDATE orders SET status = 'paid', amount = amount + 1 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id % 10 = 0",
    # Columns with large values that did not change are not sent; they keep what they had.
    "UPDATE orders SET status = 'sent' WHERE id <= 50",
    "UPDATE orders SET id = id + 100000 WHERE id <= 5",
    "ALTER TABLE orders ADD COLUMN city text",
    "INSERT INTO orders VALUES (2001, 'new', 9.99, 'the last one', 'Oslo')",
)
_END = "SELECT pg_logical_emit_message(true, 'end', 'end')"


def main() -> None:
    """Capture from the server that the arguments name, or show how it works on one of our own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--root", default=os.environ.get("SILTSTONE_ROOT"), help="where the lake is; else a temporary folder"
    )
    parser.add_argument("--port", type=int, help="the port of your server on this machine; else one is started")
    parser.add_argument("--tables", default="public.orders", help="which tables to capture")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = options.root or stack.enter_context(tempfile.TemporaryDirectory())
        lake = siltstone.open(Path(root, "lake") if options.root is None else root)
        offsets = Path(
            stack.enter_context(tempfile.TemporaryDirectory()) if options.port is None else ".siltstone-feed"
        )
        try:
            if options.port is None:
                demonstrate(lake, offsets)
            else:
                with contextlib.suppress(KeyboardInterrupt):
                    capture(lake, postgres_settings(options.port, options.tables), offsets)
        except NotInstalledError as missing:
            raise SystemExit(str(missing)) from missing


def capture(
    lake: siltstone.Lake, settings: dict[str, str], folder: Path, then: Callable[[], object] = lambda: None
) -> None:
    """Write what Debezium captures to tables `shop.…`, a batch at a time, until the end is marked; after the first, call `then`.

    A batch that was written, but not confirmed, comes again: then its rows are there already, by their source positions.
    """
    with DebeziumFeed(settings, folder) as feed:
        for number, events in enumerate(feed.batches()):
            for written in lake.write_changes(b"".join(events), "debezium", into="shop.{table}", create=True):
                print(f"  {written.table}: {written.events:,} events at position {written.stream_position}", flush=True)
            if number == 0:
                then()
            if any(b'"prefix":"end"' in event for event in events):
                return


def demonstrate(lake: siltstone.Lake, folder: Path) -> None:
    """Change a table of our own server while it is captured, compact it, and compare."""
    with logical_postgres() as port, connect(port) as database:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, amount numeric(10, 2), note text)")
        database.execute("INSERT INTO orders VALUES (0, 'from before', 1.00, 'is part of the snapshot')")
        print("PostgreSQL runs; Debezium starts, and takes a snapshot first.", flush=True)
        capture(lake, postgres_settings(port, "public.orders"), folder, lambda: change(database))
        orders = lake.table("shop.orders")
        done = orders.compact(engine="local")
        columns = ("id", "status", "amount", "note", "city")
        found = orders.scan(columns).to_arrow().sort_by("id").to_pylist()
        rows = database.execute("SELECT id, status, amount, note, city FROM orders ORDER BY id").fetchall()
        assert found == [dict(zip(columns, row, strict=True)) for row in rows], "the table differs from PostgreSQL's"
        print(
            f"shop.orders has the {done.live_rows:,} rows that PostgreSQL has, large values and changed keys included."
        )


def change(database: Connection) -> None:
    """Change the table, and mark the end."""
    for statement in (*_CHANGES, _END):
        database.execute(statement)


def connect(port: int) -> Connection:
    """Connect to the server on this machine."""
    return psycopg.connect(host="127.0.0.1", port=port, user="postgres", dbname="postgres", autocommit=True)


if __name__ == "__main__":
    main()
