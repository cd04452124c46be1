"""Waiting for what other threads and processes do: as long as it takes, with a limit only against hanging."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
# A slow or busy machine does not get here; a test that would hang for ever does.
LIMIT_SECONDS = 300
_POLL_SECONDS = 0.05


def wait_for(what: str, condition: Callable[[], T | None]) -> T:
    """Ask until there is an answer other than None, False or nothing, and return it."""
    pause, deadline = threading.Event(), time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        pause.wait(_POLL_SECONDS)
    raise AssertionError(f"{what}: did not happen within {LIMIT_SECONDS} s")
