"""Hashes are stored, so they are pinned here: a test that fails means that stored tables would no longer be found."""

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from siltstone.errors import InvalidInputError
from siltstone.rows.columns import NULL_HASH, hash_keys, is_exact

NULL = 0x6E756C6C6E756C6C
ZERO = 0xE220A8397B1DCDAF
NEW_YEAR = datetime.datetime(2026, 1, 1)
VECTORS: list[tuple[pa.DataType, list[tuple[Any, int]]]] = [
    (pa.int8(), [(1, 0x910A2DEC89025CC1), (-1, 0xE4D971771B652C20), (0, ZERO), (None, NULL)]),
    (pa.int16(), [(1, 0x910A2DEC89025CC1), (-1, 0xE4D971771B652C20)]),
    (pa.int32(), [(1, 0x910A2DEC89025CC1), (-1, 0xE4D971771B652C20)]),
    (
        pa.int64(),
        [
            (1, 0x910A2DEC89025CC1),
            (-1, 0xE4D971771B652C20),
            (0, ZERO),
            (None, NULL),
            (2**63 - 1, 0x2A67D7552E039EA7),
            (-(2**63), 0x481EC0A212A9F3DB),
        ],
    ),
    (pa.bool_(), [(True, 0x910A2DEC89025CC1), (False, ZERO), (None, NULL)]),
    (
        pa.float32(),
        [
            (0.0, ZERO),
            (-0.0, ZERO),
            (1.5, 0xD6DAB18E1392608A),
            (math.nan, 0xC72971D82E15BB46),
            (math.inf, 0x249E5410C2F97D99),
            (None, NULL),
        ],
    ),
    (
        pa.float64(),
        [
            (0.0, ZERO),
            (-0.0, ZERO),
            (1.5, 0xD6DAB18E1392608A),
            (math.nan, 0xC72971D82E15BB46),
            (0.1, 0xF823E4ED2FB12A7D),
            (-1e300, 0xE1D15FF6678D4B5E),
        ],
    ),
    (
        pa.string(),
        [
            ("", ZERO),
            ("a", 0x5A255BC412CE7CEC),
            ("ab", 0xC79CD8FF1D557303),
            ("ba", 0x95CDE34DC249CEAF),
            ("é", 0x7DD7BE43BB02118E),
            ("\U0001f642", 0xF22AD16091D9B1FB),
            ("x" * 1000, 0xAA1BC169EF6B963A),
            (None, NULL),
        ],
    ),
    (
        pa.binary(),
        [
            (b"", ZERO),
            (b"a", 0x5A255BC412CE7CEC),
            (b"\x00", 0xACE25AE4FB85E8D6),
            (b"\x00\x00", 0xFDDF804CB40AD89F),
            (b"\xff", 0xEEE6497F2BEE3062),
            (None, NULL),
        ],
    ),
    (
        pa.date32(),
        [
            (datetime.date(2026, 11, 15), 0x5B35A7791BB8B4B1),
            (datetime.date(1905, 2, 28), 0x4F287123536DB21E),
            (None, NULL),
        ],
    ),
    (pa.time64("us"), [(datetime.time(1, 2, 3, 4), 0x451CF024973FD08A), (None, NULL)]),
    (pa.timestamp("us"), [(NEW_YEAR, 0x6C0C046FA14B4BC8), (None, NULL)]),
    (pa.timestamp("us", tz="UTC"), [(NEW_YEAR.replace(tzinfo=datetime.UTC), 0x6C0C046FA14B4BC8), (None, NULL)]),
    (pa.duration("us"), [(datetime.timedelta(seconds=1), 0x680D1CCE9CFF45E7), (None, NULL)]),
    (
        pa.decimal128(6, 2),
        [
            (Decimal("1.50"), 0x2049015CB3EC742B),
            (Decimal("-9999.99"), 0xC5DD83602D5C3AC8),
            (Decimal("0.00"), ZERO),
            (None, NULL),
        ],
    ),
    (
        pa.decimal128(38, 0),
        [(Decimal(10) ** 37, 0x93745ACCF3624FA7), (1 - Decimal(10) ** 37, 0x81B09D7711709E89)],
    ),
]


def hashes_of(values: list[Any], kind: pa.DataType) -> list[int]:
    return [int(hash_key) for hash_key in hash_keys(pa.table({"k": pa.array(values, kind)}), ["k"])]


@pytest.mark.parametrize(("kind", "vectors"), VECTORS, ids=[str(kind) for kind, _ in VECTORS])
def test_stored_hashes_of_each_type_do_not_change(kind: pa.DataType, vectors: list[tuple[Any, int]]) -> None:
    assert hashes_of([value for value, _ in vectors], kind) == [expected for _, expected in vectors]


@pytest.mark.parametrize(("kind", "vectors"), VECTORS, ids=[str(kind) for kind, _ in VECTORS])
def test_a_slice_a_chunked_column_and_a_batch_hash_like_the_rows_they_have(
    kind: pa.DataType, vectors: list[tuple[Any, int]]
) -> None:
    values = [value for value, _ in vectors] * 3
    expected = [expected for _, expected in vectors] * 3
    whole = pa.array(values, kind)
    for start in range(len(values)):
        part = pa.record_batch({"k": whole.slice(start, max(len(values) - start - 1, 0))})
        assert hash_keys(part, ["k"]).tolist() == expected[start : start + part.num_rows]
    chunked = pa.chunked_array([whole.slice(1, 3), whole.slice(4, 0), whole.slice(4)])
    assert hash_keys(pa.table({"k": chunked}), ["k"]).tolist() == expected[1:]


@pytest.mark.parametrize("kind", [kind for kind, _ in VECTORS], ids=str)
def test_no_rows_have_no_hashes_and_nulls_have_one(kind: pa.DataType) -> None:
    assert hashes_of([], kind) == []
    assert hash_keys(pa.table({"k": pa.nulls(2, kind)}), ["k"]).tolist() == [NULL_HASH, NULL_HASH]


def test_composite_keys_depend_on_the_order_of_columns_and_on_which_one_is_null() -> None:
    table = pa.table({"a": [1, None, 1], "b": ["x", "x", None]})
    assert hash_keys(table, ["a", "b"]).tolist() == [0x9CF283272902278B, 0x07E2023557C50CFF, 0x4A2937A3B40DDA29]
    assert hash_keys(table, ["b", "a"]).tolist() == [0x526609688C6ED6E0, 0x16D232E988AC9761, 0xE6041920920E683A]


def test_decimals_hash_by_value_whatever_their_scale() -> None:
    values = [Decimal("1.5"), Decimal("-1.5"), Decimal("0"), Decimal("9999.9"), Decimal("-0.1")]
    narrow, wide, widest = (hashes_of(values, pa.decimal128(*kind)) for kind in ((6, 1), (10, 4), (38, 20)))
    assert narrow == wide == widest
    assert len(set(narrow)) == len(values)


def test_many_decimals_of_both_signs_hash_apart() -> None:
    values = [Decimal(number).scaleb(-3) for number in range(-5000, 5000)]
    assert len(set(hashes_of(values, pa.decimal128(20, 3)))) == len(values)


def test_every_nan_is_one_key() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001], np.uint64)
    assert len(set(hashes_of(list(bits.view(np.float64)), pa.float64()))) == 1


def test_widened_floats_hash_like_the_narrow_ones() -> None:
    narrow = pa.array([0.1, 1e30, -2.5], pa.float32())
    assert hashes_of(narrow.to_pylist(), pa.float32()) == hashes_of(narrow.cast(pa.float64()).to_pylist(), pa.float64())


def test_strings_beyond_one_step_hash_like_those_within() -> None:
    few = ["", "a", None, "x" * 50, "ab"]
    assert hashes_of(few * 20_000, pa.string()) == hashes_of(few, pa.string()) * 20_000


def test_hashes_spread_over_buckets() -> None:
    for values, kind in ((list(range(20_000)), pa.int64()), ([f"key-{n}" for n in range(20_000)], pa.string())):
        counts = np.bincount(np.array(hashes_of(values, kind), np.uint64).astype(np.uint64) >> np.uint64(60))
        assert counts.min() > 1000
        assert counts.max() < 1500


def test_only_single_numbers_and_times_are_known_by_their_hash_alone() -> None:
    assert is_exact([pa.int64()])
    assert is_exact([pa.float32()])
    assert is_exact([pa.timestamp("us")])
    assert not is_exact([pa.string()])
    assert not is_exact([pa.decimal128(6, 2)])
    assert not is_exact([pa.int64(), pa.int64()])


def test_a_nested_key_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot be a key"):
        hash_keys(pa.table({"k": pa.array([[1]])}), ["k"])
