"""The same changes to a table of few buckets and to one of very many: what a bucket that a round touches costs.

`python -m benchmarks.wide [--buckets 128 4096] [--changes 312500] [--rows 200] [--rounds 2] [--runs 1] [--keep FOLDER]` makes a table for each number of
buckets, all with the same rows, `--rows` for each bucket of the largest. It then changes as many keys, spread evenly, in
each of several rounds in this process, and prints the CPU of the last one, what it wrote, and the ratio to the first table. It writes
benchmarks/results/wide.json. By default it is a part of 10,000,000 changes in 131,072 buckets, with 76 for each bucket as there, but a bucket
costs less than in the whole of it: nearly all of the time goes into making the files of the many buckets, a quarter of a million there.
Where there are several runs, the tables take turns, and the least CPU of each counts. With `--keep` the tables stay in a folder as they were before the last round, and another run with the same numbers finds them there.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import SCHEMA, orders
from siltstone.documents.merge import run_here
from siltstone.objects import open_objects
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.table.completion import compacted_partition

RESULTS = Path(__file__).parent / "results/wide.json"
STEP = 500_000


def compact(table: siltstone.Table, bucket_rows: int) -> float:
    """Run a round, and return its CPU seconds."""
    (source,) = table._sources()
    settings = Settings(bucket_rows=bucket_rows, max_delta_fraction=9.0, max_dead_fraction=1.0)
    keys = tuple(table.version.primary_keys)
    cpu = time.process_time()
    run_session(
        Request(source, compacted_partition(source), keys, table.lake.root, settings=settings, max_round_bytes=1 << 40),
        run_here,
    )
    return time.process_time() - cpu


def write(table: siltstone.Table, keys: "np.ndarray[Any, np.dtype[np.int64]]", seed: int) -> None:
    """Write orders of some keys as one delta."""
    rng = np.random.default_rng(seed)
    table.write(
        batch for start in range(0, len(keys), STEP) for batch in orders(keys[start : start + STEP], rng).to_batches()
    )


def make_table(folder: Path, rows: int, bucket_rows: int, changes: int, rounds: int) -> None:
    """Make a table whose last changes wait."""
    table = siltstone.open(folder).create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
    write(table, np.arange(rows), 0)
    for number in range(rounds):
        compact(table, bucket_rows)
        write(table, np.random.default_rng(number).choice(rows, changes, replace=False), number + 1)


def measure(folder: Path, rows: int, bucket_rows: int, changes: int) -> dict[str, Any]:
    """Measure the round that absorbs the last changes of a table."""
    table = siltstone.open(folder).table("shop.orders")
    before = {each.path for each in open_objects(str(folder)).list_objects("", recursive=True)}
    seconds = compact(table, bucket_rows)
    after = open_objects(str(folder)).list_objects("", recursive=True)
    (current,) = table.current_rounds()
    assert current.live_rows == rows
    return {
        "buckets": len(current.buckets),
        "rows": rows,
        "changes": changes,
        "round": current.round_id,
        "cpu_seconds": round(seconds, 2),
        "actions": dict(current.bucket_actions),
        "objects": len({each.path for each in after} - before),
    }


def measure_kept(made: Path, rows: int, buckets: int, changes: int, rounds: int) -> dict[str, Any]:
    """Measure a copy of a table, of links to its files, which is made unless it is there."""
    # A bucket splits when it has more than twice as many rows, so that this makes as many buckets as are asked for.
    bucket_rows = rows // buckets
    if not made.exists():
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        make_table(part, rows, bucket_rows, changes, rounds)
        part.rename(made)
    copy = Path(tempfile.mkdtemp(prefix="copy-", dir=made.parent)) / made.name
    try:
        shutil.copytree(made, copy, copy_function=os.link)
        return measure(copy, rows, bucket_rows, changes)
    finally:
        shutil.rmtree(copy.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--changes", type=int, default=312_500)
    parser.add_argument("--rows", type=int, default=200, help="rows of a bucket in the largest table")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of changes; the last one counts")
    parser.add_argument("--runs", type=int, default=1, help="how often each table is measured")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where tables stay for another run")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    rows = options.rows * max(options.buckets)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="siltstone-wide-"))
    try:
        runs = [
            [
                measure_kept(
                    folder / f"{buckets}-{rows}-{options.changes}-{options.rounds}",
                    rows,
                    buckets,
                    options.changes,
                    options.rounds,
                )
                for buckets in options.buckets
            ]
            for _ in range(options.runs)
        ]
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    results = [min(several, key=lambda each: float(each["cpu_seconds"])) for several in zip(*runs, strict=True)]
    first = results[0]
    for each in results:
        more = each["cpu_seconds"] - first["cpu_seconds"]
        each["ratio"] = round(each["cpu_seconds"] / first["cpu_seconds"], 2)
        each["ms_a_bucket"] = round(1000 * more / max(1, each["buckets"] - first["buckets"]), 3)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
        return
    shown = Table("buckets", "rows", "changes", "CPU s", "ratio", "ms a bucket", "objects")
    for each in results:
        names = ("buckets", "rows", "changes", "cpu_seconds", "ratio", "ms_a_bucket", "objects")
        shown.add_row(*(f"{each[name]:,}" for name in names))
    Console().print(shown)


if __name__ == "__main__":
    main()
