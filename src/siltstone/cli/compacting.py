"""What `siltstone compact` does: sees what is new, starts Spark only for that, and sums up what happened."""

import contextlib
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from siltstone.cli.hints import find_table
from siltstone.cli.results_rounds import Compacted
from siltstone.cli.rounds import amplification, round_line, table_partitions
from siltstone.compactor.completion import compacted_partition, current_completion, locate_destination
from siltstone.compactor.job import Settings
from siltstone.compactor.plan import Request, plan_round
from siltstone.compactor.session import SessionResult
from siltstone.errors import InvalidInputError
from siltstone.lake import Lake, Table
from siltstone.model import PartitionLocator
from siltstone.storage import object_store as storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Tell = Callable[[Mapping[str, Any]], None]
"""Told of each event: those of a session with their partition, and `spark_starting`."""

_LOCAL_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?")
_CLUSTER_MASTER = re.compile(r"(spark|k8s)://.+|yarn")


def _tell_nobody(event: Mapping[str, Any]) -> None:
    """Show nothing."""


def compact_table(
    lake: Lake,
    name: str,
    *,
    to: int | None = None,
    full: bool = False,
    master: str | None = None,
    tell: Tell = _tell_nobody,
) -> Compacted:
    """Compact what is new in each partition. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    started = time.perf_counter()
    conf = _settings_for(master)
    table = find_table(lake, name)
    sources = table_partitions(lake, name)
    requests = [compaction_request(table, source, to=to, full=full) for source in sources]
    waiting = [request for request in requests if plan_round(request, is_first=True) is not None]
    seconds = {"plan": time.perf_counter() - started}
    results: list[SessionResult] = []
    if waiting:
        tell({"event": "spark_starting"})
        spark = _start_spark(conf)
        seconds["spark_start"] = time.perf_counter() - started - seconds["plan"]
        with _interrupted_quietly():
            results = [_compact(request, spark, tell) for request in waiting]
    seconds["total"] = time.perf_counter() - started
    rounds = [round_line(completion) for result in results for completion in result.rounds]
    for step in ("tasks", "merge", "write"):
        seconds[step] = sum(line.seconds.get(step, 0.0) for line in rounds)
    input_bytes, written_bytes = sum(line.input_bytes for line in rounds), sum(line.written_bytes for line in rounds)
    return Compacted(
        table=name,
        partitions=len(sources),
        stream_position=newest_position(lake, sources),
        rounds=rounds,
        deltas=sum(line.deltas for line in rounds),
        live_rows=count_compacted_rows(lake, sources),
        input_bytes=input_bytes,
        written_bytes=written_bytes,
        write_amplification=amplification(written_bytes, input_bytes),
        conflicts=sum(result.conflicts for result in results),
        seconds=seconds,
    )


def compaction_request(table: Table, source: PartitionLocator, *, to: int | None, full: bool) -> Request:
    """Say what is to be compacted in one partition; what is compacted further than `to` stays as it is."""
    destination = compacted_partition(source)
    if to is not None:
        current = current_completion(locate_destination(destination, root=table.lake.root))
        to = max(to, current.high_watermark) if current is not None else to
    return Request(
        source=source,
        destination=destination,
        primary_keys=tuple(table.version.primary_keys),
        root=table.lake.root,
        last_stream_position=to,
        settings=Settings(full=full),
    )


def newest_position(lake: Lake, sources: list[PartitionLocator]) -> int:
    """Return the position of the newest delta, 0 where there is none."""
    partitions = [storage.get_partition(source, root=lake.root) for source in sources]
    return max((partition.stream_position for partition in partitions), default=0)


def count_compacted_rows(lake: Lake, sources: list[PartitionLocator]) -> int:
    """Return how many rows there are after the newest rounds; no data file is read for that."""
    destinations = [locate_destination(compacted_partition(source), root=lake.root) for source in sources]
    completions = [current_completion(destination) for destination in destinations]
    return sum(completion.live_rows for completion in completions if completion is not None)


def _compact(request: Request, spark: "SparkSession", tell: Tell) -> SessionResult:
    from siltstone.spark.compaction import compact_partition

    return compact_partition(
        request.source,
        request.destination,
        request.primary_keys,
        request.last_stream_position,
        compaction_artifact_path=request.root,
        settings=request.settings,
        spark=spark,
        progress=lambda event: tell({**event, "partition": request.source.partition_values}),
    )


def _settings_for(master: str | None) -> dict[str, str]:
    """Return Spark's settings for a master. Raises: InvalidInputError."""
    if master is None:
        return {}
    if _LOCAL_MASTER.fullmatch(master):
        return {"spark.master": master}
    if _CLUSTER_MASTER.fullmatch(master):
        # Executors elsewhere call back; they cannot do so at the loopback address.
        host = socket.getfqdn()
        return {"spark.master": master, "spark.driver.host": host, "spark.driver.bindAddress": "0.0.0.0"}  # noqa: S104
    raise InvalidInputError(
        f"{master!r} is no master of Spark; give e.g. local[4], spark://host:7077, k8s://https://host:6443 or yarn"
    )


def _start_spark(conf: Mapping[str, str]) -> "SparkSession":
    from siltstone.spark import session

    with _interrupted_later():
        return session.local_session(conf=conf)


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Keep a first Ctrl-C until Spark has started: in the middle of that, its Java would go on without us for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def keep(number: int, frame: object) -> None:
        if waiting:
            raise KeyboardInterrupt
        waiting.append(number)

    before = signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        # Spark sets a handler of its own, which cancels its jobs.
        if signal.getsignal(signal.SIGINT) is keep:
            signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupted_quietly() -> Iterator[None]:
    """Take Ctrl-C as everywhere else.

    Spark's own handler talks to Java while an answer of Java's is awaited on the same connection, which fails with
    pages of traces; and what ends with this process needs no cancelling. The gateway to Java logs the interrupt, too.
    """
    root = logging.getLogger()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)
        if is_main:
            signal.signal(signal.SIGINT, before)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
