"""A reader who copies the tutorial gets what it shows."""

from pathlib import Path

import pytest

from tests.unit.cli.page_steps import PageRun, blocks_of

PROJECT = Path(__file__).parents[3]
SHELL = {"make venv\nsource venv/bin/activate\nsiltstone doctor\n", "mkdir tutorial && cd tutorial\n"}


@pytest.mark.usefixtures("without_spark")
def test_every_command_and_line_of_python_in_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    reader, commands = PageRun(tmp_path), 0
    for language, block in blocks_of(PROJECT / "docs" / "tutorial.md"):
        if language == "console":
            commands += reader.console(block)
        elif language == "python":
            reader.python(block)
        else:
            assert language == "shell"
            assert block in SHELL
    assert commands > 20
