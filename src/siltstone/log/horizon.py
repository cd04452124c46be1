"""Who may still commit: a vacuum says so in the log before it deletes, and whoever began earlier stages anew.

A file that is written gets a name by which readers know it only when it is committed. Until then a vacuum cannot tell it
from one that was left behind. So a vacuum commits a *horizon*, a batch number, to the log first: work that began before
that batch is refused from then on, when it wants to commit. After that, files of such work that nothing names can go,
however long anybody sleeps. Work that takes long says so in the log, again and again: the horizon stays below it.
"""

import contextlib
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from siltstone.errors import ConflictError, SiltstoneError
from siltstone.log.commit import Commit, CommitLog
from siltstone.log.state import EXPIRES_AT, LogState

HORIZON_KEY = "horizon"
WORK_PREFIX = "work/"
ANNOUNCE_SECONDS = 600.0
_TICK_SECONDS = 60.0
# Work that was announced longer ago, and not since, is taken for dead. If it is not, it is refused, and begins anew.
LEASE_MS = 3600 * 1000
_FORGET_MS = 24 * 3600 * 1000
_BEGAN = re.compile(r"[0-9a-f]{32}-(r?)(\d+)\.[a-z]+\Z", re.ASCII)
_VECTORS = re.compile(r"deletion_vector_[0-9a-f-]{24}([0-9a-f]{12})\.bin\Z", re.ASCII)
_log = logging.getLogger(__name__)


def new_file_name(began: int) -> str:
    """Return a name, without ending, that no other file ever had or will have; it says at which batch the work began."""
    return f"{uuid.uuid4().hex}-{began + 1}"


def new_round_name(began: int) -> str:
    """Return such a name for a file of a round."""
    return f"{uuid.uuid4().hex}-r{began + 1}"


def new_vector_name(began: int) -> str:
    """Return such a name for an object of a round's deletion vectors, with its ending: Delta Lake wants a UUID in it.

    The last 48 bits of the UUID say at which batch the round began.
    """
    return f"deletion_vector_{uuid.UUID(f'{uuid.uuid4().hex[:20]}{began + 1:012x}')}.bin"


class Began(NamedTuple):
    """When the work began that wrote a file: at which batch of the log of its round, or else of its table version."""

    batch_id: int
    is_round: bool


def began_at(path: str) -> Began:
    """Return what the name of a file says; -1 for files from before names said so."""
    vectors = _VECTORS.search(path)
    if vectors is not None:
        return Began(int(vectors.group(1), 16) - 1, True)
    match = _BEGAN.search(path)
    return Began(-1, False) if match is None else Began(int(match.group(2)) - 1, bool(match.group(1)))


def horizon_of(state: LogState) -> int:
    """Return the batch before which no work may have begun; -1 where no vacuum ever said so."""
    entry = state.get(HORIZON_KEY)
    return -1 if entry is None else int(entry["batch"])


def refuse_late(state: LogState, paths: Iterable[str], what: str) -> None:
    """Refuse files of work that began before the horizon: a vacuum may have deleted them. Raises: ConflictError."""
    horizon = horizon_of(state)
    for path in paths:
        if began_at(path).batch_id < horizon:
            raise ConflictError(
                f"{what}: a vacuum has gone over files that were written before batch {horizon} of the log and were not "
                f"committed, and {path} is one of them; write the data again"
            )


def raise_horizon(log: CommitLog, requested: int) -> int:
    """Refuse all work that began before batch `requested`, but for what is alive; return before which batch it is refused."""

    def prepare(state: LogState) -> Commit[int]:
        # A time that is further ahead than a lease is from a clock that was wrong.
        alive = [work for work in state.scan(WORK_PREFIX) if abs(log.now_ms() - int(work["renewed_at"])) <= LEASE_MS]
        current = horizon_of(state)
        # Whoever sees this commit begins at its batch, at the earliest.
        horizon = max(current, min([requested, state.batch_id + 1, *(int(work["began"]) for work in alive)]))
        return Commit({HORIZON_KEY: {"batch": horizon}} if horizon > current else {}, horizon)

    return log.commit("vacuum", prepare).result


@contextlib.contextmanager
def announced(log: CommitLog, began: int) -> Iterator[None]:
    """Keep vacuums from refusing what this thread works on, however long it takes; short work costs nothing."""
    work = _Work(log, began, time.monotonic() + ANNOUNCE_SECONDS)
    _announcer.add(work)
    try:
        yield
    finally:
        _announcer.remove(work)
        work.end()


class _Work:
    """Work under way, which is announced when it is due, and then again and again."""

    def __init__(self, log: CommitLog, began: int, due_at: float) -> None:
        self.due_at = due_at
        self._log = log
        self._began = began
        self._key = f"{WORK_PREFIX}{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._is_announced = False
        self._is_over = False

    def announce(self) -> None:
        with self._lock, contextlib.suppress(SiltstoneError):
            self.due_at = time.monotonic() + ANNOUNCE_SECONDS
            if self._is_over:
                return
            now_ms = self._log.now_ms()
            entry = {"began": self._began, "renewed_at": now_ms, EXPIRES_AT: now_ms + _FORGET_MS}
            self._log.commit("announce work", lambda _: {self._key: entry})
            self._is_announced = True

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            if not self._is_announced:
                return
            try:
                self._log.commit("end work", lambda state: {self._key: None} if self._key in state else {})
            except SiltstoneError as error:
                _log.warning(
                    "%s: the end of work was not recorded (%s); it is forgotten in a day", self._log.address(), error
                )


class _Announcer:
    """One thread for all work of this process; it ends when there is none, and begins with the next."""

    def __init__(self) -> None:
        self._start_anew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        # A forked process has neither its parent's threads nor its work, and a thread may have held the lock.
        self._changed = threading.Condition()
        self._works: set[_Work] = set()
        self._is_running = False
        self._wakes_at = 0.0

    def add(self, work: _Work) -> None:
        with self._changed:
            self._works.add(work)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="siltstone-announcer", daemon=True).start()
            elif work.due_at < self._wakes_at:
                self._changed.notify()

    def remove(self, work: _Work) -> None:
        with self._changed:
            self._works.discard(work)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._works:
                    self._is_running = False
                    return
                # Work that comes is due later than this: who adds it need not wake this thread.
                self._wakes_at = min(time.monotonic() + _TICK_SECONDS, *(work.due_at for work in self._works))
                self._changed.wait(max(self._wakes_at - time.monotonic(), 0))
                due = [work for work in self._works if work.due_at <= time.monotonic()]
            for work in due:
                work.announce()


_announcer = _Announcer()
