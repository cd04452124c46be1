"""Committing changes: none of a time that the table is complete up to, whatever clocks and pauses do."""

import datetime
from collections.abc import Callable

from siltstone import clock
from siltstone.catalog import main as catalog
from siltstone.documents.change_ids import to_iso_time, to_ms
from siltstone.errors import ConflictError, InvalidInputError
from siltstone.model import Delta, StreamLocator
from siltstone.model.properties import CLOSED_BEFORE_MS
from siltstone.objects import open_objects
from siltstone.objects.times import describe_skew, is_skewed
from siltstone.storage import object_store as storage
from siltstone.table.holds import closed_before, delay_of

Stage = Callable[[StreamLocator], tuple[list[Delta], str | None]]
"""Stages changes, and tells the earliest change id among them."""

_ATTEMPTS = 20
_MAX_WAIT_MS = 1000


def commit_changes(name: str, stage: Stage, *, root: str) -> int:
    """Commit what is staged and return the stream position, if all changes are later than what is complete.

    Whoever compacts closes the table's stream first, in the log that changes are committed to; the commit holds only
    if the closing time is still the one that the changes were checked against. Raises: InvalidInputError.
    """
    started_ms = now_ms(root)
    for attempt in range(_ATTEMPTS):
        properties = catalog.get_table_version(name, root=root).properties
        closed, delay_ms = closed_before(properties), delay_of(properties, name) or 0
        # A change made right now is never too old, whatever the delay.
        limit_ms = max(started_ms - max(delay_ms, 1), closed or 0)
        _wait_until(limit_ms + 1, root)

        def checked(stream: StreamLocator, limit_ms: int = limit_ms, delay_ms: int = delay_ms) -> list[Delta]:
            staged, earliest = stage(stream)
            if earliest is not None and to_ms(earliest) <= limit_ms:
                storage.discard_deltas(staged, root=root)
                raise InvalidInputError(_too_late(name, earliest, limit_ms, delay_ms))
            return staged

        expected = {CLOSED_BEFORE_MS.name: properties.get(CLOSED_BEFORE_MS.name)}
        try:
            return catalog.write_staged(name, checked, expected_properties=expected, root=root)
        except ConflictError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def complete_up_to(name: str, *, root: str) -> int:
    """Return the full consistency time in milliseconds: no change of it or before comes any more."""
    properties = catalog.get_table_version(name, root=root).properties
    return max(now_ms(root) - (delay_of(properties, name) or 0), closed_before(properties) or 0)


def latest_ms(name: str, *, root: str) -> int:
    """Return the time now, by this clock or by that of the latest compaction, whichever is ahead."""
    properties = catalog.get_table_version(name, root=root).properties
    closed = closed_before(properties)
    return now_ms(root) if closed is None else max(now_ms(root), closed + (delay_of(properties, name) or 0))


def now_ms(root: str) -> int:
    """Return the time in milliseconds since 1970, that of the store where it has a clock."""
    return open_objects(root).now_ms()


def refuse_skew(name: str, *, root: str) -> None:
    """Refuse to close a table's stream where this machine's clock and the store's differ. Raises: InvalidInputError."""
    skew_ms = open_objects(root).skew_ms()
    if skew_ms is not None and is_skewed(skew_ms):
        raise InvalidInputError(
            f"{name}: after an import no earlier changes are accepted, and what is earlier is not sure: "
            f"{describe_skew(skew_ms, root)}"
        )


def _wait_until(time_ms: int, root: str) -> None:
    """Wait for a clock that is a little behind the one that closed the stream, so that new changes are later."""
    ahead_ms = time_ms - now_ms(root)
    if ahead_ms > 0:
        ahead_ms = time_ms - open_objects(root).now_ms(is_asked=True)
    if 0 < ahead_ms <= _MAX_WAIT_MS:
        clock.sleep(ahead_ms / 1000)


def _too_late(name: str, change_id: str, limit_ms: int, delay_ms: int) -> str:
    limit = datetime.datetime.fromtimestamp(limit_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    return (
        f"{name}: change {change_id} is of {to_iso_time(change_id)}, but the table is complete up to {limit}: changes may "
        f"be {delay_ms} ms old at most; leave out the change id, or create the table with a longer full consistency delay"
    )
