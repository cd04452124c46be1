"""The figures of README.md, docs/numbers.md and docs/scale.md, made from benchmarks/results, so that none is typed.

`python -m benchmarks.figures [--check]` replaces what stands between `<!-- figures: NAME -->` and `<!-- end of figures -->`, or tells with 1
which pages are not what the results say.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import cold_start, constants, cost_model, growth
from benchmarks import compaction as c
from benchmarks import document_tables as d
from benchmarks.format_merge import WAYS
from benchmarks.summary import Found, Results, read_results

PROJECT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/numbers.md", "docs/scale.md")
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
CORES = 64
# What Amazon published of a quarter: input, and the vCPU years that it took.
AMAZON_BYTES, AMAZON_CORE_HOURS = 1.5 * 2**60, 10_000 * 365.25 * 24
WIDTH = 120


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first have figures."""
    rule = ["---", *("--:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def _prose(text: str) -> str:
    """Return a paragraph in lines of the usual width."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _compaction(results: Results) -> str:
    found, sizes = results["compaction"], results["growth"]["sizes"]
    seconds = found["seconds"]
    order = [c.INITIAL, c.REPARTITION, c.FLOOR, c.WINDOW, *WAYS, c.DELTA_RS, c.DUCK, c.MAJOR, c.MINOR]
    lines = [[name, f"{seconds[name]:.2f}"] for name in order if name in seconds]
    lines += [
        [f"Siltstone, minor, the same changes to {each['rows']:,} rows", f"{each[growth.SPARK][0]:.2f}"]
        for each in sizes[1:]
    ]
    lines += [[name, f"{seconds[name]:.2f}"] for name in (c.DUCK_ONE, c.ONE, c.TINY)]
    head = f"{found['changes']:,} changes to {found['rows']:,} rows, warm session"
    return "\n\n".join([_table([head, "seconds"], lines), _compaction_prose(found, sizes)])


def _compaction_prose(found: Found, sizes: Sequence[Found]) -> str:
    reads, cold = found["read of all values after"], found["cold start"]
    releases = dict.fromkeys(f"{way.split(' MERGE')[0]} {release}" for way, release in found["formats"].items())
    formats = f" As SQL in a warm session of their own: {', '.join(releases)}." if releases else ""
    left_out = "".join(f" {way} is missing: {why}." for way, why in found["left out"].items())
    after = ", ".join(f"{name} {seconds:.2f} s" for name, (seconds, _) in reads.items())
    plain, dead = found["read, no dead rows"], found["read, 2 % dead"]
    return _prose(
        f"Reading every value on Spark afterwards took: {after}.{formats}{left_out} A Python worker that has done "
        f"nothing else took {sizes[0]['worker megabytes']} MB at most for the changes to {sizes[0]['rows']:,} rows, and "
        f"{sizes[-1]['worker megabytes']} MB for those to {sizes[-1]['rows']:,}. The first compaction from "
        f"a cold shell took {cold['siltstone']['total']:.1f} s, {cold[cold_start.COMMAND]['total']:.1f} s until the command "
        f"had ended, and {cold['untuned']['total']:.1f} s in a session that is not tuned; reading through Spark took "
        f"{plain[c.WHOLE][c.OURS]:.2f} s, and {plain[c.WHOLE][c.PLAIN]:.2f} s for the "
        f"same files as plain Parquet ({dead[c.WHOLE][c.OURS]:.2f} s and {dead[c.WHOLE][c.PLAIN]:.2f} s with 2 % of the rows "
        f"dead; {dead[c.FEW][c.OURS]:.2f} s and {dead[c.FEW][c.PLAIN]:.2f} s for two columns and a filter)."
    )


def _documents(results: Results) -> str:
    found, serving = results["document_tables"], results["document_serving"]
    names = {
        d.FIRST: "Siltstone, compact all into records, on Spark",
        d.SPARK_SQL: "Spark SQL, from_json and map_concat (content alone)",
        d.PYTHON: "Python's json in one process (content alone)",
        d.CHANGED: "Siltstone, compact 1 % changed",
    }
    lines = [[words, f"{found['seconds'][name]:.2f}"] for name, words in names.items()]
    (_, compacted), (waits, waiting) = serving["reads"].items()
    threads, updates = list(serving["updates"].items())[-1]
    prose = _prose(
        f"Of {serving['documents']:,} documents, one is read in {compacted['get, p50, ms']:.1f} ms (99 of 100 within "
        f"{compacted['get, p99, ms']:.1f} ms), and with {waits} in {waiting['get, p50, ms']:.1f} ms (99 of 100 within "
        f"{waiting['get, p99, ms']:.1f} ms); a thousand at once take {compacted['get_many of 1,000, s']:.2f} s, and a scan of "
        f"all reads {compacted['scan, documents a CPU second']:,.0f} in a CPU second. {threads} commit "
        f"{updates['updates a second']:,.0f} durable updates a second. The others fold values only; Siltstone also keeps "
        "versions, signatures and which deltas were redundant."
    )
    head = f"{found['deltas']:,} deltas of {found['documents']:,} documents"
    return "\n\n".join([_table([head, "seconds"], lines), prose])


def _states(results: Results) -> str:
    lines = []
    for line in results["scale"]["rounds"]:
        written = f"{line['pages']} pages and the completion, {line['completion_kb']} kB" if "pages" in line else ""
        lines.append([line["work"], f"{line['seconds']:.2f}", f"{line['peak_mb']} MB", written])
    return _table(["work", "seconds", "memory of the process", "written"], lines)


def _parts(results: Results) -> str:
    found = results["scale"]
    lines = [
        [f"{line['rows']:,}", f"{line['buckets']:,}", f"{line['split_cpu_seconds']:.2f}",
         f"{line['gather_cpu_seconds']:.2f}", f"{line['mb']:.1f}"]
        for line in (*found["parts"], *found["parts of many rows"])
    ]  # fmt: skip
    return _table(["rows", "buckets", "CPU to split, s", "CPU to gather, s", "MB"], lines)


def _wide(results: Results) -> str:
    few, *others = results["wide"]
    lines = [
        [f"{each['buckets']:,}", f"{each['changes'] / each['buckets']:,.0f}", f"{each['cpu_seconds']:.2f}",
         f"{each['ratio']:.1f}", f"{each['ms_a_bucket']:.2f} ms" if each is not few else "", f"{each['objects']:,}"]
        for each in (few, *others)
    ]  # fmt: skip
    head = [
        "buckets",
        "changes in each",
        "CPU, s",
        f"to {few['buckets']} buckets",
        "for each further bucket",
        "objects written",
    ]
    title = f"{few['changes']:,} changes to a table of {few['rows']:,} rows:"
    return "\n\n".join([title, _table(head, lines)])


def _partitions(results: Results) -> str:
    seconds = {line["work"]: line["seconds"] for line in results["scale"]["partitions"]}
    return _prose(
        f"A table of {results['scale']['partition_count']:,} partitions, on Spark in a warm session: one change in each takes "
        f"{seconds['the second change of each partition']:.1f} s, a compaction that finds nothing to do "
        f"{seconds['nothing to do']:.2f} s, and a lookup of a key that names its partition {seconds['a lookup']:.2f} s."
    )


def _small_rounds(results: Results) -> str:
    found = results["small_rounds"]
    lines = [
        [f"{each['changed']:.1%}, {each['way']}", f"{each['cpu_seconds']:.1f}", f"{each['written_mb']:,.0f}",
         f"{each['vector_mb']:,.1f}", f"{each['files_a_bucket']}", f"{each['scan_cpu_seconds']:.2f}",
         ", ".join(f"{each['actions'].get(action, 0):,} {action}" for action in ("minor", "tiered", "major"))]
        for each in found
    ]  # fmt: skip
    first = found[0]
    head = [f"{first['rounds']} rounds of {first['rows']:,} rows, {first['buckets']} buckets; changed in each",
            "CPU, s", "data written, MB", "vectors, MB", "files of a bucket", "CPU of a scan after, s", "buckets were"]  # fmt: skip
    return _table(head, lines)


def _growth(results: Results) -> str:
    found = results["growth"]
    first = found["sizes"][0]
    lines = []
    for each in found["sizes"]:
        line = [f"{each['rows']:,}", f"{each['buckets']}"]
        for engine in (growth.SPARK, growth.LOCAL):
            (seconds, cpu), (of_seconds, of_cpu) = each[engine], first[engine]
            line += [f"{seconds:.2f} (CPU {cpu:.2f})", f"{seconds / of_seconds:.2f} (CPU {cpu / of_cpu:.2f})"]
        lines.append([*line, f"{each['worker megabytes']} MB"])
    to = f"to {first['rows']:,} rows"
    head = [f"rows; {found['changes']:,} changes", "buckets", "seconds on Spark", to, "in one process", to, "a worker"]
    new = found["new keys"]
    (load, load_cpu), (insert, insert_cpu) = new["first load"], new["insert"]
    prose = _prose(
        f"A first load of {new['new']:,} rows takes {load:.2f} s (CPU {load_cpu:.1f}); as new keys that come to a table of "
        f"{new['onto']:,} rows they take {insert:.2f} s (CPU {insert_cpu:.1f}), {insert / load:.2f} times as much."
    )
    return "\n\n".join([_table(head, lines), prose])


def _constants(results: Results) -> str:
    found = results["constants"]
    measured = cost_model.Constants.measured()
    lines = [[words, f"{found[name]:,.2f}", "constants"] for name, words in constants.WORDS.items()]
    lines += [
        ["CPU of a touched bucket, ms", f"{measured.bucket_seconds * 1e3:,.2f}", "wide"],
        ["CPU of a row that does not change, in a touched bucket, ns", f"{measured.stored_row_seconds * 1e9:,.2f}", "growth"],
        ["memory of a worker for each row of its bucket, bytes", f"{measured.bucket_row:,.2f}", "growth"],
        ["memory of a worker besides, MB", f"{measured.worker_mb:,.2f}", "growth"],
        ["a page of 128 buckets, kB", f"{measured.page / 1e3:,.2f}", "scale"],
    ]  # fmt: skip
    return _table([f"of {found['rows']:,} rows of eight columns, on Spark", "measured", "by"], lines)


def _rounds(results: Results) -> str:
    head, *lines = cost_model.round_lines(CORES, cost_model.Constants.measured())
    return _table(head, lines)


def _dollars(results: Results) -> str:
    head, *lines = cost_model.dollar_lines(CORES, cost_model.Constants.measured())
    return _table(head, lines)


def _cores(results: Results) -> str:
    head, *lines = cost_model.core_lines(cost_model.Constants.measured())
    return _table(head, lines)


def _amazon(results: Results) -> str:
    measured = cost_model.Constants.measured()
    size, changed = 1e13, 0.01
    cost = cost_model.cost_of(size, changed, 1, CORES, measured)
    hours, rewritten = cost.core_hours_a_day, measured.rewritten_a_second * 3600
    deltas = size / measured.row * changed * measured.delta
    return _prose(
        f"In bytes of input for a core-hour, Amazon's figures come to about {AMAZON_BYTES / AMAZON_CORE_HOURS / 1e9:.0f} GB. "
        f"By the model, 10 TB of which 1 % changes take {hours:.0f} core-hours on {CORES} cores, in {cost.rounds} rounds, "
        f"rewriting of old files included: {deltas / hours / 1e9:.0f} GB of deltas for a core-hour, or {size / hours / 1e9:,.0f} GB "
        f"if the whole table counts as input. A rewrite of all of it is bound by reading, decoding and writing Parquet, "
        f"of which one core here does {measured.rewritten_a_second / 1e6:.0f} MB a second: {rewritten / 1e9:.0f} GB for a "
        f"core-hour, so that 10 TB take {size / rewritten:.0f} core-hours."
    )


def _kills(results: Results) -> str:
    found = results["lost_executors"]
    lost, seconds = found["seconds lost per kill"], found["seconds of a round"]
    size = cost_model.size_of(found["bytes of data"] + found["bytes of key index"])
    wrong = "; ".join(found["wrong"]) or "every value of every row was what the ledger says, and `fsck` found nothing"
    return _prose(
        f"The last run took {found['minutes']:.1f} minutes, until its {found['ended by']} were used up: {found['rows']:,} rows of "
        f"{found['keys ever']:,} keys ever written, {size} in {found['files']:,} files, buckets: {found['buckets']}, in "
        f"{found['rounds']} rounds ({found['rounds that rewrote']} of which rewrote most buckets). {found['kills']} executors "
        f"were killed and {found['sessions that failed']} sessions failed; {wrong}. A round took {seconds['without']} s "
        f"(median), one with a kill {seconds['with a kill']} s; a kill cost {lost['median']} s (median against the rounds next "
        f"to it of the same kind, {lost['most']:.1f} s at most)."
    )


def _log(results: Results) -> str:
    found = results["log"]
    lines = [
        [each["work"], f"{each['siltstone_seconds']:.2f} s", f"{each['spark_seconds']:.2f} s", f"{each['ratio']:.1f}"]
        for each in found["work"]
    ]
    head = f"a sink log of {found['entries']:,} entries, {found['compact_bytes'] / 1e6:.0f} MB"
    _, most = found["peak_growth_bytes"].values()
    prose = f"Compacting it takes {most / 1e6:.0f} MB of memory on top, as for a log a tenth of its size."
    return "\n\n".join([_table([head, "Siltstone", "Spark's own", "times as fast"], lines), prose])


def _commits(results: Results) -> str:
    lines = [
        [
            f"{each['commits']:,} \N{MULTIPLICATION SIGN} {each['work']}",
            f"{each['commits_per_second']:,.0f}",
            f"{each['second_half_to_first']:.2f}",
        ]
        for each in results["commits"]
    ]
    head = ["commits by 8 threads on one partition", "commits a second", "time per commit, second half to first"]
    return _table(head, lines)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "compaction": _compaction,
    "log": _log,
    "commits": _commits,
    "documents": _documents,
    "states": _states,
    "parts": _parts,
    "wide": _wide,
    "partitions": _partitions,
    "small_rounds": _small_rounds,
    "growth": _growth,
    "constants": _constants,
    "rounds": _rounds,
    "dollars": _dollars,
    "amazon": _amazon,
    "cores": _cores,
    "kills": _kills,
}


def filled(page: str, results: Results) -> str:
    """Return the text of a page with the figures of the results; where some are missing, with those that it has."""

    def fill(block: re.Match[str]) -> str:
        try:
            return f"{block[1]}{BLOCKS[block[2]](results)}\n{block[3]}"
        except (KeyError, FileNotFoundError) as error:
            print(f"{block[2]}: left as it is, the results have no {error}", file=sys.stderr)
            return block[0]

    return BLOCK.sub(fill, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args()
    results = read_results()
    differing = []
    for name in PAGES:
        text = (PROJECT / name).read_text(encoding="utf-8")
        if (new := filled(text, results)) != text:
            differing.append(name)
            if not options.check:
                (PROJECT / name).write_text(new, encoding="utf-8")
    print(f"{', '.join(differing) or 'no page'} {'differs' if options.check else 'changed'}")
    sys.exit(1 if options.check and differing else 0)


if __name__ == "__main__":
    main()
