"""Change events: however they come, the table is what the source's is; however they are damaged, no row is wrong."""

import base64
import copy
import datetime
import decimal
import json
import tempfile
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.cdc import OP_COLUMN, SOURCE_POSITION, Decoded, Events, Target, decode
from siltstone.lake import Table
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.cdc.messages import UNAVAILABLE, base64_of, change, lines

Row = dict[str, Any]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("big", pa.string()), (SOURCE_POSITION, pa.binary())])
keys = st.integers(0, 4)
steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "update", "touch", "delete", "move", "truncate"]),
        keys,
        keys,
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=25,
)


class SourceDatabase:
    """A table at the source, kept as a dictionary, and the events that its changes make."""

    def __init__(self, *, leaves_out: bool) -> None:
        self.rows: dict[int, Row] = {}
        self.events: list[Row] = []
        self._leaves_out = leaves_out
        self._lsn = 0

    def apply(self, step: tuple[str, int, int, int]) -> None:
        what, key, other, number = step
        row = self.rows.get(key)
        if what == "insert" and row is None:
            self._set({"id": key, "name": f"n{number}", "big": f"big{number}"}, "c")
        elif what == "update" and row is not None:
            self._set({**row, "big": f"big{number}"}, "u")
        elif what == "touch" and row is not None:
            self._set({**row, "name": f"n{number}"}, "u", unchanged=True)
        elif what == "delete" and row is not None:
            del self.rows[key]
            self._emit("d", {"id": key, "name": "", "big": None})
        elif what == "truncate" and number < 5:
            self.rows.clear()
            self._emit("t", None)
        elif what == "move" and row is not None and other not in self.rows:
            del self.rows[key]
            self._emit("d", {"id": key, "name": "", "big": None})
            self._set({**row, "id": other}, "c", unchanged=True, same_place=True)

    def _set(self, row: Row, op: str, *, unchanged: bool = False, same_place: bool = False) -> None:
        self.rows[row["id"]] = row
        sent = {**row, "big": UNAVAILABLE} if unchanged and self._leaves_out else row
        self._emit(op, sent, same_place=same_place)

    def _emit(self, op: str, row: Row | None, *, same_place: bool = False) -> None:
        self._lsn += 0 if same_place else 1
        self.events.append(change(op, self._lsn, row))

    def sorted_rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.rows.values())


def new_table(folder: str, *, is_partitioned: bool) -> Table:
    return siltstone.open(folder).create_table(
        "shop.orders",
        schema=SCHEMA,
        primary_keys=["id"],
        sort_keys=[SOURCE_POSITION],
        partition_keys=["id"] if is_partitioned else [],
        merge_engine="partial_update",
    )


def check_against_oracle(table: Table) -> None:
    same_rows(table.to_arrow(include_uncompacted=True), oracle_of(table).rows())
    for key in range(5):
        told = [each.row for each in table.explain_key({"id": key})]
        assert sorted(row["name"] for row in told if row) == [
            name for number, name, _ in rows_of(table) if number == key
        ]


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    found = table.to_arrow(["id", "name", "big"], include_uncompacted=True).to_pylist()
    return sorted(tuple(row.values()) for row in found)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps, data=st.data())
def test_any_permutation_and_any_duplication_of_events_gives_the_same_table(history: Any, data: st.DataObject) -> None:
    source = SourceDatabase(leaves_out=False)
    for step in history:
        source.apply(step)
    again = data.draw(st.lists(st.sampled_from(source.events), max_size=5)) if source.events else []
    shuffled = data.draw(st.permutations([*source.events, *again]))
    with tempfile.TemporaryDirectory() as folder:
        table = new_table(folder, is_partitioned=data.draw(st.booleans()))
        first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(shuffled))] * 2)))
        for part in (shuffled[:first], shuffled[first:second], shuffled[second:]):
            if part:
                table.write_changes(lines(part), "debezium")
            if data.draw(st.booleans()):
                table.compact(engine="local")
        assert rows_of(table) == source.sorted_rows()
        check_against_oracle(table)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps, data=st.data())
def test_a_stream_in_order_may_be_replayed_though_events_leave_columns_out(history: Any, data: st.DataObject) -> None:
    source = SourceDatabase(leaves_out=True)
    for step in history:
        source.apply(step)
    events = source.events
    with tempfile.TemporaryDirectory() as folder:
        table = new_table(folder, is_partitioned=data.draw(st.booleans()))
        done = 0
        while done < len(events):
            # A source that starts again repeats what it sent last, in the same order.
            start = data.draw(st.integers(0, done))
            # The delete and the create of a changed key are one transaction, and not divided.
            done = data.draw(st.integers(done + 1, len(events)))
            while done < len(events) and events[done]["source"]["lsn"] == events[done - 1]["source"]["lsn"]:
                done += 1
            while start and events[start]["source"]["lsn"] == events[start - 1]["source"]["lsn"]:
                start -= 1
            part = events[start:done]
            if data.draw(st.booleans()):
                part = data.draw(st.permutations(part))
            table.write_changes(lines(part), "debezium")
            if data.draw(st.booleans()):
                table.compact(engine="local")
        assert rows_of(table) == source.sorted_rows()


WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
        ("score", pa.float64()),
        ("tags", pa.list_(pa.string())),
        (SOURCE_POSITION, pa.binary()),
    ]
)
EXAMPLE = {
    "id": 7,
    "name": "a",
    "price": base64_of(250),
    "at": 1_704_164_645_000_000,
    "day": 19724,
    "raw": "AP8=",
    "ok": True,
    "score": 1.5,
    "tags": ["x", None],
}
json_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(
        ["1234", "1.5", UNAVAILABLE, "AAAA", "2024-01-02", "NaN", "", "-", "1e2", [], {}, [UNAVAILABLE], "c", "d", "t"]
    ),
    st.lists(st.integers(0, 99), max_size=3),
    st.dictionaries(st.sampled_from(["scale", "value", "id"]), st.integers(0, 9), max_size=2),
)
places = st.sampled_from(
    [("after", name) for name in EXAMPLE]
    + [("source", name) for name in ("lsn", "ts_us", "sequence", "table", "connector", "snapshot")]
    + [("op",), ("after",), ("before",), ("source",), ("transaction",), ("new",), ("after", "new")]
)


def expected(name: str, value: Any) -> Any:
    """Return what a column may be for a JSON value, said another way than the decoder says it; ... where it must not be."""
    if value is None:
        return None
    kind = WIDE.field(name).type
    if pa.types.is_integer(kind):
        return value if type(value) is int and -(2**63) <= value < 2**63 else ...
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else ...
    if pa.types.is_boolean(kind):
        return bool(value) if isinstance(value, int) and value in (0, 1) else ...
    if pa.types.is_floating(kind):
        special = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
        return (
            float(special.get(value, value) if isinstance(value, str) else value)
            if not isinstance(value, list | dict | bool)
            else ...
        )
    if pa.types.is_date(kind):
        days = (
            value if isinstance(value, int) else (datetime.date.fromisoformat(value) - datetime.date(1970, 1, 1)).days
        )
        return datetime.date(1970, 1, 1) + datetime.timedelta(days)
    if pa.types.is_timestamp(kind):
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=value) if isinstance(value, int) else ...
    if pa.types.is_binary(kind):
        return base64.b64decode(value)
    if pa.types.is_list(kind):
        return (
            value if isinstance(value, list) and all(each is None or isinstance(each, str) for each in value) else ...
        )
    if isinstance(value, dict):
        return ...
    if isinstance(value, str) and not any(mark in value for mark in ".-") and len(value) % 4 == 0:
        return decimal.Decimal(int.from_bytes(base64.b64decode(value), "big", signed=True)) / 100
    return decimal.Decimal(str(value))


def outcome(decoded: Decoded) -> Any:
    rows = [sorted(each.items()) for changes in decoded.changes for each in _plain(changes.rows)]
    return rows, [reject.reason for reject in decoded.rejects], decoded.skipped, len(decoded.truncates)


def _plain(rows: pa.Table) -> list[Row]:
    # Dates beyond what Python has, and numbers that equal no others, are compared as text.
    columns = [
        rows.column(name).cast(pa.int64())
        if pa.types.is_temporal(rows.schema.field(name).type) and name == "at"
        else rows.column(name)
        for name in rows.column_names
    ]
    return [
        {name: str(value) for name, value in zip(rows.column_names, each, strict=True)}
        for each in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@example(place=("after",), value={}, op="c")
@given(place=places, value=json_values, op=st.sampled_from(["c", "u", "d", "r"]))
def test_a_damaged_event_is_refused_or_gives_a_right_row_both_ways(place: tuple[str, ...], value: Any, op: str) -> None:
    event: Any = copy.deepcopy(change(op, 5, EXAMPLE))
    holder = event
    for name in place[:-1]:
        holder = holder[name] if isinstance(holder[name], dict) else holder
    holder[place[-1]] = value
    target = Target(WIDE, ["id"])
    text = json.dumps(event).encode() + b"\n"
    one = decode(Events.of_lines(text), "debezium", target)
    assert (
        len(one.rejects)
        + sum(one.skipped.values())
        + len(one.truncates)
        + sum(each.rows.num_rows for each in one.changes)
        >= 1
    )
    if place[0] == "after" and len(place) == 2 and place[1] in EXAMPLE and op != "d" and one.changes:
        (changes,) = one.changes
        if place[1] in changes.rows.column_names:
            found = changes.rows.column(place[1])
            wanted = expected(place[1], value)
            assert wanted is not ...
            assert found.equals(pa.chunked_array([pa.array([wanted], found.type)])) or str(found[0].as_py()) == str(
                wanted
            )
    # The same event many times goes the fast way, and comes out the same.
    many = decode(Events.of_lines(text * 40), "debezium", target)
    rows, reasons, skipped, truncates = outcome(one)
    assert outcome(many) in (
        (rows * 40, reasons * 40, {name: count * 40 for name, count in skipped.items()}, truncates),
        (rows, reasons * 40, {name: count * 40 for name, count in skipped.items()}, truncates),
    )
    assert all(OP_COLUMN in changes.rows.column_names for changes in many.changes)
