"""Opening the database: addresses, versions, clock, and failures of the database."""

import re
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import event, select, text
from sqlalchemy.engine import make_url

from siltstone.errors import InvalidInputError, StorageError
from siltstone.service import database as databases
from siltstone.service import schema as tables
from siltstone.service.cycles import begin_cycle, bootstrap, finish_cycle, take_lead
from siltstone.service.database import Database, Transaction, default_address, open_database
from siltstone.service.history import service_status
from siltstone.service.schema import SCHEMA_VERSION, controls, schema


def test_the_default_is_a_file_beside_the_lake() -> None:
    assert default_address("/data/lake") == "sqlite:////data/lake.service.db"
    with pytest.raises(InvalidInputError, match="use --database URL"):
        default_address("s3://bucket/lake")


def test_a_path_is_an_address_too(tmp_path: Path) -> None:
    open_database(str(tmp_path / "deep" / "service.db")).close()
    assert (tmp_path / "deep" / "service.db").exists()


@pytest.mark.parametrize("address", ["mysql://me:hush@host/db", "sqlite://", "sqlite:///:memory:", "://", ""])
def test_other_addresses_are_refused_without_telling_secrets(address: str) -> None:
    with pytest.raises(InvalidInputError, match="use sqlite:///path or postgresql") as caught:
        open_database(address)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgres//me:hush@host/db",
        "postgresql//me:hush@host/db",
        "postgresql:/me:hush@host/db",
        "postgresql:me:hush@host/db",
        "postgres:/host/hush",
        "postgresql:host/hush",
        "me:hush@host/db",
        "//me:hush@host/db",
        "psql//host/hush",
        "host=h user=me password=hush",
        "sqlite:///postgres//me:hush@host/db",
        "sqlite:///postgresql://me:hush@host/db",
        "sqlite:/data/hush.db",
        "postgresql://me:x@hush@host/db",
        "postgresql://me:hush/db",
        "postgresql ://me:hush@host/db",
        "postgers://me:hush@host/db",
        "mysql://host/db?password=hush",
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_a_mistyped_address_makes_no_file_and_tells_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, create: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match=r"use .*postgresql://user@host|%40") as caught:
        open_database(address, create=create)
    assert "hush" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["me@home/a:b.db", "./a:b@c.db", "service.db", "host/service.db"])
def test_odd_paths_are_still_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    open_database(path).close()
    open_database(f"sqlite:///{tmp_path}/x@y:z/{path}").close()
    assert (tmp_path / path).is_file()


def test_the_address_of_a_database_shows_no_secret() -> None:
    url = make_url("postgresql+psycopg://me:hush@host/db?sslpassword=hush&password=hush&sslmode=require")
    opened = Database(databases.create_engine_for(url))
    assert opened.address == "postgresql+psycopg://me:***@host/db?password=***&sslmode=require&sslpassword=***"
    assert "hush" not in repr(opened)
    opened.close()


def test_a_database_that_does_not_answer_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "_FIRST_PAUSE_SECONDS", 0)
    with pytest.raises(
        StorageError, match=r"^postgresql\+psycopg://me:\*\*\*@127\.0\.0\.1:1/db\?sslpassword"
    ) as caught:
        open_database("postgresql://me:hush@127.0.0.1:1/db?sslpassword=hush")
    assert "hush" not in str(caught.value)


def test_opening_again_keeps_everything(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    first = open_database(address)
    first.change("x", lambda transaction: transaction.insert_if_absent(controls, name="a", set_at=1, requester="me"))
    first.close()
    second = open_database(address)
    assert second.read("x", lambda transaction: transaction.execute(select(controls.c.name)).scalars().all()) == ["a"]
    assert not second.change(
        "x", lambda transaction: transaction.insert_if_absent(controls, name="a", set_at=2, requester="you")
    )
    second.close()


def test_many_that_open_a_new_database_at_once_agree(tmp_path: Path) -> None:
    opened: list[Database] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        opened.append(open_database(f"sqlite:///{tmp_path}/service.db"))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 4
    for each in opened:
        each.close()


def test_tables_of_an_older_version_are_not_migrated_by_who_only_looks(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    opened = open_database(address)
    opened.change("x", lambda transaction: transaction.execute(schema.update().values(version=SCHEMA_VERSION - 1)))
    opened.close()
    with pytest.raises(
        InvalidInputError, match=rf"needs {SCHEMA_VERSION}; start `siltstone serve` of this version once"
    ):
        open_database(address, create=False)


def test_tables_of_a_newer_version_are_refused_and_left_alone(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    opened = open_database(address)
    opened.change("x", lambda transaction: transaction.execute(schema.update().values(version=SCHEMA_VERSION + 1)))
    opened.close()
    with pytest.raises(InvalidInputError, match="upgrade Siltstone"):
        open_database(address)


def test_tables_of_an_older_version_are_migrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    open_database(address).close()
    monkeypatch.setattr(tables, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setitem(databases.MIGRATIONS, SCHEMA_VERSION, ("ALTER TABLE siltstone_controls ADD COLUMN note TEXT",))
    for _ in range(2):
        opened = open_database(address)
        found = opened.read("x", lambda transaction: transaction.execute(select(schema.c.version)).scalar())
        opened.read("x", lambda transaction: transaction.execute(text("SELECT note FROM siltstone_controls")))
        opened.close()
        assert found == SCHEMA_VERSION + 1


def downgrade(database: Database, version: int) -> None:
    """Make the tables those of an earlier version."""
    added = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)")
    with database.engine.begin() as connection:
        for number in range(version, SCHEMA_VERSION):
            for statement in databases.MIGRATIONS[number]:
                table, column = added.match(statement).groups()  # type: ignore[union-attr]
                connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        for new in (tables.failures, tables.pauses, tables.audit, tables.backlogs):
            new.drop(connection)
        connection.execute(schema.update().values(version=version))


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_tables_of_every_earlier_version_become_those_of_this_one(tmp_path: Path, version: int) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    opened = open_database(address)
    lease = take_lead(opened, "one#1", 45_000)
    assert lease is not None
    bootstrap(opened, lease)
    downgrade(opened, version)
    opened.close()
    migrated = open_database(address)
    lease = take_lead(migrated, "one#1", 45_000)
    assert lease is not None
    assert begin_cycle(migrated, lease, [], "interval", "one") is not None
    record = finish_cycle(migrated, lease, 1)
    assert record is not None
    assert record.status == "COMPLETED"
    assert service_status(migrated).is_healthy
    migrated.close()


def test_a_lease_of_the_first_version_of_the_tables_still_holds(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    opened = open_database(address)
    assert take_lead(opened, "one#1", 45_000) is not None
    downgrade(opened, 1)
    opened.close()
    migrated = open_database(address)
    assert take_lead(migrated, "other#1", 45_000) is None
    lease = take_lead(migrated, "one#1", 45_000)
    assert lease is not None
    assert lease.term == 1
    migrated.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"sqlite:///{tmp_path}/service.db"
    open_database(address).close()
    with monkeypatch.context() as patch:
        patch.setattr(tables, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        steps = ("ALTER TABLE siltstone_controls ADD COLUMN note TEXT", "NO SUCH STATEMENT")
        patch.setitem(databases.MIGRATIONS, SCHEMA_VERSION, steps)
        patch.setattr(databases, "_FIRST_PAUSE_SECONDS", 0)
        with pytest.raises(StorageError, match="could not create or migrate"):
            open_database(address)
    opened = open_database(address)
    columns = opened.read(
        "x", lambda transaction: transaction.execute(text("PRAGMA table_info(siltstone_controls)")).all()
    )
    assert "note" not in [column.name for column in columns]
    opened.close()


def test_the_clock_is_that_of_the_database_in_milliseconds(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/service.db")
    before = time.time_ns() // 1_000_000
    now_ms = opened.read("x", lambda transaction: transaction.now_ms())
    assert before - 2 <= now_ms <= time.time_ns() // 1_000_000 + 2
    opened.close()


def test_two_writers_wait_for_each_other(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/service.db")
    opened.change("x", lambda transaction: transaction.insert_if_absent(controls, name="n", set_at=0, requester=""))

    def add(transaction: Transaction) -> None:
        found = transaction.execute(select(controls.c.set_at)).scalar_one()
        transaction.execute(controls.update().values(set_at=found + 1))

    threads = [threading.Thread(target=lambda: [opened.change("x", add) for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened.read("x", lambda transaction: transaction.execute(select(controls.c.set_at)).scalar()) == 40
    opened.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "service.db").write_text("not a database, but long enough to be looked at as one " * 20)
    with pytest.raises(
        StorageError, match=r"service\.db: could not create or migrate the tables \(file is not a database\)"
    ):
        open_database(f"sqlite:///{tmp_path}/service.db")


def test_a_failure_that_lasts_is_told_after_some_tries(tmp_path: Path) -> None:
    pauses: list[float] = []
    opened = open_database(f"sqlite:///{tmp_path}/service.db")
    patient = Database(opened.engine, sleep=pauses.append)
    opened.change("x", lambda transaction: transaction.execute(text("DROP TABLE siltstone_controls")))
    with pytest.raises(StorageError, match="could not look around"):
        patient.read("look around", lambda transaction: transaction.execute(select(controls)))
    assert len(pauses) == 5
    for number, pause in enumerate(pauses):
        assert 0.5 <= pause / (0.05 * 2**number) <= 1.5
    opened.close()


def test_what_the_work_raises_comes_through_and_is_rolled_back(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/service.db")

    def work(transaction: Transaction) -> None:
        transaction.insert_if_absent(controls, name="n", set_at=0, requester="")
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError, match="no"):
        opened.change("x", work)
    assert opened.read("x", lambda transaction: transaction.execute(select(controls)).all()) == []
    opened.close()


def test_the_password_is_in_no_text_about_the_database() -> None:
    engine = databases.create_engine_for(make_url("postgresql+psycopg://me:hush@127.0.0.1:1/db"))
    closed = Database(engine, sleep=lambda seconds: None)
    assert "hush" not in repr(closed)
    with pytest.raises(StorageError, match=r"me:\*\*\*@127\.0\.0\.1:1/db: could not look") as caught:
        closed.read("look", lambda transaction: transaction.now_ms())
    assert "hush" not in str(caught.value)


def test_writing_transactions_are_immediate_and_reading_ones_are_not(tmp_path: Path) -> None:
    opened = open_database(f"sqlite:///{tmp_path}/service.db")
    seen: list[str] = []
    event.listen(opened.engine, "before_cursor_execute", lambda c, cursor, statement, *more: seen.append(statement))
    opened.read("x", lambda transaction: transaction.now_ms())
    opened.change("x", lambda transaction: transaction.now_ms())
    assert [each for each in seen if each.startswith("BEGIN")] == ["BEGIN", "BEGIN IMMEDIATE"]
    opened.close()
