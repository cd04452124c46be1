"""Many small rounds over a table whose keys change evenly: what it costs to have few files in each bucket.

`python -m benchmarks.small_rounds [--rows 2000000] [--buckets 64] [--rounds 40] [--changed 0.01 0.001]` changes that part of a table's rows
in each of some rounds, in this process: once with buckets that are rewritten when they have too many files, once with their small
files merged. It prints CPU seconds of all rounds, the bytes of data files that they wrote, how many files a bucket then has, and the CPU of a
scan of all rows, the quickest of three. It writes benchmarks/results/small_rounds.json.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import SCHEMA
from benchmarks.wide import write
from siltstone.documents.merge import run_here
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.table.completion import compacted_partition

RESULTS = Path(__file__).parent / "results/small_rounds.json"
REWRITING, MERGING = "rewriting the bucket", "merging its small files"
# With nothing to carry, no small files can be merged.
WAYS = {REWRITING: 0.0, MERGING: Settings.max_carried_fraction}


def compact(table: siltstone.Table, settings: Settings) -> float:
    """Run a round, and return its CPU seconds."""
    (source,) = table._sources()
    keys = tuple(table.version.primary_keys)
    cpu = time.process_time()
    request = Request(
        source, compacted_partition(source), keys, table.lake.root, settings=settings, max_round_bytes=1 << 40
    )
    run_session(request, run_here)
    return time.process_time() - cpu


def scan(table: siltstone.Table) -> float:
    """Read all rows, and return the CPU seconds."""
    cpu = time.process_time()
    table.scan().to_arrow()
    return time.process_time() - cpu


def measure(folder: Path, way: str, rows: int, buckets: int, rounds: int, changed: float) -> dict[str, Any]:
    """Measure one way of keeping files few."""
    table = siltstone.open(folder).create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
    settings = Settings(bucket_rows=rows // buckets, max_carried_fraction=WAYS[way])
    write(table, np.arange(rows), 0)
    compact(table, settings)
    cpu, written, files, most, actions = 0.0, 0, 0, 0, Counter[str]()
    vectors: dict[tuple[str, int], int] = {}
    for number in range(rounds):
        keys = np.random.default_rng(number).choice(rows, round(rows * changed), replace=False)
        write(table, keys, number + 1)
        cpu += compact(table, settings)
        (current,) = table.current_rounds()
        assert current.live_rows == rows
        written += current.written_bytes
        for vector in (file.deletion_vector for file in current.files):
            if vector is not None:
                vectors[vector.uri, vector.start] = vector.content_length
        files += current.file_count
        most = max(most, *(len(bucket.files) for bucket in current.buckets))
        actions += Counter(current.bucket_actions)
    return {
        "way": way,
        "rows": rows,
        "rounds": rounds,
        "changed": changed,
        "buckets": len(current.buckets),
        "cpu_seconds": round(cpu, 2),
        "written_mb": round(written / 1e6, 1),
        "vector_mb": round(sum(vectors.values()) / 1e6, 1),
        "files_a_bucket": round(files / rounds / len(current.buckets), 1),
        "most_files": most,
        "dead_rows": current.dead_rows,
        "actions": dict(actions),
        "scan_cpu_seconds": round(min(scan(table) for _ in range(3)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--buckets", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--changed", type=float, nargs="+", default=[0.01, 0.001], help="of all rows, in each round")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for changed in options.changed:
        for way in WAYS:
            folder = Path(tempfile.mkdtemp(prefix="siltstone-small-rounds-"))
            try:
                results.append(measure(folder, way, options.rows, options.buckets, options.rounds, changed))
            finally:
                shutil.rmtree(folder)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
        return
    head = ("changed", "way", "cpu_seconds", "written_mb", "vector_mb", "files_a_bucket", "most_files", "dead_rows",
            "scan_cpu_seconds")  # fmt: skip
    shown = Table(*(name.replace("_", " ") for name in head), "buckets were")
    for each in results:
        shown.add_row(
            *(str(each[name]) for name in head), ", ".join(f"{n} {what}" for what, n in each["actions"].items())
        )
    Console(width=180).print(shown)


if __name__ == "__main__":
    main()
