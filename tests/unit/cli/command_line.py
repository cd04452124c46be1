"""A command line to call on a lake of its own, and ways to see what changed."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from siltstone.cli.main import app
from siltstone.lake import Lake
from siltstone.storage import object_store as storage


class Cli:
    """Runs commands on one root, as a terminal-less process would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "lake"

    def __call__(self, *args: str, input: str | bytes | None = None, exit_code: int = 0) -> Result:
        environment = {"SILTSTONE_ROOT": str(self.root), "SILTSTONE_DEBUG": None, "COLUMNS": "200"}
        result = CliRunner(env=environment).invoke(app, list(args), input=input, prog_name="siltstone")
        assert result.exit_code == exit_code, f"{args}: {result.exit_code}\n{result.output}\n{result.exception!r}"
        assert "Traceback" not in result.output
        return result

    def json(self, *args: str, input: str | bytes | None = None, exit_code: int = 0) -> Any:
        """Run with --json, and return what it printed."""
        return json.loads(self(*args, "--json", input=input, exit_code=exit_code).stdout)

    def fails(self, *args: str, input: str | bytes | None = None) -> str:
        """Run what must fail with one line, change nothing, and return the line."""
        before = self.listing()
        result = self(*args, input=input, exit_code=1)
        assert self.listing() == before
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    def misused(self, *args: str, input: str | bytes | None = None) -> str:
        """Run what must be refused as wrong usage, and return the message."""
        before = self.listing()
        message = self(*args, input=input, exit_code=2).stderr
        assert self.listing() == before
        return message

    def file(self, name: str, content: str | bytes) -> str:
        """Write a file beside the lake and return its path."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def listing(self) -> dict[str, int]:
        """Return every file and folder under the root, with sizes."""
        found = sorted(self.root.rglob("*"))
        return {str(path): path.stat().st_size if path.is_file() else -1 for path in found}

    def rows(self, table: str, position: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a table's newest delta, or of those at a position."""
        lake = Lake(self.root)
        deltas = lake.table(table).deltas(position, position)
        if position is None:
            deltas = deltas[-1:]
        return [row for delta in deltas for row in storage.download_delta(delta, root=lake.root).to_pylist()]
