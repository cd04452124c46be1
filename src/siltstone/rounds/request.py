"""What a compaction is asked for: requests for tables and partitions, rebases among them, and what they need."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from siltstone.catalog import main as catalog
from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.model import DEFAULT_STREAM, PartitionLocator, PartitionValue, StreamLocator, TableVersion
from siltstone.model.locators import check_position
from siltstone.model.properties import HISTORY_TRACK
from siltstone.model.schema import evolve
from siltstone.rows.job import Settings
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    compacted_partition,
    current_completion,
    current_entry,
    locate_compacted,
    locate_destination,
)
from siltstone.table.followers import SourceState, followed_partition, read_followed
from siltstone.table.jobs import Keys, version_of

MAX_ROUND_BYTES = 2 << 30
_HIGHEST = (1 << 63) - 1
_COUNTS = ("target_file_bytes", "records_per_compacted_file", "bucket_rows", "page_buckets", "max_files")
_FRACTIONS = ("max_dead_fraction", "max_delta_fraction", "max_carried_fraction")
_SHAPE = "write namespace.table, or namespace/table/version/stream"

Source = str | StreamLocator
"""A table by name, or a stream of one: as a locator or as text such as `shop/orders/1/compacted`, with all its
partitions or with one."""


@dataclass(frozen=True)
class TableRequest:
    """What a compaction of a table is asked for. S1 is `rebase_from`, S2 is `on_behalf_of`, by default the table itself."""

    name: str
    root: str
    to: int | None = None
    full: bool = False
    rebase_from: Source | None = None
    on_behalf_of: Source | None = None
    high_watermark: int | None = None
    now_ms: int | None = None


@dataclass(frozen=True)
class Request:
    """What a compaction session was asked for. Without `max_round_bytes`, rounds are as large as suits the engine."""

    source: PartitionLocator
    destination: PartitionLocator
    primary_keys: tuple[str, ...]
    root: str
    sort_keys: tuple[str, ...] | None = None
    last_stream_position: int | None = None
    rebase_source: PartitionLocator | None = None
    rebase_high_watermark: int | None = None
    settings: Settings = field(default_factory=Settings)
    max_round_bytes: int | None = None
    now_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse positions that are none."""
        _check_positions(str(self.source), self.last_stream_position, self.rebase_high_watermark)

    @property
    def keys(self) -> Keys:
        """The keys as the table names them."""
        return Keys(self.primary_keys, self.sort_keys)


def partition_requests(table_request: TableRequest) -> list[Request]:
    """Return what is to be compacted in each partition.

    Each is rebased from the partition that has the same values. A table that was compacted on behalf of another one
    goes on with that one. Raises: InvalidInputError, NotFoundError.
    """
    if table_request.on_behalf_of is None and table_request.rebase_from is None:
        return _following_requests(table_request)
    root = table_request.root
    own = _Stream(catalog.delta_stream(table_request.name, root=root))
    behalf = own if table_request.on_behalf_of is None else _stream(table_request.on_behalf_of, root)
    version = _version(own, root)
    _check_reached(table_request, behalf.locator)
    if behalf.locator != own.locator:
        _check_rules(version, _version(behalf, root))
    sources = [behalf]
    if table_request.rebase_from is not None:
        sources = [own, behalf, _stream(table_request.rebase_from, root)]
        _check_columns(version, _version(sources[-1], root))
    requests = []
    for values in _all_values(sources, root):
        request = _request(table_request, version, _partition(behalf.locator, values), _partition(own.locator, values))
        requests.append(request if table_request.rebase_from is None else _rebased(request, sources[-1], table_request))
    return requests


class _Stream(NamedTuple):
    """One stream, all partitions of it or one; `is_table` where only a table was named."""

    locator: StreamLocator
    partition_id: str | None = None
    is_table: bool = False


def _following_requests(table_request: TableRequest) -> list[Request]:
    table = read_followed(table_request.name, root=table_request.root)
    own = table.stream.locator
    requests = []
    for partition in table.partitions:
        source = partition.source
        if source is None or (source.stream_locator != own and partition.own_position):
            # Which deltas are meant has to be said; planning says what it was compacted from.
            source = partition.own
        requests.append(_request(table_request, table.version, source, partition.own))
    if table_request.to is not None or table_request.high_watermark is not None:
        for stream in dict.fromkeys(request.source.stream_locator for request in requests) or [own]:
            _check_reached(table_request, stream)
    return requests


def _request(
    table_request: TableRequest, version: TableVersion, source: PartitionLocator, own: PartitionLocator
) -> Request:
    return Request(
        source=source,
        destination=compacted_partition(own),
        primary_keys=tuple(version.primary_keys),
        root=table_request.root,
        last_stream_position=table_request.to,
        rebase_high_watermark=table_request.high_watermark,
        settings=Settings(full=table_request.full),
        now_ms=table_request.now_ms,
    )


def _rebased(request: Request, source: _Stream, table_request: TableRequest) -> Request:
    """Return a request that starts anew from what the source holds of the same partition."""
    behalf, root = request.source, request.root
    origin = _partition(source.locator, request.destination.partition_values)
    if source.is_table and source.locator != behalf.stream_locator:
        origin = _held(origin, root)
    if not _exists(origin, root):
        if current_entry(locate_destination(request.destination, root=root)) is not None:
            raise InvalidInputError(
                f"{origin}: there is no such partition, so {request.destination} cannot be rebased from it; rebase from "
                f"a table that has it, or from {table_request.name} itself"
            )
        return request
    watermark = request.rebase_high_watermark
    if watermark is None and origin.stream_locator != behalf.stream_locator:
        # Where the source is known to be compacted from the same deltas, it is also known how far. Tables can be renamed;
        # their folders stay.
        compacted = current_completion(locate_destination(origin, root=root))
        if compacted is not None and compacted.source_folder == locate_destination(behalf, root=root).folder:
            watermark = compacted.high_watermark
    return replace(request, source=origin, rebase_source=behalf, rebase_high_watermark=watermark)


def _held(deltas: PartitionLocator, root: str) -> PartitionLocator:
    """Return where all that a partition of a table holds is: its compacted rows, or its deltas before any round."""
    destination = locate_compacted(deltas, root=root)
    completion = current_completion(destination)
    if completion is None:
        return deltas
    first = completion.high_watermark + 1
    source = followed_partition(deltas, completion, root=root)
    waiting = _exists(source, root) and storage.list_partition_deltas(source, first_stream_position=first, root=root)
    if waiting:
        raise InvalidInputError(
            f"{deltas}: is compacted up to position {completion.high_watermark}, and {len(waiting)} of its deltas are "
            f"not; compact it before you rebase from it, or rebase from {destination.locator} without them"
        )
    return destination.locator


def _exists(partition: PartitionLocator, root: str) -> bool:
    return storage.partition_exists(partition, root=root) or (
        current_entry(locate_destination(partition, root=root)) is not None
    )


def _stream(source: Source, root: str) -> _Stream:
    if isinstance(source, StreamLocator):
        locator = StreamLocator(**{name: source[name] for name in StreamLocator._fields})
        return _Stream(locator, source.partition_id if isinstance(source, PartitionLocator) else None)
    if "/" not in source:
        return _Stream(catalog.delta_stream(source, root=root), is_table=True)
    parts = source.split("/")
    if len(parts) not in (4, 5):
        raise InvalidInputError(f"{source!r} names no stream; {_SHAPE}")
    locator = StreamLocator(namespace=parts[0], table=parts[1], table_version=parts[2], stream=parts[3])
    return _Stream(locator, parts[4] if len(parts) == 5 else None)


def _version(stream: _Stream, root: str) -> TableVersion:
    return version_of(_partition(stream.locator), root=root)


def _all_values(streams: Sequence[_Stream], root: str) -> list[list[PartitionValue]]:
    """Return the values of the partitions that any of the streams has, but only of those that all of them may mean."""
    values: dict[str, list[PartitionValue]] = {}
    for stream in streams:
        partitions = _partitions(stream.locator, root)
        values.update((partition.partition_id, partition.partition_values) for partition in partitions)
    for stream in streams:
        if stream.partition_id is not None:
            if stream.partition_id not in values:
                raise NotFoundError(f"{stream.locator}/{stream.partition_id}: there is no such partition")
            values = {stream.partition_id: values[stream.partition_id]}
    return list(values.values())


def _partitions(stream: StreamLocator, root: str) -> list[PartitionLocator]:
    if storage.stream_exists(stream, root=root):
        return [partition.locator for partition in storage.list_partitions(stream, root=root)]
    deltas = StreamLocator(**{**stream, "stream": DEFAULT_STREAM})
    beside = [_partition(stream, partition.partition_values) for partition in _partitions(deltas, root)]
    compacted = [partition for partition in beside if _exists(partition, root)]
    if not compacted:
        raise NotFoundError(f"{stream}: nothing was compacted there")
    return compacted


def _partition(stream: StreamLocator, values: Sequence[PartitionValue] = ()) -> PartitionLocator:
    return PartitionLocator(**stream, partition_values=list(values))


def _check_positions(name: str, position: int | None, watermark: int | None) -> None:
    for what, value in (("position", position), ("high watermark", watermark)):
        if value is not None:
            check_position(value, f"{name}: {what}")


def _check_reached(table_request: TableRequest, stream: StreamLocator) -> None:
    """Refuse a high watermark that no delta has reached yet."""
    _check_positions(table_request.name, table_request.to, table_request.high_watermark)
    newest = storage.get_stream(stream, root=table_request.root).stream_position
    if table_request.high_watermark is not None and table_request.high_watermark > newest:
        raise InvalidInputError(
            f"{table_request.name}: high watermark {table_request.high_watermark} is after the newest delta of "
            f"{stream.table_version_locator.table_locator.full_name}, {newest}, so that deltas to come would be left out; "
            "give one that is there"
        )


def _check_rules(version: TableVersion, other: TableVersion) -> None:
    """Refuse to compact the deltas of a table whose rows mean something else."""
    for rule in ("primary_keys", "sort_keys", "partition_keys", "merge_engine", "drop_duplicates"):
        if version[rule] != other[rule]:
            raise InvalidInputError(
                f"{version.locator}: has {rule} {version[rule]}, but {other.locator} has {other[rule]}; a table can be "
                "compacted on behalf of one with the same rules only"
            )
    tracked, theirs = (HISTORY_TRACK.of(each.properties, each.locator) for each in (version, other))
    if tracked != theirs:
        raise InvalidInputError(
            f"{version.locator}: has {HISTORY_TRACK.name} {', '.join(tracked or ()) or 'unset'}, but {other.locator} has "
            f"{', '.join(theirs or ()) or 'unset'}; a table can be compacted on behalf of one with the same rules only"
        )
    _check_columns(version, other)


def _check_columns(version: TableVersion, other: TableVersion) -> None:
    if version.partition_keys != other.partition_keys:
        raise InvalidInputError(
            f"{version.locator}: is partitioned by {version.partition_keys}, but {other.locator} by "
            f"{other.partition_keys}; partitions are rebased from those with the same values"
        )
    missing = [name for name in version.primary_keys if name not in other.schema.names]
    if missing:
        raise InvalidInputError(f"{other.locator}: has no column {missing[0]!r}, which is a key of {version.locator}")
    schema = evolve(version.schema, other.schema)
    strange = [field.name for field in schema if field.name not in version.schema.names]
    strange += [field.name for field in version.schema if schema.field(field.name).type != field.type]
    if strange:
        raise InvalidInputError(
            f"{version.locator}: would not show {', '.join(strange)} of {other.locator} in full; add or widen "
            f"{'it' if len(strange) == 1 else 'them'} first with `siltstone table alter --add-column`"
        )


def check_request(request: Request, table: TableVersion, source: SourceState) -> None:
    """Refuse what can only be a mistake, given the table of the destination and what is followed.

    Raises: InvalidInputError, NotFoundError.
    """
    _check_settings(request.settings)
    if request.max_round_bytes is not None:
        _check_count("max_round_bytes", request.max_round_bytes, 1)
    _check_destination(request, table, source)
    _check_sources(request, table, source)


def _check_settings(settings: Settings) -> None:
    for name in _COUNTS:
        value = getattr(settings, name)
        if name != "bucket_rows" or value is not None:
            _check_count(name, value, 1)
    for name in ("shared_rows", "shared_bytes"):
        _check_count(name, getattr(settings, name), 0)
    for name in _FRACTIONS:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InvalidInputError(f"{name} is {value!r}; give a number from 0 on")


def _check_count(name: str, value: object, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _HIGHEST:
        raise InvalidInputError(f"{name} is {value!r}; give a whole number from {lowest} to {_HIGHEST}")


def _check_destination(request: Request, table: TableVersion, source: SourceState) -> None:
    destination, followed = request.destination, source.locator
    if _holds_deltas(request, source):
        raise InvalidInputError(
            f"{destination}: holds deltas, so rows cannot be compacted into it; give a destination of its own, e.g. "
            f"{PartitionLocator(**{**destination, 'stream': 'compacted'})}"
        )
    if destination.partition_id != followed.partition_id:
        raise InvalidInputError(
            f"{destination}: has the partition values {destination.partition_values}, but {followed}, whose deltas it is "
            f"compacted from, has {followed.partition_values}; a partition goes into the one with the same values"
        )
    table.check_partition_values(destination.partition_values)
    if sorted(request.primary_keys) != sorted(table.primary_keys):
        raise InvalidInputError(
            f"{destination}: cannot be compacted by the keys {_listed(request.primary_keys)}: those of its table are "
            f"{_listed(table.primary_keys)}"
        )
    if request.rebase_source is not None:
        # The deltas of the rounds to come are read from there.
        newest = source.stream_position
        if newest is None:
            newest = storage.get_stream(source.stream, root=request.root).stream_position
        watermark = request.rebase_high_watermark
        if watermark is not None and watermark > newest:
            raise InvalidInputError(
                f"{destination}: high watermark {watermark} is after the newest delta of {followed}, {newest}, so that "
                "deltas to come would be left out; give one that is there"
            )


def _holds_deltas(request: Request, source: SourceState) -> bool:
    stream = request.destination.stream_locator
    if stream.table_version_locator == source.version.locator:
        return stream.stream in source.streams
    return storage.stream_exists(stream, root=request.root)


def _check_sources(request: Request, table: TableVersion, source: SourceState) -> None:
    """Refuse deltas without the keys, or that lie in other partitions than readers would look for their rows in."""
    versions = {str(source.locator): source.version}
    if request.source.table_version_locator != source.version.locator:
        versions = {str(request.source): version_of(request.source, root=request.root), **versions}
    for where, version in versions.items():
        if version.partition_keys != table.partition_keys:
            raise InvalidInputError(
                f"{request.destination}: is partitioned by {_listed(table.partition_keys)}, but {where} by "
                f"{_listed(version.partition_keys)}; compact from a table with the same partition keys"
            )
    if request.sort_keys and source.version.merge_engine == "first_row":
        raise InvalidInputError(
            f"{request.destination}: {source.locator} keeps the first row of each key as it comes; leave out the sort keys "
            f"{_listed(request.sort_keys)}"
        )
    for what, names in (("key", request.primary_keys), ("sort key", request.sort_keys or ())):
        for name in names:
            for where, version in versions.items():
                if name not in version.schema.names:
                    raise InvalidInputError(
                        f"{request.destination}: cannot be compacted by the {what} {name!r}, which {where} does not "
                        f"have; its columns are {', '.join(version.schema.names)}"
                    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
