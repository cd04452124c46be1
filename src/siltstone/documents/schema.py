"""How documents are stored: the columns, and rows put together as documents or made of them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.documents.intake import WRITTEN, Update
from siltstone.documents.record import ArchivedChange, Change, CompactionRecord, Row
from siltstone.model.properties import DOCUMENTS_NAME
from siltstone.rows.columns import Integers

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
WRITTEN_SCHEMA: Final = pa.schema([SCHEMA.field(name) for name in WRITTEN])
_BATCH_ROWS: Final = 10_000


class StoredRow(NamedTuple):
    """The row of a document, and where each of its parts is: the positions of changes and of records.

    `duplicates` are the positions of repeated changes and records; of two under one id the first one counts.
    `archived` is what history has kept of the document.
    """

    row: Row
    changes: list[int]
    records: list[int]
    duplicates: list[int]
    archived: list[ArchivedChange]


def grouped(table: pa.Table, name: str) -> Iterator[StoredRow]:
    """Yield the rows of each document together; of each, rows must be in the order in which they were committed.

    `name` is what conditions know the table by.
    """
    if not table.num_rows:
        return
    order, ends = _by_key(table)
    columns = [_plain(table.column(field.name).combine_chunks().take(pa.array(order))) for field in SCHEMA]
    keys, ids, deltas, tags, counts, *rest = columns
    positions = order.tolist()
    start = 0
    for end in ends:
        yield _group(name, keys[start], range(start, end), positions, ids, deltas, tags, counts, rest)
        start = end


def _group(
    name: str,
    key: str,
    span: range,
    positions: list[int],
    ids: list[str],
    deltas: list[str],
    tags: Sequence[Sequence[str] | None],
    counts: Sequence[int | None],
    rest: Sequence[Sequence[str | None]],
) -> StoredRow:
    changes: dict[str, Change] = {}
    records: dict[str, CompactionRecord] = {}
    stored = StoredRow(Row((), (), key, name), [], [], [], [])
    archived: set[str] = set()
    for at in span:
        change_id, count = ids[at], counts[at]
        if count is None:
            if change_id in changes:
                stored.duplicates.append(positions[at])
                continue
            changes[change_id] = Change(change_id, deltas[at], tags[at])
            stored.changes.append(positions[at])
        elif count < 0:
            if change_id in archived:
                stored.duplicates.append(positions[at])
                continue
            archived.add(change_id)
            stored.archived.append(_archived(change_id, -count, deltas[at], tags[at]))
        elif change_id in records:
            stored.duplicates.append(positions[at])
        else:
            first, cutoff, signature, content_mutation, mutation = (column[at] for column in rest)
            records[change_id] = CompactionRecord(
                change_id, count, first, cutoff, signature, content_mutation, mutation, deltas[at], tags[at] or ()
            )
            stored.records.append(positions[at])
    return stored._replace(row=Row(list(changes.values()), list(records.values()), key, name))


def _by_key(table: pa.Table) -> tuple[Integers, list[int]]:
    """Return the positions of rows by key, in order within one, and where each key's positions end."""
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
            **{name: value for name, value in record._asdict().items() if name in SCHEMA.names},
            KEY: key,
            "delta": record.compacted_delta,
            "tags": list(record.last_tags or ()),
        }
        for key, record in records
    ]
    return pa.Table.from_pylist(fields, schema=SCHEMA)


def stored_table(rows: Sequence[Row]) -> pa.Table:
    """Return documents as rows to store."""
    changes = [
        {KEY: row.key, "change_id": change_id, "delta": delta, "tags": list(tags or ())}
        for row in rows
        for change_id, delta, tags in row.changes
    ]
    records = [(row.key, record) for row in rows for record in row.records]
    return pa.concat_tables([pa.Table.from_pylist(changes, schema=SCHEMA), record_rows(records)])


def stored_batches(updates: Iterable[Update], new_id: Callable[[], str]) -> Iterator[pa.RecordBatch]:
    """Yield updates as rows to store; those without a change id get one, in order."""
    rows = (update._replace(change_id=update.change_id or new_id())._asdict() for update in updates)
    while waiting := list(itertools.islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(waiting, schema=WRITTEN_SCHEMA)
