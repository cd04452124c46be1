"""Scans: what they open, every way to get at their rows, and what they say of mistakes."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import siltstone
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import oracle_of, same_rows

ZONES = ("asia", "eu", "us")
KEPT = Settings(max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=100, bucket_rows=50, page_buckets=3)


def compact(table: siltstone.Table, *zones: str) -> None:
    """Run a round of each partition, or of some; buckets get small, and keep their dead rows."""
    for source in table._sources():
        if not zones or source.partition_values[0] in zones:
            keys = tuple(table.version.primary_keys)
            request = Request(source, compacted_partition(source), keys, table.lake.root, settings=KEPT)
            run_session(request, run_here)


@pytest.fixture
def table(new_root: Callable[[str], str]) -> siltstone.Table:
    """Three partitions of 200 rows in small buckets and row groups; some dead, and in us a delta waits."""
    made = siltstone.open(new_root("memory")).create_table(
        "shop.orders",
        schema={"zone": "string", "id": "int64", "amount": "double", "note": "string"},
        primary_keys=["zone", "id"],
        partition_keys=["zone"],
        properties={"row_group_rows": "10"},
    )
    for zone in ZONES:
        ids = range(200)
        made.write(
            pa.table(
                {
                    "zone": [zone] * 200,
                    "id": ids,
                    "amount": [id_ / 2 for id_ in ids],
                    "note": [f"n{id_:03}" for id_ in ids],
                }
            )
        )
    compact(made)
    made.write(pa.table({"zone": ["eu", "us"], "id": [7, 7], "amount": [1000.0, 1000.0]}))
    compact(made, "eu")
    made.write(pa.table({"zone": ["us"], "id": [8]}), "delete")
    return made


STATES: dict[str, dict[str, Any]] = {"as compacted": {}, "fresh": {"fresh": True}, "as of a position": {"as_of": 4}}
every_state = pytest.mark.parametrize("how", STATES.values(), ids=list(STATES))
FILTERS: dict[str, tuple[Any, Callable[[dict[str, Any]], bool]]] = {
    "none": (None, lambda row: True),
    "a key": ("zone = 'eu' and id = 7", lambda row: row["zone"] == "eu" and row["id"] == 7),
    "keys": ("id in (7, 8) and zone in ('us', 'eu')", lambda row: row["zone"] != "asia" and row["id"] in (7, 8)),
    "a partition": ("zone = us", lambda row: row["zone"] == "us"),
    "a range": ("amount between 10 and 1000", lambda row: row["amount"] >= 10),
    "text": ("note like 'n01%' or note is null", lambda row: row["note"] is None or row["note"][:3] == "n01"),
    "an expression": (pc.field("amount") * 2 > 390, lambda row: row["amount"] > 195),
}


@every_state
@pytest.mark.parametrize("given", FILTERS.values(), ids=list(FILTERS))
def test_a_filter_leaves_the_rows_of_which_it_is_true(table: siltstone.Table, how: dict[str, Any], given: Any) -> None:
    where, is_wanted = given
    expected = [row for row in table.scan(**how).to_arrow().to_pylist() if is_wanted(row)]
    assert expected
    scan = table.scan(where=where, **how)
    same_rows(scan.to_arrow(), expected)
    assert scan.count() == len(expected)
    names = ["amount", "id"]
    narrow = table.scan(names, where, **how)
    assert narrow.to_arrow().column_names == names
    same_rows(narrow.to_arrow(), [{name: row[name] for name in names} for row in expected])
    assert table.scan([], where, **how).to_arrow().num_rows == len(expected)
    same_rows(pickle.loads(pickle.dumps(narrow)).to_arrow(), narrow.to_arrow().to_pylist())


def test_every_way_to_get_at_the_rows_has_the_same_rows(table: siltstone.Table) -> None:
    scan = table.scan(["id", "amount"], "zone = 'us' and id < 20", fresh=True)
    rows = scan.to_arrow().to_pylist()
    assert len(rows) == 19
    frame: pd.DataFrame = scan.to_pandas()
    assert frame.to_dict("records") == rows
    assert scan.to_polars().to_dicts() == rows == polars.DataFrame(scan).to_dicts()
    assert pa.table(scan).to_pylist() == rows
    assert [row for batch in scan.to_batches() for row in batch.to_pylist()] == rows
    relation = scan.to_duckdb()
    assert relation.aggregate("count(*), sum(amount)").fetchall() == [(19, sum(row["amount"] for row in rows))]
    assert relation.fetchall() == relation.fetchall() == [tuple(row.values()) for row in rows]


@pytest.mark.parametrize("package", ["pandas", "polars", "duckdb"])
def test_a_package_that_is_missing_is_named_with_the_line_that_installs_it(
    table: siltstone.Table, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(siltstone.NotInstalledError, match=f"run pip install '{package}'"):
        getattr(table.scan(), f"to_{package}")()


@every_state
def test_columns_that_are_not_there_are_refused_alike_everywhere(table: siltstone.Table, how: dict[str, Any]) -> None:
    for columns, where in ((["amont"], None), (None, "amont > 1"), (None, pc.field("amont") > 1)):
        with pytest.raises(siltstone.InvalidInputError, match=r"'amont' is not a column; .*did you mean amount"):
            table.scan(columns, where, **how)
        with pytest.raises(siltstone.InvalidInputError, match="did you mean amount"):
            table.snapshot(**how).scan(columns, where)


class TestWhatIsOpened:
    """Scans open what they need."""

    def test_a_key_that_names_the_partition_opens_one_bucket_and_one_row_group(self, table: siltstone.Table) -> None:
        summary = table.scan(where="zone = 'eu' and id = 150").explain()
        assert (summary.partitions, summary.partitions_skipped) == (1, 2)
        assert (summary.buckets, summary.files, summary.row_groups, summary.by_key) == (1, 1, 1, 1)
        assert summary.buckets_skipped == 3
        assert "1 of 3, 2 skipped by their values" in str(summary)
        assert "skipped by the key index" in str(summary)

    def test_a_range_opens_the_row_groups_whose_statistics_allow_it(self, table: siltstone.Table) -> None:
        whole, part = table.scan(["id"]).explain(), table.scan(["id"], "note > 'n195' and zone = 'asia'").explain()
        assert (whole.row_groups_skipped, whole.columns, whole.columns_skipped) == (0, ("id",), 3)
        assert part.columns == ("id", "note", "zone")
        assert 0 < part.row_groups <= part.buckets
        assert part.row_groups_skipped > part.row_groups
        assert "skipped by statistics" in str(part)

    def test_deltas_are_merged_where_they_wait(self, table: siltstone.Table) -> None:
        assert (table.scan().explain().deltas, table.scan(fresh=True).explain().deltas) == (1, 2)
        assert table.scan(where="zone = 'eu'", fresh=True).explain().deltas == 0
        assert "2 merged, from 2 files" in str(table.scan(fresh=True).explain())

    def test_files_are_those_of_rounds_with_deletion_vectors_and_of_waiting_deltas(
        self, table: siltstone.Table
    ) -> None:
        files = table.scan(where="zone = 'eu'").files()
        assert {file.partition_values for file in files} == {("eu",)}
        assert [file.is_delta for file in table.scan(where="zone = 'us'", fresh=True).files()].count(True) == 2
        assert [file.deletion_vector for file in files if file.deletion_vector]
        assert sum(file.rows for file in files) == 201
        assert all(file.path.startswith(f"{table.lake.root}/") and file.bytes > 0 for file in files)

    def test_rows_are_counted_without_opening_a_file(self, table: siltstone.Table) -> None:
        from siltstone.testing import faults

        snapshot = table.snapshot()
        with faults(table.lake.root, at_call=1, kind="fail"):
            counted = siltstone.TableSnapshot(
                snapshot.root,
                snapshot.name,
                snapshot.version,
                snapshot.streams,
                tuple(partition for partition in snapshot.partitions if not partition.waiting),
            )
            assert counted.scan().count() == 400


def test_rows_that_deltas_change_are_counted_by_the_index_of_their_keys(local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    table.write(pa.table({"id": range(100)}))
    compact(table)
    table.write(pa.table({"id": [98, 99, 100]}))
    table.write(pa.table({"id": [0, 1, 100, 500]}), "delete")
    for uri in {file.uri for file in table.current_rounds()[0].files}:
        Path(local_root, uri).unlink()
    assert table.scan(fresh=True).count() == 98


@every_state
def test_an_expression_without_a_column_chooses_all_rows_or_none(table: siltstone.Table, how: dict[str, Any]) -> None:
    for columns in (["id"], []):
        assert table.scan(columns, pc.scalar(False), **how).to_arrow().num_rows == 0
        assert table.scan(columns, pc.scalar(True), **how).count() == table.scan(**how).count() > 0


ENGINES: dict[str, dict[str, Any]] = {
    "by arrival": {},
    "by a sort key": {"sort_keys": ["version"]},
    "partial updates": {"merge_engine": "partial_update"},
    "first rows": {"merge_engine": "first_row"},
    "all rows": {"drop_duplicates": False},
    "no keys": {"primary_keys": []},
}


@pytest.mark.parametrize("rules", ENGINES.values(), ids=list(ENGINES))
@pytest.mark.parametrize("is_compacted", [True, False], ids=["onto compacted rows", "onto nothing"])
def test_deltas_are_merged_by_columns_that_the_reader_does_not_ask_for(
    new_root: Callable[[str], str], rules: dict[str, Any], *, is_compacted: bool
) -> None:
    schema = {"id": "int64", "version": "int64", "color": "string", "size": "int64", "note": "string"}
    table = siltstone.open(new_root("memory")).create_table(
        "shop.orders", schema=schema, **{"primary_keys": ["id"], **rules}
    )
    ids = list(range(6))
    table.write(pa.table({"id": ids, "version": [5] * 6, "color": ["red", "blue"] * 3, "size": ids, "note": ["a"] * 6}))
    if is_compacted:
        compact(table)
    table.write(pa.table({"id": [0, 1, 6], "version": [4, 6, 1], "size": [10, 11, 16]}))
    table.write(pa.table({"color": ["red"]}), "delete", delete_columns=["color"])
    table.write(pa.table({"id": [2, 7], "version": [7, 7], "color": ["green", "green"], "size": [12, 17]}))
    rows: list[Any] = [{**row, "length": row["size"]} for row in oracle_of(table).rows()]
    table.alter(drop_columns=["color"], rename_columns={"size": "length"})
    for columns in (["note"], ["length"], ["id"], [], ["version", "note"]):
        for where, is_wanted in (
            (None, lambda row: True),
            ("length > 11", lambda row: row["length"] is not None and row["length"] > 11),
            ("note is null", lambda row: row["note"] is None),
        ):
            wanted = [row for row in rows if is_wanted(row)]
            scan = table.scan(columns, where, fresh=True)
            assert scan.count() == scan.to_arrow().num_rows == len(wanted)
            if columns:
                same_rows(scan.to_arrow(), [{name: row[name] for name in columns} for row in wanted])


NAN = float("nan")


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("x > 5", [9.0]),
        ("not x <= 5", [NAN, 9.0]),
        ("x != 1", [NAN, 9.0]),
        ("not x = 1", [NAN, 9.0]),
        ("x is nan", [NAN]),
        ("x is not nan", [1.0, 1.0, 9.0]),
        ("x not in (1.0, 9.0)", [NAN]),
        ("x not between 0 and 10", [NAN]),
        ("x is null", [None]),
        ("x < 9 or x is null", [1.0, 1.0, None]),
        (~(pc.field("x") < 100), [NAN]),
        (pc.field("x") != 1, [NAN, 9.0]),
    ],
)
@pytest.mark.parametrize("is_fresh", [True, False])
def test_nan_is_neither_equal_to_nor_less_nor_greater_than_a_number(
    new_root: Callable[[str], str], kind: str, where: Any, wanted: list[float], *, is_fresh: bool
) -> None:
    table = siltstone.open(new_root("memory")).create_table(
        "shop.ratios", schema={"id": "int64", "x": kind}, primary_keys=["id"], properties={"row_group_rows": "2"}
    )
    values = pa.array([1.0, NAN, 1.0, 9.0, None], pa.float64() if kind == "double" else pa.float32())
    table.write(pa.table({"id": range(5), "x": values}))
    compact(table)
    if is_fresh:
        table.write(pa.table({"id": [3], "x": values.slice(3, 1)}))
    same_rows(table.scan(["x"], where, fresh=is_fresh).to_arrow(), [{"x": value} for value in wanted])


def test_a_scan_shows_itself_in_a_line(table: siltstone.Table) -> None:
    shown = repr(table.scan(["id"], "amount > 3", fresh=True))
    assert shown.startswith("<Scan of id from <TableSnapshot of shop.orders at {'shop/orders/1/deltas': ")
    assert shown.endswith("3 partitions, 2 deltas waiting> where (amount > 3)>")
