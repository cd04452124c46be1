"""Running a page of the documentation: its commands and its Python, block after block, in one folder."""

import contextlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from siltstone.cli.main import app
from tests.unit.cli.test_commands_page import STEP, masked

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of a page, each with its language."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


class PageRun:
    """A reader who copies a page, line by line, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}

    def console(self, block: str) -> int:
        """Run the commands of a block, compare what they print with what it shows, if anything; return how many there were."""
        found = STEP.findall(block)
        for command, claimed in found:
            printed = self._run(command)
            if claimed:
                assert masked(printed, self.folder) == masked(claimed, self.folder), command
        return len(found)

    def python(self, block: str, **given: object) -> None:
        """Run a block of Python with the names that earlier ones left."""
        with contextlib.chdir(self.folder):
            exec(compile(block, "page", "exec"), self.names.update(given) or self.names)

    def _run(self, command: str) -> str:
        program, *arguments = shlex.split(command)
        if program == "siltstone":
            with contextlib.chdir(self.folder):
                result = CliRunner(env={"SILTSTONE_ROOT": None}).invoke(app, arguments, prog_name=program)
            assert result.exit_code == 0, f"{command}: {result.output}"
            return result.stdout
        shell = {name: value for name, value in os.environ.items() if name != "SILTSTONE_ROOT"}
        done = subprocess.run(command, shell=True, cwd=self.folder, env=shell, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout
