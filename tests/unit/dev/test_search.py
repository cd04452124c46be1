"""Property tests draw the same values every time, and a search draws others until it finds something."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from dev.search import MAX_TIMES, RUN_SECONDS, Outcome, Run, Turns
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

PLANTED = """
from hypothesis import given, settings
from hypothesis import strategies as st

@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_that_is_wrong(one, other):
    assert one < 900_000, f"drew {one} and {other}"

@given(st.integers())
def test_that_is_right(number):
    assert number == number
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two property tests, run as ours are."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_planted.py").write_text(PLANTED)
    return tmp_path


def search(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    here = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-m", "dev.search", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{here}:{here / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_search_ends_at_a_violation_which_its_seed_replays(folder: Path) -> None:
    found = search(folder, "--minutes", "5", "--processes", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "1 violated" in found.stdout.splitlines()[-1]
    command = re.search(r"make test-search ARGS=(.*)", found.stdout)
    assert command is not None
    (arguments,) = shlex.split(command[1])
    replayed = search(folder, *shlex.split(arguments))
    assert replayed.returncode == 1, replayed.stdout + replayed.stderr
    drawn = re.findall(r"drew \d+ and \d+", found.stdout)
    assert drawn
    assert re.findall(r"drew \d+ and \d+", replayed.stdout) == drawn


def test_a_search_that_finds_nothing_says_how_much_it_drew(folder: Path) -> None:
    told = search(folder, "--only", "that_is_right", "--seed", "7", "--times", "3")
    assert told.returncode == 0, told.stdout + told.stderr
    assert re.search(r"^1 runs of 1 tests, 300 examples, \d+ s: no violation$", told.stdout, re.MULTILINE)


def test_a_search_of_tests_that_are_not_there_is_refused(folder: Path) -> None:
    told = search(folder, "--only", "no_such_test")
    assert told.returncode == 2
    assert "no_such_test" in told.stderr


def test_tests_take_turns_with_as_many_examples_as_fit_into_a_run() -> None:
    turns = Turns(["quick", "slow"], seconds=3600)
    runs = iter(turns)
    quick, slow = next(runs), next(runs)
    assert [(run.test, run.times) for run in (quick, slow)] == [("quick", 1), ("slow", 1)]
    assert quick.seed != slow.seed
    turns.note(Outcome(quick, 0, 100, RUN_SECONDS / 100, ""))
    turns.note(Outcome(slow, 0, 100, RUN_SECONDS * 2.0, ""))
    assert [(run.test, run.times) for run in (next(runs), next(runs))] == [("quick", 4), ("slow", 1)]
    turns.note(Outcome(Run("quick", 1, MAX_TIMES), 0, 100, 0, ""))
    assert next(runs).times == MAX_TIMES
    turns.note(Outcome(slow, 1, 100, 1, "violated"))
    assert list(runs) == []
    assert list(Turns(["quick"], seconds=0)) == []


def test_a_process_that_died_is_told_from_a_test_that_failed() -> None:
    run = Run("test", 1, 1)
    assert [Outcome(run, code, 0, 0, "").verdict for code in (0, 1, -11)] == ["holds", "is violated", "died of SIGSEGV"]
    assert [Outcome(run, code, 0, 0, "").is_violated for code in (0, 1, -11)] == [False, True, True]


def drawn() -> list[object]:
    """What a property test and a state machine draw."""
    values: list[object] = []

    @given(st.lists(st.integers() | st.text() | st.floats(allow_nan=False)))
    def draw(value: list[object]) -> None:
        values.append(value)

    class Machine(RuleBasedStateMachine):
        @rule(value=st.integers() | st.text())
        def draw(self, value: object) -> None:
            values.append(value)

    draw()
    run_state_machine_as_test(Machine, settings=settings(max_examples=20))
    return values


def test_what_a_test_draws_depends_neither_on_chance_nor_on_the_code_that_is_loaded(tmp_path: Path) -> None:
    before = drawn()
    assert drawn() == before
    (tmp_path / "constants.py").write_text("\n".join(f'x{n} = {n}_000_003\ny{n} = "word {n}"' for n in range(1, 200)))
    spec = importlib.util.spec_from_file_location("constants_of_a_test", tmp_path / "constants.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        assert drawn() == before
