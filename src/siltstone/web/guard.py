"""What every request passes first: which hosts are meant, how much may be sent, and what browsers are told to refuse."""

from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_REQUEST_BYTES = 64 * 1024
MAX_ANSWERING = 100
_HEALTH = "/healthz"
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
SECURITY_HEADERS = {
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
}


class Guard:
    """Stands before an application. `hosts` are the names it answers to, None where any will do."""

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str] | None, headers: Mapping[str, str] = SECURITY_HEADERS
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = headers
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on with a bounded body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
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
        self._answering += 1
        try:
            await self._app(scope, _replayed(first, receive), secured)
        finally:
            self._answering -= 1


async def _read_bounded(receive: Receive) -> Message | None:
    """Read a whole request into one message; None where it is too large."""
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


def _replayed(first: Message, receive: Receive) -> Receive:
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def host_name(host: str) -> str:
    """Return a Host header without its port, in small letters."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()
