"""The time of a store with a clock of its own, and how far this machine's clock is from it."""

from collections.abc import Callable

import pytest

from siltstone import clock
from siltstone.clock import MAX_SKEW_MS, StoreClock, is_skewed
from siltstone.objects import ObjectInfo, StoreObjects, open_objects
from siltstone.objects.s3 import find_settings
from siltstone.objects.store import open_s3

PAUSE_SECONDS = 500
HOUR_MS = 3_600_000


class Clock:
    """A machine whose clocks move only when a test says so."""

    def __init__(self, now_ms: int) -> None:
        self.wall_ms = now_ms
        self.seconds = 1000.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.pass_seconds(seconds)

    def pass_seconds(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall_ms += round(seconds * 1000)


class PausedDuringRequests(StoreObjects):
    """A store that answers at once, on a machine that gets to see the answer minutes later."""

    machine: Clock

    def info(self, path: str) -> ObjectInfo | None:
        answer = super().info(path)
        self.machine.pass_seconds(PAUSE_SECONDS)
        return answer


def test_a_pause_during_the_request_never_puts_the_time_ahead_of_the_store(new_root: Callable[[str], str]) -> None:
    root = new_root("s3")
    objects = PausedDuringRequests(root, open_s3(root, find_settings()))
    objects.machine = Clock(clock.now_ms())
    with clock.replaced(objects.machine):
        first = objects.now_ms()
        assert objects.now_ms() == first
        objects.machine.pass_seconds(60)
        assert objects.now_ms() == first + 60_000
    real = open_objects(root)
    assert first <= real.now_ms(is_asked=True)


def test_a_pause_during_the_request_is_no_skew(new_root: Callable[[str], str]) -> None:
    root = new_root("s3")
    objects = PausedDuringRequests(root, open_s3(root, find_settings()))
    objects.machine = Clock(clock.now_ms())
    with clock.replaced(objects.machine):
        assert objects.skew_ms() == 0


@pytest.mark.parametrize(("set_by_ms", "is_beyond"), [(0, False), (HOUR_MS, True), (-HOUR_MS, True)])
def test_a_machine_whose_clock_is_set_wrong_measures_by_how_much(
    new_root: Callable[[str], str], set_by_ms: int, is_beyond: bool
) -> None:
    root = new_root("s3")
    objects = StoreObjects(root, open_s3(root, find_settings()))
    with clock.replaced(Clock(clock.now_ms() + set_by_ms)):
        skew_ms = objects.skew_ms()
    assert skew_ms is not None
    assert is_skewed(skew_ms) == is_beyond
    assert not is_beyond or (skew_ms > 0) == (set_by_ms > 0)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_stores_without_a_clock_of_their_own_measure_nothing(new_root: Callable[[str], str], kind: str) -> None:
    with clock.replaced(Clock(0)):
        assert open_objects(new_root(kind)).skew_ms() is None


def test_the_store_is_asked_once_in_ten_minutes_for_time_and_skew() -> None:
    machine = Clock(1_000_000)
    asked: list[int] = []

    def ask() -> int:
        asked.append(machine.wall_ms)
        return machine.wall_ms - 2 * MAX_SKEW_MS

    with clock.replaced(machine):
        store = StoreClock(ask)
        assert (store.now_ms(), store.skew_ms()) == (1_000_000 - 2 * MAX_SKEW_MS, 2 * MAX_SKEW_MS - 1000)
        machine.pass_seconds(600)
        assert (store.now_ms(), store.skew_ms()) == (1_600_000 - 2 * MAX_SKEW_MS, 2 * MAX_SKEW_MS - 1000)
        assert len(asked) == 1
        machine.pass_seconds(1)
        store.skew_ms()
        store.now_ms()
        assert len(asked) == 2
        store.now_ms(is_asked=True)
        assert len(asked) == 3
