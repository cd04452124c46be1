"""Oracle GoldenGate's JSON: operations with `before` and `after`, or rows with their operation beside the columns."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from siltstone.cdc.changes import Decoded, FindRows, Options, Target
from siltstone.cdc.event_lines import Events
from siltstone.cdc.event_values import UnfitError
from siltstone.cdc.images import TRUNCATE
from siltstone.cdc.position import pack
from siltstone.cdc.records import Record, SkippedEventError, decode_records

_OPERATIONS = {"I": "c", "U": "u", "D": "d"}
META = frozenset({"table", "op_type", "op_ts", "current_ts", "pos", "primary_keys", "tokens", "csn", "xid"})
_MISSING = "_isMissing"
_POSITION_DIGITS = 20
_HALF = 10**10


def decode_goldengate(events: Events, target: Target, options: Options, find_rows: FindRows | None) -> Decoded:
    """Decode GoldenGate's events of one table. Raises: InvalidInputError where they are of several."""
    return decode_records(events, _records, "base64", target, find_rows)


def _records(event: Mapping[str, Any]) -> Iterator[Record]:
    kind, table = event.get("op_type"), event.get("table")
    if not isinstance(table, str) or not isinstance(kind, str):
        if "ddl" in str(event)[:200].lower() or event.get("$schema"):
            raise SkippedEventError("change of definitions")
        raise UnfitError("an event of GoldenGate needs 'table' and 'op_type'")
    position = _position(event)
    if kind == "T":
        yield Record(TRUNCATE, {}, position, table=table)
        return
    if kind not in _OPERATIONS:
        raise UnfitError(f"the operation {kind!r} is unknown; there are I, U, D and T")
    if "before" in event or "after" in event:
        before, after = event.get("before") or {}, event.get("after") or {}
    else:
        image = {name: value for name, value in event.items() if name not in META}
        before, after = (image, {}) if kind == "D" else ({}, image)
    if not isinstance(before, dict) or not isinstance(after, dict):
        raise UnfitError("'before' and 'after' are objects with a row each")
    before, after = _given(before), _given(after)
    if kind == "D":
        yield Record("d", before, position, table=table)
        return
    # An update may have only the columns that changed, and the key in `before`.
    row = {**{name: before[name] for name in _keys(event, before) if name not in after}, **after}
    yield Record(_OPERATIONS[kind], row, position, before, is_partial=kind == "U", table=table)


def _given(image: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an image without those that it says are missing: `x_isMissing` may stand beside `x`."""
    flags = {name for name in image if name.endswith(_MISSING) and name.removesuffix(_MISSING) in image}
    gone = {name.removesuffix(_MISSING) for name in flags if image[name] is not False}
    return {name: value for name, value in image.items() if name not in flags and name not in gone}


def _keys(event: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    named = event.get("primary_keys")
    return [name for name in named if name in before] if isinstance(named, list) else list(before)


def _position(event: Mapping[str, Any]) -> bytes | None:
    """Return the place in the trail, which rises along it; then the time of the change."""
    text = str(event.get("pos") or "")
    if not text.isdecimal() or len(text) > _POSITION_DIGITS:
        return None
    high, low = divmod(int(text), _HALF)
    try:
        when = datetime.datetime.fromisoformat(str(event.get("op_ts")).replace(" ", "T"))
        micros = (when.replace(tzinfo=None) - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    except ValueError:
        micros = 0
    return pack("goldengate", [high, low, micros])
