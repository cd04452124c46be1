"""`siltstone serve`, with an engine of this process instead of Spark."""

import io
import json
import logging
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.cli import process
from siltstone.cli.output import Output
from siltstone.cli.process import ServeOptions, Serving, run_service
from siltstone.errors import InvalidInputError, StorageError
from siltstone.log.commit import forget_logs
from siltstone.rows.merge import run_here
from siltstone.service import (
    Database,
    JsonFormatter,
    TextFormatter,
    controls,
    list_nodes,
    open_database,
    service_settings,
)
from siltstone.web.site import read_token
from tests.unit.cli.command_line import Cli
from tests.unit.rounds.compaction import make_table, rows
from tests.waiting import LIMIT_SECONDS

QUICK = service_settings(interval=3600, tick=0.05, retention=0)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """What `serve` sets up is for a process of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Watched(Output):
    """Keeps what it is told, and lets the test go on."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.announced: Serving | None = None

    def emit(self, result: object, text: object, *, one_line: bool = False) -> None:
        assert isinstance(result, Serving)
        self.announced = result
        self.started.set()


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    table = make_table(root)
    table.write(rows([1, 2]))
    output, stopping, results = Watched(), threading.Event(), list[bool]()
    options = ServeOptions(root, port=0, node="me", settings=QUICK, engine=run_here, grace_seconds=LIMIT_SECONDS)
    thread = threading.Thread(target=lambda: results.append(run_service(options, output, stopping)))
    thread.start()
    assert output.started.wait(LIMIT_SECONDS)
    assert output.announced is not None
    address = output.announced.address
    assert address is not None
    with urllib.request.urlopen(f"{address}readyz") as answer:
        assert answer.status == 200
    database = open_database(output.announced.database)
    request = controls.trigger_cycle(database)
    assert controls.wait_for_request(database, request.request_id, timeout_seconds=LIMIT_SECONDS).outcome == "COMPLETED"
    assert len(table.to_arrow()) == 2
    stopping.set()
    thread.join(LIMIT_SECONDS)
    assert results == [True]
    (node,) = list_nodes(database)
    assert (node.name, node.is_alive, node.claims) == ("me", False, 0)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address)
    database.close()
    forget_logs(root)


def test_what_cannot_be_served_is_refused_before_anything_starts(cli: Cli) -> None:
    cli.root.mkdir()
    message = cli("serve", "--host", "0.0.0.0", "--port", "0", exit_code=1).stderr
    assert "others reach this address" in message
    assert "SILTSTONE_TOKEN" in message
    assert "at least 16" in cli("serve", "--token", "short", exit_code=1).stderr
    assert "unknown Spark master" in cli("serve", "--master", "nonsense", exit_code=1).stderr
    assert "node name" in cli("serve", "--node", "a#b", exit_code=1).stderr
    assert "more than half" not in cli("serve", "--tick", "1m", "--host", "0.0.0.0", exit_code=1).stderr
    assert "interval_seconds is 0" in cli("serve", "--interval", "0s", exit_code=1).stderr


def test_wrong_usage(cli: Cli) -> None:
    assert "--interval" in cli.misused("serve", "--interval", "often")
    assert "--port" in cli.misused("serve", "--port", "70000")
    assert "--workers" in cli.misused("serve", "--workers", "0")
    assert "--log-format" in cli.misused("serve", "--log-format", "xml")
    assert "not both" in cli.misused("serve", "--token", "x", "--token-file", "y")
    assert "SILTSTONE_TOKEN" in cli("serve", "--help").stdout


def test_a_token_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  from-a-file-of-mine\n")
    assert read_token(str(path)) == "from-a-file-of-mine"
    path.write_text(" \n")
    with pytest.raises(InvalidInputError, match="is empty"):
        read_token(str(path))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_token(str(tmp_path / "none"))
    assert "secret" not in repr(ServeOptions("r", token="secret-secret-secret"))


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_logs_have_fields_and_no_secrets(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("test")
    log.addHandler(handler)
    log.info("opened %s", "postgresql://silt:hunter2@db/x", extra={"cycle": 7, "token": "token=abcdef"})
    try:
        raise ValueError("password=hunter2")
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert "hunter2" not in text
    assert "abcdef" not in text
    assert "ValueError" in text
    first = text.splitlines()[0]
    if isinstance(formatter, JsonFormatter):
        assert json.loads(first)["cycle"] == 7
    else:
        assert "info    opened postgresql://silt:***@db/x cycle=7" in first


def test_a_node_waits_for_a_database_that_does_not_answer_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [StorageError("the database is down")] * 2

    def open_later(address: str) -> Database:
        if failures:
            raise failures.pop()
        return open_database(address)

    monkeypatch.setattr(process, "open_database", open_later)
    monkeypatch.setattr(process, "_DATABASE_SECONDS", 0)
    stopping = threading.Event()
    opened = process._open_database(f"sqlite:///{tmp_path}/service.db", stopping)
    assert opened is not None
    opened.close()
    failures.append(StorageError("the database is down"))
    stopping.set()
    assert process._open_database(f"sqlite:///{tmp_path}/service.db", stopping) is None
