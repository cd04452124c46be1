"""The primary key index finds rows by hash, reads no more than it takes, and says where it is damaged."""

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import obstore
import pytest

from siltstone.errors import CorruptionError
from siltstone.objects import canonical_root, open_objects
from siltstone.rows.columns import Hashes
from siltstone.rows.index import BLOCK_CELLS, MAGIC, StoredIndex, plain_index_bytes, write_index

TRAILER = "<QQQBBxx"
# Hashes one after another fill cells of two rows each.
BLOCK_ROWS = 2 * BLOCK_CELLS


def hashes(*values: int) -> Hashes:
    return np.array(values, np.uint64)


def stored(root: str, values: Hashes) -> StoredIndex:
    open_objects(root).delete(["a.pki"])
    length = write_index(root, "a.pki", values)
    assert length == len(open_objects(root).read("a.pki"))
    return StoredIndex(root, "a.pki", len(values), length)


def sealed(data: bytes | bytearray) -> bytes:
    """Return an index of one block that was changed, with checksums that are right."""
    block, rows, trailer = bytes(data[:-48]), bytes(data[-48:-44]), bytes(data[-40:-12])
    footer = rows + zlib.crc32(block).to_bytes(4, "little") + trailer
    return block + footer + zlib.crc32(footer).to_bytes(4, "little") + MAGIC


def plain_index(values: Hashes) -> bytes:
    """Return an index in the format of earlier versions."""
    order = np.argsort(values)
    rising, rows = values[order].astype("<u8"), order.astype("<u4")
    starts = range(0, len(values), 4096)
    sums = [zlib.crc32(rising[at : at + 4096].tobytes() + rows[at : at + 4096].tobytes()) for at in starts]
    header = b"SILTPKI1" + len(values).to_bytes(8, "little")
    lists = rising[::4096].tobytes() + np.array(sums, "<u4").tobytes()
    checksum = zlib.crc32(header + lists).to_bytes(4, "little")
    return header + rising.tobytes() + rows.tobytes() + lists + checksum


def check_finds(index: StoredIndex, values: Hashes, wanted: Hashes) -> None:
    rows, slots = index.find(wanted)
    assert rows.tolist() == np.flatnonzero(np.isin(values, wanted)).tolist()
    assert wanted[slots].tolist() == values[rows].tolist()


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
        hashes(499, 0, 17),
        np.arange(300, dtype=np.uint64),
        np.unique(values),
    ):
        check_finds(index, values, wanted)
    assert index.hashes_by_row().tolist() == values.tolist()


def test_rows_with_one_hash_are_all_found(local_root: str) -> None:
    index = stored(canonical_root(local_root), hashes(*([5] * 40), 1, 9, 5))
    assert index.find(hashes(5))[0].tolist() == [*range(40), 42]
    assert index.find(hashes(4, 6))[0].tolist() == []


@pytest.mark.parametrize("repeats", [1, 15, 16, 255, 256, 65535, 65536])
def test_a_cell_has_as_many_rows_as_have_its_hash(local_root: str, repeats: int) -> None:
    values = np.concatenate([np.full(repeats, 2**63, np.uint64), hashes(0, 2**64 - 1)])
    index = stored(canonical_root(local_root), values)
    check_finds(index, values, hashes(2**63))
    check_finds(index, values, hashes(0, 1, 2**64 - 1))
    assert index.hashes_by_row().tolist() == values.tolist()


def test_an_empty_index_finds_nothing(local_root: str) -> None:
    index = stored(canonical_root(local_root), hashes())
    assert index.find(hashes(1))[0].tolist() == []
    assert index.find(hashes())[0].tolist() == []
    index.check()


def test_the_layout_is_as_documented(local_root: str) -> None:
    root = canonical_root(local_root)
    stored(root, hashes(3 << 50, 1 << 50, (1 << 50) + 7))
    data = open_objects(root).read("a.pki")
    footer = data[-48:]
    assert footer[-8:] == MAGIC == b"SILTPKI2"
    assert zlib.crc32(footer[:-12]) == int.from_bytes(footer[-12:-8], "little")
    assert struct.unpack(TRAILER, footer[8:-12]) == (3, 0, 2, 51, 4), (
        "rows, first cell, cells, low bits, bits of a count"
    )
    assert struct.unpack("<II", footer[:8]) == (3, zlib.crc32(data[:-48]))
    assert len(data[:-48]) == 1 + 51 + 2
    assert data[0] == 2 | 1 << 4, "two rows in the first cell, one in the second"
    lows, rows = int.from_bytes(data[1:52], "little"), int.from_bytes(data[52:54], "little")
    assert [lows >> 51 * place & (1 << 51) - 1 for place in range(4)] == [1 << 50, (1 << 50) + 7, 1 << 50, 0]
    assert [rows >> 2 * place & 3 for place in range(8)] == [1, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("depth", "limit"), [(4, 8.0), (12, 7.0), (20, 6.0)])
def test_an_index_is_little_more_than_its_hashes_less_the_depth(local_root: str, depth: int, limit: float) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 2 ** (64 - depth), 200_000, dtype=np.uint64)
    assert write_index(canonical_root(local_root), "a.pki", values) < limit * len(values)


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
        "magic": data[:-1] + b"X",
        "count": data[:-40] + (4).to_bytes(8, "little") + data[-32:],
    }
    if damage == "missing":
        open_objects(root).delete(["a.pki"])
    else:
        open_objects(root).replace("a.pki", damaged[damage])
    for length in (len(data), None):
        with pytest.raises(CorruptionError, match=r"a\.pki.*rebase"):
            StoredIndex(root, "a.pki", 3, length).find(hashes(1))


def test_an_index_of_another_file_is_refused(local_root: str) -> None:
    root = canonical_root(local_root)
    stored(root, hashes(3, 1, 2))
    with pytest.raises(CorruptionError, match=r"a\.pki.*3 rows instead of 2"):
        StoredIndex(root, "a.pki", 2).find(hashes(1))
    with pytest.raises(CorruptionError, match=r"a\.pki.*bytes instead of 9"):
        StoredIndex(root, "a.pki", 3, 9).find(hashes(1))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_any_byte_that_changes_and_any_cut_is_noticed_by_whoever_reads_all(
    kind: str, new_root: Callable[[str], str]
) -> None:
    root = canonical_root(new_root(kind))
    values = hashes(3, 1, 2**63 + 5, 2)
    stored(root, values)
    data = open_objects(root).read("a.pki")
    flipped = [data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :] for at in range(len(data))]
    for damaged in (*flipped, *(data[:at] for at in range(len(data))), *(data[at:] for at in range(1, len(data)))):
        open_objects(root).replace("a.pki", damaged)
        for act in (StoredIndex.check, StoredIndex.hashes_by_row, lambda index: index.find(values[:1])):
            with pytest.raises(CorruptionError, match=r"a\.pki.*damaged.*rebase"):
                act(StoredIndex(root, "a.pki", 4))


@pytest.mark.parametrize(
    "lie",
    [
        (4, 0, 1 << 60, 56, 4),
        (4, 0, 2**64 - 1, 56, 4),
        (4, 0, 0, 56, 4),
        (4, 0, 200, 56, 4),
        (4, 9, 129, 56, 4),
        (4, 0, 129, 57, 4),
        (4, 0, 129, 255, 4),
        (4, 0, 129, 40, 4),
        (4, 0, 129, 56, 5),
        (4, 0, 129, 56, 0),
        (4, 0, 129, 56, 8),
        (2**63, 0, 129, 56, 4),
    ],
)
def test_a_footer_that_lies_is_noticed(lie: tuple[int, ...], local_root: str) -> None:
    """Its checksum is right, but it does not fit the rest."""
    root = canonical_root(local_root)
    values = hashes(3, 1, 2**63 + 5, 2)
    stored(root, values)
    data = open_objects(root).read("a.pki")
    assert struct.unpack(TRAILER, data[-40:-12]) == (4, 0, 129, 56, 4)
    footer = data[-48:-40] + struct.pack(TRAILER, *lie)
    open_objects(root).replace("a.pki", data[:-48] + footer + zlib.crc32(footer).to_bytes(4, "little") + MAGIC)
    index = StoredIndex(root, "a.pki", 4)
    if lie == (4, 9, 129, 56, 4):
        assert index.hashes_by_row().tolist() != values.tolist(), "which `fsck --deep` tells"
        return
    with pytest.raises(CorruptionError, match=r"a\.pki.*damaged.*rebase"):
        index.check()


@pytest.mark.parametrize("at", [0, 1, 64])
def test_a_block_that_lies_is_noticed(at: int, local_root: str) -> None:
    """Cells with other counts, though every checksum is right."""
    root = canonical_root(local_root)
    stored(root, hashes(3, 1, 2**63 + 5, 2))
    data = bytearray(open_objects(root).read("a.pki"))
    data[at] ^= 5
    open_objects(root).replace("a.pki", sealed(data))
    with pytest.raises(CorruptionError, match=r"a\.pki.*cells do not add up.*rebase"):
        StoredIndex(root, "a.pki", 4).find(hashes(1))


def test_rows_that_the_file_does_not_have_are_noticed(local_root: str) -> None:
    root = canonical_root(local_root)
    stored(root, hashes(3, 1, 2))
    data = bytearray(open_objects(root).read("a.pki"))
    data[-50] |= 3
    open_objects(root).replace("a.pki", sealed(data))
    with pytest.raises(CorruptionError, match=r"a\.pki.*a row that is not in the file.*rebase"):
        StoredIndex(root, "a.pki", 3).check()


@pytest.mark.parametrize("shift", [0, 1, -1])
def test_a_key_is_found_in_large_indices_wherever_blocks_begin(local_root: str, shift: int) -> None:
    root = canonical_root(local_root)
    rng = np.random.default_rng(2)
    values = rng.integers(0, 2**64, 6 * BLOCK_ROWS + shift, dtype=np.uint64)
    rising = np.sort(values)
    edges = [0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS, 6 * BLOCK_ROWS + shift - 1]
    index = stored(root, values)
    for wanted in [*rising[edges], np.uint64(0), np.uint64(2**64 - 1), rising[BLOCK_ROWS] + np.uint64(1)]:
        check_finds(StoredIndex(root, "a.pki", len(values)), values, np.array([wanted], np.uint64))
    for count in (2, 100, 5000):
        some = np.concatenate([rng.choice(values, count), rng.integers(0, 99, 9, dtype=np.uint64)])
        check_finds(index, values, np.unique(some))


@pytest.mark.parametrize("count", [1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS])
def test_blocks_may_be_exactly_full(local_root: str, count: int) -> None:
    values = np.arange(count, dtype=np.uint64)[::-1].copy()
    index = stored(canonical_root(local_root), values)
    assert index.hashes_by_row().tolist() == values.tolist()
    check_finds(index, values, np.unique(values[:: max(count // 7, 1)]))
    assert index.find(hashes(count, 2**64 - 1))[0].tolist() == []


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_lookup_reads_and_checks_only_the_blocks_that_may_have_its_key(
    kind: str, new_root: Callable[[str], str]
) -> None:
    root = canonical_root(new_root(kind))
    values = np.arange(10 * BLOCK_ROWS, dtype=np.uint64)
    stored(root, values)
    data = bytearray(open_objects(root).read("a.pki"))
    damaged = 4 * BLOCK_ROWS + 10
    data[len(data) * damaged // len(values)] ^= 1
    open_objects(root).replace("a.pki", bytes(data))
    index = StoredIndex(root, "a.pki", len(values))
    assert index.find(hashes(7))[0].tolist() == [7]
    for looked in (hashes(damaged), hashes(7, 5 * BLOCK_ROWS - 1), values):
        with pytest.raises(CorruptionError, match="wrong checksum"):
            index.find(looked)
    with pytest.raises(CorruptionError, match="wrong checksum"):
        index.hashes_by_row()
    with pytest.raises(CorruptionError, match="wrong checksum"):
        index.check()


class TestRequests:
    """What is asked of a store: the end, then the blocks that are wanted; or everything at once."""

    VALUES = np.arange(0, 2**64, 2**64 // 600_000, dtype=np.uint64)

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the requests that are made from now on."""
        requests: list[str] = []

        class Counting:
            def get(self, *given: Any, **named: Any) -> Any:
                requests.append("end" if "options" in named else "all")
                return obstore.get(*given, **named)

            def get_range(self, *given: Any, **named: Any) -> Any:
                requests.append("part")
                return obstore.get_range(*given, **named)

            def __getattr__(self, name: str) -> Any:
                return getattr(obstore, name)

        monkeypatch.setattr("siltstone.objects.store.obstore", Counting())
        return requests

    @pytest.fixture
    def index(self, new_root: Callable[[str], str]) -> StoredIndex:
        """Return an index of 5 MB."""
        root = canonical_root(new_root("memory"))
        stored(root, self.VALUES)
        return StoredIndex(root, "a.pki", len(self.VALUES))

    @pytest.mark.parametrize(
        ("looks", "expected"),
        [
            ([[0]], ["end", "part"]),
            ([[0], [1, 2]], ["end", "part"]),
            ([[0, 10_000, 50_000]], ["end", "part"]),
            ([[0, 300_000]], ["end", "part", "part"]),
            ([range(0, 600_000, 1000)], ["all"]),
            ([[0], range(0, 600_000, 1000)], ["end", "part", "part"]),
            ([[599_999]], ["end"]),
        ],
        ids=["one key", "what is there", "neighbours", "far away", "many", "more than a third", "at the end"],
    )
    def test_no_more_is_asked_for_than_it_takes(
        self, looks: list[Sequence[int]], expected: list[str], index: StoredIndex, asked: list[str]
    ) -> None:
        for look in looks:
            check_finds(index, self.VALUES, self.VALUES[list(look)])
        assert asked == expected

    def test_a_small_index_is_there_with_its_end(self, new_root: Callable[[str], str], asked: list[str]) -> None:
        root = canonical_root(new_root("memory"))
        values = np.arange(0, 2**64, 2**64 // 7_000, dtype=np.uint64)
        write_index(root, "a.pki", values)
        check_finds(StoredIndex(root, "a.pki", len(values)), values, values[5:6])
        assert len(asked) == 1

    def test_an_object_that_became_shorter_is_damaged(
        self, index: StoredIndex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index.find(self.VALUES[:1])
        monkeypatch.setattr("siltstone.objects.store._StoredObject.read", lambda *_: b"")
        with pytest.raises(CorruptionError, match=r"a\.pki.*damaged.*rebase"):
            index.find(self.VALUES[300_000:300_001])


class TestPlain:
    """Indices of earlier versions: hashes and rows are not packed, and the size follows from the number of rows."""

    @pytest.mark.parametrize("kind", ["local", "memory"])
    @pytest.mark.parametrize("count", [0, 1, 5, 4096, 9000])
    def test_rows_are_found(self, kind: str, count: int, new_root: Callable[[str], str]) -> None:
        root = canonical_root(new_root(kind))
        values = np.random.default_rng(4).integers(0, 2**64, count, dtype=np.uint64)
        data = plain_index(values)
        assert len(data) == plain_index_bytes(count)
        open_objects(root).replace("a.pki", data)
        for wanted in (values[:1], np.unique(values), hashes(17)):
            check_finds(StoredIndex(root, "a.pki", count), values, wanted)
        assert StoredIndex(root, "a.pki", count).hashes_by_row().tolist() == values.tolist()

    def test_any_byte_that_changes_and_any_cut_is_noticed(self, local_root: str) -> None:
        root = canonical_root(local_root)
        values = hashes(3, 1, 2**63 + 5, 2)
        data = plain_index(values)
        flipped = [data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :] for at in range(len(data))]
        for damaged in (*flipped, *(data[:at] for at in range(len(data)))):
            open_objects(root).replace("a.pki", damaged)
            with pytest.raises(CorruptionError, match=r"a\.pki.*damaged.*rebase"):
                StoredIndex(root, "a.pki", 4).find(values[:1])
