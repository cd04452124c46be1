"""What a table costs at sizes that were not measured: the model of docs/scale.md, with the constants that were.

`python -m benchmarks.cost_model [--cores 64] [--json]` prints its tables: seconds, requests, memory and dollars for tables of 10 GB to
1 PB of which 1 % or 10 % change in a day, compacted every 15 minutes or daily. The constants are those that
`benchmarks.constants` and `benchmarks.growth` wrote to benchmarks/results.
"""

import argparse
import functools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import constants, growth
from siltstone.rows.choice import small_files
from siltstone.rows.job import Settings, bucket_rows

RESULTS = Path(__file__).parent / "results"
SIZES = {"10 GB": 1e10, "100 GB": 1e11, "1 TB": 1e12, "10 TB": 1e13, "100 TB": 1e14, "1 PB": 1e15}
RHYTHMS = {"every 15 min": 96, "daily": 1}
CHANGED_A_DAY = (0.01, 0.1)
RETENTION_DAYS, MONTH_DAYS = 7, 30
# Of a common store in dollars, and of a core with 4 GB: put in your own.
PUT_DOLLARS, GET_DOLLARS, CORE_HOUR_DOLLARS, TERABYTE_MONTH_DOLLARS = 5e-6, 4e-7, 0.05, 23.0
# A round has at most so many bytes of deltas for every 8 cores; as many merging tasks share them at most.
ROUND_BYTES, MOST_TASKS, TASK_BYTES = 2 << 30, 2048, 1 << 20
# What a task has in memory of a row of its bucket's index that it reads whole: key hash and row number.
INDEXED_ROW_BYTES = 12
# Bytes of deltas in memory, decoded and sorted, for each byte in a file; and a driver with nothing to do.
DECODED_TIMES, DRIVER_MB = 4, 512


@dataclass(frozen=True)
class Constants:
    """What was measured; bytes and CPU seconds."""

    row: float
    index: float
    vector: float
    delta: float
    shuffled: float
    page: float
    change_seconds: float
    bucket_seconds: float
    stored_row_seconds: float
    base_seconds: float
    rewritten_a_second: float
    driver_bucket: float
    worker_mb: float

    @classmethod
    def measured(cls) -> "Constants":
        found = constants.load()
        sizes = json.loads((RESULTS / "growth.json").read_text(encoding="utf-8"))["sizes"]
        *_, written = json.loads((RESULTS / "scale.json").read_text(encoding="utf-8"))["rounds"]
        # Of so many buckets that no noise hides it.
        *_, wide = json.loads((RESULTS / "wide.json").read_text(encoding="utf-8"))
        bucket = wide["ms_a_bucket"] / 1e3
        return cls(
            row=found["row_bytes"],
            index=found["index_bytes"],
            vector=found["vector_bytes"],
            delta=found["delta_bytes"],
            shuffled=found["shuffled_bytes"],
            page=1024 * written["completion_kb"] / written["pages"],
            change_seconds=found["change_us"] / 1e6,
            bucket_seconds=bucket,
            stored_row_seconds=stored_row_seconds(sizes[0], sizes[-1], bucket),
            base_seconds=found["base_seconds"],
            rewritten_a_second=found["rewrite_mb_per_second"] * 1e6,
            driver_bucket=found["driver_bucket_kb"] * 1e3,
            worker_mb=found["idle_worker_mb"],
        )


def stored_row_seconds(small: dict[str, Any], large: dict[str, Any], bucket_seconds: float) -> float:
    """Return what a row costs that lies in a touched bucket and does not change.

    It is what the larger table took more for the same changes in one process, where noise is least, but for its buckets, divided by
    the rows that it has more.
    """
    more: float = large[growth.LOCAL][1] - small[growth.LOCAL][1]
    more -= (large["buckets"] - small["buckets"]) * bucket_seconds
    return float(max(0, more / max(large["rows"] - small["rows"], 1)))


@dataclass(frozen=True)
class Cost:
    """What a table costs: one round, a day of rounds, and a month of them in dollars."""

    buckets: int
    touched: int
    rounds_to_rewrite: int
    times_written: float
    round_seconds: float
    shuffled_bytes: float
    written_bytes: float
    puts: float
    gets: float
    driver_mb: float
    task_mb: float
    core_hours_a_day: float
    core_dollars: float
    request_dollars: float
    data_dollars: float
    index_dollars: float
    dead_dollars: float
    replaced_dollars: float
    delta_dollars: float

    @property
    def storage_dollars(self) -> float:
        return self.data_dollars + self.index_dollars + self.dead_dollars + self.replaced_dollars + self.delta_dollars


@dataclass(frozen=True)
class Life:
    """A bucket from one rewrite to the next, by how many rounds touch it, with averages of these rounds.

    `carried` are rows of small files that are merged, `merged` these files; `small` are the files beside those of the last rewrite.
    """

    rounds: int
    carried: float
    merged: float
    small: float
    dead: float


@functools.cache
def life_of(rows: float, new: float, base_files: int, settings: Settings) -> Life:
    """Follow a bucket of so many rows, of which each round replaces some, by the rules of `rows/choice`."""
    # All files of the last rewrite but one are full, and do not count.
    stored, sizes = rows, {0: rows / base_files}
    live = dict(sizes)
    carried = dead = 0.0
    merged = small = 0
    count = 1
    # A little more, so that no rounding decides.
    most_dead = settings.max_dead_fraction * (1 + 1e-9)
    while new <= settings.max_delta_fraction * stored and stored - rows + new <= most_dead * stored:
        live = {place: each * (1 - new / rows) for place, each in live.items()}
        places = small_files(live, new, settings.max_files) if len(live) + 1 > settings.max_files else ()
        moved = sum(live.pop(place) for place in places)
        if moved > settings.max_carried_fraction * rows:
            break
        stored += new + moved - sum(sizes.pop(place) for place in places)
        live[count] = sizes[count] = new + moved
        carried, dead = carried + moved, dead + stored - rows
        merged, small = merged + len(places), small + len(live) - 1
        count += 1
    return Life(count, carried / count, merged / count, small / count, dead / count)


def cost_of(size: float, changed_a_day: float, rounds_a_day: int, cores: int, measured: Constants) -> Cost:
    """Return what a table of so many bytes costs, if its keys change evenly."""
    settings = Settings()
    rows = size / measured.row
    changed = rows * changed_a_day / rounds_a_day
    buckets = max(1, int(rows) // bucket_rows(int(rows), int(size)))
    touched = buckets * -math.expm1(-changed / buckets)
    base_files = math.ceil(size / buckets / settings.target_file_bytes)
    life = life_of(rows / buckets, changed / touched, base_files, settings)
    pages = min(-(-buckets // settings.page_buckets), touched) if buckets > settings.page_buckets else 0
    rewritten = touched / life.rounds
    bucket_bytes = size / buckets * (1 + measured.index / measured.row)
    carried = touched * life.carried
    rewrite = (rewritten * size / buckets + carried * measured.row) / measured.rewritten_a_second
    merge = (
        measured.base_seconds + changed * measured.change_seconds + touched * measured.bucket_seconds
        + rows / buckets * touched * measured.stored_row_seconds
    )  # fmt: skip
    # The formula of docs/scale.md: of each bucket the files of its last rewrite, and what its stretch has written since.
    by_buckets, by_rows = touched / settings.stretch_buckets, changed / settings.stretch_rows
    stretches = max(1.0, min(touched, max(by_buckets, by_rows)))
    shared = stretches * life.small
    files = touched * base_files + shared
    # In every stretch rows die, and each of its files has dead ones; of what is merged, footer and rows are read.
    puts, gets = 2 + 3 * stretches + pages, 14 + 2 * (files + stretches * life.merged) + stretches + shared + pages
    dead = touched * life.dead
    merged_bytes = carried * (measured.row + measured.index)
    replaced = rewritten * bucket_bytes + merged_bytes + dead * measured.vector + pages * measured.page
    in_retention = RETENTION_DAYS * rounds_a_day
    month = MONTH_DAYS * rounds_a_day
    task_bytes = max(TASK_BYTES, min(changed * measured.delta, ROUND_BYTES * max(1, cores / 8)) / MOST_TASKS)

    def stored(count: float) -> float:
        return count / 1e12 * TERABYTE_MONTH_DOLLARS

    return Cost(
        buckets=buckets,
        touched=round(touched),
        rounds_to_rewrite=life.rounds,
        times_written=1 + life.carried / (changed / touched),
        round_seconds=(merge + rewrite) / min(cores, max(1, touched)),
        shuffled_bytes=changed * measured.shuffled,
        written_bytes=changed * (measured.row + measured.index) + replaced - pages * measured.page,
        puts=puts,
        gets=gets,
        driver_mb=DRIVER_MB + touched * measured.driver_bucket / 1e6,
        task_mb=measured.worker_mb + (rows / buckets * INDEXED_ROW_BYTES + DECODED_TIMES * task_bytes) / 1e6,
        core_hours_a_day=(merge + rewrite) * rounds_a_day / 3600,
        core_dollars=(merge + rewrite) * month / 3600 * CORE_HOUR_DOLLARS,
        request_dollars=month * (puts * PUT_DOLLARS + gets * GET_DOLLARS),
        data_dollars=stored(size),
        index_dollars=stored(rows * measured.index),
        dead_dollars=stored(dead * (measured.row + measured.index + measured.vector)),
        replaced_dollars=stored(in_retention * replaced),
        delta_dollars=stored(in_retention * changed * measured.delta),
    )


def all_costs(cores: int, measured: Constants) -> Iterator[tuple[str, float, str, Cost]]:
    for name, size in SIZES.items():
        for changed in CHANGED_A_DAY:
            for rhythm, rounds in RHYTHMS.items():
                yield name, changed, rhythm, cost_of(size, changed, rounds, cores, measured)


def round_lines(cores: int, measured: Constants) -> list[list[str]]:
    """Return a table of what one round takes, with its head."""
    lines = [["table", "changed a day", "compacted", "buckets touched", "rewritten every", "a change is written",
              f"on {cores} cores", "shuffled", "written", "puts", "driver", "task"]]  # fmt: skip
    for name, changed, rhythm, cost in all_costs(cores, measured):
        sizes = cost.shuffled_bytes, cost.written_bytes, cost.driver_mb * 1e6, cost.task_mb * 1e6
        shuffled, written, driver, task = map(size_of, sizes)
        often = f"{cost.rounds_to_rewrite:,} rounds" if cost.rounds_to_rewrite > 1 else "round"
        line = [name, f"{changed:.0%}", rhythm, f"{cost.touched:,}", often,
                f"{cost.times_written:.1f} times", duration(cost.round_seconds)]  # fmt: skip
        lines.append([*line, shuffled, written, f"{cost.puts:,.0f}", driver, task])
    return lines


def dollar_lines(cores: int, measured: Constants) -> list[list[str]]:
    """Return a table of what a month costs, with its head."""
    lines = [["table", "changed a day", "compacted", "core-hours a day", "cores", "requests", "data", "key index",
              "dead rows", "replaced files", "deltas"]]  # fmt: skip
    for name, changed, rhythm, cost in all_costs(cores, measured):
        dollars = (
            cost.core_dollars, cost.request_dollars, cost.data_dollars, cost.index_dollars, cost.dead_dollars,
            cost.replaced_dollars, cost.delta_dollars,
        )  # fmt: skip
        shown = [f"${each:,.2f}" if each < 100 else f"${each:,.0f}" for each in dollars]
        lines.append([name, f"{changed:.0%}", rhythm, f"{cost.core_hours_a_day:,.1f}", *shown])
    return lines


def duration(seconds: float) -> str:
    return (
        f"{seconds:,.1f} s" if seconds < 10 else f"{seconds:,.0f} s" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
    )


def size_of(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if count >= 10 or unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print the costs as JSON")
    options = parser.parse_args()
    measured = Constants.measured()
    if options.json:
        costs = [{"table": name, "changed a day": changed, "compacted": rhythm, **asdict(cost)}
                 for name, changed, rhythm, cost in all_costs(options.cores, measured)]  # fmt: skip
        print(json.dumps({"constants": asdict(measured), "costs": costs}))
        return
    console = Console(width=150)
    for title, lines in (
        ("One round", round_lines(options.cores, measured)),
        ("A month", dollar_lines(options.cores, measured)),
    ):
        table = Table(*lines[0], title=title)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)


if __name__ == "__main__":
    main()
