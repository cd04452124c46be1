import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.padding import Padding
from typer.testing import CliRunner

import siltstone
from siltstone.cli import rows, tables
from siltstone.cli.main import app
from siltstone.cli.options import parse_duration_ms
from siltstone.cli.parts import least_width, new_grid, to_text
from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli

SILTSTONE = [sys.executable, "-c", "from siltstone.cli.main import main; main()"]


def commands() -> list[list[str]]:
    """Return the path of every command."""
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found += [[name, each] for each in inner] if inner else [[name]]
    return found


def test_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version").stdout == f"siltstone {siltstone.__version__}\n"


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(cli: Cli, command: list[str]) -> None:
    text = cli(*command, "--help").stdout
    assert re.search(r"Examples?:\n +.*siltstone ", text)
    assert "--json" in text
    assert "…" not in text.replace("s3://…", "")


def test_choices_are_those_of_the_model() -> None:
    from typing import get_args

    from siltstone.cdc import CHANGE_FORMATS
    from siltstone.ingest.file_rows import Format
    from siltstone.ingest.foreign import FOREIGN_FORMATS
    from siltstone.model import DeltaType, MergeEngine

    assert set(get_args(rows.DeltaType)) == set(get_args(DeltaType))
    assert set(get_args(tables.MergeEngine)) == set(get_args(MergeEngine))
    assert set(get_args(rows.FormatName)) == {*get_args(Format), *CHANGE_FORMATS}
    assert set(get_args(tables.ForeignFormat)) == set(FOREIGN_FORMATS)


def test_root_and_json_count_before_and_after_the_command(cli: Cli, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    schema = cli.file("schema.json", '{"id": "int64"}')
    cli("table", "create", "shop.t", "--schema", schema, "--root", other)
    for args in (
        ["--root", other, "--json", "table", "list"],
        ["table", "--root", other, "--json", "list"],
        ["table", "list", "--root", other, "--json"],
        ["--root", "nosuch", "table", "list", "--root", other, "--json"],
    ):
        assert [table["name"] for table in json.loads(cli(*args).stdout)] == ["shop.t"]
    assert cli.json("table", "list") == []


def test_a_mistyped_command_gets_a_suggestion(cli: Cli) -> None:
    assert "table" in cli.misused("tabel", "list")
    assert "list" in cli.misused("table", "lst")


def test_errors_are_one_line_or_one_document(cli: Cli) -> None:
    assert "shop.t" in cli.fails("table", "show", "shop.t")
    result = cli("--json", "table", "show", "shop.t", exit_code=1)
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "NotFoundError"
    assert "shop.t" in error["message"]
    assert result.stderr == ""


def test_unexpected_errors_show_where_only_when_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(Lake, "summaries", fail)
    message = cli.fails("table", "list")
    assert "KeyError" in message
    assert "surprise" in message
    assert "--debug" in message
    debugged = CliRunner().invoke(app, ["table", "list", "--debug", "--root", str(cli.root)])
    assert "Traceback" in debugged.stderr
    assert debugged.exit_code == 1
    assert json.loads(cli("table", "list", "--json", exit_code=1).stdout)["error"]["type"] == "KeyError"


def test_an_interrupt_exits_with_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lake, "summaries", interrupt)
    assert cli("table", "list", exit_code=130).stdout == ""


def test_a_reader_that_goes_away_ends_the_command_quietly(cli: Cli) -> None:
    schema = cli.file("schema.json", '{"id": "int64"}')
    cli("table", "create", "shop.t", "--schema", schema)
    cli("write", "shop.t", cli.file("rows.jsonl", '{"id": 1}'))
    for file in cli.root.glob("**/*.parquet"):
        file.unlink()
    # The last one has findings, so that it ends with an exit code of its own.
    for command in (["table", "show", "shop.t"], ["table", "show", "shop.t", "--json"], ["fsck", "shop.t"]):
        process = subprocess.Popen(
            [*SILTSTONE, "--root", str(cli.root), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() in (141, -signal.SIGPIPE)
        process.stderr.close()


def test_a_terminal_gets_colours_unless_it_wants_none(cli: Cli) -> None:
    cli("table", "create", "shop.t", "--schema", cli.file("schema.json", '{"id": "int64"}'))

    def shown(**environment: str) -> str:
        leader, follower = pty.openpty()
        subprocess.run(
            [*SILTSTONE, "--root", str(cli.root), "table", "show", "shop.t"],
            stdout=follower,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "40", **environment},
            check=True,
        )
        os.close(follower)
        text = os.read(leader, 100_000).decode()
        os.close(leader)
        return text

    assert "\x1b[" in shown(NO_COLOR="")
    plain = shown(NO_COLOR="1")
    assert not re.search(r"\x1b\[3[0-9]", plain)
    assert "int64" in plain


def test_text_that_no_terminal_can_show_does_not_break_the_output(cli: Cli) -> None:
    message = cli.fails("write", "shop.t\udcff", "x.csv")
    assert r"t\udcff" in message


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("7d", 604800), ("2w", 1209600), (" 1 D ", 86400)]
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration_ms(text, "--retention") == seconds * 1000


def test_numbers_are_never_cut_in_a_narrow_window() -> None:
    grid = new_grid("bucket", ">rows", ">size", "why")
    grid.add_row(to_text("0110"), to_text("1,234,567"), to_text("99.5 MB"), to_text("a reason as long as it gets"))
    shown = io.StringIO()
    Console(file=shown, width=least_width(Padding(grid, (0, 0, 0, 2)))).print(Padding(grid, (0, 0, 0, 2)))
    assert "0110" in shown.getvalue()
    assert "1,234,567  99.5 MB" in shown.getvalue()
    assert "reason" in shown.getvalue()
    assert least_width("a line that wraps wherever it likes") == 0


def groups() -> list[list[str]]:
    """Return the path of every group of commands, the first of which has none."""
    found = typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    return [[], *([name] for name, command in found if hasattr(command, "commands"))]


@pytest.mark.parametrize("group", groups(), ids=lambda group: " ".join(["siltstone", *group]))
def test_summaries_of_commands_fit_their_line_in_a_narrow_window(group: list[str]) -> None:
    text = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*group, "--help"], prog_name="siltstone").stdout
    assert re.search(r"Examples?:\n +siltstone ", text)
    lines = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    names = [command[len(group)] for command in commands() if command[: len(group)] == group]
    assert [line.split()[0] for line in lines] == list(dict.fromkeys(names)), "one line each"
    assert [line for line in lines if line.endswith("...") or len(line) > 80] == []
