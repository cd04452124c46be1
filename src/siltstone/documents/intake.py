"""What people write: updates, documents of other stores and cases to try; checked, and brought into stored rows."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from siltstone.documents.expand import expand, resolve
from siltstone.documents.language.deltas import (
    Builder,
    Conditional,
    Delta,
    Literal,
    MapDelta,
    SetDelta,
    conditional,
    map_delta,
)
from siltstone.documents.language.parser import parse_delta
from siltstone.documents.language.values import RESERVED, UNDEFINED, checked, value_text
from siltstone.documents.record import (
    ArchivedChange,
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
from siltstone.errors import AlreadyExistsError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

DeltaLike = Delta | Builder | str | Mapping[str, object]
"""A delta, a builder of one, its text, or a map that becomes the whole document."""

KeyLike = str | uuid.UUID
"""The key of a document: text, or a UUID, which is its text."""

ChangeIdLike = str | uuid.UUID
"""A change id: a version-1 UUID, or its text."""

UpdateLike = Mapping[str, object] | Sequence[object]
"""An update: a mapping with key, delta and perhaps tags and change_id, or these in this order."""

ChangeKey: TypeAlias = tuple[str, str]
"""A document's key and a change id."""

Stored: TypeAlias = tuple[str, Sequence[str] | None]
"""The text and the tags of a change that is stored."""

WRITTEN: Final = ("key", "change_id", "delta", "tags")
"""The columns of an update; all others are of compaction records."""

_DOCUMENT_FIELDS: Final = ("key", "deltas", "compactions", "history")
_SHOWN: Final = 60
_T = TypeVar("_T")


class Update(NamedTuple):
    """An update that was checked: the delta in its canonical text, tags in order; without an id it gets one later."""

    key: str
    delta: str
    tags: tuple[str, ...]
    change_id: str | None


def checked_updates(updates: Iterable[UpdateLike]) -> Iterator[Update]:
    """Check updates. Raises: InvalidInputError that names the wrong one."""
    for number, update in enumerate(updates, 1):
        fields = _update_fields(number, update)
        key, change_id = fields.get("key"), fields.get("change_id")
        try:
            yield Update(
                check_key(key),
                delta_text(fields.get("delta")),
                check_tags(fields.get("tags") or ()),  # type: ignore[arg-type]
                None if change_id is None else check_change_id(change_id),  # type: ignore[arg-type]
            )
        except InvalidInputError as error:
            raise InvalidInputError(f"update {number}, key {key!r:.60}: {error}") from error


def _update_fields(number: int, update: UpdateLike) -> Mapping[str, object]:
    if isinstance(update, Mapping):
        unknown = [name for name in update if name not in WRITTEN]
        if unknown:
            raise InvalidInputError(f"update {number}: unknown field {unknown[0]!r}; use key, delta, tags, change_id")
        return update
    if isinstance(update, str) or not 2 <= len(update) <= 4:
        raise InvalidInputError(f"update {number}: {update!r:.60} is not (key, delta), with tags and change id at most")
    return dict(zip(Update._fields, update, strict=False))


def table_updates(table: "pa.Table | pa.RecordBatch") -> list[UpdateLike]:
    """Return the rows of a table as updates. Raises: InvalidInputError where it has other columns."""
    check_columns(table.schema.names)
    updates: list[UpdateLike] = table.to_pylist()
    return updates


def check_columns(names: Sequence[str]) -> None:
    """Check the columns of a table of updates. Raises: InvalidInputError."""
    if not {"key", "delta"} <= set(names) <= set(WRITTEN) or len(set(names)) < len(names):
        raise InvalidInputError(
            f"updates have the columns key and delta, and perhaps tags and change_id, not {', '.join(names)}"
        )


def check_key(key: object) -> str:
    """Return the key of a document. Raises: InvalidInputError."""
    if isinstance(key, uuid.UUID):
        return str(key)
    if not isinstance(key, str) or not key:
        raise InvalidInputError(f"{key!r:.60} is not a document key; use text that is not empty")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"key {key!r:.60}: has a lone surrogate at {error.start}; give valid text") from error
    return key


def delta_text(delta: object) -> str:
    """Return the canonical text of what a document's delta may be. Raises: InvalidInputError."""
    if isinstance(delta, str):
        delta = parse_delta(delta)
    elif isinstance(delta, Builder):
        delta = delta.build()
    elif isinstance(delta, Mapping):
        delta = Delta.literal(dict(delta))
    if not isinstance(delta, Delta):
        raise InvalidInputError(
            f"{delta!r:.60} is not a delta; use text in the delta language, a Delta, a builder, or a map that becomes the document"
        )
    return str(sanitized(delta))


def sanitized(delta: Delta) -> Delta:
    """Return a delta of a whole document without the reserved keys; itself, if it has none.

    Raises: InvalidInputError where the result would not be a map.
    """
    if isinstance(delta, Literal):
        if not isinstance(delta.value, dict):
            raise InvalidInputError(f'{str(delta)[:_SHOWN]}: a document is a map; write for example {{..,"key":1}}')
        return delta if RESERVED.isdisjoint(delta.value) else Literal(_without_reserved(delta.value))
    if isinstance(delta, SetDelta):
        raise InvalidInputError(f"{str(delta)[:_SHOWN]}: a document is a map, not a set; put the set under a key")
    if isinstance(delta, MapDelta):
        if RESERVED.isdisjoint(delta.puts) and RESERVED.isdisjoint(delta.others):
            return delta
        return map_delta(
            _without_reserved(delta.puts),
            _without_reserved(delta.others),
            keeps_rest=delta.keeps_rest,
            deletes_if_empty=delta.deletes_if_empty,
        )
    if isinstance(delta, Conditional):
        branches = [(condition, sanitized(then)) for condition, then in delta.branches]
        otherwise = sanitized(delta.otherwise)
        same = otherwise is delta.otherwise and all(
            new[1] is old[1] for new, old in zip(branches, delta.branches, strict=True)
        )
        return delta if same else conditional(branches, otherwise)
    return delta


def _without_reserved(entries: dict[str, _T]) -> dict[str, _T]:
    return {key: value for key, value in entries.items() if key not in RESERVED}


def with_ids(updates: Iterable[Update], new_id: Callable[[], str]) -> list[Update]:
    """Return updates, those without a change id with one that is made for it, in order."""
    return [update if update.change_id is not None else update._replace(change_id=new_id()) for update in updates]


def new_updates(table: str, updates: Iterable[Update], stored: dict[ChangeKey, Stored]) -> list[Update]:
    """Return updates without those that are stored already, or that repeat an earlier one; they count as stored then.

    Raises: AlreadyExistsError where the id of one is another delta's.
    """
    kept = []
    for update in updates:
        if update.change_id is not None:
            change = (update.delta, update.tags)
            earlier = stored.setdefault((update.key, update.change_id), change)
            if earlier is not change:
                _check_same(table, update, earlier)
                continue
        kept.append(update)
    return kept


def _check_same(table: str, update: Update, stored: Stored) -> None:
    text, tags = stored
    is_same = text == update.delta or parse_delta(text) == parse_delta(update.delta)
    if not is_same or set(tags or ()) != set(update.tags):
        raise AlreadyExistsError(
            f"{table}: change {update.change_id} of document {update.key!r} is {_tagged(text, tags)}, and never changes; "
            f"give {_tagged(update.delta, update.tags)} an id of its own"
        )


def _tagged(text: str, tags: Sequence[str] | None) -> str:
    return " ".join([f"{text:.60}", *(f"#{tag}" for tag in tags or ())])


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


def checked_row(document: Mapping[str, object]) -> Row:
    """Check a document of another store: `{"key": …, "deltas": […], "compactions": […]}`, as `documents expand` reads them.

    Records of no deltas are left out, since they never count. Raises: InvalidInputError, CorruptionError.
    """
    unknown = [name for name in document if name not in _DOCUMENT_FIELDS]
    if unknown:
        raise InvalidInputError(f"unknown field {unknown[0]!r}; use {', '.join(_DOCUMENT_FIELDS)}, or key and cells")
    unchecked = _Fields(dict(document)).row()
    row = Row(
        [Change(change_id, delta_text(delta), check_tags(tags or ())) for change_id, delta, tags in unchecked.changes],
        [_checked_record(record) for record in unchecked.records if record.count],
        check_key(document.get("key")),
    )
    if not row.changes and not row.records:
        raise InvalidInputError("has neither deltas nor compactions; leave it out")
    _check_ids("change", row.changes)
    _check_ids("record", row.records)
    resolve(row)
    return row


def checked_history(document: Mapping[str, object]) -> list[ArchivedChange]:
    """Check what another store has kept of the history of a document. Raises: InvalidInputError."""
    archived = _Fields(dict(document)).history()
    _check_ids("change in history", archived)
    return archived


def _check_ids(kind: str, parts: Iterable[tuple[Any, ...]]) -> None:
    ids: set[str] = set()
    for id_, *_ in parts:
        if id_ in ids:
            raise InvalidInputError(f"{kind} {id_} occurs twice; keep one")
        ids.add(id_)


def _checked_record(record: CompactionRecord) -> CompactionRecord:
    if record.count < 0:
        raise InvalidInputError(f"compaction record {record.change_id}: {record.count} deltas are too few")
    if record.compacted_delta is None:
        return record
    text = delta_text(record.compacted_delta)
    if text != "~" and not isinstance(parse_delta(text), Literal):
        raise InvalidInputError(
            f"compaction record {record.change_id}: {text:.60} is not the content of a document; give a map, or ~"
        )
    return record._replace(compacted_delta=text, last_tags=check_tags(record.last_tags or ()))


def expand_case(case: object) -> dict[str, object]:
    """Return what compaction would do to the row of a case. Raises: InvalidInputError, CorruptionError."""
    fields = _Fields(case)
    row = fields.row()._replace(
        key=fields.text("key", ""), table=fields.text("table", ""), placement=fields.text("placement", "") or None
    )
    expansion = expand(
        row,
        fct=fields.integer("fct"),
        raw=fields.integer("raw"),
        ctl=fields.optional("ctl", fields.integer),
        new_id=fields.optional("new_id", fields.change_id) or new_change_id,
    )
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


def apply_case(case: object) -> dict[str, object]:
    """Return what a delta makes of a value: `{"delta": text, "on": value}`. Raises: InvalidInputError."""
    fields = _Fields(case)
    old = fields.values.get("on", UNDEFINED)
    result = parse_delta(fields.text("delta")).apply(old)  # type: ignore[arg-type]
    return {"content": None if result is UNDEFINED else result, "deleted": result is UNDEFINED}


class _Fields:
    """The fields of a JSON object; errors name them, and where the object is."""

    def __init__(self, value: object, where: str = "") -> None:
        if not isinstance(value, dict):
            raise InvalidInputError(f"{where or 'a case'} is a JSON object, not {_json(value)}")
        self.values: dict[str, object] = value
        self._prefix = f"{where}." if where else ""

    def row(self) -> Row:
        """Return the deltas and the compaction records of a document."""
        return Row(
            [fields.change() for fields in self._objects("deltas")],
            [fields.record() for fields in self._objects("compactions")],
        )

    def history(self) -> list[ArchivedChange]:
        """Return the changes of a document that records have absorbed, each with the content after it."""
        return [fields.archived() for fields in self._objects("history")]

    def archived(self) -> ArchivedChange:
        change, version, content = self.change(), self.integer("version"), self.values.get("content")
        if content is not None and not isinstance(content, dict):
            raise self._wrong("content", "a map, or null where the document was deleted")
        if version < 1:
            raise self._wrong("version", "1 or more")
        text = None if content is None else delta_text(content)
        tags = check_tags(change.tags or ())
        return ArchivedChange(change.change_id, version, delta_text(change.delta), tags, text)

    def change(self) -> Change:
        delta = self.values.get("delta")
        # A map that is not written as text can only be meant as a literal.
        text = value_text(checked(delta)) if isinstance(delta, dict) else self.text("delta")
        return Change(self.change_id("id"), text, self.tags("tags"))

    def record(self) -> CompactionRecord:
        return CompactionRecord(
            self.change_id("id"),
            self.integer("count"),
            self.optional("first", self.change_id),
            self.optional("cutoff", self.change_id),
            self.optional("cutoff_signature", self.text),
            self.optional("last_content_mutation", self.change_id),
            self.optional("last_mutation", self.change_id),
            self.optional("compacted_delta", self.text),
            self.tags("last_tags"),
        )

    def optional(self, name: str, read: Callable[[str], _T]) -> _T | None:
        return None if self.values.get(name) is None else read(name)

    def change_id(self, name: str) -> str:
        try:
            return check_change_id(self.text(name))
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._prefix}{name}: {error}") from error

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is not int:
            raise self._wrong(
                name, f"a whole number{'' if name in ('count', 'version') else ' of milliseconds since 1970'}"
            )
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a string")
        return value

    def tags(self, name: str) -> Sequence[str]:
        tags = self.values.get(name)
        if tags is None:
            return ()
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise self._wrong(name, "a list of strings")
        return tuple(tags)

    def _objects(self, name: str) -> "Iterator[_Fields]":
        values = self.values.get(name)
        if values is not None and not isinstance(values, list):
            raise self._wrong(name, "a list")
        for position, value in enumerate(values or []):
            yield _Fields(value, f"{name}[{position}]")

    def _wrong(self, name: str, kind: str) -> InvalidInputError:
        actual = f"not {_json(self.values[name])}" if name in self.values else "and it is missing"
        return InvalidInputError(f"{self._prefix}{name} is {kind}, {actual}")


def _json(value: object) -> str:
    text = value_text(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
