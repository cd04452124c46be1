"""The application: routes, health, metrics, and what a browser is shown when something fails."""

import logging
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from siltstone._version import __version__
from siltstone.errors import InvalidInputError, NotFoundError, SiltstoneError, StorageError
from siltstone.service import service_status
from siltstone.web import actions, api, pages
from siltstone.web.access import Guard
from siltstone.web.metrics import render_metrics
from siltstone.web.site import Site

_log = logging.getLogger(__name__)
# Our words for each kind of failure: what an exception says may name what nobody outside should know.
_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFoundError, 404, "Not found; it may be older than what the history keeps."),
    (InvalidInputError, 400, "That cannot be done; check the values."),
    (StorageError, 503, "The database or the store of the lake does not answer. Try again in a moment."),
)


def create_app(site: Site, *, hosts: Collection[str] | None = None) -> ASGIApp:
    """Make the application; `hosts` are the names it answers to, or None for any."""
    app = FastAPI(
        title="Siltstone",
        summary="The compaction service: its cycles, tables and controls",
        version=__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.site = site
    for router in (pages.router, actions.login_page, actions.router, api.reading, api.steering):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    _add_operations(app, site)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(SiltstoneError, _failed)
    app.add_exception_handler(Exception, _failed)
    return Guard(app, hosts=hosts)


def _add_operations(app: FastAPI, site: Site) -> None:
    @app.get("/metrics", include_in_schema=False, dependencies=[Depends(pages.reader)])
    def metrics() -> Response:
        return Response(render_metrics(site), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/healthz", methods=["GET", "HEAD"], include_in_schema=False)
    async def healthz() -> Response:
        # On the loop, since all threads may be busy.
        return _health(site.is_alive())

    @app.api_route("/readyz", methods=["GET", "HEAD"], include_in_schema=False)
    def readyz() -> Response:
        try:
            service_status(site.database, site.settings)
        except SiltstoneError as error:
            _log.warning("not ready", extra={"reason": str(error)})
            return _health(False)
        return _health(site.is_alive())


def _health(is_well: bool) -> Response:
    return PlainTextResponse("ok\n" if is_well else "failing\n", 200 if is_well else 503)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    is_ours = error.detail != HTTPStatus(error.status_code).phrase
    message = error.detail if is_ours else f"{HTTPStatus(error.status_code).phrase}."
    return _answer(request, error.status_code, message, dict(error.headers or {}))


def _misunderstood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if not request.url.path.startswith("/api/"):
        # An address with a number that is none is the address of nothing.
        return _answer(request, 404, "No such page.")
    return _answer(request, 422, " ".join(sorted({_complaint(problem) for problem in error.errors()})))


def _complaint(problem: dict[str, Any]) -> str:
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"Unknown {name}; see /api/openapi.json."
    return f"Check {name}."


def _failed(request: Request, error: Exception) -> Response:
    for kind, code, message in _ANSWERS:
        if isinstance(error, kind):
            _log.log(
                logging.INFO if code < 500 else logging.WARNING,
                "request failed",
                extra={"path": request.url.path, "code": code, "reason": str(error)},
            )
            return _answer(request, code, message)
    _log.error("request failed", extra={"path": request.url.path, "code": 500}, exc_info=error)
    return _answer(request, 500, "Something went wrong here. The log of this node says what.")


def _answer(request: Request, code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    if request.url.path.startswith(("/api/", "/metrics")):
        return JSONResponse({"error": {"code": code, "message": message}}, code, headers)
    return pages.show(request, "error.html", code=code, title=HTTPStatus(code).phrase, message=message)
