"""The service's database: opening and migrating it, its clock, and short transactions that are tried again."""

import functools
import logging
import random
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, Table, create_engine, event, inspect, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from siltstone.errors import InvalidInputError, NotFoundError, StorageError
from siltstone.service import schema as tables
from siltstone.text import MASK, is_secret_name, mask_secrets

T = TypeVar("T")
P = ParamSpec("P")
Clock: TypeAlias = Callable[[Connection], int]

_READS = "siltstone_reads"
_ATTEMPTS = 6
_FIRST_PAUSE_SECONDS = 0.05
_BUSY_SECONDS = 10
_CLOCKS = {
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}
_NO_SERVICE = (
    "no Siltstone service has used this database; start one with `siltstone serve --database …`, or name the database of "
    "one that runs with --database or --root"
)
# What is a server's address rather than the path of a file: `postgres//…`, `user:password@host`, parameters for libpq.
_MISTYPED = re.compile(
    r"(?i)^\w+:?//|^//.*:.*@|^(?![/.~]).*(?:://|:.*@|\bpassword\s*=|\b(?:host|user|dbname)\s*=\S*\s+\w+\s*=)"
)
_SCHEME = re.compile(r"(?i)^[a-z][a-z0-9+]*:")
# Any number, as long as it is always the same: whoever migrates holds it.
_MIGRATION_LOCK = 5_117_570_423
# What leads from a version of the tables to the next one.
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: ("ALTER TABLE siltstone_leader_lease ADD COLUMN renewed_at BIGINT NOT NULL DEFAULT 0",),
    2: (
        *(
            f"ALTER TABLE siltstone_{table} ADD COLUMN {column} BIGINT NOT NULL DEFAULT 0"
            for table, columns in (
                ("manager", ("stopped_cycles", "planning_ms")),
                ("checkpoint_status", ("priority",)),
                ("cycle_history", ("tables", "failed_tables", "planning_ms")),
            )
            for column in columns
        ),
        "ALTER TABLE siltstone_manager ADD COLUMN failure_reason VARCHAR(16)",
        "ALTER TABLE siltstone_manager ADD COLUMN interval_ms BIGINT",
        "ALTER TABLE siltstone_manager ADD COLUMN quiet_hours TEXT",
        "ALTER TABLE siltstone_cycle_history ADD COLUMN failure_reason VARCHAR(16)",
        "ALTER TABLE siltstone_trigger_requests ADD COLUMN tables TEXT",
    ),
    # Backlogs have a table of their own.
    3: (),
}
_log = logging.getLogger(__name__)


def database_now_ms(connection: Connection) -> int:
    """Return the database's time."""
    return int(connection.execute(text(_CLOCKS[connection.dialect.name])).scalar_one())


class Transaction:
    """One transaction in progress."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self._clock = clock

    def now_ms(self) -> int:
        """Return the time; ask after taking locks, because waiting for them takes time too."""
        return self._clock(self.connection)

    def execute(self, statement: Executable) -> CursorResult[Any]:
        """Execute a statement."""
        return self.connection.execute(statement)

    def insert_if_absent(self, table: Table, **values: object) -> bool:
        """Insert a row unless one with its primary key exists; return whether it was inserted."""
        make: Any = postgresql.insert if self.connection.dialect.name == "postgresql" else sqlite.insert
        statement = make(table).values(**values).on_conflict_do_nothing()
        return self.execute(statement.returning(*table.primary_key.columns)).first() is not None

    def insert_or_update(self, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert rows, or give their values to those that have their primary keys."""
        if rows:
            make: Any = postgresql.insert if self.connection.dialect.name == "postgresql" else sqlite.insert
            insert = make(table)
            values = {name: insert.excluded[name] for name in rows[0] if name not in table.primary_key.columns}
            statement = insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=values)
            self.connection.execute(statement, list(rows))


class Database:
    """The service's database, on SQLite or PostgreSQL; safe to use from many threads."""

    def __init__(
        self, engine: Engine, *, clock: Clock = database_now_ms, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.engine = engine
        self.address = _shown(engine.url)
        self._clock = clock
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"Database({self.address!r})"

    def change(self, what: str, do: Callable[[Transaction], T]) -> T:
        """Run a transaction that changes something, again where the database failed for a moment.

        An attempt whose answer got lost may have been committed, so `do` must recognise its own earlier work.
        Raises: StorageError; and what `do` raises, after rolling back.
        """
        return self._again(what, do, reads=False)

    def read(self, what: str, do: Callable[[Transaction], T]) -> T:
        """Run a transaction that only reads. Raises: StorageError."""
        return self._again(what, do, reads=True)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _again(self, what: str, do: Callable[[Transaction], T], *, reads: bool) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return self._once(do, reads=reads)
            except SQLAlchemyError as error:
                is_transient = isinstance(error, OperationalError | InterfaceError | PoolTimeoutError) or (
                    isinstance(error, DBAPIError) and error.connection_invalidated
                )
                reason = mask_secrets(str(getattr(error, "orig", None) or error).strip().split("\n")[0])
                if attempt + 1 == _ATTEMPTS or not is_transient:
                    raise StorageError(
                        f"{self.address}: could not {what} ({reason}); check that the database runs, then try again"
                    ) from error
                _log.info("database failed, trying again", extra={"action": what, "reason": reason})
            self._sleep(_FIRST_PAUSE_SECONDS * 2**attempt * random.uniform(0.5, 1.5))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, do: Callable[[Transaction], T], *, reads: bool) -> T:
        options: dict[str, Any] = {_READS: reads}
        if reads and self.engine.dialect.name == "postgresql":
            # All that one reading sees is of one moment, as it is on SQLite anyway.
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self.engine.connect() as connection:
            connection.execution_options(**options)
            with connection.begin():
                return do(Transaction(connection, self._clock))


def in_transaction(
    what: str, *, reads: bool = False
) -> Callable[[Callable[Concatenate[Transaction, P], T]], Callable[Concatenate[Database, P], T]]:
    """Make a function of a transaction one of a database, run by `Database.change`, or by `Database.read` if it `reads`."""

    def decorate(do: Callable[Concatenate[Transaction, P], T]) -> Callable[Concatenate[Database, P], T]:
        @functools.wraps(do)
        def run(database: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
            transact = database.read if reads else database.change
            return transact(what, lambda transaction: do(transaction, *args, **kwargs))

        return run

    return decorate


def default_address(root: str) -> str:
    """Return the address of the database beside a lake on local disk. Raises: InvalidInputError for other lakes."""
    if "://" in root:
        raise InvalidInputError(f"{root}: not a local folder, so it has no database beside it; use --database URL")
    return f"sqlite:///{Path(root).absolute()}.service.db"


def open_database(address: str, *, create: bool = True, clock: Clock = database_now_ms) -> Database:
    """Open the database at `sqlite:///path` or `postgresql://…`, and create or migrate its tables.

    Without `create` nothing is changed: the tables must be there. Raises: NotFoundError where they are not;
    InvalidInputError, also where they are of a newer Siltstone; StorageError.
    """
    url = _parse(address)
    if not create and url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise NotFoundError(f"{url.database}: no such file, so {_NO_SERVICE}")
    database = Database(create_engine_for(url, create=create), clock=clock)
    try:
        (_migrate if create else _check_tables)(database, database.address)
    except BaseException:
        database.close()
        raise
    return database


def _parse(address: str) -> URL:
    if "://" not in address:
        if _SCHEME.match(address):
            raise _mistyped(address)
        address = f"sqlite:///{address}"
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise InvalidInputError(
            f"the database address {_beginning(address)}… is not valid; use sqlite:///path or postgresql://user@host:port/name. "
            "A password follows the user after a colon, its special characters percent-encoded"
        ) from None
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        if "@" in (url.host or ""):
            raise InvalidInputError(
                f"{mask_secrets(address)}: the password of the database address has an @; write it as %40"
            )
        return url.set(drivername="postgresql+psycopg")
    if backend == "sqlite" and url.database not in (None, "", ":memory:"):
        if _MISTYPED.search(url.database or ""):
            # Otherwise a folder would be named after the password.
            raise _mistyped(address.removeprefix("sqlite:///"))
        return url
    raise InvalidInputError(
        f"{_shown(url)}: the service keeps its state in a SQLite file or in PostgreSQL; "
        "use sqlite:///path or postgresql://user@host/name"
    )


def _mistyped(address: str) -> InvalidInputError:
    return InvalidInputError(
        f"the database address {_beginning(address)}… seems to be that of a server, but is mistyped; "
        "use postgresql://user@host:port/name, a password after the user and a colon; or sqlite:///path for a file"
    )


def _beginning(address: str) -> str:
    """Return how an address begins that nobody can read: what follows may be a password."""
    match = re.match(r"[A-Za-z][A-Za-z0-9+]*:?/*|[:/]*", address)
    return match[0] if match else ""


def _shown(url: URL) -> str:
    """Return an address without its password, and without the secrets among its parameters."""
    query = {name: MASK if is_secret_name(name) else value for name, value in url.query.items()}
    shown = url.set(query=query).render_as_string(hide_password=True)
    return shown.replace(urllib.parse.quote_plus(MASK), MASK)


def create_engine_for(url: URL, *, create: bool = True) -> Engine:
    """Return an engine whose transactions are immediate on SQLite, and checked for dead connections on PostgreSQL.

    Without `create` a SQLite file is left as it is, since it may be somebody else's.
    """
    if url.get_backend_name() == "postgresql":
        return create_engine(
            url, pool_pre_ping=True, pool_timeout=_BUSY_SECONDS, connect_args={"connect_timeout": _BUSY_SECONDS}
        )
    assert url.database is not None
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})
    settings = ["synchronous=FULL", f"busy_timeout={_BUSY_SECONDS * 1000}"]
    if create:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        settings.insert(0, "journal_mode=WAL")

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        # The driver would begin transactions by itself, and too late.
        connection.isolation_level = None
        for setting in settings:
            connection.execute(f"PRAGMA {setting}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Without IMMEDIATE, two that read first and write later meet an error that waiting does not cure.
        reads = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


@in_transaction("find the service's tables", reads=True)
def _check_tables(transaction: Transaction, address: str) -> None:
    has_tables = inspect(transaction.connection).has_table(tables.schema.name)
    version = _tables_version(transaction, address) if has_tables else None
    if version is None:
        raise NotFoundError(f"{address}: no tables of Siltstone, so {_NO_SERVICE}")
    if version < tables.SCHEMA_VERSION:
        raise InvalidInputError(
            f"{address}: its tables have version {version}, this Siltstone needs {tables.SCHEMA_VERSION}; "
            "start `siltstone serve` of this version once, which migrates them"
        )


@in_transaction("create or migrate the tables")
def _migrate(transaction: Transaction, address: str) -> None:
    connection = transaction.connection
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
    tables.schema.create(connection, checkfirst=True)
    before = _tables_version(transaction, address)
    if before is None:
        tables.metadata.create_all(connection)
        connection.execute(
            tables.leader_lease.insert().values(id=tables.SINGLETON, term=0, acquired_at=0, lease_until=0)
        )
        connection.execute(tables.schema.insert().values(id=tables.SINGLETON, version=tables.SCHEMA_VERSION))
        return
    for version in range(before, tables.SCHEMA_VERSION):
        for statement in MIGRATIONS[version]:
            connection.execute(text(statement))
    if before < tables.SCHEMA_VERSION:
        # Those that are new with this version.
        tables.metadata.create_all(connection)
        connection.execute(tables.schema.update().values(version=tables.SCHEMA_VERSION))


def _tables_version(transaction: Transaction, address: str) -> int | None:
    """Return the version of the tables, or None if there are none yet. Raises: InvalidInputError if it is a newer one."""
    version: int | None = transaction.execute(select(tables.schema.c.version)).scalar()
    if version is not None and version > tables.SCHEMA_VERSION:
        raise InvalidInputError(
            f"{address}: its tables have version {version}, this Siltstone knows {tables.SCHEMA_VERSION}; "
            "upgrade Siltstone on this node"
        )
    return version
