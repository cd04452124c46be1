"""Documents: how fast deltas are parsed, applied and expanded, beside plain `json` and orjson doing as much as they can.

`python -m benchmarks.documents [--documents 20000] [--json]` prints tables and writes benchmarks/results/documents.json.
Times are of one process, in seconds of its processor; the best of some runs counts.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from siltstone.documents.expand import expand, resolve
from siltstone.documents.language import Json, parse_delta
from siltstone.documents.record import Row, change_id_at

RESULTS = Path(__file__).parent / "results/documents.json"
REPEATS = 5
START_MS = 1_700_000_000_000
DELTAS_PER_DOCUMENT = 10

REVIEW: dict[str, Any] = {
    "name": "Bob 17",
    "email": "bob17@example.com",
    "rating": 4,
    "active": True,
    "submitted": "2024-05-17T12:30:00.000Z",
    "address": {"street": "Main St 3", "city": "Springfield", "tags": ["a", "b"]},
}
LARGE = {f"review {number}": {**REVIEW, "rating": number, "weight": number / 7} for number in range(500)}


def best(work: Callable[[], object]) -> float:
    """Seconds of the best of some runs."""
    seconds = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def measure_language(rounds: int) -> list[dict[str, Any]]:
    """Parse a text and apply it to a document, again and again."""
    old: Json = dict(REVIEW)
    literal, large = json.dumps(REVIEW), json.dumps(LARGE)
    change = '{"rating":5,"state":"APPROVED"}'
    condition = 'if {..,"rating":ge(3),"state":~} then {..,"state":"APPROVED"} else {..,"state":"HELD"} end'
    nested = '{..,"address":{..,"city":"Shelbyville","tags":(..,"c",~"a")}}'

    def conditional_in_python(loads: Callable[[str], Any]) -> Callable[[], object]:
        """The same decision on a document, with the branches as JSON."""
        chosen, other = '{"state":"APPROVED"}', '{"state":"HELD"}'
        return lambda: {**REVIEW, **loads(chosen if REVIEW["rating"] >= 3 and "state" not in REVIEW else other)}

    cases: list[
        tuple[str, int, Callable[[], object], Callable[[Callable[[str], Any]], Callable[[], object]] | None]
    ] = [
        (
            f"literal of {len(literal)} bytes",
            1,
            lambda: parse_delta(literal).apply(old),
            lambda loads: lambda: loads(literal),
        ),
        (
            f"literal of {len(large) // 1000} kB",
            500,
            lambda: parse_delta(large).apply(old),
            lambda loads: lambda: loads(large),
        ),
        (
            "map delta",
            1,
            lambda: parse_delta("{..," + change[1:]).apply(old),
            lambda loads: lambda: {**REVIEW, **loads(change)},
        ),
        ("conditional", 2, lambda: parse_delta(condition).apply(old), conditional_in_python),
        ("nested map and set", 2, lambda: parse_delta(nested).apply(old), None),
    ]
    return [_compared(name, max(1, rounds // weight), ours, peer) for name, weight, ours, peer in cases]


def _compared(
    name: str,
    rounds: int,
    ours: Callable[[], object],
    peer: Callable[[Callable[[str], Any]], Callable[[], object]] | None,
) -> dict[str, Any]:
    def each_second(work: Callable[[], object]) -> int:
        return round(rounds / best(lambda: [work() for _ in range(rounds)]))

    row: dict[str, Any] = {"delta": name, "siltstone_per_second": each_second(ours)}
    if peer is not None:
        row |= {"json_per_second": each_second(peer(json.loads)), "orjson_per_second": each_second(peer(orjson.loads))}
    return row


def make_rows(documents: int) -> list[Row]:
    """Documents of ten deltas: a literal, changes of keys, one set, one conditional, some of them redundant."""
    draw = random.Random(1)
    rows = []
    for number in range(documents):
        texts = [json.dumps({**REVIEW, "name": f"Bob {number}"})]
        for step in range(1, DELTAS_PER_DOCUMENT):
            texts.append(f'{{..,"state":"S{draw.randrange(4)}","step":{step}}}')
        texts[3] = '{..,"tags":(..,"new")}'
        texts[6] = 'if {..,"state":"S1"} then {..,"flag":true} end'
        texts[8] = texts[7]
        ids = [change_id_at(START_MS + 1000 * step, node=number) for step in range(DELTAS_PER_DOCUMENT)]
        rows.append(Row([(change_id, text, ()) for change_id, text in zip(ids, texts, strict=True)], (), str(number)))
    return rows


def fold_in_python(rows: list[Row]) -> None:
    """What remains of it with `json` alone: shallow puts, without conditions, sets, versions, signatures or redundancy."""
    for row in rows:
        content: dict[str, Any] = {}
        for _, text, _ in row.changes:
            if text.startswith("{.."):
                content = {**content, **(json.loads("{" + text[4:]) if "(" not in text else {"tags": ["new"]})}
            elif text.startswith("{"):
                content = json.loads(text)
            elif content.get("state") == "S1":
                content = {**content, "flag": True}


def measure_rows(documents: int) -> list[dict[str, Any]]:
    """Resolve and compact whole documents, in one process."""
    rows = make_rows(documents)
    after_ms = START_MS + 1_000_000
    new_id = change_id_at(after_ms + 1)
    compacted = []
    for row in rows:
        written = expand(row, fct=after_ms, raw=after_ms, new_id=new_id).write
        assert written is not None
        compacted.append(row._replace(changes=(), records=(written,)))
    works: list[tuple[str, Callable[[], object]]] = [
        ("resolve", lambda: [resolve(row) for row in rows]),
        ("resolve, compacted before", lambda: [resolve(row) for row in compacted]),
        ("compact", lambda: [expand(row, fct=after_ms, raw=after_ms, new_id=new_id) for row in rows]),
        ("fold with json alone, less of it", lambda: fold_in_python(rows)),
    ]
    return [{"work": name, "documents_per_second": round(documents / best(work))} for name, work in works]


def tables(result: dict[str, Any]) -> list[Table]:
    language = Table("parse and apply, a second", title="Deltas")
    for name in ("Siltstone", "json", "orjson"):
        language.add_column(name, justify="right")
    for row in result["language"]:
        rates = [row.get(f"{name}_per_second") for name in ("siltstone", "json", "orjson")]
        language.add_row(row["delta"], *("" if rate is None else f"{rate:,}" for rate in rates))
    title = f"{result['documents']:,} documents of {DELTAS_PER_DOCUMENT} deltas, in one process"
    documents = Table("work", title=title)
    documents.add_column("documents/s", justify="right")
    documents.add_column("100,000 documents", justify="right")
    for row in result["rows"]:
        rate = row["documents_per_second"]
        documents.add_row(row["work"], f"{rate:,}", f"{100_000 / rate:.1f} s")
    return [language, documents]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    result = {
        "documents": options.documents,
        "language": measure_language(options.documents),
        "rows": measure_rows(options.documents),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    for table in tables(result):
        Console().print(table)


if __name__ == "__main__":
    main()
