"""How values look on pages: sizes, counts, times, durations and ratios."""

import datetime

STATUS_WORDS = {
    "IDLE": "waiting",
    "STARTED": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "EXPIRED": "expired",
    "ABANDONED": "handed back",
}
REASON_WORDS = {
    "request": "a request",
    "interval": "the interval",
    "backlog_bytes": "the size of the backlog",
    "backlog_age": "the age of the backlog",
}
NOTHING = "—"


def spell_bytes(size: int | None) -> str:
    """Write a size in decimal units."""
    if size is None:
        return NOTHING
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def spell_number(number: int | None) -> str:
    """Write a whole number with separators."""
    return NOTHING if number is None else f"{number:,}"


def spell_ratio(ratio: float | None) -> str:
    """Write how many times."""
    return NOTHING if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def spell_duration(time_ms: int | None) -> str:
    """Write how long something takes, in its one or two largest units."""
    if time_ms is None:
        return NOTHING
    time_ms = max(time_ms, 0)
    if time_ms < 1000:
        return f"{time_ms} ms"
    if time_ms < 60_000:
        return f"{time_ms / 1000:.1f} s"
    seconds = time_ms // 1000
    if seconds < 3600:
        return _in_two(seconds, 60, "min", 1, "s")
    if seconds < 86400:
        return _in_two(seconds, 3600, "h", 60, "min")
    return _in_two(seconds, 86400, "d", 3600, "h")


def _in_two(seconds: int, unit: int, name: str, smaller: int, small_name: str) -> str:
    rest = seconds % unit // smaller
    return f"{seconds // unit} {name}" + (f" {rest} {small_name}" if rest else "")


def spell_about(time_ms: int | None) -> str:
    """Write how long something is away, in one unit."""
    if time_ms is None:
        return NOTHING
    seconds = max(time_ms, 0) // 1000
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"


def spell_time(time_ms: int | None) -> str:
    """Write a time in UTC, to the second."""
    return NOTHING if time_ms is None else f"{_utc(time_ms):%Y-%m-%d %H:%M:%S}"


def spell_iso(time_ms: int) -> str:
    """Write a time for programs."""
    return _utc(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def spell_status(status: str) -> str:
    """Write a status as a word."""
    return STATUS_WORDS.get(status, status.lower())


def spell_reason(reason: str | None) -> str:
    """Write what a cycle was triggered by."""
    return NOTHING if reason is None else REASON_WORDS.get(reason, reason)


def spell_count(count: int, one: str, many: str | None = None) -> str:
    """Write a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _utc(time_ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=time_ms)


FILTERS = {
    "bytes": spell_bytes,
    "number": spell_number,
    "ratio": spell_ratio,
    "duration": spell_duration,
    "about": spell_about,
    "time": spell_time,
    "iso": spell_iso,
    "status": spell_status,
    "reason": spell_reason,
    "of": spell_count,
}
