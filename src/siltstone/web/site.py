"""What the pages show: the service, the node that serves them, and tables as read once in a while."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.lake import Lake, Table
from siltstone.service import Database, ServiceSettings
from siltstone.table.report import TableDetails, TableReport
from siltstone.text import mask_secrets
from siltstone.web.access import Access

T = TypeVar("T")
FRESH_SECONDS = 4.0
# A lake that takes long to read is read less often, so that reading it is never most of what is done.
_REST = 10
_MAX_TABLES = 64
_log = logging.getLogger(__name__)


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
        self._tables = _Kept(self._list, monotonic)
        self._details: dict[str, _Kept[TableDetails]] = {}
        self._lock = threading.Lock()

    def tables(self) -> list[TableReport]:
        """Return all tables. Raises: StorageError."""
        return self._tables.get()

    def skew_ms(self) -> int | None:
        """Return how far this machine's clock is ahead of the store's, or None if it has no clock. Raises: StorageError."""
        return self._lake.skew_ms()

    def table(self, name: str) -> TableDetails:
        """Return one table in detail. Raises: NotFoundError, StorageError."""
        try:
            is_known = self._lake.has_table(name)
        except InvalidInputError:
            is_known = False
        if not is_known:
            raise NotFoundError(f"{self.root}: unknown table {name}; `siltstone table list` lists them")
        with self._lock:
            if len(self._details) >= _MAX_TABLES:
                self._details.clear()
            kept = self._details.setdefault(name, _Kept(lambda: self._read_table(name), self._monotonic))
        return kept.get()

    def _list(self) -> list[TableReport]:
        return [_in_our_words(table) for table in self._lake.report()]

    def _read_table(self, name: str) -> TableDetails:
        details = Table(self._lake, name).details()
        return replace(details, overview=_in_our_words(details.overview))


def _in_our_words(overview: TableReport) -> TableReport:
    if overview.problem is None:
        return overview
    _log.warning("table not readable", extra={"table": overview.name, "reason": overview.problem})
    return replace(overview, problem=f"cannot be read; `siltstone fsck {overview.name}` says why")


def _nobody_to_wake() -> None:
    """Do nothing."""


def _always() -> bool:
    return True


@dataclass(frozen=True)
class Site:
    """Everything a page needs; `wake` makes the node act at once, `is_alive` says whether it still runs."""

    database: Database
    lake: LakeReader
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    access: Access = field(default_factory=Access)
    node: str | None = None
    wake: Callable[[], None] = _nobody_to_wake
    is_alive: Callable[[], bool] = _always
    # Whether reading needs the token, too.
    is_private: bool = False
