"""The page that documents the commands is run, and must tell the truth."""

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from siltstone.cli.main import app
from siltstone.lake import Lake
from siltstone.log import SinkLog
from siltstone.rows.merge import run_here
from siltstone.service import LakeTables, Node, ServiceSettings, default_address, open_database

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"
STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def steps() -> list[tuple[str, str]]:
    """Return every command of the page with the output it claims."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [(match[1], match[2]) for block in blocks for match in STEP.finditer(block)]


def masked(text: str, folder: Path) -> str:
    """Take out what differs from run to run: times, sizes, identifiers, and so the width of columns."""
    text = text.replace(str(folder), "/data")
    for pattern, name in (
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?", "TIME"),
        (r"\b\d{13}\b", "TIME"),
        (r"\b\d+\.\d+\.\d+\b", "VERSION"),
        (r"\d+(\.\d+)? [kM]?B\b", "SIZE"),
        (r'"bytes": \d+', "SIZE"),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-(?!8000-0)[0-9a-f]{4}-[0-9a-f]{12}", "CHANGE"),
        (r"1-[0-9a-f]{12}", "FOLDER"),
        (r"\b[0-9a-f]{32}\b", "NAME"),
        (r"(SIZE +SIZE +|amplification +)\d+\.\d\d", r"\1FACTOR"),
        (r"(?m)^( +\d+ .*(?:major|minor)) +\d+\.\d$", r"\1 SECONDS"),
        (r"(?m)^(Seconds: | +seconds ).*", r"\1"),
        (r"\b\d+(\.\d+)? (ms|s)\b", "TIME"),
        (r"[ \t]+", " "),
    ):
        text = re.sub(pattern, name, text)
    return text.strip()


@contextlib.contextmanager
def a_node(root: Path) -> Iterator[None]:
    """Run what the page says is running when it comes to cycles."""
    database = open_database(default_address(str(root)))
    settings = ServiceSettings(tick_seconds=0.1, worker_poll_seconds=0.1)
    node = Node(database, LakeTables(Lake(root), engine=run_here), settings, name="node-1")
    # It leads before anybody asks.
    node.leader.tick()
    node.start()
    try:
        yield
    finally:
        node.stop()
        database.close()


@pytest.mark.usefixtures("without_spark")
def test_every_command_on_the_page_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = contextlib.ExitStack()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SILTSTONE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "events").mkdir()
    log = SinkLog(tmp_path / "events")
    for batch_id in range(12):
        (tmp_path / "events" / f"part-{batch_id:05}.parquet").write_bytes(b"x" * 1000)
        log.add(batch_id, [log.entry(f"part-{batch_id:05}.parquet")])
    for line, claimed in steps():
        command, _, head = line.partition(" | head -n ")
        program, *args = shlex.split(command)
        if program == "cat":
            (tmp_path / args[0]).write_text(claimed, encoding="utf-8")
            continue
        if args[:2] == ["cycle", "trigger"]:
            running.enter_context(a_node(tmp_path / "lake"))
        result = CliRunner(env={"SILTSTONE_ROOT": None}).invoke(app, args, prog_name=program)
        told = "".join(result.output.splitlines(keepends=True)[: int(head) if head else None])
        if args == ["doctor"]:
            names = re.compile(r"^(?:ok|warning|failed) +(\S+(?: \S+)*?)  ", re.MULTILINE)
            assert names.findall(told) == names.findall(claimed)
            continue
        assert masked(told, tmp_path) == masked(claimed, tmp_path), line
    running.close()


def test_every_command_is_on_the_page() -> None:
    from tests.unit.cli.test_shell import commands

    shown = {" ".join(shlex.split(line)[1:]) for line, _ in steps()}
    for command in commands():
        assert any(line.startswith(" ".join(command)) for line in shown), command
