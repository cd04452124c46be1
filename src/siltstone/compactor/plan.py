"""Planning: which deltas the next round reads, and what it starts from."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from siltstone.compactor.completion import (
    Destination,
    current_completion,
    current_entry,
    list_hold_entries,
    locate_destination,
)
from siltstone.compactor.consistency import Hold, closed_before, hold_floor, is_due, list_holds
from siltstone.compactor.inventory import whole_completion
from siltstone.compactor.job import ReadTask, RoundJob, Settings
from siltstone.compactor.state import Bucket, RoundCompletion, even_buckets
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.commit import steady
from siltstone.log.compactible import system_now_ms
from siltstone.log.keyed import Entry
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.locators import check_position
from siltstone.model.properties import KIND, ROW_GROUP_ROWS, TOMBSTONE_RETENTION_SECONDS
from siltstone.model.schema import evolve, schema_from_json, schema_to_json
from siltstone.storage import object_store as storage

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


@dataclass(frozen=True)
class RoundPlan:
    """One round, ready to run."""

    job: RoundJob
    destination: Destination
    previous_round_id: int | None
    source: PartitionLocator
    source_folder: str
    rebase_source: PartitionLocator | None
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
    version = storage.get_table_version(source.namespace, source.table, source.table_version, root=request.root)
    source_folder = locate_destination(source, root=request.root).folder
    _check_compatible(request, source, source_folder, previous)
    watermark = previous.high_watermark if previous else 0
    if is_first and request.rebase_high_watermark is not None:
        watermark = request.rebase_high_watermark
    if is_alone:
        _check_order(request, watermark)
    deltas = new_deltas(request, source, watermark)
    chosen = _that_fit(deltas, request.max_round_bytes)
    wants_full = is_first and request.settings.full and previous is not None and bool(previous.files)
    reads = delta_reads(chosen)
    holds = list_hold_entries(destination)
    job = make_job(request, version, destination, previous, reads)
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
        high_watermark=reached,
        read_watermark=reached,
        delta_count=len(chosen),
        input_bytes=sum(read.content_length for read in reads),
        newest_position=deltas[-1].stream_position if deltas else watermark,
        holds=tuple(holds),
    )


def _reaching_the_end(job: RoundJob, version: TableVersion, holds: Sequence[Hold]) -> RoundJob:
    """Let a round that reads all there is rely on what is closed, and visit buckets that are due.

    One that leaves out deltas must not: what it leaves out may belong before what it has read.
    """
    floor = hold_floor(holds, job.now_ms)
    due = frozenset(bucket.name for bucket in job.buckets if bucket.files and is_due(bucket, job.now_ms, floor))
    return replace(job, closed_before_ms=closed_before(version.properties), hold_floor_ms=floor, due_buckets=due)


def _plan_rebase(request: Request, destination: Destination, on_behalf_of: PartitionLocator) -> RoundPlan:
    """Plan a round that reads all of S1 into a fresh destination, on behalf of S2."""
    is_same = request.source == on_behalf_of
    given = request.rebase_high_watermark
    _check_order(request, given or 0)
    last = request.last_stream_position if is_same else None
    version = storage.get_table_version(
        on_behalf_of.namespace, on_behalf_of.table, on_behalf_of.table_version, root=request.root
    )
    found = _all_of(request, version, last)
    watermark = given if given is not None else found.read_watermark if is_same else 0
    # Prior completions are not read, so that a rebase also cures damaged ones; only which one is current matters.
    current = current_entry(destination)
    return RoundPlan(
        job=make_job(request, version, destination, None, found.reads, found.schema),
        destination=destination,
        previous_round_id=None if current is None else int(current["round_id"]),
        source=on_behalf_of,
        source_folder=locate_destination(on_behalf_of, root=request.root).folder,
        rebase_source=on_behalf_of,
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


def _all_of(request: Request, version: TableVersion, last: int | None) -> _Whole:
    partition = request.source
    compacted = current_completion(locate_destination(partition, root=request.root))
    if compacted is not None:
        reads = _file_reads(compacted)
        if _tombstones_hold(request, version, compacted):
            reads += _tombstone_reads(compacted, sum(read.record_count for read in reads))
        return _Whole(reads, schema_from_json(compacted.fields), compacted.high_watermark, 0)
    trimmed = storage.get_partition(partition, root=request.root).trimmed_stream_position
    if trimmed:
        raise CorruptionError(
            f"{partition}: deltas up to {trimmed} are trimmed, so a rebase would lose their rows; rebase from a "
            "partition that has them"
        )
    deltas = storage.list_partition_deltas(partition, last_stream_position=last, root=request.root)
    own = storage.get_table_version(partition.namespace, partition.table, partition.table_version, root=request.root)
    return _Whole(delta_reads(deltas), own.schema, deltas[-1].stream_position if deltas else 0, len(deltas))


def _check_order(request: Request, watermark: int) -> None:
    last = request.last_stream_position
    if last is not None and last < watermark:
        raise InvalidInputError(
            f"{request.destination}: is compacted up to position {watermark} already, which is after {last}; "
            "give a later position, or roll back"
        )


def _check_compatible(
    request: Request, source: PartitionLocator, source_folder: str, previous: RoundCompletion | None
) -> None:
    if previous is None:
        return
    if previous.source_folder != source_folder:
        # Tables can be renamed, and others can be created under their names: the folder tells which one it is.
        known = previous.source_partition_locator
        other = f"not from {source}" if known != source else "but that was another table of this name"
        raise InvalidInputError(
            f"{request.destination}: was compacted from {known}, {other}; rebase to change the source"
        )
    if set(previous.primary_keys) != set(request.primary_keys):
        raise InvalidInputError(
            f"{request.destination}: was compacted by the keys {previous.primary_keys}, not {list(request.primary_keys)}; "
            "rebase to change them"
        )
    if request.sort_keys is not None and previous.sort_keys != list(request.sort_keys):
        raise InvalidInputError(
            f"{request.destination}: was compacted with the sort keys {previous.sort_keys}, not {list(request.sort_keys)}; "
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


def delta_reads(deltas: Sequence[Delta]) -> list[ReadTask]:
    """Return the files of deltas as tasks, numbered in stream order."""
    reads = []
    first_row = 0
    for run, delta in enumerate(deltas):
        for entry in delta.manifest.entries:
            reads.append(
                ReadTask(
                    uri=entry.uri,
                    run=run,
                    first_row=first_row,
                    record_count=entry.record_count,
                    content_length=entry.content_length,
                    is_delete=delta.type == "delete",
                    columns=tuple(delta.columns),
                    op_column=delta.op_column,
                    delete_columns=tuple(delta.delete_columns or ()),
                )
            )
            first_row += entry.record_count
    return reads


def _file_reads(completion: RoundCompletion) -> list[ReadTask]:
    reads = []
    first_row = 0
    for file in completion.files:
        reads.append(
            ReadTask(
                uri=file.uri,
                run=0,
                first_row=first_row,
                record_count=file.record_count,
                content_length=file.content_length,
                is_delete=False,
                deletion_vector=file.deletion_vector,
            )
        )
        first_row += file.record_count
    return reads


def _tombstones_hold(request: Request, version: TableVersion, compacted: RoundCompletion) -> bool:
    """Tell whether tombstones of a compacted partition mean the same in a fresh one.

    They know the keys and sort keys by which they were made, and no other column.
    """
    sort_keys = _sort_keys(request, version)
    return (
        version.drop_duplicates
        and set(compacted.primary_keys) == set(request.primary_keys)
        and bool(sort_keys)
        and compacted.sort_keys == sort_keys
    )


def _sort_keys(request: Request, version: TableVersion) -> list[str]:
    return list(version.sort_keys if request.sort_keys is None else request.sort_keys)


def _tombstone_reads(completion: RoundCompletion, first_row: int) -> list[ReadTask]:
    columns = tuple(dict.fromkeys([*completion.primary_keys, *completion.sort_keys]))
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
                    columns=columns,
                    is_tombstones=True,
                )
            )
            first_row += bucket.tombstones.record_count
    return reads


def make_job(
    request: Request,
    version: TableVersion,
    destination: Destination,
    previous: RoundCompletion | None,
    reads: Sequence[ReadTask],
    read_schema: pa.Schema | None = None,
) -> RoundJob:
    """Say what a round does, starting from the one before, if any; `read_schema` where another table is read."""
    schema = version.schema if read_schema is None else evolve(version.schema, read_schema)
    if previous is not None:
        schema = evolve(schema_from_json(previous.fields), schema)
    sort_keys = _sort_keys(request, version)
    buckets = previous.buckets if previous else _first_buckets(request, reads)
    return RoundJob(
        root=request.root,
        folder=destination.folder,
        fields=tuple(each.to_serializable() for each in schema_to_json(schema)),
        # Hashes depend on the order of keys, so the order that was stored stays.
        primary_keys=tuple(previous.primary_keys if previous else request.primary_keys),
        sort_keys=tuple(previous.sort_keys if previous else sort_keys),
        merge_engine=version.merge_engine,
        drop_duplicates=version.drop_duplicates,
        buckets=tuple(sorted(buckets, key=lambda bucket: bucket.first_hash)),
        reads=tuple(reads),
        settings=request.settings,
        now_ms=system_now_ms() if request.now_ms is None else request.now_ms,
        kind=KIND.of(version.properties, version.locator),
        table=version.locator.table_locator.full_name,
        properties=version.properties,
        seed=uuid.uuid4().int >> 64,
        row_group_rows=ROW_GROUP_ROWS.of(version.properties, version.locator),
        tombstone_retention_ms=round(TOMBSTONE_RETENTION_SECONDS.of(version.properties, version.locator) * 1000),
    )


def _first_buckets(request: Request, reads: Sequence[ReadTask]) -> list[Bucket]:
    rows = sum(read.record_count for read in reads if not read.is_delete)
    depth = 0
    while rows >> depth > request.settings.bucket_rows and depth < 12:
        depth += 1
    return even_buckets(depth)
