"""`siltstone documents create`, `update`, `get`, `timeline`, `compact`, `hold` and `export`."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli
from tests.unit.cli.conftest import without_spark  # noqa: F401
from tests.unit.documents.tables import at, change_id, compact


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path)
    cli("documents", "create", "shop.reviews", "--full-consistency-delay", "10s")
    return cli


def documents(cli: Cli, *args: str) -> list[dict[str, object]]:
    lines = cli("documents", *args).stdout.splitlines()
    return [json.loads(line) for line in lines]


def test_a_document_is_updated_and_shown(cli: Cli) -> None:
    done = cli.json("documents", "update", "shop.reviews", "r1", '{"stars":4}')
    cli("documents", "update", "shop.reviews", "r1", '{..,"stars":5}', "--tag", "edit", "--tag", "etl")
    (document,) = documents(cli, "get", "shop.reviews", "r1", "--json")
    assert (document["stars"], document["~version"]) == (5, 2)
    assert json.loads(cli("documents", "get", "shop.reviews", "r1").stdout) == document
    status = cli.json("documents", "get", "shop.reviews", "r1", "--change", done["change_id"])
    assert status == {"state": "resolved", "document": document}
    first, second = cli.json("documents", "timeline", "shop.reviews", "r1")
    assert (first["change_id"], second["tags"]) == (done["change_id"], ["edit", "etl"])
    shown = cli("documents", "timeline", "shop.reviews", "r1").stdout
    assert f'{done["change_id"]}  waiting    version 1   {{"stars":4}}\n' in shown
    assert '{..,"stars":5}  #edit #etl\n' in shown
    assert "~ stars: 4 -> 5\n" in shown


def test_many_updates_come_from_a_file_or_standard_input_as_one_commit(cli: Cli) -> None:
    lines = '{"key":"a","delta":{"n":1}}\n\n{"key":"b","delta":"{..,\\"n\\":2}","tags":["x"]}\n'
    assert "applied 2 deltas" in cli("documents", "update", "shop.reviews", "--from", cli.file("u", lines)).stdout
    assert cli.json("documents", "update", "shop.reviews", "--from", "-", input=lines)["updates"] == 2
    assert [document["~version"] for document in documents(cli, "get", "shop.reviews", "a", "b", "--json")] == [2, 2]
    assert len(Lake(cli.root).table("shop.reviews").deltas()) == 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"key":"a","delta":"{"}', "update 1, key 'a': delta, line 1, column 2"),
        ('{"key":"a"}\n', "is not a delta"),
        ("{}", "update 1, key None: None is not a document key"),
        ("[1]", "line 1: not a JSON object"),
        ('{"key":"a","delta":"~"}\n{"k', "line 2: not valid JSON"),
    ],
)
def test_bad_lines_are_named(cli: Cli, lines: str, message: str) -> None:
    found = cli.fails("documents", "update", "shop.reviews", "--from", "-", input=lines)
    assert message in found


def test_wrong_usage_is_told(cli: Cli) -> None:
    assert "use a key and a delta, or a file" in cli.misused("documents", "update", "shop.reviews", "r1")
    assert "name one key" in cli.misused("documents", "get", "shop.reviews", "a", "b", "--change", change_id(1))
    assert "not both" in cli.misused("documents", "hold", "shop.reviews", "--for", "1h", "--release", "x")
    assert "did you mean shop.reviews?" in cli.fails("documents", "get", "shop.review", "r1")
    assert "cannot be written to" in cli.fails("write", "shop.reviews", cli.file("rows.jsonl", '{"key":"a"}\n'))
    cli("table", "create", "shop.orders", "--schema", cli.file("schema.json", '{"id":"int64"}'), "--key", "id")
    assert "is a table of rows, not of documents" in cli.fails("documents", "timeline", "shop.orders", "1")


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("command", [("compact",), ("documents", "compact")], ids=" ".join)
def test_both_commands_compact_documents(cli: Cli, command: tuple[str, ...]) -> None:
    docs = Lake(cli.root).document_table("shop.reviews")
    docs.update("r1", {"n": 1}, (), change_id(1))
    done = cli.json(*command, "shop.reviews")
    assert (done["deltas"], done["live_rows"]) == (1, 1)
    compact(docs, 30)
    compact(docs, 50)
    assert cli.json(*command, "shop.reviews")["rounds"] == []
    (record,) = cli.json("documents", "timeline", "shop.reviews", "r1")
    assert record["kind"] == "compaction"
    assert len(cli.json("rounds", "shop.reviews")) == 3
    assert cli("plan", "shop.reviews").exit_code == 0


def test_holds_begin_are_listed_and_end(cli: Cli) -> None:
    assert "nothing of shop.reviews is held" in cli("documents", "hold", "shop.reviews").stdout
    made = cli.json("documents", "hold", "shop.reviews", "--for", "2h", "--reason", "export")
    assert cli.json("documents", "hold", "shop.reviews") == [made]
    assert cli("documents", "hold", "shop.reviews").stdout.endswith("  export\n")
    assert cli.json("documents", "hold", "shop.reviews", "--release", made["hold_id"])["released"] == made["hold_id"]
    assert "may be released already" in cli.fails("documents", "hold", "shop.reviews", "--release", made["hold_id"])


def test_documents_are_exported_as_they_are_or_as_they_were(cli: Cli) -> None:
    docs = Lake(cli.root).document_table("shop.reviews")
    docs.update_many([("a", {"n": 1}), ("b", {"n": 1.5}), ("gone", "~")])
    held = docs.hold(until=at(7200))
    docs.update("a", {"n": 2}, (), change_id(1))
    target = cli.folder / "out.jsonl"
    assert "wrote 2 documents" in cli("documents", "export", "shop.reviews", str(target)).stdout
    assert "--overwrite" in cli.fails("documents", "export", "shop.reviews", str(target))
    exported: list[Mapping[str, object]] = [json.loads(line) for line in target.read_text().splitlines()]
    assert {each["~id"]: each["n"] for each in exported} == {"a": 2, "b": 1.5}
    then = documents(cli, "export", "shop.reviews", "--hold", held.hold_id, "--include-deleted")
    assert {each["~id"]: each.get("n") for each in then} == {"a": 1, "b": 1.5, "gone": None}
    done = cli.json("documents", "export", "shop.reviews", str(target), "--overwrite", "--include-deleted")
    assert done["rows"] == 3


def test_history_tells_every_version_and_which_are_not_kept(cli: Cli) -> None:
    assert "keep_history=true" in cli.fails("documents", "history", "shop.reviews", "r1")
    assert cli.json("documents", "create", "shop.prices", "--keep-history")["keep_history"] is True
    assert "nothing was written to p1" in cli("documents", "history", "shop.prices", "p1").stdout
    cli("documents", "update", "shop.prices", "p1", '{"n":1}')
    cli("documents", "update", "shop.prices", "p1", "~", "--tag", "end")
    first, last = cli.json("documents", "history", "shop.prices", "p1")
    assert (first["version"], first["content"]) == (1, {"n": 1})
    assert (last["version"], last["content"], last["tags"], last["delta"]) == (2, None, ["end"], "~")
    assert cli("documents", "history", "shop.prices", "p1").stdout.splitlines()[-1].strip() == "deleted"


def test_documents_of_another_store_are_imported_from_lines(cli: Cli) -> None:
    line = json.dumps({"key": "old", "deltas": [{"id": change_id(-90_000), "delta": {"n": 1}}]})
    file = cli.file("old.jsonl", line + "\n")
    assert cli.json("documents", "import", "shop.reviews", file, "--dry-run") == {
        "table": "shop.reviews",
        "imported": 1,
        "skipped": 0,
        "repeated": 0,
        "rejected": 0,
        "rejects_files": [],
        "dry_run": True,
    }
    assert cli("documents", "get", "shop.reviews", "old").stdout.count('"~version": 0') == 1
    assert "imported 1 document into shop.reviews" in cli("documents", "import", "shop.reviews", file).stdout
    again = cli("documents", "import", "shop.reviews", "-", input=line).stdout
    assert "imported 0 documents into shop.reviews; 1 document imported before" in again
    other = cli.file("other.jsonl", line.replace('{"n": 1}', '"~"').replace(change_id(-90_000), change_id(-80_000)))
    assert "something is stored of it already" in cli.fails("documents", "import", "shop.reviews", other)
    skipped = cli("documents", "import", "shop.reviews", other, "--skip-existing").stdout
    assert "imported 0 documents into shop.reviews; 1 document left out" in skipped
    assert cli("documents", "get", "shop.reviews", "old").stdout.count('"~version": 1') == 1
    assert "line 1: not a JSON object" in cli.fails("documents", "import", "shop.reviews", "-", input="[]")
    assert "No such file" in cli.fails("documents", "import", "shop.reviews", "nowhere.jsonl")
