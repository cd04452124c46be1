import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from siltstone import clock, objects
from siltstone.errors import AlreadyExistsError, StorageError
from siltstone.maintenance import machine
from siltstone.objects import LocalObjects
from tests.unit.cli.command_line import Cli


def states(cli: Cli, *options: str, exit_code: int = 0) -> dict[str, str]:
    return {check["name"]: check["state"] for check in cli.json("doctor", *options, exit_code=exit_code)}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder and a cache of their own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("SILTSTONE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SILTSTONE_DATABASE", raising=False)
    return folder


def check_of(cli: Cli, name: str, *options: str, exit_code: int = 0) -> dict[str, str]:
    found: dict[str, dict[str, str]] = {
        check["name"]: check for check in cli.json("doctor", *options, exit_code=exit_code)
    }
    return found[name]


@pytest.fixture(autouse=True)
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that only tells its version; the machine's own stays out of it."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    set_java(home, "17.0.2")
    return home


def set_java(home: Path, version: str) -> None:
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2022-01-18' >&2\n")
    program.chmod(0o755)


def test_all_is_well_on_a_local_root(cli: Cli) -> None:
    cli.root.mkdir()
    found = states(cli)
    assert set(found.values()) <= {"ok", "warning"}
    assert {"python", "java", "pyspark", "pyarrow", "obstore", "root", "create-if-absent", "clock"} <= set(found)


def test_nothing_is_left_behind_not_even_the_root(cli: Cli) -> None:
    cli("doctor")
    assert not cli.root.exists()
    cli.root.mkdir()
    (cli.root / "kept").write_text("x")
    cli("doctor")
    assert [path.name for path in cli.root.iterdir()] == ["kept"]


def test_a_root_that_is_a_file_fails(cli: Cli) -> None:
    cli.root.write_text("x")
    assert states(cli, exit_code=1)["root"] == "failed"
    assert cli.root.read_text() == "x"


def test_an_unknown_scheme_fails_with_a_fix(cli: Cli) -> None:
    found = cli.json("doctor", "--root", "ftp://host/lake", exit_code=1)
    failed = [check for check in found if check["state"] == "failed"]
    assert [check["name"] for check in failed] == ["root"]
    assert failed[0]["fix"]


@pytest.mark.parametrize(
    ("version", "state"), [("1.8.0_292", "failed"), ("11.0.1", "failed"), ("21", "ok"), ("25.0.1", "warning")]
)
def test_java_is_judged_by_its_version(cli: Cli, java: Path, version: str, state: str) -> None:
    set_java(java, version)
    found = states(cli, exit_code=1 if state == "failed" else 0)
    assert found["java"] == state


def test_a_missing_java_fails_and_spark_is_not_tried(cli: Cli, java: Path) -> None:
    (java / "bin" / "java").unlink()
    found = states(cli, "--spark", exit_code=1)
    assert found["java"] == "failed"
    assert found["spark"] == "failed"


class _Overwriting(LocalObjects):
    """A store that ignores the condition of a conditional write."""

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        self.replace(path, data)


class _Racy(LocalObjects):
    """A store that looks before it writes, so that several racers find nothing there."""

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        if not path.endswith("raced") and os.path.exists(f"{self.root}/{path}"):
            raise AlreadyExistsError(path)
        self.replace(path, data)


class _Unwritable(LocalObjects):
    """A store that takes nothing."""

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        raise StorageError(f"{path}: out of order")


@pytest.mark.parametrize(
    ("store", "failed"),
    [(_Overwriting, "create-if-absent"), (_Racy, "create-if-absent"), (_Unwritable, "root writable")],
)
def test_a_store_on_which_commits_are_not_safe_fails(cli: Cli, store: type[LocalObjects], failed: str) -> None:
    with objects.replaced(str(cli.root), store(cli.root)):
        found = states(cli, exit_code=1)
    assert found[failed] == "failed"
    assert not cli.root.exists()


@pytest.mark.parametrize(
    ("seconds", "state", "detail"),
    [(100, "warning", "s ahead of the store's"), (3600, "failed", "s ahead of"), (-3600, "failed", "s behind")],
)
def test_a_clock_apart_from_the_stores_is_found_with_the_bound_that_stops_maintenance(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, seconds: int, state: str, detail: str
) -> None:
    real = clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: real() + seconds * 1000)
    checked = cli.json("doctor", exit_code=1 if state == "failed" else 0)
    (found,) = [check for check in checked if check["name"] == "clock"]
    assert found["state"] == state
    assert detail in found["detail"]
    assert ("vacuums delete nothing" in found["fix"]) == (state == "failed")


def test_low_disk_space_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_LOW_DISK_BYTES", 1 << 60)
    assert states(cli)["disk space"] == "warning"
    monkeypatch.setattr(machine, "_NO_DISK_BYTES", 1 << 60)
    assert states(cli, exit_code=1)["disk space"] == "failed"


def test_text_shows_each_check_with_its_fix(cli: Cli, java: Path) -> None:
    set_java(java, "11")
    text = cli("doctor", exit_code=1).stdout
    assert "failed   java" in text
    assert "→ install Java 17" in text
    assert text.endswith("1 failed, 0 with a warning.\n")


def test_every_problem_comes_with_a_cure(
    cli: Cli, java: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_java(java, "11")
    monkeypatch.setattr(machine, "_LOW_DISK_BYTES", 1 << 60)
    monkeypatch.setenv("SILTSTONE_CACHE", str(java / "bin" / "java"))
    monkeypatch.setenv("SILTSTONE_DATABASE", "mysql://host/name")
    for check in cli.json("doctor", exit_code=1):
        assert bool(check["fix"]) == (check["state"] != "ok"), check


def dead_folder(temporary: Path) -> Path:
    """Let a process make a folder for Spark, put something into it, and die."""
    program = (
        "import os, signal; from siltstone.spark.folders import make_folder; folder = make_folder(); "
        "(folder / 'shuffle').write_bytes(bytes(5000)); print(folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    died = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    return Path(died.stdout.strip())


def test_folders_of_dead_processes_are_found_and_removed_when_asked(cli: Cli, temporary: Path) -> None:
    assert check_of(cli, "spark folders")["detail"] == "nothing left over"
    folder = dead_folder(temporary)
    foreign = temporary / "siltstone-spark-elsewhere"
    foreign.mkdir()
    (foreign / "owner.json").write_text(json.dumps({"pid": 1, "started": 1, "boot": "another", "namespace": "pid:[1]"}))
    found = check_of(cli, "spark folders")
    assert found["state"] == "warning"
    assert "1 folder of processes that died, 5." in found["detail"]
    assert "doctor --fix" in found["fix"]
    would = check_of(cli, "spark folders", "--fix", "--dry-run")
    assert (would["state"], would["fix"]) == ("warning", "--fix would remove this")
    assert folder.is_dir()
    fixed = check_of(cli, "spark folders", "--fix")
    assert (fixed["state"], fixed["fix"]) == ("fixed", "")
    assert fixed["detail"].endswith("removed")
    assert not folder.exists()
    assert foreign.is_dir()
    after = check_of(cli, "spark folders")
    assert (after["state"], str(foreign) in after["detail"]) == ("ok", True)


def test_a_fix_that_fails_says_so(cli: Cli, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead_folder(temporary)

    def fail(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("siltstone.spark.checks.shutil.rmtree", fail)
    found = check_of(cli, "spark folders", "--fix")
    assert found["state"] == "warning"
    assert "Permission denied" in found["fix"]


def test_a_dry_run_goes_with_a_fix(cli: Cli) -> None:
    assert "--fix" in cli.misused("doctor", "--dry-run")


def test_the_class_archive_is_judged_and_removed_if_it_is_damaged_or_old(cli: Cli, tmp_path: Path) -> None:
    from siltstone.spark.session import archive_file

    assert "none yet" in check_of(cli, "class archive")["detail"]
    cache = tmp_path / "cache"
    cache.mkdir()
    archive = archive_file(cache)
    archive.write_bytes(b"damaged")
    archive.with_suffix(".checksum").write_text("7 00000000")
    old = cache / "spark-0123456789abcdef.jsa"
    young = cache / "spark-fedcba9876543210.jsa"
    for other in (old, young):
        other.write_bytes(b"x" * 100)
    os.utime(old, (time.time() - 90 * 86400,) * 2)
    assert "damaged" in check_of(cli, "class archive")["detail"]
    assert "1 archive of another Java or Spark" in check_of(cli, "old archives")["detail"]
    found = states(cli, "--fix")
    assert (found["class archive"], found["old archives"]) == ("fixed", "fixed")
    assert [path.name for path in cache.iterdir()] == [young.name]


def test_a_cache_that_is_off_or_cannot_be_written_is_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SILTSTONE_CACHE", "off")
    assert states(cli)["cache folder"] == "ok"
    assert "class archive" not in states(cli)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SILTSTONE_CACHE", str(tmp_path / "file" / "cache"))
    found = check_of(cli, "cache folder")
    assert found["state"] == "warning"
    assert "SILTSTONE_CACHE" in found["fix"]


def test_the_services_database_is_opened_and_its_clock_compared(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "none yet" in check_of(cli, "service database")["detail"]
    assert "--database" in check_of(cli, "service database", "--root", "ftp://host/lake", exit_code=1)["detail"]
    from siltstone.service import default_address, open_database

    open_database(default_address(str(cli.root))).close()
    found = check_of(cli, "service database")
    assert (found["state"], found["detail"].startswith("sqlite:///")) == ("ok", True)
    real = clock.now_ms
    monkeypatch.setattr(clock, "now_ms", lambda: real() + 60_000)
    found = check_of(cli, "service database")
    assert (found["state"], "its clock is" in found["detail"]) == ("warning", True)
    monkeypatch.setattr(clock, "now_ms", real)
    (tmp_path / "text.db").write_text("this is no database, but long enough to be looked at as one" * 20)
    assert check_of(cli, "service database", "--database", str(tmp_path / "text.db"), exit_code=1)["state"] == "failed"
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE other (id INTEGER)")
    assert check_of(cli, "service database", "--database", str(tmp_path / "other.db"))["state"] == "ok"
    wrong = check_of(cli, "service database", "--database", "mysql://host/name", exit_code=1)
    assert (wrong["state"], "--database" in wrong["fix"]) == ("failed", True)


def test_objects_of_a_doctor_that_was_interrupted_are_removed_but_not_those_of_one_that_runs(cli: Cli) -> None:
    (cli.root / ".doctor" / "old").mkdir(parents=True)
    (cli.root / ".doctor" / "young").mkdir()
    old, young = cli.root / ".doctor" / "old" / "written", cli.root / ".doctor" / "young" / "written"
    for probe in (old, young):
        probe.write_bytes(b"probe")
    os.utime(old, (time.time() - 7200,) * 2)
    assert "1 object" in check_of(cli, "probes")["detail"]
    assert states(cli, "--fix")["probes"] == "fixed"
    assert (old.exists(), young.exists()) == (False, True)
