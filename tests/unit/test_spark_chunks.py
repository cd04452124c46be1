"""The chunks of bits by which Spark leaves out dead rows, and for how many rows there is room."""

from pathlib import Path

import pyarrow as pa
import pytest

from siltstone.model.buckets import CompactedFile
from siltstone.rows.files import StoredFile
from siltstone.spark import native
from tests.unit.rounds.compaction import compact, make_table, rows

SIZES = (("a", 100), ("b", 200), ("c", 100))


def test_a_chunk_has_a_bit_for_each_row_and_none_is_made_without_a_dead_row(tmp_path: Path) -> None:
    table = make_table(str(tmp_path))
    size = 2 * native.CHUNK_ROWS + 65
    dead = [1, 64, 2 * native.CHUNK_ROWS, size - 1]
    table.write(rows(range(size)))
    compact(table)
    table.write(pa.table({"id": dead}), "delete")
    compact(table)
    (file,) = [file for file in table.current_rounds()[0].files if file.deletion_vector]
    chunks = native.dead_chunks(table.lake.root, -7, [file]).to_pylist()
    found = []
    for chunk in chunks:
        first = (chunk["_siltstone_chunk"] & 0xFFFFFFFF) * native.CHUNK_ROWS
        for word, bits in enumerate(chunk["_siltstone_bits"]):
            found += [first + 64 * word + bit for bit in range(64) if bits >> bit & 1]
    assert found == list(StoredFile(table.lake.root, file).dead)
    assert len(found) == len(dead)
    assert {chunk["_siltstone_chunk"] >> 32 for chunk in chunks} == {-7}
    # The last chunk is no longer than its rows.
    assert [len(chunk["_siltstone_bits"]) for chunk in chunks] == [512, 2]


def test_files_are_told_apart_by_their_sizes_or_where_two_have_the_same_by_their_names() -> None:
    files = [CompactedFile(uri=f"f/{name}.parquet", record_count=1, content_length=size) for name, size in SIZES]
    assert native._choose_numbering([[file] for file in files[:2]]) is native._BY_SIZE
    assert native._choose_numbering([[file] for file in files]) is native._BY_NAME
    large = CompactedFile(uri="f/d.parquet", record_count=1, content_length=1 << 31)
    assert native._choose_numbering([[files[0]], [large]]) is native._BY_NAME
    assert [native._BY_SIZE.number(file) for file in files] == [100, 200, 100]
    # As the JVM has them: 32 bits with a sign.
    assert {-(1 << 31) <= native._BY_NAME.number(file) < 1 << 31 for file in files} == {True}


@pytest.mark.parametrize(
    ("size", "expected"), [("1g", 1 << 30), ("512m", 512 << 20), ("2048", 2 << 30), (" 4GB ", 4 << 30), ("", 0)]
)
def test_sizes_are_read_as_spark_writes_them(size: str, expected: int) -> None:
    assert native._bytes(size) == expected
