"""Files become deltas and tables in Python, as they do on the command line."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import InputWarning, InvalidInputError
from siltstone.ingest.file_rows import infer_schema
from siltstone.lake import Lake, Table


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    lake = siltstone.open(tmp_path / "lake")
    return lake.create_table("shop.orders", schema={"order_id": "int64", "city": "string"}, primary_keys=["order_id"])


def a_file(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content)
    return str(folder / name)


def files_of(lake: Lake) -> list[str]:
    return sorted(str(path) for path in Path(lake.root).rglob("*") if path.is_file())


def test_files_of_several_formats_are_written_as_one_delta(orders: Table, tmp_path: Path) -> None:
    files = [
        a_file(tmp_path, "a.csv", "order_id,city,gift\n1,Oslo,true\n"),
        a_file(tmp_path, "b.jsonl", 'null\n{"order_id": 2, "city": "Lima", "gift": false}\n'),
    ]
    written = orders.write_files(files)
    assert (written.table, written.type, written.stream_position) == ("shop.orders", "upsert", 1)
    assert (written.rows, written.null_lines, written.new_columns) == (2, 1, ["gift"])
    assert not written.dry_run
    assert [delta.manifest.record_count for delta in orders.deltas()] == [2]


def test_the_same_write_of_files_is_committed_once(orders: Table, tmp_path: Path) -> None:
    file = a_file(tmp_path, "a.csv", "order_id\n1\n")
    first = orders.write_files([file], idempotency=("job", 1))
    again = orders.write_files([file], idempotency=("job", 1))
    assert (first.repeated, again.repeated) == (False, True)
    assert (again.stream_position, again.rows) == (first.stream_position, first.rows)
    assert len(orders.deltas()) == 1


def test_a_dry_run_says_what_a_write_would_do_and_keeps_nothing(orders: Table, tmp_path: Path) -> None:
    before = files_of(orders.lake)
    rows = pa.table({"order_id": [1, 2], "note": ["x", None]})
    planned = orders.write(rows, dry_run=True)
    assert (planned.dry_run, planned.stream_position, planned.rows) == (True, None, 2)
    assert (planned.files, planned.partitions, planned.new_columns) == (1, 1, ["note"])
    assert files_of(orders.lake) == before
    assert orders.write(rows) == 1
    of_file = orders.write_files([a_file(tmp_path, "a.csv", "order_id\n1\n")], type="delete", dry_run=True)
    assert (of_file.dry_run, of_file.type, of_file.rows) == (True, "delete", 1)
    assert len(orders.deltas()) == 1


def test_a_dry_run_refuses_what_a_write_refuses(orders: Table, tmp_path: Path) -> None:
    bad = a_file(tmp_path, "bad.csv", "order_id\nseven\n")
    with pytest.raises(InvalidInputError, match=r"bad\.csv.*order_id"):
        orders.write_files([bad], dry_run=True)
    with pytest.raises(InvalidInputError, match="note"):
        orders.write(pa.table({"order_id": [1], "note": ["x"]}), evolve=False, dry_run=True)
    orders.write([{"order_id": 1}])
    with pytest.raises(InvalidInputError, match="position"):
        orders.write([{"order_id": 2}], stream_position=1, dry_run=True)


def test_what_is_written_during_a_dry_run_is_kept(orders: Table) -> None:
    schema = pa.schema([("order_id", pa.int64())])
    is_reading, is_written = threading.Event(), threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"order_id": [1]}, schema=schema)
        is_reading.set()
        assert is_written.wait(60)
        yield pa.RecordBatch.from_pydict({"order_id": [2]}, schema=schema)

    planned = []
    dry_run = threading.Thread(target=lambda: planned.append(orders.write(batches(), dry_run=True)))
    dry_run.start()
    assert is_reading.wait(60)
    try:
        orders.write([{"order_id": 7}])
    finally:
        is_written.set()
        dry_run.join()
    assert [(each.dry_run, each.rows) for each in planned] == [(True, 2)]
    assert orders.fsck(deep=True) == []
    assert orders.to_arrow(include_uncompacted=True)["order_id"].to_pylist() == [7]


def test_a_table_is_created_with_the_columns_of_a_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, "orders.csv", "order_id,amount,day,nothing\n1,9.5,2024-05-01,\n")
    with pytest.warns(InputWarning, match=r"orders\.csv: column 'nothing' has no values"):
        schema = infer_schema(file)
    assert [str(each.type) for each in schema] == ["int64", "double", "date32[day]", "string"]
    table = siltstone.open(tmp_path / "lake").create_table("shop.orders", schema=schema, primary_keys=["order_id"])
    assert table.write_files([file]).rows == 1


def test_an_alteration_can_be_seen_first(orders: Table) -> None:
    after = orders.alter(add_columns={"note": "string"}, rename_columns={"city": "town"}, dry_run=True)
    assert after.schema.names == ["order_id", "town", "note"]
    assert orders.schema.names == ["order_id", "city"]


def test_a_table_that_is_not_there_is_guessed(orders: Table) -> None:
    with pytest.raises(siltstone.NotFoundError, match=r"shop\.orders"):
        orders.lake.table("shop.order")
    with pytest.raises(siltstone.NotFoundError, match=r"shop\.orders"):
        orders.lake.document_table("shop.order")
