"""Planning: which deltas the next round reads, and what it starts from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.commit import steady
from siltstone.log.state import Entry
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.locators import check_position
from siltstone.model.rounds import Origin, RoundCompletion
from siltstone.model.schema import evolve, schema_from_json
from siltstone.rows.job import ReadTask, RoundJob, Settings
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    Destination,
    current_completion,
    current_entry,
    list_hold_entries,
    locate_destination,
    whole_completion,
)
from siltstone.table.followers import refuse_lost_commits
from siltstone.table.holds import Hold, closed_before, hold_floor, is_due, list_holds
from siltstone.table.jobs import Keys, SourceColumns, delta_reads, make_job, merging_job, source_columns, version_of

MAX_ROUND_BYTES = 2 << 30


@dataclass(frozen=True)
class Request:
    """What a compaction session was asked for."""

    source: PartitionLocator
    destination: PartitionLocator
    primary_keys: tuple[str, ...]
    root: str
    sort_keys: tuple[str, ...] | None = None
    last_stream_position: int | None = None
    rebase_source: PartitionLocator | None = None
    rebase_high_watermark: int | None = None
    settings: Settings = field(default_factory=Settings)
    max_round_bytes: int = MAX_ROUND_BYTES
    now_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse positions that are none."""
        for what, position in (
            ("position", self.last_stream_position),
            ("high watermark", self.rebase_high_watermark),
        ):
            if position is not None:
                check_position(position, f"{self.source}: {what}")

    @property
    def keys(self) -> Keys:
        """The keys as the table names them."""
        return Keys(self.primary_keys, self.sort_keys)


@dataclass(frozen=True)
class RoundPlan:
    """One round, ready to run."""

    job: RoundJob
    destination: Destination
    previous_round_id: int | None
    source: PartitionLocator
    source_folder: str
    rebase_source: PartitionLocator | None
    origin: Origin | None
    # The source's deltas after this position are needed for the round or for those after it.
    start_watermark: int
    high_watermark: int
    read_watermark: int
    delta_count: int
    input_bytes: int
    # The newest delta that was there to be read, which may be one of a later round; None where that was not looked for.
    newest_position: int | None = None
    holds: tuple[Entry, ...] = ()

    @property
    def round_id(self) -> int:
        """The number of this round."""
        return (self.previous_round_id or 0) + 1


def plan_round(request: Request, *, is_first: bool, is_alone: bool = True) -> RoundPlan | None:
    """Plan the next round of a session; None where nothing is left to do.

    `is_first` until the session has committed a round, `is_alone` until it has met another one or committed: from then
    on somebody else may have gone further than was asked for, which is no mistake of the request.
    Raises: InvalidInputError, CorruptionError, NotFoundError.
    """
    destination = locate_destination(request.destination, root=request.root)
    if request.rebase_source is not None and is_first:
        with steady():
            return _plan_rebase(request, destination, request.rebase_source)
    previous = whole_completion(destination)
    with steady():
        return _plan_next(request, destination, previous, is_first=is_first, is_alone=is_alone)


def _plan_next(
    request: Request, destination: Destination, previous: RoundCompletion | None, *, is_first: bool, is_alone: bool
) -> RoundPlan | None:
    """Plan a round that reads what is new since the one before, if anything is."""
    source = request.rebase_source or request.source
    version = version_of(source, root=request.root)
    source_folder = locate_destination(source, root=request.root).folder
    table = version_of(request.destination, root=request.root)
    columns, keys = source_columns(version, table), request.keys.in_files(table)
    _check_compatible(request.destination, keys, source, source_folder, previous)
    if previous is not None:
        refuse_lost_commits(previous, request.destination, root=request.root)
    watermark = previous.high_watermark if previous else 0
    if is_first and request.rebase_high_watermark is not None:
        watermark = request.rebase_high_watermark
    if is_alone:
        _check_order(request, watermark)
    deltas = new_deltas(request, source, watermark)
    chosen = _that_fit(deltas, request.max_round_bytes)
    wants_full = is_first and request.settings.full and previous is not None and bool(previous.files)
    reads = delta_reads(chosen, columns)
    holds = list_hold_entries(destination)
    schema = columns.schema_after(watermark)
    job = make_job(
        destination, previous, reads, columns, keys, version, schema, settings=request.settings, now_ms=request.now_ms
    )
    job = replace(job, expiry_ms=_expiry_ms(request, source))
    if len(chosen) == len(deltas) and request.last_stream_position is None:
        job = _reaching_the_end(job, version, list_holds(destination))
    if not chosen and not wants_full and not job.due_buckets:
        return None
    reached = chosen[-1].stream_position if chosen else watermark
    return RoundPlan(
        job=job,
        destination=destination,
        previous_round_id=previous.round_id if previous else None,
        source=source,
        source_folder=source_folder,
        rebase_source=previous.rebase_source_partition_locator if previous else None,
        origin=_origin(previous, watermark),
        start_watermark=watermark,
        high_watermark=reached,
        read_watermark=reached,
        delta_count=len(chosen),
        input_bytes=sum(read.content_length for read in reads),
        newest_position=deltas[-1].stream_position if deltas else watermark,
        holds=tuple(holds),
    )


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


def _expiry_ms(request: Request, source: PartitionLocator) -> int:
    """Return the time by which things may expire: the one that was asked for, else one that is sure."""
    return storage.locate_stream(source, root=request.root).expiry_ms() if request.now_ms is None else request.now_ms


def _plan_rebase(request: Request, destination: Destination, on_behalf_of: PartitionLocator) -> RoundPlan:
    """Plan a round that reads all of S1 into a fresh destination, on behalf of S2."""
    is_same = request.source == on_behalf_of
    given = request.rebase_high_watermark
    _check_order(request, given or 0)
    last = request.last_stream_position if is_same else None
    version = version_of(on_behalf_of, root=request.root)
    table = version_of(request.destination, root=request.root)
    columns = source_columns(version, table)
    keys = request.keys.in_files(table).with_default_sort(columns)
    found = _all_of(request, version, table, keys, last)
    watermark = given if given is not None else found.read_watermark if is_same else 0
    _check_untrimmed(request, on_behalf_of, watermark)
    # Prior completions are not read, so that a rebase also cures damaged ones; only which one is current matters.
    current = current_entry(destination)
    schema = evolve(columns.schema, found.schema)
    job = make_job(
        destination, None, found.reads, columns, keys, version, schema, settings=request.settings, now_ms=request.now_ms
    )
    return RoundPlan(
        job=replace(job, expiry_ms=_expiry_ms(request, on_behalf_of)),
        destination=destination,
        previous_round_id=None if current is None else int(current["round_id"]),
        source=on_behalf_of,
        source_folder=locate_destination(on_behalf_of, root=request.root).folder,
        rebase_source=on_behalf_of,
        origin=Origin(
            round_id=1 if current is None else int(current["round_id"]) + 1,
            partition=request.source,
            is_from_deltas=is_same and watermark == found.read_watermark,
        ),
        start_watermark=0 if is_same else watermark,
        high_watermark=watermark,
        read_watermark=found.read_watermark,
        delta_count=found.delta_count,
        input_bytes=sum(read.content_length for read in found.reads),
        holds=tuple(list_hold_entries(destination)),
    )


class _Whole(NamedTuple):
    """All there is to read of a partition."""

    reads: list[ReadTask]
    schema: pa.Schema
    read_watermark: int
    delta_count: int


def _all_of(request: Request, version: TableVersion, table: TableVersion, keys: Keys, last: int | None) -> _Whole:
    partition = request.source
    columns = source_columns(version_of(partition, root=request.root), table)
    compacted = current_completion(locate_destination(partition, root=request.root))
    if compacted is not None:
        reads = _file_reads(compacted, columns)
        then = Keys(columns.renamed(compacted.primary_keys), columns.renamed(compacted.sort_keys))
        if version.drop_duplicates and _tombstones_hold(keys, then):
            reads += _tombstone_reads(compacted, columns, sum(read.record_count for read in reads))
        return _Whole(reads, _compacted_schema(compacted, columns), compacted.high_watermark, 0)
    trimmed = storage.get_partition(partition, root=request.root).trimmed_stream_position
    if trimmed:
        raise CorruptionError(
            f"{partition}: deltas up to {trimmed} are trimmed, so a rebase would lose their rows; rebase from a "
            "partition that has them"
        )
    deltas = storage.list_partition_deltas(partition, last_stream_position=last, root=request.root)
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


def _check_untrimmed(request: Request, on_behalf_of: PartitionLocator, watermark: int) -> None:
    """Refuse a rebase after which no round could go on, since deltas that would come next are gone."""
    if not storage.partition_exists(on_behalf_of, root=request.root):
        return
    trimmed = storage.get_partition(on_behalf_of, root=request.root).trimmed_stream_position
    if trimmed > watermark:
        raise InvalidInputError(
            f"{request.destination}: would go on after position {watermark} of {on_behalf_of}, but its deltas up to "
            f"{trimmed} are trimmed; rebase from rows that have them, with a high watermark of at least {trimmed}"
        )


def _check_order(request: Request, watermark: int) -> None:
    last = request.last_stream_position
    if last is not None and last < watermark:
        raise InvalidInputError(
            f"{request.destination}: is compacted up to position {watermark} already, which is after {last}; "
            "give a later position, or roll back"
        )


def _check_compatible(
    destination: PartitionLocator,
    keys: Keys,
    source: PartitionLocator,
    source_folder: str,
    previous: RoundCompletion | None,
) -> None:
    if previous is None:
        return
    if previous.source_folder != source_folder:
        # Tables can be renamed, and others can be created under their names: the folder tells which one it is.
        known = previous.source_partition_locator
        other = f"not from {source}" if known != source else "but that was another table of this name"
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


def new_deltas(request: Request, source: PartitionLocator, watermark: int) -> list[Delta]:
    """Return the deltas after a watermark, up to the position asked for. Raises: InvalidInputError, CorruptionError."""
    try:
        partition = storage.get_partition(source, root=request.root)
    except NotFoundError:
        if current_entry(locate_destination(source, root=request.root)) is not None:
            raise InvalidInputError(f"{source}: holds compacted rows, not deltas; rebase to compact from it") from None
        return []
    last = request.last_stream_position
    if last is not None and last <= watermark:
        return []
    if partition.trimmed_stream_position > watermark:
        raise CorruptionError(
            f"{source}: deltas up to {partition.trimmed_stream_position} are trimmed, but {request.destination} is "
            f"compacted up to {watermark} only; rebase from a partition that has them"
        )
    return storage.list_partition_deltas(
        source,
        first_stream_position=watermark + 1,
        last_stream_position=last,
        root=request.root,
    )


def job_on(request: Request, destination: Destination, base: RoundCompletion | None) -> RoundJob:
    """Return what a round from one state up to the requested position would have to do. Raises: CorruptionError."""
    source, table = version_of(request.source, root=request.root), version_of(request.destination, root=request.root)
    deltas = new_deltas(request, request.source, base.high_watermark if base else 0)
    return merging_job(destination, base, deltas, request.keys, source, table)


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
