"""A lake from nothing in a few seconds: `python -m examples.demo`, with `--keep` to look around afterwards."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from siltstone.cli import tables, writing
from siltstone.cli.output_text import TextOutput
from siltstone.cli.rehearsal import WriteRules
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
    """Create a table, write three deltas, and show what became of them."""
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


def say(line: str) -> None:
    """Tell what happens next."""
    typer.secho(f"\n{line}", bold=True)


def _file(folder: Path, name: str, content: str) -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


if __name__ == "__main__":
    typer.run(main)
