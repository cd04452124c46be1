"""The archive of the JVM's classes: made once, used when complete, and never in the way."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from siltstone.spark.session import archive_options

CLASSES = bytes.fromhex("a8ab0bf0") + b"classes" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SILTSTONE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def option(name: str) -> Path | None:
    given = [
        archive_option.partition("=")[2]
        for archive_option in archive_options()
        if archive_option.startswith(f"-XX:{name}=")
    ]
    return Path(given[0]) if given else None


def test_one_process_makes_the_archive_and_later_ones_use_it_once_it_is_complete(cache: Path) -> None:
    coming = option("ArchiveClassesAtExit")
    assert coming is not None
    assert coming.parent == cache
    assert archive_options() == [], "another process is making it"
    coming.write_bytes(CLASSES)
    # As if written just now, however long the next step takes to come.
    os.utime(coming, (time.time() + 3600, time.time() + 3600))
    assert archive_options() == [], "it may still be growing"
    long_ago = time.time() - 60
    os.utime(coming, (long_ago, long_ago))
    archive = option("SharedArchiveFile")
    assert archive is not None
    assert archive.read_bytes() == CLASSES
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


def age(file: Path) -> None:
    long_ago = time.time() - 60
    os.utime(file, (long_ago, long_ago))


def made(cache: Path) -> Path:
    """Let an archive be made and taken over; return it."""
    coming = option("ArchiveClassesAtExit")
    assert coming is not None
    coming.write_bytes(CLASSES)
    age(coming)
    archive = option("SharedArchiveFile")
    assert archive is not None
    return archive


@pytest.mark.parametrize("data", [CLASSES[:-1], CLASSES[:10], b"", CLASSES[:-1] + b"x", CLASSES + b"x"])
def test_an_archive_that_was_cut_short_or_changed_is_removed_and_made_again(cache: Path, data: bytes) -> None:
    archive = made(cache)
    archive.write_bytes(data)
    assert made(cache) == archive
    assert archive.read_bytes() == CLASSES


def test_an_archive_that_nobody_vouches_for_is_made_again(cache: Path) -> None:
    archive = made(cache)
    (checksum,) = cache.glob("*.checksum")
    checksum.unlink()
    assert option("ArchiveClassesAtExit") is not None
    assert not archive.exists()


@pytest.mark.parametrize("data", [b"", bytes(len(CLASSES)), b"classes"])
def test_what_a_killed_jvm_left_is_removed_and_made_again(cache: Path, data: bytes) -> None:
    coming = option("ArchiveClassesAtExit")
    assert coming is not None
    coming.write_bytes(data)
    age(coming)
    assert option("ArchiveClassesAtExit") == coming
    assert not coming.exists()


def test_what_java_writes_is_taken_over(cache: Path, tmp_path: Path) -> None:
    coming = option("ArchiveClassesAtExit")
    assert coming is not None
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    # A program that is not there is enough to load a few classes.
    subprocess.run([java, f"-XX:ArchiveClassesAtExit={coming}", "-cp", tmp_path, "Nothing"], capture_output=True)
    age(coming)
    archive = option("SharedArchiveFile")
    assert archive is not None
    done = subprocess.run([java, f"-XX:SharedArchiveFile={archive}", "-version"], capture_output=True)
    assert done.returncode == 0
