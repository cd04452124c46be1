"""Whatever needs Spark says in one sentence which Java to install, where there is none that will do."""

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.cli.output import Output
from siltstone.cli.process import ServeOptions, run_service
from siltstone.errors import NotInstalledError
from siltstone.java import find_java, require_java

SENTENCE = "Spark needs Java 17 or newer "
PROGRAM = """
import sys
from siltstone.cli.main import main
sys.argv[0] = "siltstone"
main()
"""


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def put_java(home: Path, script: str) -> None:
    """Make a Java home whose program is a script."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (home / "bin" / "java").chmod(0o755)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of its own, where no session of another test is at hand."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def lake(tmp_path: Path, no_java: None) -> siltstone.Lake:
    lake = siltstone.open(str(tmp_path / "lake"))
    lake.create_table("shop.orders", schema={"id": "int64"}, primary_keys="id").write(pa.table({"id": [1]}))
    lake.create_document_table("shop.reviews").update("a", '{"stars":5}')
    return lake


@pytest.mark.parametrize(
    "command",
    [
        ["compact", "shop.orders"],
        ["documents", "compact", "shop.reviews"],
        ["serve", "--port", "0"],
    ],
    ids=" ".join,
)
def test_a_command_that_needs_spark_says_what_to_install_where_there_is_no_java(
    lake: siltstone.Lake, command: list[str]
) -> None:
    told = run("-c", PROGRAM, *command, "--root", lake.root)
    assert told.returncode == 1
    (line,) = [line for line in told.stderr.splitlines() if line.startswith("Error")]
    assert line.startswith(f"Error: {SENTENCE}(not found): install Java 17 ")
    assert line.endswith("set JAVA_HOME to where it is")
    assert "Traceback" not in told.stderr
    assert "unexpected" not in told.stderr


def test_a_table_and_a_session_say_it_too(lake: siltstone.Lake) -> None:
    for call in (
        f"import siltstone; siltstone.open({lake.root!r}).table('shop.orders').compact()",
        f"import siltstone; siltstone.open({lake.root!r}).document_table('shop.reviews').compact()",
        "from siltstone.spark import local_session; local_session()",
    ):
        told = run("-c", call)
        assert told.stderr.splitlines()[-1].startswith(f"siltstone.errors.NotInstalledError: {SENTENCE}")


def test_a_node_that_only_leads_needs_no_java(lake: siltstone.Lake) -> None:
    stopping = threading.Event()
    stopping.set()
    assert run_service(ServeOptions(lake.root, workers=0, has_web=False), Output(), stopping)
    with pytest.raises(NotInstalledError, match=SENTENCE):
        run_service(ServeOptions(lake.root, workers=1, has_web=False), Output(), stopping)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'openjdk version \"11.0.1\"' >&2", r"11\.0\.1 at .*/home/bin/java \(by JAVA_HOME\)\): install Java 17"),
        ("echo 'java version \"1.8.0_292\"'", r"1\.8\.0_292 at .*: install Java 17 or newer"),
        ("exit 3", r"/home/bin/java \(by JAVA_HOME\) does not run: .*: set JAVA_HOME to a Java 17"),
        ("echo hello", "of an unknown version at .*: install Java 17 or newer"),
        (None, r"not found at .*/home/bin/java \(by JAVA_HOME\)\): set JAVA_HOME to a Java 17, or unset it"),
    ],
)
def test_a_java_that_will_not_do_is_named(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, told: str
) -> None:
    if script is not None:
        put_java(tmp_path / "home", script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(NotInstalledError, match=rf"^Spark needs Java 17 or newer \(.*{told}"):
        require_java()


def test_java_home_comes_before_the_path(no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_java(tmp_path / "home", "echo 'openjdk version \"21.0.3\"' >&2")
    put_java(tmp_path / "other", "echo 'openjdk version \"17.0.2\"' >&2")
    monkeypatch.setenv("PATH", str(tmp_path / "other" / "bin"))
    assert find_java().major == 17
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java().major == 21
    require_java()


def test_a_program_of_spark_submit_has_its_java(no_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    require_java()


def test_java_is_needed_where_spark_connect_starts_a_server_and_not_where_one_is_named(
    no_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example.com:15002")
    require_java()
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    with pytest.raises(NotInstalledError, match=SENTENCE):
        require_java()


def test_a_java_is_believed_what_is_written_down_beside_it(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_java(tmp_path / "home", "exit 3")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n')
    require_java()
    (tmp_path / "home" / "release").write_text('JAVA_VERSION="1.8.0_292"\n')
    with pytest.raises(NotInstalledError, match="does not run"):
        require_java()
