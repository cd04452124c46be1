"""`siltstone cycle …` on a real database, with and without a node that runs."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.rows.merge import run_here
from siltstone.service import LakeTables, Node, ServiceSettings, open_database
from tests.unit.cli.command_line import Cli
from tests.unit.rounds.compaction import make_table, rows
from tests.waiting import LIMIT_SECONDS

QUICK = ServiceSettings(tick_seconds=0.05, worker_poll_seconds=0.05, retry_pause_seconds=0, backlog_bytes=None)


@pytest.fixture
def node(cli: Cli) -> Iterator[Node]:
    """A node that looks after the lake of the command line, which has a table with something to do."""
    make_table(str(cli.root)).write(rows([1, 2, 3]))
    database = open_database(f"sqlite:///{cli.root}.service.db")
    started = Node(database, LakeTables(siltstone.open(str(cli.root)), engine=run_here), QUICK, name="here")
    # It leads before anybody asks.
    started.leader.tick()
    started.start()
    yield started
    started.stop()
    database.close()
    forget_logs(str(cli.root))


@pytest.fixture
def lake(cli: Cli) -> Cli:
    """A lake without a service."""
    cli.root.mkdir()
    return cli


def test_a_cycle_is_triggered_awaited_and_shown(cli: Cli, node: Node) -> None:
    told = cli("cycle", "trigger", "--wait", "--timeout", f"{LIMIT_SECONDS}s")
    assert told.stdout == "Cycle 1 COMPLETED.\n"
    assert told.stderr == ""
    status = cli("cycle", "status").stdout
    assert "Cycle 1 COMPLETED" in status
    assert "here, term 1" in status
    assert "shop.orders" in status
    found = cli.json("cycle", "status")
    assert (found["status"]["completed"], found["nodes"][0]["name"]) == (1, "here")
    assert found["status"]["started_at"].endswith("Z")
    assert found["status"]["next_due_at"].endswith("Z"), "by the interval of the leader"
    (record,) = cli.json("cycle", "history")
    assert (record["cycle_count"], record["status"], record["rows"]) == (1, "COMPLETED", 3)
    assert "COMPLETED" in cli("cycle", "history").stdout
    assert cli("cycle", "history", "--status", "FAILED").stdout == "No such cycles.\n"
    assert cli.json("cycle", "show") == cli.json("cycle", "show", "1")
    assert "1 round, 3 rows" in cli("cycle", "show", "1").stdout


def test_a_trigger_that_trims(cli: Cli, node: Node) -> None:
    done = cli.json("cycle", "trigger", "--trim", "--wait")
    assert (done["trim"], done["state"], done["outcome"]) == (True, "DONE", "COMPLETED")
    assert cli.json("cycle", "show")["record"]["trimmed_deltas"] == 0, "they are not old enough"


def test_a_failed_cycle_is_told_with_its_reason_and_exit_code_1(cli: Cli, node: Node) -> None:
    cli("cycle", "trigger", "--wait")
    siltstone.open(str(cli.root)).table("shop.orders").write(rows([9]))
    for path in Path(cli.root).glob("tables/shop/orders/*/compacted/_/rounds/*"):
        path.write_bytes(b"damaged")
    told = cli("cycle", "trigger", "--wait", exit_code=1).stdout
    assert told.startswith("Cycle 2 FAILED.\n`siltstone cycle show 2` shows why.")
    assert "/rounds/1-" in cli("cycle", "show", "2").stdout
    assert cli.json("cycle", "show", "2")["record"]["failed_partitions"]


class TestWithoutAService:
    def test_requests_wait_for_one(self, lake: Cli) -> None:
        told = lake("cycle", "trigger")
        assert "Asked for a cycle, request " in told.stdout
        assert told.stderr == "Warning: no service is running, so the request waits; `siltstone serve` starts one\n"
        assert "1 cycle asked for and not begun" in lake("cycle", "status").stdout
        assert "not done yet" in lake("cycle", "trigger", "--wait", "--timeout", "0s", exit_code=1).stdout

    def test_controls_hold_until_they_are_undone(self, lake: Cli) -> None:
        frozen = lake.json("cycle", "freeze", "--for", "30m")
        assert frozen["action"] == "frozen"
        assert "frozen  " in lake("cycle", "status").stdout
        assert "cycles are frozen, so the request waits" in lake("cycle", "trigger").stderr
        assert lake("cycle", "unfreeze").stdout == "Cycles may begin again.\n"
        assert lake.json("cycle", "unfreeze") == {"action": "unfrozen", "changed": False, "control": None}
        assert "until `siltstone cycle enable`" in lake("cycle", "disable").stdout
        assert "cycles are disabled, so the request waits" in lake("cycle", "trigger").stderr
        assert lake("cycle", "enable").stdout == "Cycles may begin again.\n"
        assert "nothing to do" in lake("cycle", "enable").stdout

    def test_looking_creates_no_database(self, lake: Cli) -> None:
        for command in ("status", "history", "show", "enable", "unfreeze"):
            assert "start one with `siltstone serve --database" in lake.fails("cycle", command)
            missing = f"sqlite:///{lake.folder}/deep/service.db"
            assert "no such file" in lake.fails("cycle", command, "--database", missing)
        assert list(lake.folder.iterdir()) == [lake.root]

    @pytest.mark.parametrize("statement", ["CREATE TABLE orders (id INTEGER)", None])
    def test_looking_leaves_an_unrelated_database_as_it_is(self, lake: Cli, statement: str | None) -> None:
        path = lake.folder / "orders.db"
        path.touch()
        if statement is not None:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute(statement)
        before = path.read_bytes()
        for command in ("status", "history", "show", "enable", "unfreeze"):
            message = lake.fails("cycle", command, "--database", str(path))
            assert "no Siltstone service has used this database; start one with `siltstone serve" in message
        assert path.read_bytes() == before
        assert sorted(lake.folder.iterdir()) == [lake.root, path]

    def test_what_is_no_database_at_all_is_refused(self, lake: Cli) -> None:
        path = lake.folder / "notes.txt"
        path.write_text("not a database, but long enough to be taken for the header of one" * 10)
        assert "file is not a database" in lake.fails("cycle", "status", "--database", str(path))

    def test_a_mistyped_root_gets_no_database_either(self, cli: Cli) -> None:
        assert "no lake found" in cli.fails("cycle", "trigger")
        assert list(cli.folder.iterdir()) == []

    def test_cycles_that_are_not_there(self, lake: Cli) -> None:
        lake("cycle", "trigger")
        assert "no cycle has run yet" in lake.fails("cycle", "show")
        assert "cycle 7: not in the history" in lake.fails("cycle", "show", "7")

    def test_another_database(self, lake: Cli) -> None:
        address = f"sqlite:///{lake.folder}/elsewhere.db"
        lake("cycle", "disable", "--database", address)
        assert lake.json("cycle", "status", "--database", address)["status"]["disabled"]["name"] == "disable"
        lake.fails("cycle", "status")

    @pytest.mark.parametrize("address", ["mysql://u:secret@h/d", "nonsense://", "sqlite://", "://"])
    def test_what_is_no_database_of_ours_is_refused_without_its_password(self, lake: Cli, address: str) -> None:
        message = lake.fails("cycle", "trigger", "--database", address)
        assert "sqlite:///path or postgresql://" in message
        assert "secret" not in message

    def test_a_lake_elsewhere_needs_a_database(self, cli: Cli) -> None:
        assert "use --database" in cli.fails("cycle", "status", "--root", "s3://bucket/lake")


def test_wrong_usage(lake: Cli) -> None:
    assert "--for" in lake.misused("cycle", "freeze", "--for", "soon")
    assert "--timeout" in lake.misused("cycle", "trigger", "--timeout", "5s")
    assert "--limit" in lake.misused("cycle", "history", "--limit", "0")
    assert "--status" in lake.misused("cycle", "history", "--status", "RUNNING")
    assert "N" in lake.misused("cycle", "show", "first")
    assert "Usage" in lake("cycle", "--help").stdout
    assert "Example" in lake("cycle", "trigger", "--help").stdout
