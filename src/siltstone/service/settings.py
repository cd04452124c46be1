"""The settings of the service; and stored times, with a clock that may be set back.

What the database has written down is past, by its own clock. Where it lies ahead, the clock was set back since, by an unknown
amount: nobody can wait until it is as late again. So a lease that begins ahead is over, and what is to happen some time after
a moment that lies ahead is due.
"""

import re
from dataclasses import dataclass, fields

from siltstone.errors import InvalidInputError

DAY_SECONDS = 24 * 3600
FREEZE_SECONDS = 2 * 3600
HISTORY_LIMIT = 100
# So that progress on pages is never old.
_HEARTBEAT_SECONDS = 5.0
# Clocks are corrected by a little all the time, and another server after a failover may be a little behind.
_TOLERANCE_MS = 1_000
_MINUTE_MS = 60_000
_DAY_MINUTES = 24 * 60
_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class QuietHours:
    """The time of day in which no cycle begins by itself, in minutes after midnight UTC; it may go over midnight."""

    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.begin // 60:02}:{self.begin % 60:02}-{self.end // 60:02}:{self.end % 60:02}"

    def is_quiet(self, now_ms: int) -> bool:
        """Return whether a time is in it."""
        return (now_ms // _MINUTE_MS - self.begin) % _DAY_MINUTES < (self.end - self.begin) % _DAY_MINUTES

    def over_at(self, time_ms: int) -> int:
        """Return when it is over, for a time in it; else that time."""
        if not self.is_quiet(time_ms):
            return time_ms
        minutes = time_ms // _MINUTE_MS
        return (minutes + (self.end - minutes) % _DAY_MINUTES) * _MINUTE_MS


def parse_quiet_hours(text: str) -> QuietHours:
    """Read hours such as `08:00-18:30`, in UTC. Raises: InvalidInputError."""
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise InvalidInputError(
            f"quiet hours {text!r} are no time of day; write e.g. 08:00-18:30 or 22:00-06:00, in UTC"
        )
    hours = QuietHours(int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4]))
    if hours.begin == hours.end:
        raise InvalidInputError(
            f"quiet hours {text!r} begin when they end; use `siltstone cycle disable` to stop all cycles"
        )
    return hours


@dataclass(frozen=True)
class ServiceSettings:
    """How often cycles run, how long leases last, and when somebody is given up."""

    # From the start of one cycle to the start of the next.
    interval_seconds: float = 15 * 60
    tick_seconds: float = 10
    leader_lease_seconds: float = 45
    # A claim without a heartbeat for this long is another worker's to take.
    claim_lease_seconds: float = 60
    heartbeat_seconds: float = 15
    # A worker that is alive, but whose compaction has not moved for this long, loses its claim.
    stuck_seconds: float = 30 * 60
    # A cycle in which nobody claims what is left ends after this long.
    stall_seconds: float = 5 * 60
    # So many partitions of a table, and bytes of their deltas, are claimed together at most: what one job takes.
    claim_partitions: int = 1000
    claim_bytes: int = 2 << 30
    # So often a partition is tried within one cycle.
    max_attempts: int = 3
    retry_pause_seconds: float = 5
    # A partition that fails in cycle after cycle is left alone for ever more intervals, but no longer than this.
    max_backoff_seconds: float = 6 * 3600
    # So many claims, and bytes of their deltas, are worked on at the same time at most, by all nodes together.
    max_claims: int | None = None
    max_claimed_bytes: int | None = None
    worker_poll_seconds: float = 2
    # Uncompacted deltas of all tables that trigger a cycle before its time; None never does.
    backlog_bytes: int | None = 1 << 30
    backlog_age_seconds: float | None = None
    backlog_check_seconds: float = 60
    min_pause_seconds: float = 60
    quiet_hours: QuietHours | None = None
    # Compacted deltas are kept this long; a table's property `delta_retention_seconds` overrides it.
    delta_retention_seconds: float = 7 * DAY_SECONDS

    def __post_init__(self) -> None:
        may_be_zero = {"min_pause_seconds", "retry_pause_seconds", "delta_retention_seconds", "backlog_check_seconds"}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, QuietHours):
                continue
            if value is not None and (value < 0 or (value == 0 and field.name not in may_be_zero)):
                raise InvalidInputError(f"{field.name} is {value}; use a positive number")
        if self.heartbeat_seconds * 2 > self.claim_lease_seconds:
            raise InvalidInputError(
                f"heartbeat_seconds {self.heartbeat_seconds:g} is more than half of claim_lease_seconds "
                f"{self.claim_lease_seconds:g}, so one late heartbeat would lose a claim; make it smaller"
            )
        if self.tick_seconds * 2 > self.leader_lease_seconds:
            raise InvalidInputError(
                f"tick_seconds {self.tick_seconds:g} is more than half of leader_lease_seconds "
                f"{self.leader_lease_seconds:g}, so one late tick would lose the lead; make it smaller"
            )


def service_settings(
    *,
    interval: float,
    tick: float,
    retention: float,
    lease: float = 60,
    backlog_bytes: int | None = None,
    backlog_age: float | None = None,
    quiet_hours: QuietHours | None = None,
    max_claims: int | None = None,
    max_claimed_bytes: int | None = None,
) -> ServiceSettings:
    """Return the settings for these seconds; a leader is given up sooner than a worker. Raises: InvalidInputError."""
    heartbeat = _HEARTBEAT_SECONDS if tick >= _HEARTBEAT_SECONDS else max(tick, 0.2)
    return ServiceSettings(
        interval_seconds=interval,
        tick_seconds=tick,
        leader_lease_seconds=max(0.75 * lease, 4 * tick),
        claim_lease_seconds=lease,
        heartbeat_seconds=min(heartbeat, lease / 4),
        worker_poll_seconds=min(ServiceSettings.worker_poll_seconds, max(tick, 0.05)),
        backlog_bytes=backlog_bytes,
        backlog_age_seconds=backlog_age,
        delta_retention_seconds=retention,
        quiet_hours=quiet_hours,
        max_claims=max_claims,
        max_claimed_bytes=max_claimed_bytes,
    )


def to_ms(seconds: float) -> int:
    """Turn seconds into milliseconds."""
    return round(seconds * 1000)


def latest_ms(now_ms: int) -> int:
    """Return how late a time can be that was stored by now; what is later is from before the clock was set back."""
    return now_ms + _TOLERANCE_MS
