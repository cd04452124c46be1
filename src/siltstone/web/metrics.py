"""The metrics of the service in Prometheus' format, read from the database and the lake at each scrape."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from siltstone.errors import SiltstoneError
from siltstone.service import cycle_records, list_nodes, measured_status
from siltstone.service.results import CycleRecord, NodeInfo, ServiceStatus, Totals
from siltstone.table.report import TableReport
from siltstone.web.site import Site

_log = logging.getLogger(__name__)
# The numbers of a table's report that are metrics, each as siltstone_table_….
_TABLE_GAUGES = {
    "rows": "Compacted rows of a table.",
    "bytes": "Bytes of its compacted files.",
    "files": "Its compacted files.",
    "dead_rows": "Rows in files that are no longer in the table.",
    "backlog_deltas": "Deltas that no round has read.",
    "backlog_bytes": "Bytes of deltas that no round has read.",
    "high_watermark": "The stream position up to which all partitions are compacted.",
    "stream_position": "The newest stream position.",
    "write_amplification": "Bytes written for each byte of deltas, lately.",
    "read_amplification": "Rows in files for each row of the table.",
}


class _Collected(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def render_metrics(site: Site) -> bytes:
    """Write all metrics; those of tables are left out while the lake does not answer. Raises: StorageError."""
    status, database_skew_ms = measured_status(site.database, site.settings)
    skews_ms: dict[str, int | None] = {"database": database_skew_ms}
    metrics = [
        *_of_cycles(status, cycle_records(site.database, 1)),
        *_of_nodes(list_nodes(site.database, site.settings)),
        *_of_totals(status.totals),
    ]
    try:
        metrics += _of_tables(site.lake.tables(), status.now_ms)
        skews_ms["store"] = site.lake.skew_ms()
    except SiltstoneError as error:
        _log.warning("metrics of tables left out", extra={"reason": str(error)})
    about_skews = "How far this node's clock is ahead of the store's time, or the database's; negative if behind."
    skews = {name: skew_ms / 1000 for name, skew_ms in skews_ms.items() if skew_ms is not None}
    metrics.append(_labelled("siltstone_clock_skew_seconds", about_skews, "of", skews))
    return generate_latest(_Collected(metrics))


def _of_cycles(status: ServiceStatus, newest: Sequence[CycleRecord]) -> Iterator[Metric]:
    running_ms = max(status.now_ms - (status.started_at or status.now_ms), 0) if status.is_running else 0
    about_age = "How long the current cycle has been running, else 0."
    yield _gauge("siltstone_cycle_running", "1 while a cycle runs.", status.is_running)
    yield _gauge("siltstone_cycle_age_seconds", about_age, running_ms / 1000)
    if newest:
        duration = newest[0].duration_ms / 1000
        yield _gauge("siltstone_cycle_last_duration_seconds", "How long the last finished cycle took.", duration)
    if status.last_completed_at is not None:
        since = max(status.now_ms - status.last_completed_at, 0) / 1000
        yield _gauge("siltstone_cycle_since_completed_seconds", "Time since a cycle was COMPLETED.", since)
    about_health = "0 after a FAILED cycle, until one is COMPLETED, and while one is overdue and nobody leads."
    yield _gauge("siltstone_healthy", about_health, status.is_healthy)
    yield _gauge("siltstone_disabled", "1 while cycles are disabled.", status.disabled is not None)
    yield _gauge("siltstone_frozen", "1 while cycles are frozen.", status.frozen is not None)
    yield _gauge("siltstone_requests_pending", "Cycles asked for and not begun.", len(status.pending_requests))
    counts = {name: getattr(status, name) for name in ("idle", "active", "completed", "failed")}
    yield _labelled("siltstone_checkpoints", "Partitions of the current or last cycle.", "status", counts)


def _of_totals(totals: Totals) -> Iterator[Metric]:
    cycles = CounterMetricFamily("siltstone_cycles", "Finished cycles.", labels=["status"])
    cycles.add_metric(["COMPLETED"], totals.completed_cycles)
    cycles.add_metric(["FAILED"], totals.failed_cycles)
    yield cycles
    yield CounterMetricFamily("siltstone_evictions", "Claims taken from dead or stuck workers.", totals.evictions)
    yield CounterMetricFamily("siltstone_compacted_rows", "Rows of deltas that cycles have compacted.", totals.rows)
    yield CounterMetricFamily("siltstone_compacted_bytes", "Bytes of deltas that they read.", totals.input_bytes)
    yield CounterMetricFamily("siltstone_written_bytes", "Bytes of files that they wrote.", totals.written_bytes)


def _of_nodes(nodes: Sequence[NodeInfo]) -> Iterator[Metric]:
    alive = [node for node in nodes if node.is_alive]
    yield _gauge("siltstone_nodes_alive", "Nodes seen lately.", len(alive))
    yield _gauge("siltstone_workers_alive", "Nodes seen lately that compact.", sum(node.is_worker for node in alive))
    yield _gauge("siltstone_leaders", "1 while a node leads.", sum(node.is_leader for node in alive))


def _of_tables(tables: Sequence[TableReport], now_ms: int) -> Iterator[Metric]:
    readable = {table.name: table.problem is None for table in tables}
    yield _labelled("siltstone_table_readable", "0 where a table cannot be read.", "table", readable)
    reports = [table for table in tables if table.problem is None]
    ages_ms = {table.name: now_ms - table.oldest_at for table in reports if table.oldest_at is not None}
    ages = {table.name: max(ages_ms.get(table.name, 0), 0) / 1000 for table in reports}
    about_age = "Age of the oldest delta that no round has read, else 0."
    yield _labelled("siltstone_table_backlog_age_seconds", about_age, "table", ages)
    for key, about in _TABLE_GAUGES.items():
        values = {table.name: getattr(table, key) for table in reports if getattr(table, key) is not None}
        yield _labelled(f"siltstone_table_{key}", about, "table", values)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, float(value))


def _labelled(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge
