"""What makes a commit log prove itself: how batches and checkpoints are written, and checked when they are read.

The first line after the version is the head. It has the number of lines that follow, a checksum of the whole file, and,
in a batch, the digest of the batch before: a file that is cut, changed, swapped or foreign is noticed by its reader. A
checkpoint has the digest of the last batch that it sums up, so that the chain goes on from there.
"""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from siltstone.errors import CorruptionError
from siltstone.log import wire

COMMIT_KEY = "commit"
CHECKPOINT_KEY = "checkpoint"
CHAINED_SINCE = 3
"""The first version of files that have such a head."""
START_BYTES = 128
"""So many bytes from the start of a batch are enough to see whose it is."""
_WRITE_ID = re.compile(rb'\Av[0-9]+\n\{"key":"commit","write_id":"([0-9a-f]{32})"')
_CHECKSUM = b',"checksum":"%08x"}'
_CHECKSUM_BYTES = len(_CHECKSUM % 0)
_FEW_LINES = 100_000

Head = Mapping[str, Any]


class ChainedFile(NamedTuple):
    """A file that was read and is whole. Files of earlier versions have no head and no digest."""

    head: Head
    lines: list[bytes]
    digest: str | None


def digest_of(data: bytes) -> str:
    """Return what the next batch has to say of this one."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def encode_batch(head: Head, lines: list[bytes], version: int) -> tuple[bytes, ChainedFile]:
    """Return a batch's content, and what its readers see. The head is an entry of the log itself, under the key of commits."""
    whole = {"key": COMMIT_KEY, **head}
    first, *chunks = encode_chunks(whole, lambda: wire.chunks_of(lines), len(lines), version)
    data = b"".join([first, *chunks])
    return data, ChainedFile(whole, [first.partition(b"\n")[2], *lines], digest_of(data))


def encode_chunks(head: Head, body: Callable[[], Iterable[bytes]], line_count: int, version: int) -> Iterator[bytes]:
    """Yield a file's content; `body` returns its chunks, each line with a newline before it.

    It is called twice where the lines are many: the checksum comes first, and they need not be in memory once more.
    """
    start = wire.header(version) + b"\n" + orjson.dumps({**head, "lines": line_count})[:-1]
    chunks = list(body()) if line_count <= _FEW_LINES else None
    checksum = zlib.crc32(start)
    for chunk in body() if chunks is None else chunks:
        checksum = zlib.crc32(chunk, checksum)
    yield start + _CHECKSUM % checksum
    yield from body() if chunks is None else chunks


def decode(data: bytes, where: str, max_version: int, writer: str) -> ChainedFile:
    """Return a file's lines, the head of a batch among them, if nothing of it is missing or changed.

    Raises: CorruptionError, naming `where`.
    """
    if not data:
        raise wire.unreadable(where, "Incomplete log file: it is empty.")
    first, _, rest = data.partition(b"\n")
    try:
        version = wire.parse_version(first.decode("utf-8", "replace"), max_version, writer)
    except CorruptionError as error:
        raise wire.unreadable(where, str(error)) from error
    line, _, body = rest.partition(b"\n")
    stated = line[-_CHECKSUM_BYTES:]
    if version < CHAINED_SINCE:
        if stated.startswith(_CHECKSUM[:13]):
            raise wire.unreadable(where, f"It says that its version is {version}, but files of that had no checksum.")
        return ChainedFile({}, rest.split(b"\n") if rest else [], None)
    checksum = zlib.crc32(
        data[len(first) + 1 + len(line) :], zlib.crc32(data[: len(first) + 1 + len(line) - len(stated)])
    )
    if stated != _CHECKSUM % checksum:
        raise wire.unreadable(where, "Its checksum is wrong: it was cut short, or changed after it was written.")
    head: Head = orjson.loads(line)
    lines = body.split(b"\n") if body else []
    if len(lines) != head["lines"]:
        raise wire.unreadable(where, f"It has {len(lines)} lines after its head, which says {head['lines']}.")
    return ChainedFile(head, lines if head["key"] == CHECKPOINT_KEY else [line, *lines], digest_of(data))


def is_chained(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is of a version whose files have a head."""
    version = start.partition(b"\n")[0].removeprefix(b"v")
    return version.isdigit() and int(version) >= CHAINED_SINCE


def write_id_in(start: bytes) -> str | None:
    """Return whose batch begins with these bytes."""
    match = _WRITE_ID.match(start)
    return None if match is None else match.group(1).decode()
