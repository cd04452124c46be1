"""Documents as JSON with their deltas and compaction records: printed, read, and imported from other stores."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from siltstone.documents.expand import Expansion, expand, resolve
from siltstone.documents.intake import check_key, delta_text
from siltstone.documents.language.deltas import Literal
from siltstone.documents.language.parser import parse_delta
from siltstone.documents.language.values import UNDEFINED, Json, value_text
from siltstone.documents.record import (
    Change,
    CompactionRecord,
    Row,
    check_change_id,
    check_tags,
    iso_time,
    new_change_id,
    to_iso_time,
    to_ms,
)
from siltstone.errors import CorruptionError, InvalidInputError

_T = TypeVar("_T")
_MISSING: Final = object()


def expand_case(case: object) -> dict[str, object]:
    """Return what compaction would do to the row of a case. Raises: InvalidInputError, CorruptionError."""
    fields = _map(case, "a case")
    new_id = fields.get("new_id")
    row = row_of(fields)._replace(
        key=_text(fields, "key", ""),
        table=_text(fields, "table", ""),
        placement=_text(fields, "placement", "") or None,
    )
    ctl = fields.get("ctl")
    expansion = expand(
        row,
        fct=_integer(fields, "fct"),
        raw=_integer(fields, "raw"),
        ctl=None if ctl is None else _integer(fields, "ctl"),
        new_id=new_change_id if new_id is None else _change_id(fields, "new_id"),
    )
    return expansion_fields(expansion)


def row_of(fields: Mapping[str, object]) -> Row:
    """Read the deltas and the compaction records of a document. Raises: InvalidInputError."""
    return Row(_list(fields, "deltas", _change), _list(fields, "compactions", _record))


def apply_case(case: object) -> dict[str, object]:
    """Return what a delta makes of a value: `{"delta": text, "on": value}`. Raises: InvalidInputError."""
    fields = _map(case, "a case")
    old = fields.get("on", UNDEFINED)
    result = parse_delta(_text(fields, "delta")).apply(old)  # type: ignore[arg-type]
    return {"content": None if result is UNDEFINED else result, "deleted": result is UNDEFINED}


def expansion_fields(expansion: Expansion) -> dict[str, object]:
    """Return an expansion as JSON values; times are change ids."""
    return {
        "content": None if expansion.content is UNDEFINED else expansion.content,
        "deleted": expansion.deleted,
        "version": expansion.version,
        "signature": expansion.signature,
        "first_update_at": expansion.first_update_at,
        "last_update_at": expansion.last_update_at,
        "last_mutate_at": expansion.last_mutate_at,
        "redundant": list(expansion.redundant),
        "write": None if expansion.write is None else record_fields(expansion.write),
        "delete": list(expansion.delete),
    }


def record_fields(record: CompactionRecord) -> dict[str, object]:
    """Return a record as JSON values."""
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
        raise InvalidInputError(f"{_path(where, name)} is {meaning}, {_actual(value)}")
    return value


def _text(fields: Mapping[str, object], name: str, default: str | None = None, *, where: str = "") -> str:
    value = fields.get(name, _MISSING)
    if default is not None and (value is _MISSING or value is None):
        return default
    if not isinstance(value, str):
        raise InvalidInputError(f"{_path(where, name)} is a string, {_actual(value)}")
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


def _actual(value: object) -> str:
    return "and it is missing" if value is _MISSING else f"not {_shown(value)}"


def _shown(value: object) -> str:
    shown: Json = value  # type: ignore[assignment]
    text = value_text(shown)
    return text if len(text) <= 60 else text[:60] + "…"


_FIELDS = ("key", "deltas", "compactions")


class ImportResult(NamedTuple):
    """How many documents were imported, and how many left out because something was stored of them."""

    imported: int
    skipped: int


def imported_rows(documents: Iterable[Mapping[str, object]]) -> list[Row]:
    """Check documents of another store: `{"key": …, "deltas": […], "compactions": […]}`, as `documents expand` reads them.

    Records of no deltas are left out, since they never count. Raises: InvalidInputError that names the wrong one.
    """
    rows: dict[str, Row] = {}
    for number, document in enumerate(documents, 1):
        where = f"document {number}"
        if not isinstance(document, Mapping):
            raise InvalidInputError(f"{where}: {document!r:.60} is not a map of key, deltas and compactions")
        where = f"{where}, key {document.get('key')!r:.60}"
        try:
            row = _checked(document)
        except (InvalidInputError, CorruptionError) as error:
            raise InvalidInputError(f"{where}: {error}") from error
        if row.key in rows:
            raise InvalidInputError(f"{where}: occurs twice; put all its deltas and records into one")
        rows[row.key] = row
    return list(rows.values())


def check_complete(rows: Iterable[Row], closed_ms: int) -> None:
    """Check that records stand for nothing that can still be written. Raises: InvalidInputError."""
    for row in rows:
        for record in row.records:
            if record.cutoff is not None and to_ms(record.cutoff) >= closed_ms:
                raise InvalidInputError(
                    f"document {row.key!r}: compaction record {record.change_id} stands for deltas up to "
                    f"{to_iso_time(record.cutoff)}, but deltas from {iso_time(closed_ms)} on can still be written here; "
                    "import it when the full consistency delay of the table is over"
                )


def _checked(document: Mapping[str, object]) -> Row:
    unknown = [name for name in document if name not in _FIELDS]
    if unknown:
        raise InvalidInputError(f"unknown field {unknown[0]!r}; use {', '.join(_FIELDS)}")
    unchecked = row_of(document)
    row = Row(
        [Change(change_id, delta_text(delta), check_tags(tags or ())) for change_id, delta, tags in unchecked.changes],
        [_checked_record(record) for record in unchecked.records if record.count],
        check_key(document.get("key")),
    )
    if not row.changes and not row.records:
        raise InvalidInputError("has neither deltas nor compactions; leave it out")
    for kind, ids in (
        ("change", [change[0] for change in row.changes]),
        ("record", [record[0] for record in row.records]),
    ):
        twice = next(_repeated(ids), None)
        if twice is not None:
            raise InvalidInputError(f"{kind} {twice} occurs twice; keep one")
    resolve(row)
    return row


def _checked_record(record: CompactionRecord) -> CompactionRecord:
    if record.count < 0:
        raise InvalidInputError(f"compaction record {record.change_id}: {record.count} deltas are too few")
    if record.compacted_delta is None:
        return record
    text = delta_text(record.compacted_delta)
    if text != "~" and not _is_literal(text):
        raise InvalidInputError(
            f"compaction record {record.change_id}: {text:.60} is not the content of a document; give a map, or ~"
        )
    return record._replace(compacted_delta=text, last_tags=check_tags(record.last_tags or ()))


def _is_literal(text: str) -> bool:
    return isinstance(parse_delta(text), Literal)


def _repeated(ids: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for id_ in ids:
        if id_ in seen:
            yield id_
        seen.add(id_)
