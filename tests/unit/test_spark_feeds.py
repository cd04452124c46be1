"""Streams of changes and of deltas: options, limits, snapshots, what was trimmed, and tables that change meanwhile."""

from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.rows.job import Settings
from siltstone.spark.feed_options import STREAM_NAMES, FeedOptions, Limits, Size, feed_options
from siltstone.spark.source import open_reader, open_stream_reader, schema_of
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import same_rows
from tests.unit.feed_query import Query
from tests.unit.rounds.compaction import MINOR, compact, make_table, only_partition, rows
from tests.unit.test_spark_options import PAGE

PLACE = {"root": "memory://feeds", "path": "shop.orders"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"feed": "delta"}, "feed is 'delta'; use changes or deltas"),
        ({"feed": "changes", "maxrows": "1"}, r"unknown option maxrows; use .*did you mean max_rows\?"),
        ({"feed": "changes", "images": "before"}, "images is 'before'; use both or after"),
        ({"feed": "changes", "on_rebase": "snapshot"}, "on_rebase is 'snapshot'; use difference or error"),
        ({"feed": "changes", "net": "no"}, "net is 'no'; use true or false"),
        ({"feed": "changes", "snapshot": "1"}, "snapshot is '1'; use true or false"),
        (
            {"feed": "changes", "snapshot": "true", "start": "5"},
            "start is '5', but snapshot=true begins with the whole",
        ),
        *(
            ({"feed": "deltas", name: value}, f"{name} is {value!r}; use a whole number of at least 1")
            for name, value in (("max_rows", "0"), ("max_bytes", "1 MB"), ("max_positions", "-1"), ("max_rows", "²"))
        ),
        ({"feed": "deltas", "net": "false"}, "net is for feed=changes; deltas are read as they were written"),
        ({"changes_after": "1", "max_rows": "5"}, "unknown option max_rows; use root, table, columns, images"),
    ],
)
def test_wrong_options_of_a_feed_are_refused_with_what_to_write(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        feed_options({**PLACE, **given})


def test_options_say_which_feed() -> None:
    plain = FeedOptions("memory://feeds", "shop.orders")
    assert feed_options({**PLACE, "feed": "changes"}) == plain
    given = feed_options({**PLACE, "feed": "deltas", "max_rows": "5", "max_positions": "2", "start": "latest"})
    assert (given.feed, given.limits, given.after) == ("deltas", Limits(2, 5), "latest")
    with pytest.raises(InvalidInputError, match="feed is for streams"):
        open_reader({**PLACE, "feed": "changes"}, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="a stream is one of changes or of deltas"):
        open_stream_reader(PLACE, None)  # type: ignore[arg-type]
    options = PAGE.with_name("changes.md").read_text(encoding="utf-8").partition("### Options of a stream")[2]
    assert {name for name in STREAM_NAMES if f"| `{name}` |" in options} == {*STREAM_NAMES}


def test_a_spark_that_does_not_say_where_a_batch_starts_reads_no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.spark.source.READS_STREAMS", False)
    with pytest.raises(InvalidInputError, match=r"with Spark 4\.2 or newer, and this is .*changes_after"):
        open_stream_reader({**PLACE, "feed": "changes"}, None)  # type: ignore[arg-type]


def test_a_batch_is_within_all_limits_and_has_at_least_one_position() -> None:
    sizes = [Size(3, 10, 100), Size(4, 10, 100), Size(9, 10, 500)]
    assert Limits().last_within(sizes) is None
    assert Limits(rows=30, bytes=700, positions=3).last_within(sizes) is None
    assert Limits(rows=1).last_within(sizes) == 3
    assert Limits(rows=29).last_within(sizes) == 4
    assert Limits(rows=29, positions=1).last_within(sizes) == 3
    assert Limits(bytes=699).last_within(sizes) == 4
    assert Limits(rows=1).last_within([]) is None


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    """Return a table of four commits, of which three are compacted: rows, a change, a delete, and a row."""
    made = make_table(local_root)
    made.write(rows([1, 2, 3]))
    made.write(pa.table({"id": [1, 9], "v": ["x", "y"], "op": ["u", "d"]}), op_column="op")
    compact(made)
    made.write(pa.table({"v": ["2"]}), "delete", ["v"])
    compact(made)
    made.write(rows([4]))
    return made


def told(rows: Any) -> list[tuple[Any, ...]]:
    return [(row["_position"], row["_row"], row["_op"], row["id"], row["v"], row["_columns"]) for row in rows]


WRITTEN = [
    *((1, number, "upsert", number, str(number), ["id", "v"]) for number in (1, 2, 3)),
    (2, 1, "upsert", 1, "x", ["id", "v"]),
    (2, 2, "delete", 9, "y", ["id", "v"]),
    (3, 1, "delete_where", None, "2", ["v"]),
    (4, 1, "upsert", 4, "4", ["id", "v"]),
]


def test_deltas_are_read_as_they_were_written_compacted_or_not(table: siltstone.Table) -> None:
    query = Query(table, feed="deltas", max_positions="2")
    assert [told(batch) for batch in query.run()] == [WRITTEN[:5], WRITTEN[5:]]
    assert len(query.run()) == 2
    table.rollback(1)
    table.write(rows([5]), mode="overwrite")
    assert told(query.run()[-1]) == [
        (5, 0, "overwrite", None, None, []),
        (5, 1, "upsert", 5, "5", ["id", "v"]),
    ]
    assert told(Query(table, feed="deltas", start="3", columns="id,v").run()[0])[0] == WRITTEN[-1]
    assert Query(table, feed="deltas", start="latest").run() == []
    with pytest.raises(InvalidInputError, match="there is no position 9 yet; the newest one is 5"):
        Query(table, feed="deltas", start="9").run()
    with pytest.raises(InvalidInputError, match="deltas cannot begin at 'yesterday'; give a position or a time"):
        Query(table, feed="deltas", start="yesterday").run()
    only = Query(table, feed="deltas", columns="id").run()[0]
    assert [(row["id"], row["_columns"]) for row in only][5] == (None, ["v"])


def test_a_snapshot_of_deltas_is_what_is_compacted_and_then_what_comes_after(table: siltstone.Table) -> None:
    query = Query(table, feed="deltas", snapshot="true")
    first, second = query.run()
    assert sorted(told(first)) == [
        (3, 0, "insert", 1, "x", ["id", "v"]),
        (3, 0, "insert", 3, "3", ["id", "v"]),
    ]
    assert told(second) == WRITTEN[-1:]
    table.write(rows([6]))
    compact(table)
    assert [row["id"] for row in query.run()[-1]] == [6]


def test_a_large_snapshot_is_read_by_several_tasks(table: siltstone.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.write(rows(range(1000)))
    compact(table, Settings(bucket_rows=20))
    monkeypatch.setattr("siltstone.table.change_feed.Changes.parts.__defaults__", (100,))
    for feed in ("changes", "deltas"):
        query = Query(table, feed=feed, snapshot="true")
        query.run()
        assert query.tasks >= 8
        same_rows([{"id": row["id"], "v": row["v"]} for row in query.rows], table.to_arrow().to_pylist())


def test_what_was_trimmed_is_named_with_what_to_do(table: siltstone.Table) -> None:
    query = Query(table, feed="deltas", max_positions="1")
    query.run(1)
    storage.delete_deltas(only_partition(table), last_stream_position=3, root=table.lake.root)
    message = (
        "deltas from position 2 on are trimmed.* start=3, after which all are there, snapshot=true, or .*feed=changes"
    )
    with pytest.raises(NotFoundError, match=message):
        query.run()
    with pytest.raises(NotFoundError, match="deltas from position 1 on are trimmed"):
        Query(table, feed="deltas").run()
    assert told(Query(table, feed="deltas", start="3").run()[0]) == WRITTEN[-1:]
    assert len(Query(table, feed="deltas", snapshot="true").run()) == 2


def test_a_delta_that_is_trimmed_while_it_is_read_is_told_from_damage(table: siltstone.Table) -> None:
    options = {"root": table.lake.root, "table": table.name, "feed": "deltas"}
    reader = open_stream_reader(options, schema_of(options))
    start = reader.initialOffset()
    (part,) = reader.partitions(start, {**start, "position": 1})
    (delta,) = table.deltas(last_stream_position=1)
    (siltstone.objects.open_objects(table.lake.root)).delete([entry.uri for entry in delta.manifest.entries])
    with pytest.raises(CorruptionError, match="the data file is missing"):
        list(reader.read(part))
    storage.delete_deltas(only_partition(table), last_stream_position=1, root=table.lake.root)
    with pytest.raises(NotFoundError, match="deltas from position 1 on are trimmed"):
        list(reader.read(part))


def test_a_checkpoint_of_another_table_is_refused(table: siltstone.Table) -> None:
    query = Query(table, feed="deltas")
    query.run()
    lake = table.lake
    lake.drop_table(table.name)
    made = make_table(lake.root)
    made.write(rows(range(5)))
    with pytest.raises(InvalidInputError, match="the checkpoint is of a query of other deltas"):
        query.run()


def test_columns_that_change_while_a_query_runs(table: siltstone.Table) -> None:
    for feed in ("changes", "deltas"):
        options = {"root": table.lake.root, "table": table.name, "feed": feed}
        schema = schema_of(options)
        reader = open_stream_reader(options, schema)
        start: Any = reader.initialOffset()
        table.alter(add_columns={f"new_{feed}": "string"})
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        batch = next(iter(reader.read(reader.partitions(start, end)[0])))
        assert batch.schema.names == schema.names
        table.alter(rename_columns={f"new_{feed}": f"old_{feed}"})
        assert reader.partitions(start, end)
        fewer = open_stream_reader(options, type(schema)(schema.fields[1:]))
        assert fewer.partitions(start, end)
        short = open_stream_reader(options, type(schema)(schema.fields[:-1]))
        with pytest.raises(InvalidInputError, match="leave out the schema, and choose with columns"):
            short.partitions(start, end)
    wide = make_table(table.lake.root, "shop.wide", schema={"id": "int64", "n": "int32"})
    options = {"root": table.lake.root, "table": "shop.wide", "feed": "deltas"}
    reader = open_stream_reader(options, schema_of(options))
    start = reader.initialOffset()
    wide.write(pa.table({"id": [1], "n": pa.array([1 << 40])}))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(InvalidInputError, match="column 'n' is bigint now, and was int when the query began"):
        reader.partitions(start, end)


def test_what_has_no_rows_of_deltas_is_refused(local_root: str) -> None:
    lake = siltstone.open(local_root)
    lake.create_document_table("shop.reviews")
    place = {"root": local_root, "feed": "deltas"}
    with pytest.raises(InvalidInputError, match="is a table of documents"):
        schema_of({**place, "table": "shop.reviews"})
    source = make_table(local_root, "shop.source")
    source.write(rows([1]))
    source.compact(engine="local")
    follower = make_table(local_root, "shop.follower")
    follower.compact(rebase_from=source, on_behalf_of=source, engine="local")
    with pytest.raises(InvalidInputError, match=r"was rebased, and follows the deltas of shop\.source; read those"):
        Query(follower, feed="deltas").run()
    history = make_table(local_root, "shop.history", sort_keys=["v"], merge_engine="history")
    assert "_valid_from" not in schema_of({**place, "table": history.name}).names
    with pytest.raises(InvalidInputError, match="keeps history, whose rows are not those that were written"):
        schema_of({**place, "table": history.name, "snapshot": "true"})
    named = make_table(local_root, "shop.named", schema={"id": "int64", "_row": "int64"})
    with pytest.raises(InvalidInputError, match="its column _row has the name of a column of deltas"):
        schema_of({**place, "table": named.name})


def test_a_stream_of_changes_ends_each_batch_within_its_limits(table: siltstone.Table) -> None:
    compact(table, MINOR)
    for limit, sizes in (
        ({"max_positions": "1"}, [3, 1, 1]),
        ({"max_rows": "6"}, [3]),
        ({"max_rows": "5"}, [2, 1]),
        ({"max_rows": "4"}, [3, 2]),
        ({"max_bytes": "1"}, [3, 1, 1]),
        ({"snapshot": "true", "max_rows": "1"}, [3]),
        ({}, [3]),
    ):
        assert [len(batch) for batch in Query(table, feed="changes", **limit).run()] == sizes, limit
