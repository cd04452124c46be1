"""Where a session finds Spark, and its workers Spark's modules."""

import os
import sys
from pathlib import Path

import pytest

from siltstone.spark.gateway import spark_home
from siltstone.spark.search_path import prefer_installed


def test_a_package_comes_before_its_own_archive_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    own, other, missing = (
        str(folder / "pyspark" / "python" / "lib" / "pyspark.zip") for folder in (site, elsewhere, tmp_path / "no")
    )
    of_user = own.replace("pyspark.zip", "mine.zip")
    (site / "pyspark").mkdir(parents=True)
    (site / "pyspark" / "__init__.py").touch()
    (elsewhere / "pyspark").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", ["", own, of_user, other, str(site), missing, str(elsewhere)])
    prefer_installed()
    assert sys.path == ["", of_user, other, str(site), missing, str(elsewhere), own]


def test_spark_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert (spark_home() / "jars").is_dir()
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.touch()
    monkeypatch.setenv("SPARK_HOME", os.fspath(tmp_path))
    assert spark_home() == tmp_path
