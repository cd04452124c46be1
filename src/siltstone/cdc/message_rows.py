"""Debezium's messages one by one: slow and exact, and with a reason for each that does not fit."""

import decimal
import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from siltstone.cdc.changes import Reject
from siltstone.cdc.envelope import OPERATIONS, SIGNAL_TABLE, is_with_schema, shape_of
from siltstone.cdc.event_lines import Events
from siltstone.cdc.event_values import InexactNumberError, UnfitError
from siltstone.cdc.images import TRUNCATE, RowBuilder, decoded
from siltstone.cdc.message_plan import META_PREFIX, Plan, may_be_unavailable, null_warning, row_bytes
from siltstone.cdc.position import of_source

_TRUE = (True, "true")
_SOURCE = "source_"


def decode_rows(events: Events, plan: Plan) -> None:
    """Decode events one by one; what does not fit is rejected."""
    builder = RowBuilder(plan.columns)
    for place, line in enumerate(events.lines.tolist()):
        value = row_bytes(events, place)
        key = None if events.keys is None else events.keys[place].as_py()
        try:
            _decode_row(value, key, line, plan, builder, orjson.loads)
        except InexactNumberError:
            _again(value, key, line, plan, builder)
        except ValueError as error:
            plan.collected.rejects.append(Reject(line, _reason(error), value))
    plan.collected.parts.append(builder.images())


def _again(value: bytes, key: bytes | None, line: int, plan: Plan, builder: RowBuilder) -> None:
    """Decode an event with all digits of its numbers."""
    try:
        _decode_row(value, key, line, plan, builder, _exactly)
    except (ValueError, RecursionError) as error:
        plan.collected.rejects.append(Reject(line, _reason(error), value))


def _exactly(value: bytes) -> Any:
    return json.loads(value, parse_float=decimal.Decimal)


def _reason(error: Exception) -> str:
    return f"not valid JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)


def _decode_row(value: bytes, key: bytes | None, line: int, plan: Plan, builder: RowBuilder, read: Any) -> None:
    payload = read(value)
    if not isinstance(payload, dict):
        raise UnfitError(f"a change event is a JSON object, not {value[:40]!r}")
    if is_with_schema(payload):
        raise UnfitError("its schema cannot be read; have it written as Kafka Connect does: first schema, then payload")
    shape = shape_of(payload)
    if shape == "envelope":
        plan.is_flat = False if plan.is_flat is None else plan.is_flat
        _decode_envelope(payload, key, line, plan, builder)
    elif shape == "flat":
        _decode_flat(payload, line, plan, builder)
    else:
        plan.collected.skipped[shape] += 1


def _decode_envelope(payload: Mapping[str, Any], key: bytes | None, line: int, plan: Plan, builder: RowBuilder) -> None:
    op, source = payload["op"], payload["source"]
    if op not in OPERATIONS:
        raise UnfitError(f"the operation {op!r} is unknown; there are {', '.join(OPERATIONS)}")
    if source.get("table") == SIGNAL_TABLE:
        plan.collected.skipped["signal"] += 1
        return
    transaction = payload.get("transaction")
    position = of_source(source, op, transaction if isinstance(transaction, dict) else None)
    before, after = payload.get("before"), payload.get("after")
    if op == "t":
        plan.count_table(table_of(source), line)
        builder.add(line, TRUNCATE, position, [None] * len(plan.columns))
        return
    if op == "d":
        _add_delete(_key_image(before, key, plan), line, position, plan, builder)
    else:
        if not isinstance(after, dict):
            raise UnfitError(f"an event of operation {op} needs 'after'")
        if op == "u" and isinstance(before, dict) and _changes_key(before, after, plan):
            deleted = of_source(source, "d", transaction if isinstance(transaction, dict) else None)
            _add_delete(before, line, deleted, plan, builder)
        _add_row(after, op, line, position, plan, builder)
        if op == "u" and before is None and source.get("connector") == "postgresql":
            nulls = [each.name for each in plan.columns if may_be_unavailable(each) and after.get(each.name) is None]
            plan.collected.warnings += map(null_warning, nulls)
    plan.count_table(table_of(source), line)


def table_of(source: Mapping[str, Any]) -> str:
    """Return the name of the source's table, with its schema."""
    return ".".join(str(source[name]) for name in ("schema", "table") if source.get(name)) or str(
        source.get("collection")
    )


def _changes_key(before: Mapping[str, Any], after: Mapping[str, Any], plan: Plan) -> bool:
    return bool(plan.keys) and any(
        name in before and before[name] is not None and before[name] != after.get(name) for name in plan.keys
    )


def _key_image(before: Any, key: bytes | None, plan: Plan) -> Mapping[str, Any]:
    """Return the values of a deleted row's key: those of `before`, or of the message's key."""
    if isinstance(before, dict) and all(name in before for name in plan.keys):
        return before
    if key is not None:
        found = orjson.loads(key)
        found = found["payload"] if is_with_schema(found) else found
        if isinstance(found, dict) and all(name in found for name in plan.keys):
            return found
    raise UnfitError(f"a delete without the key {', '.join(plan.keys)}; write lines with key and value")


def _add_delete(image: Mapping[str, Any], line: int, position: bytes | None, plan: Plan, builder: RowBuilder) -> None:
    if not plan.target.primary_keys:
        raise UnfitError("the table has no primary key, so that no row can be deleted; create it with one")
    values = [decoded(image.get(each.name), each) if each.name in plan.keys else None for each in plan.columns]
    builder.add(line, "d", position, values)


def _add_row(
    image: Mapping[str, Any], op: str, line: int, position: bytes | None, plan: Plan, builder: RowBuilder
) -> None:
    if op == "u" and not plan.target.primary_keys:
        raise UnfitError("the table has no primary key, so that no row can be updated; create it with one")
    _refuse_unknown(image, plan)
    missing = [name for name in plan.target.primary_keys if name not in image]
    if missing:
        raise UnfitError(f"the event has no {missing[0]!r}, which is part of the primary key")
    values: list[Any] = []
    absent: list[str] = []
    for column in plan.columns:
        value = image.get(column.name)
        if column.name not in plan.keys and plan.placeholder.is_value(value):
            absent.append(column.name)
            value = None
        values.append(decoded(value, column))
    builder.add(line, op, position, values, absent)


def _refuse_unknown(image: Mapping[str, Any], plan: Plan) -> None:
    """Refuse values of columns whose types nobody knows."""
    for name, value in image.items():
        if value is not None and name not in plan.by_name:
            raise UnfitError(
                f"column {name!r} is new, and the message has no schema that tells its type; add it with `siltstone table "
                f"alter TABLE --add-column {name}:TYPE`, or have the source send schemas"
            )


def _decode_flat(payload: Mapping[str, Any], line: int, plan: Plan, builder: RowBuilder) -> None:
    known = plan.by_name
    meta = {name: value for name, value in payload.items() if name.startswith(META_PREFIX) and name not in known}
    image = {name: value for name, value in payload.items() if name not in meta}
    if not image or (not meta and not any(name in image for name in plan.by_name)):
        raise UnfitError("neither a change event nor a row of the table")
    plan.is_flat = True
    op, source = flat_meta(meta)
    table = source.get("table")
    if table:
        plan.count_table(table_of(source), line)
    position = of_source(source, op) if "ts_us" in source or "ts_ms" in source or "ts_ns" in source else None
    if op == "d":
        _add_delete(_key_image(image, None, plan), line, position, plan, builder)
    else:
        _add_row(image, op, line, position, plan, builder)


def flat_meta(meta: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the operation and the source that the added fields of a flat row tell."""
    op = meta.get(f"{META_PREFIX}op") or "u"
    if meta.get(f"{META_PREFIX}deleted") in _TRUE:
        op = "d"
    if op not in ("c", "r", "u", "d"):
        raise UnfitError(f"the operation {op!r} is unknown")
    names = {name: name.removeprefix(META_PREFIX) for name in meta}
    # The time of the envelope is when the connector saw the change, which is not the source's order.
    own = {f"{META_PREFIX}{each}" for each in ("ts_ms", "ts_us", "ts_ns", "op", "deleted")}
    return op, {names[name].removeprefix(_SOURCE): value for name, value in meta.items() if name not in own}


def decode_key_deletes(events: Events, plan: Plan) -> None:
    """Decode null values with keys as deletes, which nothing but their arrival puts in order."""
    builder = RowBuilder(plan.columns)
    for place, line in enumerate(events.lines.tolist()):
        assert events.keys is not None
        key = events.keys[place].as_py()
        if key is None:
            plan.collected.skipped["tombstone"] += 1
            continue
        try:
            _add_delete(_key_image(None, key, plan), line, None, plan, builder)
        except ValueError as error:
            plan.collected.rejects.append(Reject(line, _reason(error), key))
    plan.collected.parts.append(builder.images())


def sample(events: Events, places: Sequence[int]) -> list[dict[str, Any]]:
    """Return some payloads; what is no JSON object is left out."""
    found = []
    for place in places:
        try:
            payload = orjson.loads(row_bytes(events, place))
        except orjson.JSONDecodeError:
            continue
        if isinstance(payload, dict):
            found.append(payload)
    return found
