"""The bytes of a batch file: a version line, then one JSON text per line; read and written in bounded memory.

A *block* is a run of whole lines joined by newlines, without one at its end: what can be copied from file to file
without looking inside.

The files of a commit log prove themselves. The first line after the version is the head: it has the number of lines that
follow, a checksum of the whole file, and, in a batch, the digest of the batch before. So a file that is cut, changed,
swapped or foreign is noticed by its reader. A checkpoint has the digest of the last batch that it sums up, so that the
chain goes on from there.
"""

import hashlib
import itertools
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from siltstone.errors import CorruptionError

VERSION = 1
BLOCK_BYTES = 256 << 10
_LINES_PER_CHUNK = 4096
_HEADER_LIMIT_BYTES = 1024
_VERSION = re.compile(r"v([1-9][0-9]*)", re.ASCII)
COMMIT_KEY = "commit"
CHECKPOINT_KEY = "checkpoint"
CHAINED_SINCE = 3
"""The first version of files that have a head."""
START_BYTES = 128
"""So many bytes from the start of a batch are enough to see whose it is."""
_WRITE_ID = re.compile(rb'\Av[0-9]+\n\{"key":"commit","write_id":"([0-9a-f]{32})"')
_CHECKSUM = b',"checksum":"%08x"}'
_CHECKSUM_BYTES = len(_CHECKSUM % 0)
_FEW_LINES = 100_000

Head = Mapping[str, Any]


def header(version: int) -> bytes:
    """Return the first line of a batch file."""
    return b"v%d" % version


def encode(lines: Iterable[bytes], version: int = VERSION) -> bytes:
    """Return the whole batch file: no newline at its end, so that an empty batch is the version alone."""
    return b"\n".join([header(version), *lines])


def chunks_of(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines a block at a time, each line after a newline."""
    remaining = iter(lines)
    while part := list(itertools.islice(remaining, _LINES_PER_CHUNK)):
        yield b"\n" + b"\n".join(part)


def parse_version(text: str, max_version: int, writer: str = "Spark") -> int:
    """Return the version that a batch file's first line states; `writer` is what writes such files.

    Raises: CorruptionError where it is not a version, or one above `max_version`.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise CorruptionError(f"Log file was malformed: failed to read correct log version from {text[:100]}.")
    version = int(match.group(1)[:20])
    if version > max_version:
        raise CorruptionError(
            f"The maximum supported log version is v{max_version}, but encountered v{version}. The log file was "
            f"produced by a newer version of {writer} and cannot be read by this version. You need to upgrade."
        )
    return version


def _stated_version(line: bytes, where: str, max_version: int, writer: str) -> int:
    try:
        return parse_version(line.decode("utf-8", "replace"), max_version, writer)
    except CorruptionError as error:
        raise unreadable(where, str(error)) from error


def unreadable(where: str, reason: str) -> CorruptionError:
    """Return the error for a damaged batch file."""
    return CorruptionError(f"Failed to read log file {where}. {reason} Restore the file from a copy.")


def read_blocks(
    chunks: Iterable[bytes], where: str, max_version: int = VERSION, writer: str = "Spark"
) -> Iterator[bytes]:
    """Yield the lines after the version as blocks, about as large as the chunks that come in.

    Lines end at a newline, a carriage return, or both. Raises: CorruptionError, naming `where`.
    """
    pieces: list[bytes] = []
    for chunk in _after_header(_with_newlines(chunks), where, max_version, writer):
        cut = chunk.rfind(b"\n")
        if cut < 0:
            pieces.append(chunk)
            continue
        pieces.append(chunk[:cut])
        yield b"".join(pieces)
        pieces = [chunk[cut + 1 :]]
    rest = b"".join(pieces)
    if rest:
        yield rest


def split_block(block: bytes, target_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Cut a block into smaller ones: parsing is faster while what it makes fits the processor's cache."""
    start = 0
    while len(block) - start > target_bytes:
        cut = block.find(b"\n", start + target_bytes)
        if cut < 0:
            break
        yield block[start:cut]
        start = cut + 1
    yield block[start:]


def check_objects(block: bytes, *, edges_only: bool = False) -> None:
    """Check, without parsing, that each line of a block is braced: a torn line must not spread by copying.

    With `edges_only` only the block's own ends are checked, which finds a file cut short, at no cost.
    Raises: ValueError.
    """
    braced = block.startswith(b"{") and block.endswith(b"}")
    if not braced or not (edges_only or block.count(b"\n") == block.count(b"}\n{")):
        torn = next(line for line in block.split(b"\n") if not (line.startswith(b"{") and line.endswith(b"}")))
        raise ValueError(f"{excerpt(torn)} is not a whole entry")


def excerpt(line: bytes) -> str:
    """Return the start of a line, for a message."""
    return repr(line[:80].decode("utf-8", "replace")) + ("..." if len(line) > 80 else "")


def _with_newlines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        if held:
            chunk = held + chunk
            held = b""
        if b"\r" in chunk:
            if chunk.endswith(b"\r"):
                chunk, held = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if chunk:
            yield chunk
    if held:
        yield b"\n"


def _after_header(chunks: Iterator[bytes], where: str, max_version: int, writer: str) -> Iterator[bytes]:
    start = b""
    for chunk in chunks:
        start += chunk
        if b"\n" in chunk or len(start) > _HEADER_LIMIT_BYTES:
            break
    if not start:
        raise unreadable(where, "Incomplete log file: it is empty.")
    line, _, rest = start.partition(b"\n")
    _stated_version(line, where, max_version, writer)
    if rest:
        yield rest
    yield from chunks


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
    first, *chunks = encode_chunks(whole, lines, version)
    data = b"".join([first, *chunks])
    return data, ChainedFile(whole, [first.partition(b"\n")[2], *lines], digest_of(data))


def encode_chunks(head: Head, lines: Collection[bytes], version: int) -> Iterator[bytes]:
    """Yield a file's content. The checksum comes first, so many lines are gone over twice, to save memory."""
    start = header(version) + b"\n" + orjson.dumps({**head, "lines": len(lines)})[:-1]
    chunks = list(chunks_of(lines)) if len(lines) <= _FEW_LINES else None
    checksum = zlib.crc32(start)
    for chunk in chunks_of(lines) if chunks is None else chunks:
        checksum = zlib.crc32(chunk, checksum)
    yield start + _CHECKSUM % checksum
    yield from chunks_of(lines) if chunks is None else chunks


def decode_chained(data: bytes, where: str, max_version: int, writer: str) -> ChainedFile:
    """Return a file's lines, a batch's head among them, if none is missing or changed. Raises: CorruptionError."""
    if not data:
        raise unreadable(where, "Incomplete log file: it is empty.")
    first, _, rest = data.partition(b"\n")
    version = _stated_version(first, where, max_version, writer)
    line, _, body = rest.partition(b"\n")
    stated = line[-_CHECKSUM_BYTES:]
    if version < CHAINED_SINCE:
        if stated.startswith(_CHECKSUM[:13]):
            raise unreadable(where, f"It says that its version is {version}, but files of that had no checksum.")
        return ChainedFile({}, rest.split(b"\n") if rest else [], None)
    checksum = zlib.crc32(
        data[len(first) + 1 + len(line) :], zlib.crc32(data[: len(first) + 1 + len(line) - len(stated)])
    )
    if stated != _CHECKSUM % checksum:
        raise unreadable(where, "Its checksum is wrong: it was cut short, or changed after it was written.")
    head: Head = orjson.loads(line)
    lines = body.split(b"\n") if body else []
    if len(lines) != head["lines"]:
        raise unreadable(where, f"It has {len(lines)} lines after its head, which says {head['lines']}.")
    return ChainedFile(head, lines if head["key"] == CHECKPOINT_KEY else [line, *lines], digest_of(data))


def is_chained(start: bytes) -> bool:
    """Return whether a file that begins with these bytes is of a version whose files have a head."""
    version = start.partition(b"\n")[0].removeprefix(b"v")
    return version.isdigit() and int(version) >= CHAINED_SINCE


def write_id_in(start: bytes) -> str | None:
    """Return whose batch begins with these bytes."""
    match = _WRITE_ID.match(start)
    return None if match is None else match.group(1).decode()
