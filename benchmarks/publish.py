"""What publishing costs: a version of few changes among many files, and versions of large rounds beside these.

`python -m benchmarks.publish [--files 10000] [--rows 5000000] [--changes 500000]` publishes a table of so many files after rounds that touch ten of them,
and says how many files the version names, and how long it took beyond reading what there is: the published state and the table's. Then it publishes a table of so
many rows after a minor round of so many changes, and after ones that rewrite all, without and with a change data feed, for which changes are written, too. Rounds run on Spark. It writes
benchmarks/results/publish.json.
"""

import argparse
import json
import shutil
import statistics
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
from benchmarks.orders import SCHEMA, Changes, create, save_base
from benchmarks.small_rounds import compact
from benchmarks.wide import write
from siltstone.catalog import main as catalog
from siltstone.publish.cut import take_cut
from siltstone.publish.delta_log import DeltaLog
from siltstone.publish.iceberg_state import read_state
from siltstone.rows.job import Settings
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results/publish.json"
FORMATS = ("delta", "iceberg")
# Nine that rows die in, and one that is new.
TOUCHED = 10
ROUNDS = 7
ROWS_PER_FILE = 20
MINOR, REWRITING, WITH_FEED = "minor", "rewriting", "rewriting, with a change data feed"


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def read_all_state(table: siltstone.Table, kind: str) -> None:
    """Read what a publish reads before it knows whether there is anything new."""
    root = table.lake.root
    folder = catalog.version_folder(table.name, root=root)
    if kind == "delta":
        DeltaLog(root, folder).read()
    else:
        read_state(root, folder).manifests()
    take_cut(table.name, root=root)


def measure_many_files(folder: Path, files: int) -> dict[str, Any]:
    """Publish rounds that touch a few of many files; figures are medians."""
    table = siltstone.open(folder).create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
    # Buckets are halved, so that there may be up to twice as many.
    rows = files * ROWS_PER_FILE * 2
    settings = Settings(bucket_rows=ROWS_PER_FILE, max_files=100, max_delta_fraction=100.0, max_dead_fraction=1.0)
    write(table, np.arange(rows), 0)
    compact(table, settings)
    first = {kind: timed(lambda kind=kind: table.publish(kind))[1] for kind in FORMATS}  # type: ignore[misc]
    found: dict[str, dict[str, list[float]]] = {
        kind: {"file_actions": [], "state_ms": [], "beyond_ms": []} for kind in FORMATS
    }
    for number in range(ROUNDS):
        keys = np.random.default_rng(number).choice(rows, TOUCHED - 1, replace=False)
        write(table, keys, number + 1)
        compact(table, settings)
        for kind, own in found.items():
            _, state = timed(lambda kind=kind: read_all_state(table, kind))  # type: ignore[misc]
            published, seconds = timed(lambda kind=kind: table.publish(kind))  # type: ignore[misc]
            own["file_actions"].append(published.added_files + published.removed_files)
            own["state_ms"].append(state * 1000)
            own["beyond_ms"].append((seconds - state) * 1000)
    (current,) = table.current_rounds()
    medians = {
        kind: {name: round(statistics.median(values), 1) for name, values in own.items()} for kind, own in found.items()
    }
    firsts = {kind: round(seconds, 2) for kind, seconds in first.items()}
    return {"files": len({file.uri for file in current.files}), "first_seconds": firsts, **medians}


def measure_large_rounds(folder: Path, rows: int, changes: int) -> dict[str, Any]:
    """Compact changes to a table on Spark, and publish them: first beside the files, then with all files written anew."""
    spark = local_session("benchmark", conf={"spark.driver.memory": "4g"})
    base = save_base(folder / "base", rows)
    # Two tables, of which the first makes Spark warm.
    tables = [create(siltstone.open(folder / "lake"), f"shop.{name}", base) for name in ("warm", "orders")]
    result: dict[str, Any] = {"rows": rows, "changes": changes}
    for table in tables:
        table.compact(spark=spark)
        for kind in FORMATS:
            table.publish(kind)
        for seed, (work, full) in enumerate({MINOR: False, REWRITING: True, WITH_FEED: True}.items(), 1):
            table.alter(properties={"publish.delta.change_feed": str(work == WITH_FEED).lower()})
            Changes(rows, changes, seed).write_to(table)
            _, seconds = timed(lambda table=table, full=full: table.compact(spark=spark, full=full))  # type: ignore[misc]
            published = {
                kind: timed(lambda table=table, kind=kind: table.publish(kind))[1]  # type: ignore[misc]
                for kind in FORMATS
            }
            figures = {"round_seconds": seconds, **{f"{kind}_seconds": each for kind, each in published.items()}}
            result[work] = {name: round(figure, 3) for name, figure in figures.items()}
    spark.stop()
    return result


def show(result: dict[str, Any]) -> None:
    many, large = result["many files"], result["large rounds"]
    shown = Table(
        "as",
        "file actions",
        "state, ms",
        "beyond, ms",
        "first version, s",
        title=f"{TOUCHED} of {many['files']:,} files",
    )
    for kind in FORMATS:
        figures = (many[kind][name] for name in ("file_actions", "state_ms", "beyond_ms"))
        shown.add_row(kind, *map(str, figures), str(many["first_seconds"][kind]))
    rounds = Table(
        "round", "s", "as delta, s", "as iceberg, s", title=f"{large['changes']:,} changes to {large['rows']:,} rows"
    )
    for work in (MINOR, REWRITING, WITH_FEED):
        rounds.add_row(work, *(f"{large[work][f'{name}_seconds']:.2f}" for name in ("round", *FORMATS)))
    Console().print(shown, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="siltstone-publish-"))
    try:
        result = {
            "many files": measure_many_files(folder / "many", options.files),
            "large rounds": measure_large_rounds(folder, options.rows, options.changes),
        }
    finally:
        shutil.rmtree(folder)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show(result)


if __name__ == "__main__":
    main()
