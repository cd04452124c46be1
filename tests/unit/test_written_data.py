"""What `Table.write` takes, and what it refuses before anything is written."""

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.storage import object_store as storage
from tests.unit.compactor.compacting import make_table, objects_below

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
