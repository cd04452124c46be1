"""Committing, listing, trimming and reading deltas."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.log.commit import Commit
from siltstone.log.proof import refuse_doubt
from siltstone.log.state import EXPIRES_AT, Entry, LogState, decoding
from siltstone.model import (
    Delta,
    DeltaLocator,
    Follower,
    Idempotency,
    Manifest,
    ManifestEntry,
    Partition,
    PartitionLocator,
    PartitionValue,
    Stream,
    StreamLocator,
    TableVersion,
)
from siltstone.model.locators import MAX_STREAM_POSITION, check_position
from siltstone.model.properties import SCHEMA_EVOLUTION, STRICT
from siltstone.model.schema import check_known
from siltstone.objects import open_objects
from siltstone.storage.horizon import refuse_late
from siltstone.storage.layout import (
    TRANSACTION_RETENTION_MS,
    VERSION_KEY,
    delta_key,
    delta_prefix,
    partition_key,
    partition_prefix,
    stream_key,
    transaction_key,
)
from siltstone.storage.parquet import read_data_file
from siltstone.storage.streams import (
    Located,
    check_partition_values,
    known_partition,
    locate_stream,
    partition_delta_keys,
    partition_entry,
    read_followers,
    read_partition,
)
from siltstone.storage.versions import named, nameless, take_columns


def commit_delta(
    delta: Delta, *, stream_position: int | None = None, idempotency: Idempotency | None = None, root: str
) -> Delta:
    """Commit one staged delta."""
    stream = commit_deltas(
        [delta], delta.locator.stream_locator, stream_position=stream_position, idempotency=idempotency, root=root
    )
    return get_delta(DeltaLocator(**{**delta.locator, "stream_position": stream.stream_position}), root=root)


def commit_deltas(
    deltas: Sequence[Delta],
    stream: StreamLocator,
    *,
    stream_position: int | None = None,
    idempotency: Idempotency | None = None,
    expected_properties: Mapping[str, str | None] | None = None,
    root: str,
) -> Stream:
    """Commit staged deltas of one stream together, at one stream position."""
    place = locate_stream(stream, root=root)
    _check_staged(deltas, stream, place.version)

    def prepare(state: LogState) -> Commit[Stream]:
        known = place.read(state, stream.stream)
        before = _position_of(state, stream, idempotency) if idempotency else None
        if before is not None:
            known.stream_position = before
            return Commit({}, known)
        _check_properties(state, place, expected_properties or {})
        refuse_late(state, [entry.uri for delta in deltas for entry in delta.manifest.entries], str(stream))
        position = _next_position(known, deltas, stream_position, place.log.now_ms())
        committed_at = max(place.log.now_ms(), state.time_ms)
        changes: dict[str, Entry | None] = {**_schema_change(state, place, deltas)}
        for delta, partition in _targets(state, place, stream, deltas):
            changes.update(_delta_changes(delta, partition, position, committed_at, idempotency))
        known.stream_position = position
        changes[stream_key(stream.stream)] = nameless(known)
        if idempotency is not None:
            changes[transaction_key(stream.stream, idempotency)] = {
                "stream_position": position,
                "committed_at": committed_at,
                EXPIRES_AT: committed_at + TRANSACTION_RETENTION_MS,
            }
        return Commit(changes, known)

    committed = place.log.commit("commit deltas", prepare)
    if committed.batch_id is None:
        _discard_repeated(deltas, place, stream, committed.result.stream_position, root)
    return committed.result


def _discard_repeated(deltas: Sequence[Delta], place: Located, stream: StreamLocator, position: int, root: str) -> None:
    """Discard what was staged for a commit that had happened already, unless the commit is of these very deltas."""
    prefix = f"{delta_prefix(stream.stream)}{position}/"
    committed = place.log.read(lambda state: [read_delta(entry, stream) for entry in state.scan(prefix)])
    named = {entry.uri for delta in committed for entry in delta.manifest.entries}
    discard_deltas(
        [delta for delta in deltas if named.isdisjoint(each.uri for each in delta.manifest.entries)],
        root=root,
    )


def find_commit(stream: StreamLocator, idempotency: Idempotency, *, root: str) -> int | None:
    """Return the stream position that was committed under an idempotency id, None where nothing was."""
    return locate_stream(stream, root=root).log.read(lambda state: _position_of(state, stream, idempotency))


def _position_of(state: LogState, stream: StreamLocator, idempotency: Idempotency) -> int | None:
    entry = state.get(transaction_key(stream.stream, idempotency))
    return None if entry is None else int(entry["stream_position"])


def discard_deltas(deltas: Sequence[Delta], *, root: str) -> None:
    """Delete the files of staged deltas that will not be committed."""
    for delta in deltas:
        if delta.state != "staged":
            raise InvalidInputError(f"{delta.locator}: is committed; only staged deltas can be discarded")
    open_objects(root).delete([entry.uri for delta in deltas for entry in delta.manifest.entries])


def _check_staged(deltas: Sequence[Delta], stream: StreamLocator, version: TableVersion) -> None:
    for delta in deltas:
        if delta.state != "staged":
            raise InvalidInputError(f"{delta.locator}: is committed already; stage a new delta")
        if delta.locator.stream_locator != stream:
            raise InvalidInputError(f"{delta.locator}: is staged for another stream than {stream}")
        if not delta.every_partition:
            check_partition_values(version, delta.partition_values)
    segments = [delta.locator.partition_id for delta in deltas]
    if len(set(segments)) != len(segments):
        raise InvalidInputError(f"{stream}: one commit has two deltas for one partition; commit them one after another")


def _next_position(stream: Stream, deltas: Sequence[Delta], wanted: int | None, now_ms: int) -> int:
    newest = stream.stream_position
    if newest == MAX_STREAM_POSITION:
        raise InvalidInputError(
            f"{stream.locator}: its newest delta is at {newest}, the last stream position there is; compact it, and "
            "write to a new table that is rebased from it"
        )
    if wanted is None:
        is_chrono = any(delta.type == "chrono" for delta in deltas)
        return max(newest + 1, now_ms) if is_chrono else newest + 1
    check_new_position(wanted, newest, str(stream.locator))
    return wanted


def check_new_position(wanted: int, newest: int, stream: str) -> None:
    """Refuse a position that a delta cannot be committed at. Raises: InvalidInputError."""
    check_position(wanted, f"{stream}: after the newest, {newest},", least=1)
    if wanted <= newest:
        raise InvalidInputError(
            f"{stream}: stream position {wanted} is not after the newest, {newest}; give a higher one or none"
        )


def _check_properties(state: LogState, place: Located, expected: Mapping[str, str | None]) -> None:
    found = (state.get(VERSION_KEY) or {}).get("properties", {})
    for name, value in expected.items():
        if found.get(name) != value:
            raise ConflictError(
                f"{place.version.locator}: property {name} is {found.get(name)!r}, not {value!r} any more; look again"
            )


def _schema_change(state: LogState, place: Located, deltas: Sequence[Delta]) -> dict[str, Entry]:
    """Return the version entry if the deltas change the schema, checked against the newest one."""
    entry = state.get(VERSION_KEY)
    version: TableVersion = named(TableVersion, entry or {}, place.version.locator)
    before = version.schema_id
    for delta in deltas:
        try:
            take_columns(version, [column for column in delta.fields if column.name_in_files in delta.columns])
        except (InvalidInputError, ConflictError) as error:
            raise type(error)(f"{version.locator.table_locator.full_name}: {error}") from error
    if version.schema_id == before:
        return {}
    if SCHEMA_EVOLUTION.of(version.properties, version.locator) == STRICT:
        raise ConflictError(
            f"{version.locator.table_locator.full_name}: became strict while this was being written, and it adds or "
            "widens columns; write it again without"
        )
    return {VERSION_KEY: nameless(version)}


def _targets(
    state: LogState, place: Located, stream: StreamLocator, deltas: Sequence[Delta]
) -> list[tuple[Delta, Partition]]:
    """Pair each delta with the partition it changes; one for every partition meets all others that exist now."""
    pairs = []
    own = {delta.locator.partition_id for delta in deltas if not delta.every_partition}
    for delta in deltas:
        if delta.every_partition:
            existing = [read_partition(entry, stream) for entry in state.scan(partition_prefix(stream.stream))]
            pairs += [(delta, partition) for partition in existing if partition.locator.partition_id not in own]
            continue
        locator = delta.locator.partition_locator
        entry = state.get(partition_key(stream.stream, locator.partition_id))
        partition = (
            read_partition(entry, stream) if entry else Partition(locator=locator, created_at=place.log.now_ms())
        )
        pairs.append((delta, partition))
    return pairs


def _delta_changes(
    delta: Delta, partition: Partition, position: int, committed_at: int, idempotency: Idempotency | None
) -> dict[str, Entry]:
    committed = Delta.from_serializable(
        {
            **delta,
            "state": "committed",
            "committed_at": committed_at,
            "previous_stream_position": partition.stream_position,
            "idempotency": idempotency,
            "fields": [],
            "locator": DeltaLocator(**partition.locator, stream_position=position),
        }
    )
    partition.stream_position = position
    locator = partition.locator
    return {
        partition_key(locator.stream, locator.partition_id): partition_entry(partition),
        delta_key(locator.stream, position, locator.partition_id): _delta_entry(committed),
    }


def list_deltas(
    stream: StreamLocator,
    *,
    first_stream_position: int | None = None,
    last_stream_position: int | None = None,
    ascending: bool = True,
    root: str,
) -> list[Delta]:
    """List committed deltas of all partitions by stream position; both bounds are inclusive."""
    place = locate_stream(stream, root=root)

    def look(state: LogState) -> list[Entry]:
        place.read(state, stream.stream)
        keys = state.keys(delta_prefix(stream.stream))
        return _entries_between(state, keys, first_stream_position, last_stream_position)

    found = [read_delta(entry, stream) for entry in place.log.read(look)]
    return found if ascending else found[::-1]


def list_partition_deltas(
    partition: PartitionLocator,
    *,
    first_stream_position: int | None = None,
    last_stream_position: int | None = None,
    ascending: bool = True,
    root: str,
) -> list[Delta]:
    """List committed deltas of one partition by stream position; both bounds are inclusive."""
    place = locate_stream(partition, root=root)

    def look(state: LogState) -> list[Entry]:
        known_partition(state, place, partition)
        return _entries_between(
            state, partition_delta_keys(state, partition), first_stream_position, last_stream_position
        )

    found = [read_delta(entry, partition.stream_locator) for entry in place.log.read(look)]
    return found if ascending else found[::-1]


def _entries_between(state: LogState, keys: list[str], first: int | None, last: int | None) -> list[Entry]:
    chosen = []
    for key in keys:
        position = position_in_key(state, key)
        if (first is None or position >= first) and (last is None or position <= last):
            entry = state.get(key)
            if entry is not None:
                chosen.append(entry)
    return chosen


def position_in_key(state: LogState, key: str) -> int:
    """Return the stream position that is part of a delta's key. Raises: CorruptionError."""
    try:
        return int(key.split("/")[2])
    except (ValueError, IndexError):
        with decoding(state.get(key) or {"key": key}):
            raise


def get_delta(delta: DeltaLocator, *, root: str) -> Delta:
    """Get a committed delta."""
    place = locate_stream(delta, root=root)
    key = delta_key(delta.stream, delta.stream_position, delta.partition_id)

    def look(state: LogState) -> Entry | None:
        place.read(state, delta.stream)
        return state.get(key)

    entry = place.log.read(look)
    if entry is None:
        raise NotFoundError(f"{delta}: there is no such committed delta")
    return read_delta(entry, delta.stream_locator)


def get_latest_delta(partition: PartitionLocator, *, root: str) -> Delta:
    """Get the newest committed delta of a partition."""
    place = locate_stream(partition, root=root)

    def look(state: LogState) -> Entry | None:
        newest = known_partition(state, place, partition).stream_position
        return state.get(delta_key(partition.stream, newest, partition.partition_id))

    entry = place.log.read(look)
    if entry is None:
        raise NotFoundError(f"{partition}: has no deltas")
    return read_delta(entry, partition.stream_locator)


def get_delta_manifest(delta: DeltaLocator, *, root: str) -> Manifest:
    """Get the manifest of a committed delta."""
    return get_delta(delta, root=root).manifest


def delete_deltas(
    partition: PartitionLocator,
    *,
    last_stream_position: int,
    followers: Sequence[Follower] | None = None,
    root: str,
) -> int:
    """Trim a partition: forget its deltas up to a position, inclusive, and remember that; return how many."""
    place = locate_stream(partition, root=root)

    def prepare(state: LogState) -> Commit[int]:
        known = known_partition(state, place, partition)
        if followers is not None and read_followers(state, partition.stream_locator) != list(followers):
            raise ConflictError(f"{partition}: its followers changed while it was being trimmed; try again")
        if last_stream_position > known.stream_position:
            raise InvalidInputError(
                f"{partition}: cannot trim up to {last_stream_position}, the newest delta is at {known.stream_position}"
            )
        doomed = [
            key for key in partition_delta_keys(state, partition) if position_in_key(state, key) <= last_stream_position
        ]
        if last_stream_position <= known.trimmed_stream_position:
            return Commit({}, len(doomed))
        known.trimmed_stream_position = last_stream_position
        changes: dict[str, Entry | None] = dict.fromkeys(doomed)
        changes[partition_key(partition.stream, partition.partition_id)] = partition_entry(known)
        return Commit(changes, len(doomed))

    refuse_doubt(place.log.batches)
    return place.log.commit("trim", prepare).result


def download_delta(delta: Delta, *, columns: Sequence[str] | None = None, root: str) -> pa.Table:
    """Read all rows of a delta in the order they were written; columns have the names that the table gives them now."""
    version = locate_stream(delta.locator, root=root).version
    names = version.names_by_file()
    stored = [name for name in delta.columns if name in names]
    if delta.op_column is not None and delta.op_column not in delta.columns:
        stored.append(delta.op_column)
    if columns is not None:
        by_name = {names.get(name, name): name for name in stored}
        check_known(columns, pa.schema([pa.field(name, pa.null()) for name in by_name]), "column")
        stored = [by_name[name] for name in columns]
    files = [read_data_file(root, entry, stored).select(stored) for entry in delta.manifest.entries]
    if not files:
        known = version.as_in_files().schema
        files = [pa.schema([known.field(name) for name in stored if name in known.names]).empty_table()]
    rows = pa.concat_tables(files)
    return rows.rename_columns([names.get(name, name) for name in rows.column_names]).replace_schema_metadata(None)


def download_delta_manifest_entry(entry: ManifestEntry, *, columns: Sequence[str] | None = None, root: str) -> pa.Table:
    """Read all rows of one data file."""
    return read_data_file(root, entry, columns)


def _delta_entry(delta: Delta) -> Entry:
    values: list[PartitionValue] = list(delta.locator.partition_values)
    return {"values": values, "stream_position": delta.stream_position, **nameless(delta)}


def read_delta(entry: Entry, stream: StreamLocator) -> Delta:
    """Read a delta from the log."""
    with decoding(entry):
        locator = DeltaLocator(
            namespace=stream.namespace,
            table=stream.table,
            table_version=stream.table_version,
            stream=stream.stream,
            partition_values=entry.pop("values"),
            stream_position=entry.pop("stream_position"),
        )
        found: Delta = named(Delta, entry, locator)
        return found
