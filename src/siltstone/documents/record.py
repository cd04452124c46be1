"""How documents are stored: rows of deltas and compaction records, put together as one document."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError
from siltstone.model.properties import DOCUMENTS_NAME
from siltstone.rows.columns import Integers

MAX_TAGS: Final = 3
MAX_TAG_LENGTH: Final = 8


class Change(NamedTuple):
    """One delta under its change id, never modified. Wherever changes are read, plain tuples will do."""

    change_id: str
    delta: str
    tags: Sequence[str] | None = ()


class CompactionRecord(NamedTuple):
    """What was resolved up to a cutoff, under a change id of its own.

    `count` deltas from `first` to `cutoff` resolve to `compacted_delta`, a literal or `~`. Legacy records have none: they
    do not count the cutoff delta, which then holds the content.
    """

    change_id: str
    count: int  # type: ignore[assignment]  # a tuple's own method of that name is not missed
    first: str | None
    cutoff: str | None
    cutoff_signature: str | None
    last_content_mutation: str | None
    last_mutation: str | None
    compacted_delta: str | None
    last_tags: Sequence[str] | None = ()


class Row(NamedTuple):
    """All that is stored for one document, in any order. Key, table and placement matter to conditions only."""

    changes: Sequence[tuple[str, str, Sequence[str] | None]]
    records: Sequence[CompactionRecord] = ()
    key: str = ""
    table: str = ""
    placement: str | None = None


class ArchivedChange(NamedTuple):
    """A change that a compaction absorbed, with the version and the content after it; content None means deleted."""

    change_id: str
    version: int
    delta: str
    tags: tuple[str, ...]
    content: str | None


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags of a write in order, each once. Raises: InvalidInputError."""
    if isinstance(tags, str):
        raise InvalidInputError(f"tags are a list of strings; write ({tags!r},) for a single one")
    found = tuple(sorted(set(tags)))
    if len(found) > MAX_TAGS:
        raise InvalidInputError(f"{len(found)} tags are too many ({', '.join(found)}); use at most {MAX_TAGS}")
    for tag in found:
        if not isinstance(tag, str) or not 1 <= len(tag) <= MAX_TAG_LENGTH:
            raise InvalidInputError(f"tag {tag!r}: a tag has 1 to {MAX_TAG_LENGTH} characters")
    return found


NAME_PROPERTY: Final = DOCUMENTS_NAME.name
KEY: Final = "key"
SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string()),
        pa.field("change_id", pa.string()),
        pa.field("delta", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("count", pa.int64()),
        pa.field("first", pa.string()),
        pa.field("cutoff", pa.string()),
        pa.field("cutoff_signature", pa.string()),
        pa.field("last_content_mutation", pa.string()),
        pa.field("last_mutation", pa.string()),
    ]
)
WRITTEN: Final = ("key", "change_id", "delta", "tags")
"""The columns of a delta; all others are of compaction records."""


class StoredRow(NamedTuple):
    """The row of a document, and where each of its parts is: the places of changes and of records.

    `doubles` are the places of changes and records that are there already; of two under one id the first one counts.
    `archived` is what history has kept of the document.
    """

    row: Row
    changes: list[int]
    records: list[int]
    doubles: list[int]
    archived: list[ArchivedChange]


def grouped(table: pa.Table, name: str) -> Iterator[StoredRow]:
    """Put the rows of each document together; of each, rows must be in the order in which they were committed.

    `name` is what conditions know the table by.
    """
    if not table.num_rows:
        return
    order, ends = _by_key(table)
    columns = [_plain(table.column(field.name).combine_chunks().take(pa.array(order))) for field in SCHEMA]
    keys, ids, deltas, tags, counts, *rest = columns
    places = order.tolist()
    start = 0
    for end in ends:
        yield _group(name, keys[start], range(start, end), places, ids, deltas, tags, counts, rest)
        start = end


def _group(
    name: str,
    key: str,
    span: range,
    places: list[int],
    ids: list[str],
    deltas: list[str],
    tags: Sequence[Sequence[str] | None],
    counts: Sequence[int | None],
    rest: Sequence[Sequence[str | None]],
) -> StoredRow:
    changes: dict[str, Change] = {}
    records: dict[str, CompactionRecord] = {}
    found = StoredRow(Row((), (), key, name), [], [], [], [])
    archived: set[str] = set()
    for at in span:
        change_id, count = ids[at], counts[at]
        if count is None:
            if change_id in changes:
                found.doubles.append(places[at])
                continue
            changes[change_id] = Change(change_id, deltas[at], tags[at])
            found.changes.append(places[at])
        elif count < 0:
            if change_id in archived:
                found.doubles.append(places[at])
                continue
            archived.add(change_id)
            found.archived.append(_archived(change_id, -count, deltas[at], tags[at]))
        elif change_id in records:
            found.doubles.append(places[at])
        else:
            first, cutoff, signature, content_mutation, mutation = (column[at] for column in rest)
            records[change_id] = CompactionRecord(
                change_id, count, first, cutoff, signature, content_mutation, mutation, deltas[at], tags[at] or ()
            )
            found.records.append(places[at])
    return found._replace(row=Row(list(changes.values()), list(records.values()), key, name))


def _by_key(table: pa.Table) -> tuple[Integers, list[int]]:
    """Return the places of rows by key, in order within one, and where each key's places end."""
    codes = table.column(KEY).combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    return order, [*ends.tolist(), len(order)]


def _plain(values: pa.Array) -> list[Any]:
    """Return Python values; lists that are all empty, as tags mostly are, cost nothing."""
    if pa.types.is_list(values.type) and not (pc.sum(pc.list_value_length(values)).as_py() or 0):
        return [()] * len(values)
    if values.null_count == len(values):
        return [None] * len(values)
    plain: list[Any] = values.to_pylist()
    return plain


def _archived(change_id: str, version: int, text: str, tags: Sequence[str] | None) -> ArchivedChange:
    kept = orjson.loads(text)
    return ArchivedChange(change_id, version, kept["delta"], tuple(tags or ()), kept["content"])


def archive_rows(changes: Sequence[tuple[str, ArchivedChange]]) -> pa.Table:
    """Return absorbed changes of documents, each with its key, as rows."""
    fields = [
        {
            KEY: key,
            "change_id": change.change_id,
            "delta": orjson.dumps({"delta": change.delta, "content": change.content}).decode(),
            "tags": list(change.tags),
            "count": -change.version,
        }
        for key, change in changes
    ]
    return pa.Table.from_pylist(fields, schema=SCHEMA)


def record_rows(records: Sequence[tuple[str, CompactionRecord]]) -> pa.Table:
    """Return records of documents, each with its key, as rows."""
    fields = [
        {
            **{name: each for name, each in record._asdict().items() if name in SCHEMA.names},
            KEY: key,
            "delta": record.compacted_delta,
            "tags": list(record.last_tags or ()),
        }
        for key, record in records
    ]
    return pa.Table.from_pylist(fields, schema=SCHEMA)
