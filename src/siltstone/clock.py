"""The clock of this process: the only module that asks for the time, or waits.

A simulation replaces it by its own, whose time passes only when the simulation says so.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol


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
