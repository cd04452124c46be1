"""What `--json` shows is an interface: the keys of every command's output, and the types of the values, stay.

`tests/fixtures/json_keys.json` has them by command. A document is `$`, or `$lines` where a command
prints one a line; a list's items are `[]`, the values of a map with any keys are `{}`.
"""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.cli.command_line import Cli
from tests.unit.cli.test_commands_page import a_node
from tests.unit.cli.test_shell import SILTSTONE, commands
from tests.waiting import LIMIT_SECONDS

GOLDEN = Path(__file__).parents[2] / "fixtures" / "json_keys.json"
# Their keys are columns, names of properties, or whatever a document has.
MAPS = (
    "after",
    "bucket_actions",
    "compacted_row",
    "content",
    "content_before",
    "key",
    "properties",
    "rounds",
    "row",
    "skipped",
    "upto",
    "values",
)
TYPES = {bool: "boolean", dict: "object", float: "number", int: "number", list: "array", str: "string"}
Shape = dict[str, str]


def shape_of(value: object) -> Shape:
    """Return the path of every value in a document, with the types that were seen there."""
    types: dict[str, set[str]] = {}
    for path, name in _types_in(value, ""):
        types.setdefault(path, set()).add(name)
    return {path: "|".join(sorted(types[path])) for path in sorted(types)}


def _types_in(value: object, path: str) -> Iterator[tuple[str, str]]:
    yield path or "$", "null" if value is None else TYPES[type(value)]
    if isinstance(value, list):
        for item in value:
            yield from _types_in(item, f"{path}[]")
    elif isinstance(value, dict):
        is_map = path.rpartition(".")[2] in MAPS
        for key, item in value.items():
            yield from _types_in(item, f"{path}{{}}" if is_map else f"{path}.{key}".removeprefix("."))


def same_types(one: str, other: str) -> bool:
    """Return whether two sets of types are the same, but for null: there may or may not have been a value."""
    first, second = ({*types.split("|")} - {"null"} for types in (one, other))
    return not first or not second or first == second


class Recorder:
    """Runs commands with --json, and keeps the shape of what they print by command and options."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.shapes: dict[str, Shape] = {}

    def __call__(
        self, *args: str, when: str = "", exit_code: int = 0, lines: bool = False, input: str | None = None
    ) -> Any:
        """Run a command and keep the shape of its document, or of its lines; return what it printed."""
        printed = self.cli(*args, "--json", exit_code=exit_code, input=input).stdout
        value = [json.loads(line) for line in printed.splitlines()] if lines else json.loads(printed)
        self.keep(label_of(args, when), value, lines=lines)
        return value

    def keep(self, label: str, value: object, *, lines: bool = False) -> None:
        """Keep the shape of what a command printed."""
        assert label not in self.shapes, f"{label} is there already: say when this one is"
        shape = shape_of(value)
        self.shapes[label] = {"$lines": shape.pop("$"), **shape} if lines else shape


def command_in(words: list[str]) -> list[str]:
    """Return the command at the start of a command line."""
    (command,) = [command for command in commands() if command == words[: len(command)]]
    return command


def label_of(args: tuple[str, ...], when: str) -> str:
    """Return a command with its options, and when it is called."""
    options = [word for word in args if word.startswith("--")]
    return " ".join([*command_in(list(args)), *options, *([f"({when})"] if when else [])])


def csv_of(numbers: range, customer: str) -> str:
    return "order_id,customer,amount\n" + "".join(f"{number},{customer},{number}.5\n" for number in numbers)


def record_tables(keys: Recorder) -> None:
    cli = keys.cli
    keys("table", "list", when="no tables")
    columns = {"id": "int64", "tags": {"list": "string"}, "at": "timestamp_utc"}
    schema = cli.file("schema.json", json.dumps(columns))
    rows = cli.file("first.csv", csv_of(range(3), "ada"))
    keys("table", "create", "shop.notes", "--schema", schema, "--dry-run")
    keys("table", "create", "shop.notes", "--key", "id", "--schema", schema, "--property", "user.owner=me")
    keys("table", "create", "shop.orders", "--key", "order_id", "--from", rows, "--write", "--dry-run")
    keys("table", "create", "shop.orders", "--key", "order_id", "--from", rows, "--write")
    pq.write_table(pa.table({"id": [1]}), cli.folder / "old.parquet")
    keys("table", "adopt", "shop.old", str(cli.folder / "old.parquet"), "--from", "parquet", "--key", "id")
    keys("table", "list")
    keys("table", "list", "shop", when="of a namespace")
    keys("table", "show", "shop.notes")
    keys("table", "alter", "shop.notes", "--add-column", "note:string", "--set", "user.owner=you", "--dry-run")
    keys("table", "alter", "shop.notes", "--add-column", "note:string", "--set", "user.owner=you")
    keys("table", "rename", "shop.notes", "shop.memos", "--dry-run")
    keys("table", "rename", "shop.notes", "shop.memos")
    keys("table", "drop", "shop.memos", "--dry-run")
    keys("table", "drop", "shop.memos", "--yes")


def record_rows(keys: Recorder) -> None:
    """Write, compact, read and explain rows."""
    cli = keys.cli
    keys("rounds", "shop.orders", when="before the first round")
    keys("plan", "shop.orders", when="before the first round")
    keys("compact", "shop.orders", when="first round")
    changes = cli.file("changes.csv", csv_of(range(1, 5), "bob"))
    keys("write", "shop.orders", changes, "--dry-run")
    keys("write", "shop.orders", changes)
    keys("write", "shop.orders", changes, "--idempotency", "job:1")
    keys("write", "shop.orders", changes, "--idempotency", "job:1", when="again")
    gone = cli.file("gone.csv", "order_id\n4\n")
    keys("write", "shop.orders", gone, "--type", "delete")
    operations = cli.file("operations.jsonl", '{"order_id": 9, "op": "d"}\n')
    keys("write", "shop.orders", operations, "--op-column", "op")
    cdc = {"id": "int64", "name": "string", "_source_position": "binary"}
    columns = cli.file("cdc.json", json.dumps(cdc))
    keys("table", "create", "shop.cdc", "--cdc", "maxwell", "--schema", columns, "--key", "id")
    event = {"database": "shop", "table": "cdc", "type": "insert", "ts": 1, "xid": 1, "data": {"id": 1, "name": "a"}}
    bad = {**event, "data": {"id": "x"}}
    events = cli.file("events.jsonl", "".join(json.dumps(each) + "\n" for each in (event, bad, None)))
    keys("write", "shop.cdc", events, "--format", "maxwell", "--rejects", str(Path(events).parent / "bad"))
    keys("write", events, "--format", "maxwell", "--into", "shop.{table}", "--rejects", "bad", "--dry-run")
    cli("table", "drop", "shop.cdc", "--yes")
    keys("deltas", "shop.orders")
    keys("deltas", "shop.orders", "--from", "99", when="none")
    keys("plan", "shop.orders")
    keys("compact", "shop.orders", "--dry-run")
    keys("explain-key", "shop.orders", "order_id=1", when="not compacted")
    keys("compact", "shop.orders")
    keys("compact", "shop.orders", when="nothing new")
    keys("plan", "shop.orders", when="nothing new")
    keys("plan", "shop.orders", "--full")
    keys("compact", "shop.orders", "--full")
    keys("rounds", "shop.orders")
    keys("show", "shop.orders", "2")
    keys("read", "shop.orders", lines=True)
    keys("read", "shop.orders", "--as-of", "1", "--columns", "order_id", lines=True)
    keys("read", "shop.orders", "--output", str(cli.folder / "orders.parquet"))
    keys("sql", "select order_id, sum(amount) as total from shop.orders group by all", lines=True)
    keys("sql", "from shop.orders", "--output", str(cli.folder / "result.parquet"))
    keys("changes", "shop.orders", "--after", "1", lines=True)
    keys("changes", "shop.orders", "--output", str(cli.folder / "changes.jsonl"))
    keys("consumers", "shop.orders", when="none")
    keys("changes", "shop.orders", "--consumer", "billing", "--every-round", lines=True)
    keys("consumers", "shop.orders")
    keys("consumers", "shop.orders", "--remove", "billing")
    keys("lookup", "shop.orders", "order_id=1")
    keys("lookup", "shop.orders", "order_id=77", when="no such key")
    keys("explain-key", "shop.orders", "order_id=1")
    keys("explain-key", "shop.orders", "order_id=4", when="deleted")
    keys("explain-key", "shop.orders", "order_id=77", when="no such key")


def record_partitions(keys: Recorder) -> None:
    """Compact partitions, and a table anew from another."""
    cli = keys.cli
    rows = cli.file("sales.csv", "region,id\neu,1\nus,2\n")
    sales = ("table", "create", "shop.sales", "--key", "region,id", "--partition-by", "region", "--from", rows)
    keys(*sales, "--write")
    keys("plan", "shop.sales", when="partitions")
    keys("compact", "shop.sales", when="partitions")
    keys("show", "shop.sales", "1", "--partition", "eu")
    cli("table", "create", "shop.copy", "--key", "order_id", "--from", cli.file("copy.csv", csv_of(range(1), "eve")))
    behalf = ("shop.copy", "--rebase-from", "shop.orders", "--on-behalf-of", "shop.orders")
    keys("compact", *behalf, "--dry-run")
    keys("plan", *behalf)
    keys("compact", *behalf)
    keys("show", "shop.copy", "1", when="rebased")


def record_publish(keys: Recorder) -> None:
    keys("publish", "shop.sales", "--check")
    keys("publish", "shop.sales", when="again")
    keys("publish", "--all", when="none has the property")
    cli = keys.cli
    cli("table", "alter", "shop.sales", "--set", "publish=delta")
    keys("publish", "--all")
    keys("compact", "shop.sales", when="published")
    keys("table", "show", "shop.sales", when="published")
    keys("unpublish", "shop.sales")
    cli("table", "alter", "shop.sales", "--unset", "publish")


def record_keep(keys: Recorder) -> None:
    """Tag, clone, back up, restore and erase."""
    place, other = (str(keys.cli.folder / name) for name in ("safe", "restored"))
    keys("tags", "shop.orders", when="none")
    keys("tag", "shop.orders", "good", "--as-of", "1")
    keys("tag", "shop.orders", "good", "--replace")
    keys("tags", "shop.orders")
    keys("clone", "shop.orders", "shop.twin", "--dry-run")
    keys("clone", "shop.orders", "shop.twin", "--as-of", "good")
    keys("untag", "shop.orders", "good", "--dry-run")
    keys("untag", "shop.orders", "good")
    keys("backups", place, when="none")
    keys("backup", place, "--table", "shop.twin", "--dry-run")
    keys("backup", place, "--table", "shop.twin", "--check")
    keys("backups", place)
    keys("restore", place, "--root", other, "--dry-run")
    keys("restore", place, "--root", other)
    keys("erase", "shop.twin", "order_id=1", "--dry-run")
    keys("erase", "shop.twin", "order_id=1", "--yes")
    keys.cli("table", "drop", "shop.twin", "--yes")


def record_maintenance(keys: Recorder) -> None:
    cli = keys.cli
    keys("fsck", "shop.orders")
    keys("fsck", "--deep", when="all tables")
    keys("rollback", "shop.orders", "--to", "1", "--dry-run")
    keys("rollback", "shop.orders", "--to", "1")
    keys("show", "shop.orders", "4", when="rolled back")
    (bucket,) = cli.json("show", "shop.orders", "4")["buckets"]
    (cli.root / bucket["files"][0]["uri"]).unlink()
    keys("fsck", "shop.orders", when="damaged", exit_code=1)
    keys("repair", "shop.orders", "--dry-run")
    keys("repair", "shop.orders")
    cli("compact", "shop.orders")
    keys("vacuum", "shop.orders", "--dry-run")
    keys("vacuum", "shop.orders", "--retention", "0s", "--grace", "0s", when="one table")
    cli("table", "drop", "shop.copy", "--yes")
    keys("vacuum", "--retention", "0s", "--grace", "0s", "--dry-run")
    keys("vacuum", "--retention", "0s", "--grace", "0s")
    keys("rounds", "shop.orders", when="rolled back, repaired, vacuumed")


def record_documents(keys: Recorder) -> None:
    cli = keys.cli
    keys("documents", "create", "shop.reviews", "--keep-history")
    done = keys("documents", "update", "shop.reviews", "r1", '{"stars":4}', "--tag", "new")
    updates = '{"key":"r1","delta":"{..,\\"stars\\":5}"}\n{"key":"r2","delta":"~"}\n'
    keys("documents", "update", "shop.reviews", "--from", "-", input=updates)
    imported = json.dumps({"key": "old", "deltas": [{"id": done["change_id"], "delta": {"stars": 1}}]})
    keys("documents", "import", "shop.reviews", "-", "--dry-run", input=imported)
    keys("documents", "import", "shop.reviews", "-", "--skip-existing", input=imported)
    keys("documents", "get", "shop.reviews", "r1", "r2", lines=True)
    keys("documents", "get", "shop.reviews", "r1", "--change", done["change_id"])
    keys("documents", "timeline", "shop.reviews", "r1")
    keys("documents", "history", "shop.reviews", "r1")
    keys("documents", "history", "shop.reviews", lines=True, when="all documents")
    keys("changes", "shop.reviews", "--consumer", "search", lines=True, when="documents")
    keys("changes", "shop.reviews", "--output", str(cli.folder / "reviews.changes.jsonl"), when="documents, to a file")
    keys("consumers", "shop.reviews", when="documents")
    keys("explain-key", "shop.reviews", "key=r1", when="documents", exit_code=1)
    keys("plan", "shop.reviews", when="documents")
    keys("documents", "compact", "shop.reviews")
    keys("documents", "compact", "shop.reviews", when="nothing new")
    keys("documents", "compact", "shop.reviews", "--full")
    keys("rounds", "shop.reviews", when="documents")
    keys("show", "shop.reviews", "1", when="documents")
    keys("table", "show", "shop.reviews", when="documents")
    keys("documents", "timeline", "shop.reviews", "r1", when="compacted")
    keys("documents", "hold", "shop.reviews", when="no holds")
    held = keys("documents", "hold", "shop.reviews", "--for", "2h", "--reason", "export")
    keys("documents", "hold", "shop.reviews")
    keys("documents", "export", "shop.reviews", "--hold", held["hold_id"], "--include-deleted", lines=True)
    keys("documents", "export", "shop.reviews", str(cli.folder / "reviews.jsonl"), when="to a file")
    keys("documents", "hold", "shop.reviews", "--release", held["hold_id"])


def record_deltas_of_documents(keys: Recorder) -> None:
    """Evaluate what needs no lake."""
    keys("documents", "eval", "--delta", '{..,"n":1}', "--on", '{"a":2}')
    keys("documents", "eval", "--delta", "~")
    cases = '{"delta":"{..,\\"n\\":1}","on":{"a":2}}\n{"delta":"{"}\n'
    keys("documents", "eval", lines=True, exit_code=1, input=cases)
    keys("documents", "canonical", "{}", "~", lines=True, when="arguments")
    keys("documents", "canonical", lines=True, exit_code=1, input="{}\n{\n")
    ids = [f"0000{number}000-2c64-11e4-8000-000000000000" for number in range(4)]
    deltas = [{"id": change_id, "delta": f'{{..,"n":{number}}}', "tags": ["x"]} for number, change_id in enumerate(ids)]
    late = 4_000_000_000_000
    case = {"deltas": deltas, "compactions": [], "fct": late, "raw": late, "ctl": None, "new_id": ids[3][:-1] + "1"}
    answers = keys("documents", "expand", lines=True, exit_code=1, input=json.dumps(case) + '\n{"fct":1}\n')
    compacted = json.dumps({**case, "compactions": [answers[0]["write"]]})
    keys("documents", "expand", lines=True, when="of a record", input=compacted)


def record_logs(keys: Recorder) -> None:
    """Look into logs of Spark's and of a lake's own."""
    folder = keys.cli.folder / "events"
    (folder / "_spark_metadata").mkdir(parents=True)
    entries = []
    for number in range(12):
        file = folder / f"part-{number}.parquet"
        file.write_bytes(b"x" * 10)
        entry = {
            "path": file.as_uri(),
            "size": 10,
            "isDir": False,
            "modificationTime": 1_700_000_000_000,
            "blockReplication": 1,
            "blockSize": 10,
            "action": "add",
        }
        entries.append(json.dumps(entry))
        name, content = ("9.compact", entries) if number == 9 else (str(number), entries[-1:])
        (folder / "_spark_metadata" / name).write_text("\n".join(["v1", *content]))
    keys("log", "show", str(folder))
    keys("log", "files", str(folder), lines=True)
    keys("log", "verify", str(folder))
    keys("log", "compact", str(folder), "--retention", "7d", "--dry-run")
    keys("log", "compact", str(folder), "--retention", "7d")
    (folder / "_spark_metadata" / "13").write_text("nonsense")
    keys("log", "verify", str(folder), when="damaged", exit_code=1)
    keys("log", "show", str(folder), when="damaged")
    catalog = str(keys.cli.root / "catalog")
    keys("log", "show", catalog, when="a lake's own")
    keys("log", "verify", catalog, when="a lake's own")
    keys("log", "compact", catalog, "--dry-run", when="a lake's own")
    keys("log", "compact", catalog, when="a lake's own")


def record_cycles(keys: Recorder) -> None:
    cli = keys.cli
    # What nobody has answered yet waits in a database of its own.
    idle = ("--database", f"sqlite:///{cli.folder}/idle.db")
    keys("cycle", "trigger", "--trim", *idle)
    keys("cycle", "freeze", "--for", "30m", *idle)
    keys("cycle", "disable", *idle)
    keys("cycle", "status", *idle)
    keys("cycle", "enable", *idle)
    keys("cycle", "enable", *idle, when="not disabled")
    keys("cycle", "unfreeze", *idle)
    keys("cycle", "unfreeze", *idle, when="not frozen")
    keys("cycle", "pause", "shop.orders", *idle)
    keys("cycle", "resume", "shop.orders", *idle)
    keys("cycle", "audit", *idle)
    keys("audit", "shop.orders", *idle)
    keys("cycle", "history", *idle)
    cli("write", "shop.orders", cli.file("more.csv", csv_of(range(20, 30), "dan")))
    limit = f"{LIMIT_SECONDS}s"
    with a_node(cli.root):
        keys("cycle", "trigger", "--wait", "--timeout", limit)
        keys("cycle", "status")
        keys("cycle", "show")
        (log,) = (cli.root / "tables" / "shop" / "sales").glob("*/log")
        for batch in log.iterdir():
            batch.write_bytes(b"v3\nnonsense")
        keys("cycle", "trigger", "--wait", "--timeout", limit, when="failed", exit_code=1)
    keys("cycle", "status", when="failed")
    keys("cycle", "show", "2", when="failed")
    keys("cycle", "history")
    keys("table", "list", when="one is damaged")


def record_serve(keys: Recorder) -> None:
    """Start the service as a process, read what it announces, and end it."""
    for options in ([], ["--no-web"]):
        command = [*SILTSTONE, "serve", "--root", str(keys.cli.root), "--no-worker", "--port", "0", *options, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            announced = service.stdout.readline()
            service.send_signal(signal.SIGTERM)
            _, log = service.communicate()
        assert announced, log
        keys.keep(" ".join(["serve", *options]), json.loads(announced))


def record_failures(keys: Recorder) -> None:
    """A command that fails prints one object with what happened, whichever it is."""
    # A root that cannot be: so it fails on every machine, whichever Java it has.
    keys("doctor", "--root", "ftp://host/lake", exit_code=1)
    keys("read", "shop.nothing", when="no such table", exit_code=1)
    keys("write", "shop.orders", "nowhere.csv", when="no such file", exit_code=1)
    keys("show", "shop.orders", "99", when="no such round", exit_code=1)
    keys("documents", "get", "shop.orders", "1", when="not documents", exit_code=1)
    keys("log", "show", "/nowhere", when="no such log", exit_code=1)
    keys("cycle", "show", "99", when="no such cycle", exit_code=1)


def record_ingest(keys: Recorder) -> None:
    """Take files from a folder, one of them bad."""
    folder = keys.cli.folder / "drops"
    folder.mkdir()
    keys("ingest", "shop.orders", when="no folder yet")
    (folder / "a.csv").write_text(csv_of(range(50, 52), "ada"))
    (folder / "b.csv").write_text("order_id\nx\n")
    keys("ingest", "shop.orders", str(folder), "--settle", "0s", "--dry-run")
    keys("ingest", "shop.orders", str(folder), "--settle", "0s", exit_code=1)
    keys("ingest", "shop.orders", str(folder), "--settle", "0s", "--quarantine")
    keys("ingest", "shop.orders")


# In this order: each one goes on with the lake that those before it left.
SCENARIOS: list[Callable[[Recorder], None]] = [
    record_tables,
    record_rows,
    record_ingest,
    record_partitions,
    record_publish,
    record_keep,
    record_maintenance,
    record_documents,
    record_deltas_of_documents,
    record_logs,
    record_cycles,
    record_serve,
    record_failures,
]


def differences(found: Mapping[str, Shape], golden: Mapping[str, Shape]) -> list[str]:
    """Return a line for each key that is gone, new, or of another type."""
    lines = [f"{label}: not recorded yet" for label in found.keys() - golden.keys()]
    lines += [f"{label}: recorded, but not run any more" for label in golden.keys() - found.keys()]
    for label in found.keys() & golden.keys():
        now, before = found[label], golden[label]
        lines += [f"{label}: {path} is new" for path in now.keys() - before.keys()]
        lines += [f"{label}: {path} is gone" for path in before.keys() - now.keys()]
        lines += [
            f"{label}: {path} was {before[path]}, is {now[path]}"
            for path in now.keys() & before.keys()
            if not same_types(now[path], before[path])
        ]
    return sorted(lines)


@pytest.mark.usefixtures("without_spark")
def test_the_json_of_every_command_has_the_keys_it_always_had(cli: Cli) -> None:
    keys = Recorder(cli)
    for scenario in SCENARIOS:
        scenario(keys)
    changed = differences(keys.shapes, json.loads(GOLDEN.read_text()))
    found = Path(cli.file("json_keys.json", json.dumps(keys.shapes, indent=1, sort_keys=True) + "\n"))
    assert not changed, "\n".join(
        [*changed, f"If that is meant: say so in CHANGELOG.md, and copy {found} to {GOLDEN.relative_to(Path.cwd())}"]
    )


def test_a_key_that_is_new_or_gone_or_of_another_type_is_a_difference() -> None:
    before = {"read": shape_of({"a": 1, "b": [{"c": "x"}], "d": None, "row": {"p": 1, "q": "x"}})}
    assert before["read"]["row{}"] == "number|string"
    now = {"read": shape_of({"a": "1", "b": [{"e": "x"}], "d": True, "row": {"z": "x", "y": 1}}), "write": {}}
    assert differences(before, before) == []
    assert differences(now, before) == [
        "read: a was number, is string",
        "read: b[].c is gone",
        "read: b[].e is new",
        "write: not recorded yet",
    ]


def test_the_json_of_every_command_is_recorded() -> None:
    recorded = {" ".join(command_in(label.split())) for label in json.loads(GOLDEN.read_text())}
    assert recorded == {" ".join(command) for command in commands()}
