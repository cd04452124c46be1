"""Rows and expansions as JSON, the way the command line reads and prints them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from siltstone.documents.change_ids import check_change_id, new_change_id
from siltstone.documents.expand import Expansion, expand
from siltstone.documents.language.parser import parse_delta
from siltstone.documents.language.text import value_text
from siltstone.documents.language.values import UNDEFINED, Json
from siltstone.documents.rows import Change, CompactionRecord, Row
from siltstone.errors import InvalidInputError

_T = TypeVar("_T")
_MISSING: Final = object()


def expand_case(case: object) -> dict[str, object]:
    """Tell what compaction would do to the row of a case. Raises: InvalidInputError, CorruptionError."""
    fields = _map(case, "a case")
    new_id = fields.get("new_id")
    row = row_of(fields)._replace(
        key=_text(fields, "key", ""),
        table=_text(fields, "table", ""),
        placement=_text(fields, "placement", "") or None,
    )
    ctl = fields.get("ctl")
    found = expand(
        row,
        fct=_integer(fields, "fct"),
        raw=_integer(fields, "raw"),
        ctl=None if ctl is None else _integer(fields, "ctl"),
        new_id=new_change_id if new_id is None else _change_id(fields, "new_id"),
    )
    return expansion_fields(found)


def row_of(fields: Mapping[str, object]) -> Row:
    """Read the deltas and the compaction records of a document. Raises: InvalidInputError."""
    return Row(_list(fields, "deltas", _change), _list(fields, "compactions", _record))


def apply_case(case: object) -> dict[str, object]:
    """Tell what a delta makes of a value: `{"delta": text, "on": value}`. Raises: InvalidInputError."""
    fields = _map(case, "a case")
    old = fields.get("on", UNDEFINED)
    result = parse_delta(_text(fields, "delta")).apply(old)  # type: ignore[arg-type]
    return {"content": None if result is UNDEFINED else result, "deleted": result is UNDEFINED}


def expansion_fields(found: Expansion) -> dict[str, object]:
    """Return what there is to show of an expansion; times are change ids."""
    return {
        "content": None if found.content is UNDEFINED else found.content,
        "deleted": found.deleted,
        "version": found.version,
        "signature": found.signature,
        "first_update_at": found.first_update_at,
        "last_update_at": found.last_update_at,
        "last_mutate_at": found.last_mutate_at,
        "redundant": list(found.redundant),
        "write": None if found.write is None else record_fields(found.write),
        "delete": list(found.delete),
    }


def record_fields(record: CompactionRecord) -> dict[str, object]:
    """Return a record as JSON has it."""
    fields = record._asdict()
    return {"id": fields.pop("change_id"), **fields, "last_tags": list(record.last_tags or ())}


def _change(value: object, where: str) -> Change:
    fields = _map(value, where)
    delta = fields.get("delta")
    # A map that is not written as text can only be meant as a literal.
    text = value_text(delta) if isinstance(delta, dict) else _text(fields, "delta", where=where)
    return Change(_change_id(fields, "id", where), text, _tags(fields, "tags", where))


def _record(value: object, where: str) -> CompactionRecord:
    fields = _map(value, where)

    def optional_id(name: str) -> str | None:
        return None if fields.get(name) is None else _change_id(fields, name, where)

    def optional_text(name: str) -> str | None:
        return None if fields.get(name) is None else _text(fields, name, where=where)

    return CompactionRecord(
        _change_id(fields, "id", where),
        _integer(fields, "count", where),
        optional_id("first"),
        optional_id("cutoff"),
        optional_text("cutoff_signature"),
        optional_id("last_content_mutation"),
        optional_id("last_mutation"),
        optional_text("compacted_delta"),
        _tags(fields, "last_tags", where),
    )


def _map(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where} is a JSON object, not {_shown(value)}")
    return value


def _list(fields: Mapping[str, object], name: str, read: Callable[[object, str], _T]) -> list[_T]:
    values = fields.get(name)
    if values is None:
        return []
    if not isinstance(values, list):
        raise InvalidInputError(f"{name} is a list, not {_shown(values)}")
    return [read(value, f"{name}[{position}]") for position, value in enumerate(values)]


def _change_id(fields: Mapping[str, object], name: str, where: str = "") -> str:
    try:
        return check_change_id(_text(fields, name, where=where))
    except InvalidInputError as error:
        raise InvalidInputError(f"{_path(where, name)}: {error}") from error


def _integer(fields: Mapping[str, object], name: str, where: str = "") -> int:
    value = fields.get(name, _MISSING)
    if type(value) is not int:
        meaning = "a whole number" if name == "count" else "a whole number of milliseconds since 1970"
        raise InvalidInputError(f"{_path(where, name)} is {meaning}, {_found(value)}")
    return value


def _text(fields: Mapping[str, object], name: str, default: str | None = None, *, where: str = "") -> str:
    value = fields.get(name, _MISSING)
    if default is not None and (value is _MISSING or value is None):
        return default
    if not isinstance(value, str):
        raise InvalidInputError(f"{_path(where, name)} is a string, {_found(value)}")
    return value


def _tags(fields: Mapping[str, object], name: str, where: str) -> Sequence[str]:
    tags = fields.get(name)
    if tags is None:
        return ()
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidInputError(f"{_path(where, name)} is a list of strings, not {_shown(tags)}")
    return tuple(tags)


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _found(value: object) -> str:
    return "and it is missing" if value is _MISSING else f"not {_shown(value)}"


def _shown(value: object) -> str:
    shown: Json = value  # type: ignore[assignment]
    text = value_text(shown)
    return text if len(text) <= 60 else text[:60] + "…"
