"""The primary key index finds rows by hash, whichever way is cheaper, and says where it is damaged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from siltstone.compactor.hashing import Hashes
from siltstone.compactor.index import MAGIC, StoredIndex, write_index
from siltstone.errors import CorruptionError
from siltstone.objects import canonical_root, open_objects


def hashes(*values: int) -> Hashes:
    return np.array(values, np.uint64)


def stored(root: str, values: Hashes) -> StoredIndex:
    write_index(root, "a.pki", values)
    return StoredIndex(root, "a.pki", len(values))


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_a_few_hashes_and_many_are_found_alike(kind: str, new_root: Callable[[str], str]) -> None:
    root = canonical_root(new_root(kind))
    rng = np.random.default_rng(1)
    values = rng.integers(0, 500, 1000).astype(np.uint64)
    values[[7, 900]] = [0, 2**64 - 1]
    index = stored(root, values)
    for wanted in (
        hashes(),
        hashes(0),
        hashes(2**64 - 1),
        hashes(0, 17, 499, 10**9, 2**64 - 1),
        np.arange(300, dtype=np.uint64),
        np.unique(values),
    ):
        rows, found = index.find(wanted)
        assert rows.tolist() == np.flatnonzero(np.isin(values, wanted)).tolist()
        assert found.tolist() == values[rows].tolist()
    assert index.hashes_by_row().tolist() == values.tolist()


def test_rows_with_one_hash_are_all_found(local_root: str) -> None:
    index = stored(canonical_root(local_root), hashes(*([5] * 40), 1, 9, 5))
    assert index.find(hashes(5))[0].tolist() == [*range(40), 42]
    assert index.find(hashes(4, 6))[0].tolist() == []


def test_an_empty_index_finds_nothing(local_root: str) -> None:
    index = stored(canonical_root(local_root), hashes())
    assert index.find(hashes(1))[0].tolist() == []
    assert index.find(hashes())[0].tolist() == []


def test_the_layout_is_as_documented(local_root: str) -> None:
    root = canonical_root(local_root)
    stored(root, hashes(3, 1, 2))
    data = open_objects(root).read("a.pki")
    assert data[:16] == MAGIC + (3).to_bytes(8, "little")
    assert np.frombuffer(data[16:40], "<u8").tolist() == [1, 2, 3]
    assert np.frombuffer(data[40:], "<u4").tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "long", "magic", "count"])
def test_a_missing_or_damaged_index_is_named(kind: str, damage: str, new_root: Callable[[str], str]) -> None:
    root = canonical_root(new_root(kind))
    stored(root, hashes(3, 1, 2))
    data = open_objects(root).read("a.pki")
    damaged = {
        "empty": b"",
        "short": data[:-1],
        "long": data + b"x",
        "magic": b"X" + data[1:],
        "count": data[:8] + (4).to_bytes(8, "little") + data[16:],
    }
    if damage == "missing":
        open_objects(root).delete(["a.pki"])
    else:
        open_objects(root).replace("a.pki", damaged[damage])
    with pytest.raises(CorruptionError, match=r"a\.pki.*rebase"):
        StoredIndex(root, "a.pki", 3)


def test_an_index_of_another_file_is_refused(local_root: str) -> None:
    root = canonical_root(local_root)
    stored(root, hashes(3, 1, 2))
    with pytest.raises(CorruptionError, match=r"a\.pki"):
        StoredIndex(root, "a.pki", 2)
    assert Path(local_root, "a.pki").exists()
