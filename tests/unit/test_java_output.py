"""What Java says: nothing of what it says at every start, and all else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from siltstone.spark.gateway import _Output

USUAL = """\
WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
26/11/16 00:55:01 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform... using builtin-java classes
26/11/16 00:55:01 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.1.1; using 10.0.0.2 instead
26/11/16 00:55:01 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
"""
TROUBLE = """\
Exception in thread "main" java.lang.OutOfMemoryError: Java heap space
\tat org.apache.spark.Something.run(Something.scala:17)
00:55:02 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 3)
"""


def test_usual_lines_are_left_out_and_all_others_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    output = _Output()
    for line in [*USUAL.splitlines(), *TROUBLE.splitlines()]:
        # In pieces, as a pipe has them.
        os.write(output.sink, line[:7].encode())
        os.write(output.sink, line[7:].encode() + b"\n")
    os.write(output.sink, b"and its last words")
    output.close()
    output.drain()
    assert capsys.readouterr().err == f"{TROUBLE}and its last words\n"


def test_nothing_is_passed_on_after_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    output = _Output()
    output.is_muted = True
    os.write(output.sink, TROUBLE.encode())
    output.close()
    output.drain()
    assert capsys.readouterr().err == ""


def test_a_java_that_does_not_start_says_why(tmp_path: Path) -> None:
    program = "from siltstone.spark import local_session; local_session(is_short=True)"
    environment = {**os.environ, "JDK_JAVA_OPTIONS": "-XX:NoSuchOption", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert "NoSuchOption" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("siltstone.errors.NotInstalledError: Java ended before Spark")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_spark_that_is_not_there_is_named(tmp_path: Path) -> None:
    program = "from siltstone.spark import local_session; local_session(is_short=True)"
    environment = {**os.environ, "SPARK_HOME": str(tmp_path / "no"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"siltstone.errors.NotInstalledError: {tmp_path}/no/bin/spark-submit: Spark does not start (No such"
    )
    assert last.endswith("set SPARK_HOME to where Spark is")
    assert list(tmp_path.iterdir()) == []
