"""What the pages show, and to whom: the service, its node, tables as read once in a while; tokens, sessions and forms."""

import hashlib
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.ingest.drop_log import IngestReport
from siltstone.lake import Lake, Table
from siltstone.publish.outcomes import Publication
from siltstone.service import Database, ServiceSettings
from siltstone.service.results import AuditEntry
from siltstone.table.report import TableDescription, TableDetails, TableReport
from siltstone.text import format_partition, mask_secrets, mask_values
from siltstone.web.row_reader import RowReader

T = TypeVar("T")
FRESH_SECONDS = 4.0
# A lake that takes long to read is read less often, so that reading it is never most of what is done.
_REST = 10
_MAX_TABLES = 64
# So many damaged partitions are named.
_NAMED = 3
MIN_TOKEN_LENGTH = 16
SESSION_COOKIE = "siltstone_session"
VISIT_COOKIE = "siltstone_visit"
SESSION_SECONDS = 12 * 3600
# So many wrong tokens of one client within so long are answered; then it has to wait.
MAX_TRIES = 10
TRIES_SECONDS = 300.0
_MAX_CLIENTS = 10_000
Role = Literal["control", "read"]
CONTROL: Role = "control"
READ: Role = "read"
_VISIT_LENGTH = 32
_log = logging.getLogger(__name__)


class TooManyTriesError(Exception):
    """A client has shown too many wrong tokens, and has to wait."""


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
    """The keys of one process; without a token, whoever reaches the address may use the controls.

    Who shows the token may use the controls; who shows the `read_token` may only look.
    """

    def __init__(
        self,
        token: str | None = None,
        read_token: str | None = None,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        for each in (token, read_token):
            if each is not None and len(each) < MIN_TOKEN_LENGTH:
                raise InvalidInputError(
                    f"the token has {len(each)} characters; use at least {MIN_TOKEN_LENGTH}, e.g. from "
                    "`python -c 'import secrets; print(secrets.token_urlsafe())'`"
                )
        if read_token is not None and (token is None or token == read_token):
            raise InvalidInputError("a token for reading needs another one for the controls; use --token-file, too")
        self._token = token
        self._read_token = read_token
        self._secret = secrets.token_bytes(32)
        self._now = now
        self._monotonic = monotonic
        # When each client has shown wrong tokens lately; those that did so last are at the end.
        self._wrong: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    @property
    def needs_token(self) -> bool:
        """Whether the controls need the token."""
        return self._token is not None

    def role_of(self, text: str, client: str) -> Role | None:
        """Return what a token allows, in a time that does not depend on it; None for a wrong one.

        A client that has shown too many wrong ones is not answered for a while. Raises: TooManyTriesError.
        """
        now = self._monotonic()
        with self._lock:
            tries = [each for each in self._wrong.get(client, ()) if now - each < TRIES_SECONDS]
            if len(tries) >= MAX_TRIES:
                raise TooManyTriesError(f"{client} has shown {MAX_TRIES} wrong tokens")
        role: Role | None = None
        for known, allowed in ((self._read_token, READ), (self._token, CONTROL)):
            digests = [hashlib.sha256(each.encode("utf-8", "replace")).digest() for each in (text, known or "")]
            if hmac.compare_digest(*digests) and known is not None:
                role = allowed
        if role is None:
            self._note_wrong(client, [*tries, now])
        return role

    def _note_wrong(self, client: str, tries: list[float]) -> None:
        with self._lock:
            self._wrong.pop(client, None)
            self._wrong[client] = tries
            if len(self._wrong) > _MAX_CLIENTS:
                self._wrong.pop(next(iter(self._wrong)))

    def bearer_role(self, header: str, client: str) -> Role | None:
        """Return what the token in an Authorization header allows. Raises: TooManyTriesError."""
        scheme, _, value = header.partition(" ")
        return self.role_of(value.strip(), client) if scheme.lower() == "bearer" and self.needs_token else None

    def new_session(self, role: Role = CONTROL) -> str:
        """Return the cookie of a browser that has shown a token."""
        claim = f"{int(self._now()) + SESSION_SECONDS}.{role}.{secrets.token_hex(8)}"
        return f"{claim}.{self._sign('session', claim)}"

    def session_role(self, cookie: str) -> Role | None:
        """Return what a session allows, or None where it is none of ours, or has run out."""
        claim, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign("session", claim).encode()):
            return None
        until, role, _ = claim.split(".")
        return (CONTROL if role == CONTROL else READ) if int(until) > self._now() else None

    def visit(self, cookie: str) -> str:
        """Return the cookie that forms are tied to: the one a browser has, or a new one."""
        return cookie if len(cookie) == _VISIT_LENGTH else secrets.token_hex(_VISIT_LENGTH // 2)

    def form_key(self, visit: str) -> str:
        """Return what a form must send along; another site can neither read nor guess it."""
        return self._sign("form", visit)

    def is_own_form(self, visit: str, key: str) -> bool:
        """Return whether a form was made here, for this browser."""
        is_signed = hmac.compare_digest(key.encode("utf-8", "replace"), self.form_key(visit).encode())
        return is_signed and len(visit) == _VISIT_LENGTH

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def is_from_elsewhere(headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that a request was made by a page of another site; programs say nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower()


class _Kept(Generic[T]):
    """A value that is read anew once it is old; who asks meanwhile waits for the one that reads."""

    def __init__(self, read: Callable[[], T], monotonic: Callable[[], float]) -> None:
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: tuple[float, T] | None = None
        self._fresh_seconds = FRESH_SECONDS

    def get(self) -> T:
        with self._lock:
            started = self._monotonic()
            if self._kept is None or started - self._kept[0] > self._fresh_seconds:
                value = self._read()
                ended = self._monotonic()
                self._kept = (ended, value)
                self._fresh_seconds = max(FRESH_SECONDS, _REST * (ended - started))
            return self._kept[1]


class LakeReader:
    """Reads tables for pages, the API and metrics; what is wrong with one is logged, and shown in our own words."""

    def __init__(self, lake: Lake, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.root = mask_secrets(lake.root)
        self._lake = lake
        self._monotonic = monotonic
        self._tables = _Kept(lambda: [_in_our_words(table) for table in lake.report()], monotonic)
        self._details: dict[str, _Kept[TableDetails]] = {}
        self._ingests: dict[str, _Kept[list[IngestReport]]] = {}
        self._descriptions: dict[str, _Kept[TableDescription]] = {}
        self._publications = _Kept(self._read_publications, monotonic)
        self._lock = threading.Lock()

    def tables(self) -> list[TableReport]:
        """Return all tables. Raises: StorageError."""
        return self._tables.get()

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return self._lake.namespaces()

    def iceberg_tables(self, namespace: str) -> list[str]:
        """Return the names of the tables of a namespace that are published as Iceberg."""
        names = [table.name for table in self._lake.tables(namespace)]
        return [name.partition(".")[2] for name in names if self._lake.iceberg_metadata(name) is not None]

    def iceberg_metadata(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Return where the newest metadata of a table are that is published as Iceberg, and what they say; else None."""
        try:
            return self._lake.iceberg_metadata(name)
        except (InvalidInputError, NotFoundError):
            return None

    def audit(self, asked: Iterable[AuditEntry], *, table: str | None = None, limit: int) -> list[AuditEntry]:
        """Return who changed what, newest first, with what was asked of the service. Raises: NotFoundError, StorageError."""
        return self._lake.audit(table, asked=asked, limit=limit, recall=True)

    def skew_ms(self) -> int | None:
        """Return how far this machine's clock is ahead of the store's, or None if it has no clock. Raises: StorageError."""
        return self._lake.skew_ms()

    def table(self, name: str) -> TableDetails:
        """Return one table in detail. Raises: NotFoundError, StorageError."""
        self._check_known(name)
        return self._keep(self._details, name, self._read_table)

    def ingests(self, name: str) -> list[IngestReport]:
        """Return the folders that files are taken from into a table, in numbers. Raises: NotFoundError, StorageError."""
        self._check_known(name)
        return self._keep(self._ingests, name, self._read_ingests)

    def describe(self, name: str) -> TableDescription:
        """Return a table's columns, rules and properties. Raises: NotFoundError, StorageError, CorruptionError."""
        self._check_known(name)
        return self._keep(self._descriptions, name, self._read_description)

    def holds_documents(self, name: str) -> bool:
        """Return whether it is a table of documents; False where it cannot be read. Raises: NotFoundError, StorageError."""
        self._check_known(name)
        try:
            return Table(self._lake, name).holds_documents
        except CorruptionError:
            return False

    def _check_known(self, name: str) -> None:
        try:
            is_known = self._lake.has_table(name)
        except InvalidInputError:
            is_known = False
        if not is_known:
            raise NotFoundError(f"{self.root}: unknown table {name}; `siltstone table list` lists them")

    def _keep(self, kept: "dict[str, _Kept[T]]", name: str, read: Callable[[str], T]) -> T:
        with self._lock:
            if len(kept) >= _MAX_TABLES:
                kept.clear()
            found = kept.setdefault(name, _Kept(lambda: read(name), self._monotonic))
        return found.get()

    def publications(self, name: str | None = None) -> list[Publication]:
        """Return how far tables are published in the formats that their properties name, all or one. Raises: StorageError."""
        return [each for each in self._publications.get() if name is None or each.table == name]

    def _read_publications(self) -> list[Publication]:
        found: list[Publication] = []
        for table in self._lake.tables():
            try:
                found += table.published() if table.publish_formats() else []
            except (CorruptionError, InvalidInputError, NotFoundError) as error:
                _log.warning("published versions not readable", extra={"table": table.name, "reason": str(error)})
        return [
            replace(each, address=mask_secrets(each.address), error=each.error and mask_secrets(each.error))
            for each in found
        ]

    def _read_ingests(self, name: str) -> list[IngestReport]:
        try:
            reports = Table(self._lake, name).ingests()
        except CorruptionError as error:
            _log.warning("ingests not readable", extra={"table": name, "reason": str(error)})
            return []
        return [
            replace(report, source=mask_secrets(report.source), error=report.error and mask_secrets(report.error))
            for report in reports
        ]

    def _read_description(self, name: str) -> TableDescription:
        about = Table(self._lake, name).describe()
        return replace(
            about, folder=about.folder and mask_secrets(about.folder), properties=mask_values(about.properties)
        )

    def _read_table(self, name: str) -> TableDetails:
        details = Table(self._lake, name).details()
        return replace(details, overview=_in_our_words(details.overview))


def _in_our_words(overview: TableReport) -> TableReport:
    if overview.problem is None:
        return overview
    _log.warning("table not readable", extra={"table": overview.name, "reason": overview.problem})
    if overview.damaged_partitions:
        named = "; ".join(map(format_partition, overview.damaged_partitions[:_NAMED]))
        more = len(overview.damaged_partitions) - _NAMED
        damaged = f"{named}{f' and {more} more' if more > 0 else ''}"
        problem = f"has partitions that cannot be read: {damaged}; `siltstone fsck {overview.name}` says why"
        return replace(overview, problem=problem)
    return replace(overview, problem=f"cannot be read; `siltstone fsck {overview.name}` says why")


@dataclass(frozen=True)
class Site:
    """Everything a page needs; `wake` makes the node act at once, `is_alive` says whether it still runs."""

    database: Database
    lake: LakeReader
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    access: Access = field(default_factory=Access)
    node: str | None = None
    wake: Callable[[], None] = lambda: None
    is_alive: Callable[[], bool] = lambda: True
    # Whether reading needs the token, too.
    is_private: bool = False
    # What reads rows; None where they are not shown to anybody.
    rows: RowReader | None = None
    is_spark_starting: Callable[[], bool] = lambda: False
