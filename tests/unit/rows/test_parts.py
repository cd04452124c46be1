"""Parts of deltas, gathered by bucket: all of them come back, from memory or from disk."""

import pytest

from siltstone.rows.parts import GatheredParts


@pytest.mark.parametrize("memory_bytes", [1, 40, 1 << 20])
def test_each_bucket_gets_its_parts_once_and_in_order(memory_bytes: int) -> None:
    parts = [(number % 3, bytes([number]) * number) for number in range(20)]
    gathered = GatheredParts(parts[:10], memory_bytes=memory_bytes)
    assert gathered.take(2) == [part for bucket, part in parts[:10] if bucket == 2]
    for bucket, part in parts[10:]:
        gathered.add(bucket, part)
    assert gathered.take(2) == [part for bucket, part in parts[10:] if bucket == 2]
    assert gathered.take(0) == [part for bucket, part in parts if bucket == 0]
    assert gathered.take(1) == [part for bucket, part in parts if bucket == 1]
    assert gathered.take(1) == gathered.take(9) == []
