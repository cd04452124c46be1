"""What happened to a document: each change with the content after it, whether it waits, is compacted, or only history has it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from siltstone.documents.expand import Expansion, Resolver, naming, parse_stored, recent_changes
from siltstone.documents.language.parser import parse_value
from siltstone.documents.language.values import UNDEFINED, Json, Undefined, Value, strictly_equal
from siltstone.documents.read import TIME, bucket_rows
from siltstone.documents.recent import recent_deltas
from siltstone.documents.record import ArchivedChange, CompactionRecord, iso_time, order_key, to_iso_time, to_ms
from siltstone.documents.schema import KEY, StoredRow
from siltstone.rows.job import RoundJob

Standing = Literal["waiting", "compacted", "history"]
HISTORY_SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("change_id", pa.string(), nullable=False),
        pa.field("changed_at", TIME, nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("delta", pa.string(), nullable=False),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("content", pa.string()),
        pa.field("redundant", pa.bool_()),
        pa.field("compacted_at", TIME),
    ]
)
"""One row a change: its document, and what it was after it, null where it was deleted."""

# What a step of a document is, in the order in which steps of one change id count.
_LEGACY, _CHANGE, _RECORD = range(3)


class HistoryEntry(NamedTuple):
    """One change of a document, with the version and the content after it; content None means deleted.

    `compacted_at` is when history took it over, None where it has not yet. Of what programs from before have kept, neither
    that is known, nor whether it was redundant.
    """

    change_id: str
    at: str
    version: int
    delta: str
    tags: tuple[str, ...]
    content: dict[str, Json] | None
    is_redundant: bool | None
    compacted_at: str | None


def history_of(table: str, stored: StoredRow) -> list[HistoryEntry]:
    """Return what is known of the changes of a document, by time. Raises: CorruptionError."""
    return [
        HistoryEntry(
            change.change_id,
            to_iso_time(change.change_id),
            change.version,
            change.delta,
            change.tags,
            None if change.content is None else parse_value(change.content),  # type: ignore[arg-type]
            change.is_redundant,
            None if change.record_id is None else iso_time(to_ms(change.record_id)),
        )
        for change in _known_changes(table, stored)
    ]


def _known_changes(table: str, stored: StoredRow) -> list[ArchivedChange]:
    """Return the changes that history keeps, and those that no record has absorbed, by time and each once."""
    with naming(table, stored.row):
        recent = recent_changes(stored.row)
    distinct = {change.change_id: change for change in (*recent, *stored.archived)}
    return sorted(distinct.values(), key=lambda change: order_key(change.change_id))


def history_tables(job: RoundJob) -> Iterator[pa.Table]:
    """Yield the history of all documents in this process, bucket by bucket. Raises: CorruptionError."""
    for number, new in recent_deltas.arrived_by_bucket(job):
        yield bucket_history(job, number, new)


def bucket_history(job: RoundJob, number: int, new: pa.Table) -> pa.Table:
    """Return the history of the documents of a bucket, with the rows that came for it. Raises: CorruptionError."""
    rows = [
        {
            KEY: stored.row.key,
            "change_id": change.change_id,
            "changed_at": to_ms(change.change_id) * 1000,
            "version": change.version,
            "delta": change.delta,
            "tags": list(change.tags),
            "content": change.content,
            "redundant": change.is_redundant,
            "compacted_at": None if change.record_id is None else to_ms(change.record_id) * 1000,
        }
        for stored in bucket_rows(job, number, new)
        for change in _known_changes(job.table, stored)
    ]
    return pa.Table.from_pylist(rows, schema=HISTORY_SCHEMA)


class Difference(NamedTuple):
    """What a change did under one path of keys; `before` and `after` are None where there was nothing, or null."""

    path: tuple[str, ...]
    kind: Literal["added", "removed", "changed"]
    before: Json
    after: Json


def differences(before: Value, after: Value, path: tuple[str, ...] = ()) -> list[Difference]:
    """Return where two contents differ, key by key into maps; lists differ as a whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            difference
            for key in dict.fromkeys((*before, *after))
            for difference in differences(before.get(key, UNDEFINED), after.get(key, UNDEFINED), (*path, key))
        ]
    if not path and isinstance(after, dict):
        return differences({}, after)
    if not path and isinstance(before, dict):
        return differences(before, {})
    if strictly_equal(before, after):
        return []
    if isinstance(before, Undefined):
        return [] if isinstance(after, Undefined) else [Difference(path, "added", None, after)]
    if isinstance(after, Undefined):
        return [Difference(path, "removed", before, None)]
    return [Difference(path, "changed", before, after)]


class TimelineEvent(NamedTuple):
    """One change of a document, or one of its compaction records, with the version and the content after it.

    `state` is where a change stands: it waits; a record has absorbed it, and it is stored still; or history alone has it.
    A record is in effect or obsolete. `version` is None where it is not known any more; then nothing is known of the content.
    `differences` is None where the content before is not known. `note` says why a change is redundant, or what a record stands for.
    """

    kind: Literal["delta", "compaction"]
    change_id: str
    at: str
    state: Standing | Literal["in effect", "obsolete"]
    delta: str
    tags: tuple[str, ...]
    is_redundant: bool
    version: int | None
    content: dict[str, Json] | None
    differences: tuple[Difference, ...] | None
    note: str


class _Known(NamedTuple):
    """What is known of a document after a change."""

    version: int
    content: Value
    is_redundant: bool | None


def timeline_of(stored: StoredRow, expansion: Expansion) -> list[TimelineEvent]:
    """Return the changes and records of a document, by time. Raises: InvalidInputError, CorruptionError."""
    row = stored.row
    archived = {change.change_id: change for change in stored.archived}
    changes = {change_id: (delta, tuple(tags or ())) for change_id, delta, tags in row.changes}
    states = {id_: _state_of(id_, expansion.base) for id_ in changes} | dict.fromkeys(
        archived.keys() - changes, "history"
    )
    changes |= {id_: (change.delta, change.tags) for id_, change in archived.items() if id_ not in changes}
    known = {id_: _kept(change) for id_, change in archived.items()} | _replayed(stored, changes, expansion.base)
    events: list[tuple[str, TimelineEvent]] = []
    before: _Known | None = _Known(0, UNDEFINED, None)
    for change_id in sorted(changes, key=order_key):
        after = known.get(change_id)
        is_redundant = after.is_redundant if after is not None else None
        if is_redundant is None:
            is_redundant = expansion.is_redundant(change_id)
        differing = None
        if before is not None and after is not None and after.version == before.version + 1:
            differing = tuple(differences(before.content, after.content))
        delta, tags = changes[change_id]
        note = _change_note(states[change_id], archived.get(change_id), expansion.base, is_redundant=is_redundant)
        version, content = (None, None) if after is None else (after.version, _shown(after.content))
        at = to_iso_time(change_id)
        event = TimelineEvent(
            "delta", change_id, at, states[change_id], delta, tags, is_redundant, version, content, differing, note
        )
        events.append((order_key(change_id), event))
        before = after
    events += [
        (order_key(record.change_id), _record_event(record, is_in_effect=record is expansion.base))
        for record in row.records
    ]
    return [event for _, event in sorted(events, key=lambda each: (each[0], each[1].kind == "compaction"))]


def _state_of(change_id: str, base: CompactionRecord | None) -> Standing:
    is_owned = base is not None and base.cutoff is not None and order_key(change_id) <= order_key(base.cutoff)
    return "compacted" if is_owned else "waiting"


def _change_note(
    state: Standing, archived: ArchivedChange | None, base: CompactionRecord | None, *, is_redundant: bool
) -> str:
    notes = ["leaves content and tags as they were"] if is_redundant else []
    if state == "history" and archived is not None and archived.record_id is not None:
        notes.append(f"absorbed by compaction {archived.record_id}")
    elif state == "compacted" and base is not None:
        notes.append(f"owned by compaction {base.change_id}")
    return ", ".join(notes)


def _record_event(record: CompactionRecord, *, is_in_effect: bool) -> TimelineEvent:
    state: Literal["in effect", "obsolete"] = "in effect" if is_in_effect else "obsolete"
    at, text, tags = to_iso_time(record.change_id), record.compacted_delta, tuple(record.last_tags or ())
    note = f"stands for {record.count} deltas up to {record.cutoff}"
    version, content = None, None
    if text is not None:
        version, content = record.count, _shown(parse_stored(text, record.change_id).apply())
    return TimelineEvent(
        "compaction", record.change_id, at, state, text or "", tags, False, version, content, None, note
    )


def _shown(content: Value) -> dict[str, Json] | None:
    return dict(content) if isinstance(content, dict) else None


def _kept(change: ArchivedChange) -> _Known:
    content = UNDEFINED if change.content is None else parse_value(change.content)
    return _Known(change.version, content, change.is_redundant)


def _replayed(
    stored: StoredRow, changes: dict[str, tuple[str, tuple[str, ...]]], base: CompactionRecord | None
) -> dict[str, _Known]:
    """Apply changes once more, from one record to the next, wherever all between them are there still."""
    steps: list[tuple[str, int, str, CompactionRecord | None]] = [
        (order_key(change_id), _CHANGE, change_id, None) for change_id in changes
    ]
    for each in stored.row.records:
        if each.cutoff is not None and each.count > 0 and (each.compacted_delta is not None or each is base):
            kind = _LEGACY if each.compacted_delta is None else _RECORD
            steps.append((order_key(each.cutoff), kind, "", each))
    known: dict[str, _Known] = {}
    state, segment = Resolver(stored.row), list[str]()
    legacy: CompactionRecord | None = None
    for _, kind, change_id, record in sorted(steps, key=lambda step: step[:2]):
        if record is None:
            segment.append(change_id)
            continue
        if len(segment) == record.count - state.version:
            known |= _applied(state, segment, changes, legacy)
        state, segment, legacy = Resolver(stored.row), [], record if kind == _LEGACY else None
        state.start_from(record)
    known |= _applied(state, segment, changes, legacy)
    return known


def _applied(
    state: Resolver,
    change_ids: Sequence[str],
    changes: dict[str, tuple[str, tuple[str, ...]]],
    legacy: CompactionRecord | None,
) -> Iterable[tuple[str, _Known]]:
    for change_id in change_ids:
        delta, tags = changes[change_id]
        # What is shown must not change with the next one.
        state.is_own = False
        state.update(change_id, parse_stored(delta, change_id), tags)
        if legacy is not None and change_id == legacy.cutoff:
            state.signature = bytes.fromhex(legacy.cutoff_signature or "")
        yield change_id, _Known(state.version, state.content, state.redundant[-1:] == [change_id])
