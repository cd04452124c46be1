"""The pages: each one reads what it shows, draws its charts, and hands both to a template."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from siltstone import __version__, text
from siltstone.service import cycle_details, cycle_records, list_nodes, service_status
from siltstone.web.charts import format_short, format_status, history_chart, timeline_rows, worker_lanes
from siltstone.web.row_reader import RowReader
from siltstone.web.shown_values import format_cell, format_type
from siltstone.web.site import CONTROL, SESSION_COOKIE, SESSION_SECONDS, VISIT_COOKIE, Role, Site

STATIC = Path(__file__).parent / "static"
REASON_WORDS = {
    "request": "a request",
    "interval": "the interval",
    "backlog_bytes": "the size of the backlog",
    "backlog_age": "the age of the backlog",
}

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
    "column_type": format_type,
}

# Partitions of a cycle are shown by what became of them, those that need somebody first.
_FIRST_SHOWN = ("FAILED", "STARTED", "IDLE", "COMPLETED")
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
    # It has a form for null, too.
    templates.filters["cell"] = format_cell
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


def may_see_rows(request: Request) -> bool:
    """Return whether this browser or program may see rows: where there is a token, that or the one for reading is needed.

    Raises: TooManyTriesError.
    """
    access = site_of(request).access
    return not access.needs_token or _session_role(request) is not None or bearer_role(request) is not None


def _session_role(request: Request) -> Role | None:
    return site_of(request).access.session_role(request.cookies.get(SESSION_COOKIE, ""))


def reader(request: Request) -> None:
    """Refuse those who may not read."""
    if not may_read(request):
        raise HTTPException(401, "This is only for those who have the token.", {"WWW-Authenticate": "Bearer"})


def row_reader(request: Request) -> RowReader:
    """Return what reads rows, and refuse those who may not see any."""
    rows = site_of(request).rows
    if rows is None:
        raise HTTPException(403, "This service does not show rows: it was started with --no-preview.")
    if not may_see_rows(request):
        raise HTTPException(401, "Rows are only for those who have the token.", {"WWW-Authenticate": "Bearer"})
    return rows


RowsHere = Annotated[RowReader, Depends(row_reader)]
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
        is_logged_in=_session_role(request) is not None,
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
    status = service_status(site.database, site.settings)
    return show(
        request,
        "overview.html",
        status=status,
        checkpoints=sorted(status.checkpoints, key=lambda checkpoint: _FIRST_SHOWN.index(checkpoint.status)),
        records=records,
        chart=history_chart(records),
        nodes=list_nodes(site.database, site.settings),
        interval_ms=round(site.settings.interval_seconds * 1000),
        is_spark_starting=site.is_spark_starting(),
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
        lanes=worker_lanes(details, status.now_ms),
        newest=status.cycle_count,
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
