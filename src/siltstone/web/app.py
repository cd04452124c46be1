"""The web server and its application: addresses, routes, health, what is shown when something fails, and limits of requests."""

import asyncio
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import ClassVar

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from siltstone import __version__
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError, SiltstoneError, StorageError
from siltstone.service import service_status
from siltstone.web import api, iceberg_catalog, pages, table_pages
from siltstone.web.api import render_metrics
from siltstone.web.row_reader import BusyError
from siltstone.web.site import TRIES_SECONDS, Site, TooManyTriesError

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - known, not bound
_HEALTH = "/healthz"
MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWERING = 100
MAX_WAITING = 200
# So long nobody is pushed out for having sent nothing, unless very many come at once.
SENDING_SECONDS = 2.0
# For a whole request, headers and body; and for a client to take what it is sent.
REQUEST_SECONDS = 20.0
TAKING_SECONDS = 20.0
KEEP_ALIVE_SECONDS = 15
_STOP_SECONDS = 10.0
# What every answer says, unless it says otherwise itself.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Other sites learn nothing; ours must see the origin of its own forms, which `no-referrer` would hide.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)
# Our words for each kind of failure: what an exception says may name what nobody outside should know.
_ANSWERS: tuple[tuple[type[Exception], int, str], ...] = (
    (NotFoundError, 404, "Not found; it may be older than what the history keeps."),
    (InvalidInputError, 400, "That cannot be done; check the values."),
    (StorageError, 503, "The database or the store of the lake does not answer. Try again in a moment."),
    (BusyError, 503, "Others are reading rows right now. Try again in a moment."),
    (CorruptionError, 500, "A file or a log of the table is damaged; `siltstone fsck` says which."),
)
# What a page of an error is headed with, and says where there is nothing more to say.
_TITLES = {
    400: "That cannot be done",
    401: "You are not logged in",
    403: "Not allowed",
    404: "There is nothing here",
    405: "Not possible here",
    429: "Too many tries",
    500: "Something went wrong",
    503: "Not available right now",
}
_NOTHING_HERE = {
    "/cycles/": "There is no such cycle. The newest hundred are kept.",
    "/tables/": "There is no such table. It may have been dropped or renamed.",
}


class WebServer:
    """The pages of a site at an address; with `tls`, the files of a certificate and its key, by HTTPS.

    Raises: InvalidInputError where the address needs a token, or is taken, or the certificate is none.
    """

    def __init__(
        self,
        site: Site,
        *,
        host: str,
        port: int,
        allowed_hosts: Sequence[str] = (),
        tls: tuple[str, str] | None = None,
    ) -> None:
        check_address(host, has_token=site.access.needs_token)
        if site.is_private and not site.access.needs_token:
            raise InvalidInputError("pages cannot be private without a token; use --token-file or SILTSTONE_TOKEN")
        if tls is not None:
            check_certificate(*tls)
        self._socket = bind(host, port)
        hosts = {*LOOPBACK_HOSTS, host_name(host), *map(host_name, allowed_hosts)} if is_loopback(host) else None
        shown = socket.gethostname() if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
        self.address = f"{'http' if tls is None else 'https'}://{shown}:{self._socket.getsockname()[1]}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                create_app(site, hosts=hosts),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ws="none",
                # A class of its own: the connections of a server know of each other.
                http=type("ServerConnection", (BoundedConnection,), {"waiting": {}}),
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=3,
                h11_max_incomplete_event_size=64 * 1024,
                ssl_certfile=None if tls is None else tls[0],
                ssl_keyfile=None if tls is None else tls[1],
            )
        )
        self._thread = threading.Thread(target=self._run, name="siltstone-web", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        # Connections wait in the socket's queue until the server takes them, so there is nothing to wait for.
        _log.info("web started", extra={"address": self.address})

    def stop(self) -> None:
        """Answer what has been asked, and end."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except OSError:
            _log.exception("web ended")


def check_address(host: str, *, has_token: bool) -> None:
    """Refuse to serve controls to others without a token. Raises: InvalidInputError."""
    if not is_loopback(host) and not has_token:
        raise InvalidInputError(
            f"{host}: others reach this address, and could use the controls; use --token-file or SILTSTONE_TOKEN, "
            "or stay at 127.0.0.1"
        )


def check_certificate(certificate: str, key: str) -> None:
    """Refuse what is no certificate with its key. Raises: InvalidInputError."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except FileNotFoundError as error:
        raise InvalidInputError(f"{certificate} or {key}: no such file; name a certificate and its key") from error
    except (ssl.SSLError, OSError) as error:
        raise InvalidInputError(
            f"{certificate} and {key}: are no certificate with its key ({error.strerror or error}); use two PEM files"
        ) from error


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Take an address. Raises: InvalidInputError that says why it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidInputError(f"{host}: not an address of this machine ({error.strerror}); choose --host") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise InvalidInputError(
            f"{host}:{port}: cannot listen there ({error.strerror}); choose another --port or --host"
        ) from error
    return bound


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
    routers = (
        pages.router,
        table_pages.router,
        api.login_page,
        api.router,
        api.reading,
        api.steering,
        iceberg_catalog.router,
    )
    for router in routers:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=pages.STATIC), name="static")
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(TooManyTriesError, _tried_too_often)
    app.add_exception_handler(SiltstoneError, _failed)
    app.add_exception_handler(Exception, _failed)

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

    return Guard(app, hosts=hosts)


def _health(is_well: bool) -> Response:
    return PlainTextResponse("ok\n" if is_well else "failing\n", 200 if is_well else 503)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.status_code
    if code == 405 and request.method in ("GET", "HEAD") and not request.url.path.startswith(("/api/", "/iceberg/")):
        # Only forms use this address: no page has it.
        code = 404
    is_ours = error.detail != HTTPStatus(error.status_code).phrase
    return _answer(request, code, error.detail if is_ours else _words(request, code), dict(error.headers or {}))


def _words(request: Request, code: int) -> str:
    if code == 404:
        path = request.url.path
        return next(
            (said for prefix, said in _NOTHING_HERE.items() if path.startswith(prefix)), "No page has this address."
        )
    return f"{HTTPStatus(code).phrase}."


def _misunderstood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if not request.url.path.startswith("/api/"):
        # An address with a number that is none is the address of nothing.
        return _answer(request, 404, _words(request, 404))
    complaints = set()
    for problem in error.errors():
        name = ".".join(map(str, problem["loc"]))
        is_unknown = problem["type"] == "extra_forbidden"
        complaints.add(f"Unknown {name}; see /api/openapi.json." if is_unknown else f"Check {name}.")
    return _answer(request, 422, " ".join(sorted(complaints)))


def _tried_too_often(request: Request, error: Exception) -> Response:
    _log.warning("too many wrong tokens", extra={"path": request.url.path, "reason": str(error)})
    headers = {"Retry-After": str(round(TRIES_SECONDS))}
    return _answer(request, 429, "Too many wrong tokens from your address. Wait five minutes, then try again.", headers)


def _failed(request: Request, error: Exception) -> Response:
    for kind, code, message in _ANSWERS:
        if isinstance(error, kind):
            _log.log(
                logging.INFO if code < 500 else logging.WARNING,
                "request failed",
                extra={"path": request.url.path, "code": code, "reason": str(error)},
            )
            is_page = not request.url.path.startswith(("/api/", "/iceberg/"))
            return _answer(request, code, _words(request, 404) if code == 404 and is_page else message)
    _log.error("request failed", extra={"path": request.url.path, "code": 500}, exc_info=error)
    return _answer(request, 500, "Something went wrong here. The log of this node says what.")


def _answer(request: Request, code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    if request.url.path.startswith(("/api/", "/metrics")):
        return JSONResponse({"error": {"code": code, "message": message}}, code, headers)
    if request.url.path.startswith("/iceberg/"):
        return JSONResponse(
            {"error": {"code": code, "message": message, "type": _iceberg_error(request, code)}}, code, headers
        )
    title = _TITLES.get(code, HTTPStatus(code).phrase)
    return pages.show(request, "error.html", code=code, title=title, message=message, needs_login=code == 401)


def _iceberg_error(request: Request, code: int) -> str:
    """Return what clients of Iceberg's REST protocol call an error."""
    if code == 404:
        return "NoSuchTableException" if request.path_params.get("table") else "NoSuchNamespaceException"
    return {401: "NotAuthorizedException", 405: "UnsupportedOperationException"}.get(code, "ServiceFailureException")


class Guard:
    """Stands before an application. `hosts` are the names it answers to, or None for any."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None) -> None:
        self._app = app
        self._hosts = hosts
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on with a bounded body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        if self._hosts is not None and host_name(headers.get("host", "")) not in self._hosts:
            await PlainTextResponse("This host name is not served here.\n", 421)(scope, receive, secured)
            return
        length = headers.get("content-length", "0")
        is_small = length.isdecimal() and len(length) < 10 and int(length) <= MAX_REQUEST_BYTES
        # What may follow is read before anybody trusts it; a body without a length can be of any size.
        first = await _read_bounded(receive) if is_small else None
        if first is None:
            await PlainTextResponse(f"Requests may have {MAX_REQUEST_BYTES:,} bytes.\n", 413)(scope, receive, secured)
            return
        if first["type"] != "http.request":
            # The client is gone.
            return
        if self._answering >= MAX_ANSWERING and scope["path"] != _HEALTH:
            await PlainTextResponse("Too many requests at once; try again in a moment.\n", 503)(scope, receive, secured)
            return
        waiting = [first]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        self._answering += 1
        try:
            await self._app(scope, replay, secured)
        finally:
            self._answering -= 1


async def _read_bounded(receive: Receive) -> Message | None:
    """Return a whole request as one message, or None if it is too large."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        if len(body) > MAX_REQUEST_BYTES:
            return None
        if not message.get("more_body", False):
            return {"type": "http.request", "body": body, "more_body": False}


def host_name(host: str) -> str:
    """Return a Host header without its port, in small letters."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()


class BoundedConnection(H11Protocol):
    """A connection of HTTP that ends where its client takes too long."""

    waiting: ClassVar[dict["BoundedConnection", float]]
    _deadline: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        self._stop_taking()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request, which gains no time for the rest of it."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Wait a while for the client to take what it was sent."""
        self.flow.pause_writing()
        self._stop_taking()
        self._taking = self.loop.call_later(TAKING_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on to send."""
        self._stop_taking()
        self.flow.resume_writing()

    def _follow(self) -> None:
        cycle = self.cycle
        is_answered = cycle is not None and not cycle.more_body and not cycle.response_complete
        if is_answered or self.transport.is_closing():
            self._stop_waiting()
        elif self not in self.waiting:
            self.waiting[self] = self.loop.time()
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
            self._make_room()

    def _make_room(self) -> None:
        """End the connections that wait longest, where too many do.

        Who has just come may be about to send: hundreds of others that come with it must not push it out.
        """
        while len(self.waiting) > MAX_WAITING:
            oldest, since = next(iter(self.waiting.items()))
            if self.loop.time() - since <= SENDING_SECONDS and len(self.waiting) <= 3 * MAX_WAITING:
                return
            oldest._stop_waiting()
            oldest.transport.abort()

    def _stop_waiting(self) -> None:
        self.waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
