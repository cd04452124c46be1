"""One SparkSession for all tests that need one: in this process, or with `--connect` at a Spark Connect server of our own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from siltstone.spark import local_session


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    if request.config.getoption("--connect"):
        with connect_server() as address, pytest.MonkeyPatch.context() as patch:
            # Also for processes that tests start.
            patch.setenv("SPARK_REMOTE", address)
            session = local_session()
            yield session
            session.stop()
        return
    session = local_session("siltstone-tests", cores=2, is_short=True)
    yield session
    session.stop()


@contextmanager
def connect_server() -> Iterator[str]:
    """Start a server in a process of its own, so that this one has no JVM, and yield its address."""
    command = [sys.executable, str(Path(__file__).with_name("connect_server.py"))]
    # Functions of tests are found there by the names of their modules.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("sc://"), f"the server ended with {server.wait()}"
        yield address
        server.stdin.close()
