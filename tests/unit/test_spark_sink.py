"""Writers of `format("siltstone")` as Spark calls them, each step in a process of its own; here without Spark."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from pyspark_siltstone import DefaultSource
from siltstone.errors import AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError, SiltstoneError
from siltstone.log.commit import forget_logs
from siltstone.objects import open_objects
from siltstone.spark.frames import spark_schema
from siltstone.storage import object_store as storage
from siltstone.testing import FaultKind, Killed, faults
from siltstone.testing.faults import FAULT_KINDS
from siltstone.testing.oracle import same_rows
from tests.unit.stream_writers import SCHEMA, Stream, rows


def new_table(root: str | None = None, **settings: Any) -> siltstone.Table:
    lake = siltstone.open(root or f"memory://{uuid.uuid4().hex}")
    return lake.create_table(
        "shop.orders", schema={"id": "int64", "zone": "string"}, primary_keys=["id", "zone"], **settings
    )


def files(root: str) -> list[str]:
    return [str(path) for path in Path(root).rglob("*.parquet")]


def positions(table: siltstone.Table) -> list[int]:
    return [delta.stream_position for delta in table.deltas()]


def test_tasks_of_a_batch_are_one_commit_with_one_delta_for_each_partition() -> None:
    table = new_table(partition_keys=["zone"])
    stream = Stream(table.name, table.lake.root)
    stream.run(0, [*rows(1, 2), *rows(3, zone="us")], rows(4), [])
    assert [(delta.stream_position, len(delta.manifest.entries)) for delta in table.deltas()] == [(1, 2), (1, 1)]
    same_rows(table.scan(fresh=True).to_arrow().to_pylist(), [*rows(1, 2, 4), *rows(3, zone="us")])


def test_a_batch_that_is_replayed_is_committed_once_and_its_files_are_discarded(local_root: str) -> None:
    table = new_table(local_root)
    stream = Stream(table.name, local_root)
    stream.run(0, rows(1))
    stream.run(1, rows(2), rows(3))
    before = files(local_root)
    stream.run(1, rows(2), rows(3))
    assert files(local_root) == before
    assert positions(table) == [1, 2]
    stream.run(2, rows(4))
    assert table.scan(fresh=True).count() == 4


def test_batches_without_rows_commit_nothing_and_leave_one_entry_in_the_log() -> None:
    table = new_table()
    stream = Stream(table.name, table.lake.root)
    for number in range(60):
        stream.run(number, rows(number) if number % 3 == 0 else [], [])
    assert positions(table) == list(range(1, 21))
    log = storage.find_stream("shop", "orders", root=table.lake.root).log  # type: ignore[attr-defined]
    (key,) = log.read(lambda state: state.keys("transaction/"))
    assert len(json.dumps(log.read(lambda state: state.get(key)))) < 200
    stream.run(57, rows(57))
    assert positions(table) == list(range(1, 21))


def test_a_batch_below_the_newest_one_is_refused_and_not_swallowed(local_root: str) -> None:
    table = new_table(local_root)
    stream = Stream(table.name, local_root)
    for number in range(3):
        stream.run(number, rows(number))
    before = files(local_root)
    with pytest.raises(
        InvalidInputError, match=r"batch 0 of 'query' comes after its batch 2 .* give it an app id of its"
    ):
        stream.run(0, rows(9))
    assert files(local_root) == before
    Stream(table.name, local_root, app_id="fresh").run(0, rows(9))
    assert table.scan(fresh=True).count() == 4


def test_columns_are_added_in_the_commit_of_a_batch_unless_that_is_refused() -> None:
    table = new_table()
    wider = spark_schema(
        pa.schema([pa.field("id", pa.int64()), pa.field("zone", pa.string()), pa.field("n", pa.int32())])
    )
    with pytest.raises(InvalidInputError, match="'n'"):
        Stream(table.name, table.lake.root, wider, evolve="false").run(0, [{"id": 1, "zone": "eu", "n": 1}])
    stream = Stream(table.name, table.lake.root, wider)
    messages = stream.stage([{"id": 1, "zone": "eu", "n": 1}])
    assert "n" not in table.schema.names
    stream.writer().commit(messages, 0)
    assert table.schema.field("n").type == pa.int32()
    unfit = spark_schema(pa.schema([pa.field("id", pa.string()), pa.field("zone", pa.string())]))
    with pytest.raises(InvalidInputError, match=r"shop\.orders: column 'id'"):
        Stream(table.name, table.lake.root, unfit).writer()


def test_operations_and_deletes_are_options() -> None:
    table = new_table()
    root = table.lake.root
    with_op = spark_schema(pa.schema([*table.schema, pa.field("op", pa.string())]))
    stream = Stream(table.name, root, with_op, op_column="op")
    stream.run(0, [{**row, "op": "c"} for row in rows(1, 2, 3)])
    stream.run(1, [{**row, "op": "d"} for row in rows(2)])
    by_id = spark_schema(pa.schema([pa.field("id", pa.int64())]))
    Stream(table.name, root, by_id, type="delete", delete_columns="id").run(2, [{"id": 3}])
    same_rows(table.scan(fresh=True).to_arrow().to_pylist(), rows(1))


def test_what_tasks_staged_is_discarded_in_abort_unless_there_was_a_commit(local_root: str) -> None:
    table = new_table(local_root)
    stream = Stream(table.name, local_root)
    staged = stream.stage(rows(1), rows(2))
    stream.writer().abort([staged[0], None], 0)
    assert len(files(local_root)) == 1
    stream.writer().abort(staged[1:], 0)
    assert len(files(local_root)) == 1, "a commit of all tasks may have been made, whatever its answer was"
    with pytest.raises(InvalidInputError, match="1 of 2 tasks say nothing"):
        stream.writer().commit([staged[1], None], 0)


def test_a_table_that_is_another_one_at_the_commit_gets_nothing(local_root: str) -> None:
    table = new_table(local_root)
    stream = Stream(table.name, local_root)
    staged = stream.stage(rows(1))
    table.drop()
    again = new_table(local_root)
    with pytest.raises(ConflictError, match="was dropped and created again while this was being written"):
        stream.writer().commit(staged, 0)
    assert positions(again) == []
    assert files(local_root) == []


def test_a_batch_that_a_vacuum_overtook_is_refused_and_staged_again(local_root: str) -> None:
    table = new_table(local_root)
    stream = Stream(table.name, local_root)
    staged = stream.stage(rows(1))
    table.write(rows(7))
    table.vacuum(orphan_grace_ms=0)
    with pytest.raises(ConflictError, match=r"a vacuum has gone over files .* write the data again"):
        stream.writer().commit(staged, 0)
    stream.run(0, rows(1))
    assert table.scan(fresh=True).count() == 2
    assert table.fsck(deep=True) == []


def commit_with_fault(stream: Stream, at_call: int | None, kind: FaultKind) -> int:
    """Run batch 1, with a fault at a call of its commit, as Spark does: abort follows, then the replay."""
    root = stream.options["root"]
    staged = stream.stage(BATCH[:1], BATCH[1:])
    calls = 0
    try:
        with faults(root, at_call=at_call, kind=kind) as store:
            try:
                stream.writer().commit(staged, 1)
            finally:
                calls = store.calls
    except Killed:
        pass
    except SiltstoneError:
        stream.writer().abort(staged, 1)
    forget_logs(root)
    stream.run(1, BATCH[:1], BATCH[1:])
    return calls


BATCH = [{"key": "a", "delta": '{"n":1}'}, {"key": "b", "delta": '{"n":2}'}]
UPDATES = spark_schema(pa.schema([pa.field("key", pa.string()), pa.field("delta", pa.string())]))


def make_rows(root: str) -> tuple[Stream, siltstone.Table]:
    table = siltstone.open(root).create_table("shop.t", schema={"key": "string", "delta": "string"})
    return Stream(table.name, root, UPDATES), table


def make_documents(root: str) -> tuple[Stream, siltstone.Table]:
    docs = siltstone.open(root).create_document_table("shop.t")
    return Stream(docs.name, root, UPDATES), docs.table


@pytest.mark.parametrize("kind", FAULT_KINDS)
@pytest.mark.parametrize("make", [make_rows, make_documents])
def test_a_fault_at_any_call_of_a_commit_leaves_the_batch_there_once_after_its_replay(
    make: Callable[[str], tuple[Stream, siltstone.Table]], kind: FaultKind
) -> None:
    at_call, calls = 0, 1
    while at_call <= calls:
        stream, table = make(f"memory://{uuid.uuid4().hex}")
        stream.run(0, [{"key": "z", "delta": '{"n":0}'}])
        calls = max(calls, commit_with_fault(stream, at_call or None, kind))
        assert positions(table) == [1, 2]
        assert sum(entry.record_count for delta in table.deltas() for entry in delta.manifest.entries) == 3
        assert table.fsck(deep=True) == []
        forget_logs(table.lake.root)
        at_call += 1
    assert calls > 4, "the commit must go through the store that counts"


def test_documents_are_updated_once_and_wrong_updates_are_refused() -> None:
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    docs = lake.create_document_table("shop.reviews")
    stream = Stream("shop.reviews", lake.root, UPDATES)
    stream.run(0, [{"key": "a", "delta": '{..,"n":1}'}], [{"key": "b", "delta": '{"m":2}'}])
    for _ in range(2):
        stream.run(1, [{"key": "a", "delta": '{..,"k":2}'}])
    stream.run(2, [], [])
    assert docs.get("a")["n"] == 1
    assert docs.get("a")["k"] == 2
    assert docs.get("a")["~version"] == 2
    assert positions(docs.table) == [1, 2]
    with pytest.raises(InvalidInputError, match="update 1, key 'a'"):
        stream.run(3, [{"key": "a", "delta": "{"}])
    with pytest.raises(InvalidInputError, match="updates have the columns key and delta"):
        Stream("shop.reviews", lake.root, SCHEMA).writer()
    with pytest.raises(InvalidInputError, match="is a table of documents, which has no option op_column"):
        Stream("shop.reviews", lake.root, UPDATES, op_column="op").writer()


def test_change_ids_of_documents_count_once_and_those_of_other_deltas_are_refused() -> None:
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    docs = lake.create_document_table("shop.reviews")
    with_ids = spark_schema(pa.schema([pa.field(name, pa.string()) for name in ("key", "delta", "change_id")]))
    stream = Stream("shop.reviews", lake.root, with_ids)
    change_id = docs.update("a", '{"n":1}')
    stream.run(0, [{"key": "a", "delta": '{"n":1}', "change_id": change_id}])
    assert docs.get("a")["~version"] == 1
    with pytest.raises(AlreadyExistsError, match=r"give .* an id of its own"):
        stream.run(1, [{"key": "a", "delta": '{"n":2}', "change_id": change_id}])
    docs.compact(engine="local")


def test_changes_that_a_compaction_overtook_are_refused_and_made_again() -> None:
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    docs = lake.create_document_table("shop.reviews", full_consistency_delay=0)
    stream = Stream("shop.reviews", lake.root, UPDATES)
    stream.run(0, [{"key": "a", "delta": '{"n":1}'}])
    staged = stream.stage([{"key": "a", "delta": '{..,"k":1}'}])
    docs.compact(engine="local", now=storage_time(lake.root) + 5)
    with pytest.raises(ConflictError, match=r"is complete up to .*; or write it again"):
        stream.writer().commit(staged, 1)
    stream.run(1, [{"key": "a", "delta": '{..,"k":1}'}])
    assert docs.get("a")["k"] == 1


def storage_time(root: str) -> int:
    return open_objects(root).now_ms()


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])  # file:/x and file:///x
def test_a_stream_is_known_by_the_id_in_its_checkpoint(form: str, tmp_path: Path) -> None:
    table = new_table()
    checkpoint = tmp_path / "check #1 %20?"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id":"0b5f"}')
    options = {"root": table.lake.root, "path": table.name, "checkpointlocation": form.format(checkpoint)}
    source = DefaultSource(options)
    assert source.streamWriter(SCHEMA, overwrite=False)._app_id == "0b5f"
    (checkpoint / "metadata").write_text("{}")
    with pytest.raises(InvalidInputError, match=r'\.option\("app_id", "…"\), .*KeyError'):
        source.streamWriter(SCHEMA, overwrite=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"give the query a name of its own.*checkpointLocation"),
        ({"checkpointlocation": "hdfs://name/x"}, "hdfs is read by Spark only"),
        ({"checkpointlocation": "/no/such/folder"}, "FileNotFoundError"),
        ({"app_id": "x", "table": "shop.nope"}, r"there is no table shop\.nope.*create it first"),
        ({"app_id": "x", "table": "../../etc"}, r"table '\.\./\.\./etc': .* use namespace\.table"),
        ({"app_id": "x", "type": "upsrt"}, r"shop\.orders: unknown delta type 'upsrt'"),
        ({"app_id": "x", "op_column": "op"}, "must have the operation column 'op'"),
    ],
)
def test_what_is_wrong_with_a_stream_is_one_sentence(options: dict[str, str], message: str) -> None:
    table = new_table()
    with pytest.raises((InvalidInputError, NotFoundError), match=message):
        DefaultSource({"root": table.lake.root, "table": table.name, **options}).streamWriter(SCHEMA, overwrite=False)


def test_rows_that_come_from_another_table_do_not_go_back_to_it() -> None:
    table = new_table()
    other = table.lake.create_table("shop.other", schema=table.schema)
    root = table.lake.root
    created = DefaultSource({"provider": "siltstone", "option.root": root, "option.table": table.name}).schema()
    assert created.fields[0].metadata["siltstone"]["table"] == table.name
    Stream(other.name, root, created).run(0, rows(1))
    assert (positions(table), positions(other)) == ([], [1])
    with pytest.raises(InvalidInputError, match="table is missing"):
        DefaultSource({"root": root}).writer(created, overwrite=False)
    assert DefaultSource({"root": root, "path": other.name}).reader(created)._options.table == other.name
    assert DefaultSource({"fresh": "true"}).reader(created)._options.table == table.name


def test_complete_mode_is_refused_with_what_to_do_instead() -> None:
    table = new_table()
    source = DefaultSource({"root": table.lake.root, "path": table.name})
    with pytest.raises(InvalidInputError, match=r"shop\.orders: output mode complete .* foreachBatch"):
        source.streamWriter(SCHEMA, overwrite=True)


def test_the_format_is_found_where_nothing_of_ours_can_be_imported() -> None:
    program = """
import sys
for name in ("pyarrow", "obstore", "siltstone"):
    sys.modules[name] = None
from pyspark.sql.datasource import DataSource
from pyspark_siltstone import DefaultSource
assert issubclass(DefaultSource, DataSource) and DefaultSource.name() == "siltstone"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
