"""What `siltstone compact` does: sees what is new, starts Spark only for that, and sums up what happened."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from siltstone.cli.results import Compacted
from siltstone.cli.spark import SparkStarting, interrupted_quietly, spark_settings, start_spark
from siltstone.errors import NotFoundError
from siltstone.lake import Lake, compact_request
from siltstone.model import PartitionLocator
from siltstone.model.rounds import RoundCompletion, ratio
from siltstone.rounds.events import Event
from siltstone.rounds.plan import Request
from siltstone.rounds.request import (
    TableRequest,
    partition_requests,
    requests_with_work,
)
from siltstone.rounds.session import SessionResult
from siltstone.storage import object_store as storage
from siltstone.table.completion import compacted_partition, current_completion, locate_destination
from siltstone.table.report import RoundReport, report_round

if TYPE_CHECKING:
    pass

Tell = Callable[["Event | SparkStarting"], None]
"""Told of each event: those of a session, and that Spark starts."""


def _tell_nobody(event: "Event | SparkStarting") -> None:
    """Show nothing."""


def compact_table(
    lake: Lake, asked: TableRequest, *, master: str | None = None, tell: Tell = _tell_nobody
) -> Compacted:
    """Compact what is new in each partition. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    started = time.perf_counter()
    conf = spark_settings(master)
    requests = find_requests(lake, asked)
    waiting = requests_with_work(requests)
    seconds = {"plan": time.perf_counter() - started}
    results: list[SessionResult] = []
    if waiting:
        tell(SparkStarting())
        spark = start_spark(conf)
        seconds["spark_start"] = time.perf_counter() - started - seconds["plan"]
        with interrupted_quietly():
            results = [compact_request(request, spark, tell) for request in waiting]
    seconds["total"] = time.perf_counter() - started
    rounds = [report_round(completion) for result in results for completion in result.rounds]
    for step in ("tasks", "merge", "write"):
        seconds[step] = sum(line.seconds.get(step, 0.0) for line in rounds)
    conflicts = sum(result.conflicts for result in results)
    return _summary(lake, asked.name, newest_position(requests), rounds, conflicts, seconds)


def find_requests(lake: Lake, asked: TableRequest) -> list[Request]:
    """Say what is to be compacted in each partition. Raises: NotFoundError that also guesses which table was meant."""
    for name in (asked.name, asked.rebase_from, asked.on_behalf_of):
        if isinstance(name, str) and "/" not in name:
            lake.table(name)
    return partition_requests(asked)


def _summary(
    lake: Lake, name: str, position: int, rounds: Sequence[RoundReport], conflicts: int, seconds: Mapping[str, float]
) -> Compacted:
    sources = lake.table(name).partitions
    current = [each for each in map(partial(_current, lake), sources) if each is not None]
    rows, live_rows = (
        sum(sum(file.record_count for file in each.files) for each in current),
        sum(each.live_rows for each in current),
    )

    def total(name: str) -> int:
        return sum(getattr(line, name) for line in rounds)

    return Compacted(
        table=name,
        partitions=len(sources),
        stream_position=position,
        rounds=rounds,
        deltas=total("deltas"),
        delta_rows=total("delta_rows"),
        superseded_rows=total("superseded_rows"),
        deleted_rows=total("deleted_rows"),
        duplicate_rows=total("duplicate_rows"),
        live_rows=live_rows,
        dead_rows=rows - live_rows,
        read_amplification=ratio(rows, live_rows),
        input_bytes=total("input_bytes"),
        written_bytes=total("written_bytes"),
        carried_bytes=total("carried_bytes"),
        write_amplification=ratio(total("written_bytes"), total("input_bytes")),
        conflicts=conflicts,
        seconds=seconds,
    )


def newest_position(requests: Sequence[Request]) -> int:
    """Return the position of the newest delta of all that is compacted, 0 where there is none."""
    newest = 0
    for request in requests:
        with contextlib.suppress(NotFoundError):
            partition = storage.get_partition(request.rebase_source or request.source, root=request.root)
            newest = max(newest, partition.stream_position)
    return newest


def _current(lake: Lake, source: PartitionLocator) -> RoundCompletion | None:
    return current_completion(locate_destination(compacted_partition(source), root=lake.root))
