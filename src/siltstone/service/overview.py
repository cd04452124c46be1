"""The tables at a glance: what is in them, what waits for compaction, and what reading and writing them costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from siltstone.catalog import main as catalog
from siltstone.errors import SiltstoneError
from siltstone.lake import Lake
from siltstone.model.rounds import RoundCompletion
from siltstone.service.lake_tables import pending_partitions
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    compacted_partition,
    current_rounds,
    list_rounds,
    locate_destination,
    read_completion,
    source_partitions,
)

# Write amplification is that of the newest rounds of each partition; reading all of them would take long.
ROUNDS_LOOKED_AT = 10


@dataclass(frozen=True)
class LastRound:
    """The newest round of a table."""

    partition: str
    round_id: int
    completed_at: int
    deltas: int
    input_bytes: int
    written_bytes: int
    seconds: float


@dataclass(frozen=True)
class TableOverview:
    """A table at a glance. Where it cannot be read, `problem` says why and the rest is empty."""

    name: str
    partitions: int = 0
    # The compacted rows and their files; dead rows are still in files, but no longer in the table.
    rows: int = 0
    files: int = 0
    bytes: int = 0
    dead_rows: int = 0
    # Deltas that no round has read.
    backlog_partitions: int = 0
    backlog_deltas: int = 0
    backlog_bytes: int = 0
    oldest_at: int | None = None
    stream_position: int = 0
    # The lowest of all partitions with deltas; None before the first round.
    high_watermark: int | None = None
    # Bytes written for each byte of deltas, in the newest rounds; rows in files for each row of the table.
    write_amplification: float | None = None
    read_amplification: float | None = None
    last_round: LastRound | None = None
    problem: str | None = None


def list_overviews(lake: Lake) -> list[TableOverview]:
    """Look at all tables; one that is damaged does not hide the others. Raises: StorageError."""
    return [table_overview(lake, table.name) for table in lake.tables()]


def table_overview(lake: Lake, name: str) -> TableOverview:
    """Look at one table; what is wrong with it is part of the answer."""
    try:
        return _look_at(lake, name)
    except SiltstoneError as error:
        return TableOverview(name, problem=str(error))


def _look_at(lake: Lake, name: str) -> TableOverview:
    root = lake.root
    stream = storage.get_stream(catalog.delta_stream(name, root=root), root=root)
    current = current_rounds(name, root=root)
    pending = pending_partitions(name, root=root)
    files = [file for completion in current for file in completion.files]
    stored = sum(file.record_count for file in files)
    live = sum(file.live_count for file in files)
    recent = _recent_rounds(name, root=root)
    read = sum(each.input_bytes for each in recent)
    written = sum(each.written_bytes for each in recent)
    times = [each.oldest_at for each in pending if each.oldest_at is not None]
    return TableOverview(
        name=name,
        partitions=len(source_partitions(name, root=root)),
        rows=live,
        files=len(files),
        bytes=sum(file.content_length for file in files),
        dead_rows=stored - live,
        backlog_partitions=len(pending),
        backlog_deltas=sum(each.deltas for each in pending),
        backlog_bytes=sum(each.bytes for each in pending),
        oldest_at=min(times, default=None),
        stream_position=stream.stream_position,
        high_watermark=min((each.high_watermark for each in current), default=None),
        write_amplification=written / read if read else None,
        read_amplification=stored / live if live else None,
        last_round=_last_round(recent),
    )


def _recent_rounds(name: str, *, root: str) -> list[RoundCompletion]:
    found = []
    for source in source_partitions(name, root=root):
        destination = locate_destination(compacted_partition(source), root=root)
        found += [read_completion(destination, entry) for entry in list_rounds(destination)[-ROUNDS_LOOKED_AT:]]
    return found


def _last_round(rounds: Sequence[RoundCompletion]) -> LastRound | None:
    if not rounds:
        return None
    newest = max(rounds, key=lambda each: (each.completed_at, each.round_id))
    return LastRound(
        partition=newest.source_partition_locator.partition_id,
        round_id=newest.round_id,
        completed_at=newest.completed_at,
        deltas=newest.delta_count,
        input_bytes=newest.input_bytes,
        written_bytes=newest.written_bytes,
        seconds=newest.seconds.get("total", 0.0),
    )
