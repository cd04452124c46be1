"""DMS, Maxwell, Canal, TiCDC and GoldenGate, by events as they write them."""

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from siltstone.cdc import OP_COLUMN, SOURCE_POSITION, ChangeFormat, Decoded, Events, Options, Target, decode
from siltstone.cdc.dms import read_csv
from siltstone.cdc.source_tables import by_table, layout_of
from siltstone.errors import InvalidInputError
from tests.unit.cdc.messages import change, lines, told, with_schema

D = decimal.Decimal
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us")),
        ("raw", pa.binary()),
        (SOURCE_POSITION, pa.binary()),
    ]
)
TARGET = Target(SCHEMA, ["id"])
AT = datetime.datetime(2024, 1, 2, 3, 4, 5)
ROW = {"id": 1, "name": "a", "price": D("2.50"), "at": AT, "raw": b"\xff\x00"}
DELETED = {"id": 1, "name": None, "price": None, "at": None, "raw": None}


def decoded(format: ChangeFormat, events: Any, **options: Any) -> Decoded:
    return decode(
        events if isinstance(events, pa.Table) else Events.of_lines(lines(events)), format, TARGET, Options(**options)
    )


def rows_of(result: Decoded) -> list[dict[str, Any]]:
    assert not result.rejects, result.rejects
    found = [each for changes in result.changes for each in changes.rows.to_pylist()]
    return [{name: value for name, value in each.items() if name != SOURCE_POSITION} for each in found]


def positions_of(result: Decoded) -> list[bytes]:
    return [each for changes in result.changes for each in changes.rows.column(SOURCE_POSITION).to_pylist()]


def maxwell(kind: str, xid: int = 7, **more: Any) -> dict[str, Any]:
    data = {"id": 1, "name": "a", "price": 2.50, "at": "2024-01-02 03:04:05", "raw": "/wA="}
    return {"database": "shop", "table": "orders", "type": kind, "ts": 1_700_000_000, "xid": xid, "data": data, **more}


def canal(kind: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    row = {"id": "1", "name": "a", "price": "2.50", "at": "2024-01-02 03:04:05", "raw": "ÿ\x00"}
    types = {"id": "bigint", "name": "varchar(9)", "price": "decimal(10,2)", "at": "datetime", "raw": "blob"}
    about = {"database": "shop", "table": "orders", "type": kind, "es": 1_700_000_000_000, "id": 5, "isDdl": False}
    return {**about, "data": list(rows or [row]), "mysqlType": types, "pkNames": ["id"], **more}


def goldengate(kind: str, pos: int = 1, **more: Any) -> dict[str, Any]:
    row = {"id": 1, "name": "a", "price": "2.50", "at": "2024-01-02 03:04:05.000000", "raw": "/wA="}
    image = {"before": row} if kind == "D" else {"after": row}
    return {
        "table": "SHOP.ORDERS",
        "op_type": kind,
        "op_ts": "2024-01-02 03:04:05.000000",
        "pos": f"{pos:020d}",
        **image,
        **more,
    }


def test_maxwell_inserts_updates_deletes_and_bootstraps() -> None:
    kinds = ["bootstrap-insert", "insert", "update", "delete"]
    found = rows_of(decoded("maxwell", [maxwell(kind) for kind in kinds]))
    assert found == [
        {**ROW, OP_COLUMN: "r"},
        {**ROW, OP_COLUMN: "c"},
        {**ROW, OP_COLUMN: "u"},
        {**DELETED, OP_COLUMN: "d"},
    ]
    skipped = decoded("maxwell", [maxwell("table-alter"), maxwell("bootstrap-start")]).skipped
    assert skipped == {"change of definitions": 1, "bootstrap-start": 1}


def test_a_key_that_changes_in_one_event_is_a_delete_and_a_row() -> None:
    found = rows_of(decoded("maxwell", [maxwell("update", old={"id": 9})]))
    assert [(each["id"], each[OP_COLUMN]) for each in found] == [(9, "d"), (1, "u")]
    found = rows_of(decoded("canal", [canal("UPDATE", old=[{"id": "9"}])]))
    assert [(each["id"], each[OP_COLUMN]) for each in found] == [(9, "d"), (1, "u")]
    found = rows_of(decoded("goldengate", [goldengate("U", before={"id": 9})]))
    assert [(each["id"], each[OP_COLUMN]) for each in found] == [(9, "d"), (1, "u")]


def test_maxwell_sorts_by_transaction_and_row_or_by_its_place_in_the_log() -> None:
    events = [
        maxwell("update", 7, xoffset=0),
        maxwell("update", 7, xoffset=1),
        maxwell("update", 7, commit=True),
        maxwell("update", 8),
    ]
    found = positions_of(decoded("maxwell", events))
    assert found == sorted(found)
    assert len(set(found)) == 4
    placed = [maxwell("update", 9, position="master.000009:99"), maxwell("update", 1, position="master.000010:4")]
    first, second = positions_of(decoded("maxwell", placed))
    assert first < second


def test_canal_has_text_for_everything_and_several_rows() -> None:
    two = canal("INSERT", {"id": "1", "name": "a"}, {"id": "2", "name": None})
    found = rows_of(decoded("canal", [canal("INSERT"), canal("DELETE"), two]))
    assert found[0] == {**ROW, OP_COLUMN: "c"}
    assert found[1] == {**DELETED, OP_COLUMN: "d"}
    assert [each["id"] for each in found[2:]] == [1, 2]
    result = decoded("canal", [canal("ALTER", isDdl=True, data=None), canal("TRUNCATE", isDdl=True, data=None)])
    assert result.skipped == {"change of definitions": 1}
    assert len(result.truncates) == 1


def test_canals_types_make_new_columns_and_ticdc_keeps_the_tables() -> None:
    event = canal(
        "INSERT",
        {"id": "1", "price": "2.50", "big": "7.125", "odd": None},
        mysqlType={"price": "decimal", "big": "decimal(9,3)"},
    )
    result = decoded(
        "canal",
        [
            {**event, "_tidb": {"commitTs": 99}},
            {"type": "TIDB_WATERMARK", "_tidb": {"watermarkTs": 1}, "isDdl": False, "data": None},
        ],
    )
    assert [(field.name, field.type) for field in result.new_fields] == [("big", pa.decimal128(9, 3))]
    assert rows_of(result)[0]["price"] == D("2.50")
    assert result.skipped == {"watermark": 1}


def test_goldengate_goes_by_its_trail_and_leaves_unchanged_columns_out() -> None:
    events = [
        goldengate("I", 1),
        goldengate("U", 2, after={"id": 1, "name": "b"}),
        goldengate("D", 3),
        goldengate("T", 4, before=None),
    ]
    result = decoded("goldengate", events)
    by_position = sorted(
        (each[SOURCE_POSITION], each[OP_COLUMN], each["name"])
        for changes in result.changes
        for each in changes.rows.to_pylist()
    )
    assert [each[1:] for each in by_position] == [("c", "a"), ("u", "b"), ("d", None)]
    # Taken from the row before it, which is here.
    assert result.left_out == []
    alone = decoded("goldengate", events[1:2])
    assert alone.changes[0].rows.column_names == ["id", "name", OP_COLUMN, SOURCE_POSITION]
    assert len(result.truncates) == 1


def test_goldengate_says_which_columns_are_missing() -> None:
    flags = {
        "id": 1,
        "id_isMissing": False,
        "name": None,
        "name_isMissing": True,
        "price": None,
        "price_isMissing": False,
    }
    (change,) = decoded("goldengate", [goldengate("U", after=flags)]).changes
    assert change.rows.column_names == ["id", "price", OP_COLUMN, SOURCE_POSITION]
    found = rows_of(decoded("goldengate", [goldengate("D", before={**flags, "price_isMissing": True}, after=None)]))
    assert found == [{**DELETED, OP_COLUMN: "d"}]


def test_canal_events_without_a_time_have_no_place_in_the_order() -> None:
    assert positions_of(decoded("canal", [canal("INSERT", es=None)])) == [None]
    assert rows_of(decoded("canal", [canal("DELETE", _tidb={"onlyHandleKey": True})])) == [{**DELETED, OP_COLUMN: "d"}]
    kinds = ["CREATE", "ALTER", "ERASE", "RENAME", "CINDEX", "DINDEX", "QUERY"]
    result = decoded("canal", [canal(kind, isDdl=True, data=None) for kind in kinds])
    assert result.skipped == {"change of definitions": 7}


def test_maxwells_values_of_every_kind() -> None:
    kinds: dict[str, tuple[pa.DataType, Any, Any]] = {
        "flags": (pa.string(), ["b", "c"], '["b","c"]'),
        "doc": (pa.string(), {"a": [1.5, None]}, '{"a":[1.5,null]}'),
        "ok": (pa.bool_(), 1, True),
        "long": (pa.duration("us"), "-10:00:00.5", datetime.timedelta(hours=-10, microseconds=-500_000)),
        "day": (pa.date32(), "2024-01-02", AT.date()),
        "big": (pa.decimal128(20, 0), 2**64 - 1, D(2**64 - 1)),
        "ratio": (pa.float64(), 4.2341, 4.2341),
    }
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _, _) in kinds.items())])
    event = maxwell("insert", data={"id": 1, **{name: value for name, (_, value, _) in kinds.items()}})
    result = decode(Events.of_lines(lines([event])), "maxwell", Target(schema, ["id"]), Options())
    assert rows_of(result) == [{"id": 1, **{name: value for name, (_, _, value) in kinds.items()}, OP_COLUMN: "c"}]


def test_goldengate_rows_may_stand_beside_their_operation() -> None:
    event = goldengate("I")
    flat = {**{name: value for name, value in event.items() if name != "after"}, **event["after"]}
    assert rows_of(decoded("goldengate", [flat])) == [{**ROW, OP_COLUMN: "c"}]
    # Older releases have a colon before the hours.
    assert rows_of(decoded("goldengate", [{**flat, "at": "2024-01-02:03:04:05"}])) == [{**ROW, OP_COLUMN: "c"}]


CSV = b'I,1,a,2.50,2024-01-02 03:04:05,ff00\nU,1,"",,,\nD,1,,,,\n'


def test_dms_files_have_no_header_and_null_differs_from_empty_text() -> None:
    found = rows_of(decoded("dms", read_csv(CSV)))
    assert found == [
        {**ROW, OP_COLUMN: "c"},
        {**DELETED, "name": "", OP_COLUMN: "u"},
        {**DELETED, OP_COLUMN: "d"},
    ]


def test_a_full_load_of_dms_has_no_operations_and_comes_before_all_changes() -> None:
    load = decoded("dms", read_csv(b"1,a,2.50,2024-01-02 03:04:05,ff00\n"))
    assert rows_of(load) == [{**ROW, OP_COLUMN: "r"}]
    timed = decoded("dms", read_csv(b"I,2024-01-02 00:00:00.000001,1,a,2.50,,\n"))
    assert positions_of(load)[0] < positions_of(timed)[0]


def test_dms_parquet_files_keep_their_types() -> None:
    rows = pa.table(
        {
            "Op": ["I"],
            "id": pa.array([1], pa.int32()),
            "name": ["a"],
            "price": [D("2.50")],
            "at": [AT],
            "raw": [b"\xff\x00"],
        }
    )
    assert rows_of(decoded("dms", rows)) == [{**ROW, OP_COLUMN: "c"}]


WITH_TIME = {"Op": "I", "commit_ts": "2024-01-02 03:04:05.000001", "id": 1, "name": "a", "price": "2.5"}
LOADED = {name: value for name, value in WITH_TIME.items() if name != "Op"}


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        # A time that DMS adds is known by its place, whatever it is called; that of a full load counts nothing.
        (pa.Table.from_pylist([WITH_TIME]), {}, ("c", 1_704_164_645_000_001)),
        (pa.Table.from_pylist([LOADED]), {}, ("r", 0)),
        (pa.Table.from_pylist([LOADED]), {"header": ["TIME"]}, ("r", 1_704_164_645_000_001)),
        (read_csv(b"2024-01-02 03:04:05.000001,1,a,2.5,,\n"), {}, ("r", 0)),
        (read_csv(b"2024-01-02 03:04:05.000001,1,a,2.5,,\n"), {"header": ["TIME"]}, ("r", 1_704_164_645_000_001)),
        (read_csv(b"I,2024-01-02 03:04:05.000001,1,a,2.5,,\n"), {}, ("c", 1_704_164_645_000_001)),
        (read_csv(b"I,2024-01-02 03:04:05.000001,1,a,2.5,,\n"), {"header": ["Op", "TIME"]}, ("c", 1_704_164_645_000_001)),
        (read_csv(b"Op,ts,id,name,price,at,raw\nI,2024-01-02 03:04:05.000001,1,a,2.5,,\n"), {}, ("c", 1_704_164_645_000_001)),
        # Two files with names, read one after the other.
        (read_csv(b"id,name,price,at,raw\n1,a,2.5,,\nid,name,price,at,raw\n"), {}, ("r", 0)),
    ],
)  # fmt: skip
def test_dms_files_by_the_settings_of_their_endpoint(
    rows: pa.Table, options: dict[str, Any], expected: tuple[str, int]
) -> None:
    result = decoded("dms", rows, **options)
    (found,) = rows_of(result)
    assert (found["id"], found["name"], found["price"]) == (1, "a", D("2.50"))
    assert set(found) <= {*SCHEMA.names, OP_COLUMN}
    (position,) = positions_of(result)
    assert (found[OP_COLUMN], int.from_bytes(position[1:9], "big")) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"I,1,a,2.5,\nU,2,a,2.5,\n", "AddColumnName"),
        (b"I,1,a,2.50,2024-01-02 03:04:05,ff", "no line break"),
        (b"I,1,a,2.50\nI,1\n", "Expected 4 columns"),
        (b"I,x,y,1,a,2.5,,\n", "--header"),
    ],
)
def test_dms_files_that_may_mean_two_things_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        decoded("dms", read_csv(data))


def dms(operation: str, row: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    data = {"id": 1, "name": "a", "price": 2.50, "at": "2024-01-02T03:04:05", "raw": "0xff00"} if row is None else row
    told = {"record-type": "data", "operation": operation, "schema-name": "shop", "table-name": "orders", **about}
    return {"data": data, "metadata": {"timestamp": "2024-01-02T03:04:05.000001Z", **told}}


def test_dms_messages_have_all_operations_and_bytes_as_hexadecimal_text() -> None:
    found = rows_of(decoded("dms", [dms("load"), dms("insert"), dms("update"), dms("delete")]))
    # A full load is before all changes.
    assert [each[OP_COLUMN] for each in found] == ["r", "c", "u", "d"]
    assert found[0] == {**ROW, OP_COLUMN: "r"}
    assert found[3] == {**DELETED, OP_COLUMN: "d"}


def test_dms_messages_sort_by_their_transaction_where_they_tell_it() -> None:
    about: dict[str, Any] = {"commit-timestamp": "2024-01-02T03:04:05Z", "transaction-id": 7}
    first: dict[str, Any] = {**about, "transaction-record-id": 1}
    events = [
        dms("load", timestamp="2025-01-01T00:00:00Z"),
        dms("update", **first),
        dms("update", **{**first, "transaction-record-id": 12}),
        dms("update", **{**about, "transaction-id": 8}),
    ]
    found = positions_of(decoded("dms", events))
    assert found == sorted(found)
    assert len(set(found)) == 4


def test_dms_messages_tell_their_operation_beside_the_row() -> None:
    about = {
        "timestamp": "2024-01-02T03:04:05.000001Z",
        "record-type": "data",
        "operation": "update",
        "schema-name": "s",
        "table-name": "t",
    }
    event = {"data": {"id": 1, "name": "a", "price": 2.5}, "metadata": about}
    control = {"metadata": {**about, "record-type": "control", "operation": "create-table"}}
    result = decoded("dms", [event, control])
    assert [(each["id"], each[OP_COLUMN], each["price"]) for each in rows_of(result)] == [(1, "u", D("2.50"))]
    assert result.skipped == {"change of definitions": 1}


def test_columns_of_dms_that_do_not_match_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="the file has 2 columns, and the table 5"):
        decoded("dms", read_csv(b"1,2\n"))


@pytest.mark.parametrize(
    ("format", "event", "reason"),
    [
        ("maxwell", {**maxwell("insert"), "type": "nonsense"}, "unknown"),
        ("maxwell", {**maxwell("insert"), "data": None}, "'data'"),
        ("maxwell", maxwell("insert", data={"id": 1, "price": 2.505}), "exactly"),
        ("maxwell", maxwell("insert", data={"id": 1, "odd": 1.5}), "'odd' is new"),
        ("maxwell", maxwell("insert", data={"name": "x"}), "primary key"),
        ("canal", canal("INSERT", {"id": "1.5"}), "does not fit"),
        ("canal", canal("INSERT", {"id": "1", "at": "0000-00-00 00:00:00"}), "not a time"),
        ("canal", {"type": "NONSENSE", "data": [{}]}, "unknown"),
        ("canal", canal("INSERT", {"id": "1"}, _tidb={"commitTs": 9, "onlyHandleKey": True}), "the key only"),
        ("canal", canal("UPDATE", {"id": "1"}, _tidb={"commitTs": 9, "claimCheckLocation": "s3://x"}), "the key only"),
        ("canal", canal("INSERT", {"id": "1", "raw": "€"}), "bytes"),
        ("canal", canal("INSERT", data=None), "'data'"),
        ("maxwell", maxwell("insert", data={"id": 1, "raw": "ff0"}), "base64"),
        ("maxwell", maxwell("insert", data={"id": 1, "at": "0000-00-00 00:00:00"}), "not a time"),
        ("dms", dms("insert", {"id": 1, "raw": "/wA="}), "hex"),
        ("dms", dms("truncate"), "unknown"),
        ("goldengate", goldengate("U", after=[1]), "objects"),
        ("goldengate", goldengate("X"), "unknown"),
        ("goldengate", {"op_type": "I"}, "'table'"),
        ("dms", {"data": {}, "metadata": {"operation": "x"}}, "unknown"),
        ("dms", {"x": 1}, "'metadata'"),
    ],
)
def test_events_that_do_not_fit_are_rejected(format: ChangeFormat, event: dict[str, Any], reason: str) -> None:
    (reject,) = decoded(format, [event]).rejects
    assert reject.line == 1
    assert reason in reject.reason


def test_events_are_divided_by_table_and_a_table_for_them_has_their_types_and_key() -> None:
    fields = [told("id", "int64"), told("n", "int32")]
    messages = [
        {"key": {"id": 1}, "value": with_schema(change("c", 1, {"id": 1, "n": 5}), fields)},
        {"key": None, "value": {"ts_ms": 1}},
        {"key": {"id": 1}, "value": with_schema(change("c", 2, {"id": 1, "n": 5}, table="items"), fields)},
    ]
    parts = by_table(Events.of_lines(lines(messages)), "debezium")
    assert [source.name_in("shop.{table}") for source in parts] == ["shop.orders", "shop.items"]
    assert [part.lines.tolist() for part in parts.values()] == [[1, 2], [3]]
    layout = layout_of(next(iter(parts.values())), "debezium")
    assert layout.primary_keys == ["id"]
    assert layout.columns == pa.schema(
        [pa.field("id", pa.int64(), False), ("n", pa.int32()), (SOURCE_POSITION, pa.binary())]
    )
    assert layout.leaves_out
    plain = layout_of(Events.of_lines(lines([canal("INSERT")])), "canal")
    assert (list(plain.primary_keys), plain.schema.field("price").type) == (["id"], pa.decimal128(10, 2))
    with pytest.raises(InvalidInputError, match="no schemas"):
        layout_of(Events.of_lines(lines([change("c", 1, {"id": 1})])), "debezium")
    with pytest.raises(InvalidInputError, match="no template"):
        next(iter(parts)).name_in("shop.{nonsense}")
