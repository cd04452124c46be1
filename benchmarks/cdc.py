"""Debezium events into a delta: events per second of CPU, from the bytes of a file to the commit.

`python -m benchmarks.cdc [--events 200000] [--json]` prints a table and writes benchmarks/results/cdc.json. Time is that of the
process, user and system, of all its threads; the best of three runs, since other work on the machine only adds.
"""

import argparse
import base64
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import siltstone
from siltstone.cdc import SOURCE_POSITION, Events, Target, decode
from siltstone.lake import Table as LakeTable

RESULTS = Path(__file__).parent / "results/cdc.json"
RUNS = 3
SCHEMA = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("created_at", pa.timestamp("us")),
        ("paid", pa.bool_()),
        (SOURCE_POSITION, pa.binary()),
    ]
)
FIELDS: list[dict[str, Any]] = [
    {"type": "int64", "optional": False, "field": "order_id"},
    {"type": "string", "optional": True, "field": "customer"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        "field": "amount",
    },
    {"type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp", "version": 1, "field": "created_at"},
    {"type": "boolean", "optional": True, "field": "paid"},
]


def event(number: int) -> dict[str, Any]:
    op = "d" if number % 20 == 19 else "u" if number % 3 else "c"
    row = {
        "order_id": number % 50_000,
        "customer": f"customer {number % 977}",
        "amount": base64.b64encode((number * 7).to_bytes(5, "big", signed=True)).decode(),
        "created_at": 1_704_164_645_000_000 + number,
        "paid": number % 2 == 0,
    }
    source = {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_704_164_645_000,
        "snapshot": "false",
        "db": "shop",
        "sequence": f'["{24023128 + number}","{24023160 + number}"]',
        "ts_us": 1_704_164_645_000_000 + number,
        "ts_ns": (1_704_164_645_000_000 + number) * 1000,
        "schema": "public",
        "table": "orders",
        "txId": 700 + number,
        "lsn": 24023160 + number,
        "xmin": None,
    }
    before, after = (row, None) if op == "d" else (None, row)
    return {
        "before": before,
        "after": after,
        "source": source,
        "transaction": None,
        "op": op,
        "ts_ms": 1_704_164_645_001,
    }


def forms(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield the same events in each form that files have them in."""
    events = [event(number) for number in range(count)]
    yield "values without schemas", b"\n".join(map(orjson.dumps, events)) + b"\n"
    keyed = ({"key": {"order_id": (e["after"] or e["before"])["order_id"]}, "value": e} for e in events)
    yield "keys and values without schemas", b"\n".join(map(orjson.dumps, keyed)) + b"\n"
    row = {"type": "struct", "fields": FIELDS, "optional": True, "name": "shop.public.orders.Value"}
    parts: list[dict[str, Any]] = [{**row, "field": "before"}, {**row, "field": "after"}]
    parts += [{"type": "struct", "fields": [], "field": "source"}, {"type": "string", "field": "op"}]
    schema = {"type": "struct", "fields": parts, "optional": False, "name": "shop.public.orders.Envelope"}
    yield "values with schemas", b"\n".join(orjson.dumps({"schema": schema, "payload": e}) for e in events) + b"\n"


def cpu_seconds(work: Any) -> float:
    seconds = []
    for _ in range(RUNS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def new_table(folder: str, number: int) -> LakeTable:
    return siltstone.open(folder).create_table(
        f"shop.orders_{number}",
        schema=SCHEMA,
        primary_keys=["order_id"],
        sort_keys=[SOURCE_POSITION],
        merge_engine="partial_update",
    )


def measure(count: int) -> list[dict[str, Any]]:
    measured = []
    target = Target(SCHEMA, ["order_id"])
    with tempfile.TemporaryDirectory() as folder:
        for number, (form, data) in enumerate(forms(count)):
            table = new_table(folder, number)
            decoded = cpu_seconds(lambda data=data: decode(Events.of_lines(data), "debezium", target))
            written = cpu_seconds(lambda data=data, table=table: table.write_changes(data, "debezium"))
            measured.append(
                {
                    "form": form,
                    "events": count,
                    "bytes_per_event": len(data) // count,
                    "decoded_per_cpu_second": round(count / decoded),
                    "written_per_cpu_second": round(count / written),
                }
            )
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    measured = measure(given.events)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    if given.json:
        json.dump(measured, sys.stdout, indent=1)
        return
    table = Table("events", "bytes each", "decoded / CPU s", "into a delta / CPU s")
    for each in measured:
        numbers = (each["bytes_per_event"], each["decoded_per_cpu_second"], each["written_per_cpu_second"])
        table.add_row(each["form"], *(f"{number:,}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
