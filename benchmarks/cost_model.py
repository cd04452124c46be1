"""What a table costs at sizes that were not measured: the model of docs/scale.md, with the constants that were.

`python -m benchmarks.cost_model [--cores 64] [--json]` prints its tables: seconds, requests, memory and dollars for tables of 10 GB to
1 PB of which 1 % or 10 % change in a day, compacted every 15 minutes or daily; and what the largest of them take on more cores. The
constants are those that `benchmarks.constants`, `wide`, `growth` and `scale` wrote to benchmarks/results.
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
from siltstone.model.properties import MAX_ROW_GROUP_ROWS
from siltstone.objects.store import PART_BYTES
from siltstone.rounds.request import MAX_ROUND_BYTES
from siltstone.rows.choice import small_files
from siltstone.rows.job import Settings, bucket_rows

RESULTS = Path(__file__).parent / "results"
SIZES = {"10 GB": 1e10, "100 GB": 1e11, "1 TB": 1e12, "10 TB": 1e13, "100 TB": 1e14, "1 PB": 1e15}
RHYTHMS = {"every 15 min": 96, "daily": 1}
CHANGED_A_DAY = (0.01, 0.1)
# What many cores are for: a tenth of a large table, changed at once.
CORES, LARGE_SIZES, CHANGED_AT_ONCE = (64, 512, 2048, 8192), ("10 TB", "100 TB", "1 PB"), 0.1
RETENTION_DAYS, MONTH_DAYS, DAY_SECONDS = 7, 30, 86400
# Of a common store in dollars, and of a core with 4 GB: put in your own.
PUT_DOLLARS, GET_DOLLARS, CORE_HOUR_DOLLARS, TERABYTE_MONTH_DOLLARS = 5e-6, 4e-7, 0.05, 23.0
# As in `rounds/session` and `spark/tasks`: a round may read so much more for every 8 cores, and is merged in so many tasks.
CORES_A_ROUND, TASK_BYTES, LEAST_TASKS, MOST_TASKS = 8, 1 << 20, 2, 2048
# A file of deltas is read in pieces, by a task each; an index of up to so many bytes is read in one request.
PIECE_BYTES, SMALL_INDEX_BYTES = 8 << 20, 64 << 10
# Bytes of deltas in memory, decoded and sorted, for each byte in a file; and a driver with nothing to do.
DECODED_TIMES, DRIVER_MB = 4, 512


@dataclass(frozen=True)
class Constants:
    """What was measured; bytes, CPU seconds and megabytes."""

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
    idle_worker_mb: float
    worker_mb: float
    bucket_row: float

    @classmethod
    def measured(cls) -> "Constants":
        found = constants.load()
        grown = json.loads((RESULTS / "growth.json").read_text(encoding="utf-8"))
        small, large = grown["sizes"][0], grown["sizes"][-1]
        *_, written = json.loads((RESULTS / "scale.json").read_text(encoding="utf-8"))["rounds"]
        # Of so many buckets that no noise hides it.
        *_, wide = json.loads((RESULTS / "wide.json").read_text(encoding="utf-8"))
        bucket = wide["ms_a_bucket"] / 1e3
        worker_mb, bucket_row = worker_memory(small, large, grown["changes"] * found["delta_bytes"])
        return cls(
            row=found["row_bytes"],
            index=found["index_bytes"],
            vector=found["vector_bytes"],
            delta=found["delta_bytes"],
            shuffled=found["shuffled_bytes"],
            page=1024 * written["completion_kb"] / written["pages"],
            change_seconds=found["change_us"] / 1e6,
            bucket_seconds=bucket,
            stored_row_seconds=stored_row_seconds(small, large, bucket),
            base_seconds=found["base_seconds"],
            rewritten_a_second=found["rewrite_mb_per_second"] * 1e6,
            driver_bucket=found["driver_bucket_kb"] * 1e3,
            idle_worker_mb=found["idle_worker_mb"],
            worker_mb=worker_mb,
            bucket_row=bucket_row,
        )


def stored_row_seconds(small: dict[str, Any], large: dict[str, Any], bucket_seconds: float) -> float:
    """Return what a row costs that lies in a touched bucket and does not change.

    It is what the larger table took more for the same changes in one process, where noise is least, but for its buckets, divided by
    the rows that it has more.
    """
    more: float = large[growth.LOCAL][1] - small[growth.LOCAL][1]
    more -= (large["buckets"] - small["buckets"]) * bucket_seconds
    return float(max(0, more / max(large["rows"] - small["rows"], 1)))


def worker_memory(small: dict[str, Any], large: dict[str, Any], delta_bytes: float) -> tuple[float, float]:
    """Return the megabytes of a worker without deltas and rows, and the bytes for each row of its bucket.

    These are such that both tables need what was measured: the larger one has more rows in a bucket.
    """
    (few, few_mb), (many, many_mb) = (
        (each["rows"] / each["buckets"], each["worker megabytes"] - decoded_mb(delta_bytes, each["buckets"]))
        for each in (small, large)
    )
    row_mb = max(0.0, (many_mb - few_mb) / max(many - few, 1))
    return few_mb - few * row_mb, row_mb * 1e6


def task_mb(bucket_rows: float, delta_bytes: float, buckets: float, measured: Constants) -> float:
    """Return the megabytes of a worker that merges a share of the deltas of a round into buckets of so many rows."""
    worker = max(measured.idle_worker_mb, measured.worker_mb + bucket_rows * measured.bucket_row / 1e6)
    return worker + decoded_mb(delta_bytes, buckets)


def decoded_mb(delta_bytes: float, buckets: float) -> float:
    """Return the megabytes of the deltas that a task has."""
    return DECODED_TIMES * delta_bytes / merge_tasks(delta_bytes, buckets) / 1e6


def round_bytes(cores: int) -> int:
    """Return how many bytes of deltas a round reads at most, unless it is told `max_round_bytes`."""
    return MAX_ROUND_BYTES * max(1, cores // CORES_A_ROUND)


def merge_tasks(delta_bytes: float, buckets: float) -> int:
    """Return in how many tasks a round of so many bytes is merged, if none of its buckets are due by themselves."""
    return max(1, int(min(buckets, MOST_TASKS, delta_bytes // TASK_BYTES + LEAST_TASKS)))


@dataclass(frozen=True)
class Cost:
    """What a table costs: one round, the rounds of a compaction and of a day, and a month of them in dollars."""

    buckets: int
    rounds: int
    touched: int
    tasks: int
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
    def compaction_seconds(self) -> float:
        return self.rounds * self.round_seconds

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


@dataclass(frozen=True)
class Layout:
    """What one of the rounds of a compaction touches, and how that is shared, if keys change evenly.

    `tasks` are those that get any rows, and `kept_pages` those of the pages in which other buckets stay as they are.
    """

    rounds: int
    changed: float
    delta_bytes: float
    buckets: int
    bucket_rows: float
    touched: float
    base_files: int
    tasks: float
    stretches: float
    pages: float
    kept_pages: float


def layout_of(size: float, changed: float, cores: int, measured: Constants, settings: Settings) -> Layout:
    """Return how a compaction of so many changes to a table of so many bytes is laid out."""
    rows = size / measured.row
    rounds = max(1, math.ceil(changed * measured.delta / round_bytes(cores)))
    changed /= rounds
    delta_bytes = changed * measured.delta
    buckets = max(1, int(rows) // bucket_rows(int(rows), int(size)))
    touched = buckets * -math.expm1(-changed / buckets)
    tasks = min(merge_tasks(delta_bytes, buckets), max(1.0, touched))
    # No stretch goes beyond its task, and none has less than a bucket.
    full = max(touched / tasks / settings.stretch_buckets, changed / tasks / settings.stretch_rows)
    pages = kept_pages = 0.0
    if buckets > settings.page_buckets:
        every, each = touched / buckets, settings.page_buckets
        pages = buckets / each * (1 - (1 - every) ** each)
        kept_pages = buckets / each * (1 - (1 - every) ** each - every**each)
    return Layout(
        rounds=rounds,
        changed=changed,
        delta_bytes=delta_bytes,
        buckets=buckets,
        bucket_rows=rows / buckets,
        touched=touched,
        base_files=base_files(size / buckets, rows / buckets, settings),
        tasks=tasks,
        stretches=max(1.0, min(touched, tasks * math.ceil(full))),
        pages=pages,
        kept_pages=kept_pages,
    )


def base_files(size: float, rows: float, settings: Settings) -> int:
    """Return the files of a bucket that was just rewritten: one ends at its bytes or at its rows, whichever comes first."""
    return max(1, math.ceil(size / settings.target_file_bytes), math.ceil(rows / settings.records_per_compacted_file))


def put_count(objects: float, size: float) -> float:
    """Return the requests that write so many bytes as so many objects: a large one is begun, sent in parts, and ended."""
    each = size / max(objects, 1)
    return objects * (1 if each <= PART_BYTES else 2 + math.ceil(each / PART_BYTES))


def request_counts(layout: Layout, life: Life, measured: Constants) -> tuple[float, float]:
    """Return the puts and the gets of a round, on average: the formulas of docs/scale.md, and what rewriting adds."""
    each, base = layout, layout.touched * layout.base_files
    small, merged = each.stretches * life.small, each.stretches * life.merged
    carried = each.touched * life.carried
    rewritten = each.touched / life.rounds
    rewritten_rows, rewritten_files = rewritten * each.bucket_rows, rewritten * each.base_files
    puts = (
        2 + each.pages + put_count(each.stretches, each.touched * life.dead * measured.vector)
        + put_count(each.stretches, (each.changed + carried) * measured.row)
        + put_count(each.stretches, (each.changed + carried) * measured.index)
        + put_count(rewritten_files, rewritten_rows * measured.row)
        + put_count(rewritten_files, rewritten_rows * measured.index)
    )  # fmt: skip
    files, deltas = base + small, max(1.0, each.delta_bytes / PIECE_BYTES)
    is_large = each.bucket_rows / each.base_files * measured.index > SMALL_INDEX_BYTES
    # The rows of a stretch die in each of its files; a page is read by every task that has buckets of it.
    vectors = each.stretches + small
    pages = each.pages + each.kept_pages + (each.tasks - 1 if each.pages else 0)
    # Of what is merged or rewritten, each footer is read, and then the row groups.
    read_files = merged + rewritten * (each.base_files + life.small)
    groups = read_files + (carried + rewritten_rows) / MAX_ROW_GROUP_ROWS
    gets = 14 + deltas + files + (base if is_large else 0) + vectors + pages + read_files + groups
    return puts, gets + files


def cost_of(size: float, changed_a_day: float, compactions_a_day: int, cores: int, measured: Constants) -> Cost:
    """Return what a table of so many bytes costs, if its keys change evenly."""
    settings, rows = Settings(), size / measured.row
    layout = layout_of(size, rows * changed_a_day / compactions_a_day, cores, measured, settings)
    buckets, touched, changed, pages = layout.buckets, layout.touched, layout.changed, layout.pages
    life = life_of(layout.bucket_rows, changed / touched, layout.base_files, settings)
    rewritten = touched / life.rounds
    bucket_bytes = size / buckets * (1 + measured.index / measured.row)
    carried = touched * life.carried
    rewrite = (rewritten * size / buckets + carried * measured.row) / measured.rewritten_a_second
    merge = (
        changed * measured.change_seconds + touched * measured.bucket_seconds
        + layout.bucket_rows * touched * measured.stored_row_seconds
    )  # fmt: skip
    puts, gets = request_counts(layout, life, measured)
    dead = touched * life.dead
    merged_bytes = carried * (measured.row + measured.index)
    replaced = rewritten * bucket_bytes + merged_bytes + dead * measured.vector + pages * measured.page
    rounds_a_day = layout.rounds * compactions_a_day
    in_retention, month = RETENTION_DAYS * rounds_a_day, MONTH_DAYS * rounds_a_day
    cpu_seconds = measured.base_seconds + merge + rewrite

    def stored(count: float) -> float:
        return count / 1e12 * TERABYTE_MONTH_DOLLARS

    return Cost(
        buckets=buckets,
        rounds=layout.rounds,
        touched=round(touched),
        tasks=round(layout.tasks),
        rounds_to_rewrite=life.rounds,
        times_written=1 + life.carried / (changed / touched),
        # Planning and committing have one core, whatever there is.
        round_seconds=measured.base_seconds + (merge + rewrite) / min(cores, layout.tasks),
        shuffled_bytes=changed * measured.shuffled,
        written_bytes=changed * (measured.row + measured.index) + replaced - pages * measured.page,
        puts=puts,
        gets=gets,
        driver_mb=DRIVER_MB + touched * measured.driver_bucket / 1e6,
        task_mb=task_mb(layout.bucket_rows, layout.delta_bytes, buckets, measured),
        core_hours_a_day=cpu_seconds * rounds_a_day / 3600,
        core_dollars=cpu_seconds * month / 3600 * CORE_HOUR_DOLLARS,
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
            for rhythm, compactions in RHYTHMS.items():
                yield name, changed, rhythm, cost_of(size, changed, compactions, cores, measured)


def round_lines(cores: int, measured: Constants) -> list[list[str]]:
    """Return a table of what one round takes, and a compaction, with its head."""
    lines = [["table", "changed a day", "compacted", "rounds", f"on {cores} cores", "buckets touched", "rewritten every",
              "a change is written", "shuffled", "written", "puts", "driver", "task"]]  # fmt: skip
    for name, changed, rhythm, cost in all_costs(cores, measured):
        sizes = cost.shuffled_bytes, cost.written_bytes, cost.driver_mb * 1e6, cost.task_mb * 1e6
        shuffled, written, driver, task = map(size_of, sizes)
        often = f"{cost.rounds_to_rewrite:,} rounds" if cost.rounds_to_rewrite > 1 else "round"
        line = [name, f"{changed:.0%}", rhythm, f"{cost.rounds:,}", compaction_duration(cost, RHYTHMS[rhythm]),
                f"{cost.touched:,}", often, f"{cost.times_written:.1f} times"]  # fmt: skip
        lines.append([*line, shuffled, written, f"{cost.puts:,.0f}", driver, task])
    return lines


def dollar_lines(cores: int, measured: Constants) -> list[list[str]]:
    """Return a table of what a month costs, with its head."""
    lines = [["table", "changed a day", "compacted", "core-hours a day", "cores", "requests", "data", "key index",
              "dead rows", "replaced files", "deltas"]]  # fmt: skip
    for name, changed, rhythm, cost in all_costs(cores, measured):
        items = (
            cost.core_dollars, cost.request_dollars, cost.data_dollars, cost.index_dollars, cost.dead_dollars,
            cost.replaced_dollars, cost.delta_dollars,
        )  # fmt: skip
        lines.append([name, f"{changed:.0%}", rhythm, f"{cost.core_hours_a_day:,.1f}", *map(dollars, items)])
    return lines


def core_lines(measured: Constants) -> list[list[str]]:
    """Return a table of what large tables take on more and more cores, compacted daily, with its head."""
    lines = [["table", "changed a day", "cores", "rounds", "a compaction", "core-hours a day", "task",
              "a month: cores", "requests", "replaced files"]]  # fmt: skip
    for name in LARGE_SIZES:
        for cores in CORES:
            cost = cost_of(SIZES[name], CHANGED_AT_ONCE, 1, cores, measured)
            taken = compaction_duration(cost, 1), f"{cost.core_hours_a_day:,.0f}", size_of(cost.task_mb * 1e6)
            shown = map(dollars, (cost.core_dollars, cost.request_dollars, cost.replaced_dollars))
            lines.append([name, f"{CHANGED_AT_ONCE:.0%}", f"{cores:,}", f"{cost.rounds:,}", *taken, *shown])
    return lines


def compaction_duration(cost: Cost, compactions_a_day: int) -> str:
    """Return how long a compaction takes, and whether the next one is due before that."""
    is_late = cost.compaction_seconds > DAY_SECONDS / compactions_a_day
    return duration(cost.compaction_seconds) + (", too long" if is_late else "")


def dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount < 100 else f"${amount:,.0f}"


def duration(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds:,.1f} s" if seconds < 10 else f"{seconds:,.0f} s"
    return f"{seconds / 3600:,.1f} h" if seconds < 2 * DAY_SECONDS else f"{seconds / DAY_SECONDS:,.1f} days"


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
        costs = [{"table": name, "changed a day": changed, "compacted": rhythm, **asdict(cost),
                  "compaction_seconds": cost.compaction_seconds}
                 for name, changed, rhythm, cost in all_costs(options.cores, measured)]  # fmt: skip
        print(json.dumps({"constants": asdict(measured), "costs": costs}))
        return
    console = Console(width=150)
    for title, lines in (
        ("One round", round_lines(options.cores, measured)),
        ("A month", dollar_lines(options.cores, measured)),
        ("More cores", core_lines(measured)),
    ):
        table = Table(*lines[0], title=title)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)


if __name__ == "__main__":
    main()
