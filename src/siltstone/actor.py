"""Who acts, and through what, for the audit trail: an operating system's user unless the environment names somebody."""

import contextlib
import getpass
import os
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal

from siltstone.text import mask_secrets

ACTOR_VARIABLE = "SILTSTONE_ACTOR"
Through = Literal["python", "command"]
"""What an action came through: a program's own calls, or the command line. What was asked of the service is in its database."""
_LONGEST = 200
_through: ContextVar[Through] = ContextVar("through", default="python")


def current_actor() -> str:
    """Return who acts in this process: `SILTSTONE_ACTOR`, or the user and the host's name."""
    named = " ".join(os.environ.get(ACTOR_VARIABLE, "").split())
    if named:
        return mask_secrets(named)[:_LONGEST]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def current_through() -> Through:
    """Return through what the actions of this thread come."""
    return _through.get()


@contextlib.contextmanager
def acting_through(through: Through) -> Iterator[None]:
    """Let actions of this thread come through something else meanwhile."""
    token = _through.set(through)
    try:
        yield
    finally:
        _through.reset(token)
