"""Maxwell's JSON: `{"database", "table", "type", "ts", "xid", "xoffset", "commit", "data", "old"}`."""

from collections.abc import Iterator, Mapping
from typing import Any

from siltstone.cdc.changes import Decoded, FindRows, Options, Target
from siltstone.cdc.event_lines import Events
from siltstone.cdc.event_values import UnfitError
from siltstone.cdc.position import file_number, pack
from siltstone.cdc.records import Record, SkippedEventError, decode_records

_OPERATIONS = {"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"}
_LAST = (1 << 64) - 1


def decode_maxwell(events: Events, target: Target, options: Options, find_rows: FindRows | None) -> Decoded:
    """Decode Maxwell's events of one table. Raises: InvalidInputError where they are of several."""
    return decode_records(events, _records, "base64", target, find_rows)


def _records(event: Mapping[str, Any]) -> Iterator[Record]:
    kind = event.get("type")
    if isinstance(kind, str) and kind.startswith(("table-", "database-")):
        raise SkippedEventError("change of definitions")
    if kind in ("bootstrap-start", "bootstrap-complete", "heartbeat"):
        raise SkippedEventError(kind)
    if not isinstance(kind, str) or kind not in _OPERATIONS:
        raise UnfitError(f"the type {kind!r} is unknown; there are {', '.join(_OPERATIONS)}")
    data, old = event.get("data"), event.get("old") or {}
    if not isinstance(data, dict) or not isinstance(old, dict):
        raise UnfitError("an event of Maxwell needs 'data', an object with the row")
    table = f"{event.get('database')}.{event.get('table')}"
    yield Record(_OPERATIONS[kind], data, _position(event), old, table=table)


def _position(event: Mapping[str, Any]) -> bytes | None:
    """Return where a change was: its time, then its place in the binary log, or else its transaction and row."""
    seconds, milliseconds = event.get("ts"), event.get("ts_ms")
    if not isinstance(milliseconds, int):
        if not isinstance(seconds, int):
            return None
        milliseconds = seconds * 1000
    # The last row of a transaction has no offset, but says that it is committed.
    offset = event.get("xoffset", _LAST if event.get("commit") else 0)
    offset = offset if isinstance(offset, int) else 0
    place = str(event.get("position") or "")
    file, colon, at = place.rpartition(":")
    if colon and at.isdecimal():
        return pack("maxwell", [milliseconds * 1000, file_number(file), int(at), offset])
    transaction = event.get("xid")
    return pack("maxwell", [milliseconds * 1000, transaction if isinstance(transaction, int) else 0, offset])
