"""Folders of Spark sessions: swept after processes that were killed, and never under one that lives."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from siltstone.spark.folders import make_folder

PROGRAM = (
    "import sys; from siltstone.spark.folders import make_folder; print(make_folder(), flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start() -> tuple["subprocess.Popen[str]", Path]:
    """Start a process with a folder of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_of_a_killed_process_is_swept_and_that_of_a_living_one_stays(temporary: Path) -> None:
    living, kept = start()
    killed, abandoned = start()
    (abandoned / "local").mkdir()
    (abandoned / "local" / "shuffle").write_bytes(b"x")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    mine = make_folder()
    assert not abandoned.exists()
    assert kept.is_dir()
    living.communicate("")
    assert not kept.exists(), "it goes with its process"
    assert {path.name for path in temporary.iterdir()} == {mine.name}


def test_a_folder_whose_process_cannot_be_told_stays(temporary: Path) -> None:
    owner = json.loads((make_folder() / "owner.json").read_text())
    dead = {**owner, "pid": 2**22 + 1}
    records = {
        "nothing": None,
        "torn": json.dumps(dead)[:-5],
        "list": "[]",
        "other-boot": json.dumps({**dead, "boot": "x"}),
        "other-container": json.dumps({**dead, "namespace": "pid:[1]"}),
    }
    for name, record in records.items():
        folder = temporary / f"siltstone-spark-{name}"
        folder.mkdir()
        if record is not None:
            (folder / "owner.json").write_text(record)
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.json").write_text(json.dumps(dead))
    (temporary / "siltstone-spark-link").symlink_to(elsewhere)
    make_folder()
    assert all((temporary / f"siltstone-spark-{name}").is_dir() for name in records)
    assert (elsewhere / "owner.json").exists()


def test_another_process_with_the_number_of_a_dead_one_does_not_keep_its_folder(temporary: Path) -> None:
    mine = make_folder()
    owner = json.loads((mine / "owner.json").read_text())
    assert owner["pid"] == os.getpid()
    (mine / "owner.json").write_text(json.dumps({**owner, "started": owner["started"] - 1}))
    make_folder()
    assert not mine.exists()
