"""Random histories, published after each round, and read back by other people's readers: DuckDB, Delta Lake and Iceberg on Spark.

`SILTSTONE_PUBLISHED_ROUNDS` says how many rounds there are.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dev import readers
from dev.readers import Reader
from pyiceberg.table import StaticTable

import siltstone
from siltstone.publish.comparison import difference
from siltstone.rounds.request import TableRequest, partition_requests
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.web.app import WebServer
from siltstone.web.site import Access, LakeReader, Site
from tests.unit.publish.foreign import actions_of, delta_changes, same_changes
from tests.unit.web.serving import TOKEN, open_test_database

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:Iceberg scan planning")]
ROUNDS = int(os.environ.get("SILTSTONE_PUBLISHED_ROUNDS", "8"))
REGIONS = ["north", "50 %", None]
# Some buckets share files where they are rewritten, others have more rows than that.
SMALL = Settings(
    max_dead_fraction=0.4, max_delta_fraction=1.0, max_files=4, page_buckets=2, bucket_rows=40, shared_rows=16
)


@pytest.fixture(scope="module")
def duckdb() -> Iterator[Reader]:
    with Reader("duckdb") as reader:
        yield reader


@pytest.fixture(scope="module")
def spark() -> Iterator[Reader]:
    missing = readers.why_missing("spark")
    if missing is not None:
        pytest.skip(missing)
    with Reader("spark") as reader:
        yield reader


class History:
    """A table with a random history; each state is published in both formats, and remembered."""

    def __init__(self, root: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lake = siltstone.open(root)
        self.table = self.lake.create_table(
            "shop.sales",
            schema={"id": "int64", "region": "string", "amount": "int32", "note": "string"},
            primary_keys=["id", "region"],
            partition_keys=["region"],
            properties={"publish.delta.change_feed": "true"},
        )
        self.states: list[tuple[int, int, pa.Table]] = []
        self.positions: list[int] = []
        # What changed in each version as Delta Lake, and from which one on a column is not called as in files.
        self.changes: dict[int, pa.Table] = {}
        self.first_mapped: int | None = None
        self.rounds: dict[str, int] = {}
        self.extra: list[str] = []
        self.note = "note"
        self.delta = self.iceberg = ""

    def step(self, number: int) -> None:
        """Write, compact in one of the ways, now and then change the schema, roll back or rebase, and publish."""
        what = self.chance.choice(["minor", "minor", "major", "full", "rollback", "column", "delete", "rebase"])
        if number == ROUNDS * 3 // 4:
            what = "rename"
        if what == "rollback" and number > 2:
            self._roll_back()
        elif what == "rename":
            self.table.alter(rename_columns={"note": f"note_{number}"})
            self.note = f"note_{number}"
        elif what == "delete" and number:
            self.table.write(pa.table({"id": self._ids(20), "region": self._regions(20)}), type="delete")
        self.table.write(self._rows(number, adds_column=what == "column"))
        settings = {"major": replace(SMALL, max_delta_fraction=0.0), "full": replace(SMALL, full=True)}.get(what, SMALL)
        for request in partition_requests(TableRequest(self.table.name, self.lake.root)):
            run_session(replace(request, settings=settings), run_here)
        if what == "rebase":
            self.table.compact(rebase_from=self.table, engine="local")
        self._publish(is_mapped=what == "rename")

    def _publish(self, *, is_mapped: bool) -> None:
        delta, iceberg = self.table.publish("delta"), self.table.publish("iceberg")
        self.delta, self.iceberg = delta.address, iceberg.address
        self.states.append((delta.version, iceberg.version, self.table.to_arrow()))
        self.positions.append(max(self.table.snapshot().positions.values()))
        self.changes[delta.version] = self.table.changes(after=self.rounds, upto=delta.rounds).to_arrow()
        self.rounds = delta.rounds
        if is_mapped and self.first_mapped is None:
            self.first_mapped = delta.version

    def _roll_back(self) -> None:
        """Take back the newest round of one partition, which is compacted anew then."""
        newest = {
            tuple(done.destination_partition_locator.partition_values): done.round_id for done in self.table.rounds()
        }
        values, round_id = self.chance.choice([*newest.items()])
        if round_id > 1:
            self.table.rollback(round_id - 1, partition_values=values)

    def _ids(self, count: int) -> list[int]:
        return [self.chance.randrange(200) for _ in range(count)]

    def _regions(self, count: int) -> list[str | None]:
        return [self.chance.choice(REGIONS) for _ in range(count)]

    def _rows(self, number: int, *, adds_column: bool) -> pa.Table:
        count = self.chance.randrange(20, 120)
        kind = pa.int64() if number > 5 else pa.int32()
        columns = {
            "id": pa.array(self._ids(count), pa.int64()),
            "region": pa.array(self._regions(count), pa.string()),
            "amount": pa.array([self.chance.randrange(1 << 20) for _ in range(count)], kind),
            self.note: pa.array([f"{number} {place}" for place in range(count)]),
        }
        if adds_column:
            self.extra.append(f"extra_{number}")
        for name in self.extra:
            columns[name] = pa.array([self.chance.random() for _ in range(count)])
        return pa.table(columns)


def same(expected: pa.Table, found: pa.Table) -> None:
    assert difference(expected, found, ["id", "region"]) == ""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    history = History(str(tmp_path_factory.mktemp("published")), seed=7)
    for number in range(ROUNDS):
        history.step(number)
    return history


def versions(history: History) -> list[tuple[int, int, pa.Table]]:
    """Return the states that both formats still have under the columns that the table has now."""
    names = history.states[-1][2].column_names
    return [state for state in history.states if state[2].column_names == names]


def test_readers_of_this_environment_read_every_version(history: History) -> None:
    for delta_version, iceberg_version, expected in history.states:
        table = deltalake.DeltaTable(history.delta, version=delta_version)
        found = pa.table(deltalake.QueryBuilder().register("rows", table).execute("SELECT * FROM rows"))
        same(expected, found)
        metadata = f"{history.iceberg}/metadata/v{iceberg_version}.metadata.json"
        same(expected, StaticTable.from_metadata(metadata).scan().to_arrow())
        same(expected, pl.scan_iceberg(metadata).collect().to_arrow())


def test_every_version_is_the_table_as_of_its_position(history: History) -> None:
    for (_, _, expected), position in zip(history.states, history.positions, strict=True):
        found = history.table.to_arrow(as_of=position)
        names = [name for name in expected.column_names if name in found.column_names]
        same(expected.select(names), found.select(names))


def test_delta_rs_reads_the_changes_of_every_version(history: History) -> None:
    for version, expected in history.changes.items():
        if history.first_mapped is None or version < history.first_mapped:
            same_changes(history.table, expected, delta_changes(history.table, version), version)
    assert {bool(actions_of(history.table, version, "cdc")) for version in history.changes} == {True, False}


def test_delta_lake_on_spark_reads_the_changes_of_every_version(history: History, spark: Reader) -> None:
    # It reads no changes across a column that was renamed or widened.
    ranges: dict[object, list[int]] = {}
    for version, _, rows in history.states:
        ranges.setdefault((rows.schema.names[3], rows.schema.field("amount").type), []).append(version)
    for versions in ranges.values():
        found = spark.read("delta", history.delta, changes=[versions[0], versions[-1]])
        for version in versions:
            own = found.filter(pc.equal(found.column("_commit_version"), version))
            same_changes(history.table, history.changes[version], own, version)


def test_duckdb_reads_it(history: History, duckdb: Reader) -> None:
    same(history.states[-1][2], duckdb.read("delta", history.delta))
    for delta_version, iceberg_version, expected in versions(history):
        same(expected, duckdb.read("delta", history.delta, version=delta_version))
        same(expected, duckdb.read("iceberg", f"{history.iceberg}/metadata/v{iceberg_version}.metadata.json"))


def test_delta_lake_and_iceberg_on_spark_read_it(history: History, spark: Reader) -> None:
    for delta_version, _, expected in versions(history)[-2:]:
        same(expected, spark.read("delta", history.delta, version=delta_version))
    same(history.states[-1][2], spark.read("iceberg", history.iceberg))


def test_iceberg_on_spark_attaches_to_the_catalog_and_reads_by_name(
    history: History, spark: Reader, tmp_path: Path
) -> None:
    database = open_test_database(tmp_path / "service.db")
    site = Site(database, LakeReader(history.lake), access=Access(TOKEN), is_private=True)
    server = WebServer(site, host="127.0.0.1", port=0)
    server.start()
    settings = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": f"{server.address.rstrip('/')}/iceberg",
        "spark.sql.catalog.lake.token": TOKEN,
    }
    try:
        found = spark.read("", "", sql="SELECT * FROM lake.shop.sales", settings=settings)
        same(history.states[-1][2], found)
        assert spark.read("", "", sql="SHOW TABLES IN lake.shop").column("tableName").to_pylist() == ["sales"]
        with pytest.raises(RuntimeError, match="Server does not support endpoint: POST"):
            spark.ask({"format": "", "path": "", "sql": "DELETE FROM lake.shop.sales WHERE id = 1"})
        with pytest.raises(RuntimeError, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.ask({"format": "", "path": "", "sql": "SELECT * FROM lake.shop.nothing"})
    finally:
        server.stop()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {table} WHERE id = 1",
        "INSERT INTO {table} SELECT * FROM {table}",
        "OPTIMIZE {table}",
        "VACUUM {table} RETAIN 1000 HOURS",
    ],
)
def test_delta_lake_on_spark_refuses_to_write(history: History, spark: Reader, statement: str) -> None:
    before = set(Path(history.lake.root).rglob("*"))
    with pytest.raises(RuntimeError, match="DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"):
        spark.ask({"format": "delta", "path": history.delta, "sql": statement})
    # A vector that was written before the commit was refused is there until the next vacuum.
    assert before <= set(Path(history.lake.root).rglob("*"))
    history.table.vacuum(orphan_grace_ms=0)
    left = {path for path in set(Path(history.lake.root).rglob("*")) - before if path.is_file()}
    assert not [path for path in left if path.suffix != ".json" and path.parent.name != "log"]
    same(history.states[-1][2], spark.read("delta", history.delta))
