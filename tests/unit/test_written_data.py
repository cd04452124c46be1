"""What `Table.write` takes, and what it refuses before anything is written."""

from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.storage import object_store as storage
from tests.unit.compactor.compacting import check_rows, compact, make_table, objects_below, rows

STRICT = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string(), False)])


def written(table: siltstone.Table) -> list[dict[str, object]]:
    """Return the rows of the newest delta."""
    return [
        row for each in table.deltas()[-1:] for row in storage.download_delta(each, root=table.lake.root).to_pylist()
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
        for call in (
            lambda: table.to_arrow(as_of=position),
            lambda: table.compact(to=position),
            lambda: table.compact(high_watermark=position),
            lambda: compact(table, last_stream_position=position),
            lambda: compact(table, rebase_high_watermark=position),
        ):
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
