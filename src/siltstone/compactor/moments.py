"""Moments of a table: a position of its stream, or a time."""

import datetime
import re

from siltstone.errors import InvalidInputError

Moment = int | datetime.datetime
"""A stream position, or the time by which deltas were committed."""


def parse_moment(text: str) -> Moment:
    """Read a stream position or an ISO 8601 time, in UTC where it has no zone. Raises: InvalidInputError."""
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text!r} is neither a position nor a time; write e.g. 120 or 2024-05-01T08:00:00Z"
        ) from error
    return time.replace(tzinfo=time.tzinfo or datetime.UTC)
