"""Documents from files and to files: JSON lines."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import orjson

from siltstone.errors import AlreadyExistsError, InvalidInputError

STANDARD_INPUT = "-"


@contextlib.contextmanager
def open_lines(file: str) -> Iterator[tuple[Iterator[bytes], str]]:
    """Yield the lines of a file, or of standard input for `-`, and its name for messages. Raises: InvalidInputError."""
    if file == STANDARD_INPUT:
        yield iter(sys.stdin.buffer), "standard input"
        return
    if "://" in file or file.endswith((".gz", ".bz2")):
        # It takes Arrow, which plain files do not.
        from siltstone.ingest.data_file import Location, compression_of

        with Location(file, file, compression_of(file)).opened() as stream:
            data = stream.read()
        yield iter(io.BytesIO(data)), file
        return
    try:
        with Path(file).open("rb") as lines:
            yield lines, file
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror or error}; give a file that can be read") from error


class JsonLine(NamedTuple):
    """A line of a file: where it is, the JSON object on it, or why there is none, and its text."""

    place: str
    value: dict[str, object] | InvalidInputError
    text: str


def read_lines(file: str, form: str) -> Iterator[JsonLine]:
    """Yield the lines that are not empty; `form` is an example for messages. Raises: InvalidInputError."""
    with open_lines(file) as (lines, name):
        for number, line in enumerate(lines, 1):
            if line.strip():
                text = line.decode(errors="replace").rstrip("\r\n")
                yield JsonLine(f"{name}, line {number}", _object_of(line, form), text)


def _object_of(line: bytes, form: str) -> dict[str, object] | InvalidInputError:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return InvalidInputError(f"not valid JSON ({error}); write {form} on a line")
    return value if isinstance(value, dict) else InvalidInputError(f"not a JSON object; write {form}")


def read_objects(file: str, form: str) -> Iterator[dict[str, object]]:
    """Yield the JSON object on each line; `form` is an example for messages. Raises: InvalidInputError."""
    for line in read_lines(file, form):
        if isinstance(line.value, InvalidInputError):
            raise InvalidInputError(f"{line.place}: {line.value}") from line.value.__cause__
        yield line.value


def read_cases(file: str) -> Iterator[bytes]:
    """Yield the cases of a file, one a line; one case may also be spread over all lines. Raises: InvalidInputError."""
    with open_lines(file) as (all_lines, _):
        lines = (line for line in all_lines if line.strip())
        first = next(lines, b"")
        if not first or _is_json(first):
            yield from ([first] if first else [])
            yield from lines
            return
        rest = list(lines)
        whole = b"".join([first, *rest])
        yield from [whole] if _is_json(whole) else [first, *rest]


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def write_lines(lines: Iterable[str], file: str, *, overwrite: bool = False) -> tuple[int, int]:
    """Write lines to a file, which is there whole or not at all; return how many there were, and the file's bytes.

    Raises: AlreadyExistsError, InvalidInputError.
    """
    # It takes Arrow, which reading does not.
    from siltstone.ingest.export import replacing

    if not overwrite and Path(file).exists():
        raise AlreadyExistsError(f"{file}: already exists; use --overwrite to replace it")
    count = 0
    with replacing(file) as unfinished, Path(unfinished).open("w", encoding="utf-8") as output:
        for line in lines:
            output.write(line + "\n")
            count += 1
    return count, Path(file).stat().st_size
