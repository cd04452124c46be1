"""A lake from nothing in under a minute: `python -m examples.demo`, with `--keep` to look around afterwards."""

import datetime
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

from siltstone.cli import compacting, reading, rounds, tables, writing
from siltstone.cli.compaction_commands import watched_progress
from siltstone.cli.output_text import TextOutput
from siltstone.cli.rehearsal import WriteRules
from siltstone.cli.shell import Shell
from siltstone.lake import Lake
from siltstone.log import inspection

TABLE = "shop.orders"

ORDERS = """\
order_id,customer,zip,amount,updated_at
1,Ada,01234,12.50,2024-05-01T08:00:00Z
2,"Ben, Jr.",90210,7.00,2024-05-01T08:05:00Z
3,Zoë,75001,99.90,2024-05-01T08:10:00Z
4,Dan,10115,3.20,2024-05-01T08:15:00Z
"""
CHANGES = """\
{"op": "u", "order_id": 2, "customer": "Ben, Jr.", "zip": "90210", "amount": 8.5, "updated_at": "2024-05-01T09:00:00Z"}
{"op": "c", "order_id": 5, "customer": "Eve", "zip": "00100", "amount": 42, "updated_at": "2024-05-01T09:01:00Z", "gift": true}
{"op": "d", "order_id": 4, "updated_at": "2024-05-01T09:02:00Z"}
"""
CUSTOMERS = ("Ada", "Ben, Jr.", "Zoë", "Dan", "Eve", "Fay")
BULK_ORDERS = 40_000
GONE = """\
customer
Ada
"""


def main(keep: Annotated[bool, typer.Option("--keep", help="Leave the lake there.")] = False) -> None:
    """Create a lake in a temporary folder and use it."""
    folder = Path(tempfile.mkdtemp(prefix="siltstone-demo-"))
    try:
        play(folder)
    finally:
        if keep:
            say(f"The lake stays in {folder / 'lake'}; try: siltstone --root {folder / 'lake'} table list")
        else:
            shutil.rmtree(folder)


def play(folder: Path) -> None:
    """Create a table, feed it, compact it in rounds, and show what became of it."""
    write_deltas(folder)
    compact_in_rounds(folder)


def write_deltas(folder: Path) -> None:
    """Create a table, and write three deltas by hand."""
    lake, output = Lake(folder / "lake"), TextOutput()
    orders, changes, gone = (
        _file(folder, name, content)
        for name, content in (("orders.csv", ORDERS), ("changes.jsonl", CHANGES), ("gone.csv", GONE))
    )

    say("1. A table takes its columns from a CSV file. Zip codes stay text, since some start with a zero.")
    schema = writing.schema_of_file(orders)
    output.changed(tables.create_table(lake, TABLE, schema=schema, primary_keys=["order_id"], sort_keys=["updated_at"]))

    say("2. Three deltas, each committed by one atomic creation of a log batch: all of it, or nothing.")
    output.written(writing.write_files(lake, TABLE, [orders]))
    by_operation = WriteRules(op_column="op", idempotency=("demo", 1))
    output.written(writing.write_files(lake, TABLE, [changes], by_operation))
    output.written(writing.write_files(lake, TABLE, [gone], WriteRules("delete", delete_columns=["customer"])))

    say("3. The second one carried an idempotency id, so writing it again does no harm.")
    output.written(writing.write_files(lake, TABLE, [changes], by_operation))

    say("4. What the stream of the table holds now:")
    output.deltas(TABLE, writing.list_deltas(lake, TABLE))

    say("5. Behind it is a log: one small file per commit, compacted as it grows.")
    details = tables.describe_table(lake, TABLE)
    output.log(inspection.show(f"{details.folder}/log"))


def compact_in_rounds(folder: Path) -> None:
    """Feed many changes, compact twice, and read."""
    lake, output = Lake(folder / "lake"), TextOutput()
    table, chance = lake.table(TABLE), random.Random(7)

    say(f"6. {BULK_ORDERS:,} more orders come in, and the first round compacts all there is, on Spark in this process.")
    table.write(_orders(range(100, 100 + BULK_ORDERS), chance, day=2))
    compact(lake, output)

    say("7. Changes follow: updates, among them late ones with older times, and orders that are deleted.")
    table.write(_orders(chance.sample(range(100, 100 + BULK_ORDERS), 2_000), chance, day=3))
    table.write(_orders(chance.sample(range(100, 100 + BULK_ORDERS), 500), chance, day=1))
    gone = chance.sample(range(100, 100 + BULK_ORDERS), 300)
    table.write(pa.table({"order_id": gone}), type="delete")
    compact(lake, output)

    say("8. The second round wrote a file of new rows beside the old one, and marked which of the old ones are dead:")
    output.rounds(TABLE, rounds.list_table_rounds(lake, TABLE))

    say("9. One row, found by its key through the index:")
    key = {"order_id": "2"}
    output.found(TABLE, key, reading.look_up(lake, TABLE, key), 0)

    say("10. The most expensive orders, and the first ones as they were before any change:")
    output.rows(TABLE, reading.read_table(lake, TABLE, where="amount >= 99.95", limit=5), None)
    output.rows(TABLE, reading.read_table(lake, TABLE, as_of="1", limit=4), None)


def compact(lake: Lake, output: TextOutput) -> None:
    """Compact what is new, and show what that did."""
    with watched_progress(Shell()) as tell:
        compacted = compacting.compact_table(lake, TABLE, tell=tell)
    output.compacted(compacted)


def _orders(numbers: Sequence[int], chance: random.Random, *, day: int) -> pa.Table:
    start = datetime.datetime(2024, 5, day, tzinfo=datetime.UTC)
    return pa.table(
        {
            "order_id": numbers,
            "customer": [chance.choice(CUSTOMERS) for _ in numbers],
            "zip": [f"{chance.randrange(100_000):05}" for _ in numbers],
            "amount": [chance.randrange(10_000) / 100 for _ in numbers],
            "updated_at": [start + datetime.timedelta(seconds=chance.randrange(86_400)) for _ in numbers],
        }
    )


def say(line: str) -> None:
    """Tell what happens next."""
    typer.secho(f"\n{line}", bold=True)


def _file(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    typer.run(main)
