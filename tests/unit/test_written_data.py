"""What `Table.write` takes, and what it refuses before anything is written."""

import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pandas
import polars
import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.model.schema import schema_from_json as make_schema
from siltstone.storage import object_store as storage
from tests.unit.rounds.compaction import check_rows, compact, make_table, objects_below, rows

NOON = datetime.datetime(2024, 1, 1, 12)
STRICT = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string(), False)])


def written(table: siltstone.Table) -> list[dict[str, object]]:
    """Return the rows of the newest delta."""
    return [
        row for delta in table.deltas()[-1:] for row in storage.download_delta(delta, root=table.lake.root).to_pylist()
    ]


class TestNotNull:
    """Columns that must not be null."""

    @pytest.fixture
    def table(self, local_root: str) -> siltstone.Table:
        return make_table(local_root, schema=STRICT)

    @pytest.mark.parametrize("operation", ["d", "D", "-D"])
    def test_a_delete_needs_no_more_than_its_key(self, table: siltstone.Table, operation: str) -> None:
        table.write(pa.table({"id": [1], "op": [operation]}), op_column="op")
        assert written(table) == [{"id": 1, "op": operation}]
        table.write(pa.table({"id": [1, 2], "v": [None, "b"], "op": [operation, "u"]}), op_column="op")
        assert written(table) == [{"id": 1, "v": None, "op": operation}, {"id": 2, "v": "b", "op": "u"}]

    @pytest.mark.parametrize(
        ("data", "op_column", "message"),
        [
            ({"id": [1, 2], "v": [None, "b"]}, None, "'v' must not be null, but 1 row is"),
            ({"id": [1, 2]}, None, "non-nullable column 'v'"),
            ({"id": [1, 2], "v": [None, None], "op": ["d", "u"]}, "op", "'v' must not be null, but 1 row is"),
            ({"id": [1, 2], "op": ["d", "u"]}, "op", "only rows that are deletes may leave it out"),
            ({"id": [None, 2], "v": ["a", "b"], "op": ["d", "u"]}, "op", "'id' must not be null, but 1 row is"),
        ],
    )
    def test_other_rows_must_have_all_of_them(
        self, table: siltstone.Table, data: dict[str, list[object]], op_column: str | None, message: str
    ) -> None:
        before = objects_below(table.lake.root)
        with pytest.raises(InvalidInputError, match=message):
            table.write(pa.table(data), op_column=op_column)
        assert objects_below(table.lake.root) == before
        assert table.deltas() == []


def test_a_row_level_delete_without_the_column_of_the_sort_key_is_refused(local_root: str) -> None:
    table = make_table(local_root, sort_keys=["v"])
    with pytest.raises(InvalidInputError, match="sort key 'v'; a row-level delete without it is older than every row"):
        table.write(pa.table({"id": [1], "op": ["d"]}), op_column="op")


class TestPositions:
    """Stream positions, from 1 to 2^63 - 1."""

    @pytest.mark.parametrize("position", [2**63, 2**80, 0, -1, True, 1.5, "3"])
    def test_what_is_no_position_is_refused_wherever_one_is_given(self, local_root: str, position: Any) -> None:
        table = make_table(local_root)
        with pytest.raises(InvalidInputError, match="is not a stream position"):
            table.write(rows([1]), stream_position=position)
        assert table.deltas() == []
        table.write(rows([1]))
        if position == 0:
            return  # before all deltas, and so a place to read and compact up to
        calls: list[Callable[[], object]] = [
            lambda: table.to_arrow(as_of=position),
            lambda: table.compact(to=position),
            lambda: table.compact(high_watermark=position),
            lambda: compact(table, last_stream_position=position),
            lambda: compact(table, rebase_high_watermark=position),
        ]
        # What is read may be named by a text: a position, a time or a tag.
        for call in calls[1:] if isinstance(position, str) else calls:
            with pytest.raises(InvalidInputError, match="is not a stream position"):
                call()

    def test_after_the_last_one_nothing_can_be_written(self, local_root: str) -> None:
        table = make_table(local_root)
        assert table.write(rows([1]), stream_position=2**63 - 1) == 2**63 - 1
        before = objects_below(local_root)
        with pytest.raises(InvalidInputError, match="the last stream position there is"):
            table.write(rows([2]))
        assert objects_below(local_root) == before
        compact(table)
        check_rows(table)
        assert table.to_arrow(as_of=2**63 - 1).num_rows == 1


KINDS = {"id": "int64", "v": "string", "d": "double", "f": "float", "i": "int32", "m": "decimal(10,2)", "b": "binary"}
UUIDS = [uuid.UUID(int=5), None, uuid.UUID("12345678-1234-5678-9abc-def012345678")]


@pytest.fixture
def kinds(local_root: str) -> siltstone.Table:
    """A table with a column of each kind that takes values of others."""
    return make_table(local_root, schema=KINDS)


class TestDataFrames:
    """Frames of pandas and polars."""

    def test_the_index_of_a_filtered_pandas_frame_is_not_a_column(self, kinds: siltstone.Table) -> None:
        frame = pandas.DataFrame({"id": [1, 2, 3], "v": ["a", "b", "c"]})
        filtered = frame[frame.id > 1]
        for data in (filtered, pa.Table.from_pandas(filtered), pa.table(filtered).to_reader()):
            kinds.write(data)
            assert written(kinds) == [{"id": 2, "v": "b"}, {"id": 3, "v": "c"}]
        assert kinds.schema.names == list(KINDS)

    def test_an_index_with_a_name_is_a_column_like_any_other(self, kinds: siltstone.Table) -> None:
        frame = pandas.DataFrame({"v": ["a", "b"]})
        frame.index.name = "id"
        for named in (frame, frame.set_index(frame.index.astype("int32")), frame.set_index([frame.index, [7, 8]])):
            kinds.write(named)
            assert sorted(row["id"] for row in written(kinds)) == [0, 1]  # type: ignore[type-var]
        assert kinds.schema.names == list(KINDS)

    def test_integers_that_pandas_made_floats_for_a_missing_value_stay_integers(self, kinds: siltstone.Table) -> None:
        kinds.write(pandas.DataFrame({"id": [1, 2], "i": [5, None]}))
        assert written(kinds) == [{"id": 1, "i": 5}, {"id": 2, "i": None}]
        assert kinds.schema.field("i").type == pa.int32()

    def test_categories_are_written_as_their_text(self, kinds: siltstone.Table) -> None:
        category = polars.Series("v", ["x", None], dtype=polars.Categorical)
        enum = polars.Series("e", ["y", "x"], dtype=polars.Enum(["x", "y"]))
        lists = polars.Series("l", [["x", None], None], dtype=polars.List(polars.Categorical))
        kinds.write(polars.DataFrame([polars.Series("id", [1, 2]), category, enum, lists]))
        assert written(kinds) == [
            {"id": 1, "v": "x", "e": "y", "l": ["x", None]},
            {"id": 2, "v": None, "e": "x", "l": None},
        ]
        kinds.write(pandas.DataFrame({"id": [1], "v": pandas.Categorical(["x"])}))
        assert written(kinds) == [{"id": 1, "v": "x"}]

    @pytest.mark.parametrize(
        "data",
        [
            polars.DataFrame({"id": [1], "n": polars.Series([1], dtype=polars.Int128)}),
            polars.Series([1]),
            polars.DataFrame({"id": [1]}).lazy(),
            pa.chunked_array([[1]]),
            pandas.DataFrame({"id": [1, 2], "v": [1, "x"]}),
            pandas.DataFrame({"id": [1], "v": pandas.period_range("2024", periods=1)}),
        ],
        ids=["int128", "series", "lazy", "column", "mixed", "period"],
    )
    def test_what_does_not_convert_is_refused(self, kinds: siltstone.Table, data: Any) -> None:
        with pytest.raises(InvalidInputError):
            kinds.write(data)
        assert kinds.deltas() == []


class TestNumbers:
    """Numbers of another kind than the column's."""

    @pytest.mark.parametrize(
        ("column", "values", "stored"),
        [
            ("d", pa.array([1, None, 2**53]), [1.0, None, float(2**53)]),
            ("d", pa.array([3], pa.uint64()), [3.0]),
            ("f", pa.array([-(2**24)], pa.int32()), [-float(2**24)]),
            ("i", pa.array([4.0, None]), [4, None]),
            ("i", pa.array([Decimal("7.00")]), [7]),
            ("m", pa.array([12345678]), [Decimal("12345678.00")]),
            ("id", pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
        ],
    )
    def test_are_taken_where_each_value_fits_exactly(
        self, kinds: siltstone.Table, column: str, values: Any, stored: list[object]
    ) -> None:
        kinds.write(pa.table({"id": pa.array(range(len(values)), pa.int64()), column: values}))
        assert [row[column] for row in written(kinds)] == stored
        assert kinds.schema.field(column).type == make_schema(KINDS).field(column).type

    @pytest.mark.parametrize(
        ("column", "values", "wrong"),
        [
            ("d", pa.array([1, 2**53 + 1]), "row 2 has 9007199254740993, which does not fit double exactly"),
            ("f", pa.array([2**24 + 1], pa.int32()), "row 1 has 16777217, which does not fit float exactly"),
            ("i", pa.array([4.0, 0.5]), "row 2 has 0.5, which does not fit int32 exactly"),
            ("i", pa.array([4.0, float("nan")]), "row 2 has nan"),
            ("i", pa.array([1e18]), "row 1 has 1e\\+18"),
            ("id", pa.array([-(2.0**63), 2.0**63]), "row 2 has 9.22"),
            ("id", pa.array([2**63], pa.uint64()), "row 1 has 9223372036854775808"),
            ("m", pa.array([1, 10**9]), "row 2 has 1000000000, which does not fit decimal"),
            ("i", pa.array([True]), "int32 in the table but bool in the data"),
            ("d", pa.array([Decimal("0.1")]), "double in the table but decimal"),
            ("v", pa.array([1]), "string in the table but int64 in the data"),
        ],
    )
    def test_are_refused_by_row_and_value_otherwise(
        self, kinds: siltstone.Table, column: str, values: Any, wrong: str
    ) -> None:
        before = objects_below(kinds.lake.root)
        ids = {"id": pa.array(range(len(values)), pa.int64())}
        with pytest.raises(InvalidInputError, match=f"column '{column}'.*{wrong}"):
            kinds.write(pa.table({**ids, column: values}))
        assert objects_below(kinds.lake.root) == before

    def test_the_row_is_counted_over_all_batches(self, kinds: siltstone.Table) -> None:
        batches = [pa.record_batch({"id": [n, n + 1], "d": [0, 2**60 if n == 4 else 0]}) for n in (0, 2, 4)]
        with pytest.raises(InvalidInputError, match="row 6 has 1152921504606846976"):
            kinds.write(batches)

    def test_also_deep_inside(self, local_root: str) -> None:
        kind = pa.struct([pa.field("prices", pa.list_(pa.float64())), pa.field("note", pa.string())])
        table = make_table(local_root, schema=pa.schema([pa.field("id", pa.int64()), pa.field("s", kind)]))
        table.write(pa.table({"id": [1, 2], "s": [{"prices": [1, None]}, None]}))
        assert written(table) == [{"id": 1, "s": {"prices": [1.0, None], "note": None}}, {"id": 2, "s": None}]
        with pytest.raises(InvalidInputError, match=r"row 2 has {'prices': "):
            table.write(pa.table({"id": [1, 2], "s": [None, {"prices": [2**60]}]}))
        with pytest.raises(InvalidInputError, match=r"struct<.*> in the table but struct<.*more.*> in the data"):
            table.write(pa.table({"id": [1], "s": [{"prices": [1.0], "more": 1}]}))


class TestRows:
    """Rows as dictionaries."""

    def test_are_written_with_the_types_of_the_table(self, kinds: siltstone.Table) -> None:
        rows: list[dict[str, object]] = [
            {"id": 1, "d": 2, "i": 3, "f": 0.1, "m": Decimal("1.5"), "v": "a"},
            {"id": 2, "new": {"x": [1]}},
        ]
        kinds.write(rows)
        assert kinds.schema.remove(kinds.schema.get_field_index("new")) == make_schema(KINDS)
        first, second = written(kinds)
        assert first == {**rows[0], "f": pytest.approx(0.1), "new": None}
        assert second == {"id": 2, "d": None, "i": None, "f": None, "m": None, "v": None, "new": {"x": [1]}}
        kinds.write({"id": number} for number in range(3))
        assert written(kinds) == [{"id": 0}, {"id": 1}, {"id": 2}]

    def test_may_be_deletes(self, kinds: siltstone.Table) -> None:
        kinds.write([{"id": 1, "op": "d"}], op_column="op")
        kinds.write([{"id": 1}], type="delete")
        assert [delta.type for delta in kinds.deltas()] == ["upsert", "delete"]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"id": 1}, r"a dictionary; use \[row\] for one row"),
            ([{"id": 1}, 3], "row 2 of the data is int, not a dictionary"),
            ([{1: 1}], "column named 1; column names must be text"),
            ([(1, 2)], "holds tuple"),
            ([{"id": 1, "i": 3}, {"id": 2, "i": 2**40}], "'i': row 2 has 1099511627776"),
            ([{"id": 1, "i": 1.5}], "'i': row 1 has 1.5"),
            ([{"id": 1, "i": "3"}], "'i' is int32 in the table but string"),
            ([{"id": 1, "i": True}], "'i' is int32 in the table but bool"),
            ([{"id": 1, "i": 3}, {"id": 2, "i": "x"}], "'i': its values have no type in common"),
            ([{"id": 1, "new": None}], "'new' has only nulls"),
            ([{"id": 1, "t": NOON}, {"id": 2, "t": NOON.replace(tzinfo=datetime.UTC)}], "'t': some of its times"),
            (["x"], "holds str"),
            ("x", "is str"),
        ],
    )
    def test_that_are_wrong_are_refused(self, kinds: siltstone.Table, data: Any, message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            kinds.write(data)
        assert kinds.deltas() == []

    def test_may_have_maps_where_the_table_has(self, local_root: str) -> None:
        fields = [{"name": "id", "type": "int64"}, {"name": "m", "type": {"map": ["string", "int64"]}}]
        table = make_table(local_root, schema=fields)
        table.write([{"id": 1, "m": {"k": 2}}, {"id": 2}])
        assert written(table) == [{"id": 1, "m": [("k", 2)]}, {"id": 2, "m": None}]


class TestExtensions:
    """Arrow's own extension types."""

    def test_uuids_are_text_unless_the_column_is_binary(self, kinds: siltstone.Table) -> None:
        data = pa.array([each and each.bytes for each in UUIDS], pa.uuid())
        kinds.write(pa.table({"id": [1, 2, 3], "v": data, "b": data, "new": data}).slice(1))
        last = UUIDS[2]
        assert last is not None
        assert written(kinds) == [
            {"id": 2, "v": None, "b": None, "new": None},
            {"id": 3, "v": str(last), "b": last.bytes, "new": str(last)},
        ]
        kinds.write([{"id": 1, "v": UUIDS[0], "b": UUIDS[0]}])
        assert written(kinds) == [{"id": 1, "v": str(UUIDS[0]), "b": UUIDS[0] and UUIDS[0].bytes}]

    def test_json_is_text(self, kinds: siltstone.Table) -> None:
        kinds.write(pa.table({"id": [1], "v": pa.array(['{"a": 1}'], pa.json_()), "new": pa.array(["[]"], pa.json_())}))
        assert written(kinds) == [{"id": 1, "v": '{"a": 1}', "new": "[]"}]

    def test_others_are_refused_by_name(self, kinds: siltstone.Table) -> None:
        tensor = pa.fixed_shape_tensor(pa.int32(), [2])
        values = pa.ExtensionArray.from_storage(tensor, pa.array([[1, 2]], pa.list_(pa.int32(), 2)))
        with pytest.raises(InvalidInputError, match=r"'t' has the extension type arrow.fixed_shape_tensor"):
            kinds.write(pa.table({"id": [1], "t": values}))


def test_runs_are_written_as_their_values(kinds: siltstone.Table) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["x", None]))
    kinds.write(pa.table({"id": [1, 2, 3], "v": runs}).slice(1))
    assert written(kinds) == [{"id": 2, "v": "x"}, {"id": 3, "v": None}]
