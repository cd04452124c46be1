"""Debezium's messages: operations, order, key changes, what is no row, and both forms."""

from typing import Any

import pyarrow as pa
import pytest

from siltstone.cdc import OP_COLUMN, SOURCE_POSITION, Decoded, Events, Target, decode
from siltstone.cdc.position import of_source, pack
from siltstone.errors import InvalidInputError
from tests.unit.cdc.messages import UNAVAILABLE, change, lines, source, told, with_schema

TARGET = Target(
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("big", pa.string()), (SOURCE_POSITION, pa.binary())]), ["id"]
)


def row(key: int, name: str = "a", big: str | None = "B") -> dict[str, Any]:
    return {"id": key, "name": name, "big": big}


def decoded_lines(messages: list[Any], **more: Any) -> Decoded:
    return decode(Events.of_lines(lines(messages)), "debezium", TARGET, **more)


def rows_of(decoded: Decoded) -> list[dict[str, Any]]:
    assert not decoded.rejects, decoded.rejects
    found = [each for changes in decoded.changes for each in changes.rows.to_pylist()]
    return [{name: value for name, value in each.items() if name != SOURCE_POSITION} for each in found]


def test_each_operation_of_a_row_is_kept_and_a_delete_has_its_key_only() -> None:
    before = {"id": 4, "name": "", "big": "invented"}
    found = rows_of(
        decoded_lines([change("r", 1, row(1)), change("c", 2, row(2)), change("u", 3, row(3)), change("d", 4, before)])
    )
    assert found == [
        {**row(1), OP_COLUMN: "r"},
        {**row(2), OP_COLUMN: "c"},
        {**row(3), OP_COLUMN: "u"},
        {"id": 4, "name": None, "big": None, OP_COLUMN: "d"},
    ]


def test_what_is_no_change_of_a_row_is_skipped_and_counted() -> None:
    message = {
        "op": "m",
        "source": source(5, table="", schema=""),
        "ts_ms": 1,
        "message": {"prefix": "end", "content": ""},
    }
    marker = {"status": "BEGIN", "id": "7", "event_count": None, "data_collections": None, "ts_ms": 1}
    ddl: dict[str, Any] = {
        "source": source(1),
        "databaseName": "shop",
        "schemaName": None,
        "ddl": "ALTER TABLE …",
        "tableChanges": [],
    }
    signal = change("c", 6, {"id": 1, "type": "x", "data": None}, table="debezium_signal")
    decoded = decoded_lines([None, {"ts_ms": 1}, marker, ddl, message, signal, change("c", 7, row(1))])
    assert rows_of(decoded) == [{**row(1), OP_COLUMN: "c"}]
    assert decoded.skipped == {
        "tombstone": 1,
        "heartbeat": 1,
        "transaction marker": 1,
        "change of definitions": 1,
        "message": 1,
        "signal": 1,
    }


def test_columns_may_be_called_like_parts_of_an_envelope() -> None:
    names = ["id", "op", "before", "after", "source", "payload", "schema", "key", "value"]
    target = Target(pa.schema([(name, pa.string()) for name in names] + [(SOURCE_POSITION, pa.binary())]), ["id"])
    image = {name: f"{name}!" for name in names}
    for count in (1, 100):
        messages = [change("u", number + 1, {**image, "id": str(number)}) for number in range(count)]
        decoded = decode(Events.of_lines(lines(messages)), "debezium", target)
        assert not decoded.rejects
        assert decoded.changes[0].rows.select(names[1:]).to_pylist() == [{n: image[n] for n in names[1:]}] * count


def test_lines_may_have_a_key_and_it_is_what_a_delete_without_its_row_goes_by() -> None:
    gone = change("d", 3)
    keyed = [
        {"key": {"id": 1}, "value": change("c", 1, row(1))},
        {"key": {"id": 2}, "value": gone},
        {"key": {"id": 2}, "value": None},
    ]
    decoded = decoded_lines(keyed)
    assert rows_of(decoded) == [{**row(1), OP_COLUMN: "c"}, {"id": 2, "name": None, "big": None, OP_COLUMN: "d"}]
    assert decoded.skipped == {"tombstone": 1}
    assert "without the key" in decoded_lines([gone]).rejects[0].reason


def test_a_batch_of_values_and_keys_is_as_good_as_lines() -> None:
    messages = [change("c", 1, row(1)), change("d", 2, row(1))]
    batch = pa.record_batch(
        {"key": [b'{"id":1}', b'{"id":1}', b'{"id":1}'], "value": [*lines(messages).splitlines(), None]}
    )
    decoded = decode(Events.of_batch(batch), "debezium", TARGET)
    assert decoded.changes[0].rows.equals(decoded_lines(messages).changes[0].rows)
    with pytest.raises(InvalidInputError, match="column 'value'"):
        Events.of_batch(pa.record_batch({"x": [1]}))


def test_events_of_several_tables_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"public\.orders in line 1, public\.items in line 2"):
        decoded_lines([change("c", 1, row(1)), change("c", 2, row(1), table="items")])


def test_a_bad_event_is_rejected_with_its_line_and_the_others_are_decoded() -> None:
    good = [change("c", number, row(number)) for number in range(1, 200)]
    bad: list[Any] = [7, change("x", 5, row(5)), change("c", 6), change("c", 7, {**row(7), "new": "?"}), {"id": "no"}]
    data = lines([*good[:100], *bad, *good[100:]]) + b'{"op": \n'
    decoded = decode(Events.of_lines(data), "debezium", TARGET)
    assert [reject.line for reject in decoded.rejects] == [101, 102, 103, 104, 105, 205]
    assert [each.rows.num_rows for each in decoded.changes] == [199]
    reasons = [reject.reason for reject in decoded.rejects]
    assert "JSON object" in reasons[0]
    assert "'x' is unknown" in reasons[1]
    assert "needs 'after'" in reasons[2]
    assert "'new' is new" in reasons[3]
    assert "does not fit" in reasons[4]
    assert "not valid JSON" in reasons[5]


def test_a_new_field_with_a_schema_is_a_new_column() -> None:
    fields = [told("id", "int64"), told("name", "string"), told("big", "string"), told("more", "int32")]
    old = [with_schema(change("c", 1, row(1)), fields[:3])]
    new = [with_schema(change("c", 2, {**row(2), "more": 5}), fields)]
    decoded = decoded_lines(old + new)
    assert [(each.name, each.type) for each in decoded.new_fields] == [("more", pa.int32())]
    assert [each.get("more") for each in rows_of(decoded)] == [None, 5]


def test_messages_with_and_without_schemas_may_be_mixed_and_none_loses_digits() -> None:
    fields = [
        told("id", "int64"),
        told(
            "n",
            "bytes",
            "org.apache.kafka.connect.data.Decimal",
            parameters={"scale": "10", "connect.decimal.precision": "38"},
        ),
    ]
    target = Target(
        pa.schema([("id", pa.int64()), ("n", pa.decimal128(38, 10)), (SOURCE_POSITION, pa.binary())]), ["id"]
    )
    number = b"12345678901234567890.0123456789"
    text = lines([with_schema(change("c", 1, {"id": 1, "n": 0.5}), fields)]).replace(b"0.5", number)
    for data in (b'{"ts_ms":1}\n' + text, b"\nnull\n" + text, text * 50, text.replace(b'":', b'": ')):
        decoded = decode(Events.of_lines(data), "debezium", target)
        assert not decoded.rejects
        assert {str(each) for each in decoded.changes[0].rows.column("n").to_pylist()} == {number.decode()}
    swapped = {"payload": change("c", 1, row(1)), "schema": with_schema({}, fields)["schema"]}
    assert "first schema, then payload" in decoded_lines([swapped]).rejects[0].reason


def test_flat_rows_take_their_order_and_operation_from_added_fields() -> None:
    meta = {"__op": "u", "__deleted": "false", "__source_ts_us": 9, "__lsn": 4, "__table": "orders"}
    decoded = decoded_lines([{**row(1), **meta}, {**row(2), **meta, "__deleted": "true", "__op": "d"}])
    assert rows_of(decoded) == [{**row(1), OP_COLUMN: "u"}, {"id": 2, "name": None, "big": None, OP_COLUMN: "d"}]
    positions = decoded.changes[0].rows.column(SOURCE_POSITION).to_pylist()
    assert positions == [pack("postgresql", [9, 0, 4, 1]), pack("postgresql", [9, 0, 4, 0])]


def test_a_null_value_among_flat_rows_is_a_delete_by_its_key() -> None:
    decoded = decoded_lines([{"key": {"id": 1}, "value": row(1)}, {"key": {"id": 1}, "value": None}])
    assert [each[OP_COLUMN] for each in rows_of(decoded)] == ["u", "d"]
    assert decoded.changes[0].rows.column(SOURCE_POSITION).null_count == 2


@pytest.mark.parametrize("count", [1, 50])
def test_an_update_that_changes_the_key_deletes_the_old_row(count: int) -> None:
    others = [change("u", number, row(number)) for number in range(100, 100 + count)]
    decoded = decoded_lines([change("u", 1, row(2), before=row(1)), *others])
    assert [(each["id"], each[OP_COLUMN]) for each in rows_of(decoded)][:2] == [(1, "d"), (2, "u")]


def test_what_a_row_leaves_out_is_taken_from_rows_before_it_so_that_order_does_not_matter() -> None:
    events = [
        change("u", 1, row(1, "a", UNAVAILABLE)),
        change("u", 2, row(1, "b", "new")),
        change("u", 3, row(1, "c", UNAVAILABLE)),
    ]
    decoded = decoded_lines([events[2], events[0], events[1], events[2]])
    partial, full = (each.rows.to_pylist() for each in decoded.changes)
    assert [each["name"] for each in partial] == ["a"]
    assert "big" not in partial[0]
    assert [(each["name"], each["big"]) for each in full] == [("b", "new"), ("c", "new")]


def test_a_value_moves_with_a_changed_key_also_along_a_chain() -> None:
    chain = [
        change("c", 1, row(10, "a", "BIG")),
        change("d", 5, row(10, "", None)),
        change("c", 5, row(99, "a", UNAVAILABLE)),
        change("d", 6, row(99, "", None)),
        change("c", 6, row(11, "a", UNAVAILABLE)),
    ]
    for messages in (chain, [*chain[::-1], *chain[:2]]):
        decoded = decoded_lines(messages)
        (changes,) = decoded.changes
        assert [each["big"] for each in changes.rows.to_pylist() if each[OP_COLUMN] == "c"] == ["BIG"] * 3
        assert not decoded.carries


def test_a_moved_value_is_looked_up_in_the_table_and_refused_where_it_is_nowhere() -> None:
    moved = [
        change("d", 5, row(10, "", None)),
        change("c", 5, row(99, "a", UNAVAILABLE)),
        change("u", 6, row(99, "b", UNAVAILABLE)),
    ]
    (carry,) = decoded_lines(moved).carries
    assert (carry.key, carry.old_key, carry.columns) == ({"id": 99}, {"id": 10}, ["big"])

    def table(key: int, lsn: int, op: str | None = None) -> Any:
        position = of_source(source(lsn), "c")
        return lambda keys, columns: pa.table(
            {"id": [key], "big": ["BIG"], SOURCE_POSITION: [position], OP_COLUMN: pa.array([op], pa.string())}
        )

    assert [
        each["big"] for each in rows_of(decoded_lines(moved, find_rows=table(10, 3))) if each[OP_COLUMN] != "d"
    ] == ["BIG"] * 2
    # It came before: the row of the new key is there, or was deleted since.
    for found in (table(99, 6), table(99, 7, "d")):
        assert not decoded_lines(moved, find_rows=found).rejects
    # A row that took the old key later is not the one that moved.
    for found in (table(10, 8), table(10, 3, "d"), table(1, 1)):
        decoded = decoded_lines(moved[:2], find_rows=found)
        assert [reject.line for reject in decoded.rejects] == [2]
        assert "REPLICA IDENTITY FULL" in decoded.rejects[0].reason


def test_a_null_that_may_be_a_large_value_is_warned_of() -> None:
    target = Target(pa.schema([("id", pa.int64()), ("n", pa.decimal128(9, 2)), (SOURCE_POSITION, pa.binary())]), ["id"])
    for count in (1, 50):
        updates = [change("u", number + 1, {"id": number, "n": None}) for number in range(count)]
        (warning,) = decode(Events.of_lines(lines(updates)), "debezium", target).warnings
        assert "'n'" in warning
        full = [
            change("u", number + 1, {"id": number, "n": None}, before={"id": number, "n": None})
            for number in range(count)
        ]
        assert not decode(Events.of_lines(lines(full)), "debezium", target).warnings


def test_a_truncate_is_told_apart_from_rows() -> None:
    decoded = decoded_lines([change("c", 1, row(1)), change("t", 2), change("c", 3, row(2))])
    assert [each.position for each in decoded.truncates] == [of_source(source(2), "t")]
    assert len(rows_of(decoded)) == 2


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (source(9, ts_us=1), source(2, ts_us=2)),
        (source(9, ts_us=1, sequence='[null,"9"]'), source(8, ts_us=1, sequence='["1","8"]')),
        (source(9, ts_us=1, sequence='["1","9"]'), source(8, ts_us=1, sequence='["2","8"]')),
        (source(0, ts_us=1, sequence='["99","99"]'), source(0, ts_us=1, sequence='["100","1"]')),
        (
            {"connector": "mysql", "ts_us": 1, "file": "bin.000009", "pos": 99, "row": 9},
            {"connector": "mysql", "ts_us": 1, "file": "bin.000010", "pos": 4, "row": 0},
        ),
        (
            {"connector": "mariadb", "ts_ms": 1, "file": "bin.000009", "pos": 99, "row": 9},
            {"connector": "mariadb", "ts_ms": 1, "file": "bin.000009", "pos": 100, "row": 0},
        ),
        (
            {
                "connector": "sqlserver",
                "ts_ms": 1,
                "commit_lsn": "00000027:00000758:0005",
                "change_lsn": "00000027:00000758:0003",
                "event_serial_no": 2,
            },
            {
                "connector": "sqlserver",
                "ts_ms": 1,
                "commit_lsn": "00000027:00000759:0001",
                "change_lsn": "00000027:00000758:0001",
                "event_serial_no": 1,
            },
        ),
        (
            {"connector": "oracle", "ts_ms": 1, "commit_scn": "999", "scn": "998"},
            {"connector": "oracle", "ts_ms": 1, "commit_scn": "1000", "scn": "997"},
        ),
        ({"connector": "mongodb", "ts_ms": 1, "ord": 9}, {"connector": "mongodb", "ts_ms": 1, "ord": 10}),
        ({"connector": "vitess", "ts_ms": 1}, {"connector": "vitess", "ts_ms": 2}),
    ],
)
def test_source_positions_sort_as_changes_followed_each_other(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    first, second = of_source(earlier, "u"), of_source(later, "u")
    assert first is not None
    assert second is not None
    assert len(first) == len(second) == 33
    assert first < second
    # The fast way, which takes more than a few events, gives the same.
    messages = [{**change("u", 1, row(1)), "source": {**each, "table": "orders"}} for each in [earlier, later] * 30]
    decoded = decoded_lines(messages)
    assert decoded.changes[0].rows.column(SOURCE_POSITION).to_pylist() == [first, second] * 30
