"""Change data capture from start to end: events of a database become a table, round by round.

`runner.py local examples/compact_cdc.py --script-args '{"--root": "s3://bucket/lake"}'`; without a root, the lake is in
a temporary folder that is removed afterwards.
"""

import argparse
import os
import tempfile
import uuid

import pyarrow as pa

import siltstone
from siltstone.spark import local_session

SCHEMA = {"id": "int64", "name": "string", "balance": "decimal(12,2)", "changed_at": "int64"}

# What a connector such as Debezium delivers: the operation, the row, and when the database changed it.
SNAPSHOT = [
    {"op": "r", "id": 1, "name": "Ada", "balance": "10.00", "changed_at": 100},
    {"op": "r", "id": 2, "name": "Ben", "balance": "20.00", "changed_at": 100},
    {"op": "r", "id": 3, "name": "Zoë", "balance": "30.00", "changed_at": 100},
]
EVENTS = [
    {"op": "u", "id": 1, "name": "Ada", "balance": "15.50", "changed_at": 110},
    {"op": "d", "id": 3, "name": None, "balance": None, "changed_at": 120},
    {"op": "c", "id": 4, "name": "Eve", "balance": "0.00", "changed_at": 130},
]
# The network delivered these late: both are older than what the table knows, and change nothing.
LATE_EVENTS = [
    {"op": "u", "id": 1, "name": "Ada", "balance": "12.00", "changed_at": 105},
    {"op": "u", "id": 3, "name": "Zoë", "balance": "31.00", "changed_at": 115},
]


def main() -> None:
    """Run in the root that the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default=os.environ.get("SILTSTONE_ROOT"))
    options, _ = parser.parse_known_args()
    if options.root:
        compact_events(options.root)
        return
    with tempfile.TemporaryDirectory() as folder:
        compact_events(folder)


def compact_events(root: str) -> None:
    """Write three batches of events, compact after each, and show the table."""
    spark = local_session("compact-cdc")
    name = f"bank.accounts_{uuid.uuid4().hex[:8]}"
    accounts = siltstone.open(root).create_table(name, schema=SCHEMA, primary_keys=["id"], sort_keys=["changed_at"])
    for number, events in enumerate((SNAPSHOT, EVENTS, LATE_EVENTS)):
        # The batch's number makes it safe to write it again after a failure.
        accounts.write(as_rows(events), op_column="op", idempotency=("compact-cdc", number))
        (done,) = accounts.compact(spark=spark)
        print(f"after batch {number}, compacted up to position {done.rounds[-1].high_watermark}:")
        for row in accounts.to_arrow().sort_by("id").to_pylist():
            print(f"  {row['id']} {row['name']} {row['balance']}")


def as_rows(events: list[dict[str, object]]) -> pa.Table:
    """Return events as rows with the types of the table."""
    table = pa.Table.from_pylist(events)
    balance = table.column("balance").cast(pa.decimal128(12, 2))
    return table.set_column(table.schema.get_field_index("balance"), "balance", balance)


if __name__ == "__main__":
    main()
