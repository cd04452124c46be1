"""The pages: each one reads what it shows, draws its charts, and hands both to a template."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from siltstone import __version__, text
from siltstone.service import cycle_details, cycle_records, list_nodes, service_status
from siltstone.service.results import Attempt, CycleDetails, CycleRecord
from siltstone.table.report import TableRound
from siltstone.web.site import CONTROL, SESSION_COOKIE, SESSION_SECONDS, VISIT_COOKIE, Role, Site
from siltstone.web.table_list import choose_tables

STATIC = Path(__file__).parent / "static"
# Charts are bars in a box of this size, which pages stretch as they like.
WIDTH, HEIGHT = 1000.0, 100.0
_LEAST_HEIGHT = 1.5
_LEAST_WIDTH = 4.0
_MAX_SLOT = 40.0
STATUS_WORDS = {
    "IDLE": "waiting",
    "STARTED": "running",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "STOPPED": "stopped",
    "EXPIRED": "expired",
    "ABANDONED": "handed back",
}
REASON_WORDS = {
    "request": "a request",
    "interval": "the interval",
    "backlog_bytes": "the size of the backlog",
    "backlog_age": "the age of the backlog",
}
format_short = partial(text.format_duration, drop_zero=True)


def format_status(status: str) -> str:
    """Return the word for a status."""
    return STATUS_WORDS.get(status, status.lower())


FILTERS: dict[str, Callable[..., str]] = {
    "bytes": text.format_bytes,
    "number": text.format_number,
    "ratio": text.format_ratio,
    "duration": format_short,
    "about": text.format_age,
    "time": text.format_time,
    "iso": text.format_iso_time,
    "status": format_status,
    "reason": lambda reason: REASON_WORDS.get(reason, str(reason)),
    "of": text.format_count,
    "partition": text.format_partition,
    "checkpoint": text.format_checkpoint,
}
NOTICES = {
    "triggered": "A cycle was asked for; it begins as soon as possible.",
    "trimming": "A cycle was asked for that trims afterwards; it begins as soon as possible.",
    "frozen": "Cycles are frozen. One that runs goes on.",
    "unfrozen": "Cycles may begin again.",
    "disabled": "Cycles are disabled until they are enabled again.",
    "enabled": "Cycles may begin again.",
    "paused": "No cycle compacts this table until it is resumed.",
    "resumed": "Cycles compact this table again.",
    "logged-in": "You are logged in.",
    "logged-out": "You are logged out.",
}


def make_templates() -> Environment:
    """Return the templates; what they show is escaped, and a name that is not given is an error."""
    templates = Environment(
        loader=PackageLoader("siltstone.web"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update({name: _or_dash(form) for name, form in FILTERS.items()})
    return templates


def _or_dash(form: Callable[..., str]) -> Callable[..., str]:
    """Return a filter that shows a missing value as a dash."""
    return lambda value, *words: "—" if value is None else form(value, *words)


_templates = make_templates()


def site_of(request: Request) -> Site:
    """Return what this application is about."""
    site: Site = request.app.state.site
    return site


SiteHere = Annotated[Site, Depends(site_of)]


def may_control(request: Request) -> bool:
    """Return whether this browser may use the controls."""
    access = site_of(request).access
    return not access.needs_token or _session_role(request) == CONTROL


def may_read(request: Request) -> bool:
    """Return whether this browser or program may see what goes on. Raises: TooManyTriesError."""
    site = site_of(request)
    return not site.is_private or _session_role(request) is not None or bearer_role(request) is not None


def bearer_role(request: Request) -> Role | None:
    """Return what the token that a program sends allows. Raises: TooManyTriesError."""
    return site_of(request).access.bearer_role(request.headers.get("authorization", ""), client_of(request))


def client_of(request: Request) -> str:
    """Return the address of who asks."""
    return request.client.host if request.client else ""


def _session_role(request: Request) -> Role | None:
    return site_of(request).access.session_role(request.cookies.get(SESSION_COOKIE, ""))


def reader(request: Request) -> None:
    """Refuse those who may not read."""
    if not may_read(request):
        raise HTTPException(401, "This is only for those who have the token.", {"WWW-Authenticate": "Bearer"})


router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[Depends(reader)])


def show(request: Request, template: str, *, code: int = 200, **values: object) -> HTMLResponse:
    """Fill in a page; its forms are tied to this browser by a cookie."""
    site = site_of(request)
    cookie = request.cookies.get(VISIT_COOKIE, "")
    visit = site.access.visit(cookie)
    page = _templates.get_template(template).render(
        path=request.url.path,
        node=site.node if may_read(request) else None,
        root=site.lake.root if may_read(request) else "",
        version=__version__,
        form_key=site.access.form_key(visit),
        needs_token=site.access.needs_token,
        may_control=may_control(request),
        notice=NOTICES.get(request.query_params.get("done", "")),
        **values,
    )
    response = HTMLResponse(page, code)
    if visit != cookie:
        set_cookie(request, response, VISIT_COOKIE, visit)
    return response


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that no script and no other site gets to use."""
    is_secure = request.url.scheme == "https"
    response.set_cookie(
        name, value, max_age=SESSION_SECONDS, path="/", httponly=True, samesite="strict", secure=is_secure
    )


@router.get("/")
def overview(request: Request, site: SiteHere) -> HTMLResponse:
    """Show the current cycle, the controls, the history and the nodes."""
    records = cycle_records(site.database)
    return show(
        request,
        "overview.html",
        status=service_status(site.database, site.settings),
        records=records,
        chart=history_chart(records),
        nodes=list_nodes(site.database, site.settings),
        interval_ms=round(site.settings.interval_seconds * 1000),
    )


@router.get("/cycles/{cycle}")
def cycle(request: Request, cycle: int, site: SiteHere) -> HTMLResponse:
    """Show one cycle, its checkpoints as a timeline."""
    details = cycle_details(site.database, cycle)
    status = service_status(site.database, site.settings)
    return show(
        request,
        "cycle.html",
        cycle=details,
        rows=timeline_rows(details, status.now_ms),
        newest=status.cycle_count,
        now_ms=status.now_ms,
    )


@router.get("/tables")
def tables(request: Request, site: SiteHere, q: str = "", order: str = "", page: int = 1) -> HTMLResponse:
    """Show the tables with a text in their names, in an order, a page of them at a time."""
    status = service_status(site.database, site.settings)
    failing = {failing.table for failing in status.failing}
    chosen = choose_tables(site.lake.tables(), failing, text=q, order=order, page=page)
    paused = {pause.table for pause in status.paused}
    return show(request, "tables.html", list=chosen, failing=failing, paused=paused, now_ms=status.now_ms)


@router.get("/tables/{name}")
def table(request: Request, name: str, site: SiteHere) -> HTMLResponse:
    """Show one table: its rounds, its sizes over time, its buckets."""
    details = site.lake.table(name)
    status = service_status(site.database, site.settings)
    return show(
        request,
        "table.html",
        details=details,
        table=details.overview,
        ingests=site.lake.ingests(name),
        publications=site.lake.publications(name),
        sizes=size_chart(details.rounds),
        rows=rows_chart(details.rounds),
        failing=next((failing for failing in status.failing if failing.table == name), None),
        pause=next((pause for pause in status.paused if pause.table == name), None),
        now_ms=status.now_ms,
    )


@router.get("/api")
def api(request: Request) -> HTMLResponse:
    """Show what the JSON API offers."""
    operations = [
        {"method": method.upper(), "path": path, "about": operation["description"]}
        for path, methods in request.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    return show(request, "api.html", operations=operations)


@dataclass(frozen=True)
class Bar:
    """One bar; `kind` chooses its colour, `title` is shown by pointing at it."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str
    link: str | None = None


class Column(NamedTuple):
    """What a bar of a chart stands for."""

    value: int
    kind: str
    title: str
    link: str | None = None


@dataclass(frozen=True)
class Chart:
    """Bars with what the eye needs: the top of the scale, its middle, and the sentence that says it all."""

    bars: Sequence[Bar]
    top: str
    middle: str
    summary: str
    # False where bars begin in the middle, because there are few.
    is_full: bool = True


def history_chart(records: Sequence[CycleRecord]) -> Chart | None:
    """Draw finished cycles, newest first, as bars of their duration with the newest at the right."""
    if not records:
        return None
    failed = sum(record.status == "FAILED" for record in records)
    longest = max(records, key=lambda record: record.duration_ms)
    summary = (
        f"Durations of the last {len(records)} cycles, of which {failed} failed; the longest, cycle "
        f"{longest.cycle_count}, took {format_short(longest.duration_ms)}."
    )
    columns = [
        Column(
            record.duration_ms,
            record.outcome.lower(),
            f"Cycle {record.cycle_count}: {format_status(record.outcome)} in {format_short(record.duration_ms)}",
            f"/cycles/{record.cycle_count}",
        )
        for record in reversed(records)
    ]
    return _chart(columns, format_short, summary)


def size_chart(rounds: Sequence[TableRound]) -> Chart | None:
    """Draw the bytes of a table after each round, oldest first."""
    return _rounds_chart([(report.round_id, report.table_bytes) for report in rounds], "Size", text.format_bytes)


def rows_chart(rounds: Sequence[TableRound]) -> Chart | None:
    """Draw the rows of a table after each round, oldest first."""
    return _rounds_chart([(report.round_id, report.table_rows) for report in rounds], "Rows", text.format_number)


def timeline_rows(details: CycleDetails, now_ms: int) -> list[tuple[Sequence[Attempt], Sequence[Bar]]]:
    """Draw each partition's attempts along the time of their cycle, in order of their first one."""
    start = details.start_time_ms
    ends = [details.end_time_ms or now_ms, *(attempt.ended_at or now_ms for attempt in details.timeline)]
    length = max(ends) - start or 1
    by_partition: dict[str, list[Attempt]] = {}
    for attempt in details.timeline:
        by_partition.setdefault(attempt.partition, []).append(attempt)
    return [
        (attempts, [_stretch(attempt, start, length, now_ms) for attempt in attempts])
        for attempts in by_partition.values()
    ]


def _rounds_chart(rounds: Sequence[tuple[int, int | None]], what: str, form: Callable[[int], str]) -> Chart | None:
    columns = [Column(value, "size", f"Round {number}: {form(value)}") for number, value in rounds if value is not None]
    if not columns:
        return None
    now, most = columns[-1].value, max(column.value for column in columns) or 1
    summary = f"{what} after each of the last {len(columns)} rounds; now {form(now)}, at most {form(most)}."
    return _chart(columns, form, summary)


def _chart(columns: Sequence[Column], form: Callable[[int], str], summary: str) -> Chart:
    top = max(column.value for column in columns) or 1
    slot = min(WIDTH / len(columns), _MAX_SLOT)
    bars = []
    for number, column in enumerate(columns):
        height = max(column.value / top * HEIGHT, _LEAST_HEIGHT)
        x = WIDTH - (len(columns) - number) * slot + slot * 0.12
        place = (round(x, 2), round(HEIGHT - height, 2), round(slot * 0.76, 2), round(height, 2))
        bars.append(Bar(*place, column.kind, column.title, column.link))
    return Chart(bars, form(top), form(top // 2), summary, is_full=len(columns) * _MAX_SLOT >= WIDTH)


def _stretch(attempt: Attempt, start: int, length: int, now_ms: int) -> Bar:
    ended = attempt.ended_at or now_ms
    width = max((ended - attempt.started_at) / length * WIDTH, _LEAST_WIDTH)
    x = min((attempt.started_at - start) / length * WIDTH, WIDTH - width)
    took = format_short(ended - attempt.started_at)
    title = f"Attempt {attempt.attempt} by {attempt.worker or 'nobody'}: {format_status(attempt.status)}, {took}"
    return Bar(round(max(x, 0), 2), 0, round(width, 2), HEIGHT, attempt.status.lower(), title)
