"""How long a person waits for a first compaction from a cold shell: with our session, with an untuned one, and for the command.

`python -m benchmarks.cold_start [--json]` runs each in a process of its own, in turn, and prints the phases; of the command
`siltstone compact`, the time until its process has ended.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMAND = "siltstone compact"
KINDS = ("untuned", "siltstone", COMMAND)
RUNS = 3
DELTAS = 10
ROWS = 30_000


def fill(root: str) -> None:
    import numpy as np

    import siltstone
    from benchmarks.orders import SCHEMA, orders

    rng = np.random.default_rng(0)
    table = siltstone.open(root).create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
    for _ in range(DELTAS):
        table.write(orders(rng.integers(0, 200_000, ROWS), rng))


def compact(kind: str, root: str, started: float) -> dict[str, float]:
    """Compact in this process; `started` is when it was asked for, by the clock on the wall."""
    import siltstone
    from siltstone.spark import local_session

    table = siltstone.open(root).table("shop.orders")
    imported = time.time()
    if kind == "untuned":
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        spark = SparkSession.builder.master("local[*]").getOrCreate()
    else:
        spark = local_session(is_short=True)
    ready = time.time()
    table.compact(spark=spark)
    done = time.time()
    return {"import": imported - started, "session": ready - imported, "first round": done - ready,
            "total": done - started}  # fmt: skip


def measure() -> dict[str, dict[str, float]]:
    """Return the phases of the quickest of some runs of each kind; a run before them makes the class archive."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="siltstone-cold-") as folder:
        environment = {**os.environ, "SILTSTONE_CACHE": f"{folder}/cache"}
        for number, kind in enumerate(("siltstone", *KINDS * RUNS)):
            root = f"{folder}/lake-{number}"
            fill(root)
            begun = time.time()
            options = ["--kind", kind, "--root", root, "--started", str(begun)]
            command = [sys.executable, "-m", "benchmarks.cold_start", *options]
            if kind == COMMAND:
                command = [str(Path(sys.executable).parent / "siltstone"), "--root", root, "compact", "shop.orders"]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            phases = {"total": time.time() - begun} if kind == COMMAND else json.loads(done.stdout.splitlines()[-1])
            if number:
                runs[kind].append(phases)
            else:
                wait_for_archive(Path(folder, "cache"))
    return {kind: min(found, key=lambda run: run["total"]) for kind, found in runs.items()}


def wait_for_archive(cache: Path) -> None:
    """Let the JVM of the run before write its class archive, and the archive settle."""
    deadline = time.time() + 60
    while not list(cache.glob("*.coming")) and time.time() < deadline:
        time.sleep(0.5)
    time.sleep(15)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--root")
    parser.add_argument("--started", type=float)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    if options.kind:
        sys.stdout.write(json.dumps(compact(options.kind, options.root, options.started)) + "\n")
        return
    result: dict[str, Any] = measure()
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for kind, phases in result.items():
        sys.stdout.write(f"{kind:17} " + ", ".join(f"{name} {each:.1f} s" for name, each in phases.items()) + "\n")


if __name__ == "__main__":
    main()
