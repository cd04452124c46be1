"""What all benchmarks found beside what was aimed at, hits and misses: the last lines of `make benchmark`.

`python -m benchmarks.summary [--json]` reads benchmarks/results. Ratios are of one run on one machine, so that they mean something on
another one, too; what was not measured is said.
"""

import argparse
import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import cold_start, constants, format_merge, growth, publish, spark_reads
from benchmarks import compaction as c

RESULTS = Path(__file__).parent / "results"
Found = dict[str, Any]
Results = dict[str, Any]


@dataclass(frozen=True)
class Aim:
    """One figure and its aim; None where it was not measured."""

    what: str
    file: str
    figure: float | None
    sign: str
    aim: float
    unit: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure <= self.aim if self.sign == "<=" else self.figure >= self.aim


def _ratio(one: str, other: str) -> Callable[[Found], float]:
    return lambda found: found["seconds"][one] / found["seconds"][other]


def _read(rows: str, kind: str) -> Callable[[Found], float]:
    return lambda found: found[rows][kind][c.OURS] / found[rows][kind][c.PLAIN]


def _dead(kind: str) -> Callable[[Found], float]:
    return lambda found: found["seconds"][kind][spark_reads.OURS] / found["seconds"][kind][spark_reads.PLAIN]


def _grown(times: int) -> Callable[[Found], float]:
    def ratio(found: Found) -> float:
        first, *others = found["sizes"]
        (large,) = (each for each in others if each["rows"] == times * first["rows"])
        return float(large[growth.SPARK][0] / first[growth.SPARK][0])

    return ratio


def _serving(state: int, name: str) -> Callable[[Found], float]:
    return lambda found: list(found["reads"].values())[state][name]


def _of_work(lines: str, work: str, name: str) -> Callable[[Found], float]:
    return lambda found: next(line[name] for line in found[lines] if line["work"] == work)


def _parts(found: Found) -> float:
    few, many = (each["split_cpu_seconds"] + each["gather_cpu_seconds"] for each in found["parts of many rows"])
    return float(many / few)


def _published(name: str) -> Callable[[Found], float]:
    return lambda found: float(found["many files"]["delta"][name])


def _published_round(kind: str) -> Callable[[Found], float]:
    def ratio(found: Found) -> float:
        minor = found["large rounds"][publish.MINOR]
        return float(minor[f"{kind}_seconds"] / minor["round_seconds"])

    return ratio


ROUND_OF_TEN = "a round that changes 10 buckets"
PLAN_OF_TEN = "a plan of a round that changes 10 buckets"
NOTHING = "a plan that finds nothing to do"
# What, the file that has it, how it follows, and what is aimed at.
AIMS: list[tuple[str, str, Callable[[Any], float], str, float, str]] = [
    ("minor / DuckDB", "compaction", _ratio(c.MINOR, c.DUCK), "<=", 0.6, ""),
    ("major / DuckDB", "compaction", _ratio(c.MAJOR, c.DUCK), "<=", 1.2, ""),
    ("minor / DuckDB, 1 % changed", "compaction", _ratio(c.ONE, c.DUCK_ONE), "<=", 0.5, ""),
    ("initial / Spark's repartition and write", "compaction", _ratio(c.INITIAL, c.REPARTITION), "<=", 0.8, ""),
    ("Spark's union and window / major", "compaction", _ratio(c.WINDOW, c.MAJOR), ">=", 5.0, ""),
    *((f"{way} / minor", "compaction", _ratio(way, c.MINOR), ">=", 3.0, "") for way in format_merge.WAYS),
    ("4 times the rows, the same changes", "growth", _grown(4), "<=", growth.AIMS[4], ""),
    ("8 times the rows, the same changes", "growth", _grown(8), "<=", growth.AIMS[8], ""),
    ("new keys: insert / first load", "growth", lambda found: found["new keys"]["insert"][0] / found["new keys"]["first load"][0],
     "<=", 1.3, ""),
    ("read, none dead: to_spark / Parquet", "compaction", _read("read, no dead rows", c.WHOLE), "<=", 1.2, ""),
    ("read, 2 % dead: to_spark / Parquet", "spark_reads", _dead(spark_reads.WHOLE), "<=", 1.2, ""),
    ("read, 2 % dead, two columns and a filter", "spark_reads", _dead(spark_reads.TWO), "<=", 1.5, ""),
    ("`siltstone compact` from a cold shell", "compaction", lambda found: found["cold start"][cold_start.COMMAND]["total"], "<=", 4.0, "s"),
    ("a plan of nothing among a million files", "scale", _of_work("rounds", NOTHING, "seconds"), "<=", 1.0, "s"),
    ("a round of ten buckets among them", "scale", _of_work("rounds", ROUND_OF_TEN, "seconds"), "<=", 2.0, "s"),
    ("its memory", "scale", _of_work("rounds", ROUND_OF_TEN, "peak_mb"), "<=", 500, "MB"),
    ("splitting 10 M rows: 131,072 buckets / 128", "scale", _parts, "<=", 3.0, ""),
    ("10 M changes in 131,072 buckets / in 128", "wide", lambda found: found[-1]["ratio"], "<=", 3.0, ""),
    ("a plan of ten buckets among a million files", "scale", _of_work("rounds", PLAN_OF_TEN, "seconds"), "<=", 1.0, "s"),
    ("nothing new in 1,000 partitions", "scale", _of_work("partitions", "nothing to do", "seconds"), "<=", 0.3, "s"),
    *(
        (f"get, {name}, {state}", "document_serving", _serving(number, f"get, {name}, ms"), "<=", aim, "ms")
        for number, state in enumerate(("compacted", "updates waiting"))
        for name, aim in (("p50", 5.0), ("p99", 20.0))
    ),
    ("get_many of 1,000", "document_serving", _serving(0, "get_many of 1,000, s"), "<=", 0.2, "s"),
    ("full scan, documents a CPU second", "document_serving", _serving(0, "scan, documents a CPU second"), ">=", 100_000, ""),
    ("ten of 10,000 files published, actions", "publish", _published("file_actions"), "<=", 20, ""),
    ("ten of 10,000 files published, beyond reading", "publish", _published("beyond_ms"), "<=", 50, "ms"),
    *((f"publishing as {kind} / minor round", "publish", _published_round(kind), "<=", 0.05, "") for kind in publish.FORMATS),
    ("durable updates a second, 8 threads", "document_serving",
     lambda found: found["updates"]["8 threads"]["updates a second"], ">=", 2000, ""),
]  # fmt: skip


def read_results() -> Results:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}


def aims(results: Results) -> Iterator[Aim]:
    for what, file, figure, sign, aim, unit in AIMS:
        try:
            found: float | None = figure(results[file])
        except (KeyError, ValueError, StopIteration):
            # Left out, or from before this was measured.
            found = None
        yield Aim(what, file, found, sign, aim, unit)


def show(results: Results) -> None:
    console = Console(width=120)
    if "constants" in results:
        constants.show(results["constants"])
    shown = Table("what", "measured", "aim", "", "from", title="Aims")
    for each in aims(results):
        figure = "not measured" if each.figure is None else _text(each.figure, each.unit)
        met = {True: "met", False: "[bold]missed[/bold]", None: ""}[each.is_met]
        shown.add_row(each.what, figure, f"{each.sign} {_text(each.aim, each.unit)}", met, f"{each.file}.json")
    console.print(shown)
    for way, why in results.get("compaction", {}).get("left out", {}).items():
        console.print(f"{way} was left out: {why}")
    all_aims = list(aims(results))
    counts = {met: sum(each.is_met is met for each in all_aims) for met in (True, False, None)}
    days = {datetime.date.fromtimestamp((RESULTS / f"{each.file}.json").stat().st_mtime) for each in all_aims
            if (RESULTS / f"{each.file}.json").exists()}  # fmt: skip
    console.print(f"{counts[True]} met, {counts[False]} missed, {counts[None]} not measured; results of "
                  + ", ".join(map(str, sorted(days))))  # fmt: skip


def _text(figure: float, unit: str) -> str:
    digits = 0 if figure >= 100 else 2
    return f"{figure:,.{digits}f} {unit}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    results = read_results()
    if parser.parse_args().json:
        print(json.dumps([{**asdict(each), "is_met": each.is_met} for each in aims(results)]))
    else:
        show(results)


if __name__ == "__main__":
    main()
