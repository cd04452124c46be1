"""Debezium's messages by the thousand: Arrow's JSON reader with a schema of the table's types.

A block that does not fit as a whole is halved until the messages that do not fit are few, and those go the slow way.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from siltstone.cdc.changes import OP_COLUMN, SOURCE_POSITION
from siltstone.cdc.envelope import SIGNAL_TABLE, shape_of
from siltstone.cdc.event_columns import Flags, array_of, wire_type
from siltstone.cdc.event_lines import Events
from siltstone.cdc.images import Images
from siltstone.cdc.message_plan import Plan, may_be_unavailable, null_warning
from siltstone.cdc.message_positions import positions_of
from siltstone.cdc.message_rows import decode_rows, sample, table_of

_BLOCK_EVENTS = 1 << 15
_FEW_EVENTS = 32
# So many halves that do not fit, one after another, say that no event of the block does.
_MOST_FAILURES = 8
_SAMPLES = 16
_READ_BYTES = 1 << 20
_ROW_OPERATIONS = pa.array(["c", "r", "u", "d"])
_SOURCE_TYPES: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
# What a field of `source` is where the first messages have null there.
_SOURCE_FIELDS: dict[str, pa.DataType] = {
    "lsn": pa.int64(), "xmin": pa.int64(), "txId": pa.int64(), "sequence": pa.string(), "gtid": pa.string(),
    "thread": pa.int64(), "query": pa.string(), "row": pa.int64(), "event_serial_no": pa.int64(),
    "commit_lsn": pa.string(), "change_lsn": pa.string(), "table": pa.string(), "schema": pa.string(), "db": pa.string(),
    "server_id": pa.int64(), "ts_us": pa.int64(), "ts_ns": pa.int64(), "origin": pa.string(), "origin_lsn": pa.int64(),
}  # fmt: skip
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])


class _UnfitBlockError(Exception):
    """A block has messages that only the slow way can decode."""


def decode_blocks(events: Events, plan: Plan) -> None:
    """Decode events, as many at once as fit."""
    for start in range(0, len(events), _BLOCK_EVENTS):
        plan.failures = 0
        _decode(events.slice(start, min(start + _BLOCK_EVENTS, len(events))), plan)


def _decode(events: Events, plan: Plan) -> None:
    if len(events) <= _FEW_EVENTS or plan.failures > _MOST_FAILURES:
        decode_rows(events, plan)
        return
    try:
        _decode_block(events, plan)
        plan.failures = 0
    except (_UnfitBlockError, pa.ArrowException, ValueError):
        plan.failures += 1
        middle = len(events) // 2
        _decode(events.slice(0, middle), plan)
        _decode(events.slice(middle, len(events)), plan)


def _decode_block(events: Events, plan: Plan) -> None:
    places = np.unique(np.linspace(0, len(events) - 1, _SAMPLES).astype(np.int64)).tolist()
    payloads = [payload for payload in sample(events, places) if shape_of(payload) == "envelope"]
    if not payloads or not all(isinstance(payload["source"], dict) for payload in payloads):
        raise _UnfitBlockError
    table = _read(events, _schema(payloads, plan))
    is_slow = _slow_flags(table, plan)
    if is_slow.any():
        if is_slow.all():
            raise _UnfitBlockError
        chosen = np.flatnonzero(~is_slow)
        images = _images(table.take(pa.array(chosen)), events.lines[chosen], plan)
        decode_rows(events.take(is_slow), plan)
    else:
        images = _images(table, events.lines, plan)
    plan.is_flat = False if plan.is_flat is None else plan.is_flat
    plan.collected.parts.append(images)


def _read(events: Events, schema: pa.Schema) -> pa.Table:
    text = events.text()
    if text is None:
        raise _UnfitBlockError
    longest = max(pc.max(pc.binary_length(events.values)).as_py() + 2, _READ_BYTES)
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(block_size=longest, use_threads=False),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    if table.num_rows != len(events):
        raise _UnfitBlockError
    return table.combine_chunks()


def _schema(payloads: Sequence[Mapping[str, Any]], plan: Plan) -> pa.Schema:
    """Return what to read messages like these with."""
    images = [
        payload[name] for payload in payloads for name in ("before", "after") if isinstance(payload.get(name), dict)
    ]
    columns: dict[str, pa.DataType] = {}
    for column in plan.columns:
        wire = wire_type(column.encoding, column.type, [image.get(column.name) for image in images])
        if wire is None:
            raise _UnfitBlockError
        columns[column.name] = wire
    for name in dict.fromkeys(name for image in images for name in image):
        # Values of columns that nobody knows are refused, but null says nothing.
        columns.setdefault(name, pa.null())
    row = pa.struct([pa.field(name, kind) for name, kind in columns.items()])
    source: dict[str, pa.DataType] = {}
    for payload in payloads:
        for name, value in payload["source"].items():
            found = _SOURCE_TYPES.get(type(value))
            source[name] = found or source.get(name) or _SOURCE_FIELDS.get(name, pa.string())
    fields: dict[str, pa.DataType] = {"before": row, "after": row, "source": pa.struct(list(source.items()))}
    fields |= {"op": pa.string(), "transaction": _TRANSACTION}
    return pa.schema([*fields.items(), *((f"ts_{unit}", pa.int64()) for unit in ("ms", "us", "ns"))])


def _slow_flags(table: pa.Table, plan: Plan) -> Flags:
    """Flag the messages that are no plain change of a row, or lack what it needs."""
    ops, after, before = (table.column(name).combine_chunks() for name in ("op", "after", "before"))
    is_delete = pc.fill_null(pc.equal(ops, "d"), False)
    is_fine = pc.and_(pc.is_in(ops, _ROW_OPERATIONS), pc.is_valid(table.column("source").combine_chunks()))
    is_fine = pc.and_(
        is_fine, pc.if_else(is_delete, pc.and_(pc.is_valid(before), pc.is_null(after)), pc.is_valid(after))
    )
    for name in plan.keys:
        old, new = _child(before, name), _child(after, name)
        differs = pc.fill_null(pc.not_equal(old, new), False)
        # A row without its key, or an update that changes it.
        is_fine = pc.and_(is_fine, pc.invert(differs))
        is_fine = pc.and_(is_fine, pc.is_valid(pc.if_else(is_delete, old, new)))
    if not plan.target.primary_keys:
        is_fine = pc.and_(is_fine, pc.is_in(ops, pa.array(["c", "r"])))
    return np.asarray(pc.invert(is_fine).to_numpy(zero_copy_only=False), np.bool_)


def _child(struct: Any, name: str) -> Any:
    """Return a field of a struct, null where the struct is."""
    return pc.struct_field(struct, [struct.type.get_field_index(name)])


def _images(table: pa.Table, lines: Any, plan: Plan) -> Images:
    ops, after, before = (table.column(name).combine_chunks() for name in ("op", "after", "before"))
    is_delete = pc.equal(ops, "d")
    has_deletes = pc.any(is_delete).as_py()
    arrays, absent = [], {}
    for column in plan.columns:
        wire = _child(after, column.name)
        if column.name in plan.keys:
            wire = pc.if_else(is_delete, _child(before, column.name), wire) if has_deletes else wire
        else:
            flags = plan.placeholder.flags(wire)
            if flags is not None:
                absent[column.name] = flags
                wire = wire.take(pa.array(np.arange(len(wire)), mask=flags))
        arrays.append(array_of(wire, column.encoding, column.type))
    source = table.column("source").combine_chunks()
    _count_tables(source, lines, plan)
    arrays += [ops, positions_of(source, ops, table.column("transaction").combine_chunks())]
    _warn_of_nulls(arrays, ops, before, source, plan)
    names = [*(column.name for column in plan.columns), OP_COLUMN, SOURCE_POSITION]
    return Images(pa.Table.from_arrays(arrays, names=names), lines, absent)


def _count_tables(source: Any, lines: Any, plan: Plan) -> None:
    names = [name for name in ("schema", "table", "collection") if source.type.get_field_index(name) >= 0]
    places = pa.table({name: _child(source, name) for name in names} | {"_line": pa.array(lines)})
    if not names:
        return
    for each in places.group_by(names).aggregate([("_line", "min")]).to_pylist():
        if each.get("table") == SIGNAL_TABLE:
            raise _UnfitBlockError
        plan.count_table(table_of(each), each["_line_min"])


def _warn_of_nulls(arrays: Sequence[Any], ops: Any, before: Any, source: Any, plan: Plan) -> None:
    """Warn of nulls that may stand for values that did not change: of some types, PostgreSQL's connector tells no more."""
    if (
        source.type.get_field_index("connector") < 0
        or not pc.any(pc.equal(_child(source, "connector"), "postgresql")).as_py()
    ):
        return
    is_update = pc.and_(pc.equal(ops, "u"), pc.is_null(before))
    for column, values in zip(plan.columns, arrays, strict=False):
        if may_be_unavailable(column) and values.null_count:
            count = pc.sum(pc.and_(is_update, pc.is_null(values))).as_py()
            if count:
                plan.collected.warnings.append(null_warning(column.name))
