"""`siltstone ingest` takes the files of a folder, once or again and again."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli
from tests.unit.cli.test_shell import SILTSTONE
from tests.waiting import LIMIT_SECONDS

LONG_AGO = 1_700_000_000


@pytest.fixture
def drops(cli: Cli) -> Path:
    """A folder with a file, and a table for it."""
    folder = cli.folder / "drops"
    folder.mkdir()
    drop(folder, "a.csv", "id,note\n1,x\n2,y\n")
    cli("table", "create", "shop.orders", "--key", "id", "--from", str(folder / "a.csv"))
    return folder


def drop(folder: Path, name: str, text: str) -> None:
    """Put a file there in one piece, as producers do that rename it."""
    (folder / f".{name}").write_text(text)
    os.utime(folder / f".{name}", (LONG_AGO, LONG_AGO))
    (folder / f".{name}").rename(folder / name)


def test_files_are_taken_and_the_next_time_nothing_is(cli: Cli, drops: Path) -> None:
    assert "no files were taken" in cli("ingest", "shop.orders").stdout
    assert "would take 1 file (16 B, 2 rows)" in cli("ingest", "shop.orders", str(drops), "--dry-run").stdout
    assert "took 1 file (16 B, 2 rows)" in cli("ingest", "shop.orders", str(drops)).stdout
    assert "nothing new in" in cli("ingest", "shop.orders", str(drops)).stdout
    assert [row["id"] for row in cli.rows("shop.orders")] == [1, 2]
    told = cli("ingest", "shop.orders").stdout
    assert str(drops) in told
    assert told.count("\n") == 2


def test_a_bad_file_is_one_line_and_with_quarantine_it_is_set_aside(cli: Cli, drops: Path) -> None:
    drop(drops, "b.csv", "id,note\nfive,x\n")
    (message,) = cli("ingest", "shop.orders", str(drops), exit_code=1).stderr.splitlines()
    assert "b.csv: row 2, column 'id': invalid value 'five' for int64" in message
    assert "--quarantine" in message
    assert "b.csv: row 2" in cli("ingest", "shop.orders").stdout, "the last error is kept"
    aside = cli.folder / "aside"
    told = cli("ingest", "shop.orders", str(drops), "--rejects", str(aside), "--done", "delete").stdout
    assert "took 1 file" in told
    assert "Rejected b.csv: row 2, column 'id'" in told
    assert os.listdir(aside) == ["b.csv"]
    assert os.listdir(drops) == []


def test_wrong_usage_is_named(cli: Cli, drops: Path) -> None:
    assert "leave out --every" in cli.misused("ingest", "shop.orders", str(drops), "--every", "1s", "--dry-run")
    assert "is not a duration" in cli.misused("ingest", "shop.orders", str(drops), "--every", "soon")
    assert "no such folder" in cli("ingest", "shop.orders", str(drops / "x"), exit_code=1).stderr
    assert "did you mean shop.orders?" in cli.fails("ingest", "shop.order", str(drops))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_watcher_takes_what_arrives_until_it_is_stopped(
    cli: Cli, drops: Path, number: signal.Signals, code: int
) -> None:
    command = [*SILTSTONE, "ingest", "shop.orders", str(drops), "--every", "1s", "--root", str(cli.root), "--json"]
    watcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        assert json.loads(watcher.stdout.readline())["rows"] == 2
        drop(drops, "b.csv", "id,note\n3,z\n")
        assert json.loads(watcher.stdout.readline())["rows"] == 1
        drop(drops, "c.csv", "id,note\nsix,z\n")
        assert any("c.csv: row 2" in line for line in iter(watcher.stderr.readline, ""))
        assert any(report.error for report in Lake(cli.root).table("shop.orders").ingests())
        watcher.send_signal(number)
        watcher.communicate(timeout=LIMIT_SECONDS)
        assert watcher.returncode == code
    finally:
        watcher.kill()
    assert [row["id"] for position in (1, 2) for row in cli.rows("shop.orders", position)] == [1, 2, 3]
    assert len(Lake(cli.root).table("shop.orders").deltas()) == 2
