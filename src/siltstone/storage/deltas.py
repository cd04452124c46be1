"""Committing, listing, trimming and reading deltas."""

from collections.abc import Mapping, Sequence

import orjson
import pyarrow as pa

from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.log.commit import Commit
from siltstone.log.horizon import refuse_late
from siltstone.log.proof import refuse_unproven
from siltstone.log.state import Entry
from siltstone.model import (
    Delta,
    DeltaLocator,
    Follower,
    Idempotency,
    Manifest,
    ManifestEntry,
    Overwrite,
    Partition,
    PartitionLocator,
    PartitionValue,
    Stream,
    StreamLocator,
    TableVersion,
)
from siltstone.model.locators import MAX_STREAM_POSITION, check_new_position
from siltstone.model.properties import SCHEMA_EVOLUTION, STRICT
from siltstone.model.schema import check_known
from siltstone.objects import open_objects
from siltstone.storage.interface import StreamLike
from siltstone.storage.layout import VERSION_KEY, delta_key, stream_key
from siltstone.storage.parquet import read_data_file
from siltstone.storage.streams import StoredState, StoredStream, locate, partition_change
from siltstone.storage.transactions import (
    find_transaction,
    given_up_changes,
    is_given_up,
    newest_id,
    transaction_changes,
)
from siltstone.storage.versions import nameless, take_columns


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
    stream: StreamLike,
    *,
    stream_position: int | None = None,
    idempotency: Idempotency | None = None,
    rising_ids: bool = False,
    expected_properties: Mapping[str, str | None] | None = None,
    overwrite: Overwrite | None = None,
    root: str,
) -> Stream:
    """Commit staged deltas of one stream together, at one stream position; those of a later place at those after it."""
    source = locate(stream, root)
    stream = source.locator

    def prepare(state: StoredState) -> Commit[Stream]:
        _check_staged(deltas, stream, state.version)
        if idempotency is not None and rising_ids:
            _check_rising(state, idempotency)
        before = None if idempotency is None else _position_of(state, idempotency)
        if before is not None:
            state.stream.stream_position = before
            return Commit({}, state.stream)
        if idempotency is not None and is_given_up(state.entries, stream.stream, idempotency):
            raise ConflictError(
                f"{stream}: batch {idempotency.batch_id} of {idempotency.app_id} was given up; nothing is written under it"
            )
        _check_properties(state.version, expected_properties or {})
        refuse_late(state.entries, [entry.uri for delta in deltas for entry in delta.manifest.entries], str(stream))
        made = deltas if overwrite is None else _overwriting(state, deltas, overwrite)
        now_ms = source.log.now_ms()
        groups = _by_place(made)
        first = _next_position(state.stream, made, stream_position, now_ms, len(groups))
        position = first + len(groups) - 1
        committed_at = max(now_ms, state.entries.time_ms)
        changes: dict[str, Entry | None] = {**_schema_change(state.version, deltas)}
        partitions: dict[str, Partition] = {}
        if overwrite == "table" or (overwrite is not None and not state.version.partition_keys):
            state.stream.floor = None
        for number, group in enumerate(groups):
            floor = state.stream.floor
            for delta, partition in _targets(state, group, now_ms, partitions):
                changes.update(_delta_changes(delta, partition, first + number, committed_at, idempotency, floor))
            state.stream.floor = max(
                (each for each in (floor, *(delta.floor for delta in group)) if each), default=None
            )
        state.stream.stream_position = position
        changes[stream_key(stream.stream)] = nameless(state.stream)
        if idempotency is not None:
            changes.update(
                transaction_changes(
                    state.entries, stream.stream, idempotency, position, committed_at, rising_ids=rising_ids
                )
            )
        return Commit(changes, state.stream)

    committed = source.commit("commit deltas", prepare)
    if committed.batch_id is None:
        _discard_repeated(deltas, source, committed.result.stream_position)
    return committed.result


def plan_overwrite(deltas: Sequence[Delta], stream: StreamLike, overwrite: Overwrite, *, root: str) -> list[Delta]:
    """Return what `commit_deltas` would commit where it overwrites, and commit nothing."""
    return locate(stream, root).read(lambda state: _overwriting(state, deltas, overwrite))


def _by_place(deltas: Sequence[Delta]) -> list[list[Delta]]:
    """Return the deltas of one commit by the positions they get, one after another; without any, one position."""
    places = sorted({delta.place for delta in deltas})
    return [[delta for delta in deltas if delta.place == place] for place in places] or [[]]


def _check_rising(state: StoredState, idempotency: Idempotency) -> None:
    """Refuse an id below the newest one: whoever repeats a commit, of those whose ids rise, repeats its last one."""
    newest = newest_id(state.entries, state.locator.stream, idempotency.app_id)
    if newest is not None and idempotency.batch_id < newest:
        raise InvalidInputError(
            f"{state.version.locator.table_locator.full_name}: batch {idempotency.batch_id} of {idempotency.app_id!r} comes after its "
            f"batch {newest} is committed, so it is of another run of batches, and perhaps of other rows; nothing is "
            "committed. Where it starts anew on purpose, give it an app id of its own"
        )


def _discard_repeated(deltas: Sequence[Delta], source: StoredStream, position: int) -> None:
    """Discard what was staged for a commit that had happened already, unless the commit is of these very deltas."""
    first = position - len(_by_place(deltas)) + 1
    committed = source.read(lambda state: _read_between(state, first, position))
    named = {entry.uri for delta in committed for entry in delta.manifest.entries}
    discard_deltas(
        [delta for delta in deltas if named.isdisjoint(entry.uri for entry in delta.manifest.entries)], root=source.root
    )


def find_commit(stream: StreamLike, idempotency: Idempotency, *, root: str) -> int | None:
    """Return the stream position that was committed under an idempotency id, or None."""
    source = locate(stream, root)
    read = source.recall if source is stream else source.read
    return read(lambda state: _position_of(state, idempotency))


def give_up_commit(stream: StreamLike, idempotency: Idempotency, *, root: str) -> int | None:
    """Make sure that nothing is ever committed under an idempotency id; return the position if something was."""
    source = locate(stream, root)

    def prepare(state: StoredState) -> Commit[int | None]:
        before = _position_of(state, idempotency)
        if before is not None or is_given_up(state.entries, state.locator.stream, idempotency):
            return Commit({}, before)
        now_ms = max(source.log.now_ms(), state.entries.time_ms)
        position = state.stream.stream_position
        return Commit(given_up_changes(state.entries, state.locator.stream, idempotency, position, now_ms), None)

    return source.commit("give up a batch", prepare).result


def _position_of(state: StoredState, idempotency: Idempotency) -> int | None:
    found = find_transaction(state.entries, state.locator.stream, idempotency)
    if found is None or found.is_exact:
        return None if found is None else found.position
    # Only lines that have the name are taken apart.
    name = orjson.dumps(idempotency.app_id)
    keys = [key for position, key in state.positions() if position <= found.position]
    deltas = (state.delta(key) for key in keys if name in state.entries.lines[key])
    return next((delta.stream_position for delta in deltas if delta.idempotency == idempotency), found.position)


def discard_deltas(deltas: Sequence[Delta], *, root: str) -> None:
    """Delete the files of staged deltas that will not be committed."""
    for delta in deltas:
        if delta.state != "staged":
            raise InvalidInputError(f"{delta.locator}: already committed; only staged deltas can be discarded")
    open_objects(root).delete([entry.uri for delta in deltas for entry in delta.manifest.entries])


def _check_staged(deltas: Sequence[Delta], stream: StreamLocator, version: TableVersion) -> None:
    for delta in deltas:
        if delta.state != "staged":
            raise InvalidInputError(f"{delta.locator}: already committed; stage a new delta")
        if delta.locator.stream_locator != stream:
            raise InvalidInputError(f"{delta.locator}: staged for another stream, not {stream}; stage it for this one")
        if delta.type == "delete":
            version.refuse_undated_delete()
        if not delta.every_partition:
            version.check_partition_values(delta.partition_values)
    segments = [(delta.place, delta.locator.partition_id) for delta in deltas]
    if len(set(segments)) != len(segments):
        raise InvalidInputError(f"{stream}: one commit has two deltas for one partition; commit them one after another")


def _overwriting(state: StoredState, deltas: Sequence[Delta], overwrite: Overwrite) -> list[Delta]:
    """Return deltas that replace what their partitions have, with empty ones for those that get no rows.

    Raises: InvalidInputError where there are deletes, or rows of a partition that is not to be replaced.
    """
    deletes = [delta for delta in deltas if delta.type == "delete" or delta.op_column is not None]
    if deletes:
        raise InvalidInputError(
            f"{state.locator}: an overwrite has the rows that are to be there, not deletes; leave out type delete and the "
            "operation column"
        )
    everywhere = [delta for delta in deltas if delta.every_partition]
    replaced = {delta.locator.partition_id: delta for delta in deltas if not delta.every_partition}
    chosen = {} if overwrite == "partitions" else state.partitions()
    if not isinstance(overwrite, str):
        wanted = {PartitionLocator(**state.locator, partition_values=list(values)).partition_id for values in overwrite}
        for delta in replaced.values():
            if delta.locator.partition_id not in wanted:
                raise InvalidInputError(
                    f"{state.locator}: has rows of partition {delta.partition_values!r}, which is not among those to be "
                    "replaced; name it, too, or leave out its rows"
                )
        chosen = {partition_id: partition for partition_id, partition in chosen.items() if partition_id in wanted}
    for partition_id, partition in chosen.items():
        if partition_id not in replaced:
            locator = DeltaLocator(**partition.locator, stream_position=0)
            replaced[partition_id] = Delta(locator=locator, type="upsert", manifest=Manifest())
    return [*everywhere, *(Delta(**{**delta, "replaces": True}) for delta in replaced.values())]


def _next_position(stream: Stream, deltas: Sequence[Delta], requested: int | None, now_ms: int, count: int = 1) -> int:
    """Return the first position of a commit that takes `count` of them."""
    newest = stream.stream_position
    if newest + count > MAX_STREAM_POSITION:
        raise InvalidInputError(
            f"{stream.locator}: its newest delta is at {newest}, the last stream position there is; compact it, and "
            "write to a new table that is rebased from it"
        )
    if requested is None:
        is_chrono = any(delta.type == "chrono" for delta in deltas)
        return max(newest + 1, now_ms) if is_chrono else newest + 1
    check_new_position(requested, newest, str(stream.locator))
    return requested


def _check_properties(version: TableVersion, expected: Mapping[str, str | None]) -> None:
    for name, value in expected.items():
        actual = version.properties.get(name)
        if actual != value:
            raise ConflictError(f"{version.locator}: property {name} is now {actual!r}, not {value!r}; read it again")


def _schema_change(version: TableVersion, deltas: Sequence[Delta]) -> dict[str, Entry]:
    """Return the version entry if the deltas change the schema."""
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
    state: StoredState, deltas: Sequence[Delta], now_ms: int, changed: dict[str, Partition]
) -> list[tuple[Delta, Partition]]:
    """Pair each delta with the partition it changes; one for every partition meets all others that exist now.

    `changed` has the partitions that deltas before these changed, and gets those that these do.
    """
    pairs = []
    own = {delta.locator.partition_id for delta in deltas if not delta.every_partition}
    for delta in deltas:
        if delta.every_partition:
            for key, partition in {**state.partitions(), **changed}.items():
                if key not in own:
                    pairs.append((delta, changed.setdefault(key, partition)))
            continue
        locator = delta.locator.partition_locator
        key = locator.partition_id
        current = changed.get(key) or state.partition(key) or Partition(locator=locator, created_at=now_ms)
        pairs.append((delta, changed.setdefault(key, current)))
    return pairs


def _delta_changes(
    delta: Delta,
    partition: Partition,
    position: int,
    committed_at: int,
    idempotency: Idempotency | None,
    floor: str | None,
) -> dict[str, Entry]:
    """Return the entries of a delta and its partition, which begins with the `floor` of the stream if this is its first."""
    is_first = not partition.stream_position and not delta.replaces
    committed = Delta.from_serializable(
        {
            **delta,
            "state": "committed",
            "committed_at": committed_at,
            "previous_stream_position": partition.stream_position,
            "idempotency": idempotency,
            "fields": [],
            "place": 0,
            "inherited_floor": floor if is_first else None,
            "locator": DeltaLocator(**partition.locator, stream_position=position),
        }
    )
    partition.stream_position = position
    locator = partition.locator
    return {
        **partition_change(partition),
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
    deltas = locate(stream, root).read(lambda state: _read_between(state, first_stream_position, last_stream_position))
    return deltas if ascending else deltas[::-1]


def list_partition_deltas(
    partition: PartitionLocator,
    *,
    first_stream_position: int | None = None,
    last_stream_position: int | None = None,
    ascending: bool = True,
    root: str,
) -> list[Delta]:
    """List committed deltas of one partition by stream position; both bounds are inclusive."""

    def query(state: StoredState) -> list[Delta]:
        state.known_partition(partition)
        after = 0 if first_stream_position is None else first_stream_position - 1
        return list(state.deltas(partition.partition_id, after, last_stream_position))

    deltas = locate(partition, root).read(query)
    return deltas if ascending else deltas[::-1]


def _read_between(state: StoredState, first: int | None, last: int | None) -> list[Delta]:
    return [
        state.delta(key)
        for position, key in state.positions()
        if (first is None or position >= first) and (last is None or position <= last)
    ]


def get_delta(delta: DeltaLocator, *, root: str) -> Delta:
    """Get a committed delta."""
    return locate(delta, root).read(lambda state: _known_delta(state, delta, delta.stream_position))


def get_latest_delta(partition: PartitionLocator, *, root: str) -> Delta:
    """Get the newest committed delta of a partition."""
    return locate(partition, root).read(
        lambda state: _known_delta(state, partition, state.known_partition(partition).stream_position)
    )


def _known_delta(state: StoredState, partition: PartitionLocator, position: int) -> Delta:
    key = delta_key(partition.stream, position, partition.partition_id)
    if key not in state.entries:
        raise NotFoundError(f"{partition}: there is no committed delta at position {position}")
    return state.delta(key)


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
    return trim_partitions({partition: last_stream_position}, followers=followers, root=root)[partition]


def trim_partitions(
    positions: Mapping[PartitionLocator, int], *, followers: Sequence[Follower] | None = None, root: str
) -> dict[PartitionLocator, int]:
    """Trim partitions of one stream in one commit, each up to a position; return how many deltas of each."""
    stream = next(iter(positions)).stream_locator
    source = locate(stream, root)

    def prepare(state: StoredState) -> Commit[dict[PartitionLocator, int]]:
        changes: dict[str, Entry | None] = {}
        counts: dict[PartitionLocator, int] = {}
        if followers is not None and state.followers() != list(followers):
            raise ConflictError(f"{stream}: its followers changed while it was being trimmed; try again")
        for partition, last in positions.items():
            current = state.known_partition(partition)
            if last > current.stream_position:
                raise InvalidInputError(
                    f"{partition}: cannot trim up to {last}, the newest delta is at {current.stream_position}"
                )
            doomed = state.delta_keys(partition.partition_id, last)
            counts[partition] = len(doomed)
            if last > current.trimmed_stream_position:
                current.trimmed_stream_position = last
                changes |= {**dict.fromkeys(doomed), **partition_change(current)}
        return Commit(changes, counts)

    refuse_unproven(source.log)
    return source.commit("trim", prepare).result


def download_delta(delta: Delta, *, columns: Sequence[str] | None = None, root: str) -> pa.Table:
    """Read all rows of a delta in the order they were written; columns have the names that the table gives them now."""
    source = locate(delta.locator, root)
    version = source.log.read(source.version_in)
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
        schema = version.as_in_files().schema
        files = [pa.schema([schema.field(name) for name in stored if name in schema.names]).empty_table()]
    rows = pa.concat_tables(files)
    return rows.rename_columns([names.get(name, name) for name in rows.column_names]).replace_schema_metadata(None)


def download_delta_manifest_entry(entry: ManifestEntry, *, columns: Sequence[str] | None = None, root: str) -> pa.Table:
    """Read all rows of one data file."""
    return read_data_file(root, entry, columns)


def _delta_entry(delta: Delta) -> Entry:
    values: list[PartitionValue] = list(delta.locator.partition_values)
    return {"values": values, "stream_position": delta.stream_position, **nameless(delta)}
