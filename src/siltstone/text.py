"""Values as people read them: sizes, counts, ratios, times and durations; and hiding the secrets in a text."""

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Namespace, table, version, stream, and the values of a partition's keys.
_IDENTITY_PARTS = 5
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


def format_checkpoint(partition: str) -> str:
    """Return a table's name and after it the values of its partition's keys, from the text of the partition's identity.

    What has failed as a whole table has its name instead.
    """
    parts = partition.split("/")
    if len(parts) < _IDENTITY_PARTS:
        return partition
    values = parts[_IDENTITY_PARTS - 1]
    return f"{parts[0]}.{parts[1]}" if values == "_" else f"{parts[0]}.{parts[1]} {values.replace(',', ', ')}"


def format_pairs(pairs: Mapping[str, str | None]) -> str:
    """Return names with their values, as a command takes them."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in pairs.items())


def _utc(time_ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=time_ms)


MASK = "***"

_NAME = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credentials?|signature|authorization|cookie|"
    r"(?:api|access|account|private|secret|shared)[-_.]?key)(?:[-_.]?(?:key|value))?"
)
# These are words of their own, not parts of others.
_SHORT_NAME = r"(?<![A-Za-z0-9])(?:pass|pw|sig|sas)"
_SECRET_NAME = re.compile(rf"(?i)(?:{_NAME}|{_SHORT_NAME})\Z")
# Up to the last @, since people forget to escape one in a password; bounded, since text may be long.
_USERINFO = re.compile(r"(://[^/\s:'\"]{0,256}:)[^\s'\"]{0,1024}@")
_LONE_USERINFO = re.compile(r"(?i)(https?://)[^/\s:@'\"]+@")
_HEADER = re.compile(r"(?i)((?:authorization|cookie)\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"']*[^\r\n\"'\\]")
_SCHEME = re.compile(r"(?i:\b(Bearer)\s+)[\w.~+/=-]+|\b(Basic)\s+(?=[A-Za-z+/]*[0-9+/=])[A-Za-z0-9+/]{4,}=*")
_ELEMENT = re.compile(rf"(?i)({_NAME}>)[^<]+")
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    rf"""(?isx)
    (?P<name>(?:{_NAME}|{_SHORT_NAME})(?P<end>\\*["'])?\s*(?:[=:]|%3d)\s*)
    (?!none(?:[\s,;]|\Z))
    (?:
        (?P<quote>\\*["'])(?:\\.|[^\\])*?(?:(?P=quote)|\Z)
        # A quoted name is of JSON, or the name of a column in a sentence, which goes on after the colon.
        | (?(end)[0-9][^\s,}}]*|[^\s&;'"]+)
    )"""
)


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret, such as `sslpassword` or `X-Amz-Signature`."""
    return _SECRET_NAME.search(name) is not None


def mask_secrets(text: str) -> str:
    """Hide passwords, keys, tokens and signatures: in addresses, parameters, headers and JSON."""
    text = _USERINFO.sub(rf"\1{MASK}@", text)
    text = _LONE_USERINFO.sub(rf"\1{MASK}@", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(lambda match: f"{match[1] or match[2]} {MASK}", text)
    text = _ELEMENT.sub(rf"\1{MASK}", text)
    text = _PRIVATE_KEY.sub(rf"\1{MASK}", text)
    return _PARAMETER.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    word = match.string[match.string.rfind(" ", 0, match.start()) + 1 : match.start()]
    if "/" in word and re.search(r":\s+$", match["name"]):
        # A file of this name, about which a sentence says something.
        return match[0]
    quote = match["quote"] or ""
    return f"{match['name']}{quote}{MASK}{quote}"


def mask_values(value: Any) -> Any:
    """Hide secrets in a value of any shape: by the names of what it holds, and in all text."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, dict):
        return {
            key: MASK if isinstance(key, str) and is_secret_name(key) and item is not None else mask_values(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask_values(item) for item in value]
    return value
