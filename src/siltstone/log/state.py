"""The state of a commit log: keyed entries, which later batches replace or remove, and some of which expire."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from siltstone.errors import CorruptionError, InvalidInputError, SiltstoneError
from siltstone.log import chain, wire
from siltstone.log.chain import CHECKPOINT_KEY, COMMIT_KEY
from siltstone.log.codec import DECODING_ERRORS

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
_KEY_START = b'{"key":"'


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
    """What is live after batch `batch_id`: a mapping from keys to entries, parsed when asked for.

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
            if _may_expire(line):
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
            if line is None or not _may_expire(line):
                self._expiring.remove(key)
            elif _is_expired(line, now_ms):
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
    return orjson.dumps(body)


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
