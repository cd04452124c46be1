"""The archive of the JVM's classes: made once, used when complete, and never in the way."""

import os
import time
from pathlib import Path

import pytest

from siltstone.spark.class_archive import archive_options


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SILTSTONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def option(name: str) -> Path | None:
    given = [each.partition("=")[2] for each in archive_options() if each.startswith(f"-XX:{name}=")]
    return Path(given[0]) if given else None


def test_one_process_makes_the_archive_and_later_ones_use_it_once_it_is_complete(cache: Path) -> None:
    coming = option("ArchiveClassesAtExit")
    assert coming is not None
    assert coming.parent == cache
    assert archive_options() == [], "another process is making it"
    coming.write_bytes(b"classes")
    # As if written just now, however long the next step takes to come.
    os.utime(coming, (time.time() + 3600, time.time() + 3600))
    assert archive_options() == [], "it may still be growing"
    long_ago = time.time() - 60
    os.utime(coming, (long_ago, long_ago))
    archive = option("SharedArchiveFile")
    assert archive is not None
    assert archive.read_bytes() == b"classes"
    assert not coming.exists()


def test_a_process_that_died_is_forgotten_after_a_while(cache: Path) -> None:
    assert archive_options()
    (lock,) = cache.glob("*.lock")
    long_ago = time.time() - 3600
    os.utime(lock, (long_ago, long_ago))
    assert option("ArchiveClassesAtExit") is not None


def test_another_java_has_another_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = option("ArchiveClassesAtExit")
    monkeypatch.setenv("JAVA_HOME", str(cache / "another-java"))
    assert option("ArchiveClassesAtExit") not in (None, first)


def test_without_a_place_for_it_spark_starts_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SILTSTONE_CACHE", "off")
    assert archive_options() == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("SILTSTONE_CACHE", str(tmp_path / "file"))
    assert archive_options() == []
