"""How documents are stored: the columns, and rows put together as documents or made of them."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.documents.intake import WRITTEN, ChangeKey, Stored, Update
from siltstone.documents.record import ArchivedChange, CompactionRecord, Row
from siltstone.model.properties import DOCUMENTS_NAME
from siltstone.rows.columns import Hashes, hash_keys

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
CHANGE_KEYS: Final = pa.schema([SCHEMA.field(name) for name in (KEY, "change_id")])

DocumentRow: TypeAlias = tuple[Any, ...]
"""A stored row as plain values, in the order of `SCHEMA`."""


def condition_name(properties: Mapping[str, str], table: str) -> str:
    """Return what conditions know a table by: the name that it was created under."""
    return properties.get(DOCUMENTS_NAME.name, table)


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
    # The positions of rows by key, in order within one, and where each key's positions end.
    codes = table.column(KEY).combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = [*(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(order)]
    rows = rows_in(table.take(pa.array(order)))
    positions = order.tolist()
    for start, end in itertools.pairwise([0, *ends]):
        yield group(list(itertools.islice(rows, end - start)), name, positions[start:end])


def rows_in(table: pa.Table) -> Iterator[DocumentRow]:
    """Yield the rows of a table that has the columns of `SCHEMA`."""
    return zip(*(_plain(table.column(field.name).combine_chunks()) for field in SCHEMA), strict=True)


def table_of(rows: Sequence[DocumentRow]) -> pa.Table:
    """Return rows as a table that has the columns of `SCHEMA`."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(SCHEMA)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def group(rows: Sequence[DocumentRow], name: str, positions: Iterable[int] | None = None) -> StoredRow:
    """Return one document, of all its rows in the order in which they were committed; `positions` are where they are."""
    changes: dict[str, tuple[str, str, Sequence[str] | None]] = {}
    records: dict[str, CompactionRecord] = {}
    archived: dict[str, ArchivedChange] = {}
    change_places: list[int] = []
    record_places: list[int] = []
    duplicates: list[int] = []
    numbered = zip(itertools.count() if positions is None else positions, rows, strict=False)
    for position, (_, change_id, text, tags, count, *rest) in numbered:
        if count is None:
            # Plain tuples, since a document may have very many.
            change = (change_id, text, tags)
            is_first = changes.setdefault(change_id, change) is change
            (change_places if is_first else duplicates).append(position)
        elif count >= 0:
            record = CompactionRecord._make((change_id, count, *rest, text, tags or ()))
            is_first = records.setdefault(change_id, record) is record
            (record_places if is_first else duplicates).append(position)
        elif change_id in archived:
            duplicates.append(position)
        else:
            kept = orjson.loads(text)
            own_tags, is_redundant, record_id = tuple(tags or ()), kept.get("redundant"), rest[1]
            archived[change_id] = ArchivedChange(
                change_id, -count, kept["delta"], own_tags, kept["content"], is_redundant, record_id
            )
    row = Row(list(changes.values()), list(records.values()), rows[0][0], name)
    return StoredRow(row, change_places, record_places, duplicates, list(archived.values()))


def _plain(values: pa.Array) -> list[Any]:
    """Return Python values; lists that are all empty, as tags mostly are, cost nothing."""
    if pa.types.is_list(values.type) and not (pc.sum(pc.list_value_length(values)).as_py() or 0):
        return [()] * len(values)
    if values.null_count == len(values):
        return [None] * len(values)
    plain: list[Any] = values.to_pylist()
    return plain


def hash_changes(table: pa.Table | pa.RecordBatch) -> Hashes:
    """Return a hash of each row's key and change id."""
    return hash_keys(table, CHANGE_KEYS.names)


def changes_of(documents: Iterable[StoredRow]) -> dict[ChangeKey, Stored]:
    """Return the changes that are stored of documents."""
    return {
        (stored.row.key, change_id): (text, tags)
        for stored in documents
        for change_id, text, tags in stored.row.changes
    }


def archive_rows(changes: Sequence[tuple[str, ArchivedChange]]) -> pa.Table:
    """Return absorbed changes of documents, each with its key, as rows."""
    fields = [
        {
            KEY: key,
            "change_id": change.change_id,
            "delta": orjson.dumps(
                {"delta": change.delta, "content": change.content, "redundant": change.is_redundant}
            ).decode(),
            "tags": list(change.tags),
            "count": -change.version,
            "cutoff": change.record_id,
        }
        for key, change in changes
    ]
    return pa.Table.from_pylist(fields, schema=SCHEMA)


def record_rows(records: Sequence[tuple[str, CompactionRecord]]) -> pa.Table:
    """Return records of documents, each with its key, as rows."""
    fields = [
        record._asdict() | {KEY: key, "delta": record.compacted_delta, "tags": list(record.last_tags or ())}
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


def stored_updates(updates: Sequence[Update]) -> pa.Table:
    """Return updates, which have change ids, as rows to store."""
    columns = ([getattr(update, field.name) for update in updates] for field in WRITTEN_SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, WRITTEN_SCHEMA, strict=True)]
    return pa.table(arrays, schema=WRITTEN_SCHEMA)
