import multiprocessing
import threading
import uuid

import pytest

from siltstone.documents.record import (
    change_id_at,
    check_change_id,
    new_change_id,
    order_key,
    time_bound,
    to_bytes,
    to_iso_time,
    to_ms,
)
from siltstone.errors import InvalidInputError

MIN_ID = "00000000-0000-1000-8000-000000000000"
MAX_ID = "ffffffff-ffff-1fff-bfff-ffffffffffff"


def test_ids_are_version_1_uuids_of_the_present_in_order() -> None:
    made = [new_change_id() for _ in range(5000)]
    assert sorted(made, key=order_key) == made
    assert len(set(made)) == len(made)
    parsed = uuid.UUID(made[0])
    assert (parsed.version, parsed.variant) == (1, uuid.RFC_4122)
    assert parsed.node >> 40 & 1, "a node that is no network card says so"
    assert abs(to_ms(made[0]) - to_ms(str(uuid.uuid1()))) < 60_000


def test_threads_share_the_order() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(new_change_id() for _ in range(500))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4000


def _make(_: int) -> list[str]:
    return [new_change_id() for _ in range(200)]


def test_forked_processes_make_different_ids() -> None:
    new_change_id()
    # A pool of one each: two processes of one pool need not share the work.
    fork = multiprocessing.get_context("fork")
    with fork.Pool(1) as one, fork.Pool(1) as other:
        parts = [pool.map(_make, range(4)) for pool in (one, other)]
    made = [each for part in parts for some in part for each in some] + _make(0)
    assert len(set(made)) == len(made)
    assert len({each[19:] for each in made}) == 3, "each process has a node of its own"


def test_times_and_ids_convert_into_each_other() -> None:
    assert change_id_at(1_408_977_301_000) == "febb5880-2c64-11e4-8000-000000000000"
    for time_ms in (-12_219_292_800_000, -1, 0, 1, 1_408_977_301_000, 100_000_000_000_000):
        assert to_ms(change_id_at(time_ms)) == time_ms
        assert to_ms(change_id_at(time_ms, ticks=9999)) == time_ms
    parsed = uuid.UUID(change_id_at(1_700_000_000_123, ticks=7, clock_sequence=0x1234, node=0x123456789ABC))
    assert (parsed.clock_seq, parsed.node) == (0x1234, 0x123456789ABC)
    assert to_bytes(str(parsed)) == parsed.bytes
    assert to_iso_time(str(parsed)) == "2023-11-14T22:13:20.123Z"
    assert to_iso_time(MIN_ID) == "1582-10-15T00:00:00.000Z"


def test_a_time_that_no_id_can_have_is_refused() -> None:
    for time_ms in (-12_219_292_800_001, 1 << 60):
        with pytest.raises(InvalidInputError, match="no change id can have"):
            change_id_at(time_ms)


def test_ids_sort_by_time_and_then_by_their_low_bits() -> None:
    ids = [
        MIN_ID,
        change_id_at(0, ticks=0xFFFF_FFFF),
        change_id_at(0, ticks=0x1_0000_0000),
        change_id_at(1_408_977_301_000, node=1),
        change_id_at(1_408_977_301_000, clock_sequence=1),
        change_id_at(1_408_977_301_000, ticks=1),
        MAX_ID,
    ]
    shuffled = ids[1::2] + ids[::2]
    by_rule = sorted(shuffled, key=lambda each: (uuid.UUID(each).time, uuid.UUID(each).int & (1 << 64) - 1))
    assert sorted(shuffled, key=order_key) == by_rule == ids


def test_a_time_bound_parts_what_is_before_a_time_from_what_is_not() -> None:
    for change_id in (MIN_ID, change_id_at(1000), change_id_at(1000, ticks=9999), MAX_ID):
        at = to_ms(change_id)
        for time_ms in (-(1 << 62), at - 1, at, at + 1, 1 << 62):
            assert (order_key(change_id) < time_bound(time_ms)) == (at < time_ms)


def test_what_is_no_version_1_uuid_is_refused() -> None:
    assert check_change_id("FEBB5880-2C64-11E4-8000-000000000000") == "febb5880-2c64-11e4-8000-000000000000"
    for text in ("", "x", str(uuid.uuid4()), "febb58802c6411e48000000000000000", MIN_ID + " ", "x" * 10_000):
        with pytest.raises(InvalidInputError, match="not a change id"):
            check_change_id(text)
