"""Tables of other formats become tables of ours: all their rows, as of one version, and nothing of them is changed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import siltstone
from siltstone.catalog.adopt import Adopted
from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from siltstone.ingest.foreign import ForeignFormat
from siltstone.testing import Killed, faults
from siltstone.testing.oracle import same_rows
from tests.unit.cli.command_line import Cli
from tests.unit.rounds.compaction import objects_below

ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "name": [None if number % 7 == 0 else f"name {number}" for number in range(100)],
        "zone": ["eu" if number % 3 else "us" for number in range(100)],
    }
)


@pytest.fixture
def lake(local_root: str) -> siltstone.Lake:
    return siltstone.open(local_root)


def make_delta(folder: Path, **settings: Any) -> None:
    deltalake.write_deltalake(folder, ROWS, **settings)


def make_iceberg(folder: Path) -> Any:
    folder.mkdir(parents=True)
    catalog = SqlCatalog("own", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", schema=ROWS.schema)
    table.append(ROWS)
    return table


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def rows_of(table: siltstone.Table, **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan(**how).to_arrow().select(ROWS.column_names).to_pylist()
    return found


@pytest.mark.parametrize("format", ["delta", "iceberg", "parquet"])
def test_a_table_has_all_rows_of_the_one_it_was_adopted_from_which_stays_as_it_was(
    lake: siltstone.Lake, tmp_path: Path, format: ForeignFormat
) -> None:
    folder = tmp_path / "source"
    if format == "delta":
        make_delta(folder)
    elif format == "iceberg":
        make_iceberg(folder)
        folder = folder / "shop" / "orders"
    else:
        folder.mkdir()
        pq.write_table(ROWS, folder / "part.parquet")
    before = contents(folder)
    adopted = lake.adopt_table("shop.orders", str(folder), format, primary_keys=["id"])
    table = lake.table("shop.orders")
    assert (adopted.rows, adopted.stream_position, adopted.repeated) == (100, 1, False)
    # Files of a plain folder may be written over by their owner.
    assert adopted.linked_files == (0 if format == "parquet" else 1)
    same_rows(rows_of(table, fresh=True), ROWS.to_pylist())
    table.compact(engine="local")
    same_rows(rows_of(table), ROWS.to_pylist())
    table.write(pa.table({"id": [1], "name": ["new"], "zone": ["eu"]}))
    table.compact(engine="local")
    assert table.lookup({"id": 1})[0]["name"] == "new"
    assert table.fsck(deep=True) == []
    assert contents(folder) == before


def test_what_is_deleted_partitioned_or_renamed_in_the_source_is_read_as_the_source_has_it(
    lake: siltstone.Lake, tmp_path: Path
) -> None:
    make_delta(tmp_path / "delta", partition_by=["zone"], configuration={"delta.enableDeletionVectors": "true"})
    deltalake.DeltaTable(tmp_path / "delta").delete("id < 10")
    adopted = lake.adopt_table("shop.delta", str(tmp_path / "delta"), "delta", primary_keys=["zone", "id"])
    assert (adopted.partition_keys, adopted.linked_files) == (["zone"], 0)
    same_rows(rows_of(lake.table("shop.delta"), fresh=True), ROWS.slice(10).to_pylist())
    table = make_iceberg(tmp_path / "iceberg")
    for old, new in (("name", "spare"), ("zone", "name"), ("spare", "zone")):
        with table.update_schema() as update:
            update.rename_column(old, new)
    adopted = lake.adopt_table("shop.swap", str(tmp_path / "iceberg/shop/orders"), "iceberg", primary_keys=["id"])
    assert adopted.linked_files == 0
    swapped = ROWS.rename_columns(["id", "zone", "name"]).to_pylist()
    same_rows(rows_of(lake.table("shop.swap"), fresh=True), swapped)


def test_folders_of_parquet_files_may_be_partitioned_by_name_and_differ_in_columns(
    lake: siltstone.Lake, tmp_path: Path
) -> None:
    pq.write_to_dataset(ROWS, tmp_path / "source", partition_cols=["zone"])
    pq.write_table(pa.table({"id": [1000], "extra": [1.5]}), tmp_path / "source" / "zone=eu" / "later.parquet")
    (tmp_path / "source" / "_temporary").mkdir()
    (tmp_path / "source" / "_temporary" / "half.parquet").write_bytes(b"PAR1")
    adopted = lake.adopt_table("shop.orders", str(tmp_path / "source"), "parquet", primary_keys=["zone", "id"])
    assert (adopted.partition_keys, adopted.rows) == (["zone"], 101)
    found = lake.table("shop.orders").scan(where="id = 1000", fresh=True).to_arrow().to_pylist()
    assert found == [{"id": 1000, "name": None, "extra": 1.5, "zone": "eu"}]


def test_an_adoption_that_died_goes_on_and_one_that_is_done_is_not_done_again(
    lake: siltstone.Lake, tmp_path: Path
) -> None:
    make_delta(tmp_path / "source")

    def adopt() -> Adopted:
        return lake.adopt_table("shop.orders", str(tmp_path / "source"), "delta", primary_keys=["id"])

    died = 0
    for call in range(1, 100):
        try:
            with faults(lake.root, at_call=call, kind="kill"):
                adopt()
            break
        except Killed:
            died += 1
    assert died > 2
    assert adopt().repeated
    same_rows(rows_of(lake.table("shop.orders"), fresh=True), ROWS.to_pylist())
    deltalake.write_deltalake(tmp_path / "source", ROWS, mode="append")
    with pytest.raises(InvalidInputError, match=r"adopted from delta:.*@0, not from delta:.*@1"):
        adopt()


def test_what_cannot_be_adopted_is_refused_and_leaves_nothing(lake: siltstone.Lake, tmp_path: Path) -> None:
    lake.create_table("shop.orders", schema={"id": "int64"})
    make_delta(tmp_path / "source")
    before = objects_below(lake.root)
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (NotFoundError, "no such folder", lambda: lake.adopt_table("shop.x", str(tmp_path / "no"), "delta")),
        (NotFoundError, "not a Delta table", lambda: lake.adopt_table("shop.x", str(tmp_path), "delta")),
        (NotFoundError, "no metadata file", lambda: lake.adopt_table("shop.x", str(tmp_path / "source"), "iceberg")),
        (NotFoundError, "no Parquet files", lambda: lake.adopt_table("shop.x", lake.root, "parquet")),
        (InvalidInputError, "'csv'", lambda: lake.adopt_table("shop.x", str(tmp_path), "csv")),  # type: ignore[arg-type]
        (AlreadyExistsError, "exists", lambda: lake.adopt_table("shop.orders", str(tmp_path / "source"), "delta")),
        (
            InvalidInputError,
            "no_such",
            lambda: lake.adopt_table("shop.x", str(tmp_path / "source"), "delta", primary_keys=["no_such"]),
        ),
    ]
    for error, words, call in cases:
        with pytest.raises(error, match=words):
            call()
    assert objects_below(lake.root) == before


def test_a_linked_file_is_the_same_file_and_outlives_the_source(lake: siltstone.Lake, tmp_path: Path) -> None:
    make_delta(tmp_path / "source")
    (path,) = (tmp_path / "source").glob("*.parquet")
    lake.adopt_table("shop.orders", str(tmp_path / "source"), "delta", primary_keys=["id"])
    assert os.stat(path).st_nlink == 2
    path.unlink()
    same_rows(rows_of(lake.table("shop.orders"), fresh=True), ROWS.to_pylist())


def test_the_command_says_what_it_would_do_and_what_it_did(tmp_path: Path) -> None:
    make_delta(tmp_path / "source")
    cli = Cli(tmp_path / "cli")
    command = ("table", "adopt", "shop.orders", str(tmp_path / "source"), "--from", "delta", "--key", "id")
    assert "would adopt delta:" in cli(*command, "--dry-run").stdout
    assert "100 rows in 1 file, 1 of them linked" in cli(*command).stdout
    assert "nothing to do" in cli(*command).stdout
    assert cli.json(*command)["repeated"] is True
