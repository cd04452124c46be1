"""Why a key has the row it has: what the partition began with, and every delta since that touched it, in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.ingest.export import plain
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.locators import did_you_mean
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import describe_type, evolve
from siltstone.rows.columns import align, equal_ids, hash_keys
from siltstone.rows.files import StoredFile
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamState
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import ROUND_PREFIX, read_kept
from siltstone.table.jobs import SourceColumns, source_columns
from siltstone.table.key_events import (
    COMPACTED_ROW,
    FROM_ROUNDS,
    OVERWRITE,
    REBASE,
    FoundRow,
    KeyEvent,
    Row,
    RowEvents,
    VersionEvents,
    round_event,
)
from siltstone.table.scan import choose_by_key, destination_of, key_table
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot, take_snapshot
from siltstone.table.where import parse_literal
from siltstone.text import format_count, format_value


@dataclass(frozen=True)
class Explanation:
    """All events of a key in one partition, in stream order, the row that is current after them, and why it is.

    `compacted_row` is the row after the current round, which went up to `high_watermark`.
    """

    table: str
    key: Mapping[str, object]
    partition: Sequence[object]
    events: Sequence[KeyEvent]
    row: Row | None
    why: str
    compacted_row: Row | None
    high_watermark: int
    notes: Sequence[str]


class KeySource(NamedTuple):
    """What a partition has of a key: its round, and the round and deltas that a key is explained from."""

    own: PartitionLocator
    root: str
    completion: RoundCompletion | None
    base: RoundCompletion | None
    deltas: list[Delta]
    trimmed_up_to: int
    source: TableVersion

    @property
    def watermark(self) -> int:
        """The position up to which deltas are compacted."""
        return 0 if self.completion is None else self.completion.high_watermark


def explain_key(name: str, key: Mapping[str, object], *, root: str) -> list[Explanation]:
    """Explain a key in each partition that has it, all at the newest position. Raises: InvalidInputError, CorruptionError."""
    snapshot = take_snapshot(name, fresh=True, choose=choose_by_key(key), root=root)
    version = snapshot.version
    if not version.drop_duplicates:
        raise InvalidInputError(f"{name}: keeps all rows of a key, so no row wins over another")
    in_files = version.as_in_files()
    wanted = key_table(version.schema, version.primary_keys, key).rename_columns(in_files.primary_keys)
    explanations = []
    for partition in snapshot.partitions:
        source = _key_source(snapshot, partition)
        events = explain(source, in_files, wanted)
        if events.all:
            explanations.append(_explanation(name, key, source, events, version))
    return explanations


def _explanation(
    name: str, key: Mapping[str, object], source: "KeySource", events: "RowEvents", version: TableVersion
) -> Explanation:
    """Return what happened to a key, with the names that its columns have today; dropped ones are left out."""
    names = version.names_by_file()

    def named(row: Row | None) -> Row | None:
        return None if row is None else {names[column]: value for column, value in row.items() if column in names}

    told = [replace(event, values=named(event.values) or {}) for event in events.all]
    return Explanation(
        table=name,
        key=key,
        partition=list(source.own.partition_values),
        events=told,
        row=named(events.current),
        why=_why(told, version),
        compacted_row=named(events.compacted),
        high_watermark=source.watermark,
        notes=list(_notes(told, source)),
    )


def _key_source(snapshot: TableSnapshot, partition: PartitionSnapshot) -> KeySource:
    """Find what there is to tell of a partition. Raises: CorruptionError."""
    source, completion, root = partition.source, partition.completion, snapshot.root
    assert source is not None
    watermark = 0 if completion is None else completion.high_watermark

    def read(state: StreamState) -> tuple[int, list[Delta]]:
        known = state.partition(source.partition_id)
        trimmed = 0 if known is None else known.trimmed_stream_position
        return trimmed, list(state.deltas(source.partition_id, upto=watermark))

    # The snapshot has just read these logs, so that what is known of them is new enough.
    stream = storage.find_stream(*_parts_of(source), root=root)
    trimmed, compacted = stream.recall(read)
    base = None if completion is None else _base(partition, completion, trimmed, root)
    first = 0 if base is None else base.high_watermark
    deltas = [delta for delta in (*compacted, *partition.waiting) if delta.stream_position > first]
    return KeySource(partition.own, root, completion, base, deltas, trimmed, snapshot.version_of(partition))


def _parts_of(stream: PartitionLocator) -> tuple[str, str, str, str]:
    return stream.namespace, stream.table, stream.table_version, stream.stream


def _base(partition: PartitionSnapshot, current: RoundCompletion, trimmed: int, root: str) -> RoundCompletion | None:
    """Return the oldest round that is kept from which on deltas tell all; None where they do from the first one on."""
    origin = current.origin
    is_known = origin is not None or current.rebase_source_partition_locator is None
    if is_known and not trimmed and (origin is None or origin.is_from_deltas):
        return None
    destination = destination_of(partition, root)
    for entry in destination.log.recall(lambda state: state.scan(ROUND_PREFIX)) if is_known else ():
        is_known = int(entry["high_watermark"]) >= trimmed and int(entry["round_id"]) < current.round_id
        if is_known and int(entry["round_id"]) >= (origin.round_id if origin else 0):
            found = read_kept(destination, entry)
            if found is not None and found.origin == origin and found.source_folder == current.source_folder:
                return found
    return current


def explain(source: KeySource, version: TableVersion, wanted: pa.Table) -> "RowEvents":
    """Fold the deltas of a partition for one key, one row at a time, from the round on that they begin after.

    The version has its columns named as in files, and so has the key, a table of one row. Raises: CorruptionError.
    """
    columns = source_columns(source.source, version)
    schema = evolve(version.schema, pa.schema([*columns.schema, *columns.dropped]))
    events = (VersionEvents if version.keeps_history else RowEvents)(version, schema)
    if source.base is not None:
        _begin(events, source, source.base, wanted)
    reader = _Reader(source.root, version, columns, schema, wanted)
    for delta in source.deltas:
        if delta.stream_position <= source.watermark:
            reader.apply(events, delta)
    if source.completion is not None:
        events.reach(source.completion, _find_rows(source.root, source.completion, wanted, schema))
    for event in events.all:
        event.is_compacted = True
    for delta in source.deltas:
        if delta.stream_position > source.watermark:
            reader.apply(events, delta)
    events.finish()
    return events


def _find_rows(root: str, completion: RoundCompletion, wanted: pa.Table, schema: pa.Schema) -> list[FoundRow]:
    """Return the compacted rows of a key, found by the primary key index, with the columns of a schema.

    The key is a row in the types of the schema, which may be wider than those of the round: hashes are the same.
    """
    (hash_,) = hash_keys(wanted, completion.primary_keys)
    bucket = completion.buckets[completion.buckets.number_of(int(hash_))]
    rows: list[FoundRow] = []
    for file in bucket.files:
        rows += _rows_in_file(StoredFile(root, file), int(hash_), wanted, completion.primary_keys, schema)
    return rows


def _rows_in_file(
    stored: StoredFile, hash_: int, wanted: pa.Table, primary_keys: Sequence[str], schema: pa.Schema
) -> list[FoundRow]:
    """Return the live rows of a key."""
    found = stored.live_among(stored.find(np.array([hash_], np.uint64))[0])
    if not len(found):
        return []
    candidates = stored.read_rows(found, schema)
    (own, theirs), _ = equal_ids([candidates, wanted], primary_keys)
    places = np.flatnonzero(own == theirs[0])
    values = candidates.take(pa.array(places)).to_pylist()
    first = stored.file.first_row
    return [
        FoundRow(stored.file.uri, first + int(found[place]), each) for place, each in zip(places, values, strict=True)
    ]


def _begin(events: "RowEvents", source: KeySource, base: RoundCompletion, wanted: pa.Table) -> None:
    """Let the events begin with the row or tombstone that a round left."""
    origin = base.origin
    events.floor = base.floor
    kind, effect = COMPACTED_ROW, f"is in the rows of round {base.round_id}, the oldest that can still be read"
    if origin is not None and origin.partition is not None and origin.round_id == base.round_id:
        kind, effect = REBASE, f"came with the rebase from {origin.partition}"
    for found in _find_rows(source.root, base, wanted, events.schema):
        events.begin(round_event(base, found, kind, effect))
    tombstone = _find_tombstone(source.root, base, wanted)
    if tombstone is not None:
        events.begin(round_event(base, tombstone, "tombstone", "keeps older rows out"))


def _find_tombstone(root: str, completion: RoundCompletion, wanted: pa.Table) -> FoundRow | None:
    (hash_,) = hash_keys(wanted, completion.primary_keys)
    bucket = completion.buckets[completion.buckets.number_of(int(hash_))]
    if bucket.tombstones is not None:
        stored = StoredFile(root, bucket.tombstones)
        table = pa.concat_tables(stored.live_rows(stored.parquet.schema_arrow))
        (own, theirs), _ = equal_ids([align(table, wanted.schema), wanted], wanted.column_names)
        for row in np.flatnonzero(own == theirs[0]).tolist():
            return FoundRow(
                bucket.tombstones.uri, bucket.tombstones.first_row + row, table.slice(row, 1).to_pylist()[0]
            )
    return None


@dataclass(frozen=True)
class _Reader:
    """Reads what deltas have of a key."""

    root: str
    version: TableVersion
    columns: SourceColumns
    schema: pa.Schema
    wanted: pa.Table

    def apply(self, events: "RowEvents", delta: Delta) -> None:
        if delta.replaces:
            events.overwrite(_delta_event(delta, OVERWRITE, "", 0, {}))
        if delta.inherited_floor is not None:
            events.floor = max(delta.inherited_floor, events.floor or "")
        if delta.floor is not None:
            events.truncate(_delta_event(delta, "truncate", "", 0, {}), delta.floor)
            return
        for entry in delta.manifest.entries:
            table = read_data_file(self.root, entry)
            table = table.rename_columns(list(self.columns.renamed(table.column_names)))
            if delta.type == "delete":
                self._delete(events, delta, entry.uri, table)
            else:
                self._upsert(events, delta, entry.uri, table)

    def _upsert(self, events: "RowEvents", delta: Delta, file: str, table: pa.Table) -> None:
        (own, theirs), _ = equal_ids([align(table, self.wanted.schema), self.wanted], self.wanted.column_names)
        names = self.columns.renamed(delta.columns)
        operations = self.columns.renamed([delta.op_column] if delta.op_column else [])
        for row in np.flatnonzero(own == theirs[0]).tolist():
            values: Row = table.slice(row, 1).to_pylist()[0]
            event = _delta_event(delta, "upsert", file, row, {name: values[name] for name in names})
            events.take(event, values[operations[0]] if operations else None)

    def _delete(self, events: "RowEvents", delta: Delta, file: str, table: pa.Table) -> None:
        if events.current is None:
            return
        columns = list(self.columns.renamed(delta.delete_columns or []) or self.version.primary_keys)
        fields = pa.schema([self.schema.field(name) for name in columns])
        current = pa.Table.from_pylist([{name: events.current.get(name) for name in columns}], schema=fields)
        (own, theirs), _ = equal_ids([align(table, fields), current], columns)
        for row in np.flatnonzero(own == theirs[0]).tolist()[:1]:
            values = table.slice(row, 1).to_pylist()[0]
            events.remove(_delta_event(delta, f"delete on {', '.join(columns)}", file, row, values))


def _delta_event(delta: Delta, kind: str, file: str, row: int, values: Row) -> KeyEvent:
    return KeyEvent(delta.stream_position, delta.committed_at, kind, "", False, False, file, row, values)


def parse_key(version: TableVersion, texts: Mapping[str, str | None]) -> dict[str, object]:
    """Return the values of a primary key, written as text; None, and `null` but for text, are null.

    Raises: InvalidInputError.
    """
    schema, keys, name = version.schema, version.primary_keys, version.locator.table_locator.full_name
    if not keys:
        raise InvalidInputError(f"{name}: has no primary key; `siltstone read --where` finds rows by any column")
    for column in texts:
        if column not in keys:
            raise InvalidInputError(
                f"{name}: {column!r} is not in the primary key, {', '.join(keys)}{did_you_mean(column, keys)}"
            )
    for column in keys:
        if column not in texts:
            raise InvalidInputError(f"{name}: the primary key is {', '.join(keys)}; {column}=… is missing")
    key: dict[str, object] = {}
    for column in keys:
        field, text = schema.field(column), texts[column]
        if text is None or (text == "null" and not pa.types.is_string(field.type)):
            key[column] = None
        else:
            key[column] = parse_literal(text, field).as_py()
    return key


def key_problems(version: TableVersion, texts: Mapping[str, str | None]) -> dict[str, str]:
    """Return what is wrong with the text for each column of a primary key, in words; nothing where `parse_key` takes them."""
    problems = {column: "is not in the primary key" for column in texts if column not in version.primary_keys}
    for column in version.primary_keys:
        field, text = version.schema.field(column), texts.get(column)
        is_text = pa.types.is_string(field.type)
        if column not in texts or (text == "" and not is_text):
            problems[column] = "needs a value"
        elif text is not None and (text != "null" or is_text):
            try:
                parse_literal(text, field)
            except InvalidInputError:
                problems[column] = f"cannot be {text!r:.60}: its type is {describe_type(field.type)}"
    return problems


def _why(events: Sequence[KeyEvent], version: TableVersion) -> str:
    winner = next((event for event in events if event.is_winner), None)
    if winner is None and version.keeps_history:
        return "No version is current: the last event of the key deletes it." if events else ""
    if winner is None:
        return _why_gone(events)
    if version.keeps_history:
        return f"The version of position {winner.stream_position} {winner.effect}: no event of the key is later."
    if winner.kind in FROM_ROUNDS:
        return f"The row {winner.effect}; no delta since has changed it."
    position = f"position {winner.stream_position}"
    beaten = sum(event.kind in ("upsert", *FROM_ROUNDS) for event in events) - 1
    if version.merge_engine == "first_row":
        return f"The row of {position} counts: it was the first."
    if version.merge_engine == "partial_update":
        since = sum(
            event.kind in FROM_ROUNDS or event.effect.startswith(("brings", "updates"))
            for event in _since_the_last_delete(events)
        )
        return f"The row is made of {format_count(since, 'change')}, of which that of {position} was applied last."
    if not beaten:
        return f"The row of {position} counts: there is no other."
    if not version.sort_keys:
        return f"The row of {position} counts: it came last."
    rank = ", ".join(f"{name} {format_value(plain(winner.values.get(name)))}" for name in version.sort_keys)
    return f"The row of {position} counts: nothing after it has as great a sort key ({rank})."


def _why_gone(events: Sequence[KeyEvent]) -> str:
    gone = [event for event in events if event.effect == "deletes the row"]
    if gone:
        return f"There is no row: position {gone[-1].stream_position} deleted it, and nothing brought it back."
    lost = [event for event in events if event.kind == COMPACTED_ROW]
    if lost:
        return f"There is no row: {lost[-1].effect}."
    return "There is no row: no delta brought one." if events else ""


def _since_the_last_delete(events: Sequence[KeyEvent]) -> list[KeyEvent]:
    deletes = [number for number, event in enumerate(events) if event.effect == "deletes the row"]
    return list(events[deletes[-1] + 1 if deletes else 0 :])


def _notes(events: Sequence[KeyEvent], source: KeySource) -> Iterator[str]:
    if source.trimmed_up_to:
        yield f"Deltas up to position {source.trimmed_up_to} are trimmed; what they did to the key is not explained."
    waiting = sum(not event.is_compacted for event in events)
    if waiting:
        since = f"since the last round, which went up to position {source.watermark}" if source.watermark else "yet"
        yield f"{format_count(waiting, 'change')} not compacted {since}."
