"""Values of options from text: durations, pairs and names."""

import re
from collections.abc import Iterable

import typer

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"([0-9]+)\s*([smhdw])", re.IGNORECASE)


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
