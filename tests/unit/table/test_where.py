"""Filters: what they mean, what they say of mistakes, and what is known of Arrow expressions."""

import datetime
import pickle
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from siltstone.errors import InvalidInputError
from siltstone.table.where import And, Comparison, In, IsNull, Node, Not, Opaque, Or, compile_where

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "price": pa.decimal128(10, 2),
        "ratio": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "local": pa.timestamp("us"),
        "hour": pa.time64("us"),
        "paid": pa.bool_(),
        "two words": pa.string(),
        "tags": pa.list_(pa.string()),
        "raw": pa.binary(),
        "place": pa.struct({"zone": pa.string()}),
    }
)
ROW = {
    "id": 7,
    "name": "it's",
    "price": Decimal("9.50"),
    "ratio": 0.25,
    "day": datetime.date(2024, 5, 1),
    "at": datetime.datetime(2024, 5, 1, 8, tzinfo=datetime.UTC),
    "local": datetime.datetime(2024, 5, 1, 8),
    "hour": datetime.time(8, 30),
    "paid": True,
    "two words": None,
    "tags": [],
    "raw": b"\x00\xff",
}


_ID_IS_1 = Comparison("id", "=", pa.scalar(1))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("id = 7", True),
        ("id == 7 and id <> 8", True),
        ("id != 7", False),
        ("id>=7 AND id<=7", True),
        ("id < 7", False),
        ("id > -1", True),
        ("name = 'it''s'", True),
        ("name = its", False),
        ("price > 9.5", False),
        ("price >= 9.50", True),
        ("ratio < 1e3", True),
        ("day = 2024-05-01", True),
        ("at > 2024-05-01", True),
        ("at = 2024-05-01T10:00:00+02:00", True),
        ("at = '2024-05-01 08:00:00'", True),
        ("local = 2024-05-01T08:00:00", True),
        ("hour < 09:00", True),
        ("paid = TRUE", True),
        ('"two words" is null', True),
        ("`two words` IS NOT NULL", False),
        ("`two words` = x", False),
        ("tags is not null", True),
        ("(id = 7)", True),
        ("id = 8 or id = 7 and not paid = false", True),
        ("(id = 8 or id = 7) and paid = false", False),
        ("not id = 7", False),
        ("not not id = 7", True),
        ("not (id = 8 or id = 9)", True),
        ("id in (6, 7)", True),
        ("id not in (6,7)", False),
        ("name in ('a', 'it''s')", True),
        ("`two words` not in ('x')", False),
        ("not `two words` = x", False),
        ("not (`two words` = x and id = 8)", True),
        ("id between 7 and 9 and id between 5 and 7", True),
        ("id not between 7 and 9", False),
        ("day between 2024-05-01 and '2024-05-02'", True),
        ("name like 'it%'", True),
        ("name LIKE '_t_s'", True),
        ("name not like '%x%'", True),
        (r"name like '\%'", False),
        ("`two words` not like 'x'", False),
        ("raw = X'00ff'", True),
        ("raw > x'00fe'", True),
        ("raw in (X'', X'00FF')", True),
        ("ratio is not nan", True),
        ("ratio is nan", False),
    ],
)
def test_conditions(condition: str, holds: bool) -> None:
    batch = pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)
    parsed = compile_where(condition, SCHEMA)
    assert batch.filter(parsed.expression).num_rows == holds


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "is empty"),
        ("idd = 7", "did you mean id"),
        ("id", "one of ="),
        ("id like 7", "like is for text only"),
        ("id =", "a value is missing"),
        ("id = = 7", "a value is missing"),
        ("= 7", "a column is missing at '='"),
        ("id = 7 and", "a column is missing at the end"),
        ("id ~ 7", "not '~', at '~' (character 4)"),
        ("id = 7 or", "a column is missing at the end"),
        ("not", "a column is missing at the end"),
        ("id = 7 or or id = 8", "'or' is not a column"),
        ("id not = 7", "not '='"),
        ("id in 7", "a '(' is missing at '7'"),
        ("id in ()", "a value is missing after id in (, at ')'"),
        ("id in (7", "a ')' is missing at the end"),
        ("id in (7 8)", "a ')' is missing at '8' (character 10)"),
        ("id in (7, null)", "write id is null"),
        ("id between 7 or 8", "`and` is missing at 'or'"),
        ("(id = 7", "a ')' is missing at the end, to close"),
        ("(" * 200 + "id = 7" + ")" * 200, "nested more than"),
        ("id = 7) and id = 8", "unexpected ')' at character 7"),
        (r"name like 'a\b'", "a backslash comes before"),
        ("raw = X'0g'", "not hexadecimal"),
        ("name = X'00'", "not bytes"),
        ("ratio = nan", "write ratio is nan"),
        ("id is nan", "null or not null"),
        ("id = 7 8", "unexpected '8'"),
        ("name = 'open", "cannot read"),
        ("id = null", "write id is null"),
        ("id is 7", "null or not null"),
        ("id = 7.5", "'7.5' is not of its type, int64"),
        ("hour < '24:00:00'", "'24:00:00' is not of its type, time"),
        ("hour < 'T24'", "'T24' is not of its type, time"),
        ("local < '2024-05-01 24:00'", "'2024-05-01 24:00' is not of its type, timestamp"),
        ("at < '2024-05-01T24:00:00Z'", "'2024-05-01T24:00:00Z' is not of its type, timestamp_utc"),
        ("id = 99999999999999999999", "not of its type"),
        ("price = 9.555", "decimal(10,2)"),
        ("paid = yes", "bool"),
        ("day = 1.5.2024", "date"),
        ("local = 2024-05-01T08:00:00Z", "timestamp"),
        ("tags = x", "only is null"),
        ("raw = x", "only is null"),
    ],
)
def test_conditions_that_make_no_sense_say_why(condition: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        compile_where(condition, SCHEMA)
    assert message in str(caught.value)


def test_many_comparisons_do_not_nest_deeply() -> None:
    batch = pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)
    for word in ("or", "and"):
        condition = compile_where(f" {word} ".join(f"id != {number}" for number in range(5000)), SCHEMA)
        assert batch.filter(condition.expression).num_rows == (word == "or")


class TestArrowExpressions:
    """Filters that come as Arrow expressions."""

    @pytest.mark.parametrize(
        ("expression", "message"),
        [
            (pc.field("idd") == 7, "where: column 'idd' is not a column; .*did you mean id"),
            (pc.field("id") == "x", "cannot be evaluated"),
            (pc.field("id") + 1, "cannot be evaluated"),
            (pc.field(0) == 7, "by its place"),
            (pc.field("tags", "x") == 7, "cannot be evaluated"),
            (pc.field("tag", "x") == 7, "did you mean tags"),
        ],
    )
    def test_those_that_make_no_sense_say_why(self, expression: pc.Expression, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            compile_where(expression, SCHEMA)

    def test_anything_else_is_no_filter(self) -> None:
        with pytest.raises(InvalidInputError, match="where is 7; give text"):
            compile_where(7, SCHEMA)

    @pytest.mark.parametrize(
        ("expression", "tree"),
        [
            (pc.field("id") > 7, Comparison("id", ">", pa.scalar(7))),
            (pc.scalar(7) > pc.field("id"), Comparison("id", "<", pa.scalar(7))),
            (pc.field("ratio") > 7, Comparison("ratio", ">", pa.scalar(7.0))),
            (pc.field("id").isin([1, 2]), And((Not(IsNull("id")), In("id", (pa.scalar(1), pa.scalar(2)))))),
            (pc.field("id").isin([1, None]), Or((IsNull("id"), In("id", (pa.scalar(1),))))),
            (~pc.field("id").is_valid() & pc.field("name").is_null(), And((Not(Not(IsNull("id"))), IsNull("name")))),
            (pc.field("ratio").is_null(nan_is_null=True) | (pc.field("id") == 1), Or((Opaque(), _ID_IS_1))),
            # What Arrow converts before it compares is left to Arrow.
            (pc.field("id") > 7.5, Opaque()),
            (pc.field("id") + 1 > 7, Opaque()),
            (pc.field("place", "zone") == "eu", Opaque()),
            (pc.field("ratio").isin([1.0]), Opaque()),
            (pc.field("price") == Decimal("9.555"), Opaque()),
            (pc.field("at") > pa.scalar(1, pa.timestamp("ns", tz="UTC")), Opaque()),
        ],
    )
    def test_what_they_are_made_of_is_known(self, expression: pc.Expression, tree: Node) -> None:
        condition = compile_where(expression, SCHEMA)
        assert condition.tree == tree
        assert pickle.loads(pickle.dumps(condition)).tree == tree
