"""Time in a simulation: the true time, which the store has, and the clock of each process, which may be wrong."""

from collections.abc import Callable
from typing import Literal

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
START_MS = 1_767_225_600_000  # 2026-01-01

ClockChange = Literal["set", "stop", "right"]


class TrueTime:
    """The time that passes, in milliseconds; only a simulation moves it on."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds


class ProcessClock:
    """What one process knows of time: ahead, behind, standing still, or right.

    While its machine sleeps, its monotonic clock stands still.
    """

    def __init__(self, time: TrueTime, wait: Callable[[float], None] | None = None) -> None:
        self._time = time
        self._wait = wait
        self._skew_ms = 0
        self._stopped_at: int | None = None
        self._slept_ms = 0
        self._asleep_since: int | None = None
        self._latest_ms = self.now_ms()

    @property
    def is_right(self) -> bool:
        """Whether it shows the true time."""
        return self._stopped_at is None and self._skew_ms == 0

    def now_ms(self) -> int:
        """Return the time of day."""
        return (self._time.now_ms if self._stopped_at is None else self._stopped_at) + self._skew_ms

    @property
    def latest_ms(self) -> int:
        """The latest time that it ever showed."""
        self._latest_ms = max(self._latest_ms, self.now_ms())
        return self._latest_ms

    def monotonic(self) -> float:
        """Return the seconds that the machine was awake."""
        return (self._time.now_ms - START_MS - self._slept_ms) / 1000

    def sleep(self, seconds: float) -> None:
        """Let others go on, and time pass."""
        if self._wait is not None:
            self._wait(seconds)
        self._time.pass_ms(round(seconds * 1000))

    def change(self, change: ClockChange, skew_ms: int = 0) -> None:
        """Put the clock ahead or back, stop it, or put it right."""
        self._latest_ms = self.latest_ms
        if change == "right":
            self._skew_ms, self._stopped_at = 0, None
        elif change == "stop":
            self._stopped_at = self._time.now_ms
        else:
            self._skew_ms = skew_ms

    def fall_asleep(self) -> None:
        """Let the machine sleep, until `wake_up`."""
        if self._asleep_since is None:
            self._asleep_since = self._time.now_ms

    def wake_up(self) -> None:
        """Let the machine go on, as if no time had passed."""
        if self._asleep_since is not None:
            self._slept_ms += self._time.now_ms - self._asleep_since
            self._asleep_since = None
