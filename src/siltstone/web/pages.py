"""The pages: each one reads what it shows, and hands it to a template."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from siltstone._version import __version__
from siltstone.service import cycle_details, cycle_records, list_nodes, service_status
from siltstone.text import (
    format_age,
    format_bytes,
    format_count,
    format_iso_time,
    format_number,
    format_partition,
    format_ratio,
    format_time,
)
from siltstone.web.access import SESSION_COOKIE, SESSION_SECONDS, VISIT_COOKIE
from siltstone.web.charts import format_short, format_status, history_chart, rows_chart, size_chart, timeline_rows
from siltstone.web.site import Site

STATIC = Path(__file__).parent / "static"
REASON_WORDS = {
    "request": "a request",
    "interval": "the interval",
    "backlog_bytes": "the size of the backlog",
    "backlog_age": "the age of the backlog",
}
FILTERS: dict[str, Callable[..., str]] = {
    "bytes": format_bytes,
    "number": format_number,
    "ratio": format_ratio,
    "duration": format_short,
    "about": format_age,
    "time": format_time,
    "iso": format_iso_time,
    "status": format_status,
    "reason": lambda reason: REASON_WORDS.get(reason, str(reason)),
    "of": format_count,
    "partition": format_partition,
}
NOTICES = {
    "triggered": "A cycle was asked for; it begins as soon as possible.",
    "trimming": "A cycle was asked for that trims afterwards; it begins as soon as possible.",
    "frozen": "Cycles are frozen. One that runs goes on.",
    "unfrozen": "Cycles may begin again.",
    "disabled": "Cycles are disabled until they are enabled again.",
    "enabled": "Cycles may begin again.",
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
    return not access.needs_token or access.is_session(request.cookies.get(SESSION_COOKIE, ""))


def may_read(request: Request) -> bool:
    """Return whether this browser or program may see what goes on."""
    site = site_of(request)
    return (
        not site.is_private or may_control(request) or site.access.is_bearer(request.headers.get("authorization", ""))
    )


def reader(request: Request) -> None:
    """Refuse those who may not read."""
    if not may_read(request):
        raise HTTPException(401, "This is only for those who have the token.", {"WWW-Authenticate": "Bearer"})


router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[Depends(reader)])


def show(request: Request, template: str, *, code: int = 200, **values: object) -> HTMLResponse:
    """Fill in a page; its forms are tied to this browser by a cookie."""
    site = site_of(request)
    cookie = request.cookies.get(VISIT_COOKIE, "")
    visit = cookie if len(cookie) == len(site.access.new_visit()) else site.access.new_visit()
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
def tables(request: Request, site: SiteHere) -> HTMLResponse:
    """Show all tables."""
    now_ms = service_status(site.database, site.settings).now_ms
    return show(request, "tables.html", tables=site.lake.tables(), now_ms=now_ms)


@router.get("/tables/{name}")
def table(request: Request, name: str, site: SiteHere) -> HTMLResponse:
    """Show one table: its rounds, its sizes over time, its buckets."""
    details = site.lake.table(name)
    now_ms = service_status(site.database, site.settings).now_ms
    return show(
        request,
        "table.html",
        details=details,
        table=details.overview,
        sizes=size_chart(details.rounds),
        rows=rows_chart(details.rounds),
        now_ms=now_ms,
    )


@router.get("/api")
def api(request: Request) -> HTMLResponse:
    """Show what the JSON API offers."""
    operations = [
        {"method": method.upper(), "path": path, "summary": operation["summary"], "about": operation["description"]}
        for path, methods in request.app.openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    return show(request, "api.html", operations=operations)
