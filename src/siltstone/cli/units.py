"""Between text and values: sizes, times and counts for people, durations and pairs from them."""

import datetime
import re
from collections.abc import Iterable, Mapping

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]+)\s*([smhdw])", re.IGNORECASE)


def spell_bytes(size: int) -> str:
    """Write a size with three digits or so, in decimal units."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def spell_time(time_ms: int) -> str:
    """Write a time in UTC, to the second."""
    return f"{_utc(time_ms):%Y-%m-%d %H:%M:%S}"


def iso_time(time_ms: int) -> str:
    """Write a time in UTC for programs, to the millisecond."""
    return _utc(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(time_ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=time_ms)


def spell_duration(time_ms: int) -> str:
    """Write how long something took or lasts, in its two largest units or so."""
    if time_ms < 1000:
        return f"{max(time_ms, 0)} ms"
    if time_ms < 60_000:
        return f"{time_ms / 1000:.1f} s"
    seconds = time_ms // 1000
    for unit, name, smaller, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            return f"{seconds // unit} {name} {seconds % unit // smaller} {small_name}"
    raise AssertionError("a minute is the smallest unit left")


def spell_count(count: int, one: str, many: str | None = None) -> str:
    """Write a count with its noun, e.g. `1 row`, `2,000 rows`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spell_value(value: object) -> str:
    """Write a value that may be null."""
    return "null" if value is None else str(value)


def spell_partition(values: Iterable[object]) -> str:
    """Write the values of a partition's keys."""
    return ", ".join(map(spell_value, values))


def spell_pairs(pairs: Mapping[str, str | None]) -> str:
    """Write names with their values, as they are given."""
    return ", ".join(f"{name}={spell_value(value)}" for name, value in pairs.items())


def parse_duration_ms(text: str, option: str) -> int:
    """Read a duration such as 90s, 15m, 12h, 7d or 2w, as milliseconds. Raises: typer.BadParameter."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write a number and a unit, e.g. 90s, 15m, 12h, 7d, 2w", param_hint=option
        )
    return int(match[1]) * _SECONDS[match[2].lower()] * 1000


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Read `name=value` texts. Raises: typer.BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint=option)
        if name.strip() in pairs:
            raise typer.BadParameter(f"{name.strip()!r} is given twice", param_hint=option)
        pairs[name.strip()] = value.strip()
    return pairs


def parse_names(texts: Iterable[str]) -> list[str]:
    """Read column names, given one by one or separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def parse_idempotency(text: str) -> tuple[str, int]:
    """Read `app:batch`, e.g. `orders-job:17`. Raises: typer.BadParameter."""
    app_id, colon, batch_id = text.rpartition(":")
    if not colon or not app_id or not re.fullmatch(r"[0-9]+", batch_id, re.ASCII):
        raise typer.BadParameter(
            f"{text!r} is not of the form app:batch with a whole number, e.g. orders-job:17",
            param_hint="--idempotency",
        )
    return app_id, int(batch_id)
