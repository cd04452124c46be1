"""The commit log of a table or catalog: keyed entries, changed by atomic commits, kept small by checkpoints.

A batch `N` is one commit: it is created if absent, under that one name, so exactly one writer gets it. Entries have
a key; a later entry replaces an earlier one, a removal mark drops it. `N.compact` holds everything live after
batch N. It is written beside the batch, after the commit, by whoever finds it due, and any reader may rely on
the newest one: so neither the interval nor a failed checkpoint can ever break a reader or a writer.

Every process keeps the state of the logs it uses and reads only batches that came since.
"""

import contextlib
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

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
from siltstone.log import wire
from siltstone.log.batches import COMPACT_SUFFIX, BatchListing
from siltstone.log.compactible import CLEANUP_DELAY_MS
from siltstone.log.keyed import Entry, KeyedLog, StoredEntry, decoding
from siltstone.objects import open_objects

T = TypeVar("T")
Changes = Mapping[str, Entry | None]

COMMIT_KEY = "commit"
CHECKPOINT_INTERVAL = 10
# A checkpoint costs what it holds. Once per thousandth of that, its share of each commit stays constant.
CHECKPOINT_SHARE = 1000
# A batch is never deleted sooner than the clean-up delay after its creation. So "batch N is not there yet" can be
# believed for less than that: beyond, an old id might be free because its batch is long checkpointed and gone.
TRUST_SECONDS = 60.0
PUT_SECONDS_LIMIT = 300.0
CLEANUP_PAUSE_SECONDS = 60.0
_ATTEMPTS = 200
_PUT_ATTEMPTS = 5
_LOAD_ATTEMPTS = 5
_KEY_START = b'{"key":"'
_log = logging.getLogger(__name__)


class Commit(NamedTuple):
    """A commit that happened."""

    batch_id: int
    time_ms: int


class LogState:
    """What is live after batch `batch_id`: a mapping from keys to entries, parsed when asked for.

    `find_file` tells which file of the log has a line, for messages.
    """

    def __init__(self, find_file: Callable[[bytes], str] = lambda line: "commit log") -> None:
        self.batch_id = -1
        self.checkpoint_id = -1
        self._lines: dict[str, bytes] = {}
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
        newest = self.get(COMMIT_KEY)
        if newest is None:
            return 0
        with decoding(newest):
            return int(newest["time"])

    def apply(self, lines: Iterable[bytes], where: str) -> None:
        """Take over a batch's lines. Raises: CorruptionError."""
        for line in lines:
            if line.endswith(b'"removed":true}'):
                self._lines.pop(_key(line, where), None)
            else:
                self._lines[_key(line, where)] = line


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
    """One commit log; safe to share between threads.

    `monotonic` is the clock that decides how long the known state may be trusted, `now_ms` the one of entries.
    """

    def __init__(
        self,
        root: str,
        folder: str,
        *,
        expires: Callable[[str, Entry, int], bool] | None = None,
        now_ms: Callable[[], int] = clock.now_ms,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        super().__init__(open_objects(root), folder, now_ms=now_ms)
        self._expires = expires
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._state = LogState(self._file_of)
        self._verified_at: float | None = None
        self._cleaned_at: float | None = None

    def read(self, look: Callable[[LogState], T]) -> T:
        """Call `look` on the newest state, which stands still meanwhile. Raises: CorruptionError, StorageError."""
        with self._lock:
            seen = getattr(_steady, "seen", None)
            if seen is None or self not in seen or not self._is_trusted():
                self._refresh()
            if seen is not None:
                seen.add(self)
            return look(self._state)

    def commit(self, operation: str, prepare: Callable[[LogState], Changes]) -> Commit | None:
        """Commit what `prepare` makes of the newest state; with no changes, commit nothing and return None.

        The state known already is good enough to begin with: where another writer was faster, the batch is taken,
        and `prepare` is called again on the state that writer left. What it raises on the newest state escapes, and
        nothing is written. Raises: ConflictError, CommitUnknownError, CorruptionError, StorageError.
        """
        with self._lock:
            is_newest = False
            for attempt in range(_ATTEMPTS):
                if attempt or not self._is_trusted():
                    self._refresh()
                    is_newest = True
                try:
                    changes = prepare(self._state)
                except SiltstoneError:
                    if is_newest:
                        raise
                    continue
                if not changes:
                    if is_newest:
                        return None
                    continue
                commit_time = max(self.now_ms(), self._state.time_ms)
                write_id = uuid.uuid4().hex
                head: Entry = {"write_id": write_id, "time": commit_time, "operation": operation}
                lines = [_encode(COMMIT_KEY, head), *(_encode(key, entry) for key, entry in changes.items())]
                batch_id = self._state.batch_id + 1
                if self._create(batch_id, wire.encode(lines, self.version), write_id):
                    self._state.apply(lines, self.address(str(batch_id)))
                    self._state.batch_id = batch_id
                    self._checkpoint_if_due()
                    return Commit(batch_id, commit_time)
                if attempt:
                    clock.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.25)))
        raise ConflictError(f"{self.address('')}: {_ATTEMPTS} other commits came first; try again when it is less busy")

    def checkpoint(self) -> int | None:
        """Write a checkpoint of the newest state and clean up behind it; return its batch id, None where it is there."""
        with self._lock:
            self._refresh()
            if self._state.batch_id <= self._state.checkpoint_id:
                return None
            self._write_checkpoint()
            self._clean_up()
            return self._state.checkpoint_id

    def _is_trusted(self) -> bool:
        return self._verified_at is not None and self._monotonic() - self._verified_at <= TRUST_SECONDS

    def _refresh(self) -> None:
        if not self._is_trusted():
            self._load()
            return
        while True:
            asked_at = self._monotonic()
            try:
                self._apply_batch(self._state.batch_id + 1)
            except NotFoundError:
                self._verified_at = asked_at
                return

    def _apply_batch(self, batch_id: int) -> None:
        name = self.name_of(batch_id)
        self._state.apply(list(self.read_lines(name)), self.address(name))
        self._state.batch_id = batch_id

    def _load(self) -> None:
        """Bring the state up to date from a listing; a file that vanishes meanwhile means a newer checkpoint."""
        for _ in range(_LOAD_ATTEMPTS):
            asked_at = self._monotonic()
            listing = self.listing()
            latest = -1 if listing.latest is None else listing.latest
            if latest < self._state.batch_id:
                self._state = LogState(self._file_of)  # somebody put another log in place of the one we knew
            try:
                self._load_listed(listing, latest)
            except NotFoundError:
                continue
            self._verified_at = asked_at
            return
        raise CorruptionError(
            f"{self.address(self.name_of(self._state.batch_id + 1))}: missing, although batch {latest} is there: the "
            "log has a gap. Restore the file from a copy; `siltstone log verify` shows all that is missing"
        )

    def _load_listed(self, listing: BatchListing, latest: int) -> None:
        checkpoint = listing.newest_compact()
        if checkpoint is not None and self._state.batch_id < checkpoint.batch_id:
            state = LogState(self._file_of)
            state.apply(self.read_lines(checkpoint.name), self.address(checkpoint.name))
            state.batch_id = checkpoint.batch_id
            self._state = state
        if checkpoint is not None:
            self._state.checkpoint_id = checkpoint.batch_id
        for batch_id in range(self._state.batch_id + 1, latest + 1):
            self._apply_batch(batch_id)

    def _create(self, batch_id: int, data: bytes, write_id: str) -> bool:
        """Create the batch; False where another writer has it. A lost answer is settled by reading back."""
        path, where = self.path(str(batch_id)), self.address(str(batch_id))
        started_at = self._monotonic()
        if not self._is_trusted():
            return False
        problem: StorageError | None = None
        for attempt in range(_PUT_ATTEMPTS):
            try:
                self.objects.create(path, data)
            except AlreadyExistsError:
                try:
                    if not self._is_ours(batch_id, write_id):
                        return False
                except StorageError as error:
                    # It may be ours, from an attempt whose answer got lost: to fail here would say that it is not.
                    problem = error
                    clock.sleep(random.uniform(0, 0.05 * 2**attempt))
                    continue
            except AccessDeniedError:
                raise
            except StorageError as error:
                problem = error
                with contextlib.suppress(StorageError, NotFoundError):
                    if self._is_ours(batch_id, write_id):
                        break
                    return False
                clock.sleep(random.uniform(0, 0.05 * 2**attempt))
                continue
            break
        else:
            raise CommitUnknownError(
                f"{where}: no answer to the commit in {_PUT_ATTEMPTS} attempts ({problem}); whether it happened is not "
                "known. Look at the table before writing again, or write again with the same idempotency id"
            ) from problem
        if self._monotonic() - started_at > PUT_SECONDS_LIMIT:
            self._verified_at = None
            raise CommitUnknownError(
                f"{where}: the commit took over {PUT_SECONDS_LIMIT:.0f} s, too long to be sure that it counts. Look at "
                "the table before writing again, or write again with the same idempotency id"
            )
        self._verified_at = started_at
        return True

    def _is_ours(self, batch_id: int, write_id: str) -> bool:
        first = next(self.read_lines(self.name_of(batch_id)), b"")
        return b'"write_id":"%s"' % write_id.encode() in first

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
            if self._cleaned_at is None or self._monotonic() - self._cleaned_at > CLEANUP_PAUSE_SECONDS:
                self._clean_up()
        except (StorageError, NotFoundError, AlreadyExistsError) as error:
            _log.warning(
                "%s: no checkpoint after batch %d (%s); the next commit tries again",
                self.address(""),
                state.batch_id,
                error,
            )

    def _write_checkpoint(self) -> None:
        state = self._state
        if self._expires is not None:
            expires, now_ms = self._expires, self.now_ms()
            expired = [key for key, entry in state.items() if expires(key, entry, now_ms)]
            state.apply([_encode(key, None) for key in expired], self.address(""))
        name = f"{state.batch_id}{COMPACT_SUFFIX}"
        self.objects.replace(self.path(name), wire.encode_chunks((line for _, line in state.lines()), self.version))
        state.checkpoint_id = state.batch_id

    def _clean_up(self) -> None:
        """Delete what the checkpoint before the newest one made superfluous, if it is old enough."""
        self._cleaned_at = self._monotonic()
        listing = self.listing()
        checkpoints = sorted(listing.compact_ids)
        if len(checkpoints) > 1:
            before_ms = self.now_ms() - CLEANUP_DELAY_MS
            old = [file for file in listing.files if file.batch_id < checkpoints[-2] and file.modified_ms <= before_ms]
            self.delete_files(old, listing)


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


def commit_log(root: str, folder: str, *, expires: Callable[[str, Entry, int], bool] | None = None) -> CommitLog:
    """Return this process's one commit log for a folder, with whatever state it has already."""
    with _logs_lock:
        log = _logs.pop((root, folder), None) or CommitLog(root, folder, expires=expires)
        _logs[root, folder] = log
        while len(_logs) > _LOGS_LIMIT:
            _logs.pop(next(iter(_logs)))
        return log


def forget_logs(root: str) -> None:
    """Forget the state of all logs under a root, as a new process would have none."""
    with _logs_lock:
        for key in [key for key in _logs if key[0] == root]:
            del _logs[key]
