import os
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
