"""A document as of an earlier time, where what is stored of it still tells."""

from siltstone.documents.change_ids import order_key, time_bound, to_ms
from siltstone.documents.expand import effective_record
from siltstone.documents.rows import CompactionRecord, Row


def row_as_of(row: Row, time_ms: int) -> Row:
    """Return what is stored of a document up to a time; a record counts by its cutoff, whenever it was written."""
    bound = time_bound(time_ms + 1)
    return row._replace(
        changes=[each for each in row.changes if order_key(each[0]) < bound],
        records=[each for each in row.records if each.cutoff is not None and order_key(each.cutoff) < bound],
    )


def known_from_ms(row: Row, time_ms: int) -> int | None:
    """Return the earliest time after `time_ms` from which a document is known, None where it is known at that time.

    A record owns all deltas up to its cutoff, and says how many. They may be deleted; then only a record of fewer of
    them, together with the deltas after its cutoff, still tells what the document was in between.
    """
    record, older = effective_record(row.records)
    if record is None or record.first is None or record.cutoff is None:
        return None
    bound = time_bound(time_ms + 1)
    cutoff = order_key(record.cutoff)
    if cutoff < bound or order_key(record.first) >= bound:
        return None
    owned = sorted(key for key in (order_key(each[0]) for each in row.changes) if key <= cutoff)
    if len(owned) == _count(record):
        return None
    starts = [
        each.cutoff
        for each in older
        if each.cutoff is not None
        and each.count > 0
        and _count(each) + sum(key > order_key(each.cutoff) for key in owned) == _count(record)
    ]
    earliest = min(starts, key=order_key, default=record.cutoff)
    return None if order_key(earliest) < bound else to_ms(earliest)


def is_gone(row: Row, time_ms: int) -> bool:
    """Tell whether nothing is left of a document that was there at a time."""
    record, _ = effective_record(row.records)
    if record is None or record.first is None or order_key(record.first) >= time_bound(time_ms + 1):
        return False
    then = row_as_of(row, time_ms)
    return not then.changes and not then.records


def _count(record: CompactionRecord) -> int:
    """Return how many deltas a record owns; a legacy one does not count its last."""
    return record.count + (record.compacted_delta is None)
