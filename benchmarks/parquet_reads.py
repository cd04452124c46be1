"""Reads of Parquet files, one column and all columns, by the readers that a table's files will meet.

`python -m benchmarks.parquet_reads [FILE…] [--repeat 3]` prints a table, and writes benchmarks/results/parquet_reads.json
and a plot. Without files it measures the ones below, which it makes in a temporary folder. With `--aws`, results are called
parquet_reads_s3, and it takes files in S3: those named, those in $SILTSTONE_BENCHMARK_FILES, or the ones below, uploaded to $SILTSTONE_BENCHMARK_ROOT.

To add a file, add a line to SINGLE_COLUMN_BENCHMARKS or ALL_COLUMN_BENCHMARKS: what to call it, and where it is.
"""

import argparse
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.parquet_reads_files import place_files
from benchmarks.parquet_reads_readers import READERS, Unavailable


@dataclass(frozen=True)
class Benchmark:
    """A file to read; `made:ROWS` is made. `column` is what the reads of one column read; None: the first."""

    name: str
    path: str
    column: str | None = None


SINGLE_COLUMN_BENCHMARKS = [
    Benchmark("100,000 rows", "made:100000", "amount"),
    Benchmark("1,000,000 rows", "made:1000000", "amount"),
]
ALL_COLUMN_BENCHMARKS = [
    Benchmark("100,000 rows", "made:100000"),
    Benchmark("1,000,000 rows", "made:1000000"),
]

RESULTS = Path(__file__).parent / "results"
ROOT_VARIABLE, FILES_VARIABLE = "SILTSTONE_BENCHMARK_ROOT", "SILTSTONE_BENCHMARK_FILES"


def timed(read: Callable[[], int], repeat: int, rows: int) -> float:
    """Return the median of some reads after a first one that does not count; all have to find all rows."""
    seconds = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        found = read()
        seconds.append(time.perf_counter() - start)
        assert found == rows, f"read {found} rows instead of {rows}"
    return statistics.median(seconds[1:])


def measure(benchmarks: dict[str, list[Benchmark]], root: str, repeat: int) -> list[dict[str, Any]]:
    results = []
    for kind, chosen in benchmarks.items():
        for benchmark in chosen:
            place = place_files(benchmark.path, root)
            column = benchmark.column or place.columns[0]
            columns = [column] if kind == "one column" else None
            for reader, read in READERS.items():
                result = {"columns": kind, "file": benchmark.name, "reader": reader, "rows": place.rows}
                try:
                    seconds = timed(functools.partial(read, place, columns), repeat, place.rows)
                except Unavailable as reason:
                    results.append({**result, "seconds": None, "why": str(reason)})
                    continue
                results.append({**result, "seconds": round(seconds, 4), "bytes": place.size})
    return results


def plot(results: list[dict[str, Any]], where: str, name: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    groups = list(dict.fromkeys((result["columns"], result["file"]) for result in results))
    figure, axes = pyplot.subplots(
        1, len(groups), figsize=(3.2 * len(groups), 3.4), layout="constrained", squeeze=False
    )
    for place, (kind, file) in zip(axes[0], groups, strict=True):
        chosen = [
            result for result in results if (result["columns"], result["file"]) == (kind, file) and result["seconds"]
        ]
        colors = ["#b07d3b" if each["reader"].startswith("Siltstone") else "#8a8a8a" for each in chosen]
        bars = place.barh(
            [each["reader"] for each in chosen], [each["seconds"] * 1000 for each in chosen], color=colors
        )
        place.bar_label(bars, fmt="%.0f ms", padding=3)
        place.set_title(f"{kind}, {file}", fontsize=10)
        place.margins(x=0.25)
        place.invert_yaxis()
        place.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Reading Parquet, {where}")
    for ending in ("png", "svg"):
        figure.savefig(RESULTS / f"{name}.{ending}", dpi=120)


def show(results: list[dict[str, Any]], where: str) -> None:
    shown = Table("columns", "file", "reader", "milliseconds", "million rows/s", title=f"Reading Parquet, {where}")
    for result in results:
        seconds = result["seconds"]
        figures = (
            ("", result["why"])
            if seconds is None
            else (f"{seconds * 1000:.1f}", f"{result['rows'] / seconds / 1e6:.1f}")
        )
        shown.add_row(result["columns"], result["file"], result["reader"], *figures)
    Console().print(shown)


def chosen_benchmarks(files: list[str]) -> dict[str, list[Benchmark]]:
    """Return what to measure: the files given, or the ones above."""
    if files:
        given = [Benchmark(file.rpartition("/")[2], file) for file in files]
        return {"one column": given, "all columns": given}
    return {"one column": SINGLE_COLUMN_BENCHMARKS, "all columns": ALL_COLUMN_BENCHMARKS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="Parquet files, local or s3://")
    parser.add_argument("--aws", action="store_true", help="read from S3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    files = options.files or (os.environ.get(FILES_VARIABLE, "").split() if options.aws else [])
    root = os.environ.get(ROOT_VARIABLE, "") if options.aws else ""
    if options.aws and not files and not root.startswith("s3://"):
        parser.error(f"name files in S3, or set {ROOT_VARIABLE}=s3://bucket/prefix, where files may be put")
    folder = Path(tempfile.mkdtemp(prefix="siltstone-benchmark-"))
    try:
        results = measure(chosen_benchmarks(files), root or str(folder), options.repeat)
    finally:
        shutil.rmtree(folder)
    where = "from S3" if options.aws else "from local disk"
    name = "parquet_reads_s3" if options.aws else "parquet_reads"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"where": where, "reads": results}, indent=2) + "\n")
    plot(results, where, name)
    if options.json:
        sys.stdout.write(json.dumps(results) + "\n")
        return
    show(results, where)


if __name__ == "__main__":
    main()
