"""The timeline of a document: all that is stored of it, by time, and why deltas are redundant."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from siltstone.documents.change_ids import order_key, to_iso_time
from siltstone.documents.expand import Expansion
from siltstone.documents.rows import CompactionRecord, Row


class TimelineEvent(NamedTuple):
    """One row of a document's history. `note` says why a delta is redundant, or what a compaction stands for."""

    kind: Literal["delta", "compaction"]
    change_id: str
    at: str
    delta: str
    tags: tuple[str, ...]
    is_redundant: bool
    is_owned: bool
    note: str


def timeline_of(row: Row, found: Expansion) -> list[TimelineEvent]:
    """Return what a row has, given what it resolves to."""
    events = [_delta_event(*change, found) for change in row.changes]
    events += [_record_event(record, is_in_effect=record is found.base) for record in row.records]
    return sorted(events, key=lambda event: (order_key(event.change_id), event.kind))


def _record_event(record: CompactionRecord, *, is_in_effect: bool) -> TimelineEvent:
    state = "in effect" if is_in_effect else "obsolete"
    note = f"{state}: stands for {record.count} deltas up to {record.cutoff}"
    at, text, tags = to_iso_time(record.change_id), record.compacted_delta or "", tuple(record.last_tags or ())
    return TimelineEvent("compaction", record.change_id, at, text, tags, False, False, note)


def _delta_event(change_id: str, text: str, tags: Sequence[str] | None, found: Expansion) -> TimelineEvent:
    base = found.base
    is_owned = base is not None and base.cutoff is not None and order_key(change_id) <= order_key(base.cutoff)
    is_redundant = change_id in found.redundant
    note = ""
    if is_owned and base is not None:
        note = f"owned by compaction {base.change_id}"
        if is_redundant:
            note += f", after its last mutation {base.last_mutation}"
    elif is_redundant:
        note = "leaves content and tags as they were"
    at = to_iso_time(change_id)
    return TimelineEvent("delta", change_id, at, text, tuple(tags or ()), is_redundant, is_owned, note)
