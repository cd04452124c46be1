"""Tables of documents: compaction on Spark, beside Python and Spark SQL doing what they can; reads and updates of a service.

`python -m benchmarks.document_tables [--deltas 1000000] [--documents 100000] [--json]` prints tables, and writes
benchmarks/results/document_tables.json and a plot. The session is warm. All results are compared with each other. The
deltas are shallow, as Spark SQL can fold no others: it neither knows versions, signatures, redundancy nor conditions.

`--serving` measures what one long-lived process does without Spark: single reads, many at once, durable updates of `--threads`
threads, `--updates` of them waiting, scans, and a document of `--hot` deltas. A CPU second is one of this process, whatever
else the machine does. Compare with `--documents 1000000 --updates 10000`; `--folder` keeps the table, which takes two minutes to make.
"""

import argparse
import gc
import json
import multiprocessing
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Table

import siltstone
from siltstone.documents import recent
from siltstone.documents.record import change_id_at
from siltstone.log.commit import forget_logs
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results"
READS = 100
SERVED = "shop.reviews"
DELAY_SECONDS = 60
WRITE, FIRST, SECOND, THIRD = "write", "compact: records", "compact: deletes", "compact: nothing to do"
CHANGED = "compact: 1 % changed"
PYTHON, SPARK_SQL = "json alone, in one process", "Spark SQL: from_json, map_concat"


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def first_delta(document: int, draw: random.Random) -> str:
    return f'{{"name":"Bob {document}","rating":{draw.randrange(5)},"state":"NEW","city":"Springfield"}}'


def make_updates(deltas: int, documents: int, first_ms: int) -> pa.Table:
    """Make deltas in order of time: a literal for each document, then changes of two of some keys, at random."""
    draw = random.Random(1)
    keys, texts, ids = [], [], []
    for number in range(deltas):
        document = number if number < documents else draw.randrange(documents)
        keys.append(f"review-{document:07}")
        if number < documents:
            texts.append(first_delta(document, draw))
        else:
            texts.append(f'{{..,"state":"S{draw.randrange(4)}","k{draw.randrange(8)}":{number}}}')
        ids.append(change_id_at(first_ms, ticks=10 * number, node=1 << 40))
    return pa.table({"key": keys, "delta": texts, "change_id": ids})


def fold_in_python(path: Path) -> dict[str, dict[str, Any]]:
    """Fold shallow puts with `json` alone, from the same file, in one process, to JSON again."""
    rows = pq.read_table(path)
    content: dict[str, dict[str, Any]] = {}
    for key, text in zip(rows.column("key").to_pylist(), rows.column("delta").to_pylist(), strict=True):
        if text.startswith("{.."):
            content[key].update(json.loads("{" + text[4:]))
        else:
            content[key] = json.loads(text)
    texts = [json.dumps(each, separators=(",", ":"), sort_keys=True) for each in content.values()]
    assert len(texts) == len(content)
    return content


def fold_in_sql(spark: SparkSession, path: Path, target: Path) -> DataFrame:
    """Fold shallow puts as Spark SQL does best: deltas in order, as maps, the later ones over the earlier."""
    rows = spark.read.parquet(str(path))
    order = "concat(substr(change_id, 16, 3), substr(change_id, 10, 4), substr(change_id, 1, 8))"
    body = sf.expr("if(startswith(delta, '{..,'), concat('{', substr(delta, 5)), delta)")
    puts = rows.select("key", sf.expr(order).alias("at"), sf.from_json(body, "map<string,string>").alias("puts"))
    listed = puts.groupBy("key").agg(
        sf.sort_array(sf.collect_list(sf.struct("at", sf.map_entries("puts")))).alias("all")
    )
    merged = listed.selectExpr("key", "to_json(map_from_entries(flatten(transform(all, x -> x.col2)))) as content")
    merged.write.mode("overwrite").parquet(str(target))
    return spark.read.parquet(str(target))


class Reads:
    """Times of reading single documents, at random."""

    def __init__(self, documents: int) -> None:
        draw = random.Random(2)
        self._keys = [f"review-{draw.randrange(documents):07}" for _ in range(READS)]

    def milliseconds(self, docs: siltstone.DocumentTable, reads: int = READS) -> dict[str, float]:
        times = [1000 * timed(lambda key=key: docs.get(key)) for key in self._keys[:reads]]  # type: ignore[misc]
        return {"median": statistics.median(times), "most": max(times)}


def check(docs: siltstone.DocumentTable, spark: SparkSession, content: dict[str, dict[str, Any]], deltas: int) -> None:
    """Compare all documents with what Python made of them."""
    found = docs.to_spark(spark).select("key", "content", "version").toArrow()
    assert sum(found.column("version").to_pylist()) == deltas
    assert {row["key"]: json.loads(row["content"]) for row in found.to_pylist()} == content


def measure(folder: Path, deltas: int, documents: int) -> dict[str, Any]:
    spark = local_session("benchmark", conf={"spark.driver.memory": "4g", "spark.sql.mapKeyDedupPolicy": "LAST_WIN"})
    now_ms = time.time_ns() // 1_000_000
    updates = make_updates(deltas, documents, now_ms)
    path = folder / "updates.parquet"
    pq.write_table(updates, path)
    seconds: dict[str, float] = {}
    reads: dict[str, dict[str, float]] = {}
    point = Reads(documents)
    lake = siltstone.open(folder / "lake")
    warm = lake.create_document_table("shop.warm", full_consistency_delay=DELAY_SECONDS)
    warm.update_many(updates.slice(0, min(documents, 1000)))
    warm.compact(now_ms + 2 * DELAY_SECONDS * 1000, spark)
    docs = lake.create_document_table("shop.reviews", full_consistency_delay=3600)
    seconds[WRITE] = timed(lambda: docs.update_many(spark.read.parquet(str(path))))
    reads["before compaction"] = point.milliseconds(docs, 10)
    hour = 3_600_000
    later_ms = now_ms + 2 * hour
    seconds[FIRST] = timed(lambda: docs.compact(later_ms, spark))
    reads["with records"] = point.milliseconds(docs)
    seconds[SECOND] = timed(lambda: docs.compact(later_ms + 2 * hour, spark))
    reads["compacted"] = point.milliseconds(docs)
    seconds[THIRD] = timed(lambda: docs.compact(later_ms + 4 * hour, spark))
    changes = make_updates(documents + deltas // 100, documents, later_ms + 5 * hour).slice(documents)
    docs.update_many(changes)
    seconds[CHANGED] = timed(lambda: docs.compact(later_ms + 7 * hour, spark))
    reads["compacted, then 1 % changed"] = point.milliseconds(docs)
    seconds["all documents on Spark"] = timed(
        lambda: docs.to_spark(spark).write.format("noop").mode("overwrite").save()
    )
    content: dict[str, dict[str, Any]] = {}
    seconds[PYTHON] = timed(lambda: content.update(fold_in_python(path)))
    fold_in_sql(spark, path, folder / "sql")
    seconds[SPARK_SQL] = timed(lambda: fold_in_sql(spark, path, folder / "sql"))
    assert spark.read.parquet(str(folder / "sql")).count() == documents
    fresh = lake.create_document_table("shop.checked", full_consistency_delay=3600)
    fresh.update_many(updates)
    for hours in (2, 4):
        fresh.compact(now_ms + hours * hour, spark)
    check(fresh, spark, content, deltas)
    return {"deltas": deltas, "documents": documents, "seconds": seconds, "milliseconds": reads}


def make_served(folder: Path, documents: int) -> None:
    """Make a table of documents, compacted to one record each, unless it is there: a million take about two minutes."""
    lake = siltstone.open(folder / "lake")
    if not lake.has_table(SERVED):
        draw = random.Random(1)
        docs = lake.create_document_table(SERVED, full_consistency_delay=1)
        docs.update_many((f"review-{number:07}", first_delta(number, draw)) for number in range(documents))
    docs = lake.document_table(SERVED)
    for _ in range(2):
        # What is complete is a second old.
        time.sleep(1.1)
        docs.compact(engine="local")


class Serving:
    """One process that reads and updates a table of documents for as long as it lives."""

    def __init__(self, folder: Path, documents: int) -> None:
        self.lake = siltstone.open(folder / "lake")
        self.docs = self.lake.document_table(SERVED)
        self._documents = documents
        self._draw = random.Random(3)

    def _keys(self, count: int) -> list[str]:
        return [f"review-{self._draw.randrange(self._documents):07}" for _ in range(count)]

    def reads(self, count: int) -> dict[str, float]:
        """Read documents one by one, first as a process does that knows nothing; then many at once, then all."""
        forget_logs(self.lake.root)
        recent.recent_deltas = recent.RecentDeltas()
        gc.collect()
        figures = {"get, the first one, ms": 1000 * timed(lambda: self.docs.get(self._keys(1)[0]))}
        started = time.process_time()
        times = sorted(1000 * timed(lambda key=key: self.docs.get(key)) for key in self._keys(count))  # type: ignore[misc]
        figures["get, p50, ms"] = times[len(times) // 2]
        figures["get, p99, ms"] = times[len(times) * 99 // 100]
        figures["get, CPU ms"] = 1000 * (time.process_time() - started) / count
        many = self._keys(1000)
        started = time.process_time()
        figures["get_many of 1,000, s"] = min(timed(lambda: self.docs.get_many(many)) for _ in range(3))
        figures["get_many of 1,000, CPU s"] = (time.process_time() - started) / 3
        started = time.process_time()
        found = sum(1 for _ in self.docs.scan())
        assert found == self._documents
        figures["scan, documents a CPU second"] = found / (time.process_time() - started)
        return figures

    def updates(self, count: int, threads: int) -> dict[str, float]:
        """Update documents from threads, each update durable before the next of its thread."""
        positions = len(self.docs.table.deltas())
        keys = self._keys(count)
        shares = [keys[number::threads] for number in range(threads)]

        def work(share: list[str]) -> None:
            for number, key in enumerate(share):
                self.docs.update(key, f'{{..,"state":"S{number % 4}","k{number % 8}":{number}}}')

        started = time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            seconds = timed(lambda: list(pool.map(work, shares)))
        commits = len(self.docs.table.deltas()) - positions
        return {
            "updates a second": count / seconds,
            "CPU ms each": 1000 * (time.process_time() - started) / count,
            "updates a commit": count / commits,
        }

    def hot(self, deltas: int) -> float:
        """Return the CPU seconds to read a document of many deltas."""
        table = self.lake.create_document_table(f"shop.hot{time.time_ns()}")
        table.update_many([("hot", f'{{..,"state":"S{number % 4}","n":{number}}}') for number in range(deltas)])
        table.get("other")
        started = time.process_time()
        assert table.get("hot")["~version"] == deltas
        return time.process_time() - started


def measure_serving(folder: Path, documents: int, updates: int, threads: int, hot: int) -> dict[str, Any]:
    # In a process of its own, so that this one knows nothing yet.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(make_served, folder, documents).result()
    serving = Serving(folder, documents)
    reads = {"compacted": serving.reads(1000)}
    alone = max(updates // 10, 1)
    written = {"1 thread": serving.updates(alone, 1), f"{threads} threads": serving.updates(updates - alone, threads)}
    waiting = len(serving.docs.table.snapshot(fresh=True).waiting)
    reads[f"{updates:,} updates in {waiting:,} commits waiting"] = serving.reads(1000)
    return {"documents": documents, "reads": reads, "updates": written, "hot": {"deltas": hot, "s": serving.hot(hot)}}


def serving_tables(result: dict[str, Any]) -> list[Table]:
    reads = Table("reads", title=f"A table of {result['documents']:,} documents")
    for name in result["reads"]:
        reads.add_column(name, justify="right")
    for name in next(iter(result["reads"].values())):
        values = [figures[name] for figures in result["reads"].values()]
        reads.add_row(name, *(f"{value:,.0f}" if value >= 1000 else f"{value:.2f}" for value in values))
    hot = result["hot"]
    reads.add_row(f"get of {hot['deltas']:,} deltas, CPU s", f"{hot['s']:.2f}")
    updates = Table("durable updates")
    for name in next(iter(result["updates"].values())):
        updates.add_column(name, justify="right")
    for threads, figures in result["updates"].items():
        updates.add_row(threads, *(f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in figures.values()))
    return [reads, updates]


def tables(result: dict[str, Any]) -> list[Table]:
    title = f"{result['deltas']:,} deltas of {result['documents']:,} documents"
    work = Table("work", title=title)
    work.add_column("seconds", justify="right")
    work.add_column("deltas/s", justify="right")
    for name, seconds in result["seconds"].items():
        is_whole = name in (WRITE, FIRST, PYTHON, SPARK_SQL)
        work.add_row(name, f"{seconds:.2f}", f"{result['deltas'] / seconds:,.0f}" if is_whole else "")
    reads = Table("one document", title="Reads, milliseconds")
    for name in ("median", "most"):
        reads.add_column(name, justify="right")
    for name, times in result["milliseconds"].items():
        reads.add_row(name, f"{times['median']:.1f}", f"{times['most']:.1f}")
    return [work, reads]


def plot(result: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [FIRST, SECOND, CHANGED, PYTHON, SPARK_SQL]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 3.4), layout="constrained")
    colors = ["tab:blue" if name.startswith("compact") else "tab:gray" for name in names]
    left.barh(names[::-1], [result["seconds"][name] for name in names[::-1]], color=colors[::-1])
    left.set_xlabel("seconds")
    left.set_title(f"{result['deltas']:,} deltas of {result['documents']:,} documents")
    reads = list(result["milliseconds"])
    bars = right.barh(reads[::-1], [result["milliseconds"][name]["median"] for name in reads[::-1]])
    right.bar_label(bars, fmt="%.1f", padding=3)
    right.margins(x=0.15)
    right.set_xlabel("milliseconds, median")
    right.set_title("reading one document")
    for ending in ("png", "svg"):
        figure.savefig(RESULTS / f"document_tables.{ending}", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deltas", type=int, default=1_000_000)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument(
        "--serving", action="store_true", help="measure reads and updates of one process, without Spark"
    )
    parser.add_argument("--updates", type=int, default=4000, help="how many wait when documents are read")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--hot", type=int, default=100_000, help="deltas of one document")
    parser.add_argument("--folder", type=Path, help="where the table that is served is made, and found the next time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="siltstone-documents-"))
    try:
        if options.serving:
            result = measure_serving(folder, options.documents, options.updates, options.threads, options.hot)
        else:
            result = measure(folder, options.deltas, options.documents)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    name = "document_serving" if options.serving else "document_tables"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    if not options.serving:
        plot(result)
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for table in (serving_tables if options.serving else tables)(result):
        Console().print(table)


if __name__ == "__main__":
    main()
