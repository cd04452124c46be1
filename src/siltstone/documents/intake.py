"""What comes in: updates as people write them, checked and brought into the rows that are stored."""

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from siltstone.documents.change_ids import check_change_id
from siltstone.documents.language.builders import Builder
from siltstone.documents.language.deltas import Delta
from siltstone.documents.language.parser import parse_delta
from siltstone.documents.rows import check_tags
from siltstone.documents.stored import SCHEMA, WRITTEN
from siltstone.documents.writing import sanitized
from siltstone.errors import InvalidInputError

DeltaLike = Delta | Builder | str | Mapping[str, object]
"""A delta, a builder of one, its text, or a map that becomes the whole document."""

KeyLike = str | uuid.UUID
"""The key of a document: text, or a UUID, which is its text."""

ChangeIdLike = str | uuid.UUID
"""A change id: a version-1 UUID, or its text."""

UpdateLike = Mapping[str, object] | Sequence[object]
"""An update: a mapping with key, delta and perhaps tags and change_id, or these in this order."""

WRITTEN_SCHEMA: Final = pa.schema([SCHEMA.field(name) for name in WRITTEN])
_SHOWN: Final = 60
_BATCH_ROWS: Final = 10_000


def delta_text(delta: object) -> str:
    """Return the canonical text of what a document's delta may be. Raises: InvalidInputError."""
    if isinstance(delta, str):
        return str(sanitized(parse_delta(delta)))
    if isinstance(delta, Delta | Builder):
        return str(sanitized(delta if isinstance(delta, Delta) else delta.build()))
    if isinstance(delta, Mapping):
        return str(sanitized(Delta.literal(dict(delta))))
    raise InvalidInputError(
        f"{delta!r:.60} is no delta; give text in the delta language, a Delta, a builder, or a map that becomes the document"
    )


def check_key(key: object) -> str:
    """Return the key of a document. Raises: InvalidInputError."""
    if isinstance(key, uuid.UUID):
        return str(key)
    if not isinstance(key, str) or not key:
        raise InvalidInputError(f"{key!r:.60} is no key of a document; give text that is not empty")
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
    """Check updates. Raises: InvalidInputError that tells which one is wrong."""
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


def stored_batches(updates: Iterable[Update], new_id: Callable[[], str]) -> Iterator[pa.RecordBatch]:
    """Yield updates as rows to store; those without a change id get one, in order."""
    rows = (each._replace(change_id=each.change_id or new_id())._asdict() for each in updates)
    while waiting := list(itertools.islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(waiting, schema=WRITTEN_SCHEMA)


def _fields(number: int, update: UpdateLike) -> Mapping[str, object]:
    if isinstance(update, Mapping):
        unknown = [name for name in update if name not in WRITTEN]
        if unknown:
            raise InvalidInputError(f"update {number}: {unknown[0]!r} is none of key, delta, tags, change_id")
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


def batch_updates(batch: pa.RecordBatch) -> Iterator[UpdateLike]:
    """Yield the rows of a batch as updates."""
    columns = [batch.column(name).to_pylist() for name in batch.schema.names]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))
