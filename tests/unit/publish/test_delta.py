"""A table published as Delta Lake: what other readers find in it, and what the log says."""

import datetime
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import deltalake
import orjson
import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import ConflictError, InvalidInputError
from siltstone.rows.job import Settings
from tests.unit.publish.foreign import actions_of, delta_rows, folder_of, same_as, versions_of
from tests.unit.rounds.compaction import MAJOR, MINOR, compact, completion_of, make_table, rows

SMALL = replace(MINOR, bucket_rows=5)


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    return make_table(local_root)


def step(table: siltstone.Table, ids: range, value: str, settings: Settings = MINOR) -> None:
    table.write(rows(ids, value))
    compact(table, settings)


def test_a_table_is_read_without_deletion_vectors_by_every_reader(table: siltstone.Table) -> None:
    step(table, range(100), "a")
    published = table.publish("delta")
    assert (published.version, published.is_new, published.added_files) == (0, True, 1)
    same_as(table, table.to_arrow())
    assert deltalake.DeltaTable(published.address).to_pyarrow_table().num_rows == 100
    (protocol,) = actions_of(table, 0, "protocol")
    assert protocol == {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["siltstone"],
    }


def test_the_first_vector_brings_the_features_it_needs_and_is_named_where_the_round_wrote_it(
    table: siltstone.Table,
) -> None:
    step(table, range(100), "a")
    table.publish()
    step(table, range(5), "b")
    before = set(folder_of(table).rglob("*"))
    assert table.publish().version == 1
    (protocol,) = actions_of(table, 1, "protocol")
    assert protocol["minReaderVersion"] == 3
    assert protocol["readerFeatures"] == ["deletionVectors"]
    assert len(actions_of(table, 1, "add")) == 2
    assert len(actions_of(table, 1, "remove")) == 1
    same_as(table, table.to_arrow())
    assert {path.name for path in set(folder_of(table).rglob("*")) - before} == {f"{1:020d}.json"}, "nothing is copied"


def test_what_is_published_is_not_published_again(table: siltstone.Table) -> None:
    step(table, range(10), "a")
    assert table.publish().is_new
    assert not table.publish().is_new
    assert versions_of(table) == [0]
    (publication,) = table.published()
    assert (publication.version, publication.behind_rounds, publication.files) == (0, 0, 1)
    step(table, range(10), "b")
    step(table, range(10), "c")
    assert table.published()[0].behind_rounds == 2
    assert table.publish().version == 1
    same_as(table, table.to_arrow())


def test_a_table_that_was_never_compacted_is_empty(table: siltstone.Table) -> None:
    table.publish()
    assert delta_rows(table).num_rows == 0
    step(table, range(3), "a")
    table.publish()
    same_as(table, table.to_arrow())


def test_files_that_buckets_share_get_one_vector_of_all_that_is_dead(table: siltstone.Table) -> None:
    step(table, range(40), "first", SMALL)
    table.publish()
    for value, stride in (("second", 2), ("third", 3), ("fourth", 5)):
        table.write(rows(range(0, 50, stride), value))
        compact(table, SMALL)
        table.publish()
        same_as(table, table.to_arrow())
    assert any(file.is_shared for file in completion_of(table).files)
    # One bucket gives up its slice, and the rows of the others stay.
    table.write(rows(range(2), "fifth"))
    compact(table, replace(SMALL, max_delta_fraction=0.0))
    table.publish()
    same_as(table, table.to_arrow())
    table.rollback(2)
    table.publish()
    same_as(table, table.to_arrow())
    assert not table.publish().is_new


def test_where_the_published_round_is_forgotten_all_files_are_compared(table: siltstone.Table) -> None:
    step(table, range(40), "first", SMALL)
    step(table, range(0, 40, 3), "second", SMALL)
    table.publish()
    step(table, range(0, 40, 7), "third", SMALL)
    step(table, range(0, 40, 9), "fourth", SMALL)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    table.publish()
    same_as(table, table.to_arrow())


def test_rounds_that_only_arrange_rows_anew_say_that_no_row_changed(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    step(table, range(5), "b")
    table.publish()
    compact(table, MAJOR)
    version = table.publish().version
    assert {add["dataChange"] for add in actions_of(table, version, "add")} == {False}
    assert {remove["dataChange"] for remove in actions_of(table, version, "remove")} == {False}
    same_as(table, table.to_arrow())
    step(table, range(3), "c")
    version = table.publish().version
    assert {add["dataChange"] for add in actions_of(table, version, "add")} == {True}


def test_checkpoints_stand_for_the_versions_before_them(table: siltstone.Table) -> None:
    step(table, range(30), "a", SMALL)
    states = []
    for number in range(13):
        step(table, range(number, number + 3), f"{number}", SMALL)
        table.publish()
        states.append(table.to_arrow())
    log = folder_of(table) / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 9
    for version, expected in enumerate(states):
        same_as(table, expected, version)
    for version in range(9):
        (log / f"{version:020d}.json").unlink()
    same_as(table, table.to_arrow())
    step(table, range(30), "z", SMALL)
    table.publish()
    same_as(table, table.to_arrow())


def test_values_of_all_types_are_skipped_by_statistics_only_where_they_are_not(local_root: str) -> None:
    schema = {
        "id": "int64", "small": "int8", "f": "double", "b": "bool", "s": "string", "bin": "binary", "d": "date",
        "t": "timestamp", "u": "timestamp_utc", "m": "decimal(10,2)", "l": {"list": "int64"},
        "st": {"struct": [{"name": "x", "type": "int64"}]}, "mp": {"map": ["string", "int64"]},
    }  # fmt: skip
    table = siltstone.open(local_root).create_table("shop.t", schema=schema, primary_keys=["id"])
    moment = datetime.datetime(2024, 5, 1, 12, 0, 0, 123456)
    row = {
        "id": 1, "small": -3, "f": float("nan"), "b": True, "s": "x" * 50, "bin": b"\xff\x00", "d": moment.date(),
        "t": moment, "u": moment.replace(tzinfo=datetime.UTC), "m": Decimal("123.45"), "l": [1, None],
        "st": {"x": 3}, "mp": [("k", 1)],
    }  # fmt: skip
    empty = {**dict.fromkeys(schema), "id": 2}
    table.write(pa.Table.from_pylist([row, empty], schema=table.schema))
    compact(table)
    table.publish()
    same_as(table, table.to_arrow())
    (add,) = actions_of(table, 0, "add")
    statistics = json.loads(add["stats"])
    assert statistics["numRecords"] == 2
    assert statistics["nullCount"]["s"] == 1
    assert statistics["maxValues"]["t"] == "2024-05-01T12:00:00.124"
    assert statistics["minValues"]["u"] == "2024-05-01T12:00:00.123Z"
    assert statistics["minValues"]["m"] == 123.45
    assert statistics["maxValues"]["s"].startswith("x" * 32)
    assert statistics["maxValues"]["s"] > "x" * 50
    assert not {"f", "b", "bin", "l", "st", "mp"} & statistics["minValues"].keys()
    for where in ("t = TIMESTAMP '2024-05-01T12:00:00.123456'", f"s = '{'x' * 50}'", "m = 123.45", "f IS NOT NULL"):
        delta = deltalake.DeltaTable(str(folder_of(table)))
        found = deltalake.QueryBuilder().register("rows", delta).execute(f"SELECT id FROM rows WHERE {where}")
        assert pa.table(found)["id"].to_pylist() == [1], where


def test_types_that_delta_does_not_have_are_refused_by_name(local_root: str) -> None:
    schema = {"id": "int64", "opens": "time", "lasts": "duration"}
    table = siltstone.open(local_root).create_table("shop.t", schema=schema, primary_keys=["id"])
    with pytest.raises(InvalidInputError, match="opens, lasts have types that Delta Lake does not have"):
        table.publish()
    assert not list((folder_of(table) / "_delta_log").glob("*"))


def test_partitions_with_hostile_values_are_read_and_empty_text_is_refused(local_root: str) -> None:
    lake = siltstone.open(local_root)
    table = lake.create_table(
        "shop.sales",
        schema={"id": "int64", "region": "string"},
        primary_keys=["id", "region"],
        partition_keys=["region"],
    )
    values = ["a%b", "50 %/2", "é+,", "__HIVE_DEFAULT_PARTITION__", None, " ", "x" * 150]
    table.write(pa.table({"id": range(70), "region": values * 10}))
    table.compact(engine="local")
    table.write(pa.table({"id": range(7), "region": values}))
    table.compact(engine="local")
    table.publish()
    same_as(table, table.to_arrow())
    table.write(pa.table({"id": [1], "region": ["a=b"]}))
    table.compact(engine="local")
    table.publish()
    # Polars takes the folder for a column.
    same_as(table, table.to_arrow(), polars=False)
    table.write(pa.table({"id": [1], "region": [""]}))
    table.compact(engine="local")
    with pytest.raises(InvalidInputError, match="empty text as region"):
        table.publish()


def test_columns_that_are_added_widened_and_dropped_are_read_by_all_and_renamed_ones_are_mapped(
    local_root: str,
) -> None:
    lake = siltstone.open(local_root)
    schema = {
        "id": "int64",
        "n": "int32",
        "old": "string",
        "gone": "int64",
        "st": {"struct": [{"name": "x", "type": "int64"}]},
    }
    table = lake.create_table("shop.t", schema=schema, primary_keys=["id"])
    part = pa.array([{"x": 1}] * 5, pa.struct([("x", pa.int64())]))
    table.write(
        pa.table({"id": range(5), "n": pa.array([1] * 5, pa.int32()), "old": ["a"] * 5, "gone": range(5), "st": part})
    )
    compact(table)
    table.publish()
    table.write(pa.table({"id": [3, 9], "n": pa.array([1 << 40, 2], pa.int64()), "new": [1.5, 2.5]}))
    compact(table)
    table.publish()
    same_as(table, table.to_arrow())
    table.alter(drop_columns=["gone"])
    table.publish()
    same_as(table, table.to_arrow())
    table.alter(rename_columns={"old": "fresh"})
    version = table.publish().version
    (metadata,) = actions_of(table, version, "metaData")
    assert metadata["configuration"]["delta.columnMapping.mode"] == "name"
    same_as(table, table.to_arrow(), polars=False)
    table.alter(add_columns={"old": "int64", "gone": "string"})
    table.write(pa.table({"id": [1, 20], "old": [5, 6], "gone": ["x", "y"], "fresh": ["f", "g"]}))
    compact(table)
    table.publish()
    same_as(table, table.to_arrow(), polars=False)


@pytest.mark.parametrize("what", ["append", "delete", "update", "vacuum", "optimize"])
def test_nobody_else_writes_to_it_or_cleans_it_up(table: siltstone.Table, what: str) -> None:
    step(table, range(20), "a")
    step(table, range(5), "b")
    delta = deltalake.DeltaTable(table.publish().address)
    before = {path: path.stat().st_mtime_ns for path in folder_of(table).rglob("*")}
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: deltalake.write_deltalake(delta, rows(range(1)), mode="append"),
        "delete": lambda: delta.delete("id = 3"),
        "update": lambda: delta.update({"v": "'x'"}),
        "vacuum": lambda: delta.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
        "optimize": lambda: delta.optimize.compact(),
    }
    with pytest.raises(Exception, match="siltstone"):
        acts[what]()
    assert {path: path.stat().st_mtime_ns for path in folder_of(table).rglob("*")} == before


def test_a_commit_of_somebody_else_stops_publishing_until_it_is_replaced(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    table.publish()
    (add,) = actions_of(table, 0, "add")
    foreign = folder_of(table) / "foreign.parquet"
    foreign.write_bytes((folder_of(table) / add["path"]).read_bytes())
    actions = [{"commitInfo": {"engineInfo": "other/1"}}, {"add": {**add, "path": "foreign.parquet"}}]
    actions.append({"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}})
    (folder_of(table) / "_delta_log" / f"{1:020d}.json").write_bytes(b"\n".join(map(orjson.dumps, actions)))
    step(table, range(3), "b")
    with pytest.raises(ConflictError, match=r"version 1 was written by other/1.*--replace"):
        table.publish()
    assert table.publish(replace=True).version == 2
    same_as(table, table.to_arrow())
    step(table, range(5), "c")
    table.publish()
    same_as(table, table.to_arrow())


def test_what_is_unpublished_is_gone_for_readers_and_can_be_published_anew(table: siltstone.Table) -> None:
    assert table.unpublish() == []
    step(table, range(20), "a", SMALL)
    step(table, range(0, 20, 3), "b", SMALL)
    table.publish()
    assert table.unpublish() == ["delta"]
    assert table.unpublish() == []
    assert table.published() == []
    with pytest.raises(Exception, match=r"(?i)metadata|not a delta|no table"):
        delta_rows(table)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert versions_of(table) == [1]
    assert not list(folder_of(table).glob("deletion_vector_*")), "what only publishers name goes with a vacuum"
    assert table.publish().version == 2
    same_as(table, table.to_arrow())


def test_a_partition_that_is_behind_keeps_the_last_state_that_all_have(local_root: str) -> None:
    lake = siltstone.open(local_root)
    schema = {"id": "int64", "region": "string"}
    table = lake.create_table("shop.sales", schema=schema, primary_keys=["id", "region"], partition_keys=["region"])
    table.write(pa.table({"id": [1, 2], "region": ["a", "b"]}))
    table.compact(engine="local")
    table.publish()
    before = table.to_arrow()
    table.write(pa.table({"id": [3, 4], "region": ["a", "b"]}))
    from siltstone.rounds.request import TableRequest, partition_requests
    from siltstone.rounds.session import run_session
    from siltstone.rows.merge import run_here

    request, _ = partition_requests(TableRequest(table.name, lake.root))
    run_session(request, run_here)
    assert not table.publish().is_new
    same_as(table, before)
    table.compact(engine="local")
    table.publish()
    same_as(table, table.to_arrow())
