"""Where a session's workers find Spark's modules, and how Java talks to them."""

import os
import sys
from pathlib import Path

import pytest

from siltstone.spark.gateway import spark_home
from siltstone.spark.search_path import prefer_installed
from siltstone.spark.session import _socket_settings


def test_a_package_comes_before_its_own_archive_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    own, other, missing = (
        str(folder / "spark" / "python" / "lib" / "spark.zip") for folder in (site, elsewhere, tmp_path / "no")
    )
    (site / "spark").mkdir(parents=True)
    (site / "spark" / "__init__.py").touch()
    (elsewhere / "spark").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["", own, other, str(site), missing, str(elsewhere)])
    prefer_installed()
    assert sys.path == ["", other, str(site), missing, str(elsewhere), own]


def test_sockets_are_files_where_their_paths_are_short_enough(tmp_path: Path) -> None:
    assert _socket_settings(Path("/tmp/x"))["spark.python.unix.domain.socket.dir"] == "/tmp/x"
    # What Spark adds has 43 characters.
    fits = Path("/tmp", "x" * (103 - 5 - 43))
    assert _socket_settings(fits)["spark.python.unix.domain.socket.enabled"] == "true"
    assert _socket_settings(fits.with_name(f"{fits.name}y")) == {}
    # Bytes count, not characters.
    assert _socket_settings(Path("/tmp", "ä" * 40)) == {}


def test_spark_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert (spark_home() / "jars").is_dir()
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.touch()
    monkeypatch.setenv("SPARK_HOME", os.fspath(tmp_path))
    assert spark_home() == tmp_path
