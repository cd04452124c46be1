"""Text keeps its dictionary on the way from file to file, but no row group has the dictionary of all others."""

import pyarrow as pa
import pytest

import siltstone

ROWS = 6000


def compacted_bytes(table: siltstone.Table) -> int:
    return sum(file.content_length for completion in table.current_rounds() for file in completion.files)


@pytest.mark.parametrize(
    "texts",
    [
        [f"day {number // 20:05}" for number in range(ROWS)],
        [None if number < ROWS / 2 else f"value {number:05}" for number in range(ROWS)],
        [f"status {number % 3}" for number in range(ROWS)],
    ],
    ids=["many values, each in a row", "empty at first, then unique", "few values"],
)
def test_a_rewrite_does_not_make_files_larger(texts: list[str | None], local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders",
        schema={"id": "int64", "text": "string"},
        primary_keys="id",
        properties={"row_group_rows": "64"},
    )
    table.write(pa.table({"id": range(ROWS), "text": texts}))
    table.compact(engine="local")
    before = compacted_bytes(table)
    for _ in range(2):
        table.compact(full=True, engine="local")
        assert compacted_bytes(table) < 1.2 * before
    assert table.to_arrow().sort_by("id").column("text").to_pylist() == texts
