"""Updates as people write them: checked, deduplicated by change id, and brought into stored rows."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

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
from siltstone.documents.language.values import RESERVED
from siltstone.documents.record import check_change_id, check_tags
from siltstone.errors import AlreadyExistsError, InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_SHOWN: Final = 60


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


DeltaLike = Delta | Builder | str | Mapping[str, object]
"""A delta, a builder of one, its text, or a map that becomes the whole document."""

KeyLike = str | uuid.UUID
"""The key of a document: text, or a UUID, which is its text."""

ChangeIdLike = str | uuid.UUID
"""A change id: a version-1 UUID, or its text."""

UpdateLike = Mapping[str, object] | Sequence[object]
"""An update: a mapping with key, delta and perhaps tags and change_id, or these in this order."""

WRITTEN: Final = ("key", "change_id", "delta", "tags")
"""The columns of an update; all others are of compaction records."""


def delta_text(delta: object) -> str:
    """Return the canonical text of what a document's delta may be. Raises: InvalidInputError."""
    if isinstance(delta, str):
        return str(sanitized(parse_delta(delta)))
    if isinstance(delta, Delta | Builder):
        return str(sanitized(delta if isinstance(delta, Delta) else delta.build()))
    if isinstance(delta, Mapping):
        return str(sanitized(Delta.literal(dict(delta))))
    raise InvalidInputError(
        f"{delta!r:.60} is not a delta; use text in the delta language, a Delta, a builder, or a map that becomes the document"
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


class Update(NamedTuple):
    """An update that was checked: the delta in its canonical text, tags in order; without an id it gets one later."""

    key: str
    delta: str
    tags: tuple[str, ...]
    change_id: str | None


def checked_updates(updates: Iterable[UpdateLike]) -> Iterator[Update]:
    """Check updates. Raises: InvalidInputError that names the wrong one."""
    for number, update in enumerate(updates, 1):
        fields = _fields(number, update)
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


def _fields(number: int, update: UpdateLike) -> Mapping[str, object]:
    if isinstance(update, Mapping):
        unknown = [name for name in update if name not in WRITTEN]
        if unknown:
            raise InvalidInputError(f"update {number}: unknown field {unknown[0]!r}; use key, delta, tags, change_id")
        return update
    if isinstance(update, str) or not 2 <= len(update) <= 4:
        raise InvalidInputError(f"update {number}: {update!r:.60} is not (key, delta), with tags and change id at most")
    return dict(zip(("key", "delta", "tags", "change_id"), update, strict=False))


def check_columns(names: Sequence[str]) -> None:
    """Check the columns of a table of updates. Raises: InvalidInputError."""
    missing = [name for name in ("key", "delta") if name not in names]
    unknown = [name for name in names if name not in WRITTEN]
    if missing or unknown:
        raise InvalidInputError(
            f"updates have the columns key and delta, and perhaps tags and change_id, not {', '.join(names)}"
        )


def table_updates(table: "pa.Table | pa.RecordBatch") -> Iterator[UpdateLike]:
    """Yield the rows of a table as updates. Raises: InvalidInputError where it has other columns."""
    check_columns(table.schema.names)
    for batch in table.to_batches() if hasattr(table, "to_batches") else [table]:
        yield from batch_updates(batch)


def batch_updates(batch: "pa.RecordBatch") -> Iterator[UpdateLike]:
    """Yield the rows of a batch as updates."""
    columns = [batch.column(name).to_pylist() for name in batch.schema.names]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


ChangeKey: TypeAlias = tuple[str, str]
"""A document's key and a change id."""

Stored: TypeAlias = tuple[str, Sequence[str] | None]
"""The text and the tags of a change that is stored."""


def with_own_ids(table: str, updates: Iterable[Update]) -> list[Update]:
    """Return updates without those that repeat an earlier one. Raises: AlreadyExistsError where two share an id."""
    first: dict[ChangeKey, Update] = {}
    kept = []
    for update in updates:
        if update.change_id is not None:
            earlier = first.setdefault((update.key, update.change_id), update)
            if earlier is not update:
                _check_same(table, update, (earlier.delta, earlier.tags))
                continue
        kept.append(update)
    return kept


def not_stored(table: str, updates: Iterable[Update], stored: Mapping[ChangeKey, Stored]) -> list[Update]:
    """Return the updates that are not stored already. Raises: AlreadyExistsError where their id is another delta's."""
    kept = []
    for update in updates:
        change = None if update.change_id is None else stored.get((update.key, update.change_id))
        if change is None:
            kept.append(update)
        else:
            _check_same(table, update, change)
    return kept


def _check_same(table: str, update: Update, stored: Stored) -> None:
    text, tags = stored
    is_same = text == update.delta or parse_delta(text) == parse_delta(update.delta)
    if not is_same or set(tags or ()) != set(update.tags):
        raise AlreadyExistsError(
            f"{table}: change {update.change_id} of document {update.key!r} is {_shown(text, tags)}, and never changes; "
            f"give {_shown(update.delta, update.tags)} an id of its own"
        )


def _shown(text: str, tags: Sequence[str] | None) -> str:
    return " ".join([f"{text:.60}", *(f"#{tag}" for tag in tags or ())])
