"""Updates of several threads, committed together: while one commit is under way, those that come wait for the next."""

import copy
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from siltstone.documents.intake import Update
from siltstone.errors import AlreadyExistsError, CommitUnknownError, CorruptionError, InvalidInputError

MAX_GROUP_UPDATES: Final = 1000
_MAX_SECONDS: Final = 0.005
# What is wrong with one caller's updates, or with the documents that they are of: no other one is to hear of it.
_OWN_ERRORS: Final = (InvalidInputError, AlreadyExistsError, CorruptionError)

Write = Callable[[Sequence[Sequence[Update]]], list[list[Update]]]
"""Commits the updates of several callers at once; returns what was written for each."""


class _Request:
    """What one caller wants to be written, and what became of it."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self.updates = updates
        self.thread = threading.get_ident()
        self.woken = threading.Event()
        self.written: list[Update] | None = None
        self.error: BaseException | None = None
        self.is_alone = True

    @property
    def is_settled(self) -> bool:
        return self.written is not None or self.error is not None

    def let_go(self) -> None:
        """Let the caller go on, also where nobody knows what became of its updates."""
        if not self.is_settled:
            self.error = CommitUnknownError(
                "the thread that committed these updates together with its own was interrupted; whether it happened is not "
                "known. Read the documents before updating again, or update again with the same change ids"
            )
        self.woken.set()

    def outcome(self) -> list[Update]:
        if self.error is not None and self.is_alone:
            raise self.error
        if self.error is not None:
            # Each caller gets an error of its own: raising one adds to it.
            raise copy.copy(self.error) from self.error
        assert self.written is not None
        return self.written


class CommitGroup:
    """The callers that update one table from this process. The first one commits for all that wait, then the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: list[_Request] = []
        self._leader: _Request | None = None
        # What the leader is committing.
        self._group: list[_Request] = []
        # How many callers there seem to be, and how long the last commit took.
        self._callers = 1
        self._seconds = 0.0

    def commit(self, updates: Sequence[Update], write: Write) -> list[Update]:
        """Commit updates, with those of others; return what was written of them, when it is durable.

        Raises: whatever committing them alone would; CommitUnknownError where that is the outcome of all.
        """
        request, leader = _Request(updates), self._leader
        if leader is not None and leader.thread == request.thread:
            # A signal handler, say, in the middle of a commit: it cannot wait for itself.
            return write([updates])[0]
        try:
            if not self._enqueue(request):
                request.woken.wait()
            if not request.is_settled:
                self._lead(write)
        except BaseException:
            self._withdraw(request)
            raise
        return request.outcome()

    def _enqueue(self, request: _Request) -> bool:
        """Let a request wait for its turn; return whether it has come at once."""
        with self._lock:
            self._waiting.append(request)
            self._leader = self._leader or request
            self._arrived.notify_all()
            return self._leader is request

    def _lead(self, write: Write) -> None:
        with self._lock:
            # Those whose updates were just committed are about to come again: for a moment, they are worth waiting for.
            self._arrived.wait_for(lambda: len(self._waiting) >= self._callers, min(self._seconds, _MAX_SECONDS))
            self._take()
        began = time.perf_counter()
        _settle(self._group, write)
        self._seconds = time.perf_counter() - began
        with self._lock:
            self._callers = len(self._group) + len(self._waiting)
            self._pass_on()

    def _withdraw(self, request: _Request) -> None:
        """Let others go on where a caller was interrupted, also if it was its turn to commit."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
            if self._leader is request:
                self._pass_on()

    def _pass_on(self) -> None:
        """Let go those whose updates the leader has committed, or tried to, and make the next one the leader."""
        for request in self._group:
            request.let_go()
        self._group = []
        self._waiting = [request for request in self._waiting if not request.is_settled]
        following = self._waiting[0] if self._waiting else None
        # Before it is the leader: whoever is interrupted in between passes on once more.
        if following is not None:
            following.woken.set()
        self._leader = following

    def _take(self) -> None:
        """Take those that have waited longest, as many as fit into one commit, but one at least."""
        total, count = 0, 0
        for request in self._waiting:
            total += len(request.updates)
            if count and total > MAX_GROUP_UPDATES:
                break
            count += 1
        self._group = self._waiting[:count]
        self._waiting = self._waiting[count:]


def _settle(group: Sequence[_Request], write: Write) -> None:
    try:
        for request, written in zip(group, write([request.updates for request in group]), strict=True):
            request.written = written
    except _OWN_ERRORS as error:
        if len(group) == 1:
            group[0].error = error
            return
        # Nothing was written. Each alone, so that only the one that is wrong fails.
        for request in group:
            _settle([request], write)
    except Exception as error:  # noqa: BLE001 - whatever it is, all of them get to know it
        for request in group:
            request.error, request.is_alone = error, len(group) == 1


class _Table(NamedTuple):
    root: str
    name: str


class CommitGroups:
    """The groups of all tables that this process updates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[_Table, CommitGroup] = {}

    def of(self, root: str, name: str) -> CommitGroup:
        """Return the group of a table."""
        with self._lock:
            return self._groups.setdefault(_Table(root, name), CommitGroup())


commit_groups = CommitGroups()


def _start_anew() -> None:
    # A forked process has none of its parent's threads, which may have held a lock or be about to commit.
    global commit_groups
    commit_groups = CommitGroups()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
