"""Who may use the controls: the token, sessions of browsers that know it, and proof that a form is our own."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from siltstone.errors import InvalidInputError

MIN_TOKEN_LENGTH = 16
SESSION_COOKIE = "siltstone_session"
VISIT_COOKIE = "siltstone_visit"
SESSION_SECONDS = 12 * 3600
_VISIT_LENGTH = 32


class Access:
    """The keys of one process; without a token, whoever reaches the address may use the controls."""

    def __init__(self, token: str | None = None, *, now: Callable[[], float] = time.time) -> None:
        if token is not None and len(token) < MIN_TOKEN_LENGTH:
            raise InvalidInputError(
                f"the token has {len(token)} characters; give at least {MIN_TOKEN_LENGTH}, e.g. from "
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

    def is_token(self, given: str) -> bool:
        """Compare a token in a time that tells nothing about it."""
        if self._token is None:
            return False
        digests = [hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (given, self._token)]
        return hmac.compare_digest(*digests)

    def is_bearer(self, header: str) -> bool:
        """Tell whether an Authorization header has the token."""
        scheme, _, value = header.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(value.strip())

    def new_session(self) -> str:
        """Return the cookie of a browser that has shown the token."""
        claim = f"{int(self._now()) + SESSION_SECONDS}.{secrets.token_hex(8)}"
        return f"{claim}.{self._sign('session', claim)}"

    def is_session(self, cookie: str) -> bool:
        """Tell whether a cookie is a session of ours that has not run out."""
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
        """Tell whether a form was made here, for this browser."""
        if len(visit) != _VISIT_LENGTH:
            return False
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.form_key(visit).encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Tell whether a browser says that a request was made by a page of another site; programs say nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
