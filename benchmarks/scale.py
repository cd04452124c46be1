"""What a round costs in a table of many files, without the files: the plan, the completion in pages, the parts of deltas.

`python -m benchmarks.scale [--files 1000000] [--partitions 1000] [--json]` makes a state with so many files, four to a bucket, none of which
exists, but for some buckets that are empty. It then measures, each in a process of its own, a plan that finds nothing to
do, and a round that changes ten of the empty buckets. Then it measures splitting a row group of a delta, and `--changed`
rows of them, by bucket and task, for few and for many buckets, and compacts a table of many partitions on Spark. It writes
benchmarks/results/scale.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

import siltstone
from siltstone.model.buckets import Bucket, BucketLine, Buckets, CompactedFile
from siltstone.objects import open_objects
from siltstone.rows.columns import hash_keys
from siltstone.rows.parts import Tasks, read_parts, stretches
from siltstone.spark import local_session
from siltstone.spark.tasks import merge_tasks
from siltstone.table.completion import (
    commit_round,
    compacted_partition,
    current_completion,
    locate_destination,
    write_completion,
)
from siltstone.table.jobs import Keys, merging_job

RESULTS = Path(__file__).parent / "results/scale.json"
NAME = "shop.orders"
FILES_PER_BUCKET = 4
TOUCHED = 10
ROW_GROUP = 131_072
BUCKETS = (1, 16, 256, 4096, 16_384, 131_072)
WIDE = (128, 131_072)


def make_lake(root: str, files: int) -> None:
    """Make a table with a round that names so many files, in buckets of which those of the first keys are empty."""
    table = siltstone.open(root).create_table(
        NAME, schema={"order_id": "int64", "note": "string"}, primary_keys=["order_id"]
    )
    table.write(rows_of([0]))
    table.compact(engine="local")
    destination = locate_destination(compacted_partition(table._sources()[0]), root=root)
    completion = current_completion(destination)
    assert completion is not None
    depth = max(1, (files // FILES_PER_BUCKET - 1).bit_length())
    empty = {int(hash_) >> (64 - depth) for hash_ in hash_keys(pa.table({"order_id": keys()}), ["order_id"])}
    folder = destination.folder

    def bucket(bits: int) -> Bucket:
        if bits in empty:
            return Bucket(depth=depth, bits=bits)
        names = [f"{folder}/{bits:08x}{number:024x}-r0" for number in range(FILES_PER_BUCKET)]
        return Bucket(
            depth=depth,
            bits=bits,
            files=[
                CompactedFile(
                    uri=f"{name}.parquet", record_count=500_000, content_length=13 << 20, index_uri=f"{name}.pki"
                )
                for name in names
            ],
        )

    completion.buckets = Buckets.even(depth).replaced(
        {bits: [BucketLine.of(bucket(bits))] for bits in range(1 << depth)}
    )
    completion.round_id = 2
    commit_round(destination, completion, write_completion(destination, completion, 0), 1)


def keys() -> list[int]:
    return list(range(1, TOUCHED + 1))


def rows_of(numbers: Sequence[int]) -> pa.Table:
    return pa.table({"order_id": numbers, "note": [f"note {number}" for number in numbers]})


def measure(work: Callable[[], object]) -> dict[str, Any]:
    """Return the seconds of some work, and the most memory that this process ever had."""
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return {
        "seconds": round(time.perf_counter() - started, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def measure_plan(root: str) -> dict[str, Any]:
    table = siltstone.open(root).table(NAME)
    return {"work": "a plan that finds nothing to do", **measure(lambda: check(not table.plan().rounds))}


def measure_preview(root: str) -> dict[str, Any]:
    table = siltstone.open(root).table(NAME)
    table.write(rows_of(keys()))
    return {
        "work": f"a plan of a round that changes {TOUCHED} buckets",
        **measure(lambda: check(len(table.plan().rounds[0].buckets) == TOUCHED)),
    }


def measure_round(root: str) -> dict[str, Any]:
    """Measure the round that was planned."""
    table = siltstone.open(root).table(NAME)
    before = {each.path for each in open_objects(root).list_objects("", recursive=True)}
    result = measure(lambda: check(table.compact(engine="local").rounds[0].delta_rows == TOUCHED))
    written = [each for each in open_objects(root).list_objects("", recursive=True) if each.path not in before]
    pages = [each for each in written if "/rounds/" in each.path]
    sizes = {"pages": len(pages) - 1, "completion_kb": round(sum(each.size for each in pages) / 1024)}
    return {"work": f"a round that changes {TOUCHED} buckets", **result, **sizes}


def check(is_right: bool) -> None:
    assert is_right


def measure_parts(folder: Path, rows: int, buckets: int) -> dict[str, Any]:
    """Split changed rows for so many buckets, and put them together again by bucket."""
    root = str(folder / f"parts-{rows}-{buckets}")
    table = siltstone.open(root).create_table(
        NAME, schema={"order_id": "int64", "amount": "double", "note": "string"}, primary_keys=["order_id"]
    )
    rng = np.random.default_rng(7)
    sizes = (min(ROW_GROUP, rows - start) for start in range(0, rows, ROW_GROUP))
    table.write(batch for size in sizes for batch in changed_rows(rng.integers(0, 1 << 40, size)).to_batches())
    (source,) = table._sources()
    destination = locate_destination(compacted_partition(source), root=root)
    version = table.version
    job = merging_job(destination, None, table.deltas(), Keys(tuple(version.primary_keys)), version, version)
    job = replace(job, buckets=Buckets.even(buckets.bit_length() - 1))
    tasks = Tasks(range(buckets), min(buckets, 64 if rows <= ROW_GROUP else merge_tasks(job, is_full=False)))
    started = time.process_time()
    parts = list(read_parts(job, job.reads, tasks))
    split_at = time.process_time()
    by_task: dict[int, list[bytes]] = {}
    for task, part in parts:
        by_task.setdefault(task, []).append(part)
    found = [stretch for task, own in by_task.items() for stretch in stretches(job, tasks.numbers_of(task), own)]
    check(0 < sum(len(stretch.numbers) for stretch in found) <= buckets)
    return {
        "rows": rows,
        "buckets": buckets,
        "parts": len(parts),
        "split_cpu_seconds": round(split_at - started, 3),
        "gather_cpu_seconds": round(time.process_time() - split_at, 3),
        "mb": round(sum(len(part) for _, part in parts) / 1e6, 1),
    }


def changed_rows(numbers: Any) -> pa.Table:
    notes = pc.binary_join_element_wise("note", pc.cast(pa.array(numbers), pa.string()), " ")
    return pa.table({"order_id": numbers, "amount": numbers / 7, "note": notes})


def measure_partitions(root: str, count: int) -> dict[str, Any]:
    """Compact one change in each partition of a table on Spark, in a warm session, and then find nothing to do."""
    table = siltstone.open(root).create_table(
        "web.visits",
        schema={"day": "string", "id": "int64", "note": "string"},
        primary_keys=["day", "id"],
        partition_keys=["day"],
    )
    spark = local_session()
    days = [f"day {number}" for number in range(count)]
    table.write(pa.table({"day": days[:1], "id": [0], "note": ["warm"]}))
    table.compact(spark=spark)
    results = []
    for note in ("first", "second"):
        table.write(pa.table({"day": days, "id": [1] * count, "note": [note] * count}))
        done = measure(lambda: check(len(table.compact(spark=spark).rounds) == count))
        results.append({"work": f"the {note} change of each partition", **done})
    results.append({"work": "nothing to do", **measure(lambda: check(not table.compact(spark=spark).rounds))})
    results.append({"work": "a lookup", **measure(lambda: check(bool(table.lookup({"day": days[-1], "id": 1}))))})
    return {"results": results}


STEPS: dict[str, Callable[[str, int], Any]] = {
    "make": make_lake,
    "plan": lambda root, _: measure_plan(root),
    "preview": lambda root, _: measure_preview(root),
    "round": lambda root, _: measure_round(root),
    "partitions": measure_partitions,
}


def in_process(step: str, root: str, files: int) -> Any:
    """Run a step in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--step", step, "--root", root, "--files", str(files)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--changed", type=int, default=10_000_000, help="changed rows to split by bucket")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--root", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        json.dump(STEPS[options.step](options.root, options.files), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(folder) / "lake")
        in_process("make", root, options.files)
        rounds = [in_process(step, root, options.files) for step in ("plan", "preview", "round")]
        parts = [measure_parts(Path(folder), ROW_GROUP, buckets) for buckets in BUCKETS]
        many_rows = [measure_parts(Path(folder), options.changed, buckets) for buckets in WIDE]
        partitions = in_process("partitions", str(Path(folder) / "partitions"), options.partitions)["results"]
    results = {
        "files": options.files,
        "rounds": rounds,
        "parts": parts,
        "parts of many rows": many_rows,
        "partition_count": options.partitions,
        "partitions": partitions,
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(results))
        return
    show(f"A table of {options.files:,} files", rounds)
    show(f"A table of {options.partitions:,} partitions, on Spark", partitions)
    show("Splitting changed rows by bucket", [*parts, *many_rows])


def show(title: str, lines: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for line in lines for name in line))
    table = Table(*(name.replace("_", " ") for name in names), title=title)
    for line in lines:
        table.add_row(*(str(line.get(name, "")) for name in names))
    Console().print(table)


if __name__ == "__main__":
    main()
