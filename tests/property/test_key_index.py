"""Whatever hashes an index has, it finds the rows that a dictionary finds, and notices any byte that changed."""

import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from siltstone.errors import CorruptionError
from siltstone.objects import open_objects
from siltstone.rows.index import BLOCK_CELLS, StoredIndex, write_index

ROOT = "memory://key-index"
LAST = 2**64 - 1
NAMES = itertools.count()

few = st.integers(0, 40)
edges = st.sampled_from([0, 1, 2**32, 2**56 - 1, 2**56, 2**63, LAST - 1, LAST])
hash_lists = st.lists(st.one_of(few, edges, st.integers(0, LAST)), max_size=200)


def written(values: list[int]) -> str:
    path = f"{next(NAMES)}.pki"
    write_index(ROOT, path, np.array(values, np.uint64))
    return path


@given(hash_lists, hash_lists, st.integers(1, 60))
@example([0, LAST], [0, LAST], 1)
@example([LAST] * 20, [LAST, LAST - 1], 1)
@example(list(range(2 * BLOCK_CELLS)), [0, 2 * BLOCK_CELLS - 1, 2 * BLOCK_CELLS], 1)
@example(list(range(0, LAST, LAST // 9000)), list(range(0, LAST, LAST // 90)), 1)
@example([7], [7], 20)
def test_rows_are_those_that_a_dictionary_finds(values: list[int], others: list[int], repeats: int) -> None:
    values = [value for place, value in enumerate(values) for _ in range(repeats if place % 7 == 3 else 1)]
    rows = defaultdict(list)
    for row, value in enumerate(values):
        rows[value].append(row)
    wanted = list(dict.fromkeys([*values[::2], *others]))
    path = written(values)
    index = StoredIndex(ROOT, path, len(values), len(open_objects(ROOT).read(path)))
    found, slots = index.find(np.array(wanted, np.uint64))
    assert found.tolist() == sorted(row for value in wanted for row in rows.get(value, ()))
    assert [wanted[slot] for slot in slots.tolist()] == [values[row] for row in found.tolist()]
    assert index.hashes_by_row().tolist() == values


@given(hash_lists.filter(bool), st.data())
def test_a_changed_byte_or_a_cut_is_noticed(values: list[int], data: st.DataObject) -> None:
    path = written(values)
    whole = open_objects(ROOT).read(path)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for damaged in (changed, whole[:at]):
        open_objects(ROOT).replace(path, damaged)
        with pytest.raises(CorruptionError, match="damaged"):
            StoredIndex(ROOT, path, len(values)).check()
