"""Events of DMS, Maxwell, Canal and GoldenGate that are damaged: refused with a reason, or a right row."""

import base64
import copy
import datetime
import decimal
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siltstone.cdc import OP_COLUMN, SOURCE_POSITION, ChangeFormat, Events, Target, decode
from siltstone.cdc.dms import read_csv
from siltstone.cdc.position import WIDTH
from siltstone.errors import InvalidInputError
from tests.unit.cdc.test_formats import DELETED, ROW, SCHEMA, canal, dms, goldengate, maxwell

# The event, where its row is, and what its operation is.
CASES: list[tuple[ChangeFormat, dict[str, Any], tuple[str | int, ...]]] = [
    ("maxwell", maxwell("insert"), ("data",)),
    ("maxwell", maxwell("bootstrap-insert"), ("data",)),
    ("maxwell", maxwell("delete"), ("data",)),
    ("canal", canal("UPDATE", old=[{"name": "b"}]), ("data", 0)),
    ("canal", canal("DELETE"), ("data", 0)),
    ("goldengate", goldengate("I"), ("after",)),
    ("goldengate", goldengate("D"), ("before",)),
    ("dms", dms("insert"), ("data",)),
    ("dms", dms("load"), ("data",)),
]
texts = st.sampled_from(
    [
        "", " ", "1", "-7", "2.50", "2.505", "1e2", "NaN", "inf", "/wA=", "ff00", "0xff00", "ÿ", "2024-01-02", "03:04:05",
        "2024-01-02 03:04:05", "2024-01-02T03:04:05Z", "2024-02-30 00:00:00", "0000-00-00 00:00:00", "null", "true",
    ]
)  # fmt: skip
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    texts,
    st.sampled_from([[], {}, [1], {"a": 1}]),
)


def is_right(column: str, given: Any, found: Any, form: ChangeFormat) -> bool:
    """Say whether a value of the table is what the event has, by going the other way, from the value to the event."""
    if given is None or found is None:
        return given is None and found is None
    if column == "id":
        return not isinstance(given, bool | float) and bool(int(given) == found)
    if column == "name":
        return bool(given == found) if isinstance(given, str) else bool(json.loads(found) == given)
    if column == "price":
        return bool(decimal.Decimal(str(given).strip()) == found)
    if column == "at":
        text = str(given).strip().replace(" ", "T")
        return bool(datetime.datetime.fromisoformat(text).replace(tzinfo=None) == found)
    if form == "dms":
        return bool(bytes.fromhex(given.removeprefix("0x")) == found)
    return bool(given == (found.decode("latin-1") if form == "canal" else base64.b64encode(found).decode()))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=st.sampled_from(CASES), column=st.sampled_from([*ROW, "new"]), value=values)
def test_a_damaged_value_is_refused_or_is_right(case: Any, column: str, value: Any) -> None:
    form, event, place = case
    event = copy.deepcopy(event)
    row = event
    for step in place:
        row = row[step]
    row[column] = value
    decoded = decode(Events.of_lines(json.dumps(event).encode() + b"\n"), form, Target(SCHEMA, ["id"]))
    found = [each for changes in decoded.changes for each in changes.rows.to_pylist()]
    assert len(decoded.rejects) + len(found) == 1
    for reject in decoded.rejects:
        assert reject.line == 1
        assert reject.reason
    for each in found:
        expected = DELETED if each[OP_COLUMN] == "d" else ROW
        for name in ROW:
            if name == column and (each[OP_COLUMN] != "d" or name == "id"):
                assert is_right(name, value, each[name], form), (name, value, each[name])
            elif name == "id" or each[OP_COLUMN] != "d":
                assert each[name] == ROW[name]
            else:
                assert each[name] == expected[name]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    case=st.sampled_from(CASES),
    data=st.data(),
    value=st.one_of(values, st.sampled_from(["insert", "DELETE", "D", "T"])),
)
def test_damage_outside_of_the_row_never_makes_another_row(case: Any, data: st.DataObject, value: Any) -> None:
    form, event, _ = case
    event = copy.deepcopy(event)
    holder = event["metadata"] if form == "dms" and data.draw(st.booleans()) else event
    name = data.draw(st.sampled_from(sorted(holder)))
    holder[name] = value
    decoded = decode(Events.of_lines(json.dumps(event).encode() + b"\n"), form, Target(SCHEMA, ["id"]))
    rows = [each for changes in decoded.changes for each in changes.rows.to_pylist()]
    assert len(decoded.rejects) + sum(decoded.skipped.values()) + len(decoded.truncates) + len(rows) >= 1 or not value
    for each in rows:
        if each[OP_COLUMN] != "d":
            assert all(each[column] == ROW[column] for column in ROW if column in each)
        assert each["id"] == 1
        position = each[SOURCE_POSITION]
        assert position is None or len(position) == WIDTH


CSV = b'I,2024-01-02 03:04:05.000001,1,a,2.50,2024-01-02 03:04:05,ff00\nU,2024-01-02 03:04:06,1,"b, ""c""",,,\n'
EXPECTED = [(1, "a", ROW["price"], ROW["at"], ROW["raw"]), (1, 'b, "c"', None, None, None)]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cut=st.integers(0, len(CSV)), noise=st.text('IUD,"\n x9', max_size=3))
def test_a_damaged_file_of_dms_is_refused_or_has_right_rows(cut: int, noise: str) -> None:
    # What is cut off at the end, or comes before the first field, never makes a row that was not there.
    for data in (CSV[:cut], noise.encode() + CSV):
        try:
            decoded = decode(read_csv(data), "dms", Target(SCHEMA, ["id"]))
        except InvalidInputError:
            continue
        found = [tuple(each[name] for name in ROW) for changes in decoded.changes for each in changes.rows.to_pylist()]
        assert all(row in EXPECTED for row in found)
