"""The commit log of a table or catalog: keyed entries, changed by atomic commits, kept small by checkpoints.

A batch `N` is one commit: it is created if absent, under that one name, so exactly one writer gets it. Entries have
a key; a later entry replaces an earlier one, a removal mark drops it. `N.compact` holds everything live after
batch N. It is written beside the batch, after the commit, by whoever finds it due, and any reader may rely on
the newest one: so neither the interval nor a failed checkpoint can ever break a reader or a writer.

Every process keeps the state of the logs it uses and reads only batches that came since. How files prove that they are
whole, and follow each other, is in `wire`.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

from siltstone import clock
from siltstone.clock import describe_skew, is_skewed
from siltstone.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    SiltstoneError,
    StorageError,
)
from siltstone.log import wire
from siltstone.log.actions import Action, audit_entry, audit_key
from siltstone.log.state import ANCHOR_INTERVAL, Entry, LogReader, LogState, anchor_of, encode_entry

T = TypeVar("T")
R = TypeVar("R")
Changes = Mapping[str, Entry | None]

# So far may this machine's clock be ahead of what is known to be right, and still be believed.
MAX_STEP_MS = 24 * 3600 * 1000
CONFIRM_TIME = "confirm time"
CONFIRMED_KEY = "confirmed"
FORGOTTEN_KEY = "forgotten"
_ATTEMPTS = 200
_PUT_ATTEMPTS = 5
_LOGS_LIMIT = 1024
_logs: dict[tuple[str, str], "CommitLog"] = {}
_logs_lock = threading.Lock()


class Commit(NamedTuple, Generic[R]):
    """What is to be committed, and what the caller of `CommitLog.commit` gets to know of it."""

    changes: Changes
    result: R


class Committed(NamedTuple, Generic[R]):
    """A commit that happened; without a `batch_id` where nothing had to change."""

    result: R
    batch_id: int | None
    time_ms: int


class _NewBatch(NamedTuple):
    """A commit to be tried: under which number, and the anchor that shows whether that was free."""

    batch_id: int
    write_id: str
    anchor: str | None
    data: bytes
    content: wire.ChainedFile


class CommitLog(LogReader):
    """One commit log, safe to share between threads. Its time is its store's, and only commits write its batches."""

    def __init__(self, root: str, folder: str) -> None:
        super().__init__(root, folder)
        self._lock = threading.RLock()

    def now_ms(self) -> int:
        """Return the time of the log's store."""
        return self.objects.now_ms()

    def read(self, query: Callable[[LogState], T]) -> T:
        """Call `query` on the newest state, which stands still meanwhile. Raises: CorruptionError, StorageError."""
        with self._lock:
            self._refresh()
            return query(self._state)

    def recall(self, query: Callable[[LogState], T]) -> T:
        """Call `query` on the state that this process knows already, however old; where it knows none, as `read` does."""
        with self._lock:
            if not self._is_loaded:
                self._refresh()
            return query(self._state)

    @overload
    def commit(
        self, operation: str, prepare: Callable[[LogState], Changes], *, action: Action | None = None
    ) -> Committed[None]: ...

    @overload
    def commit(
        self, operation: str, prepare: Callable[[LogState], Commit[R]], *, action: Action | None = None
    ) -> Committed[R]: ...

    def commit(
        self,
        operation: str,
        prepare: Callable[[LogState], Commit[R]] | Callable[[LogState], Changes],
        *,
        action: Action | None = None,
    ) -> Committed[Any]:
        """Commit what `prepare` makes of the newest state, and return its result; without changes, commit nothing.

        The state known already is good enough to begin with: where another writer was faster, the batch is taken,
        and `prepare` is called again on the state that writer left. What it raises on the newest state escapes, and
        nothing is written. An `action` is noted in the same batch, for the audit trail.
        Raises: ConflictError, CommitUnknownError, CorruptionError, StorageError.
        """
        with self._lock:
            is_newest = False
            for attempt in range(_ATTEMPTS):
                if attempt or not self._is_loaded:
                    self._refresh()
                    is_newest = True
                try:
                    prepared = prepare(self._state)
                except SiltstoneError:
                    if is_newest:
                        raise
                    continue
                changes, result = prepared if isinstance(prepared, Commit) else (prepared, None)
                if not changes:
                    if is_newest:
                        return Committed(result, None, self._state.time_ms)
                    continue
                batch = self._next_batch(operation, changes, action)
                if self._create(batch) and self._counts(batch):
                    if self._state.batch_id < batch.batch_id:
                        self._state.follow(batch.content, self.address(str(batch.batch_id)))
                    self._write_checkpoint_if_due()
                    return Committed(result, batch.batch_id, batch.content.head["time"])
                if attempt:
                    clock.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.25)))
        raise ConflictError(f"{self.address()}: {_ATTEMPTS} other commits came first; try again when it is less busy")

    def _next_batch(self, operation: str, changes: Changes, action: Action | None) -> _NewBatch:
        state, now_ms = self._state, self.now_ms()
        batch_id, write_id = state.batch_id + 1, os.urandom(16).hex()
        commit_time = max(now_ms, state.time_ms)
        is_sure = operation == CONFIRM_TIME or self._is_sure(now_ms, state.sure_ms)
        sure_time = max(now_ms, state.sure_ms) if is_sure else state.sure_ms
        head = {
            "write_id": write_id,
            "time": commit_time,
            "operation": operation,
            **({} if sure_time == commit_time else {"sure_time": sure_time}),
            "anchor": write_id if batch_id == anchor_of(batch_id) else state.anchor,
            "previous": state.digest,
            **({"log": self.folder} if batch_id == 0 else {}),
        }
        lines = [encode_entry(key, entry) for key, entry in changes.items()]
        if action is not None:
            lines.append(encode_entry(audit_key(write_id), audit_entry(action, commit_time)))
        return _NewBatch(batch_id, write_id, state.anchor, *wire.encode_batch(head, lines, self.version))

    def expiry_ms(self, *, is_confirmed: bool = False) -> int:
        """Return the time by which things may expire: now, if that is sure, else the last time that was.

        This machine's clock is believed for a day after the last time that was sure: beyond, it may have been set wrong
        while nobody wrote, until somebody confirms it. A store with a clock of its own is believed while this machine's
        clock agrees with it. Where it does not, one of them is wrong, and so may be the times that were stored since: this
        is 0, so that nothing expires, unless the store's time `is_confirmed`.
        """
        return self.read(lambda state: self.expiry_in(state, is_confirmed=is_confirmed))

    def expiry_in(self, state: LogState, *, is_confirmed: bool = False) -> int:
        """Return the time by which things may expire in a state; see `expiry_ms`."""
        now_ms = self.now_ms()
        if self._is_sure(now_ms, state.sure_ms):
            return max(now_ms, state.sure_ms)
        return 0 if is_skewed(self.objects.skew_ms()) and not is_confirmed else state.sure_ms

    def _is_sure(self, now_ms: int, sure_ms: int) -> bool:
        skew_ms = self.objects.skew_ms()
        if skew_ms is not None:
            return not is_skewed(skew_ms)
        return sure_ms == 0 or now_ms - sure_ms <= MAX_STEP_MS

    def time_warning(self, expiry_ms: int) -> str | None:
        """Return why things expire by an earlier time than now, and what to do, or None if they do not."""
        skew_ms = self.objects.skew_ms()
        if skew_ms is not None and is_skewed(skew_ms) and expiry_ms == 0:
            return (
                f"nothing is deleted and nothing expires: {describe_skew(skew_ms, self.objects.root)}. If the store's time is "
                "right, vacuum once with --confirm-time (confirm_time=True)"
            )
        ahead_hours = (self.now_ms() - expiry_ms) // 3_600_000
        if ahead_hours < 1:
            return None
        return (
            f"this machine's clock is {ahead_hours} hours ahead of the last time that was sure, so nothing expires that is "
            "younger than that time. If the clock is right, vacuum once with --confirm-time (confirm_time=True)"
        )

    def confirm_time(self) -> None:
        """Record that the time is right, though the clock is far ahead of the last commit, or differs from the store's."""
        self.commit(
            CONFIRM_TIME, lambda _: {CONFIRMED_KEY: {"confirmed_at": self.now_ms()}}, action=Action(CONFIRM_TIME)
        )

    def checkpoint(self) -> int | None:
        """Write a checkpoint of the newest state and clean up behind it; return its batch id, or None if it exists."""
        with self._lock:
            self._refresh()
            if self._state.batch_id <= self._state.checkpoint_id:
                return None
            self._write_checkpoint()
            self._clean_up()
            return self._state.checkpoint_id

    def forget_earlier(self) -> None:
        """Delete all batches and checkpoints up to now, so that nothing is left of entries that were removed or replaced.

        For that, the log goes on to the next anchor, and a checkpoint sums it up. Raises: as `commit`.
        """
        with self._lock:
            self._refresh()
            first_kept = anchor_of(self._state.batch_id) + ANCHOR_INTERVAL
            while self._state.batch_id < first_kept:
                self.commit("forget", lambda state: {FORGOTTEN_KEY: {"batch": state.batch_id + 1}})
            self._write_checkpoint()
            self._delete_before(first_kept, self.listing())

    def _create(self, batch: _NewBatch) -> bool:
        """Create the batch; return False if another writer has its number. A lost answer is resolved by reading back."""
        name = str(batch.batch_id)
        problem: StorageError | None = None
        for attempt in range(_PUT_ATTEMPTS):
            try:
                self.objects.create(self.path(name), batch.data)
                return True
            except AlreadyExistsError:
                try:
                    return self._is_ours(batch, is_first=problem is None)
                except NotFoundError:
                    if problem is None:
                        return False  # it was cleaned up
                except StorageError as error:
                    # It may be ours, from an attempt whose answer got lost: to fail here would say that it is not.
                    problem = error
            except AccessDeniedError:
                raise
            except StorageError as error:
                problem = error
                with contextlib.suppress(StorageError, NotFoundError):
                    return self._is_ours(batch, is_first=False)
            clock.sleep(random.uniform(0, 0.05 * 2**attempt))
        raise CommitUnknownError(
            f"{self.address(name)}: no answer to the commit in {_PUT_ATTEMPTS} attempts ({problem}); whether it happened is not "
            "known. Check the table before writing again, or write again with the same idempotency id"
        ) from problem

    def _is_ours(self, batch: _NewBatch, *, is_first: bool) -> bool:
        """Return whether the batch that is there is ours, or ours was: an earlier attempt's may have been cleaned up."""
        owner = wire.write_id_in(self._start_of(batch.batch_id))
        return batch.write_id == owner or (not is_first and batch.write_id == self._freed_from(batch))

    def _counts(self, batch: _NewBatch) -> bool:
        """Return whether a batch just created counts: not if its number was used and freed. Raises: CommitUnknownError."""
        owner = self._freed_from(batch)
        if owner in (None, batch.write_id):
            return True
        with contextlib.suppress(StorageError):
            self.objects.delete([self.path(str(batch.batch_id))])
        return False

    def _freed_from(self, batch: _NewBatch) -> str | None:
        """Return who used the batch's number before it was freed, or None if it never was.

        Where others went on far since, the newest checkpoint says whose it was. Raises: CommitUnknownError.
        """
        problem: SiltstoneError | None = None
        for attempt in range(_PUT_ATTEMPTS):
            try:
                if self._is_intact_after(batch.batch_id - 1, batch.anchor):
                    return None
                self._load()
                break
            except (StorageError, CorruptionError) as error:
                problem = error
                clock.sleep(random.uniform(0, 0.05 * 2**attempt))
        else:
            raise self._unknown(batch, f"whether its number was used before could not be checked ({problem})")
        owner = self._state.recent.get(batch.batch_id)
        if owner is None:
            raise self._unknown(batch, "so many commits came since that its number is not remembered")
        return owner

    def _unknown(self, batch: _NewBatch, reason: str) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self.address(str(batch.batch_id))}: the commit was written, but {reason}. Check the table before writing "
            "again, or write again with the same idempotency id"
        )


def commit_log(root: str, folder: str) -> CommitLog:
    """Return this process's one commit log for a folder, with whatever state it has already."""
    with _logs_lock:
        log = _logs.pop((root, folder), None) or CommitLog(root, folder)
        _logs[root, folder] = log
        while len(_logs) > _LOGS_LIMIT:
            _logs.pop(next(iter(_logs)))
        return log


def forget_logs(root: str) -> None:
    """Forget the state of all logs under a root, as a new process would have none."""
    with _logs_lock:
        for key in [key for key in _logs if key[0] == root]:
            del _logs[key]
