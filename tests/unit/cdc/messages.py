"""Debezium messages as its connectors write them, for tests."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

UNAVAILABLE = "__debezium_unavailable_value"
Message = dict[str, Any]


def base64_of(number: int) -> str:
    """Write a number as Kafka Connect writes the digits of a decimal."""
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def source(lsn: int, *, ts_us: int | None = None, table: str = "orders", **more: Any) -> Message:
    """Return what PostgreSQL's connector says of a change."""
    return {
        "version": "3.6.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1_700_000_000_000,
        "snapshot": "false",
        "db": "shop",
        "sequence": json.dumps([str(lsn - 1), str(lsn)]),
        "ts_us": 1_700_000_000_000_000 + lsn if ts_us is None else ts_us,
        "schema": "public",
        "table": table,
        "txId": 700 + lsn,
        "lsn": lsn,
        "xmin": None,
        **more,
    }


def change(op: str, lsn: int, row: Message | None = None, *, before: Message | None = None, **more: Any) -> Message:
    """Return an envelope; a delete has its row in `before`."""
    if op == "d" and before is None:
        before, row = row, None
    return {"before": before, "after": row, "source": source(lsn, **more), "transaction": None, "op": op, "ts_ms": 1}


def told(name: str, kind: str, semantic: str | None = None, **more: Any) -> Message:
    """Return a field of a schema."""
    return {"field": name, "type": kind, "optional": True, **({"name": semantic} if semantic else {}), **more}


def with_schema(message: Message, fields: Sequence[Mapping[str, Any]]) -> Message:
    """Return a message with the schema of its envelope."""
    row = {"type": "struct", "fields": list(fields), "optional": True}
    parts = [{**row, "field": "before"}, {**row, "field": "after"}]
    parts += [{"type": "struct", "fields": [], "optional": False, "field": "source"}, told("op", "string")]
    return {"schema": {"type": "struct", "fields": parts, "optional": False, "name": "Envelope"}, "payload": message}


def lines(messages: Sequence[Any]) -> bytes:
    """Write messages as JSON lines, as Kafka Connect does."""
    return b"\n".join(json.dumps(each, separators=(",", ":")).encode() for each in messages) + b"\n"
