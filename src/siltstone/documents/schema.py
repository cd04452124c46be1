"""How documents are stored: the columns, and rows put together as documents or made of them."""

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.documents.intake import WRITTEN, ChangeKey, Stored, Update
from siltstone.documents.record import ArchivedChange, Change, CompactionRecord, Row
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
_BATCH_ROWS: Final = 10_000


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
    columns = [_plain(table.column(field.name).combine_chunks().take(pa.array(order))) for field in SCHEMA]
    rows = zip(order.tolist(), *columns, strict=True)
    for start, end in itertools.pairwise([0, *ends]):
        yield _group(list(itertools.islice(rows, end - start)), name)


def _group(rows: Sequence[tuple[Any, ...]], name: str) -> StoredRow:
    """Return one document; its rows are their positions, then the columns of `SCHEMA`."""
    changes: dict[str, tuple[int, Change]] = {}
    records: dict[str, tuple[int, CompactionRecord]] = {}
    archived: dict[str, ArchivedChange] = {}
    duplicates: list[int] = []
    for position, _, change_id, text, tags, count, *rest in rows:
        earlier: Container[str] = changes if count is None else records if count >= 0 else archived
        if change_id in earlier:
            duplicates.append(position)
        elif count is None:
            changes[change_id] = position, Change(change_id, text, tags)
        elif count >= 0:
            records[change_id] = position, CompactionRecord._make((change_id, count, *rest, text, tags or ()))
        else:
            kept = orjson.loads(text)
            archived[change_id] = ArchivedChange(change_id, -count, kept["delta"], tuple(tags or ()), kept["content"])
    return StoredRow(
        Row([change for _, change in changes.values()], [record for _, record in records.values()], rows[0][1], name),
        [position for position, _ in changes.values()],
        [position for position, _ in records.values()],
        duplicates,
        list(archived.values()),
    )


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


def changes_of(table: pa.Table, name: str) -> dict[ChangeKey, Stored]:
    """Return the changes among the rows of a table."""
    return {
        (stored.row.key, change_id): (text, tags)
        for stored in grouped(table, name)
        for change_id, text, tags in stored.row.changes
    }


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


def stored_batches(updates: Iterable[Update], new_id: Callable[[], str]) -> Iterator[pa.RecordBatch]:
    """Yield updates as rows to store; those without a change id get one, in order."""
    rows = (update._replace(change_id=update.change_id or new_id())._asdict() for update in updates)
    while waiting := list(itertools.islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(waiting, schema=WRITTEN_SCHEMA)
