"""The service on a real PostgreSQL: several nodes share real tables, and lost connections are made anew."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url
from typer.testing import CliRunner

import siltstone
from siltstone.cli.main import app
from siltstone.errors import NotFoundError
from siltstone.rows.merge import run_here
from siltstone.service import controls
from siltstone.service.database import Database, open_database
from siltstone.service.history import cycle_details, cycle_records, service_status
from siltstone.service.lake_tables import LakeTables
from siltstone.service.node import Node
from siltstone.service.schema import metadata
from siltstone.service.settings import ServiceSettings
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import make_table, rows
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.integration
QUICK = ServiceSettings(tick_seconds=0.05, worker_poll_seconds=0.05, retry_pause_seconds=0, backlog_bytes=None)


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    opened = open_database(postgres)
    yield opened
    metadata.drop_all(opened.engine)
    opened.close()


def test_three_nodes_share_the_work_and_every_table_equals_the_oracle(
    database: Database, postgres: str, tmp_path: Path
) -> None:
    root = str(tmp_path / "lake")
    made = [make_table(root, f"shop.t{number}") for number in range(9)]
    databases = [open_database(postgres) for _ in range(3)]
    nodes = [
        Node(each, LakeTables(siltstone.open(root), engine=run_here), QUICK, name=f"n{number}", workers=2)
        for number, each in enumerate(databases)
    ]
    for node in nodes:
        node.start()
    for cycle in range(3):
        for table in made:
            table.write(rows(range(cycle * 50, cycle * 50 + 100), f"{cycle}-"))
        _end_all_connections(database)
        request = controls.trigger_cycle(database)
        done = controls.wait_for_request(database, request.request_id, timeout_seconds=LIMIT_SECONDS)
        assert done.outcome == "COMPLETED", cycle_records(database, 1)
    assert all(node.stop(LIMIT_SECONDS) for node in nodes)
    for each in databases:
        each.close()
    for table in made:
        same_rows(table.to_arrow().to_pylist(), oracle_of(table, None).rows())
    for cycle in range(1, 4):
        timeline = cycle_details(database, cycle).timeline
        assert sorted(each.table for each in timeline if each.status == "COMPLETED") == [each.name for each in made]
    assert not service_status(database).active


def test_nodes_share_one_very_large_table_by_ranges_of_its_partitions(
    database: Database, postgres: str, tmp_path: Path
) -> None:
    days = [f"{number:03}" for number in range(40)]
    table = siltstone.open(str(tmp_path / "lake")).create_table(
        "web.visits", schema={"day": "string", "id": "int64"}, primary_keys=["day", "id"], partition_keys=["day"]
    )
    databases = [open_database(postgres) for _ in range(3)]
    settings = dataclasses.replace(QUICK, claim_partitions=3)
    nodes = [
        Node(each, LakeTables(siltstone.open(table.lake.root), engine=run_here), settings, name=f"n{number}", workers=2)
        for number, each in enumerate(databases)
    ]
    for node in nodes:
        node.start()
    for cycle in (1, 2):
        table.write(pa.table({"day": days, "id": [cycle] * len(days)}))
        request = controls.trigger_cycle(database)
        _end_all_connections(database)
        done = controls.wait_for_request(database, request.request_id, timeout_seconds=LIMIT_SECONDS)
        assert done.outcome == "COMPLETED", cycle_records(database, 1)
        assert done.cycle is not None
        timeline = cycle_details(database, done.cycle).timeline
        assert sorted(each.partition.rpartition("/")[2] for each in timeline if each.status == "COMPLETED") == days
        assert len({each.worker for each in timeline}) > 1
    assert all(node.stop(LIMIT_SECONDS) for node in nodes)
    for each in databases:
        each.close()
    assert [round_.round_id for round_ in table.current_rounds()] == [2] * len(days)
    same_rows(table.to_arrow().to_pylist(), oracle_of(table, None).rows())


def _end_all_connections(database: Database) -> None:
    """Do to the nodes what a restart of the server does."""
    others = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()"
    )
    database.change("end all connections", lambda transaction: transaction.execute(others).all())


def test_the_clock_is_that_of_the_server(database: Database) -> None:
    shown = text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")
    before = database.read("x", lambda transaction: transaction.execute(shown).scalar_one())
    now_ms = database.read("x", lambda transaction: transaction.now_ms())
    assert before <= now_ms <= database.read("x", lambda transaction: transaction.execute(shown).scalar_one())


def test_reading_sees_one_moment(database: Database, postgres: str) -> None:
    other = open_database(postgres)

    def read(transaction: object) -> tuple[int, int]:
        def count() -> int:
            return len(controls.pending_requests(transaction))  # type: ignore[arg-type]

        before = count()
        controls.trigger_cycle(other)
        return before, count()

    assert database.read("x", read) == (0, 0)
    other.close()


def test_reading_commands_leave_an_unrelated_database_as_it_is(postgres: str) -> None:
    engine = create_engine(make_url(postgres).set(drivername="postgresql+psycopg"))
    metadata.drop_all(engine)
    before = inspect(engine).get_table_names()
    for command in (["status"], ["history"], ["show"], ["show", "1"], ["enable"], ["unfreeze"]):
        result = CliRunner().invoke(app, ["cycle", *command, "--database", postgres])
        assert result.exit_code == 1
        assert "no Siltstone service has used this database; start one with `siltstone serve" in result.output
    assert inspect(engine).get_table_names() == before
    engine.dispose()


def test_what_cannot_be_a_number_or_text_of_the_database_is_not_found(database: Database) -> None:
    for number in (-1, 1 << 63, 10**30):
        with pytest.raises(NotFoundError, match="not in the history"):
            cycle_details(database, number)
    for request_id in ("\0", "\udcff", "x" * 10_000):
        with pytest.raises(NotFoundError, match="trigger request"):
            controls.get_request(database, request_id)
