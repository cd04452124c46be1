"""The order of numbers, by counting their digits."""

import numpy as np
import pytest

from siltstone.rows.columns import Hashes, rising_order


@pytest.mark.parametrize("width", [1, 8, 16, 17, 32, 33, 48, 63, 64])
@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_a_rising_order_is_that_of_a_stable_sort(width: int, count: int) -> None:
    rng = np.random.default_rng(width + count)
    wide = rng.integers(0, 1 << width, count, dtype=np.uint64, endpoint=False) if width < 64 else hashes_of(rng, count)
    # Most agree with others in all but their lowest bits, and some altogether.
    close = np.sort(wide)[rng.integers(0, max(count // 50, 1), count)] ^ rng.integers(0, 4, count).astype(np.uint64)
    for numbers in (wide, close if count else wide, (wide >> np.uint64(1)).astype(np.int64) - (1 << 40)):
        np.testing.assert_array_equal(rising_order(numbers), np.argsort(numbers, kind="stable"))


def hashes_of(rng: np.random.Generator, count: int) -> Hashes:
    return rng.integers(0, 1 << 64, count, dtype=np.uint64, endpoint=False)
