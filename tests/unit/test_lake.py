"""What a person does with a lake in Python."""

import datetime
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.documents import schema as documents
from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.log import commit as commit_module
from siltstone.storage import object_store as storage

DAY = datetime.date(2026, 11, 15)
SCHEMA = {"order_id": "int64", "amount": "decimal(10,2)", "day": "date"}


@pytest.fixture
def lake(local_root: str) -> siltstone.Lake:
    return siltstone.open(local_root)


@pytest.fixture
def orders(lake: siltstone.Lake) -> siltstone.Table:
    return lake.create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])


def files_below(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()}


def test_opening_writes_nothing(lake: siltstone.Lake) -> None:
    assert lake.tables() == []
    assert lake.namespaces() == []
    assert not Path(lake.root).exists()


def test_a_table_keeps_what_it_was_created_with(lake: siltstone.Lake) -> None:
    lake.create_table(
        "shop.orders",
        schema=SCHEMA,
        primary_keys="order_id",
        sort_keys=["day"],
        partition_keys=["day"],
        unique_within_partition=True,
        merge_engine="partial_update",
        description="all orders",
        properties={"user.owner": "ann"},
    )
    version = lake.table("shop.orders").version
    assert version.primary_keys == ["order_id"]
    assert version.sort_keys == ["day"]
    assert version.partition_keys == ["day"]
    assert version.merge_engine == "partial_update"
    assert version.properties == {"user.owner": "ann"}
    assert [table.name for table in lake.tables()] == ["shop.orders"]
    assert [table.name for table in lake.tables("shop")] == ["shop.orders"]


def test_writes_return_rising_positions_and_are_listed(orders: siltstone.Table) -> None:
    assert orders.write(pa.table({"order_id": [1, 2]})) == 1
    assert orders.write(pa.table({"order_id": [2]}), type="delete") == 2
    assert orders.write(pa.table({"order_id": [3], "op": ["d"]}), op_column="op") == 3
    assert orders.write(pa.table({"order_id": [4]}), stream_position=100) == 100
    assert orders.write(pa.table({"order_id": [4]}), "append") == 101
    assert [(delta.stream_position, delta.type) for delta in orders.deltas()] == [
        (1, "upsert"), (2, "delete"), (3, "upsert"), (100, "upsert"), (101, "append"),
    ]  # fmt: skip
    assert [delta.stream_position for delta in orders.deltas(2, 100)] == [2, 3, 100]
    assert orders.schema.names == list(SCHEMA), "the operation column is no column of the table"


def test_the_same_idempotency_id_writes_once_and_leaves_no_second_file(orders: siltstone.Table) -> None:
    first = orders.write(pa.table({"order_id": [1]}), idempotency=("job", 1))
    before = files_below(orders.lake.root)
    assert orders.write(pa.table({"order_id": [1]}), idempotency=("job", 1)) == first
    assert files_below(orders.lake.root) == before
    with pytest.raises(siltstone.InvalidInputError, match="app_id"):
        orders.write(pa.table({"order_id": [1]}), idempotency=("", 1))
    with pytest.raises(siltstone.InvalidInputError, match="batch_id"):
        orders.write(pa.table({"order_id": [1]}), idempotency=("job", -1))


def test_alter_adds_columns_and_properties(orders: siltstone.Table) -> None:
    orders.alter(add_columns={"note": "string"}, properties={"user.a": "1", "user.b": "2"}, description="d")
    orders.alter(properties={"user.a": None})
    assert orders.schema.names == [*SCHEMA, "note"]
    assert orders.properties == {"user.b": "2"}
    assert orders.version.description == "d"
    with pytest.raises(siltstone.InvalidInputError, match="'note'"):
        orders.alter(add_columns={"note": "int64"})


def test_rename_and_drop(lake: siltstone.Lake, orders: siltstone.Table) -> None:
    orders.write(pa.table({"order_id": [1]}))
    sales = orders.rename("shop.sales")
    assert [delta.stream_position for delta in sales.deltas()] == [1]
    with pytest.raises(siltstone.NotFoundError, match=r"shop\.orders"):
        orders.write(pa.table({"order_id": [1]}))
    sales.drop()
    assert lake.tables() == []
    lake.drop_namespace("shop")
    assert lake.namespaces() == []


@pytest.mark.parametrize("name", ["orders", "", "../x.orders", "shop.", ".orders", "shop." + "x" * 300, "shop.a/b"])
def test_bad_table_names_are_refused_and_nothing_is_written(lake: siltstone.Lake, name: str) -> None:
    for call in (lake.table, lake.drop_table, lake.has_table, lambda name: lake.create_table(name, schema=SCHEMA)):
        with pytest.raises(siltstone.InvalidInputError):
            call(name)
    assert not Path(lake.root).exists()


def test_data_frames_are_written_as_they_are(orders: siltstone.Table) -> None:
    class Frame:
        """What pandas, polars and DuckDB results have in common."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"order_id": [1, 2]}).__arrow_c_stream__(requested_schema)

    orders.write(Frame())
    (delta,) = orders.deltas()
    assert delta.manifest.record_count == 2


def test_data_files_are_zstd_parquet_with_dictionaries_only_where_they_pay(orders: siltstone.Table) -> None:
    rows = 10_000
    data = pa.table(
        {"order_id": range(rows), "status": ["new", "paid"] * (rows // 2), "note": [f"n{i}" for i in range(rows)]}
    )
    orders.write(data)
    (entry,) = orders.deltas()[0].manifest.entries
    path = Path(orders.lake.root) / entry.uri
    assert path.stat().st_size == entry.content_length
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert {name: column.has_dictionary_page for name, column in columns.items()} == {
        "order_id": False,
        "status": True,
        "note": False,
    }


def test_large_writes_are_cut_into_row_groups_and_keep_their_order(orders: siltstone.Table) -> None:
    batches = [pa.record_batch({"order_id": range(start, start + 50_000)}) for start in range(0, 300_000, 50_000)]
    orders.write(iter(batches))
    (delta,) = orders.deltas()
    read = storage.download_delta(delta, root=orders.lake.root)
    assert read.column("order_id").to_pylist() == list(range(300_000))
    assert pq.ParquetFile(Path(orders.lake.root) / delta.manifest.entries[0].uri).metadata.num_row_groups == 3


def test_a_missing_or_damaged_data_file_is_named(orders: siltstone.Table) -> None:
    orders.write(pa.table({"order_id": [1]}))
    (delta,) = orders.deltas()
    path = Path(orders.lake.root) / delta.manifest.entries[0].uri
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(siltstone.CorruptionError, match=path.name):
        storage.download_delta(delta, root=orders.lake.root)
    path.unlink()
    with pytest.raises(siltstone.CorruptionError, match=f"{path.name}.*missing"):
        storage.download_delta(delta, root=orders.lake.root)


def test_lakes_and_tables_can_be_pickled(orders: siltstone.Table) -> None:
    orders.write(pa.table({"order_id": [1]}))
    copy = pickle.loads(pickle.dumps(orders))
    assert [delta.stream_position for delta in copy.deltas()] == [1]


def test_another_process_sees_the_commits_and_adds_its_own(orders: siltstone.Table) -> None:
    orders.write(pa.table({"order_id": [1]}))
    script = (
        "import sys, json, siltstone, pyarrow as pa; t = siltstone.open(sys.argv[1]).table('shop.orders');"
        "p = t.write(pa.table({'order_id': [2], 'extra': ['x']})); print(json.dumps([p, len(t.deltas())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, orders.lake.root], capture_output=True, text=True, check=True, env=os.environ
    )
    assert json.loads(done.stdout) == [2, 2]
    assert [delta.stream_position for delta in orders.deltas()] == [1, 2]
    assert "extra" in orders.schema.names


def test_a_table_that_another_process_made_is_found_and_one_that_it_dropped_is_not_read(
    orders: siltstone.Table,
) -> None:
    lake = orders.lake
    with pytest.MonkeyPatch.context() as other_process:
        other_process.setattr(commit_module, "_logs", {})
        lake.create_table("shop.sales", schema=SCHEMA)
        orders.drop()
    assert lake.table("shop.sales").to_arrow().num_rows == 0
    # A handle has no more than the name, so whether there is such a table shows when it is used.
    with pytest.raises(NotFoundError, match=r"no table shop\.orders"):
        lake.table("shop.orders").to_arrow()
    with pytest.raises(NotFoundError, match=r"no table shop\.orders"):
        lake.table("shop.orders")


def test_rows_are_not_written_to_a_table_that_another_process_made_one_of_documents(lake: siltstone.Lake) -> None:
    table = lake.create_table("shop.orders", schema=documents.SCHEMA, primary_keys=[documents.KEY])
    rows = [{documents.KEY: "a", "delta": "{}"}]
    table.write(rows)
    with pytest.MonkeyPatch.context() as other_process:
        other_process.setattr(commit_module, "_logs", {})
        table.drop()
        lake.create_document_table("shop.orders")
    with pytest.raises(ConflictError, match=r"siltstone\.kind is now 'documents'"):
        table.write(rows)
    with pytest.raises(InvalidInputError, match="is a table of documents"):
        table.write(rows)
    with pytest.MonkeyPatch.context() as other_process:
        other_process.setattr(commit_module, "_logs", {})
        table.drop()
        lake.create_table("shop.orders", schema=documents.SCHEMA, primary_keys=[documents.KEY])
    assert table.write(rows) == 1
