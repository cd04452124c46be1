"""Planning: which deltas the next round reads, and what it starts from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.log.state import Entry
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.rounds import Origin, RoundCompletion
from siltstone.model.schema import evolve, schema_from_json
from siltstone.rounds.request import Request, check_request
from siltstone.rows.job import ReadTask, RoundJob
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog
from siltstone.table.completion import (
    Destination,
    DestinationState,
    Hold,
    check_whole,
    closed_before,
    current_completion,
    current_entry,
    destination_in,
    hold_floor,
    is_due,
    locate_destination,
    read_completion,
    read_holds,
    read_state,
)
from siltstone.table.followers import SourceState, lost_commits, read_source, read_sources
from siltstone.table.jobs import Keys, SourceColumns, delta_reads, make_job, source_columns, version_of


@dataclass(frozen=True)
class RoundPlan:
    """One round, ready to run."""

    job: RoundJob
    destination: Destination
    previous_round_id: int | None
    source: SourceState
    rebase_source: PartitionLocator | None
    origin: Origin | None
    # The source's deltas after this position are needed for the round or for those after it.
    start_watermark: int
    high_watermark: int
    read_watermark: int
    delta_count: int
    # Deltas of the source after the high watermark, up to the position asked for: they are left to later rounds.
    deltas_left_over: int
    input_bytes: int
    # The newest delta that was there to be read, which may be one of a later round; None where that was not looked for.
    newest_position: int | None = None
    holds: tuple[Entry, ...] = ()

    @property
    def round_id(self) -> int:
        """The number of this round."""
        return (self.previous_round_id or 0) + 1


@dataclass(frozen=True)
class PartitionPlan:
    """What a request comes to at one moment: the round that is next, None where there is nothing to do.

    `previous` is the round before it; a rebase does not read that, so that it also cures a damaged one.
    """

    request: Request
    destination: Destination
    state: DestinationState
    source: SourceState
    previous: RoundCompletion | None
    round: RoundPlan | None


def plan_partitions(requests: Sequence[Request]) -> list[PartitionPlan]:
    """Plan the first round of each request; logs that several have in common are read once.

    Raises: as `plan_partition`; InvalidInputError also where a watermark is given after which nothing is left to do.
    """
    plans = [_plan(situation, is_first=True, is_alone=True) for situation in _read_states(requests, is_first=True)]
    watermark = requests[0].rebase_high_watermark if requests else None
    if watermark is not None and all(plan.round is None for plan in plans):
        raise InvalidInputError(
            f"{requests[0].destination}: no delta of {requests[0].source} is after position {watermark}, so there is no "
            "round to start from there; give a lower high watermark"
        )
    return plans


def plan_partition(request: Request, *, is_first: bool = True, is_alone: bool = True) -> PartitionPlan:
    """Plan the next round of a session.

    `is_first` until the session has committed a round, `is_alone` until it has met another one or committed: from then
    on somebody else may have gone further than was asked for, which is no mistake of the request.
    Raises: InvalidInputError, CorruptionError, NotFoundError.
    """
    (situation,) = _read_states([request], is_first=is_first)
    return _plan(situation, is_first=is_first, is_alone=is_alone)


class _Situation(NamedTuple):
    """What a request is planned on: a state of the destination's log, and then one of the followed partition's."""

    request: Request
    destination: Destination
    state: DestinationState
    table: TableVersion
    source: SourceState

    @property
    def root(self) -> str:
        return self.destination.root


def _read_states(requests: Sequence[Request], *, is_first: bool) -> list[_Situation]:
    """Read the logs that requests are planned on: destinations first, since no source may be older than they are."""
    streams = _Streams()
    followed = [request.rebase_source or request.source for request in requests]
    logs = {str(source.stream_locator): streams.find(source, requests[0].root) for source in followed}
    destinations = [streams.destination(request.destination, request.root) for request in requests]
    states = [read_state(destination) for destination in destinations]
    sources: dict[str, dict[str, SourceState]] = {}
    for name, log in logs.items():
        after = {
            source.partition_id: _first_watermark(request, state, is_first=is_first)
            for request, source, state in zip(requests, followed, states, strict=True)
            if str(source.stream_locator) == name
        }
        sources[name] = read_sources(log, [each for each in followed if str(each.stream_locator) == name], after)
    looks = []
    for request, partition, destination, state in zip(requests, followed, destinations, states, strict=True):
        source = sources[str(partition.stream_locator)][partition.partition_id]
        is_same = source.version.locator == destination.locator.table_version_locator
        table = source.version if is_same else streams.version(destination.locator, request.root)
        looks.append(_Situation(request, destination, state, table, source))
    return looks


def _first_watermark(request: Request, state: DestinationState, *, is_first: bool) -> int:
    if is_first and request.rebase_source is not None:
        return 0
    if is_first and request.rebase_high_watermark is not None:
        return request.rebase_high_watermark
    return state.watermark


class _Streams:
    """The streams and tables that requests name, each found once."""

    def __init__(self) -> None:
        self._logs: dict[str, StreamLog] = {}
        self._folders: dict[str, str] = {}
        self._versions: dict[str, TableVersion] = {}

    def find(self, partition: PartitionLocator, root: str) -> StreamLog:
        name = str(partition.stream_locator)
        if name not in self._logs:
            self._logs[name] = storage.locate_stream(partition, root=root)
            self._folders[str(partition.table_version_locator)] = self._logs[name].version_folder
        return self._logs[name]

    def destination(self, partition: PartitionLocator, root: str) -> Destination:
        folder = self._folders.get(str(partition.table_version_locator))
        return destination_in(folder or self.find(partition, root).version_folder, partition, root=root)

    def version(self, partition: PartitionLocator, root: str) -> TableVersion:
        name = str(partition.table_version_locator)
        if name not in self._versions:
            self._versions[name] = version_of(partition, root=root)
        return self._versions[name]


def _plan(situation: _Situation, *, is_first: bool, is_alone: bool) -> PartitionPlan:
    while True:
        try:
            check_request(situation.request, situation.table, situation.source)
            if situation.request.rebase_source is not None and is_first:
                return _plan_rebase(situation)
            return _plan_next(situation, is_first=is_first, is_alone=is_alone)
        except CorruptionError:
            # Another round may have been committed since, and this one vacuumed or its deltas trimmed.
            if current_entry(situation.destination) == situation.state.current:
                raise
            (situation,) = _read_states([situation.request], is_first=is_first)


def _plan_next(situation: _Situation, *, is_first: bool, is_alone: bool) -> PartitionPlan:
    """Plan a round that reads what is new since the one before, if anything is."""
    request, destination, state, table, source = situation
    previous = None if state.current is None else read_completion(destination, state.current)
    if previous is not None:
        check_whole(destination, previous)
    columns, keys = source_columns(source.version, table), request.keys.in_files(table)
    _check_compatible(situation, keys, previous)
    watermark = _first_watermark(request, state, is_first=is_first)
    if is_alone:
        _check_order(request, watermark)
    deltas = _new_deltas(situation, watermark)
    chosen = _that_fit(deltas, request.max_round_bytes)
    reads = delta_reads(chosen, columns)
    schema = columns.schema_after(watermark)
    job = make_job(
        destination,
        previous,
        reads,
        columns,
        keys,
        source.version,
        schema,
        settings=request.settings,
        now_ms=request.now_ms,
    )
    job = replace(job, began=state.batch_id, expiry_ms=_expiry_ms(situation))
    if len(chosen) == len(deltas) and request.last_stream_position is None:
        job = _reaching_the_end(job, source.version, read_holds(state.holds))
    wants_full = is_first and request.settings.full and previous is not None and bool(previous.files)
    if not chosen and not wants_full and not job.due_buckets:
        return PartitionPlan(request, destination, state, source, previous, None)
    reached = chosen[-1].stream_position if chosen else watermark
    round_ = RoundPlan(
        job=job,
        destination=destination,
        previous_round_id=state.round_id,
        source=source,
        rebase_source=previous.rebase_source_partition_locator if previous else None,
        origin=_origin(previous, watermark),
        start_watermark=watermark,
        high_watermark=reached,
        read_watermark=reached,
        delta_count=len(chosen),
        deltas_left_over=len(deltas) - len(chosen),
        input_bytes=sum(read.content_length for read in reads),
        newest_position=deltas[-1].stream_position if deltas else watermark,
        holds=state.holds,
    )
    return PartitionPlan(request, destination, state, source, previous, round_)


def _origin(previous: RoundCompletion | None, watermark: int) -> Origin | None:
    """Return what a partition began with, after a round that goes on from a watermark."""
    if watermark != (previous.high_watermark if previous else 0):
        return Origin(round_id=previous.round_id + 1 if previous else 1)
    return previous.origin if previous else None


def _reaching_the_end(job: RoundJob, version: TableVersion, holds: Sequence[Hold]) -> RoundJob:
    """Let a round that reads all there is rely on what is closed, and visit buckets that are due.

    One that leaves out deltas must not: what it leaves out may belong before what it has read.
    """
    now_ms = min(job.now_ms, job.expiry_ms)
    floor = hold_floor(holds, now_ms)
    due = frozenset(bucket.name for bucket in job.buckets if bucket.files and is_due(bucket, now_ms, floor))
    return replace(job, closed_before_ms=closed_before(version.properties), hold_floor_ms=floor, due_buckets=due)


def _expiry_ms(situation: _Situation) -> int:
    """Return the time by which things may expire: the one that was asked for, else one that is sure."""
    return situation.source.expiry_ms if situation.request.now_ms is None else situation.request.now_ms


def _plan_rebase(situation: _Situation) -> PartitionPlan:
    """Plan a round that reads all of S1 into a fresh destination, on behalf of S2."""
    request, destination, state, table, source = situation
    is_same = request.source == source.locator
    given = request.rebase_high_watermark
    _check_order(request, given or 0)
    columns = source_columns(source.version, table)
    keys = request.keys.in_files(table).with_default_sort(columns)
    found = _all_of(situation, keys, request.last_stream_position if is_same else None)
    watermark = given if given is not None else found.read_watermark if is_same else 0
    _check_untrimmed(situation, watermark)
    # Prior completions are not read, so that a rebase also cures damaged ones; only which one is current matters.
    schema = evolve(columns.schema, found.schema)
    job = make_job(
        destination,
        None,
        found.reads,
        columns,
        keys,
        source.version,
        schema,
        settings=request.settings,
        now_ms=request.now_ms,
    )
    round_ = RoundPlan(
        job=replace(job, began=state.batch_id, expiry_ms=_expiry_ms(situation)),
        destination=destination,
        previous_round_id=state.round_id,
        source=source,
        rebase_source=source.locator,
        origin=Origin(
            round_id=(state.round_id or 0) + 1,
            partition=request.source,
            is_from_deltas=is_same and watermark == found.read_watermark,
        ),
        start_watermark=0 if is_same else watermark,
        high_watermark=watermark,
        read_watermark=found.read_watermark,
        delta_count=found.delta_count,
        deltas_left_over=len(source.between(watermark, request.last_stream_position)),
        input_bytes=sum(read.content_length for read in found.reads),
        holds=state.holds,
    )
    return PartitionPlan(request, destination, state, source, None, round_)


class _Whole(NamedTuple):
    """All there is to read of a partition."""

    reads: list[ReadTask]
    schema: pa.Schema
    read_watermark: int
    delta_count: int


def _all_of(situation: _Situation, keys: Keys, last: int | None) -> _Whole:
    request, behalf = situation.request, situation.source
    partition = request.source
    compacted = current_completion(locate_destination(partition, root=request.root))
    origin = behalf if partition == behalf.locator else read_source(partition, root=request.root)
    columns = source_columns(origin.version, situation.table)
    if compacted is not None:
        reads = _file_reads(compacted, columns)
        then = Keys(columns.renamed(compacted.primary_keys), columns.renamed(compacted.sort_keys))
        if behalf.version.drop_duplicates and _tombstones_hold(keys, then):
            reads += _tombstone_reads(compacted, columns, sum(read.record_count for read in reads))
        return _Whole(reads, _compacted_schema(compacted, columns), compacted.high_watermark, 0)
    if origin.partition is None:
        storage.get_partition(partition, root=request.root)
    if origin.trimmed_position:
        raise CorruptionError(
            f"{partition}: deltas up to {origin.trimmed_position} are trimmed, so a rebase would lose their rows; rebase "
            "from a partition that has them"
        )
    deltas = origin.between(0, last)
    newest = deltas[-1].stream_position if deltas else 0
    return _Whole(delta_reads(deltas, columns), columns.schema_after(0), newest, len(deltas))


def _compacted_schema(compacted: RoundCompletion, columns: SourceColumns) -> pa.Schema:
    """Return the columns of a compacted partition under the names of the destination, without those dropped since."""
    ids = {column.name: column.metadata for column in columns.schema}
    fields = []
    for column in schema_from_json(compacted.fields):
        (name,) = columns.renamed([column.name])
        if name not in columns.dropped.names:
            fields.append(column.with_name(name).with_metadata(ids.get(name)))
    return pa.schema(fields)


def _check_untrimmed(situation: _Situation, watermark: int) -> None:
    """Refuse a rebase after which no round could go on, since deltas that would come next are gone."""
    trimmed = situation.source.trimmed_position
    if trimmed > watermark:
        raise InvalidInputError(
            f"{situation.destination.locator}: would go on after position {watermark} of {situation.source.locator}, but its deltas "
            f"up to {trimmed} are trimmed; rebase from rows that have them, with a high watermark of at least {trimmed}"
        )


def _check_order(request: Request, watermark: int) -> None:
    last = request.last_stream_position
    if last is not None and last < watermark:
        raise InvalidInputError(
            f"{request.destination}: is compacted up to position {watermark} already, which is after {last}; "
            "give a later position, or roll back"
        )


def _check_compatible(situation: _Situation, keys: Keys, previous: RoundCompletion | None) -> None:
    if previous is None:
        return
    destination, source = situation.destination.locator, situation.source
    if previous.source_folder != source.folder:
        # Tables can be renamed, and others can be created under their names: the folder tells which one it is.
        known = previous.source_partition_locator
        other = f"not from {source.locator}" if known != source.locator else "but that was another table of this name"
        raise InvalidInputError(
            f"{destination}: was compacted from {known}, {other}; rebase to change the source, or "
            "name the same one to go on with it"
        )
    if set(previous.primary_keys) != set(keys.primary):
        raise InvalidInputError(
            f"{destination}: was compacted by the keys {previous.primary_keys}, not {list(keys.primary)}; "
            "rebase to change them"
        )
    if keys.sort is not None and previous.sort_keys != list(keys.sort):
        raise InvalidInputError(
            f"{destination}: was compacted with the sort keys {previous.sort_keys}, not {list(keys.sort)}; "
            "rebase to change them"
        )
    position = source.stream_position
    if position is not None and position < previous.high_watermark:
        raise lost_commits(previous.high_watermark, position, source.stream, source.log_address, destination)


def _new_deltas(situation: _Situation, watermark: int) -> list[Delta]:
    """Return the deltas after a watermark, up to the position asked for. Raises: InvalidInputError, CorruptionError."""
    source, last = situation.source, situation.request.last_stream_position
    if source.partition is None:
        if current_entry(locate_destination(source.locator, root=situation.root)) is not None:
            raise InvalidInputError(f"{source.locator}: holds compacted rows, not deltas; rebase to compact from it")
        return []
    if last is not None and last <= watermark:
        return []
    if source.trimmed_position > watermark:
        raise CorruptionError(
            f"{source.locator}: deltas up to {source.trimmed_position} are trimmed, but {situation.destination.locator} is "
            f"compacted up to {watermark} only; rebase from a partition that has them"
        )
    return source.between(watermark, last)


def _that_fit(deltas: Sequence[Delta], max_bytes: int) -> list[Delta]:
    """Return the first deltas that fit one round, at least one."""
    chosen: list[Delta] = []
    size = 0
    for delta in deltas:
        size += delta.manifest.content_length
        if chosen and size > max_bytes:
            break
        chosen.append(delta)
    return chosen


def _file_reads(completion: RoundCompletion, columns: SourceColumns) -> list[ReadTask]:
    reads = []
    first_row = 0
    present = _compacted_schema(completion, columns).names
    for file in completion.files:
        reads.append(
            ReadTask(
                uri=file.uri,
                run=0,
                first_row=first_row,
                record_count=file.record_count,
                content_length=file.content_length,
                is_delete=False,
                columns=tuple(present),
                deletion_vector=file.deletion_vector,
                names=tuple(columns.names.items()),
            )
        )
        first_row += file.record_count
    return reads


def _tombstones_hold(keys: Keys, then: Keys) -> bool:
    """Return whether tombstones of a compacted partition mean the same in a fresh one.

    They know the keys and sort keys by which they were made, and no other column.
    """
    return set(then.primary) == set(keys.primary) and then.sort == keys.sort and bool(keys.sort)


def _tombstone_reads(completion: RoundCompletion, columns: SourceColumns, first_row: int) -> list[ReadTask]:
    known = tuple(dict.fromkeys(columns.renamed([*completion.primary_keys, *completion.sort_keys])))
    reads = []
    for bucket in completion.buckets:
        if bucket.tombstones is not None:
            reads.append(
                ReadTask(
                    uri=bucket.tombstones.uri,
                    run=1,
                    first_row=first_row,
                    record_count=bucket.tombstones.record_count,
                    content_length=bucket.tombstones.content_length,
                    is_delete=False,
                    columns=known,
                    is_tombstones=True,
                    names=tuple(columns.names.items()),
                )
            )
            first_row += bucket.tombstones.record_count
    return reads
