"""Documents that come with their past: deltas and compaction records of another store, legacy records among them.

What is imported is of any time, so a document can only be imported where nothing is stored of it: then nothing of it has
been absorbed that an earlier delta would have to come before. Records of another store stand for all deltas up to their
cutoff, so they are taken only where no delta of that time can be written here any more.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from siltstone.documents.cases import row_of
from siltstone.documents.change_ids import iso_time, to_iso_time, to_ms
from siltstone.documents.expand import resolve
from siltstone.documents.intake import check_key, delta_text
from siltstone.documents.language.deltas import Literal
from siltstone.documents.language.parser import parse_delta
from siltstone.documents.rows import Change, CompactionRecord, Row, check_tags
from siltstone.documents.stored import KEY, SCHEMA, record_rows
from siltstone.errors import CorruptionError, InvalidInputError

_FIELDS = ("key", "deltas", "compactions")


class ImportResult(NamedTuple):
    """How many documents were imported, and how many left out because something was stored of them."""

    imported: int
    skipped: int


def imported_rows(documents: Iterable[Mapping[str, object]]) -> list[Row]:
    """Check documents of another store: `{"key": …, "deltas": […], "compactions": […]}`, as `documents expand` reads them.

    Records of no deltas are left out, since they never count. Raises: InvalidInputError that tells which one is wrong.
    """
    found: dict[str, Row] = {}
    for number, document in enumerate(documents, 1):
        where = f"document {number}"
        if not isinstance(document, Mapping):
            raise InvalidInputError(f"{where}: {document!r:.60} is not a map of key, deltas and compactions")
        where = f"{where}, key {document.get('key')!r:.60}"
        try:
            row = _checked(document)
        except (InvalidInputError, CorruptionError) as error:
            raise InvalidInputError(f"{where}: {error}") from error
        if row.key in found:
            raise InvalidInputError(f"{where}: is there twice; put all its deltas and records into one")
        found[row.key] = row
    return list(found.values())


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


def stored_table(rows: Sequence[Row]) -> pa.Table:
    """Return documents as rows to store."""
    changes = [
        {KEY: row.key, "change_id": change_id, "delta": delta, "tags": list(tags or ())}
        for row in rows
        for change_id, delta, tags in row.changes
    ]
    records = [(row.key, record) for row in rows for record in row.records]
    return pa.concat_tables([pa.Table.from_pylist(changes, schema=SCHEMA), record_rows(records)])


def _checked(document: Mapping[str, object]) -> Row:
    unknown = [name for name in document if name not in _FIELDS]
    if unknown:
        raise InvalidInputError(f"{unknown[0]!r} is none of {', '.join(_FIELDS)}")
    given = row_of(document)
    row = Row(
        [Change(change_id, delta_text(delta), check_tags(tags or ())) for change_id, delta, tags in given.changes],
        [_checked_record(each) for each in given.records if each.count],
        check_key(document.get("key")),
    )
    if not row.changes and not row.records:
        raise InvalidInputError("has neither deltas nor compactions; leave it out")
    for kind, ids in (("change", [each[0] for each in row.changes]), ("record", [each[0] for each in row.records])):
        twice = next(_repeated(ids), None)
        if twice is not None:
            raise InvalidInputError(f"{kind} {twice} is there twice; give it once")
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
    for each in ids:
        if each in seen:
            yield each
        seen.add(each)
