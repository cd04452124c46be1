"""The audit entry of a commit: who did what, in the same batch as the change, so that neither is there without the other."""

from collections.abc import Mapping
from typing import NamedTuple

from siltstone.actor import current_actor, current_through
from siltstone.log.state import EXPIRES_AT, Entry

AUDIT_PREFIX = "audit/"
AUDIT_RETENTION_MS = 400 * 24 * 3600 * 1000
"""How long entries are kept: a year, and some weeks to look back at it."""


class Action(NamedTuple):
    """What somebody does by a commit; of keys and values of rows, `details` must have nothing."""

    name: str
    details: Mapping[str, int | str | list[str]] = {}
    # Of the catalog's log; other logs are of one table, whatever its name is today.
    table: str | None = None


def audit_key(write_id: str) -> str:
    """Return the key of the entry of a commit; it is the same in a log that the entry is carried over to."""
    return f"{AUDIT_PREFIX}{write_id}"


def audit_entry(action: Action, time_ms: int) -> Entry:
    """Write an action for the log."""
    return {
        "action": action.name,
        **({} if action.table is None else {"table": action.table}),
        "actor": current_actor(),
        "through": current_through(),
        "at": time_ms,
        "details": {name: value for name, value in action.details.items() if value not in ("", [])},
        EXPIRES_AT: time_ms + AUDIT_RETENTION_MS,
    }
