"""Values as people read them: sizes, counts, ratios, times and durations."""

import datetime
from collections.abc import Iterable, Mapping

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def format_bytes(size: int) -> str:
    """Return a size with about three digits, in decimal units."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def format_number(number: int) -> str:
    """Return a whole number with separators."""
    return f"{number:,}"


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun, e.g. `1 row`, `2,000 rows`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def format_ratio(ratio: float) -> str:
    """Return a factor with its sign."""
    return f"{ratio:.2f}\N{MULTIPLICATION SIGN}"


def format_time(time_ms: int) -> str:
    """Return a time in UTC, to the second."""
    return f"{_utc(time_ms):%Y-%m-%d %H:%M:%S}"


def format_iso_time(time_ms: int) -> str:
    """Return a time in UTC for programs, to the millisecond."""
    return _utc(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(time_ms: int, *, drop_zero: bool = False) -> str:
    """Return a duration in its two largest units; `drop_zero` leaves out a smaller unit that is 0."""
    if time_ms < 1000:
        return f"{max(time_ms, 0)} ms"
    if time_ms < 60_000:
        return f"{time_ms / 1000:.1f} s"
    seconds = time_ms // 1000
    large = next(index for index, (unit, _) in enumerate(_UNITS) if seconds >= unit)
    (unit, name), (small_unit, small_name) = _UNITS[large : large + 2]
    rest = seconds % unit // small_unit
    return f"{seconds // unit} {name}" if drop_zero and not rest else f"{seconds // unit} {name} {rest} {small_name}"


def format_age(time_ms: int) -> str:
    """Return how far away a moment is, in its largest unit."""
    seconds = max(time_ms, 0) // 1000
    unit, name = next((unit, name) for unit, name in _UNITS if seconds >= unit or unit == 1)
    return f"{seconds // unit} {name}"


def format_value(value: object) -> str:
    """Return a value that may be null."""
    return "null" if value is None else str(value)


def format_partition(values: Iterable[object]) -> str:
    """Return the values of a partition's keys."""
    return ", ".join(map(format_value, values))


def format_pairs(pairs: Mapping[str, str | None]) -> str:
    """Return names with their values, as a command takes them."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in pairs.items())


def _utc(time_ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=time_ms)
