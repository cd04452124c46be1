"""The JSON API and the metrics: what the pages show, the controls, and what Prometheus scrapes.

In JSON, times are milliseconds since 1970 and sizes are bytes. Every form must come from a page of ours.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Body, Depends, Form, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field

from siltstone import __version__
from siltstone.errors import SiltstoneError
from siltstone.ingest.drop_log import IngestReport
from siltstone.publish.outcomes import Publication
from siltstone.service import (
    Database,
    TableHealth,
    audit_trail,
    controls,
    cycle_details,
    cycle_records,
    list_nodes,
    measured_status,
    service_status,
    table_health,
)
from siltstone.service.controls import AUDIT_LIMIT
from siltstone.service.results import (
    AuditEntry,
    Control,
    CycleDetails,
    CycleRecord,
    NodeInfo,
    Pause,
    ServiceStatus,
    Totals,
    TriggerRequest,
)
from siltstone.service.settings import FREEZE_SECONDS, HISTORY_LIMIT
from siltstone.table.explain import Explanation
from siltstone.table.preview import Preview
from siltstone.table.report import TableDescription, TableDetails, TableReport
from siltstone.web.pages import (
    RowsHere,
    SiteHere,
    bearer_role,
    client_of,
    may_control,
    reader,
    set_cookie,
    show,
    site_of,
)
from siltstone.web.reader_lines import ReaderLines, reader_lines
from siltstone.web.row_reader import MAX_PREVIEW_ROWS, PREVIEW_ROWS
from siltstone.web.site import CONTROL, SESSION_COOKIE, VISIT_COOKIE, Site, is_from_elsewhere
from siltstone.web.table_pages import KEY_PREFIX, explorable, typed_key

# What each button does for a requester, and the notice that says so.
ACTIONS: Mapping[str, tuple[Callable[[Database, str, float], object], str]] = {
    "trigger": (lambda database, who, _: controls.trigger_cycle(database, requester=who), "triggered"),
    "trim": (lambda database, who, _: controls.trigger_cycle(database, trim=True, requester=who), "trimming"),
    "freeze": (lambda database, who, seconds: controls.freeze(database, seconds=seconds, requester=who), "frozen"),
    "unfreeze": (lambda database, who, _: controls.unfreeze(database, requester=who), "unfrozen"),
    "disable": (lambda database, who, _: controls.disable(database, requester=who), "disabled"),
    "enable": (lambda database, who, _: controls.enable(database, requester=who), "enabled"),
}
TABLE_ACTIONS: Mapping[str, tuple[Callable[[Database, str, str], object], str]] = {
    "compact": (
        lambda database, name, who: controls.trigger_cycle(database, tables=[name], requester=who),
        "triggered",
    ),
    "pause": (lambda database, name, who: controls.pause_table(database, name, requester=who), "paused"),
    "resume": (lambda database, name, who: controls.resume_table(database, name, requester=who), "resumed"),
}
# What the page offers: 30 minutes, 2 hours, 8 hours, 1 day.
_FREEZES = ("1800", "7200", "28800", "86400")


def own_form(request: Request, key: Annotated[str, Form()] = "") -> None:
    """Refuse a form that another site sent, or that was made before this process started."""
    is_own = site_of(request).access.is_own_form(request.cookies.get(VISIT_COOKIE, ""), key)
    if is_from_elsewhere(request.headers) or not is_own:
        raise HTTPException(403, "This form is not, or no longer, valid. Reload the page and try again.")


# Every form must come from a page of ours.
router = APIRouter(include_in_schema=False, dependencies=[Depends(own_form)])


@router.post("/controls/{action}")
def control(request: Request, action: str, site: SiteHere, seconds: Annotated[str, Form()] = "7200") -> Response:
    """Do what a button says."""
    if not may_control(request):
        return RedirectResponse("/login", 303)
    if action not in ACTIONS or seconds not in _FREEZES:
        raise HTTPException(404, "Unknown control.")
    do, notice = ACTIONS[action]
    do(site.database, web_requester(request), float(seconds))
    site.wake()
    return RedirectResponse(f"/?done={notice}", 303)


@router.post("/tables/{name}/{action}")
def control_table(request: Request, name: str, action: str, site: SiteHere) -> Response:
    """Do with a table what a button says."""
    if not may_control(request):
        return RedirectResponse("/login", 303)
    if action not in TABLE_ACTIONS:
        raise HTTPException(404, "Unknown control.")
    site.lake.table(name)
    do, notice = TABLE_ACTIONS[action]
    do(site.database, name, web_requester(request))
    site.wake()
    return RedirectResponse(f"/tables/{quote(name)}?done={notice}", 303)


@router.post("/login")
def login(request: Request, site: SiteHere, token: Annotated[str, Form()] = "") -> Response:
    """Let a browser in that shows a token. Raises: TooManyTriesError."""
    role = site.access.role_of(token.strip(), client_of(request))
    if role is None:
        return show(request, "login.html", code=401, is_wrong=True)
    response = RedirectResponse("/?done=logged-in", 303)
    set_cookie(request, response, SESSION_COOKIE, site.access.new_session(role))
    return response


@router.post("/logout")
def logout() -> Response:
    """Forget the session."""
    response = RedirectResponse("/?done=logged-out", 303)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response


login_page = APIRouter(include_in_schema=False)


@login_page.get("/login")
def show_login(request: Request) -> HTMLResponse:
    """Show the form that asks for the token."""
    return show(request, "login.html", is_wrong=False)


def web_requester(request: Request) -> str:
    """Return who asked, for others to see."""
    way = "api" if request.url.path.startswith("/api/") else "web"
    return f"{way} from {client_of(request)}" if request.client else way


def trusted_program(request: Request) -> None:
    """Refuse requests of other sites' pages, and, where a token is set, those without it."""
    is_json = request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
    if is_from_elsewhere(request.headers):
        raise HTTPException(403, "Another site's page may not use the controls.")
    if not is_json:
        raise HTTPException(415, "Send Content-Type: application/json, also without a body.")
    access = site_of(request).access
    role = bearer_role(request) if access.needs_token else CONTROL
    if role is None:
        raise HTTPException(401, "Send Authorization: Bearer with the token.", {"WWW-Authenticate": "Bearer"})
    if role != CONTROL:
        raise HTTPException(403, "This token is for reading; the controls need the other one.")


def known_parameters(request: Request) -> None:
    """Refuse parameters that the address does not have: a misspelt one would be ignored in silence."""
    declared = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    unknown = [name for name in request.query_params if name not in declared and not _names_a_key(request, name)]
    if unknown:
        raise RequestValidationError([{"type": "extra_forbidden", "loc": ("query", name)} for name in unknown])


def _names_a_key(request: Request, parameter: str) -> bool:
    return request.scope["route"].endpoint is keys and parameter.startswith(KEY_PREFIX)


class Nothing(BaseModel):
    """What needs no details: an empty object, or no body at all."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class AnsweringNode:
    """The node whose web server answers."""

    node: str | None
    shows_rows: bool
    is_spark_starting: bool


class TriggerDetails(Nothing):
    """How a cycle is asked for."""

    trim: bool = False


class FreezeDetails(Nothing):
    """How long cycles are frozen."""

    seconds: Annotated[float, Field(gt=0, lt=1e9)] = FREEZE_SECONDS


reading = APIRouter(prefix="/api", tags=["reading"], dependencies=[Depends(reader), Depends(known_parameters)])
steering = APIRouter(
    prefix="/api", tags=["controls"], dependencies=[Depends(trusted_program), Depends(known_parameters)]
)


@reading.get("/status", summary="The service now")
def status(site: SiteHere) -> ServiceStatus:
    """The current or last cycle with its checkpoints, who leads, what is asked for, and what comes next."""
    return service_status(site.database, site.settings)


@reading.get("/cycles", summary="The history")
def cycles(
    site: SiteHere,
    limit: Annotated[int, Query(ge=1, le=HISTORY_LIMIT)] = HISTORY_LIMIT,
    status: Literal["COMPLETED", "FAILED"] | None = None,
) -> list[CycleRecord]:
    """Finished cycles, newest first; the newest hundred are kept."""
    return cycle_records(site.database, limit, status=status)


@reading.get("/cycles/{cycle}", summary="One cycle")
def cycle(site: SiteHere, cycle: Annotated[int, Path(ge=0)]) -> CycleDetails:
    """A finished or running cycle with every attempt at its partitions."""
    return cycle_details(site.database, cycle)


@reading.get("/tables", summary="The tables")
def tables(site: SiteHere) -> list[TableReport]:
    """All tables: rows, files, dead rows, backlog, watermark, amplification, last round. A few seconds old."""
    return site.lake.tables()


@reading.get("/tables/{name}", summary="One table")
def table(site: SiteHere, name: str) -> TableDetails:
    """A table with its newest rounds, oldest first, and its buckets."""
    return site.lake.table(name)


@reading.get("/tables/{name}/health", summary="How a table is")
def health(site: SiteHere, name: str) -> TableHealth:
    """What fails and how it is cured, how far the table lags behind, its backlog as of each cycle, amplification, ingests and publishes."""
    overview = site.lake.table(name).overview
    return table_health(site.database, overview, site.lake.ingests(name), site.lake.publications(name))


@reading.get("/tables/{name}/ingests", summary="Folders that files are taken from")
def ingests(site: SiteHere, name: str) -> list[IngestReport]:
    """The folders whose files are taken into a table: files, rows and rejects so far, what waits, the last error."""
    return site.lake.ingests(name)


@reading.get("/tables/{name}/published", summary="Formats that a table is published in")
def published(site: SiteHere, name: str) -> list[Publication]:
    """The formats that the table's property `publish` names: version, rounds that came since, and why the last publish failed."""
    site.lake.table(name)
    return site.lake.publications(name)


@reading.get("/tables/{name}/schema", summary="What a table is")
def schema(site: SiteHere, name: str) -> TableDescription:
    """The columns, keys, rules and properties of a table, and what there is of its deltas."""
    return site.lake.describe(name)


@reading.get("/tables/{name}/readers", summary="How to read a table elsewhere")
def readers(site: SiteHere, name: str) -> list[ReaderLines]:
    """The lines that read a table in Spark, DuckDB, Polars and on the command line."""
    is_documents = site.lake.holds_documents(name)
    return reader_lines(site.lake.root, name, site.lake.publications(name), holds_documents=is_documents)


@reading.get("/tables/{name}/rows", summary="The first rows of a table")
def rows(
    site: SiteHere, rows: RowsHere, name: str, limit: Annotated[int, Query(ge=1, le=MAX_PREVIEW_ROWS)] = PREVIEW_ROWS
) -> Preview:
    """Some compacted rows of a table, or the keys of documents; deltas that wait are not read. Where a token is set, this needs it."""
    site.lake.table(name)
    return rows.preview(name, limit)


@reading.get("/tables/{name}/keys", summary="Why a key has the row it has")
def keys(
    request: Request, site: SiteHere, rows: RowsHere, name: str, null: Annotated[list[str] | None, Query()] = None
) -> list[Explanation]:
    """What `siltstone explain-key` shows, for the key in parameters such as `key.order_id=7`; `null` names columns that are null. Where a token is set, this needs it."""
    described = site.lake.describe(name)
    if not explorable(described.primary_keys, described.drop_duplicates):
        raise HTTPException(400, "The table keeps all rows of a key, or has no primary key: no row wins over another.")
    answer = rows.explain(name, typed_key(request.query_params, null or []))
    if answer.problems:
        raise HTTPException(422, " ".join(f"{column} {problem}." for column, problem in answer.problems.items()))
    return list(answer.explanations)


@reading.get("/tables/{name}/documents", summary="What happened to a document")
def document(
    site: SiteHere, rows: RowsHere, name: str, key: Annotated[str, Query(min_length=1)]
) -> list[dict[str, object]]:
    """What `siltstone documents timeline` shows: each delta and compaction of a document. Where a token is set, this needs it."""
    if not site.lake.holds_documents(name):
        raise HTTPException(404, "This table holds rows, not documents.")
    return [
        {**event._asdict(), "differences": event.differences and [each._asdict() for each in event.differences]}
        for event in rows.timeline(name, key)
    ]


@reading.get("/node", summary="The node that answers")
def node(site: SiteHere) -> AnsweringNode:
    """The name of the node that answers, whether it shows rows, and whether Spark is starting there."""
    return AnsweringNode(site.node, site.rows is not None, site.is_spark_starting())


@reading.get("/nodes", summary="The nodes")
def nodes(site: SiteHere) -> list[NodeInfo]:
    """The nodes of the last day."""
    return list_nodes(site.database, site.settings)


@reading.get("/audit", summary="Who changed what")
def audit(
    site: SiteHere, limit: Annotated[int, Query(ge=1, le=AUDIT_LIMIT)] = HISTORY_LIMIT, table: str | None = None
) -> list[AuditEntry]:
    """Who dropped, altered, rolled back, erased or vacuumed tables, and what was asked of the service, newest first."""
    return site.lake.audit(audit_trail(site.database, AUDIT_LIMIT), table=table, limit=limit)


@reading.get("/requests/{request_id}", summary="A trigger request")
def request_state(site: SiteHere, request_id: str) -> TriggerRequest:
    """What became of a request for a cycle: PENDING, RUNNING, TRIMMING or DONE, then with its outcome."""
    return controls.get_request(site.database, request_id)


@steering.post("/trigger", summary="Ask for a cycle", status_code=202)
def trigger(
    request: Request, site: SiteHere, details: Annotated[TriggerDetails | None, Body()] = None
) -> TriggerRequest:
    """Ask for a cycle as soon as possible; with `trim`, for one that trims afterwards. While one runs, for the next."""
    trim = (details or TriggerDetails()).trim
    queued = controls.trigger_cycle(site.database, trim=trim, requester=web_requester(request))
    site.wake()
    return queued


@steering.post("/freeze", summary="Freeze")
def freeze(request: Request, site: SiteHere, details: Annotated[FreezeDetails | None, Body()] = None) -> Control:
    """Start no cycle for a while, two hours unless `seconds` says otherwise; one that runs goes on."""
    seconds = (details or FreezeDetails()).seconds
    return controls.freeze(site.database, seconds=seconds, requester=web_requester(request))


@steering.post("/unfreeze", summary="Unfreeze")
def unfreeze(request: Request, site: SiteHere, details: Annotated[Nothing | None, Body()] = None) -> bool:
    """Allow cycles again; return whether they were frozen."""
    was_frozen = controls.unfreeze(site.database, requester=web_requester(request))
    site.wake()
    return was_frozen


@steering.post("/disable", summary="Disable")
def disable(request: Request, site: SiteHere, details: Annotated[Nothing | None, Body()] = None) -> Control:
    """Start no cycle until enabled again; one that runs is stopped: it is FAILED, with the reason `disabled`."""
    disablement = controls.disable(site.database, requester=web_requester(request))
    site.wake()
    return disablement


@steering.post("/enable", summary="Enable")
def enable(request: Request, site: SiteHere, details: Annotated[Nothing | None, Body()] = None) -> bool:
    """Undo a disablement; return whether there was one."""
    was_disabled = controls.enable(site.database, requester=web_requester(request))
    site.wake()
    return was_disabled


@steering.post("/tables/{name}/compact", summary="Compact a table now", status_code=202)
def compact_table(
    request: Request, site: SiteHere, name: str, details: Annotated[Nothing | None, Body()] = None
) -> TriggerRequest:
    """Ask for a cycle of this table alone as soon as possible, also where it waits after a failure."""
    site.lake.table(name)
    queued = controls.trigger_cycle(site.database, tables=[name], requester=web_requester(request))
    site.wake()
    return queued


@steering.post("/tables/{name}/pause", summary="Pause a table")
def pause_table(
    request: Request, site: SiteHere, name: str, details: Annotated[Nothing | None, Body()] = None
) -> Pause:
    """Leave a table out of cycles until it is resumed; what is being compacted goes on."""
    site.lake.table(name)
    return controls.pause_table(site.database, name, requester=web_requester(request))


@steering.post("/tables/{name}/resume", summary="Resume a table")
def resume_table(
    request: Request, site: SiteHere, name: str, details: Annotated[Nothing | None, Body()] = None
) -> bool:
    """Let cycles compact a table again; return whether it was paused."""
    was_paused = controls.resume_table(site.database, name, requester=web_requester(request))
    site.wake()
    return was_paused


_log = logging.getLogger(__name__)
# The numbers of a table's report that are metrics, each as siltstone_table_….
_TABLE_GAUGES = {
    "rows": ("rows", "Compacted rows of a table."),
    "bytes": ("bytes", "Bytes of its compacted files."),
    "files": ("files", "Its compacted files."),
    "dead_rows": ("dead_rows", "Rows in files that are no longer in the table."),
    "backlog_deltas": ("backlog_deltas", "Deltas that no round has read."),
    "backlog_bytes": ("backlog_bytes", "Bytes of deltas that no round has read."),
    "high_watermark": ("high_watermark", "The stream position up to which all partitions are compacted."),
    "stream_position": ("stream_position", "The newest stream position."),
    "write_amplification_ratio": ("write_amplification", "Bytes written for each byte of deltas, lately."),
    "read_amplification_ratio": ("read_amplification", "Rows in files for each row of the table."),
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
        metrics += _of_tables(site.lake.tables())
        metrics += _of_publications(site.lake.publications())
        skews_ms["store"] = site.lake.skew_ms()
    except SiltstoneError as error:
        _log.warning("metrics of tables left out", extra={"reason": str(error)})
    about_skews = "How far this node's clock is ahead of the store's time, or the database's; negative if behind."
    skews = {name: skew_ms / 1000 for name, skew_ms in skews_ms.items() if skew_ms is not None}
    metrics.append(_labelled("siltstone_clock_skew_seconds", about_skews, "reference", skews))
    metrics.append(InfoMetricFamily("siltstone_build", "The version of Siltstone.", {"version": __version__}))
    return generate_latest(_Collected(metrics))


def _of_cycles(status: ServiceStatus, newest: Sequence[CycleRecord]) -> Iterator[Metric]:
    yield _gauge("siltstone_cycle_running", "1 while a cycle runs.", status.is_running)
    if status.started_at is not None:
        about_start = "When the current or last cycle began, in seconds since 1970."
        yield _gauge("siltstone_cycle_last_start_timestamp_seconds", about_start, status.started_at / 1000)
    if newest:
        duration = newest[0].duration_ms / 1000
        yield _gauge("siltstone_cycle_last_duration_seconds", "How long the last finished cycle took.", duration)
    if status.last_completed_at is not None:
        about_end = "When a cycle was last COMPLETED, in seconds since 1970."
        yield _gauge("siltstone_cycle_last_completion_timestamp_seconds", about_end, status.last_completed_at / 1000)
    about_health = "0 while a table fails, after a cycle nobody worked on, and while one is overdue and nobody leads."
    yield _gauge("siltstone_healthy", about_health, status.is_healthy)
    yield _gauge("siltstone_disabled", "1 while cycles are disabled.", status.disabled is not None)
    yield _gauge("siltstone_frozen", "1 while cycles are frozen.", status.frozen is not None)
    yield _gauge("siltstone_requests_pending", "Cycles asked for and not begun.", len(status.pending_requests))
    counts = {name: getattr(status, name) for name in ("idle", "active", "completed", "failed")}
    yield _labelled("siltstone_checkpoints", "Partitions of the current or last cycle.", "status", counts)
    yield _gauge(
        "siltstone_leaders", "1 while a node holds the lease.", bool(status.leader and status.leader.is_current)
    )
    yield _gauge("siltstone_tables_failing", "Tables whose last checkpoint failed.", len(status.failing))
    yield _gauge("siltstone_tables_paused", "Tables that are paused.", len(status.paused))
    failures = {table.table: table.partitions[0].failures for table in status.failing}
    about_failures = "Cycles in a row in which a table failed; only of those that fail."
    yield _labelled("siltstone_table_consecutive_failures", about_failures, "table", failures)


def _of_totals(totals: Totals) -> Iterator[Metric]:
    cycles = CounterMetricFamily("siltstone_cycles", "Finished cycles.", labels=["status"])
    cycles.add_metric(["completed"], totals.completed_cycles)
    cycles.add_metric(["failed"], totals.failed_cycles)
    cycles.add_metric(["stopped"], totals.stopped_cycles)
    yield cycles
    yield CounterMetricFamily("siltstone_evictions", "Claims taken from dead or stuck workers.", totals.evictions)
    yield CounterMetricFamily("siltstone_compacted_rows", "Rows of deltas that cycles have compacted.", totals.rows)
    yield CounterMetricFamily("siltstone_compacted_bytes", "Bytes of deltas that they read.", totals.input_bytes)
    yield CounterMetricFamily("siltstone_written_bytes", "Bytes of files that they wrote.", totals.written_bytes)


def _of_nodes(nodes: Sequence[NodeInfo]) -> Iterator[Metric]:
    alive = [node for node in nodes if node.is_alive]
    yield _gauge("siltstone_nodes_alive", "Nodes seen lately.", len(alive))
    yield _gauge("siltstone_workers_alive", "Nodes seen lately that compact.", sum(node.is_worker for node in alive))


def _of_tables(tables: Sequence[TableReport]) -> Iterator[Metric]:
    yield _gauge("siltstone_tables", "Tables of the lake.", len(tables))
    readable = {table.name: table.problem is None for table in tables}
    yield _labelled(
        "siltstone_table_readable", "0 where a table, or a partition of it, cannot be read.", "table", readable
    )
    reports = [table for table in tables if table.is_known]
    oldest = {table.name: table.oldest_at / 1000 for table in reports if table.oldest_at is not None}
    about_oldest = "When the oldest delta came that no round has read, in seconds since 1970; only where one waits."
    yield _labelled("siltstone_table_backlog_oldest_timestamp_seconds", about_oldest, "table", oldest)
    for name, (key, about) in _TABLE_GAUGES.items():
        values = {table.name: getattr(table, key) for table in reports if getattr(table, key) is not None}
        yield _labelled(f"siltstone_table_{name}", about, "table", values)


def _of_publications(publications: Sequence[Publication]) -> Iterator[Metric]:
    """Yield how far each table is published, in each of the formats that its property names."""
    waiting = [each.oldest_unpublished_at for each in publications]
    oldest = [None if each is None else each / 1000 for each in waiting]
    about_oldest = (
        "When the oldest round was committed that is not published, in seconds since 1970; only where one is not."
    )
    gauges: dict[str, tuple[str, Sequence[float | None]]] = {
        "lag_rounds": ("Rounds that came since the published version.", [each.behind_rounds for each in publications]),
        "oldest_pending_timestamp_seconds": (about_oldest, oldest),
        "failed": ("1 where the last publish failed.", [each.error is not None for each in publications]),
    }
    for name, (about, values) in gauges.items():
        gauge = GaugeMetricFamily(f"siltstone_table_publish_{name}", about, labels=["table", "format"])
        for each, value in zip(publications, values, strict=True):
            if value is not None:
                gauge.add_metric([each.table, each.format], float(value))
        yield gauge


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, float(value))


def _labelled(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    gauge = GaugeMetricFamily(name, help, labels=[label])
    for key, value in values.items():
        gauge.add_metric([key], value)
    return gauge
