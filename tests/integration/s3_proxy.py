"""A proxy between a client and an S3 server that delays, loses and refuses what rules say, and remembers all requests."""

import contextlib
import http.client
import http.server
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

HOLD_SECONDS = 30.0
_CONNECTION_HEADERS = ("connection", "expect", "transfer-encoding", "keep-alive")
_REFUSALS = {
    "throttle": (503, "SlowDown", "Please reduce your request rate."),
    "fail": (500, "InternalError", "We encountered an internal error. Please try again."),
    "not_implemented": (501, "NotImplemented", "A header you provided implies functionality that is not implemented."),
    "invalid_argument": (400, "InvalidArgument", "The If-None-Match header is not supported."),
    "not_allowed": (405, "MethodNotAllowed", "The specified method is not allowed against this resource."),
    "expired": (400, "ExpiredToken", "The provided token has expired."),
    "conflict": (409, "ConditionalRequestConflict", "A conflicting operation is in progress on this resource."),
}

Fault = Literal[
    "throttle",
    "fail",
    "not_implemented",
    "invalid_argument",
    "not_allowed",
    "expired",
    "conflict",
    "lose",
    "hold",
    "ignore_condition",
]


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        """The path without its query."""
        return urllib.parse.urlsplit(self.path).path


class Rule:
    """A fault for the requests that match, each as often as is said; None: always.

    throttle, fail, conflict and other refusals: the server does not see the request. lose: it answers, but the connection breaks.
    hold: it answers, but the answer waits until the client asks again for the same path. ignore_condition: it does not
    see the header If-None-Match.
    """

    def __init__(self, fault: Fault, matches: Callable[[Request], bool], *, times: int | None = 1) -> None:
        self.fault = fault
        self.matches = matches
        self.times = times
        self.hits: list[Request] = []

    def applies(self, request: Request) -> bool:
        """Say whether this request is hit; the same one may be hit several times."""
        if not self.matches(request):
            return False
        same = [hit for hit in self.hits if (hit.method, hit.path) == (request.method, request.path)]
        if self.times is not None and len(same) >= self.times:
            return False
        self.hits.append(request)
        return True


class Proxy:
    """What the proxy saw and does."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.requests: list[Request] = []
        self.rules: list[Rule] = []
        self.answers: list[tuple[Callable[[Request], bool], bytes]] = []
        self.url = ""
        self._lock = threading.Lock()
        self._held: dict[str, threading.Event] = {}

    def add(self, fault: Fault, matches: Callable[[Request], bool], *, times: int | None = 1) -> Rule:
        """Add a rule."""
        self.rules.append(Rule(fault, matches, times=times))
        return self.rules[-1]

    def fault_of(self, request: Request) -> Fault | None:
        """Remember a request, let go of an answer that waits for it, and return what is to happen to it."""
        with self._lock:
            self.requests.append(request)
            if request.key in self._held:
                self._held.pop(request.key).set()
            return next((rule.fault for rule in self.rules if rule.applies(request)), None)

    def hold(self, request: Request) -> None:
        """Wait until the same path is asked for again."""
        with self._lock:
            asked_again = self._held.setdefault(request.key, threading.Event())
        asked_again.wait(HOLD_SECONDS)

    def release_all(self) -> None:
        """Let all answers go."""
        with self._lock:
            for event in self._held.values():
                event.set()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Without this, small answers wait for the client's acknowledgement of their headers.
    disable_nagle_algorithm = True
    proxy: Proxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, dict(self.headers.items()), body)
        fault = self.proxy.fault_of(request)
        if fault in _REFUSALS:
            status, code, message = _REFUSALS[fault]
            text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
            self._answer(status, {"Content-Type": "application/xml"}, text.encode())
            return
        canned = next((answer for matches, answer in self.proxy.answers if matches(request)), None)
        if canned is not None:
            self._answer(200, {"Content-Type": "application/x-amz-json-1.1"}, canned)
            return
        status, headers, answer = self._forward(request, fault == "ignore_condition")
        if fault == "hold":
            self.proxy.hold(request)
        if fault in ("lose", "hold"):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(status, headers, answer)

    def _forward(self, request: Request, without_condition: bool) -> tuple[int, dict[str, str], bytes]:
        dropped = (*_CONNECTION_HEADERS, *(("if-none-match",) if without_condition else ()))
        headers = {name: value for name, value in request.headers.items() if name.lower() not in dropped}
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.request(request.method, request.path, request.body or None, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        for name, value in headers.items():
            if name.lower() not in (*_CONNECTION_HEADERS, "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that give up are what some tests are about."""


@contextlib.contextmanager
def proxy_to(upstream: str) -> Iterator[Proxy]:
    """Serve a proxy on a free port of the loopback address."""
    proxy = Proxy(upstream)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.release_all()
        server.shutdown()
        server.server_close()
        thread.join()
