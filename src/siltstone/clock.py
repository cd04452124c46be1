"""The clocks: this process's own, and a store's, with how far the two are apart. The only module that asks for the time, or waits."""

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol


class Clock(Protocol):
    """What a process knows of time. None of it may decide whether anything is correct: clocks are wrong, and stand still."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards, but may stand still while the machine sleeps."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since some time in the past."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


_clock: Clock = SystemClock()


def now_ms() -> int:
    """Return the time of day in milliseconds since 1970, as this process knows it."""
    return _clock.now_ms()


def monotonic() -> float:
    """Return seconds that never run backwards."""
    return _clock.monotonic()


def sleep(seconds: float) -> None:
    """Wait."""
    _clock.sleep(seconds)


@contextlib.contextmanager
def replaced(clock: Clock) -> Iterator[None]:
    """Use another clock in this process."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before


# So far may this machine's clock and the store's time be apart: beyond, one of the two is wrong. NTP keeps clocks within
# a second. Amazon's S3 refuses whoever is 15 minutes off. And no sensible retention is shorter than an hour.
MAX_SKEW_MS = 5 * 60 * 1000
# The answer is used for so long, with the time that passed since by a clock that never steps.
ANSWER_LASTS_SECONDS = 600
# Stores return whole seconds, rounded down.
_RESOLUTION_MS = 1000


class _Answer(NamedTuple):
    """What the store answered, when, and how far apart the clocks were."""

    store_ms: int
    monotonic: float
    skew_ms: int


class StoreClock:
    """A store's time, as this process knows it: what the store answered last, and how long ago that was.

    It may be behind, after a pause during the request or while the machine slept, but it is never ahead.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._answer: _Answer | None = None

    def now_ms(self, *, is_asked: bool = False) -> int:
        """Return the time in milliseconds since 1970; if it `is_asked`, by a new answer of the store."""
        answer = self._newest(is_asked=is_asked)
        return answer.store_ms + int((monotonic() - answer.monotonic) * 1000)

    def skew_ms(self) -> int:
        """Return how far this machine's clock was ahead of the store's time at the last answer; negative if behind."""
        return self._newest().skew_ms

    def _newest(self, *, is_asked: bool = False) -> _Answer:
        answer = self._answer
        if answer is None or is_asked or monotonic() - answer.monotonic > ANSWER_LASTS_SECONDS:
            store_ms, skew_ms = measure(self._ask)
            # Only now: a process that was paused during the request must not add the pause to the store's time.
            answer = self._answer = _Answer(store_ms, monotonic(), skew_ms)
        return answer


def measure(ask: Callable[[], int]) -> tuple[int, int]:
    """Ask for a time, and return it with how far this machine's clock is ahead of it at least; negative if behind.

    The answer is from some moment between the question and now, so that a slow answer does not count as a difference.
    """
    before_ms = now_ms()
    answer_ms = ask()
    least, most = sorted((before_ms - answer_ms - _RESOLUTION_MS, now_ms() - answer_ms))
    return answer_ms, max(least, min(most, 0))


def is_skewed(skew_ms: int | None) -> bool:
    """Return whether this machine's clock and the store's time are too far apart to believe either."""
    return skew_ms is not None and abs(skew_ms) > MAX_SKEW_MS


def describe_skew(skew_ms: int, root: str) -> str:
    """Return by how much the clocks are apart, and what to do about it."""
    minutes = round(abs(skew_ms) / 60_000)
    return (
        f"the clock of this machine ({platform.node()}) is {minutes} minutes {'ahead of' if skew_ms > 0 else 'behind'} the "
        f"time of the store {root}, and one of them is wrong. Set the clock by NTP; `siltstone doctor` measures the "
        "difference"
    )
