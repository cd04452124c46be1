"""Who may do what on the pages: tokens, same-origin checks and limits of requests."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from siltstone.errors import InvalidInputError

MIN_TOKEN_LENGTH = 16
SESSION_COOKIE = "siltstone_session"
VISIT_COOKIE = "siltstone_visit"
SESSION_SECONDS = 12 * 3600
_VISIT_LENGTH = 32


def read_token(path: str) -> str:
    """Read a token from a file, without the white space around it. Raises: InvalidInputError."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: the token cannot be read; use a text file") from error
    if not token:
        raise InvalidInputError(f"{path}: is empty; write a token into it")
    return token


class Access:
    """The keys of one process; without a token, whoever reaches the address may use the controls."""

    def __init__(self, token: str | None = None, *, now: Callable[[], float] = time.time) -> None:
        if token is not None and len(token) < MIN_TOKEN_LENGTH:
            raise InvalidInputError(
                f"the token has {len(token)} characters; use at least {MIN_TOKEN_LENGTH}, e.g. from "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'`"
            )
        self._token = token
        self._secret = secrets.token_bytes(32)
        self._now = now

    def __repr__(self) -> str:
        return f"Access(needs_token={self.needs_token})"

    @property
    def needs_token(self) -> bool:
        """Whether the controls need the token."""
        return self._token is not None

    def is_token(self, text: str) -> bool:
        """Return whether this is the token, in a time that does not depend on it."""
        if self._token is None:
            return False
        digests = [hashlib.sha256(token.encode("utf-8", "replace")).digest() for token in (text, self._token)]
        return hmac.compare_digest(*digests)

    def is_bearer(self, header: str) -> bool:
        """Return whether an Authorization header has the token."""
        scheme, _, value = header.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(value.strip())

    def new_session(self) -> str:
        """Return the cookie of a browser that has shown the token."""
        claim = f"{int(self._now()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        return f"{claim}.{self._sign('session', claim)}"

    def is_session(self, cookie: str) -> bool:
        """Return whether a cookie is a session of ours that has not run out."""
        claim, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", claim).encode()):
            return False
        return int(claim.partition(".")[0]) > self._now()

    def new_visit(self) -> str:
        """Return a cookie that forms are tied to."""
        return secrets.token_hex(_VISIT_LENGTH // 2)

    def form_key(self, visit: str) -> str:
        """Return what a form must send along; another site can neither read nor guess it."""
        return self._sign("form", visit)

    def is_own_form(self, visit: str, key: str) -> bool:
        """Return whether a form was made here, for this browser."""
        if len(visit) != _VISIT_LENGTH:
            return False
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.form_key(visit).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that a request was made by a page of another site; programs say nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


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
    """Stands before an application. `hosts` are the names it answers to, or None for any."""

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


def _replayed(first: Message, receive: Receive) -> Receive:
    waiting = [first]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def host_name(host: str) -> str:
    """Return a Host header without its port, in small letters."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()
