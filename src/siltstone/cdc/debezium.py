"""Debezium's JSON: envelopes and flattened rows, with and without schemas."""

from collections.abc import Mapping

from siltstone.cdc.changes import Decoded, FindRows, Options, Target
from siltstone.cdc.encodings import Encoding, encoding_of_type
from siltstone.cdc.envelope import Group, groups_of
from siltstone.cdc.event_lines import Events
from siltstone.cdc.images import Collected, Column
from siltstone.cdc.message_blocks import decode_blocks
from siltstone.cdc.message_plan import META_PREFIX, Plan
from siltstone.cdc.message_rows import decode_key_deletes
from siltstone.cdc.settle import settle
from siltstone.errors import InvalidInputError


def decode_debezium(events: Events, target: Target, options: Options, find_rows: FindRows | None) -> Decoded:
    """Decode messages of one table. Raises: InvalidInputError where they are of several."""
    collected = Collected()
    tables: dict[str, int] = {}
    is_null = events.values.is_null().to_numpy(zero_copy_only=False)
    is_flat = False
    for group in groups_of(events.take(~is_null) if is_null.any() else events):
        plan = Plan(
            target, options, _columns(group, target, options), group.schema is not None, None, collected, tables
        )
        decode_blocks(group.events, plan)
        is_flat = is_flat or bool(plan.is_flat)
    _refuse_several_tables(tables)
    if is_null.any():
        _decode_tombstones(events.take(is_null), target, options, is_flat, collected)
    return settle(collected, target, len(events), find_rows)


def _columns(group: Group, target: Target, options: Options) -> list[Column]:
    """Return the table's columns, and those that only the schema has, with how events write them."""
    told: Mapping[str, Encoding] = {} if group.schema is None else group.schema.columns
    columns = []
    for each in target.columns:
        encoding = told.get(each.name) or encoding_of_type(each.type, each.name, options)
        columns.append(Column(each.name, encoding, encoding.type_in(each.type)))
    known = set(target.schema.names)
    is_flat = group.schema is not None and not group.schema.is_envelope
    for name, encoding in told.items():
        if name not in known and not (is_flat and name.startswith(META_PREFIX)):
            columns.append(Column(name, encoding, encoding.type))
    return columns


def _refuse_several_tables(tables: Mapping[str, int]) -> None:
    if len(tables) > 1:
        (one, first), (other, second), *_ = tables.items()
        raise InvalidInputError(
            f"the events are of several tables: {one} in line {first}, {other} in line {second}; write each to its own "
            "with --into 'NAMESPACE.{table}'"
        )


def _decode_tombstones(events: Events, target: Target, options: Options, is_flat: bool, collected: Collected) -> None:
    """Count null values; among flat rows, one with a key is a delete, and all that there is of it."""
    if not is_flat or events.keys is None:
        collected.skipped["tombstone"] += len(events)
        return
    columns = [Column(c.name, encoding_of_type(c.type, c.name, options), c.type) for c in target.columns]
    plan = Plan(target, options, columns, False, True, collected)
    decode_key_deletes(events, plan)
