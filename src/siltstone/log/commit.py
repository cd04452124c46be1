"""The commit log of a table or catalog: keyed entries, changed by atomic commits, kept small by checkpoints.

A batch `N` is one commit: it is created if absent, under that one name, so exactly one writer gets it. Entries have
a key; a later entry replaces an earlier one, a removal mark drops it. `N.compact` holds everything live after
batch N. It is written beside the batch, after the commit, by whoever finds it due, and any reader may rely on
the newest one: so neither the interval nor a failed checkpoint can ever break a reader or a writer.

Every process keeps the state of the logs it uses and reads only batches that came since. How files prove that they are
whole, and follow each other, is in `chain`.
"""

import contextlib
import logging
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, overload

import orjson

from siltstone import clock
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
from siltstone.log import chain, wire
from siltstone.log.batches import COMPACT_SUFFIX, BatchListing
from siltstone.log.chain import CHECKPOINT_KEY, COMMIT_KEY
from siltstone.log.compactible import CLEANUP_DELAY_MS
from siltstone.log.entries import Entry, KeyedLog, StoredEntry, decoding, is_expired, may_expire
from siltstone.objects import open_objects
from siltstone.objects.times import describe_skew, is_skewed

T = TypeVar("T")
R = TypeVar("R")
Changes = Mapping[str, Entry | None]

CHECKPOINT_INTERVAL = 10
# A checkpoint costs what it holds. Once per thousandth of that, its share of each commit stays constant.
CHECKPOINT_SHARE = 1000
# So far may this machine's clock be ahead of what is known to be right, and still be believed.
MAX_STEP_MS = 24 * 3600 * 1000
CONFIRM_TIME = "confirm time"
CONFIRMED_KEY = "confirmed"
# Every so many batches one is an anchor, which is deleted before those that come after it.
ANCHOR_INTERVAL = 16
# A checkpoint says whose the last batches were, so that a writer who was held up can find out what became of its own.
RECENT_BATCHES = 100
CLEANUP_PAUSE_SECONDS = 60.0
# So often a process looks at the names of all batches: only they show that one is missing and others come after it.
LISTING_SECONDS = 60.0
_ATTEMPTS = 200
_PUT_ATTEMPTS = 5
_LOAD_ATTEMPTS = 5
_KEY_START = b'{"key":"'
_log = logging.getLogger(__name__)


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
    content: chain.ChainedFile


class LogState:
    """What is live after batch `batch_id`: a mapping from keys to entries, parsed when asked for.

    `digest` is that of the batch, `anchor` whose batch the anchor of the next one is, `recent` whose the last ones were;
    `log` is which log its files say that they are of, None where they are from before they said so; `find_file` returns
    the file of the log that has a line, for messages.
    """

    def __init__(self, find_file: Callable[[bytes], str] = lambda line: "commit log") -> None:
        self.batch_id = -1
        self.checkpoint_id = -1
        self.digest: str | None = None
        self.anchor: str | None = None
        self.recent: dict[int, str] = {}
        self.log: str | None = None
        self._lines: dict[str, bytes] = {}
        self._expiring: set[str] = set()
        self._times: tuple[int, int] | None = None
        self._find_file = find_file

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Entry | None:
        """Return one entry, or None."""
        line = self._lines.get(key)
        return None if line is None else self._parse(line)

    def line(self, key: str) -> bytes | None:
        """Return the raw line of one entry, or None."""
        return self._lines.get(key)

    def _parse(self, line: bytes) -> Entry:
        try:
            return StoredEntry(orjson.loads(line), lambda: self._find_file(line))
        except (orjson.JSONDecodeError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"{self._find_file(line)}: entry {line[:80]!r} is damaged ({error}); restore the file from a copy"
            ) from error

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that start with `prefix`, in order of their first commit."""
        return [key for key in self._lines if key.startswith(prefix)]

    def scan(self, prefix: str) -> list[Entry]:
        """Return the entries whose key starts with `prefix`, in order of their first commit."""
        return [self._parse(line) for key, line in self._lines.items() if key.startswith(prefix)]

    def items(self) -> Iterator[tuple[str, Entry]]:
        """Yield every key with its entry."""
        for key, line in self._lines.items():
            yield key, self._parse(line)

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield every key with its raw line."""
        yield from self._lines.items()

    @property
    def time_ms(self) -> int:
        """When the newest commit happened; 0 in an empty log."""
        return self._read_times()[0]

    def apply(self, lines: Iterable[bytes], where: str) -> None:
        """Take over a batch's lines. Raises: CorruptionError."""
        self._times = None
        for line in lines:
            key = _key(line, where)
            if line.endswith(b'"removed":true}'):
                self._lines.pop(key, None)
                continue
            self._lines[key] = line
            if may_expire(line):
                self._expiring.add(key)

    @property
    def sure_ms(self) -> int:
        """The time by which entries may expire: that of the newest commit, unless it was not sure that it is right."""
        return self._read_times()[1]

    def _read_times(self) -> tuple[int, int]:
        if self._times is None:
            newest = self.get(COMMIT_KEY)
            if newest is None:
                return 0, 0
            with decoding(newest):
                time_ms = int(newest["time"])
                self._times = time_ms, int(newest.get("sure_time", time_ms))
        return self._times

    def expire(self) -> None:
        """Drop the entries whose time has come."""
        now_ms = self.sure_ms
        for key in list(self._expiring):
            line = self._lines.get(key)
            if line is None or not may_expire(line):
                self._expiring.remove(key)
            elif is_expired(line, now_ms):
                self._expiring.remove(key)
                del self._lines[key]

    def follow(self, batch: chain.ChainedFile, where: str) -> None:
        """Take over the next batch. Raises: CorruptionError."""
        if batch.head and batch.head["key"] != COMMIT_KEY:
            raise CorruptionError(f"{where}: it is a checkpoint, not a batch; restore the file from a copy")
        self.apply(batch.lines, where)
        self.batch_id += 1
        self.digest = batch.digest
        self.anchor = batch.head.get("anchor")
        self.log = batch.head.get("log", self.log)
        if batch.head:
            self.recent[self.batch_id] = batch.head["write_id"]

    def restore(self, batch_id: int, checkpoint: chain.ChainedFile, where: str) -> None:
        """Take over a checkpoint. Raises: CorruptionError."""
        head = checkpoint.head
        if head and (head["key"], head.get("batch")) != (CHECKPOINT_KEY, batch_id):
            raise CorruptionError(
                f"{where}: it is not the checkpoint of batch {batch_id}; restore the file from a copy"
            )
        self.apply(checkpoint.lines, where)
        self.batch_id = self.checkpoint_id = batch_id
        self.digest = head.get("digest")
        self.log = head.get("log")
        self.anchor = (self.get(COMMIT_KEY) or {}).get("anchor")
        recent = head.get("recent", [])
        self.recent = dict(enumerate(recent, batch_id + 1 - len(recent)))

    def checkpoint(self, version: int) -> Iterator[bytes]:
        """Yield the content of a checkpoint of this state."""
        kept = max(RECENT_BATCHES, 2 * (self.batch_id - self.checkpoint_id))
        self.recent = {number: owner for number, owner in self.recent.items() if number > self.batch_id - kept}
        head = {
            "key": CHECKPOINT_KEY,
            "batch": self.batch_id,
            "digest": self.digest,
            "recent": list(self.recent.values()),
            **({} if self.log is None else {"log": self.log}),
        }
        return chain.encode_chunks(head, lambda: wire.chunks_of(self._lines.values()), len(self), version)


def _key(line: bytes, where: str) -> str:
    end = line.find(b'"', len(_KEY_START))
    if not line.startswith(_KEY_START) or end < 0 or not line.endswith(b"}"):
        raise CorruptionError(f"{where}: {line[:80]!r} is no entry of a commit log; restore the file from a copy")
    try:
        return line[len(_KEY_START) : end].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(
            f"{where}: the key of {line[:80]!r} is damaged ({error}); restore the file from a copy"
        ) from error


def _encode(key: str, entry: Entry | None) -> bytes:
    if '"' in key or "\\" in key or not key.isprintable():
        raise ValueError(f"log key {key!r} must not need escaping")
    body = {"key": key, "removed": True} if entry is None else {"key": key, **entry}
    return orjson.dumps(body)


class CommitLog(KeyedLog):
    """One commit log; safe to share between threads. Its time is that of its store.

    What is known of the log is a true beginning of its history, however old. So a commit may build on it at once, and a
    read asks only for what came since, if both then make sure that nothing of it was cleaned up meanwhile: batches that
    were may be missing, or be there a second time. Every batch names its *anchor*, the one before it whose number is a
    multiple of ANCHOR_INTERVAL. An anchor is deleted before any batch after it. So while the anchor is there, no number
    after it was ever used and freed.
    """

    def __init__(
        self,
        root: str,
        folder: str,
    ) -> None:
        super().__init__(open_objects(root), folder, now_ms=lambda: self.objects.now_ms())
        self._lock = threading.RLock()
        self._state = LogState(self._file_of)
        self._is_loaded = False
        self._listed_at = 0.0
        self._cleaned_at: float | None = None

    def read(self, look: Callable[[LogState], T]) -> T:
        """Call `look` on the newest state, which stands still meanwhile. Raises: CorruptionError, StorageError."""
        with self._lock:
            seen = getattr(_steady, "seen", None)
            if seen is None or self not in seen or not self._is_loaded:
                self._refresh()
            if seen is not None:
                seen.add(self)
            return look(self._state)

    @overload
    def commit(self, operation: str, prepare: Callable[[LogState], Changes]) -> Committed[None]: ...

    @overload
    def commit(self, operation: str, prepare: Callable[[LogState], Commit[R]]) -> Committed[R]: ...

    def commit(
        self, operation: str, prepare: Callable[[LogState], Commit[R]] | Callable[[LogState], Changes]
    ) -> Committed[Any]:
        """Commit what `prepare` makes of the newest state, and return its result; without changes, commit nothing.

        The state known already is good enough to begin with: where another writer was faster, the batch is taken,
        and `prepare` is called again on the state that writer left. What it raises on the newest state escapes, and
        nothing is written. Raises: ConflictError, CommitUnknownError, CorruptionError, StorageError.
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
                batch = self._next_batch(operation, changes)
                if self._create(batch) and self._counts(batch):
                    if self._state.batch_id < batch.batch_id:
                        self._state.follow(batch.content, self.address(str(batch.batch_id)))
                    self._checkpoint_if_due()
                    return Committed(result, batch.batch_id, batch.content.head["time"])
                if attempt:
                    clock.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.25)))
        raise ConflictError(f"{self.address('')}: {_ATTEMPTS} other commits came first; try again when it is less busy")

    def _next_batch(self, operation: str, changes: Changes) -> _NewBatch:
        state, now_ms = self._state, self.now_ms()
        batch_id, write_id = state.batch_id + 1, os.urandom(16).hex()
        commit_time = max(now_ms, state.time_ms)
        is_sure = operation == CONFIRM_TIME or self._is_sure(now_ms)
        sure_time = max(now_ms, state.sure_ms) if is_sure else state.sure_ms
        head = {
            "write_id": write_id,
            "time": commit_time,
            "operation": operation,
            **({} if sure_time == commit_time else {"sure_time": sure_time}),
            "anchor": write_id if batch_id % ANCHOR_INTERVAL == 0 else state.anchor,
            "previous": state.digest,
            **({"log": self.folder} if batch_id == 0 else {}),
        }
        lines = [_encode(key, entry) for key, entry in changes.items()]
        return _NewBatch(batch_id, write_id, state.anchor, *chain.encode_batch(head, lines, self.version))

    def expiry_ms(self, *, is_confirmed: bool = False) -> int:
        """Return the time by which things may expire: now, if that is sure, else the last time that was.

        This machine's clock is believed for a day after the last time that was sure: beyond, it may have been set wrong
        while nobody wrote, until somebody confirms it. A store with a clock of its own is believed while this machine's
        clock agrees with it. Where it does not, one of them is wrong, and so may be the times that were stored since: this
        is 0, so that nothing expires, unless the store's time `is_confirmed`.
        """
        now_ms = self.now_ms()
        sure_ms = self.read(lambda state: state.sure_ms)
        if self._is_sure(now_ms):
            return max(now_ms, sure_ms)
        return 0 if is_skewed(self.objects.skew_ms()) and not is_confirmed else sure_ms

    def _is_sure(self, now_ms: int) -> bool:
        skew_ms, sure_ms = self.objects.skew_ms(), self._state.sure_ms
        if skew_ms is not None:
            return not is_skewed(skew_ms)
        return sure_ms == 0 or now_ms - sure_ms <= MAX_STEP_MS

    def doubt(self, expiry_ms: int) -> str | None:
        """Return why things expire by an earlier time than now, and what to do; None where they do not."""
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
        self.commit(CONFIRM_TIME, lambda _: {CONFIRMED_KEY: {"confirmed_at": self.now_ms()}})

    def checkpoint(self) -> int | None:
        """Write a checkpoint of the newest state and clean up behind it; return its batch id, None where it is there."""
        with self._lock:
            self._refresh()
            if self._state.batch_id <= self._state.checkpoint_id:
                return None
            self._write_checkpoint()
            self._clean_up()
            return self._state.checkpoint_id

    def _refresh(self) -> None:
        """Bring the state up to date with the batches that came since."""
        if not self._is_loaded:
            self._load()
            return
        self._catch_up()
        if clock.monotonic() - self._listed_at >= LISTING_SECONDS:
            self._look_beyond()

    def _look_beyond(self) -> None:
        """Read the log anew if it goes on after a batch that is missing: what comes before that is not all there is."""
        listing = self.listing()
        self._listed_at = clock.monotonic()
        latest, known = -1 if listing.latest is None else listing.latest, self._state.batch_id
        if latest < known or (latest > known and listing.plain(known + 1) is None):
            self._load()

    def _catch_up(self) -> None:
        state = self._state
        try:
            batches = self._batches_after(state.batch_id, state.digest)
        except CorruptionError:
            if self._is_intact_after(state.batch_id, state.anchor):
                raise
            self._load()
            return
        if self._is_intact_after(state.batch_id, state.anchor):
            self._follow(state, batches)
        else:
            self._load()

    def _batches_after(self, batch_id: int, digest: str | None, upto: int | None = None) -> list[chain.ChainedFile]:
        """Return the batches after one, up to the first that is not there, checked to follow each other."""
        batches: list[chain.ChainedFile] = []
        while upto is None or batch_id < upto:
            batch_id += 1
            name = self.name_of(batch_id)
            try:
                batch = self._read_chained(name)
            except NotFoundError:
                break
            if batch.head.get("previous") != digest:
                raise CorruptionError(
                    f"{self.address(name)}: it was not written after the batch before it, {batch_id - 1}: one of the two is "
                    "from elsewhere, or was changed. Restore both from a copy; `siltstone log verify` checks all batches"
                )
            digest = batch.digest
            batches.append(batch)
        return batches

    def _is_intact_after(self, batch_id: int, anchor: str | None) -> bool:
        """Return whether none of the numbers after a batch was ever freed, given the anchor of the next batch."""
        if anchor is not None:
            name = str(batch_id // ANCHOR_INTERVAL * ANCHOR_INTERVAL)
            try:
                return chain.write_id_in(self.objects.read_start(self.path(name), chain.START_BYTES)) == anchor
            except NotFoundError:
                return False
        # The first batch has no anchor, nor do batches of earlier versions. But what was freed is summed up.
        newest = self.listing().newest_compact()
        return newest is None or newest.batch_id <= batch_id

    def _read_chained(self, name: str) -> chain.ChainedFile:
        where = self.address(name)
        file = chain.decode(self.objects.read(self.path(name)), where, self.version, self.writer)
        # The address, since who is given the path of a log does not know where its lake begins.
        if "log" in file.head and not f"/{self.address()}".endswith(f"/{file.head['log']}"):
            kind = "a checkpoint" if file.head["key"] == CHECKPOINT_KEY else "the first batch"
            raise CorruptionError(
                f"{where}: it is {kind} of {file.head['log']}, another log; restore the file from a copy"
            )
        return file

    def _load(self) -> None:
        """Read the log anew from a listing; a file that vanishes meanwhile means a newer checkpoint."""
        self._is_loaded = False
        for _ in range(_LOAD_ATTEMPTS):
            listing = self.listing()
            latest = -1 if listing.latest is None else listing.latest
            try:
                state = self._summed_up(listing)
            except NotFoundError:
                continue
            failure: CorruptionError | None = None
            batches: list[chain.ChainedFile] = []
            try:
                batches = self._batches_after(state.batch_id, state.digest, latest)
            except CorruptionError as error:
                failure = error
            first_missing = state.batch_id + len(batches) + 1
            if not self._is_intact_after(state.batch_id, None):
                continue
            if failure is not None:
                raise failure
            if first_missing > latest:
                if latest < self._state.batch_id:
                    raise CorruptionError(
                        f"{self.address(str(self._state.batch_id))}: this batch was there and is gone, with all after batch "
                        f"{latest}. Restore it from a copy; if the whole log was set back on purpose, start this process anew"
                    )
                self._follow(state, batches)
                self._state, self._is_loaded = state, True
                self._listed_at = clock.monotonic()
                return
            raise CorruptionError(
                f"{self.address(self.name_of(first_missing))}: missing, although batch {latest} is there: the log has a "
                "gap. Restore the file from a copy; `siltstone log verify` shows all that is missing"
            )
        raise StorageError(f"{self.address()}: files vanished while they were read, {_LOAD_ATTEMPTS} times; try again")

    def _summed_up(self, listing: BatchListing) -> LogState:
        """Return the state of the newest checkpoint."""
        state = LogState(self._file_of)
        checkpoint = listing.newest_compact()
        if checkpoint is not None:
            content, where = self._read_chained(checkpoint.name), self.address(checkpoint.name)
            if not content.head and self._is_chained(checkpoint.batch_id):
                raise CorruptionError(f"{where}: it is older than the batch it sums up; restore the file from a copy")
            state.restore(checkpoint.batch_id, content, where)
        return state

    def _is_chained(self, batch_id: int) -> bool:
        """Return whether a batch has a head; one that was cleaned up does not matter."""
        try:
            return chain.is_chained(self.objects.read_start(self.path(self.name_of(batch_id)), chain.START_BYTES))
        except NotFoundError:
            return False

    def _follow(self, state: LogState, batches: Iterable[chain.ChainedFile]) -> None:
        try:
            for batch in batches:
                state.follow(batch, self.address(self.name_of(state.batch_id + 1)))
        except CorruptionError:
            self._is_loaded = False  # a part of a batch may have been taken over
            raise

    def _create(self, batch: _NewBatch) -> bool:
        """Create the batch; False where another writer has its number. A lost answer is resolved by reading back."""
        path, where = self.path(str(batch.batch_id)), self.address(str(batch.batch_id))
        problem: StorageError | None = None
        for attempt in range(_PUT_ATTEMPTS):
            try:
                self.objects.create(path, batch.data)
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
            f"{where}: no answer to the commit in {_PUT_ATTEMPTS} attempts ({problem}); whether it happened is not "
            "known. Look at the table before writing again, or write again with the same idempotency id"
        ) from problem

    def _is_ours(self, batch: _NewBatch, *, is_first: bool) -> bool:
        """Return whether the batch that is there is ours, or ours was: an earlier attempt's may have been cleaned up."""
        start = self.objects.read_start(self.path(str(batch.batch_id)), chain.START_BYTES)
        return batch.write_id == chain.write_id_in(start) or (
            not is_first and batch.write_id == self._freed_from(batch)
        )

    def _counts(self, batch: _NewBatch) -> bool:
        """Return whether the batch just created is part of the log: not if its number was used before, and freed.

        Raises: CommitUnknownError.
        """
        owner = self._freed_from(batch)
        if owner in (None, batch.write_id):
            return True
        with contextlib.suppress(StorageError):
            self.objects.delete([self.path(str(batch.batch_id))])
        return False

    def _freed_from(self, batch: _NewBatch) -> str | None:
        """Return who used the batch's number before it was freed; None where that never happened.

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
            f"{self.address(str(batch.batch_id))}: the commit was written, but {reason}. Look at the table before writing "
            "again, or write again with the same idempotency id"
        )

    def _file_of(self, line: bytes) -> str:
        """Return the address of the newest file that has a line, of the folder where none can be found."""
        with contextlib.suppress(SiltstoneError):
            for file in reversed(self.listing().chain()[0]):
                if line in self.read_lines(file.name):
                    return self.address(file.name)
        return self.address()

    def _checkpoint_if_due(self) -> None:
        state = self._state
        if state.batch_id - state.checkpoint_id < max(CHECKPOINT_INTERVAL, len(state) // CHECKPOINT_SHARE):
            return
        try:
            self._write_checkpoint()
            if self._cleaned_at is None or clock.monotonic() - self._cleaned_at > CLEANUP_PAUSE_SECONDS:
                self._clean_up()
        except SiltstoneError as error:
            # Whatever it is, the commit happened: who heard otherwise would delete what it names.
            _log.warning(
                "%s: no checkpoint after batch %d (%s); the next commit tries again",
                self.address(""),
                state.batch_id,
                error,
            )

    def _write_checkpoint(self) -> None:
        """Sum up the state. All that is written follows from the batches, whoever does it, and whenever."""
        state = self._state
        state.expire()
        # Who is given the path of a log does not know what the lake calls it.
        state.log = state.log or self.folder or None
        name = f"{state.batch_id}{COMPACT_SUFFIX}"
        self.objects.replace(self.path(name), state.checkpoint(self.version))
        state.checkpoint_id = state.batch_id

    def _clean_up(self) -> None:
        """Delete what the checkpoint before the newest one made superfluous, if it is old enough.

        The age only keeps files in place that others are about to read. What counts is the order: see the class.
        """
        self._cleaned_at = clock.monotonic()
        listing = self.listing()
        checkpoints = sorted(listing.compact_ids)
        if len(checkpoints) < 2:
            return
        before_ms = self.now_ms() - CLEANUP_DELAY_MS
        young = [file.batch_id for file in listing.files if file.modified_ms > before_ms]
        keep_from = min([checkpoints[-2], *young]) // ANCHOR_INTERVAL * ANCHOR_INTERVAL
        old = [file for file in listing.files if file.batch_id < keep_from]
        anchors = [file for file in old if file.batch_id % ANCHOR_INTERVAL == 0 and not file.is_compact]
        for anchor in anchors:
            self.delete_files([anchor], listing)
        self.delete_files([file for file in old if file not in anchors], listing)


_steady = threading.local()


@contextlib.contextmanager
def steady() -> Iterator[None]:
    """Let this thread ask the store once per log for what is new, however many reads one operation makes."""
    if getattr(_steady, "seen", None) is not None:
        yield
        return
    _steady.seen = set()
    try:
        yield
    finally:
        _steady.seen = None


_logs: dict[tuple[str, str], CommitLog] = {}
_logs_lock = threading.Lock()
_LOGS_LIMIT = 1024


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
