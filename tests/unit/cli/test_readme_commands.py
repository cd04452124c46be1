"""A reader who copies the README gets what it shows."""

from pathlib import Path

import pytest

from tests.unit.cli.page_steps import PageRun, blocks_of

PROJECT = Path(__file__).parents[3]
BLOCKS = blocks_of(PROJECT / "README.md")

pytestmark = pytest.mark.usefixtures("without_spark")


def test_the_commands_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    reader = PageRun(tmp_path)
    commands = sum(reader.console(block) for language, block in BLOCKS if language == "console")
    assert commands == 7


def test_the_python_of_the_readme_runs_without_spark(tmp_path: Path) -> None:
    (block,) = (block for language, block in BLOCKS if language == "python" and "spark.read" not in block)
    PageRun(tmp_path).python(block)


def test_every_kind_of_block_in_the_readme_is_run_by_a_test() -> None:
    # The two commands are targets of make: a test of the demo runs what that runs, and compares the text.
    assert {language for language, _ in BLOCKS} == {"console", "python", "shell", "text"}
    (two,) = (block for language, block in BLOCKS if language == "shell")
    assert [line.partition("#")[0].split() for line in two.splitlines()] == [["make", "demo"], ["make", "test"]]
