"""A table grows on a real cluster while its executors are killed, and holds what a ledger says: the benchmark, but for minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

KILLS = 2


def test_a_table_that_grows_while_executors_are_killed_loses_nothing(tmp_path: Path) -> None:
    sizes = ["--inserts", "50000", "--updates", "20000", "--kill-every", "2", "--kills", str(KILLS)]
    command = [sys.executable, "-m", "benchmarks.lost_executors", "--folder", str(tmp_path), "--json", *sizes]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["kills"] == KILLS
    assert result["deaths that workers saw"] > 0
    assert 50_000 < result["rows"] < result["keys ever"] == 50_000 * result["rounds"]
