"""Changes of a table: bounds, images, one cut of partitions, what was vacuumed, consumers, and events that are read back."""

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.cdc import SOURCE_POSITION
from siltstone.cdc.debezium_events import encode_changes
from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.model.buckets import Bucket, BucketLine, Buckets, StoredPage
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.difference import unlike_pairs
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, compact, make_table, rows

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def table(root: str) -> siltstone.Table:
    """Return a table of three rounds: three rows, then one of each kind of change, then a rewrite that changes nothing."""
    made = make_table(root)
    made.write(rows([1, 2, 3]))
    compact(made)
    made.write(rows([1, 4], "x"))
    made.write(pa.table({"id": [2]}), "delete")
    compact(made)
    compact(made, MAJOR)
    return made


def told(changes: Any) -> list[tuple[Any, ...]]:
    return sorted((row["_change_type"], row["id"], row["v"], row["_round"]) for row in changes.to_arrow().to_pylist())


SECOND = [
    ("delete", 2, "2", 2),
    ("insert", 4, "x4", 2),
    ("update_after", 1, "x1", 2),
    ("update_before", 1, "1", 2),
]


def test_bounds_are_positions_rounds_or_times_and_the_result_says_which_rounds(table: siltstone.Table) -> None:
    first_time, second_time, last_time = (
        datetime.datetime.fromtimestamp(each.completed_at / 1000, datetime.UTC) for each in table.rounds()
    )
    for after in (1, 2, "1", "round:1", {"_": 1}, first_time if first_time < second_time else 1):
        changes = table.changes(after, "round:2")
        assert told(changes) == SECOND
        assert (changes.after, changes.upto, changes.positions) == ({"_": 1}, {"_": 2}, (1, 3))
    assert {row["_position"] for row in changes.to_arrow().to_pylist()} == {3}
    assert told(table.changes("round:2")) == []
    assert told(table.changes(3)) == []
    assert table.changes(3).upto == {"_": 3}
    assert len(told(table.changes())) == 3
    assert len(told(table.changes(0, net=False))) == 3 + 4
    assert told(table.changes(last_time)) == []
    assert told(table.changes("round:1", images="after")) == [
        (*row[:3], 3) for row in SECOND if row[0] != "update_before"
    ]
    assert table.changes("round:1", columns=["v"]).to_arrow().column_names[0] == "v"


def test_what_cannot_be_a_bound_is_refused(table: siltstone.Table) -> None:
    for wrong in ("5 days", "{", '{"_": -1}', -1, {"nowhere": 3}):
        with pytest.raises(InvalidInputError):
            table.changes(wrong)
    with pytest.raises(NotFoundError, match="there is no tag 'yesterday'"):
        table.changes("yesterday")
    with pytest.raises(NotFoundError, match="there is no round 9 yet; the newest one is 3"):
        table.changes("round:9")
    with pytest.raises(InvalidInputError, match="round 1 is before round 2"):
        table.changes("round:2", "round:1")
    with pytest.raises(InvalidInputError, match="unknown images"):
        table.changes(images="none")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="is not a column"):
        table.changes(columns=["vv", "id"])


def test_a_rollback_is_the_inverse_and_a_rebase_a_difference_or_an_error(table: siltstone.Table) -> None:
    table.rollback(1)
    inverse = {"insert": "delete", "delete": "insert", "update_before": "update_after", "update_after": "update_before"}
    expected = sorted((inverse[kind], key, value, 4) for kind, key, value, _ in SECOND)
    assert told(table.changes("round:3")) == expected
    assert told(table.changes("round:1", "round:4")) == []
    table.compact(rebase_from=table, engine="local")
    assert told(table.changes("round:3")) == []
    with pytest.raises(InvalidInputError, match="was rebased between rounds 3 and 5"):
        table.changes("round:3", on_rebase="error").to_arrow()


def test_changes_have_the_columns_of_today(table: siltstone.Table) -> None:
    table.alter(rename_columns={"v": "value"}, add_columns={"note": "string"})
    changes = table.changes(1, "round:2").to_arrow()
    assert changes.column_names[:3] == ["id", "value", "note"]
    assert sorted(map(str, changes["value"].to_pylist())) == ["1", "2", "x1", "x4"]
    table.alter(drop_columns=["value"])
    # Rows that differed in what is gone only do not differ any more.
    assert sorted(table.changes(1).to_arrow()["_change_type"].to_pylist()) == ["delete", "insert"]
    table.alter(rename_columns={"note": "_round"})
    with pytest.raises(InvalidInputError, match="its column _round has the name"):
        table.changes(1)
    assert table.changes(1, columns=["id"]).to_arrow().num_rows == 2


def test_versions_of_a_key_are_changes_of_their_own(root: str) -> None:
    table = make_table(
        root, schema={"id": "int64", "at": "int64", "v": "string"}, sort_keys=["at"], merge_engine="history"
    )

    def write(at: int) -> None:
        table.write(pa.table({"id": [1, 2], "at": [at, at], "v": [str(at)] * 2}))
        compact(table, MAJOR)

    for at in (1, 3, 5, 4):
        write(at)
    found = [
        (row["_change_type"], row["id"], row["at"], row["_valid_to"])
        for row in table.changes("round:1").to_arrow().to_pylist()
    ]
    assert sorted(found, key=str) == sorted(
        (
            change
            for key in (1, 2)
            for change in (
                ("update_before", key, 1, None),
                ("update_after", key, 1, 3),
                ("insert", key, 3, 4),
                ("insert", key, 4, 5),
                ("insert", key, 5, None),
            )
        ),
        key=str,
    )


def test_a_round_that_was_vacuumed_is_named_with_the_oldest_there_is(table: siltstone.Table) -> None:
    opened = table.changes("round:1")
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    for after in ("round:1", 1, 2):
        with pytest.raises(NotFoundError, match="was vacuumed; the oldest round there is is 3, of position 3"):
            table.changes(after)
    with pytest.raises(NotFoundError, match="round 1 was vacuumed meanwhile"):
        opened.to_arrow()
    assert told(table.changes("round:3")) == []
    assert len(told(table.changes(0))) == 3


def test_partitions_are_at_one_position(root: str) -> None:
    table = siltstone.open(root).create_table(
        "shop.orders",
        schema={"day": "string", "id": "int64"},
        primary_keys=["day", "id"],
        partition_keys=["day"],
    )

    def write(number: int) -> None:
        table.write(pa.table({"day": ["a", "b"], "id": [number, number]}))

    def run(day: str) -> None:
        (source,) = [each for each in table._sources() if each.partition_values == [day]]
        run_session(Request(source, compacted_partition(source), ("day", "id"), root, settings=MINOR), run_here)

    def ids(changes: Any) -> list[tuple[str, int]]:
        return sorted((row["day"], row["id"]) for row in changes.to_arrow().to_pylist())

    write(1)
    run("a")
    first = table.changes()
    assert (ids(first), first.upto) == ([], {"a": 0, "b": 0})
    run("b")
    first = table.changes()
    assert ids(first) == [("a", 1), ("b", 1)]
    write(2)
    run("b")
    second = table.changes(first.upto)
    assert (ids(second), second.upto) == ([], {"a": 1, "b": 1})
    run("a")
    second = table.changes(first.upto)
    assert ids(second) == [("a", 2), ("b", 2)]
    # What was seen stays, and who is behind is waited for.
    table.rollback(1, partition_values=["a"])
    write(3)
    run("b")
    third = table.changes(second.upto)
    assert (ids(third), third.upto) == ([("a", 2)], {"a": 3, "b": 2})
    assert [row["_change_type"] for row in third.to_arrow().to_pylist()] == ["delete"]
    run("a")
    assert ids(table.changes(third.upto)) == [("a", 2), ("a", 3), ("b", 3)]
    with pytest.raises(InvalidInputError, match="has 2 partitions, each of which counts its own rounds"):
        table.changes("round:1")


def test_pages_that_both_states_name_are_not_read() -> None:
    def unread(page: Any) -> bytes:
        raise AssertionError(page.uri)

    stored: list[bytes] = []

    def write(lines: bytes) -> StoredPage:
        stored.append(lines)
        return StoredPage(f"page{len(stored)}", len(lines), 0)

    older = Buckets.even(3).stored(2, write)
    assert list(unlike_pairs(older.read_by(unread), older.read_by(unread))) == []
    file = {"uri": "x", "record_count": 1, "content_length": 1}
    halves = [Bucket.from_serializable({"depth": 4, "bits": bits, "files": [file]}) for bits in (0, 1)]
    newer = older.read_by(lambda page: stored[int(page.uri[4:]) - 1]).replaced({0: [*map(BucketLine.of, halves)]})
    (one, other) = unlike_pairs(older.read_by(lambda page: stored[int(page.uri[4:]) - 1]), newer)
    assert [bucket.name for bucket in (*one.newer, *other.newer)] == ["0000", "0001"]


def test_a_consumer_holds_the_rounds_that_it_needs(table: siltstone.Table) -> None:
    first = table.changes(1, "round:2", consumer="bill")
    assert told(first) == SECOND
    first.acknowledge()
    table.write(rows([5]))
    compact(table)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert [round_.round_id for round_ in table.rounds()] == [2, 3, 4]
    again = table.changes(consumer="bill", net=False)
    assert told(again) == [("insert", 5, "5", 4)]
    again.acknowledge()
    assert table.changes(consumer="bill").after == {"_": 4}
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert [round_.round_id for round_ in table.rounds()] == [4]
    with pytest.raises(ConflictError, match="let one process at a time use the name"):
        first.acknowledge()
    (consumer,) = table.consumers()
    assert (consumer.name, consumer.round_id, consumer.rounds_behind) == ("bill", 4, 0)
    assert consumer.held_until_at - consumer.acknowledged_at == 14 * DAY_MS
    table.remove_consumer("bill")
    assert table.consumers() == []
    with pytest.raises(NotFoundError, match="there is no consumer 'bill'"):
        table.remove_consumer("bill")
    with pytest.raises(InvalidInputError, match="no consumer that could acknowledge"):
        table.changes().acknowledge()


def test_a_consumer_that_lags_behind_holds_nothing(table: siltstone.Table) -> None:
    table.alter(properties={"feed.max_lag_seconds": "0"})
    table.changes(1, "round:2", consumer="bill").acknowledge()
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert [round_.round_id for round_ in table.rounds()] == [3]
    with pytest.raises(NotFoundError, match="round 2 was vacuumed; the oldest round there is is 3"):
        table.changes(consumer="bill")


EVERY = {
    "id": "int64", "b": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "f4": "float", "f8": "double", "s": "string",
    "y": "binary", "d": "date", "t": "time", "ts": "timestamp", "tz": "timestamp_utc", "du": "duration", "de": "decimal(38,4)",
}  # fmt: skip
NESTED = [
    *({"name": name, "type": kind} for name, kind in EVERY.items()),
    {"name": "l", "type": {"list": "decimal(6,2)"}},
    {"name": "st", "type": {"struct": [{"name": "a", "type": "timestamp"}, {"name": "b", "type": {"list": "binary"}}]}},
    {"name": "m", "type": {"map": ["string", "double"]}},
]


@pytest.mark.filterwarnings("ignore:.*does not go by the order of the source")
def test_events_are_read_back_to_the_same_table(root: str) -> None:
    lake = siltstone.open(root)
    table = lake.create_table("shop.types", schema=NESTED, primary_keys=["id"])
    full = {
        "id": 1, "b": True, "i1": -128, "i2": 300, "i4": 1 << 30, "f4": 0.5, "f8": math.nan, "s": "é\n", "y": b"\x00\xff",
        "d": datetime.date(1905, 2, 28), "t": datetime.time(23, 59, 59, 999999), "ts": datetime.datetime(1969, 12, 31, 1, 2, 3, 4),
        "tz": datetime.datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=datetime.UTC), "du": datetime.timedelta(days=-2, microseconds=7),
        "de": Decimal("-1234567890123456789012345678901234.5678"), "l": [Decimal("1.50"), None],
        "st": {"a": datetime.datetime(2026, 1, 1), "b": [b"", None]}, "m": [("k", -0.0), ("l", None)],
    }  # fmt: skip
    empty = {**dict.fromkeys(table.schema.names), "id": 2}
    table.write(pa.Table.from_pylist([full, empty, {**empty, "id": 3}], table.schema))
    table.compact(engine="local")
    table.write(pa.Table.from_pylist([{**full, "id": 2, "f8": -math.inf}, {**empty, "id": 1}], table.schema))
    table.write(pa.table({"id": [3]}), "delete")
    table.compact(engine="local")
    for net in (True, False):
        events = b"".join(encode_changes(table.changes(net=net), table.schema, ["id"], ("shop", "types")))
        copy = lake.create_table(f"shop.copy_{net}", schema=table.schema, primary_keys=["id"])
        copy.write_changes(events, "debezium")
        same_rows(copy.to_arrow(include_uncompacted=True), table.to_arrow().to_pylist())
    # A table of change events goes by their order, so that they may come twice and shuffled.
    schema = table.schema.append(pa.field(SOURCE_POSITION, pa.binary()))
    made = lake.create_table("shop.made", schema=schema, primary_keys=["id"], sort_keys=[SOURCE_POSITION])
    lines = events.splitlines(keepends=True)
    made.write_changes(b"".join([*reversed(lines), *lines]), "debezium")
    same_rows(made.to_arrow(table.schema.names, include_uncompacted=True), table.to_arrow().to_pylist())


def test_a_type_that_events_cannot_carry_is_named(root: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("m", pa.map_(pa.int64(), pa.string()))])
    with pytest.raises(InvalidInputError, match="column 'm' has the type"):
        list(encode_changes([], schema, ["id"], ("shop", "orders")))
