"""Which tables events are of, and what a table of theirs would be: its columns and its key."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from siltstone.cdc.canal import column_types
from siltstone.cdc.changes import SOURCE_POSITION, ChangeFormat
from siltstone.cdc.dms import CHANGE_SEQUENCE, OPERATION, TIME
from siltstone.cdc.envelope import groups_of, is_with_schema, shape_of
from siltstone.cdc.event_lines import Events
from siltstone.cdc.goldengate import META
from siltstone.cdc.message_plan import META_PREFIX
from siltstone.errors import InputWarning, InvalidInputError
from siltstone.model.schema import normalize_schema, widest

_LEAVE_OUT_COLUMNS = ("debezium", "goldengate")
_COMPLETE = ("mysql", "mariadb", "sqlserver", "mongodb", "db2")


@dataclass(frozen=True)
class Source:
    """A table at the source."""

    table: str
    schema: str = ""
    database: str = ""

    def name_in(self, template: str) -> str:
        """Return the name of our table, by a template such as `shop.{table}`. Raises: InvalidInputError."""
        try:
            return template.format(table=self.table, schema=self.schema, database=self.database)
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidInputError(
                f"{template!r} is no template of a table's name; use {{table}}, {{schema}} and {{database}}, e.g. shop.{{table}}"
            ) from error


@dataclass(frozen=True)
class Layout:
    """What a table for events would be. `leaves_out`: events may leave out columns, so it merges by `partial_update`."""

    schema: pa.Schema
    primary_keys: Sequence[str]
    leaves_out: bool

    @property
    def columns(self) -> pa.Schema:
        """All columns, with the source position; those outside the key may be null."""
        fields = [field.with_nullable(field.name not in self.primary_keys) for field in self.schema]
        if SOURCE_POSITION not in self.schema.names:
            fields.append(pa.field(SOURCE_POSITION, pa.binary()))
        return pa.schema(fields)


def leaves_out(format: ChangeFormat, connector: str | None = None) -> bool:
    """Return whether events of a format may leave columns out of rows that did not change in them."""
    return format in _LEAVE_OUT_COLUMNS and connector not in _COMPLETE


def by_table(events: Events, format: ChangeFormat) -> dict[Source, Events]:
    """Divide events by their tables, in the order in which those first occur.

    Events of no table go with the first one, whose decoder says what they are.
    """
    places: dict[Source, list[int]] = {}
    others: list[int] = []
    for place, value in enumerate(events.values.to_pylist()):
        source = None if value is None else _source(value, format)
        (others if source is None else places.setdefault(source, [])).append(place)
    if places and others:
        first = next(iter(places.values()))
        first += others
        first.sort()
    return {source: events.take(np.array(rows, np.int64)) for source, rows in places.items()}


def _source(value: bytes, format: ChangeFormat) -> Source | None:
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    if format == "debezium":
        return _debezium_source(event["payload"] if is_with_schema(event) else event)
    if format == "goldengate":
        schema, _, name = str(event.get("table") or "").rpartition(".")
        return Source(name, schema) if name else None
    about = event.get("metadata") if format == "dms" else event
    if not isinstance(about, dict):
        return None
    table = about.get("table-name" if format == "dms" else "table")
    database = str(about.get("schema-name" if format == "dms" else "database") or "")
    return Source(str(table), database, database) if table else None


def _debezium_source(event: Any) -> Source | None:
    if not isinstance(event, dict):
        return None
    shape = shape_of(event)
    if shape == "flat":
        found = {name: event.get(f"{META_PREFIX}{name}") or event.get(f"{META_PREFIX}source_{name}") for name in _NAMES}
    elif shape == "envelope":
        found = {name: event["source"].get(name) for name in _NAMES}
    else:
        return None
    if not found["table"]:
        return None
    return Source(*(str(found[name] or "") for name in _NAMES))


_NAMES = ("table", "schema", "db")


def layout_of(events: "Events | pa.Table", format: ChangeFormat, keys: Sequence[str] = ()) -> Layout:
    """Return what a table of these events would be; `keys` replace those that events tell. Raises: InvalidInputError."""
    if isinstance(events, pa.Table):
        named = [name for name in events.column_names if name not in (OPERATION, TIME, CHANGE_SEQUENCE)]
        if format != "dms" or named == [f"f{at}" for at in range(events.num_columns)]:
            raise InvalidInputError("a CSV file of DMS has no column names; create the table with --schema FILE")
        return Layout(normalize_schema(pa.schema([events.schema.field(name) for name in named])), keys, False)
    found = events.take(np.asarray(events.values.is_valid()))
    if format == "debezium":
        return _debezium_layout(found, keys)
    columns, told = _plain_columns(found, format)
    if not columns:
        raise InvalidInputError(f"there are no rows of {format} events to take columns from; use --schema FILE")
    _check_keys(keys or told)
    return Layout(pa.schema(list(columns.items())), keys or told, leaves_out(format))


def _check_keys(keys: Sequence[str]) -> None:
    if not keys:
        raise InvalidInputError("the events do not tell the primary key; name it with --key COLUMN")


def _debezium_layout(events: Events, keys: Sequence[str]) -> Layout:
    types: dict[str, pa.DataType] = {}
    for group in groups_of(events):
        if group.schema is None:
            continue
        for name, encoding in group.schema.columns.items():
            if not group.schema.is_envelope and name.startswith(META_PREFIX):
                continue
            types[name] = widest(types.get(name, encoding.type), encoding.type) or encoding.type
    if not types:
        raise InvalidInputError(
            "the messages have no schemas, so that the types of columns are not known; create the table with --schema FILE, "
            "or have the source send schemas (value.converter.schemas.enable=true)"
        )
    keys = list(keys) or _message_keys(events)
    _check_keys(keys)
    return Layout(pa.schema(list(types.items())), keys, leaves_out("debezium", _connector(events)))


def _connector(events: Events) -> str | None:
    for value in events.values.slice(0, 100).to_pylist():
        event = orjson.loads(value)
        payload = event["payload"] if is_with_schema(event) else event
        if isinstance(payload, dict) and isinstance(payload.get("source"), dict):
            connector = payload["source"].get("connector")
            return str(connector) if connector else None
    return None


def _message_keys(events: Events) -> list[str]:
    if events.keys is None:
        return []
    for key in events.keys.drop_null().slice(0, 1).to_pylist():
        found = orjson.loads(key)
        payload = found["payload"] if is_with_schema(found) else found
        return list(payload) if isinstance(payload, dict) else []
    return []


def _plain_columns(events: Events, format: ChangeFormat) -> tuple[dict[str, pa.DataType], list[str]]:
    columns: dict[str, pa.DataType] = {}
    keys: list[str] = []
    for value in events.values.to_pylist():
        try:
            event = orjson.loads(value)
        except orjson.JSONDecodeError:
            continue
        if not isinstance(event, dict):
            continue
        keys = keys or _named_keys(event)
        types = column_types(event.get("mysqlType")) if format == "canal" else {}
        for row in _rows(event, format):
            for name, each in row.items():
                kind = types.get(name) or _type_of(each)
                if kind is not None:
                    columns[name] = widest(columns.get(name, kind), kind) or pa.string()
                elif each is not None and name not in columns:
                    warnings.warn(
                        f"column {name!r} is taken to be text, by the value {each!r:.40}", InputWarning, stacklevel=2
                    )
                    columns[name] = pa.string()
    return columns, keys


def _named_keys(event: Mapping[str, Any]) -> list[str]:
    named = event.get("pkNames") or event.get("primary_keys") or event.get("primary_key_columns")
    return [str(name) for name in named] if isinstance(named, list) else []


def _rows(event: Mapping[str, Any], format: ChangeFormat) -> list[Mapping[str, Any]]:
    if format == "goldengate":
        row = (
            event.get("after")
            if "after" in event or "before" in event
            else {k: event[k] for k in event if k not in META}
        )
        return [row] if isinstance(row, dict) else []
    data = event.get("data")
    rows = data if isinstance(data, list) else [data]
    return [row for row in rows if isinstance(row, dict)]


def _type_of(value: Any) -> pa.DataType | None:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    return pa.string() if isinstance(value, str) else None
