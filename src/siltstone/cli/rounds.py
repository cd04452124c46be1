"""What rounds did, as their completion files tell it."""

from collections.abc import Sequence

from siltstone.catalog import main as catalog
from siltstone.cli.hints import find_table
from siltstone.cli.results_rounds import BucketLine, FileLine, RoundDetails, RoundLine
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.lake import Lake
from siltstone.log.state import Entry
from siltstone.model import PartitionLocator
from siltstone.model.rounds import Bucket, RoundCompletion
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    Destination,
    compacted_partition,
    get_round,
    list_rounds,
    locate_destination,
    read_completion,
)
from siltstone.text import format_value


def table_partitions(lake: Lake, name: str) -> list[PartitionLocator]:
    """Return the partitions of a table's deltas. Raises: NotFoundError."""
    find_table(lake, name)
    stream = catalog.delta_stream(name, root=lake.root)
    return [partition.locator for partition in storage.list_partitions(stream, root=lake.root)]


def list_table_rounds(lake: Lake, name: str) -> list[RoundLine]:
    """List the rounds of all partitions, oldest first; a damaged one with its problem. Raises: NotFoundError."""
    found = []
    for source in table_partitions(lake, name):
        destination = locate_destination(compacted_partition(source), root=lake.root)
        found += [_round_of(destination, entry) for entry in list_rounds(destination)]
    return sorted(found, key=lambda line: (line.completed_at, line.round_id))


def _round_of(destination: Destination, entry: Entry) -> RoundLine:
    try:
        return round_line(read_completion(destination, entry))
    except CorruptionError as error:
        return RoundLine(
            partition=destination.locator.partition_values,
            round_id=entry["round_id"],
            completed_at=entry["completed_at"],
            high_watermark=entry["high_watermark"],
            live_rows=entry["live_rows"],
            files=entry["files"],
            problem=str(error),
        )


def show_round(lake: Lake, name: str, round_id: int, partition: Sequence[str] | None = None) -> RoundDetails:
    """Tell all about a round, of a partition if there are several. Raises: NotFoundError, InvalidInputError."""
    return _details(name, get_round(find_round(lake, name, round_id, partition), round_id))


def find_round(lake: Lake, name: str, round_id: int, partition: Sequence[str] | None = None) -> Destination:
    """Return the one compacted partition that has a round. Raises: NotFoundError, InvalidInputError."""
    sources = table_partitions(lake, name)
    if partition:
        keys = find_table(lake, name).version.partition_keys
        sources = [source for source in sources if _is_named(source, partition, keys)]
        if not sources:
            raise NotFoundError(
                f"{name}: there is no partition {', '.join(partition)}; `siltstone rounds {name}` lists them"
            )
    destinations = [locate_destination(compacted_partition(source), root=lake.root) for source in sources]
    having = [each for each in destinations if any(int(found["round_id"]) == round_id for found in list_rounds(each))]
    if not having:
        raise NotFoundError(f"{name}: there is no round {round_id}; `siltstone rounds {name}` lists them")
    if len(having) > 1:
        values = ",".join(map(format_value, having[0].locator.partition_values))
        raise InvalidInputError(
            f"{name}: {len(having)} partitions have a round {round_id}; say which, e.g. --partition {values}"
        )
    return having[0]


def _is_named(source: PartitionLocator, partition: Sequence[str], keys: Sequence[str]) -> bool:
    """Tell whether a partition is meant by its values, or by `key=value` for some or all of its keys."""
    values = [format_value(value) for value in source.partition_values]
    given = [part.strip() for each in partition for part in each.split(",")]
    if values in (list(partition), given):
        return True
    pairs = [each.partition("=") for each in given]
    named = dict(zip(keys, values, strict=True))
    return all(equals and named.get(key.strip()) == value.strip() for key, equals, value in pairs)


def amplification(more: int, less: int) -> float | None:
    """Return how many there are of one thing for each of another; None where there is none of that."""
    return more / less if less else None


def round_line(completion: RoundCompletion) -> RoundLine:
    """Sum up a round."""
    accounting, files = completion.accounting, completion.files
    size, rows = sum(file.content_length for file in files), sum(file.record_count for file in files)
    rolled_back_to = completion.get("rolled_back_to")
    return RoundLine(
        partition=completion.destination_partition_locator.partition_values,
        round_id=completion.round_id,
        completed_at=completion.completed_at,
        high_watermark=completion.high_watermark,
        deltas=completion.delta_count,
        base_rows=accounting.base_rows,
        delta_rows=accounting.delta_rows,
        added_rows=accounting.added_rows,
        removal_rows=accounting.removal_rows,
        superseded_rows=accounting.superseded_rows,
        deleted_rows=accounting.deleted_rows,
        duplicate_rows=accounting.duplicate_rows,
        lost_rows=accounting.lost_rows,
        live_rows=completion.live_rows,
        files=len(files),
        bytes=size,
        input_bytes=completion.input_bytes,
        written_bytes=completion.written_bytes,
        written_files=completion.written_files,
        written_rows=completion.written_rows,
        carried_files=completion.carried_files,
        carried_bytes=size - completion.written_bytes,
        copied_by_reference_ratio=completion.copied_by_reference_ratio,
        write_amplification=amplification(completion.written_bytes, completion.input_bytes),
        dead_rows=rows - completion.live_rows,
        read_amplification=amplification(rows, completion.live_rows),
        bucket_actions=completion.bucket_actions,
        seconds=completion.seconds,
        rolled_back_to=None if rolled_back_to is None else int(rolled_back_to),
    )


def _details(name: str, completion: RoundCompletion) -> RoundDetails:
    rebased_from = completion.rebase_source_partition_locator
    return RoundDetails(
        table=name,
        round=round_line(completion),
        previous_round_id=completion.previous_round_id,
        read_watermark=completion.read_watermark,
        source=str(completion.source_partition_locator),
        destination=str(completion.destination_partition_locator),
        rebased_from=None if rebased_from is None else str(rebased_from),
        primary_keys=completion.primary_keys,
        sort_keys=completion.sort_keys,
        merge_engine=completion.merge_engine,
        columns=[field.name for field in completion.fields],
        buckets=[_bucket_line(bucket) for bucket in completion.buckets],
    )


def _bucket_line(bucket: Bucket) -> BucketLine:
    return BucketLine(
        bucket=bucket.name,
        live_rows=bucket.live_count,
        bytes=bucket.content_length,
        files=[
            FileLine(
                uri=file.uri,
                rows=file.record_count,
                bytes=file.content_length,
                dead_rows=file.record_count - file.live_count,
                deletion_vector=file.deletion_vector.uri if file.deletion_vector else None,
                index=file.index_uri,
            )
            for file in bucket.files
        ],
        tombstones=bucket.tombstones.record_count if bucket.tombstones else 0,
    )
