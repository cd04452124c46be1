"""When a cycle begins: not while disabled or frozen; when asked for; when the interval is over; when much is waiting."""

from collections.abc import Callable
from dataclasses import dataclass

from siltstone.service.schema import CycleStatus, TriggerReason
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms


@dataclass(frozen=True)
class Backlog:
    """The deltas that wait for compaction in all tables."""

    bytes: int
    oldest_at: int | None


@dataclass(frozen=True)
class Situation:
    """What the decision depends on."""

    now_ms: int
    status: CycleStatus
    is_disabled: bool
    is_frozen: bool
    has_requests: bool
    last_started_at: int
    ended_at: int | None


def decide(
    situation: Situation, settings: ServiceSettings, measure: Callable[[], Backlog | None]
) -> TriggerReason | None:
    """Return why a cycle begins now, or None if none does. `measure` is called only if nothing else decides."""
    now_ms = situation.now_ms
    if situation.status == "STARTED" or situation.is_disabled or situation.is_frozen:
        return None
    if situation.has_requests:
        return "request"
    if _is_past(situation.last_started_at, settings.interval_seconds, now_ms):
        return "interval"
    # After a failure only the interval decides, or a partition that cannot be compacted would start cycles without end.
    has_paused = situation.ended_at is None or _is_past(situation.ended_at, settings.min_pause_seconds, now_ms)
    if situation.status == "FAILED" or not has_paused:
        return None
    if settings.backlog_bytes is None and settings.backlog_age_seconds is None:
        return None
    backlog = measure()
    return None if backlog is None else _by_backlog(backlog, now_ms, settings)


def _is_past(since_ms: int, seconds: float, now_ms: int) -> bool:
    """Return whether this much time has passed since a stored time; a time in the future counts as long ago."""
    return now_ms - since_ms > to_ms(seconds) or since_ms > latest_ms(now_ms)


def _by_backlog(backlog: Backlog, now_ms: int, settings: ServiceSettings) -> TriggerReason | None:
    if settings.backlog_bytes is not None and backlog.bytes >= settings.backlog_bytes:
        return "backlog_bytes"
    limit = settings.backlog_age_seconds
    if limit is not None and backlog.oldest_at is not None and now_ms - backlog.oldest_at >= to_ms(limit):
        return "backlog_age"
    return None
