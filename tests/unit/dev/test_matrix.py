"""The page of versions says what came out of the matrix, and combinations, interpreters and pins are chosen as asked."""

import re
import sys
from pathlib import Path

import pytest
from dev import matrix
from dev.matrix import Combination, Result

HERE = ".".join(map(str, sys.version_info[:2]))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_the_page_says_what_the_results_say() -> None:
    text = matrix.PAGE.read_text()
    assert matrix.BLOCK.search(text)
    assert matrix.filled(text, matrix.read_results()) == text, "run `make test-matrix`"


def test_nothing_that_was_run_has_failed() -> None:
    assert {result.combination: result.failures for result in matrix.read_results().values() if result.failures} == {}


def test_every_python_every_spark_and_every_spark_over_connect_is_usual() -> None:
    usual = matrix.usual_combinations()
    assert {each.python for each in usual if each.kind == "spark" and each.spark == matrix.pinned_spark()} == {
        *matrix.PYTHONS
    }
    for kind in ("spark", "connect"):
        assert {each.spark for each in usual if each.kind == kind} == {*matrix.SPARKS}
    assert [each.kind for each in usual].count("lowest") == 1


def test_a_part_is_chosen_of_the_usual_combinations_or_by_both_versions() -> None:
    assert matrix.choose([], [], []) == matrix.usual_combinations()
    assert matrix.choose(["3.13"], [], []) == [Combination("spark", "3.13", matrix.pinned_spark())]
    assert matrix.choose(["3.14"], ["4.1"], []) == [
        Combination("spark", "3.14", "4.1"),
        Combination("connect", "3.14", "4.1"),
    ]
    assert [each.kind for each in matrix.choose([], ["4.1"], ["connect", "lowest"])] == ["connect", "lowest"]


def test_classifiers_and_bounds_name_the_versions_that_are_run() -> None:
    text = (matrix.PROJECT / "pyproject.toml").read_text()
    assert re.findall(r"Python :: (3\.\d+)", text) == list(matrix.PYTHONS)
    assert f'requires-python = ">={matrix.PYTHONS[0]}"' in text
    assert f'"pyspark>={matrix.SPARKS[0]}' in text
    assert matrix.pinned_spark() == matrix.SPARKS[-1]


def test_an_interpreter_is_found_on_the_path_or_in_pyenv_if_it_is_of_that_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, pyenv = tmp_path / "programs", tmp_path / "pyenv"
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    assert matrix.find_interpreter(HERE) is None
    good = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    put(pyenv / "versions" / f"{HERE}.9" / "bin" / "python", good)
    put(pyenv / "versions" / f"{HERE}.10" / "bin" / "python", good)
    put(programs / f"python{HERE}", "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n")
    assert matrix.find_interpreter(HERE) == str(pyenv / "versions" / f"{HERE}.10" / "bin" / "python")
    put(programs / f"python{HERE}", good)
    assert matrix.find_interpreter(HERE) == str(programs / f"python{HERE}")
    put(programs / "python3.99", good)
    assert matrix.find_interpreter("3.99") is None


def test_all_but_spark_is_pinned_with_hashes() -> None:
    pins = matrix.pins_without("pyspark")
    kept, all_pins = pins.splitlines(), matrix.PINS.read_text().splitlines()
    left_out = all_pins[(start := all_pins.index(next(line for line in all_pins if line.startswith("pyspark==")))) :]
    assert len(all_pins) - len(kept) == 1 + next(n for n, line in enumerate(left_out[1:]) if not line.startswith(" "))
    assert kept[:start] == all_pins[:start]
    assert kept[start:] == left_out[len(all_pins) - len(kept) :]


def test_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="a" name="good"/><testcase classname="a" name="bad"><failure/></testcase>'
        '<testcase classname="b" name="broken"><error/></testcase>'
        '<testcase classname="b" name="left"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    assert matrix.read_report(report) == (1, 1, ("a::bad", "b::broken"))


def test_results_are_written_and_read_and_what_was_not_run_is_said(tmp_path: Path) -> None:
    results, page = tmp_path / "results.json", tmp_path / "page.md"
    page.write_text("before\n<!-- results -->\nold\n<!-- end of results -->\nafter\n")
    combination = Combination("spark", "3.14", matrix.pinned_spark())
    result = Result(
        combination, "2026-02-03", {"python": "3.14.7", "pyspark": "4.3.9", "java": "21.0.1"}, 17, 2, ("bad",), 60
    )
    matrix.write_results({combination: result}, results, page)
    assert matrix.read_results(results) == {combination: result}
    text = page.read_text()
    assert text.startswith("before\n<!-- results -->\n| Python | ")
    assert text.endswith("|\n<!-- end of results -->\nafter\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| 3.")]
    assert len(rows) == len(matrix.usual_combinations())
    assert ["3.14.7", "4.3.9", "in the process", "21.0.1", "", "", "", "", "17", "1", "2", "2026-02-03"] in rows
    assert sum("not run" in row for row in rows) == len(rows) - 1
