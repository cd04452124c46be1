"""Many small commits by several threads on one partition: none lost, and no commit dearer than the ones before.

`python -m benchmarks.commits [--commits 1000] [--threads 8] [--json]` prints a table and writes
benchmarks/results/commits.json. The second table repeats the work with a log alone, without data files, and with
ten times as many commits, to show how the time per commit grows with the number of earlier commits: it should not.
"""

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import siltstone
from siltstone.log.commit import CommitLog

RESULTS = Path(__file__).parent / "results/commits.json"
PARTS = 10


def run(commits: int, threads: int, commit: Callable[[int], int]) -> tuple[list[int], list[float]]:
    """Let the threads share the commits; return their positions in order, and when each of them was done."""
    numbers = iter(range(commits))
    started = time.perf_counter()
    lock = threading.Lock()
    done: list[tuple[int, float]] = []

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            done.append((commit(number), time.perf_counter() - started))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted(position for position, _ in done), sorted(seconds for _, seconds in done)


def summarize(threads: int, done: list[float]) -> dict[str, Any]:
    """Tell the pace of each tenth of the commits, all threads together."""
    size = len(done) // PARTS
    ends = [0.0, *(done[size * part - 1] for part in range(1, PARTS + 1))]
    parts = [(end - begin) / size for begin, end in itertools.pairwise(ends)]
    return {
        "commits": len(done),
        "threads": threads,
        "commits_per_second": round(len(done) / done[-1], 1),
        "ms_per_commit_by_tenth": [round(part * 1000, 2) for part in parts],
        "second_half_to_first": round(sum(parts[PARTS // 2 :]) / sum(parts[: PARTS // 2]), 2),
    }


def measure_writes(folder: Path, commits: int, threads: int) -> dict[str, Any]:
    table = siltstone.open(folder / "lake").create_table(
        "shop.orders", schema={"order_id": "int64", "note": "string"}, primary_keys=["order_id"]
    )
    data = pa.table({"order_id": range(100), "note": [f"note {number}" for number in range(100)]})
    positions, done = run(commits, threads, lambda number: table.write(data, idempotency=("benchmark", number)))
    assert positions == list(range(1, commits + 1)), "a commit was lost or doubled"
    assert [delta.stream_position for delta in table.deltas()] == positions
    return {"work": "write a delta of 100 rows", **summarize(threads, done)}


def measure_log(folder: Path, commits: int, threads: int) -> dict[str, Any]:
    log = CommitLog(str(folder), f"log-{commits}-{threads}")

    def commit(number: int) -> int:
        entry = {"rows": number, "uri": f"tables/shop/orders/1/deltas/{number:032x}.parquet"}
        made = log.commit("benchmark", lambda _: {f"delta/{number}": entry})
        assert made.batch_id is not None
        return made.batch_id

    batches, done = run(commits, threads, commit)
    assert batches == list(range(commits))
    assert len(CommitLog(str(folder), log.folder).read(lambda state: state.keys("delta/"))) == commits
    return {"work": "commit to the log alone", **summarize(threads, done)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="siltstone-benchmark-") as name:
        folder = Path(name)
        rows = [
            measure_writes(folder, options.commits, options.threads),
            measure_log(folder, options.commits, options.threads),
            measure_log(folder, options.commits * 10, options.threads),
        ]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    shown = Table(
        "work", "commits", "threads", "commits/s", "ms per commit, first tenth", "last tenth", "second half : first"
    )
    for row in rows:
        tenths = row["ms_per_commit_by_tenth"]
        cells = [row["work"], row["commits"], row["threads"], row["commits_per_second"], tenths[0], tenths[-1]]
        shown.add_row(*map(str, cells), str(row["second_half_to_first"]))
    Console().print(shown)


if __name__ == "__main__":
    main()
