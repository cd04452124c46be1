"""The bytes of a batch file: a version line, then one JSON text per line; read and written in bounded memory.

A *block* is a run of whole lines joined by newlines, without one at its end: what can be copied from file to file
without looking inside.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

from siltstone.errors import CorruptionError

VERSION = 1
BLOCK_BYTES = 256 << 10
_LINES_PER_CHUNK = 4096
_HEADER_LIMIT_BYTES = 1024
_VERSION = re.compile(r"v([1-9][0-9]*)", re.ASCII)


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


def check_lines(block: bytes) -> None:
    """Check that no line of a block is blank. Raises: ValueError."""
    if not block or block.startswith(b"\n") or block.endswith(b"\n") or b"\n\n" in block:
        raise ValueError("a line is blank")


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
    try:
        parse_version(line.decode("utf-8", "replace"), max_version, writer)
    except CorruptionError as error:
        raise unreadable(where, str(error)) from error
    if rest:
        yield rest
    yield from chunks
