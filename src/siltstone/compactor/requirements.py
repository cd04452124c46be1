"""What a request must fulfil, whoever made it: checked before a session plans, starts or writes anything."""

import math
from collections.abc import Sequence

from siltstone.errors import InvalidInputError
from siltstone.model import PartitionLocator
from siltstone.rounds.plan import Request
from siltstone.rows.job import Settings
from siltstone.storage import object_store as storage
from siltstone.storage.streams import check_partition_values
from siltstone.table.source_columns import version_of

_HIGHEST = (1 << 63) - 1
_COUNTS = ("target_file_bytes", "records_per_compacted_file", "bucket_rows", "max_files")
_FRACTIONS = ("max_dead_fraction", "max_delta_fraction")


def check_request(request: Request) -> None:
    """Refuse what can only be a mistake. Raises: InvalidInputError, NotFoundError."""
    _check_settings(request.settings)
    _check_count("max_round_bytes", request.max_round_bytes, 1)
    _check_destination(request)
    _check_columns(request)


def _check_settings(settings: Settings) -> None:
    for name in _COUNTS:
        _check_count(name, getattr(settings, name), 1)
    for name in _FRACTIONS:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InvalidInputError(f"{name} is {value!r}; give a number from 0 on")


def _check_count(name: str, value: object, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= _HIGHEST:
        raise InvalidInputError(f"{name} is {value!r}; give a whole number from {lowest} to {_HIGHEST}")


def _check_destination(request: Request) -> None:
    destination = request.destination
    followed = request.rebase_source or request.source
    if storage.stream_exists(destination.stream_locator, root=request.root):
        raise InvalidInputError(
            f"{destination}: holds deltas, so rows cannot be compacted into it; give a destination of its own, e.g. "
            f"{PartitionLocator(**{**destination, 'stream': 'compacted'})}"
        )
    if destination.partition_id != followed.partition_id:
        raise InvalidInputError(
            f"{destination}: has the partition values {destination.partition_values}, but {followed}, whose deltas it is "
            f"compacted from, has {followed.partition_values}; a partition goes into the one with the same values"
        )
    version = version_of(destination, root=request.root)
    check_partition_values(version, destination.partition_values)
    if set(request.primary_keys) != set(version.primary_keys) or len(set(request.primary_keys)) != len(
        request.primary_keys
    ):
        raise InvalidInputError(
            f"{destination}: cannot be compacted by the keys {_listed(request.primary_keys)}: those of its table are "
            f"{_listed(version.primary_keys)}"
        )
    if request.rebase_source is not None:
        # The deltas of the rounds to come are read from there.
        newest = storage.get_stream(followed.stream_locator, root=request.root).stream_position
        watermark = request.rebase_high_watermark
        if watermark is not None and watermark > newest:
            raise InvalidInputError(
                f"{destination}: high watermark {watermark} is after the newest delta of {followed}, {newest}, so that "
                "deltas to come would be left out; give one that is there"
            )


def _check_columns(request: Request) -> None:
    sources = [request.source, *([] if request.rebase_source is None else [request.rebase_source])]
    schemas = {str(each): version_of(each, root=request.root).schema for each in sources}
    for what, names in (("key", request.primary_keys), ("sort key", request.sort_keys or ())):
        for name in names:
            for where, schema in schemas.items():
                if name not in schema.names:
                    raise InvalidInputError(
                        f"{request.destination}: cannot be compacted by the {what} {name!r}, which {where} does not "
                        f"have; its columns are {', '.join(schema.names)}"
                    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
