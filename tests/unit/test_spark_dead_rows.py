"""The words of bits by which Spark leaves out dead rows, in which scan each file is, and for how many rows there is room."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from siltstone.model.buckets import CompactedFile
from siltstone.rows.files import StoredFile
from siltstone.spark import native
from tests.unit.rounds.compaction import compact, make_table, rows

SIZES = (("a", 100), ("b", 200), ("c", 100))


def file_of(name: str, size: int, row_count: int = 1) -> CompactedFile:
    return CompactedFile(uri=f"f/{name}.parquet", record_count=row_count, content_length=size)


def test_there_is_a_bit_for_each_row_in_whole_words(tmp_path: Path) -> None:
    table = make_table(str(tmp_path))
    size = 1000
    dead = [1, 63, 64, 128, size - 1]
    table.write(rows(range(size)))
    compact(table)
    table.write(pa.table({"id": dead}), "delete")
    compact(table)
    (file,) = [file for file in table.current_rounds()[0].files if file.deletion_vector]
    words = native.dead_words(table.lake.root, [file]).tolist()
    assert [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1] == list(
        StoredFile(table.lake.root, file).dead
    )
    assert sum((word & 2**64 - 1).bit_count() for word in words) == len(dead)
    assert len(words) == 16


def test_files_are_told_apart_by_their_sizes_or_where_two_have_the_same_by_their_names() -> None:
    files = [file_of(*each) for each in SIZES]
    assert native._choose_numbering([[file] for file in files[:2]]) is native._BY_SIZE
    assert native._choose_numbering([[file] for file in files]) is native._BY_NAME
    assert native._choose_numbering([[files[0]], [file_of("d", 1 << 32)]]) is native._BY_NAME
    assert [native._BY_SIZE.number(file) for file in files] == [100, 200, 100]
    assert {0 <= native._BY_NAME.number(file) < 1 << 32 for file in files} == {True}


@pytest.mark.parametrize("count", [1, 2, 3, 12, 64, 1000])
@pytest.mark.parametrize("step", [1, 64, 4096, 1 << 20])
def test_each_file_of_a_scan_has_a_place_of_its_own_in_a_small_array(count: int, step: int) -> None:
    for numbers in (
        range(7, 7 + count * step, step),
        np.random.default_rng(count).permutation(1 << 22)[:count].tolist(),
    ):
        shift, size = native._spread(numbers)
        assert len({native._place(number, shift, size) for number in numbers}) == count
        assert size <= 1 << 19


def test_scans_have_as_many_files_as_they_may_and_never_two_of_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_SCAN_ROWS", 10)
    monkeypatch.setattr(native, "_MOST_FILES", 3)
    files = [
        [file_of(str(number), size, rows)]
        for number, (size, rows) in enumerate([(1, 4), (2, 6), (1, 4), (3, 40), (4, 1), (5, 1), (6, 1)])
    ]
    shared = native._shared_out(files, native._BY_SIZE)
    # The fourth has more rows than a scan should have; the third has the number of the first.
    assert [list(scan) for scan in shared] == [[1, 2], [1, 4, 5], [3], [6]]
    monkeypatch.setattr(native, "_MOST_SCANS", 2)
    assert [list(scan) for scan in native._shared_out(files, native._BY_SIZE)] == [[1, 2, 4], [1, 5, 6], [3]]
    assert native._shared_out([], native._BY_SIZE) == []


@pytest.mark.parametrize(
    ("size", "expected"), [("1g", 1 << 30), ("512m", 512 << 20), ("2048", 2 << 30), (" 4GB ", 4 << 30), ("", 0)]
)
def test_sizes_are_read_as_spark_writes_them(size: str, expected: int) -> None:
    assert native._bytes(size) == expected
