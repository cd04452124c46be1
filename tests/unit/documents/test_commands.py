"""`siltstone documents eval`, `expand` and `canonical`."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.command_line import Cli
from tests.unit.documents.naming import change, ms, record, t
from tests.unit.test_import_cost import heavy_modules_after

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"
CHANGES = [change(1, '{"a":1}', "x"), change(2, '{..,"b":"é"}'), change(3, '{..,"b":"é"}')]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def case(**fields: object) -> dict[str, object]:
    deltas = [{"id": each.change_id, "delta": each.delta, "tags": list(each.tags or ())} for each in CHANGES]
    return {"deltas": deltas, "compactions": [], "fct": ms(9), "raw": ms(9), "ctl": None, "new_id": t(10), **fields}


def test_eval_prints_the_result(cli: Cli) -> None:
    assert cli("documents", "eval", "--delta", '{..,"n":1}', "--on", '{"a":2}').stdout == '{"a":2,"n":1}\n'
    assert cli("documents", "eval", "--delta", '{..,"n":1e7}').stdout == '{"n":1.0E7}\n'
    assert cli("documents", "eval", "--delta", "if ~ then 1 else ~ end", "--on", " ~ ").stdout == "1\n"
    assert cli("documents", "eval", "--delta", "~", "--on", "5").stdout == "~\n"
    assert cli.json("documents", "eval", "--delta", "~", "--on", "5") == {"content": None, "deleted": True}
    assert cli.json("documents", "eval", "--delta", "..", "--on", "null") == {"content": None, "deleted": False}


def test_eval_tells_where_the_delta_or_the_value_is_wrong(cli: Cli) -> None:
    assert "delta, line 1, column 10: expected" in cli.fails("documents", "eval", "--delta", '{..,"n":1')
    assert "--on, line 1, column 2: expected a key" in cli.fails("documents", "eval", "--delta", "..", "--on", "{a:1}")
    assert "asks about a document" in cli.fails(
        "documents", "eval", "--delta", 'if intrinsic("~id":"a") then {} end', "--on", "{}"
    )
    assert "--delta" in cli.misused("documents", "eval", "--on", "{}")


def test_eval_answers_cases_line_by_line(cli: Cli) -> None:
    lines = [{"delta": '{..,"n":1}', "on": {"a": 2}}, {"delta": "~"}, {"delta": "(("}, {"on": 1}]
    result = cli("documents", "eval", input="\n".join(map(json.dumps, lines)), exit_code=1)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers[:2] == [{"content": {"a": 2, "n": 1}, "deleted": False}, {"content": None, "deleted": True}]
    assert [list(answer) for answer in answers[2:]] == [["error"], ["error"]]


def test_canonical_prints_arguments_or_lines(cli: Cli) -> None:
    assert cli("documents", "canonical", '{"b": 1, "a":(2,1)}', "(3,2)").stdout == '{"a":[1,2],"b":1}\n(2,3)\n'
    assert cli("documents", "canonical", "--condition", "or(1,in(3,2))").stdout == "in(1,2,3)\n"
    assert cli.json("documents", "canonical", "~") == {"canonical": "~"}
    assert "column 2" in cli.fails("documents", "canonical", "[..]")
    result = cli("documents", "canonical", input=' {"é": 1}\r\n\n[..]\n~'.encode() + b"\n\xff\n..", exit_code=1)
    first, bad, second, worse, last = result.stdout.splitlines()
    assert (first, second, last) == ('{"é":1}', "~", "..")
    assert "column 2" in json.loads(bad)["error"]
    assert "UTF-8" in json.loads(worse)["error"]


def test_expand_tells_what_the_document_is_and_what_compaction_would_do(cli: Cli) -> None:
    found = json.loads(cli("documents", "expand", input=json.dumps(case())).stdout)
    signature = "141fc11a031ef87df66d6c8cb5790144"
    assert found == {
        "content": {"a": 1, "b": "é"},
        "deleted": False,
        "version": 3,
        "signature": signature,
        "first_update_at": t(1),
        "last_update_at": t(3),
        "last_mutate_at": t(2),
        "redundant": [t(3)],
        "write": {
            "id": t(10),
            "count": 3,
            "first": t(1),
            "cutoff": t(3),
            "cutoff_signature": signature,
            "last_content_mutation": t(2),
            "last_mutation": t(2),
            "compacted_delta": '{"a":1,"b":"é"}',
            "last_tags": [],
        },
        "delete": [],
    }
    assert list(found)[-2:] == ["write", "delete"]
    written = found["write"]
    again = json.loads(cli("documents", "expand", input=json.dumps(case(compactions=[written], raw=ms(11)))).stdout)
    assert (again["write"], again["delete"]) == (None, [t(1), t(2), t(3)])
    assert {**found, "write": None, "delete": []} == {**again, "delete": []}
    held = json.loads(
        cli("documents", "expand", input=json.dumps(case(compactions=[written], raw=ms(11), ctl=ms(2)))).stdout
    )
    assert held["delete"] == [t(3)]


def test_expand_goes_on_after_a_bad_case(cli: Cli) -> None:
    one_id = {"id": t(1).upper(), "delta": {"plain": True}}
    bad: list[Any] = [
        "nonsense",
        [],
        {},
        case(fct="1"),
        case(fct=True),
        case(raw=None),
        case(ctl=1.5),
        case(deltas={}),
        case(deltas=[5]),
        case(deltas=[{"id": "x", "delta": "{}"}]),
        case(deltas=[{"id": t(1), "delta": 5}]),
        case(deltas=[{"id": t(1), "delta": "{..,"}]),
        case(deltas=[{"id": t(1), "delta": "{}", "tags": "x"}]),
        case(compactions=[{"id": t(1)}]),
        case(compactions=[{"id": t(1), "count": 2}]),
        case(new_id="febb5880-2c64-41e4-8000-000000000000"),
    ]
    good = case(deltas=[one_id], fct=0, key="k", table="t", placement="p", comment="others are ignored")
    lines = [json.dumps(each) if each != "nonsense" else each for each in [good, *bad, good]]
    result = cli("documents", "expand", input="\n".join(lines), exit_code=1)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert answers[0] == answers[-1]
    assert (answers[0]["content"], answers[0]["first_update_at"]) == ({"plain": True}, t(1))
    assert [list(answer) for answer in answers[1:-1]] == [["error"]] * len(bad)
    told = [answer["error"] for answer in answers[1:-1]]
    for place, part in {0: "line 1, column 1", 9: "deltas[0].id", 10: "deltas[0].delta", 11: f"change {t(1)}"}.items():
        assert part in told[place]
    assert "compactions[0].count" in told[13]


def test_expand_reads_a_file_and_a_case_that_is_spread_over_lines(cli: Cli) -> None:
    file = cli.file("case.json", json.dumps(case(), indent=2))
    from_file = cli("documents", "expand", file).stdout
    assert from_file == cli("documents", "expand", "-", input=json.dumps(case())).stdout
    assert from_file.count("\n") == 1
    assert cli("documents", "expand", cli.file("empty.json", "")).stdout == ""
    assert "nosuch.json: No such file" in cli.fails("documents", "expand", "nosuch.json")


def test_expand_makes_an_id_for_the_record_where_none_is_given(cli: Cli) -> None:
    found = json.loads(cli("documents", "expand", input=json.dumps(case(new_id=None))).stdout)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-1.*", found["write"]["id"])


def test_expand_reads_legacy_records(cli: Cli) -> None:
    made = record(9, CHANGES)
    legacy = {"id": t(9), "count": 2, "first": t(1), "cutoff": t(3), "cutoff_signature": made.cutoff_signature}
    deltas = [{"id": t(3), "delta": '{"a":1}'}]
    found = json.loads(cli("documents", "expand", input=json.dumps(case(compactions=[legacy], deltas=deltas))).stdout)
    assert (found["version"], found["signature"], found["delete"]) == (3, made.cutoff_signature, [t(3), t(9)])


def test_the_commands_of_the_page_print_what_it_says(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.folder)
    section = PAGE.read_text(encoding="utf-8").split("## `documents eval`")[1].split("\n## ")[0]
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)*)", section, re.MULTILINE)
    assert len(steps) == 5
    for line, claimed in steps:
        program, *args = shlex.split(line)
        if program == "cat":
            cli.file(args[0], claimed)
        elif claimed.startswith("Error: "):
            assert cli.fails(*args) == claimed
        else:
            assert cli(*args).stdout == claimed


def test_the_commands_load_neither_spark_nor_arrow() -> None:
    line = ["siltstone", "documents", "eval", "--delta", "~"]
    code = f"from siltstone.cli.main import main; sys.argv = {line!r}; main()"
    assert heavy_modules_after(code) == set()
