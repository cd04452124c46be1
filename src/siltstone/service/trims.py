"""Trims: which compacted deltas of a table's partitions are past their retention and needed by nobody, and forgetting them."""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.model import PartitionLocator, StreamLocator
from siltstone.model.properties import DELTA_RETENTION_SECONDS
from siltstone.service.results import KeepAlive
from siltstone.service.settings import to_ms
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamState
from siltstone.table.completion import current_entry
from siltstone.table.followers import Sources, TrimLimit, trim_limit

Marks = Mapping[PartitionLocator, int]
"""The watermark that each partition may be trimmed up to."""
Counts = Iterator[tuple[PartitionLocator, int | SiltstoneError]]
"""Partitions with how many deltas are forgotten, or why none is."""
_log = logging.getLogger(__name__)


def trim_table(
    marks: Marks,
    *,
    retention_seconds: float,
    root: str,
    keep_alive: KeepAlive,
    tell_uncertainty: Callable[[str | None], None],
) -> Counts:
    """Forget deltas up to a watermark that partitions of one table have read, no other needs, and past their retention.

    They are those of the table that the partitions follow, and go in one commit. How old they are goes by the time of
    their own log: no clock of a node or of the database can make them older. `tell_uncertainty` is told why that time
    is not now, or None.
    """
    by_stream: dict[StreamLocator, dict[PartitionLocator, PartitionLocator]] = {}
    sources: Sources | None = None
    for own in marks:
        keep_alive()
        try:
            sources = sources or Sources(own.stream_locator, root=root)
            source = sources.followed_by(own, current_entry(sources.destination(own)))
        except SiltstoneError as error:
            yield own, error
        else:
            by_stream.setdefault(source.stream_locator, {})[source] = own
    for stream, owns in by_stream.items():
        upto = {source: marks[own] for source, own in owns.items()}
        try:
            log = storage.locate_stream(stream, root=root)
            old = log.read(partial(_read_old, marks=upto, retention_seconds=retention_seconds))
        except SiltstoneError as error:
            yield from ((own, error) for own in owns.values())
            continue
        if old.has_candidates:
            tell_uncertainty(log.time_warning(old.now_ms))
        yield from ((owns[source], count) for source, count in _trim_stream(old, upto, root, keep_alive))


class _Old(NamedTuple):
    """The positions of deltas up to the marks that are past their retention; None of a partition that is gone."""

    positions: dict[PartitionLocator, list[int] | None]
    # Whether there are deltas up to the marks, however old.
    has_candidates: bool
    now_ms: int


def _read_old(state: StreamState, marks: Marks, retention_seconds: float) -> _Old:
    now_ms, version = state.expiry_ms(), state.version
    # What cannot be understood is an error, and so deletes nothing.
    retention = DELTA_RETENTION_SECONDS.of(version.properties, version.locator)
    before_ms = now_ms - to_ms(retention_seconds if retention is None else retention)
    positions: dict[PartitionLocator, list[int] | None] = {}
    has_candidates = False
    for source, mark in marks.items():
        partition = state.partition(source.partition_id)
        if partition is None:
            positions[source] = None
            continue
        deltas = state.deltas(source.partition_id, partition.trimmed_stream_position, mark)
        has_candidates = has_candidates or len(deltas) > 0
        # Up to where all are old enough.
        old = itertools.takewhile(lambda delta: delta.committed_at <= before_ms, deltas)
        positions[source] = [delta.stream_position for delta in old]
    return _Old(positions, has_candidates, now_ms)


def _trim_stream(old: _Old, marks: Marks, root: str, keep_alive: KeepAlive) -> Counts:
    limits: dict[PartitionLocator, TrimLimit] = {}
    for source, positions in old.positions.items():
        keep_alive()
        if positions is None:
            yield source, NotFoundError(f"{source}: there is no such partition")
        elif not positions:
            yield source, 0
        else:
            try:
                # The watermark may have been put back since, or be one of another stream.
                limits[source] = trim_limit(source, old.now_ms, root=root)
            except SiltstoneError as error:
                yield source, error
    upto: dict[PartitionLocator, int] = {}
    # Who began to follow meanwhile was not asked what it needs of the first ones: those wait for the next time.
    followers = list(limits.values())[-1].followers if limits else []
    for source, limit in limits.items():
        if limit.position < marks[source]:
            _log.info("deltas kept for a follower", extra={"partition": str(source), "after": limit.position})
        last = max((position for position in old.positions[source] or () if position <= limit.position), default=0)
        if last and limit.followers == followers:
            upto[source] = last
        else:
            yield source, 0
    if upto:
        try:
            yield from storage.trim_partitions(upto, followers=followers, root=root).items()
        except SiltstoneError as error:
            yield from ((source, error) for source in upto)
