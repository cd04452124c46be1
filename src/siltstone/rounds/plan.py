"""Planning: which deltas the next round reads, and what it starts from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from siltstone.errors import CorruptionError, InvalidInputError, SiltstoneError
from siltstone.model import Delta, PartitionLocator, TableVersion, TableVersionLocator
from siltstone.model.buckets import CompactedFile
from siltstone.model.rounds import Origin, RoundCompletion
from siltstone.model.schema import evolve, schema_from_json
from siltstone.rounds.events import Progress, TasksDone
from siltstone.rounds.request import MAX_ROUND_BYTES, Request, check_request
from siltstone.rows.job import LASTING_ERRORS, ReadTask, RoundJob
from siltstone.rows.slices import by_data_file
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    Destination,
    DestinationState,
    Hold,
    closed_before,
    current_completion,
    current_entry,
    destination_in,
    hold_floor,
    is_partition_due,
    locate_destination,
    read_completion,
    read_holds,
    read_state,
)
from siltstone.table.followers import SourceState, lost_commits, read_source, read_sources
from siltstone.table.jobs import (
    Keys,
    SourceColumns,
    delta_reads,
    floor_before,
    make_job,
    since_overwrite,
    source_columns,
    version_of,
)


@dataclass(frozen=True)
class PartitionPlan:
    """What a request comes to at one moment: a state of the destination's log, and then one of the followed partition's.

    `previous` is the current round; a rebase does not read that, so that it also cures a damaged one. A plan that is
    no `RoundPlan` has nothing to do.
    """

    request: Request
    destination: Destination
    state: DestinationState
    table: TableVersion
    source: SourceState
    previous: RoundCompletion | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the logs alone say that there is nothing to do, and how many rows there are."""
        request, state, source = self.request, self.state, self.source
        asks_more = request.settings.full or request.last_stream_position is not None
        if asks_more or (request.rebase_source, request.rebase_high_watermark) != (None, None):
            return False
        entry = state.current or {}
        now_ms = min(source.expiry_ms, source.now_ms()) if request.now_ms is None else request.now_ms
        return (
            "record_count" in entry
            and entry["source_folder"] == source.folder
            and source.newest_position == state.watermark
            and not is_partition_due(state, now_ms)
        )


@dataclass(frozen=True, kw_only=True)
class RoundPlan(PartitionPlan):
    """One round, ready to run."""

    job: RoundJob
    rebase_source: PartitionLocator | None
    origin: Origin | None
    # The source's deltas after this position are needed for the round or for those after it.
    start_watermark: int
    high_watermark: int
    read_watermark: int
    delta_count: int
    # Deltas of the source after the high watermark, up to the position asked for: they are left to later rounds.
    deltas_left_over: int
    # The newest delta that was there to be read, which may be one of a later round; None where that was not looked for.
    newest_position: int | None = None
    # Whether a larger round would read more of what there is.
    is_cut: bool = False
    # Rows of the round before that an overwrite replaces: they are gone, and not read.
    replaced_rows: int = 0

    @property
    def round_id(self) -> int:
        """The number of this round."""
        return (self.state.round_id or 0) + 1


def plan_partitions(requests: Sequence[Request]) -> list[PartitionPlan]:
    """Plan the first round of each request; logs that several have in common are read once.

    Raises: as `plan_partition`; InvalidInputError also where a watermark is given after which nothing is left to do.
    """
    states = _read_states(requests, is_first=True)
    plans = [state if state.is_idle else _plan(state, is_first=True, is_alone=True) for state in states]
    watermark = requests[0].rebase_high_watermark if requests else None
    if watermark is not None and not any(isinstance(plan, RoundPlan) for plan in plans):
        raise InvalidInputError(
            f"{requests[0].destination}: no delta of {requests[0].source} is after position {watermark}, so there is no "
            "round to start from there; give a lower high watermark"
        )
    return plans


def plan_each(requests: Sequence[Request], progress: Progress) -> list[PartitionPlan | SiltstoneError]:
    """Plan the first round of each request as `plan_partitions` does, or return why that cannot be done.

    One whose logs or completion are damaged does not keep the others from being planned.
    """
    try:
        states = _read_states(requests, is_first=True)
    except LASTING_ERRORS as error:
        return [error] if len(requests) == 1 else [plan for each in requests for plan in plan_each([each], progress)]
    plans: list[PartitionPlan | SiltstoneError] = []
    for number, state in enumerate(states):
        progress(TasksDone("plan", number, len(states)))
        try:
            plans.append(state if state.is_idle else _plan(state, is_first=True, is_alone=True))
        except LASTING_ERRORS as error:
            plans.append(error)
    return plans


def plan_partition(request: Request, *, is_first: bool = True, is_alone: bool = True) -> PartitionPlan:
    """Plan the next round of a session.

    `is_first` until the session has committed a round, `is_alone` until it has met another one or committed: from then
    on somebody else may have gone further than was asked for, which is no mistake of the request.
    Raises: InvalidInputError, CorruptionError, NotFoundError.
    """
    (state,) = _read_states([request], is_first=is_first)
    return _plan(state, is_first=is_first, is_alone=is_alone)


def _read_states(requests: Sequence[Request], *, is_first: bool) -> list[PartitionPlan]:
    """Read the logs that requests are planned on: destinations first, since no source may be older than they are."""
    followed = [request.rebase_source or request.source for request in requests]
    logs = {
        stream: storage.locate_stream(stream, root=requests[0].root)
        for stream in dict.fromkeys(partition.stream_locator for partition in followed)
    }
    folders = {stream.table_version_locator: log.version_folder for stream, log in logs.items()}
    destinations = []
    for request in requests:
        version = request.destination.table_version_locator
        if version not in folders:
            folders[version] = storage.locate_stream(request.destination, root=request.root).version_folder
        destinations.append(destination_in(folders[version], request.destination, root=request.root))
    states = [read_state(destination) for destination in destinations]
    after = {
        partition: _first_watermark(request, state, is_first=is_first)
        for request, partition, state in zip(requests, followed, states, strict=True)
    }
    sources: dict[PartitionLocator, SourceState] = {}
    for stream, log in logs.items():
        partitions = [partition for partition in followed if partition.stream_locator == stream]
        read = read_sources(log, partitions, {partition.partition_id: after[partition] for partition in partitions})
        sources |= {source.locator: source for source in read.values()}
    versions: dict[TableVersionLocator, TableVersion] = {}
    plans = []
    for request, partition, destination, state in zip(requests, followed, destinations, states, strict=True):
        source, locator = sources[partition], destination.locator.table_version_locator
        if source.version.locator != locator and locator not in versions:
            versions[locator] = version_of(destination.locator, root=request.root)
        table = source.version if source.version.locator == locator else versions[locator]
        plans.append(PartitionPlan(request, destination, state, table, source))
    return plans


def _first_watermark(request: Request, state: DestinationState, *, is_first: bool) -> int:
    if is_first and request.rebase_source is not None:
        return 0
    if is_first and request.rebase_high_watermark is not None:
        return request.rebase_high_watermark
    return state.watermark


def _plan(plan: PartitionPlan, *, is_first: bool, is_alone: bool) -> PartitionPlan:
    while True:
        try:
            check_request(plan.request, plan.table, plan.source)
            if plan.request.rebase_source is not None and is_first:
                return _plan_rebase(plan)
            return _plan_next(plan, is_first=is_first, is_alone=is_alone)
        except CorruptionError:
            # Another round may have been committed since, and this one vacuumed or its deltas trimmed.
            if current_entry(plan.destination) == plan.state.current:
                raise
            (plan,) = _read_states([plan.request], is_first=is_first)


def _plan_next(plan: PartitionPlan, *, is_first: bool, is_alone: bool) -> PartitionPlan:
    """Plan a round that reads what is new since the one before, if anything is."""
    request, state, source = plan.request, plan.state, plan.source
    previous = None if state.current is None else read_completion(plan.destination, state.current)
    plan = replace(plan, previous=previous)
    columns, keys = source_columns(source.version, plan.table), request.keys.in_files(plan.table)
    _check_compatible(plan, keys)
    watermark = _first_watermark(request, state, is_first=is_first)
    if is_alone:
        _check_order(request, watermark)
    deltas = _new_deltas(plan, watermark)
    counted, is_overwritten = since_overwrite(deltas)
    chosen = _that_fit(counted, request.max_round_bytes or MAX_ROUND_BYTES)
    left_over = counted[len(chosen) :]
    reads, schema = delta_reads(chosen, columns), columns.schema_after(watermark)
    floor = floor_before(chosen)
    job = _job(plan, reads, columns, keys, schema, left_over, is_overwritten=is_overwritten, floor=floor)
    if not left_over and request.last_stream_position is None:
        job = _reaching_the_end(job, source.version, read_holds(state.holds))
    wants_full = is_first and request.settings.full and previous is not None and previous.file_count > 0
    if not chosen and not wants_full and not job.due_numbers():
        return plan
    reached = chosen[-1].stream_position if chosen else watermark
    return RoundPlan(
        **vars(plan),
        job=job,
        rebase_source=previous.rebase_source_partition_locator if previous else None,
        origin=_origin(previous, watermark),
        start_watermark=watermark,
        high_watermark=reached,
        read_watermark=reached,
        delta_count=len(deltas) - len(left_over),
        deltas_left_over=len(left_over),
        is_cut=bool(left_over),
        newest_position=deltas[-1].stream_position if deltas else watermark,
        replaced_rows=previous.live_rows if previous and is_overwritten else 0,
    )


def _job(
    plan: PartitionPlan,
    reads: Sequence[ReadTask],
    columns: SourceColumns,
    keys: Keys,
    schema: pa.Schema,
    backlog: Sequence[Delta] = (),
    *,
    is_overwritten: bool = False,
    floor: str | None = None,
) -> RoundJob:
    request, source = plan.request, plan.source
    settings, now_ms = request.settings, request.now_ms
    job = make_job(
        plan.destination,
        plan.previous,
        reads,
        columns,
        keys,
        source.version,
        schema,
        settings=settings,
        now_ms=now_ms,
        backlog=backlog,
        is_overwritten=is_overwritten,
        floor=floor,
    )
    if settings.full and job.primary_keys and plan.previous is not None and not is_overwritten:
        # All buckets are rewritten: those that will be too small for the table are so together with their neighbours.
        rows, coming = plan.previous.live_rows, sum(read.record_count for read in reads if not read.is_delete)
        job = replace(job, buckets=job.buckets.joined(job.bucket_rows * rows // (2 * max(rows + coming, 1))))
    # Things expire by the time that was asked for, else by one that is sure.
    return replace(job, began=plan.state.batch_id, expiry_ms=source.expiry_ms if now_ms is None else now_ms)


def _origin(previous: RoundCompletion | None, watermark: int) -> Origin | None:
    """Return what a partition began with, after a round that goes on from a watermark."""
    if watermark != (previous.high_watermark if previous else 0):
        return Origin(round_id=previous.round_id + 1 if previous else 1)
    return previous.origin if previous else None


def _reaching_the_end(job: RoundJob, version: TableVersion, holds: Sequence[Hold]) -> RoundJob:
    """Let a round that reads all there is rely on what is closed, and visit buckets that are due.

    One that leaves out deltas must not: what it leaves out may belong before what it has read.
    """
    floor = hold_floor(holds, job.due_ms)
    return replace(job, closed_before_ms=closed_before(version.properties), hold_floor_ms=floor, visits_due=True)


def _plan_rebase(plan: PartitionPlan) -> RoundPlan:
    """Plan a round that reads all of S1 into a fresh destination, on behalf of S2.

    Prior completions are not read, so that a rebase also cures damaged ones; only which one is current matters.
    """
    request, source = plan.request, plan.source
    is_same = request.source == source.locator
    watermark = request.rebase_high_watermark
    _check_order(request, watermark or 0)
    columns = source_columns(source.version, plan.table)
    keys = request.keys.in_files(plan.table).with_default_sort(columns)
    whole = _all_of(plan, keys, request.last_stream_position if is_same else None)
    if watermark is None:
        watermark = whole.read_watermark if is_same else 0
    _check_untrimmed(plan, watermark)
    return RoundPlan(
        **vars(plan),
        job=_job(plan, whole.reads, columns, keys, evolve(columns.schema, whole.schema), floor=whole.floor),
        rebase_source=source.locator,
        origin=Origin(
            round_id=(plan.state.round_id or 0) + 1,
            partition=request.source,
            is_from_deltas=is_same and watermark == whole.read_watermark,
        ),
        start_watermark=0 if is_same else watermark,
        high_watermark=watermark,
        read_watermark=whole.read_watermark,
        delta_count=whole.delta_count,
        deltas_left_over=len(source.between(watermark, request.last_stream_position)),
    )


class _Whole(NamedTuple):
    """All there is to read of a partition."""

    reads: list[ReadTask]
    schema: pa.Schema
    read_watermark: int
    delta_count: int
    floor: str | None = None


def _all_of(plan: PartitionPlan, keys: Keys, last: int | None) -> _Whole:
    partition, behalf, root = plan.request.source, plan.source, plan.request.root
    compacted = current_completion(locate_destination(partition, root=root))
    origin = behalf if partition == behalf.locator else read_source(partition, root=root)
    columns = source_columns(origin.version, plan.table)
    if compacted is not None:
        schema = _compacted_schema(compacted, columns)
        reads = _compacted_reads(compacted.files, schema.names, columns)
        floor = None
        then = Keys(columns.renamed(compacted.primary_keys), columns.renamed(compacted.sort_keys))
        if behalf.version.drop_duplicates and _tombstones_hold(keys, then):
            tombstones = [bucket.tombstones for bucket in compacted.buckets if bucket.tombstones is not None]
            names = dict.fromkeys([*then.primary, *(then.sort or ())])
            first_row = sum(read.record_count for read in reads)
            reads += _compacted_reads(tombstones, names, columns, first_row, are_tombstones=True)
            floor = compacted.floor
        return _Whole(reads, schema, compacted.high_watermark, 0, floor)
    if origin.partition is None:
        storage.get_partition(partition, root=root)
    if origin.trimmed_position:
        raise CorruptionError(
            f"{partition}: deltas up to {origin.trimmed_position} are trimmed, so a rebase would lose their rows; rebase "
            "from a partition that has them"
        )
    deltas = origin.between(0, last)
    newest = deltas[-1].stream_position if deltas else 0
    counted, _ = since_overwrite(deltas)
    return _Whole(delta_reads(counted, columns), columns.schema_after(0), newest, len(deltas), floor_before(counted))


def _compacted_schema(compacted: RoundCompletion, columns: SourceColumns) -> pa.Schema:
    """Return the columns of a compacted partition under the names of the destination, without those dropped since."""
    ids = {column.name: column.metadata for column in columns.schema}
    fields = []
    for column in schema_from_json(compacted.fields):
        (name,) = columns.renamed([column.name])
        if name not in columns.dropped.names:
            fields.append(column.with_name(name).with_metadata(ids.get(name)))
    return pa.schema(fields)


def _check_untrimmed(plan: PartitionPlan, watermark: int) -> None:
    """Refuse a rebase after which no round could go on, since deltas that would come next are gone."""
    trimmed = plan.source.trimmed_position
    if trimmed > watermark:
        raise InvalidInputError(
            f"{plan.destination.locator}: would go on after position {watermark} of {plan.source.locator}, but its deltas "
            f"up to {trimmed} are trimmed; rebase from rows that have them, with a high watermark of at least {trimmed}"
        )


def _check_order(request: Request, watermark: int) -> None:
    last = request.last_stream_position
    if last is not None and last < watermark:
        raise InvalidInputError(
            f"{request.destination}: is compacted up to position {watermark} already, which is after {last}; "
            "give a later position, or roll back"
        )


def _check_compatible(plan: PartitionPlan, keys: Keys) -> None:
    destination, source, previous = plan.destination.locator, plan.source, plan.previous
    if previous is None:
        return
    if previous.source_folder != source.folder:
        # Tables can be renamed, and others can be created under their names: the folder tells which one it is.
        then = previous.source_partition_locator
        other = f"not from {source.locator}" if then != source.locator else "but that was another table of this name"
        raise InvalidInputError(
            f"{destination}: was compacted from {then}, {other}; rebase to change the source, or name the same one to go "
            "on with it"
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


def _new_deltas(plan: PartitionPlan, watermark: int) -> list[Delta]:
    """Return the deltas after a watermark, up to the position asked for. Raises: InvalidInputError, CorruptionError."""
    source, last = plan.source, plan.request.last_stream_position
    if source.partition is None:
        if current_entry(locate_destination(source.locator, root=plan.request.root)) is not None:
            raise InvalidInputError(f"{source.locator}: holds compacted rows, not deltas; rebase to compact from it")
        return []
    if last is not None and last <= watermark:
        return []
    if source.trimmed_position > watermark:
        raise CorruptionError(
            f"{source.locator}: deltas up to {source.trimmed_position} are trimmed, but {plan.destination.locator} is "
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


def _tombstones_hold(keys: Keys, then: Keys) -> bool:
    """Return whether tombstones of a compacted partition mean the same in a fresh one.

    They know the keys and sort keys by which they were made, and no other column.
    """
    return set(then.primary) == set(keys.primary) and then.sort == keys.sort and bool(keys.sort)


def _compacted_reads(
    files: Iterable[CompactedFile],
    columns: Iterable[str],
    source: SourceColumns,
    first_row: int = 0,
    *,
    are_tombstones: bool = False,
) -> list[ReadTask]:
    """Return files of a compacted partition as tasks: its rows are one run, its tombstones the next."""
    reads = []
    for slices in by_data_file(files):
        file = slices[0]
        reads.append(
            ReadTask(
                uri=file.uri,
                run=1 if are_tombstones else 0,
                first_row=first_row,
                record_count=file.stored_rows,
                content_length=file.stored_length,
                is_delete=False,
                columns=tuple(columns),
                slices=slices,
                is_tombstones=are_tombstones,
                names=tuple(source.names.items()),
            )
        )
        first_row += file.stored_rows
    return reads
