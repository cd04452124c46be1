"""`siltstone serve` as a process of its own, on Spark: cycles, signals, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import siltstone
from siltstone.service import default_address, list_nodes, open_database, service_status
from tests.unit.rounds.compaction import make_table, rows
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.integration

TOKEN = "a-token-that-nobody-guesses"


class Served:
    """A process that serves a lake."""

    def __init__(self, root: str, *options: str) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [
                *command("serve", "--root", root, "--port", "0", "--tick", "1s", "--json", "--log-format", "json"),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SILTSTONE_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        self.told: dict[str, Any] = json.loads(line)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.told['address']}{path}") as answer:
            return str(answer.read().decode())

    def end(self, number: int) -> list[dict[str, Any]]:
        """Send a signal, expect a clean end, and return the log."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=LIMIT_SECONDS)
        assert self.process.returncode == 0, log
        return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("siltstone")), *arguments]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*options: str) -> Served:
        started.append(Served(str(tmp_path / "lake"), *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def test_a_served_lake_is_compacted_on_request_and_the_service_ends_cleanly(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    root = str(tmp_path / "lake")
    tables = [make_table(root, name) for name in ("shop.orders", "shop.items")]
    for table in tables:
        table.write(rows([1, 2, 3], "a"))
        table.write(rows([2], "b"))
    served = serve("--node", "one")
    assert served.get("readyz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(
            urllib.request.Request(
                f"{served.told['address']}api/trigger", b"{}", {"Content-Type": "application/json"}, method="POST"
            )
        )
    asked = command("cycle", "trigger", "--root", root, "--wait", "--timeout", f"{LIMIT_SECONDS}s", "--json")
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["outcome"] == "COMPLETED"
    for table in tables:
        found = {row["id"]: row["v"] for row in siltstone.open(root).table(table.name).to_arrow().to_pylist()}
        assert found == {1: "a1", 2: "b2", 3: "a3"}
    assert 'siltstone_cycles_total{status="completed"} 1.0' in served.get("metrics")
    log = served.end(signal.SIGTERM)
    messages = [each["message"] for each in log]
    assert messages[-3:] == ["stopping", "node stopped", "spark stopped"]
    assert TOKEN not in json.dumps(log)
    database = open_database(default_address(root))
    (node,) = list_nodes(database)
    assert (node.name, node.is_leader, node.is_alive, node.claims) == ("one", False, False, 0)
    database.close()


def test_a_node_that_does_nothing_yet_ends_at_once(serve: Callable[..., Served]) -> None:
    served = serve("--no-worker", "--no-web")
    assert (served.told["address"], served.told["workers"]) == (None, 0)
    assert served.end(signal.SIGINT)[-1]["message"] == "node stopped"


def test_a_signal_while_spark_starts_ends_it_too(serve: Callable[..., Served], tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    make_table(root).write(rows([1]))
    served = serve("--grace", "1s")
    subprocess.run(command("cycle", "trigger", "--root", root), check=True, capture_output=True)
    assert served.process.stderr is not None
    for line in served.process.stderr:
        if '"cycle begun"' in line:
            break
    log = served.end(signal.SIGTERM)
    assert "stopping" in [each["message"] for each in log]


def test_a_second_signal_ends_it_at_once_and_the_next_node_goes_on(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    root = str(tmp_path / "lake")
    make_table(root).write(rows([1]))
    served = serve("--grace", "10m")
    subprocess.run(command("cycle", "trigger", "--root", root), check=True, capture_output=True)
    assert served.process.stderr is not None
    for awaited, number in (('"cycle begun"', signal.SIGTERM), ('"stopping"', signal.SIGTERM)):
        for line in served.process.stderr:
            if awaited in line:
                break
        served.process.send_signal(number)
    assert served.process.wait(LIMIT_SECONDS) == 128 + signal.SIGTERM
    database = open_database(default_address(root))
    status = service_status(database)
    database.close()
    assert status.is_running, "the cycle is not lost: whoever leads next goes on with it"
    assert status.completed == 0
