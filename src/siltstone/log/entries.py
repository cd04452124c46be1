"""Which entries of a commit log expire: those that say so, and ids of commits from before they did."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

import orjson

from siltstone.errors import CorruptionError, InvalidInputError, SiltstoneError
from siltstone.log.chain import CHECKPOINT_KEY
from siltstone.log.codec import DECODING_ERRORS, ObjectCodec
from siltstone.log.compactible import CompactibleLog, LogOptions
from siltstone.objects import Objects

EXPIRES_AT = "expires_at"
_MARK = b'"expires_at":'
_OLD_IDS = b'{"key":"transaction/'
_OLD_IDS_LAST_MS = 30 * 24 * 3600 * 1000


def may_expire(line: bytes) -> bool:
    """Return whether an entry may expire some time."""
    return _MARK in line or line.startswith(_OLD_IDS)


def is_expired(line: bytes, now_ms: int) -> bool:
    """Return whether an entry that may expire can be dropped by now; one that is damaged never is."""
    try:
        entry = orjson.loads(line)
        if EXPIRES_AT in entry:
            return int(entry[EXPIRES_AT]) <= now_ms
        return line.startswith(_OLD_IDS) and int(entry["committed_at"]) + _OLD_IDS_LAST_MS < now_ms
    except (ValueError, KeyError, TypeError):
        return False


Entry = dict[str, Any]
VERSION = 3
"""What batches say in their first line.

1: columns had no ids, so that names alone showed which one was meant. 2: batches had no checksum, nor the digest of the one
before.
"""


class StoredEntry(Entry):
    """An entry as it was read from a log; where it turns out damaged, it can tell which file it is from."""

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


class KeyedLog(CompactibleLog[Entry]):
    """A log in which a later entry replaces an earlier one with its key, or only removes it.

    Every batch has the plain file `N`; `N.compact` comes beside it and says the same as all batches up to N.
    """

    reconciles = True
    writer = "Siltstone"

    def __init__(self, objects: Objects, folder: str, **options: Unpack[LogOptions]) -> None:
        options.setdefault("version", VERSION)
        super().__init__(objects, folder, ObjectCodec(), **options)

    def key(self, entry: Entry) -> str | None:
        """Return what a later entry must share to replace this one."""
        key = entry.get("key")
        return key if isinstance(key, str) else None

    def is_removal(self, entry: Entry) -> bool:
        """Return whether nothing is live by the entry: it removes what has its key, or is the head of a checkpoint."""
        return entry.get("removed") is True or entry.get("key") == CHECKPOINT_KEY

    def name_of(self, batch_id: int) -> str:
        """Return the one name under which a batch is committed, whatever the interval."""
        return str(batch_id)
