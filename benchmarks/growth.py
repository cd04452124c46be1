"""The same changes to tables of several sizes, in this process: how the cost of a minor round grows with the table.

`python -m benchmarks.growth [--rows 1000000 2000000 4000000] [--changes 100000] [--new 0]` prints, for each size, seconds on
the clock and of CPU: for the first load, for the changes, and for as many new keys as `--new` says. Divided by the rows that
changed and by those of all touched buckets, they tell what a row costs. A round runs twice, and the quicker one counts.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import SCHEMA, Changes, orders

STEP = 500_000


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return seconds on the clock and of CPU."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def load(table: siltstone.Table, first: int, rows: int) -> None:
    """Write some orders as one delta."""
    rng = np.random.default_rng(first)
    starts = range(first, first + rows, STEP)
    table.write(
        batch
        for start in starts
        for batch in orders(np.arange(start, min(start + STEP, first + rows)), rng).to_batches()
    )


def minor(table: siltstone.Table) -> tuple[float, float]:
    """Compact twice, with the table rolled back between, and return the quicker run."""
    (before,) = table.current_rounds()
    first = timed(lambda: table.compact(engine="local"))
    table.rollback(before.round_id)
    return min(first, timed(lambda: table.compact(engine="local")))


def measure(folder: Path, rows: int, changes: int, new: int) -> dict[str, Any]:
    """Measure one size."""
    table = siltstone.open(folder).create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
    load(table, 0, rows)
    result: dict[str, Any] = {"rows": rows, "load": timed(lambda: table.compact(engine="local"))}
    (loaded,) = table.current_rounds()
    Changes(rows, changes, 1).write_to(table)
    result["changes"] = minor(table)
    (current,) = table.current_rounds()
    result["buckets"], result["actions"] = len(current.buckets), dict(current.bucket_actions)
    indices = [file.index_length or 12 * file.record_count for file in current.files]
    result["index bytes a row"] = sum(indices) / current.record_count
    if new:
        load(table, 2 * 10**9, new)
        result["new keys"] = minor(table)
        result["actions, new keys"] = dict(table.current_rounds()[0].bucket_actions)
    assert table.current_rounds()[0].live_rows >= loaded.live_rows // 2
    return result


def show(results: list[dict[str, Any]], changes: int, new: int) -> None:
    shown = Table("rows", "buckets", "load s", "changes s", "CPU s", "µs a change", "ns a stored row", "new keys CPU s")
    for each in results:
        cpu = each["changes"][1]
        shown.add_row(
            f"{each['rows']:,}",
            str(each["buckets"]),
            f"{each['load'][0]:.2f}",
            f"{each['changes'][0]:.2f}",
            f"{cpu:.2f}",
            f"{cpu / changes * 1e6:.2f}",
            f"{cpu / each['rows'] * 1e9:.1f}",
            f"{each['new keys'][1]:.2f}" if new else "",
        )
    Console().print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 2_000_000, 4_000_000])
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--new", type=int, default=0, help="new keys to add after the changes")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    results = []
    for rows in options.rows:
        folder = Path(tempfile.mkdtemp(prefix="siltstone-growth-"))
        try:
            results.append(measure(folder, rows, options.changes, options.new))
        finally:
            shutil.rmtree(folder)
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        show(results, options.changes, options.new)


if __name__ == "__main__":
    main()
