"""What rounds cost at sizes that were not measured: the model of docs/scale.md, with the constants that were.

`python -m benchmarks.cost_model [--cores 64]` prints its table.
"""

import argparse
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from siltstone.rows.job import Settings, bucket_rows

# Measured: see docs/scale.md for the commands.
ROW_BYTES = 27  # of a compacted row of benchmarks/orders.py, eight columns
CHANGE_SECONDS = 6e-6  # CPU to read, split, shuffle, merge and write one changed row
BUCKET_SECONDS = 0.0005  # CPU for each bucket that a round touches, however little changes in it
FILES_PER_BUCKET = 4  # on average, where a bucket is rewritten when it would have more than eight; one is its own
PAGE_BUCKETS = 128
STRETCH = Settings()  # how many buckets, and changed rows, are merged together
INDEX_BYTES = 7  # of the key index for a row
VECTOR_BYTES = 3  # of a deletion vector for a dead row, spread evenly

# Prices of a common store and of a core-hour, in dollars: put in your own.
PUT_DOLLARS, GET_DOLLARS, CORE_HOUR_DOLLARS, TERABYTE_MONTH_DOLLARS = 5e-6, 4e-7, 0.05, 23.0


@dataclass(frozen=True)
class Cost:
    """What one minor round costs."""

    buckets: int
    touched: int
    cpu_seconds: float
    shuffled_bytes: float
    written_bytes: float
    puts: int
    gets: int

    @property
    def request_dollars(self) -> float:
        return self.puts * PUT_DOLLARS + self.gets * GET_DOLLARS

    @property
    def core_dollars(self) -> float:
        return self.cpu_seconds / 3600 * CORE_HOUR_DOLLARS


def minor_round(table_bytes: float, fraction: float) -> Cost:
    """Return the cost of a minor round that changes a part of a table's rows, spread evenly over all keys."""
    rows = int(table_bytes / ROW_BYTES)
    changed = int(rows * fraction)
    buckets = max(1, rows // bucket_rows(rows, int(table_bytes)))
    touched = min(buckets, changed)
    stretches = min(touched, max(-(-touched // STRETCH.stretch_buckets), -(-changed // STRETCH.stretch_rows)))
    # Of each bucket the file of its last rewrite, and what its stretch has written since.
    files = touched + stretches * (FILES_PER_BUCKET - 1)
    pages = -(-touched // PAGE_BUCKETS) if buckets > PAGE_BUCKETS else 0
    return Cost(
        buckets,
        touched,
        changed * CHANGE_SECONDS + touched * BUCKET_SECONDS,
        changed * ROW_BYTES * 1.3,
        changed * (ROW_BYTES + INDEX_BYTES + VECTOR_BYTES),
        # The formula of docs/scale.md: in every stretch rows die, and each of its files has dead ones.
        2 + 2 * stretches + stretches + pages,
        14 + files + stretches * FILES_PER_BUCKET + files + 2 * pages,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, default=64)
    cores = parser.parse_args().cores
    names = (
        "table",
        "changed",
        "buckets",
        "CPU",
        f"on {cores} cores",
        "shuffled",
        "written",
        "puts",
        "requests",
        "cores",
    )
    table = Table(*names, title="One minor round")
    for size, name in (
        (1e10, "10 GB"),
        (1e11, "100 GB"),
        (1e12, "1 TB"),
        (1e13, "10 TB"),
        (1e14, "100 TB"),
        (1e15, "1 PB"),
    ):
        for fraction in (0.001, 0.01, 0.1):
            cost = minor_round(size, fraction)
            table.add_row(
                name,
                f"{fraction:.1%}",
                f"{cost.buckets:,}",
                duration(cost.cpu_seconds),
                duration(cost.cpu_seconds / min(cores, cost.touched)),
                size_of(cost.shuffled_bytes),
                size_of(cost.written_bytes),
                f"{cost.puts:,}",
                f"${cost.request_dollars:,.2f}",
                f"${cost.core_dollars:,.2f}",
            )
    Console(width=140).print(table)


def duration(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def size_of(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


if __name__ == "__main__":
    main()
