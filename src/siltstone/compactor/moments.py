"""A table as of a position or a time: what has to be read of each partition for it."""

import datetime
import re
from collections.abc import Iterator

from siltstone.catalog import main as catalog
from siltstone.compactor.completion import compacted_partition, current_completion, locate_destination
from siltstone.compactor.following import followed_partition, followed_partitions
from siltstone.compactor.job import RoundJob
from siltstone.compactor.live import Versions, job_at, position_at
from siltstone.compactor.plan import Request
from siltstone.errors import InvalidInputError
from siltstone.model import DEFAULT_STREAM, StreamLocator, TableVersion
from siltstone.model.locators import check_position
from siltstone.storage import object_store as storage
from siltstone.storage.streams import Head, stream_head

Moment = int | datetime.datetime
"""A stream position, or the time by which deltas were committed."""


def parse_moment(text: str) -> Moment:
    """Read a stream position or an ISO 8601 time, in UTC where it has no zone. Raises: InvalidInputError."""
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        return int(text)
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{text!r} is neither a position nor a time; write e.g. 120 or 2024-05-01T08:00:00Z"
        ) from error
    return time.replace(tzinfo=time.tzinfo or datetime.UTC)


def merging_at(name: str, moment: Moment | None, *, root: str) -> tuple[Iterator[RoundJob], TableVersion]:
    """Return what is to be merged of each partition of a table as of a moment, by default now, and the version.

    Now is one moment, for the version and for all partitions. Raises: InvalidInputError, CorruptionError.
    """
    if moment is not None and not isinstance(moment, datetime.datetime):
        check_position(moment, f"{name}: position")
    head = stream_head(catalog.delta_stream(name, root=root), root=root)
    return _jobs(name, head, moment, root), head.version


def _jobs(name: str, head: Head, moment: Moment | None, root: str) -> Iterator[RoundJob]:
    own = StreamLocator(**head.version.locator, stream=DEFAULT_STREAM)
    heads = {str(own): head}
    for source in [each.own for each in followed_partitions(name, root=root)]:
        destination = locate_destination(compacted_partition(source), root=root)
        followed = followed_partition(source, current_completion(destination), root=root)
        stream = followed.stream_locator
        if str(stream) not in heads:
            heads[str(stream)] = stream_head(stream, root=root)
        version, last = heads[str(stream)]
        if isinstance(moment, datetime.datetime):
            deltas = storage.list_partition_deltas(followed, last_stream_position=last, root=root)
            last = position_at(deltas, int(moment.timestamp() * 1000))
        elif moment is not None:
            last = min(moment, last)
        request = Request(
            source=followed,
            destination=destination.locator,
            primary_keys=tuple(head.version.primary_keys),
            last_stream_position=last,
            root=root,
        )
        yield job_at(request, destination, Versions(version, head.version))
