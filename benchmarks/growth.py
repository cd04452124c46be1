"""The same changes to tables of several sizes, and new keys beside a first load of them: how cost grows with the table.

`python -m benchmarks.growth [--rows 5000000 20000000 40000000] [--changes 500000] [--new 5000000] [--onto 15000000] [--json]`
loads a table of each size on Spark, in a warm session, and compacts the same changes as a minor round: on Spark, and with
`engine="local"`. Then it adds `--new` keys to a table of `--onto` rows, and loads the same rows into a table of their own. It
prints seconds on the clock and of CPU, those of all processes; a round runs twice, and the quicker one counts. The memory of a worker
is that of a session of its own, whose workers have done nothing else. It writes benchmarks/results/growth.json and a plot.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import SCHEMA, Changes, orders
from benchmarks.workers import peak_megabytes, timed
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results"
STEP = 500_000
NEW_KEYS = 2 * 10**9
SPARK, LOCAL = "on Spark", "in one process"
# Times the seconds at the first size, by how many times as many rows there are.
AIMS = {4: 1.3, 8: 1.5}


def write(table: siltstone.Table, first: int, rows: int) -> None:
    """Write some orders as one delta."""
    rng = np.random.default_rng(first)
    starts = range(first, first + rows, STEP)
    table.write(
        batch
        for start in starts
        for batch in orders(np.arange(start, min(start + STEP, first + rows)), rng).to_batches()
    )


class Sizes:
    """Tables of one lake, on one warm session."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._lake = siltstone.open(folder)
        self._folder = folder
        warm = self.table("warm", 10_000)
        Changes(10_000, 1000, 1).write_to(warm)
        self.minor(warm, SPARK)

    def table(self, name: str, rows: int) -> siltstone.Table:
        """Return a table of so many orders, compacted."""
        table = self._lake.create_table(f"shop.{name}", schema=SCHEMA, primary_keys=["order_id"])
        write(table, 0, rows)
        table.compact(spark=self._spark)
        return table

    def compaction(self, table: siltstone.Table, engine: str) -> Callable[[], object]:
        if engine == SPARK:
            return lambda: table.compact(spark=self._spark)
        return lambda: table.compact(engine="local")

    def minor(self, table: siltstone.Table, engine: str) -> tuple[float, float]:
        """Compact twice, with the table rolled back between, and return the quicker run."""
        (before,) = table.current_rounds()
        first = timed(self.compaction(table, engine))
        table.rollback(before.round_id)
        return min(first, timed(self.compaction(table, engine)))

    def changes(self, rows: int, count: int) -> dict[str, Any]:
        """Measure the same changes to a table of one size."""
        table = self.table(f"orders{rows}", rows)
        (loaded,) = table.current_rounds()
        Changes(rows, count, 1).write_to(table)
        result: dict[str, Any] = {"rows": rows, "buckets": len(loaded.buckets)}
        result[SPARK] = self.minor(table, SPARK)
        result["actions"] = dict(table.current_rounds()[0].bucket_actions)
        live_rows = table.current_rounds()[0].live_rows
        table.rollback(loaded.round_id)
        result["worker megabytes"] = worker_megabytes(table)
        table.rollback(loaded.round_id)
        result[LOCAL] = self.minor(table, LOCAL)
        assert table.current_rounds()[0].live_rows == live_rows
        self.forget(table)
        return result

    def new_keys(self, count: int, onto: int) -> dict[str, Any]:
        """Measure new keys that come to a table, and those that are all of one."""
        loads = []
        for number in range(2):
            alone = self._lake.create_table(f"shop.alone{number}", schema=SCHEMA, primary_keys=["order_id"])
            write(alone, NEW_KEYS, count)
            loads.append(timed(self.compaction(alone, SPARK)))
            self.forget(alone)
        table = self.table("grown", onto)
        write(table, NEW_KEYS, count)
        inserted = self.minor(table, SPARK)
        (current,) = table.current_rounds()
        assert current.live_rows == onto + count
        result = {"new": count, "onto": onto, "first load": min(loads), "insert": inserted}
        self.forget(table)
        return {**result, "actions": dict(current.bucket_actions)}

    def forget(self, table: siltstone.Table) -> None:
        """Make room on the disk for the next one."""
        table.drop()
        shutil.rmtree(self._folder / "tables" / "shop" / table.name.rpartition(".")[2])


def worker_megabytes(table: siltstone.Table) -> int:
    """Compact in a process of its own, and return the peak memory of a worker."""
    command = [sys.executable, "-m", "benchmarks.growth", "--worker", table.lake.root, table.name]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def compact_alone(root: str, name: str) -> int:
    """Compact in a session that has done nothing else, and return the peak memory of a worker."""
    siltstone.open(root).table(name).compact(spark=local_session("benchmark"))
    return peak_megabytes(os.getpid())


def measure(folder: Path, sizes: list[int], count: int, new: int, onto: int) -> dict[str, Any]:
    spark = local_session("benchmark", conf={"spark.driver.memory": "6g"})
    tables = Sizes(spark, folder)
    result: dict[str, Any] = {"changes": count, "sizes": [tables.changes(rows, count) for rows in sizes]}
    if new:
        result["new keys"] = tables.new_keys(new, onto)
    spark.stop()
    return result


def show(result: dict[str, Any]) -> None:
    title = f"{result['changes']:,} changes, minor"
    shown = Table("rows", "buckets", f"s {SPARK}", "CPU s", f"s {LOCAL}", "CPU s", "MB of a worker", title=title)
    for each in result["sizes"]:
        times = [f"{seconds:.2f}" for engine in (SPARK, LOCAL) for seconds in each[engine]]
        shown.add_row(f"{each['rows']:,}", str(each["buckets"]), *times, str(each["worker megabytes"]))
    console = Console()
    console.print(shown)
    if "new keys" in result:
        new = result["new keys"]
        added = Table(f"{new['new']:,} new keys", "seconds", "CPU s", "buckets by what they did")
        added.add_row("a first load", *(f"{each:.2f}" for each in new["first load"]), "")
        onto = f"onto {new['onto']:,} rows"
        added.add_row(onto, *(f"{each:.2f}" for each in new["insert"]), str(new["actions"]))
        console.print(added)


def plot(result: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(10, 4), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    millions = [each["rows"] / 1e6 for each in result["sizes"]]
    for engine, color, above in ((SPARK, "#b07d3b", 8), (LOCAL, "#4a7a8c", -16)):
        seconds = [each[engine][0] for each in result["sizes"]]
        left.plot(millions, seconds, "o-", color=color, label=engine)
        for point in zip(millions, seconds, strict=True):
            left.annotate(f"{point[1]:.2f}", point, (0, above), textcoords="offset points", ha="center", color=color)
    first = result["sizes"][0]
    aims = [(rows, aim * first[SPARK][0]) for times, aim in AIMS.items() if (rows := times * millions[0]) in millions]
    if aims:
        left.plot(*zip(*aims, strict=True), "_", color="#8a8a8a", markersize=22, label="aim, on Spark")
    left.set(xlabel="million rows of the table", ylabel="seconds", ylim=(0, None), xticks=millions)
    left.set_title(f"The same {result['changes']:,} changes, minor")
    figure.legend(frameon=False, loc="outside lower left", ncols=3)
    left.margins(x=0.08)
    if "new keys" in result:
        new = result["new keys"]
        names = [f"a first load\nof {new['new'] / 1e6:g} million", f"the same, onto\n{new['onto'] / 1e6:g} million"]
        bars = right.bar(names, [new["first load"][0], new["insert"][0]], color=["#8a8a8a", "#b07d3b"], width=0.5)
        right.bar_label(bars, fmt="%.1f s", padding=3)
        right.set_title("New keys, on Spark")
        right.margins(y=0.15)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    for ending in ("png", "svg"):
        figure.savefig(RESULTS / f"growth.{ending}", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 20_000_000, 40_000_000])
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--new", type=int, default=5_000_000, help="new keys to add to a table, 0 for none")
    parser.add_argument("--onto", type=int, default=15_000_000, help="rows of that table")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument(
        "--worker", nargs=2, metavar=("ROOT", "TABLE"), help="only compact a table, and print the MB of a worker"
    )
    options = parser.parse_args()
    if options.worker:
        print(compact_alone(*options.worker))
        return
    folder = Path(tempfile.mkdtemp(prefix="siltstone-growth-"))
    try:
        result = measure(folder, options.rows, options.changes, options.new, options.onto)
    finally:
        shutil.rmtree(folder)
    result = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 3))
    (RESULTS / "growth.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(result)
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show(result)


if __name__ == "__main__":
    main()
