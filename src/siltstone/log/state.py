"""The state of a commit log: keyed entries, which later batches replace or remove, and some of which expire.

`LogReader` keeps up with a log, whose files it checks to be whole and to follow each other, and writes its checkpoints.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import orjson

from siltstone import clock
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError, SiltstoneError, StorageError
from siltstone.log import wire
from siltstone.log.batch_log import BatchFolder, delete_batches
from siltstone.log.batches import COMPACT_SUFFIX, BatchListing
from siltstone.log.codec import DECODING_ERRORS
from siltstone.log.compactible import CLEANUP_DELAY_MS
from siltstone.log.wire import CHECKPOINT_KEY, COMMIT_KEY
from siltstone.objects import open_objects

Entry = dict[str, Any]
VERSION = 3
"""What batches say in their first line.

1: columns had no ids, so that names alone showed which one was meant. 2: batches had no checksum, nor the digest of the one
before.
"""
EXPIRES_AT = "expires_at"
_MARK = b'"expires_at":'
_OLD_IDS = b'{"key":"transaction/'
_OLD_IDS_LAST_MS = 30 * 24 * 3600 * 1000
# A checkpoint says whose the last batches were, so that a writer who was held up can find out what became of its own.
RECENT_BATCHES = 100
# Every so many batches one is an anchor, which is deleted before those that come after it.
ANCHOR_INTERVAL = 16
CHECKPOINT_INTERVAL = 10
# How often a process lists the names of all batches: only they show that one is missing and others come after it.
LISTING_SECONDS = 60.0
# A checkpoint costs what it holds. Once per thousandth of that, its share of each commit stays constant.
_CHECKPOINT_SHARE = 1000
_CLEANUP_PAUSE_SECONDS = 60.0
_LOAD_ATTEMPTS = 5
_KEY_START = b'{"key":"'
_log = logging.getLogger(__name__)


class KeyIndex(Protocol):
    """What is known of all keys of a kind, see `LogState.index`."""

    def add(self, key: str, line: bytes) -> None:
        """Take over a key that was not there."""


K = TypeVar("K", bound=KeyIndex)


class StoredEntry(Entry):
    """An entry as it was read from a log; if it turns out damaged, it can name its file."""

    __slots__ = ("find_file",)

    def __init__(self, values: Mapping[str, Any], find_file: Callable[[], str]) -> None:
        super().__init__(values)
        self.find_file = find_file

    def __reduce__(self) -> tuple[type[Entry], tuple[Entry]]:
        return dict, (dict(self),)


@contextlib.contextmanager
def decoding(entry: Entry) -> Iterator[None]:
    """Make an error of ours, which names the file, of what goes wrong while a stored entry is made sense of.

    What is wrong with an entry that was not read from a log is left as it is. Raises: CorruptionError.
    """
    key = entry.get("key")
    try:
        yield
    except (*DECODING_ERRORS, AttributeError) as error:
        is_other = isinstance(error, SiltstoneError) and not isinstance(error, InvalidInputError)
        if is_other or not isinstance(entry, StoredEntry):
            raise
        where = entry.find_file()
        reason = error if isinstance(error, InvalidInputError) else repr(error)
        raise CorruptionError(
            f"{where}: entry {key!r} is damaged ({reason}); restore the file from a copy, `siltstone log verify` checks it"
        ) from error


class LogState:
    """What is live after batch `batch_id`: a mapping from keys to entries, whose `lines` are parsed when asked for.

    `digest` is that of the batch, `anchor` whose batch the anchor of the next one is, `recent` whose the last ones were;
    `log` is which log its files say that they are of, None if they are from before they said so; `find_file` returns
    the file of the log that has a line, for messages.
    """

    def __init__(self, find_file: Callable[[bytes], str] = lambda line: "commit log") -> None:
        self.batch_id = -1
        self.checkpoint_id = -1
        self.digest: str | None = None
        self.anchor: str | None = None
        self.recent: dict[int, str] = {}
        self.log: str | None = None
        self.lines: dict[str, bytes] = {}
        self._by_kind: dict[str, dict[str, bytes]] = {}
        self._indices: dict[str, Any] = {}
        self._expiring: set[str] = set()
        self._times: tuple[int, int] | None = None
        self._find_file = find_file

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, key: str) -> bool:
        return key in self.lines

    def get(self, key: str) -> Entry | None:
        """Return one entry, or None."""
        line = self.lines.get(key)
        return None if line is None else self.parse(line)

    def parse(self, line: bytes) -> Entry:
        """Return the entry of a line. Raises: CorruptionError that names the file."""
        try:
            return StoredEntry(orjson.loads(line), lambda: self._find_file(line))
        except (orjson.JSONDecodeError, TypeError, ValueError) as error:
            raise CorruptionError(
                f"{self._find_file(line)}: entry {line[:80]!r} is damaged ({error}); restore the file from a copy"
            ) from error

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that start with `prefix`, in order of their first commit."""
        return [key for key in self._candidates(prefix) if key.startswith(prefix)]

    def scan(self, prefix: str) -> list[Entry]:
        """Return the entries whose key starts with `prefix`, in order of their first commit."""
        return [self.parse(line) for key, line in self._candidates(prefix).items() if key.startswith(prefix)]

    def _candidates(self, prefix: str) -> Mapping[str, bytes]:
        """Return all lines of the kind that a prefix names, or all where it names none: there may be many of another."""
        kind, slash, _ = prefix.partition("/")
        return self._by_kind.get(kind, {}) if slash else self.lines

    def index(self, kind: str, make: Callable[[], K]) -> K:
        """Return an index of all keys that begin with `kind` and a slash, which is told of each one that comes.

        It is made anew when it is asked for after one was removed or replaced.
        """
        index: K | None = self._indices.get(kind)
        if index is None:
            index = make()
            for key, line in self._by_kind.get(kind, {}).items():
                index.add(key, line)
            self._indices[kind] = index
        return index

    def items(self) -> Iterator[tuple[str, Entry]]:
        """Yield every key with its entry."""
        for key, line in self.lines.items():
            yield key, self.parse(line)

    def apply(self, lines: Iterable[bytes], where: str) -> None:
        """Take over a batch's lines. Raises: CorruptionError."""
        self._times = None
        for line in lines:
            key = _key(line, where)
            if line.endswith(b'"removed":true}'):
                self._remove(key)
                continue
            self._put(key, line)
            if _may_expire(line):
                self._expiring.add(key)

    def _put(self, key: str, line: bytes) -> None:
        kind = key.partition("/")[0]
        if key in self.lines:
            self._indices.pop(kind, None)
        self.lines[key] = line
        self._by_kind.setdefault(kind, {})[key] = line
        if kind in self._indices:
            self._indices[kind].add(key, line)

    def _remove(self, key: str) -> None:
        if self.lines.pop(key, None) is not None:
            kind = key.partition("/")[0]
            del self._by_kind[kind][key]
            self._indices.pop(kind, None)

    @property
    def time_ms(self) -> int:
        """When the newest commit happened; 0 in an empty log."""
        return self._read_times()[0]

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
            line = self.lines.get(key)
            if line is None or not _may_expire(line):
                self._expiring.remove(key)
            elif _is_expired(line, now_ms):
                self._expiring.remove(key)
                self._remove(key)

    def follow(self, batch: wire.ChainedFile, where: str) -> None:
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

    def restore(self, batch_id: int, checkpoint: wire.ChainedFile, where: str) -> None:
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
        return wire.encode_chunks(head, self.lines.values(), version)


def _key(line: bytes, where: str) -> str:
    end = line.find(b'"', len(_KEY_START))
    if not line.startswith(_KEY_START) or end < 0 or not line.endswith(b"}"):
        raise CorruptionError(f"{where}: {line[:80]!r} is not an entry of a commit log; restore the file from a copy")
    try:
        return line[len(_KEY_START) : end].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(
            f"{where}: the key of {line[:80]!r} is damaged ({error}); restore the file from a copy"
        ) from error


def encode_entry(key: str, entry: Entry | None) -> bytes:
    """Write an entry as a line of the log, None as the mark that removes it."""
    if '"' in key or "\\" in key or not key.isprintable():
        raise ValueError(f"log key {key!r} must not need escaping")
    body = {"key": key, "removed": True} if entry is None else {"key": key, **entry}
    # A copy: orjson leaves the rest of its buffer, some 4 kB, to each line, which stays for as long as the log is known.
    return bytes(memoryview(orjson.dumps(body)))


def _may_expire(line: bytes) -> bool:
    """Return whether an entry may expire some time."""
    return _MARK in line or line.startswith(_OLD_IDS)


def _is_expired(line: bytes, now_ms: int) -> bool:
    """Return whether an entry that may expire can be dropped by now; one that is damaged never is."""
    try:
        entry = orjson.loads(line)
        if EXPIRES_AT in entry:
            return int(entry[EXPIRES_AT]) <= now_ms
        return line.startswith(_OLD_IDS) and int(entry["committed_at"]) + _OLD_IDS_LAST_MS < now_ms
    except (ValueError, KeyError, TypeError):
        return False


def anchor_of(batch_id: int) -> int:
    """Return the number of the anchor that comes with a batch or before it."""
    return batch_id // ANCHOR_INTERVAL * ANCHOR_INTERVAL


class LogReader(BatchFolder):
    """A commit log as far as this process has read it, and the checkpoints that keep it small."""

    def __init__(self, root: str, folder: str) -> None:
        super().__init__(open_objects(root), folder, version=VERSION, writer="Siltstone")
        self._state = LogState(self._file_of)
        self._is_loaded = False
        self._listed_at = 0.0
        self._cleaned_at: float | None = None

    def _refresh(self) -> None:
        """Bring the state up to date with the batches that came since."""
        if not self._is_loaded:
            self._load()
            return
        self._catch_up()
        if clock.monotonic() - self._listed_at < LISTING_SECONDS:
            return
        # If the log goes on after a batch that is missing, what comes before that is not all there is.
        listing = self.listing()
        self._listed_at = clock.monotonic()
        latest, newest_read = -1 if listing.latest is None else listing.latest, self._state.batch_id
        if latest < newest_read or (latest > newest_read and newest_read + 1 not in listing.plain):
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

    def _batches_after(self, batch_id: int, digest: str | None, upto: int | None = None) -> list[wire.ChainedFile]:
        """Return the batches after one, up to the first that is not there, checked to follow each other."""
        batches: list[wire.ChainedFile] = []
        while upto is None or batch_id < upto:
            batch_id += 1
            name = str(batch_id)
            try:
                batch = self._read_own(name)
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
            try:
                return wire.write_id_in(self._start_of(anchor_of(batch_id))) == anchor
            except NotFoundError:
                return False
        # The first batch has no anchor, nor do batches of earlier versions. But what was freed is summed up.
        newest = self.listing().newest_compact()
        return newest is None or newest.batch_id <= batch_id

    def _start_of(self, batch_id: int) -> bytes:
        """Return as much of a batch as shows whose it is. Raises: NotFoundError."""
        return self.objects.read_start(self.path(str(batch_id)), wire.START_BYTES)

    def _read_own(self, name: str) -> wire.ChainedFile:
        file = self.read_chained(name)
        # The address, since who is given the path of a log does not know where its lake begins.
        if "log" in file.head and not f"/{self.address()}".endswith(f"/{file.head['log']}"):
            kind = "a checkpoint" if file.head["key"] == CHECKPOINT_KEY else "the first batch"
            raise CorruptionError(
                f"{self.address(name)}: it is {kind} of {file.head['log']}, another log; restore the file from a copy"
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
            batches: list[wire.ChainedFile] = []
            try:
                batches = self._batches_after(state.batch_id, state.digest, latest)
            except CorruptionError as error:
                failure = error
            first_missing = state.batch_id + len(batches) + 1
            if not self._is_intact_after(state.batch_id, None):
                continue
            if failure is not None:
                raise failure
            if first_missing <= latest:
                raise CorruptionError(
                    f"{self.address(str(first_missing))}: missing, although batch {latest} is there: the log has a "
                    "gap. Restore the file from a copy; `siltstone log verify` shows all that is missing"
                )
            if latest < self._state.batch_id:
                raise CorruptionError(
                    f"{self.address(str(self._state.batch_id))}: this batch was there and is gone, with all after batch "
                    f"{latest}. Restore it from a copy; if the whole log was set back on purpose, start this process anew"
                )
            self._follow(state, batches)
            self._state, self._is_loaded = state, True
            self._listed_at = clock.monotonic()
            return
        raise StorageError(f"{self.address()}: files vanished while they were read, {_LOAD_ATTEMPTS} times; try again")

    def _summed_up(self, listing: BatchListing) -> LogState:
        """Return the state of the newest checkpoint."""
        state = LogState(self._file_of)
        checkpoint = listing.newest_compact()
        if checkpoint is not None:
            content, where = self._read_own(checkpoint.name), self.address(checkpoint.name)
            if not content.head and self._is_chained(checkpoint.batch_id):
                raise CorruptionError(f"{where}: it is older than the batch it sums up; restore the file from a copy")
            state.restore(checkpoint.batch_id, content, where)
        return state

    def _is_chained(self, batch_id: int) -> bool:
        """Return whether a batch has a head; one that was cleaned up does not matter."""
        try:
            return wire.is_chained(self._start_of(batch_id))
        except NotFoundError:
            return False

    def _follow(self, state: LogState, batches: Iterable[wire.ChainedFile]) -> None:
        try:
            for batch in batches:
                state.follow(batch, self.address(str(state.batch_id + 1)))
        except CorruptionError:
            self._is_loaded = False  # a part of a batch may have been taken over
            raise

    def _file_of(self, line: bytes) -> str:
        """Return the address of the newest file that has a line, or of the folder if there is none."""
        with contextlib.suppress(SiltstoneError):
            for file in reversed(self.listing().chain()[0]):
                if line in self.read_lines(file.name):
                    return self.address(file.name)
        return self.address()

    def _write_checkpoint_if_due(self) -> None:
        """Write a checkpoint if enough was committed since the last one; a failure is logged, and tried again later."""
        state = self._state
        if state.batch_id - state.checkpoint_id < max(CHECKPOINT_INTERVAL, len(state) // _CHECKPOINT_SHARE):
            return
        try:
            self._write_checkpoint()
            if self._cleaned_at is None or clock.monotonic() - self._cleaned_at > _CLEANUP_PAUSE_SECONDS:
                self._clean_up()
        except SiltstoneError as error:
            # Whatever it is, the commit happened: who heard otherwise would delete what it names.
            message = "%s: no checkpoint after batch %d (%s); the next commit tries again"
            _log.warning(message, self.address(), state.batch_id, error)

    def _write_checkpoint(self) -> None:
        """Write a checkpoint. All that is in it follows from the batches, whoever writes it, and whenever."""
        state = self._state
        state.expire()
        # Who is given the path of a log does not know what the lake calls it.
        state.log = state.log or self.folder or None
        path = self.path(f"{state.batch_id}{COMPACT_SUFFIX}")
        self.objects.replace(path, state.checkpoint(self.version))
        state.checkpoint_id = state.batch_id

    def _clean_up(self) -> None:
        """Delete what the checkpoint before the newest one made superfluous, if it is old enough.

        The age only keeps files in place that others are about to read. What counts is the order: each anchor goes
        before the batches that come after it.
        """
        self._cleaned_at = clock.monotonic()
        listing = self.listing()
        checkpoints = sorted(listing.compact_ids)
        if len(checkpoints) < 2:
            return
        before_ms = self.objects.now_ms() - CLEANUP_DELAY_MS
        young = [file.batch_id for file in listing.files if file.modified_ms > before_ms]
        self._delete_before(anchor_of(min([checkpoints[-2], *young])), listing)

    def _delete_before(self, keep_from: int, listing: BatchListing) -> None:
        """Delete all files before an anchor that a checkpoint has made superfluous."""
        old = [file for file in listing.files if file.batch_id < keep_from]
        anchors = [file for file in old if file.batch_id == anchor_of(file.batch_id) and not file.is_compact]
        for anchor in anchors:
            delete_batches(self, [anchor], listing)
        delete_batches(self, [file for file in old if file not in anchors], listing)
