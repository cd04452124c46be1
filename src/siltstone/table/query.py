"""A SELECT over tables of a lake, which DuckDB runs in this process; tables are read through scans of one snapshot each.

DuckDB has no files, no network and no settings to change: what it reads are the views that are made for a query, and its own
temporary files where it sorts or groups more than fits into memory.
"""

import contextlib
import importlib
import itertools
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from siltstone.errors import InvalidInputError, NotFoundError, NotInstalledError, SiltstoneError, require_packages
from siltstone.table.dataset import PushedDataset
from siltstone.table.snapshot import Moment
from siltstone.table.statement import RESERVED_SCHEMAS, VIEWS, Statement, View, quoted

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

OLDEST_DUCKDB = 2
"""The first release that leaves no filter to Arrow which NaN would make differ from its own."""
_BATCH_ROWS = 20_000
_CONFIG = {
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
# Whatever gets past the parser finds no file, no network and no setting that it can change.
_LOCK = "SET TimeZone = 'UTC'; SET enable_external_access = false; SET lock_configuration = true"
_PLACE = re.compile(r"\n+LINE (\d+): (.*)\n( *)(\^+)", re.DOTALL)
_MISSING = re.compile(r"Table with name (.+) does not exist!")


@dataclass(frozen=True)
class QueryTable:
    """A table that a query reads: its name, as of when where that was asked for, and its rows."""

    name: str
    moment: Moment | None
    dataset: PushedDataset
    newer: int = 0
    """How many deltas came after the position that is read, where no moment was asked for."""

    @property
    def own_view(self) -> View:
        """A view by the table's own name."""
        namespace, _, table = self.name.partition(".")
        return View(namespace, table)


@dataclass(frozen=True)
class Query:
    """A SELECT, and the tables that it reads, each at one position of its stream, whatever is written meanwhile.

    Nothing is read before one of its methods is called, each of which runs it anew. Where Arrow data is taken by its C stream
    interface (`pyarrow.table(query)`, `polars.DataFrame(query)`), a query can be given itself.
    """

    text: str
    views: Mapping[View, QueryTable]
    schema: pa.Schema
    """The columns of the result; a name that is there already gets a number, e.g. `id_1`."""

    def __repr__(self) -> str:
        return f"<Query {self.text!r}>"

    @property
    def tables(self) -> list[QueryTable]:
        """The tables that are read, once for each moment."""
        return list(self.views.values())

    def to_batches(self) -> pa.RecordBatchReader:
        """Return a reader of the rows, which come as they are found. Raises: InvalidInputError, CorruptionError."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table. Raises: InvalidInputError, CorruptionError."""
        return self.to_batches().read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows as a pandas data frame. Raises: InvalidInputError, CorruptionError, NotInstalledError."""
        require_packages("a query as pandas has it", ("pandas",), "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Return the rows as a polars data frame. Raises: InvalidInputError, CorruptionError, NotInstalledError."""
        require_packages("a query as polars has it", ("polars",), "polars")
        frame: pl.DataFrame = importlib.import_module("polars").from_arrow(self.to_arrow())
        return frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        from siltstone.table.notebook import rows_html

        return rows_html(self.to_batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with _opened() as database:
            database.add(self.views)
            reader = database.connection.sql(self.text).to_arrow_reader(_BATCH_ROWS)
            try:
                for batch in reader:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
            finally:
                # DuckDB's memory is not freed before.
                reader.close()


def open_query(
    text: str, open_table: Callable[[str, Moment | None], QueryTable], guess: Callable[[str], str] = lambda name: ""
) -> Query:
    """Read a SELECT, and return it with the tables that it names, as `open_table` opens them.

    `guess` says which table may have been meant. Raises: InvalidInputError, NotFoundError, NotInstalledError.
    """
    try:
        with _opened() as database:
            statement = Statement(text, database.connection)
            views, is_changed = _views_of(statement, open_table)
            run = statement.text() if is_changed else text
            database.add(views)
            reader = database.connection.sql(run).limit(0).to_arrow_reader(1)
            names = _unique(reader.schema.names)
            schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
            reader.close()
    except _MissingTableError as error:
        name = str(error)
        raise NotFoundError(f"SQL: there is no table {name}; name its namespace, too{guess(name)}") from error
    return Query(run, views, schema)


def _views_of(
    statement: Statement, open_table: Callable[[str, Moment | None], QueryTable]
) -> tuple[dict[View, QueryTable], bool]:
    """Return the tables that a statement names, once for each moment, and whether it was changed to read their views."""
    opened: dict[tuple[str, Moment | None], View] = {}
    views: dict[View, QueryTable] = {}
    is_changed = False
    for reference in statement.tables:
        place = (reference.name, reference.moment)
        if place not in opened:
            try:
                table = open_table(*place)
            except (NotFoundError, InvalidInputError):
                if reference.path[0].lower() in RESERVED_SCHEMAS:
                    continue
                raise
            # By another name or in another way it may be there already, and is read at the same position.
            same = [view for view, other in views.items() if (other.name, other.moment) == (table.name, table.moment)]
            opened[place] = same[0] if same else _new_view(table, reference.moment, views)
            views.setdefault(opened[place], table)
        is_changed |= reference.point_to(opened[place])
    return views, is_changed


def _new_view(table: QueryTable, moment: Moment | None, taken: Collection[View]) -> View:
    """Return a table's own name where that means the table to DuckDB, so that `shop.orders.amount` is a column."""
    own = table.own_view
    is_free = own.schema.lower() not in RESERVED_SCHEMAS and own.folded not in {view.folded for view in taken}
    return own if moment is None and is_free else View(VIEWS, f"{table.name} {len(taken)}")


def _unique(names: Iterable[str]) -> list[str]:
    """Return names of which none recurs: with a number where one was there already."""
    unique: dict[str, None] = {}
    for name in names:
        candidates = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        unique[next(candidate for candidate in candidates if candidate not in unique)] = None
    return list(unique)


class _MissingTableError(SiltstoneError):
    """DuckDB knows no table of a name, which is the message."""


class _Database:
    """A database in memory, which has the views that it is given and nothing else."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection") -> None:
        self.connection = connection
        self._datasets: list[PushedDataset] = []

    def add(self, views: Mapping[View, QueryTable]) -> None:
        """Let tables be read as views."""
        for view, table in views.items():
            dataset = table.dataset.copy()
            self._datasets.append(dataset)
            rows = f"{VIEWS} {len(self._datasets)}"
            self.connection.register(rows, dataset)
            self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(view.schema)}")
            self.connection.execute(f"CREATE VIEW {view.sql} AS FROM {quoted(rows)}")

    @property
    def failure(self) -> Exception | None:
        """Why a table could not be read, None where that is not what failed."""
        return next((dataset.failure for dataset in self._datasets if dataset.failure is not None), None)


@contextlib.contextmanager
def _opened() -> Iterator[_Database]:
    """Yield a database that can do nothing but read; say in words what fails there."""
    duckdb = _imported()
    with tempfile.TemporaryDirectory(prefix="siltstone-sql-") as folder:
        database = _Database(duckdb.connect(":memory:", config={**_CONFIG, "temp_directory": folder}))
        try:
            database.connection.execute(_LOCK)
            yield database
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise (database.failure or _in_words(str(error))) from error
        finally:
            database.connection.close()


def _imported() -> Any:
    require_packages("SQL", ("duckdb",), "siltstone[sql]")
    duckdb = importlib.import_module("duckdb")
    if int(duckdb.__version__.partition(".")[0]) < OLDEST_DUCKDB:
        raise NotInstalledError(
            f"SQL needs DuckDB {OLDEST_DUCKDB} or newer, and {duckdb.__version__} is installed: run pip install 'siltstone[sql]'"
        )
    return duckdb


def _in_words(message: str) -> SiltstoneError:
    """Return what DuckDB says, with the place that it points to as text."""
    missing = _MISSING.search(message)
    if missing is not None:
        return _MissingTableError(missing[1])
    place = _PLACE.search(message)
    if place is not None:
        number, line, before, mark = place.groups()
        start = len(before) - len(f"LINE {number}: ")
        message = f"{message[: place.start()]}, in line {number} at {line[start : start + len(mark)]!r}"
    return InvalidInputError(f"SQL: {message}")
