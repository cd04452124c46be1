"""The primary key index finds rows by hash, whichever way is cheaper, and says where it is damaged."""

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from siltstone.errors import CorruptionError
from siltstone.objects import canonical_root, open_objects
from siltstone.rows.columns import Hashes
from siltstone.rows.files import BLOCK_ROWS, MAGIC, StoredIndex, index_bytes, write_index


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
    assert np.frombuffer(data[40:52], "<u4").tolist() == [1, 2, 0]
    assert np.frombuffer(data[52:60], "<u8").tolist() == [1], "the first hash of the only block"
    assert np.frombuffer(data[60:], "<u4").tolist() == [zlib.crc32(data[16:52]), zlib.crc32(data[:16] + data[52:64])]
    assert len(data) == index_bytes(3)


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


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_any_byte_that_changes_is_noticed_by_whoever_reads_all(kind: str, new_root: Callable[[str], str]) -> None:
    root = canonical_root(new_root(kind))
    values = hashes(3, 1, 2**63 + 5, 2)
    stored(root, values)
    data = open_objects(root).read("a.pki")
    for at in range(len(data)):
        open_objects(root).replace("a.pki", data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
        with pytest.raises(CorruptionError, match=r"a\.pki.*damaged.*rebase"):
            StoredIndex(root, "a.pki", 4).find(values[:1])
        with pytest.raises(CorruptionError, match=r"a\.pki.*damaged.*rebase"):
            StoredIndex(root, "a.pki", 4).check()


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_a_key_is_found_in_large_indices_wherever_blocks_begin(local_root: str, shift: int) -> None:
    root = canonical_root(local_root)
    rng = np.random.default_rng(2)
    values = rng.integers(0, 2**64, 6 * BLOCK_ROWS + shift, dtype=np.uint64)
    rising = np.sort(values)
    # One hash that fills more than a block, so that it begins, goes on and ends in different ones.
    values[values >= rising[BLOCK_ROWS]] = np.where(
        values[values >= rising[BLOCK_ROWS]] <= rising[2 * BLOCK_ROWS + 7],
        rising[BLOCK_ROWS],
        values[values >= rising[BLOCK_ROWS]],
    )
    index = stored(root, values)
    rising = np.sort(values)
    edges = [0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS, 6 * BLOCK_ROWS + shift - 1]
    for wanted in [*rising[edges], np.uint64(0), np.uint64(2**64 - 1), rising[BLOCK_ROWS] + np.uint64(1)]:
        rows, found = StoredIndex(root, "a.pki", len(values)).find(np.array([wanted], np.uint64))
        assert rows.tolist() == np.flatnonzero(values == wanted).tolist()
        assert np.all(found == wanted)
    for count in (2, 100, 5000):
        wanted_many = np.unique(np.concatenate([rng.choice(values, count), rng.integers(0, 99, 9, dtype=np.uint64)]))
        rows, found = index.find(wanted_many)
        assert rows.tolist() == np.flatnonzero(np.isin(values, wanted_many)).tolist()
        assert found.tolist() == values[rows].tolist()


def test_a_lookup_reads_and_checks_only_the_blocks_that_may_have_its_key(local_root: str) -> None:
    root = canonical_root(local_root)
    values = np.arange(10 * BLOCK_ROWS, dtype=np.uint64)
    stored(root, values)
    data = bytearray(open_objects(root).read("a.pki"))
    data[16 + 8 * (4 * BLOCK_ROWS + 10)] ^= 1
    open_objects(root).replace("a.pki", bytes(data))
    index = StoredIndex(root, "a.pki", len(values))
    assert index.find(hashes(7))[0].tolist() == [7]
    for looked in (hashes(4 * BLOCK_ROWS + 10), hashes(7, 5 * BLOCK_ROWS - 1), values):
        with pytest.raises(CorruptionError, match="wrong checksum"):
            index.find(looked)
    with pytest.raises(CorruptionError, match="wrong checksum"):
        index.hashes_by_row()
