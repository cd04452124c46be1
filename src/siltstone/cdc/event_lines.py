"""The events of a file or of a stream: a value each, perhaps a key, and the line each came from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import InvalidInputError

Lines = npt.NDArray[np.int64]
_HEAD = re.compile(rb'\s*\{\s*"(key|value)"\s*:\s*')
_NEXT = {b"key": re.compile(rb'\s*,\s*"value"\s*:\s*'), b"value": re.compile(rb'\s*,\s*"key"\s*:\s*')}
# Lines that begin so are taken apart; others stay as they lie.
_SPLIT = re.compile(rb'(?:\s*(?:null\s*)?\n)*\s*\{\s*"(key|value|schema)"')
_LONGEST_NULL = 16
_NULLS = pa.array([b"", b"\r", b"null", b"null\r"], pa.binary())


@dataclass(frozen=True)
class Events:
    """JSON events as bytes; a null value is a tombstone. `lines` says where each came from, counting from 1."""

    values: "pa.Array[pa.Scalar[pa.DataType]]"
    keys: "pa.Array[pa.Scalar[pa.DataType]] | None"
    lines: Lines

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of_lines(cls, data: bytes, first_line: int = 1) -> "Events":
        """Take JSON lines apart: each is a value alone, or `{"key": …, "value": …}`; empty lines and null are tombstones."""
        if not _SPLIT.match(data):
            values = _whole_lines(data)
            return cls(values, None, np.arange(first_line, first_line + len(values), dtype=np.int64))
        lines = [line.rstrip() for line in data.split(b"\n")]
        if not lines[-1]:
            lines.pop()
        numbers = np.arange(first_line, first_line + len(lines), dtype=np.int64)
        if any(_key_and_value(line) is not None for line in lines[:100]):
            pairs = [_key_and_value(line) or (b"", line) for line in lines]
            return cls(_or_null([value for _, value in pairs]), _or_null([key for key, _ in pairs]), numbers)
        return cls(_or_null(lines), None, numbers)

    @classmethod
    def of_batch(cls, batch: "pa.RecordBatch | pa.Table", first_line: int = 1) -> "Events":
        """Take a `value` column and, where there is one, a `key` column, of bytes or text, as Kafka gives them.

        Raises: InvalidInputError.
        """
        names = batch.schema.names
        if "value" not in names:
            raise InvalidInputError(
                f"change events need a column 'value' of bytes or text, and perhaps 'key'; there are {', '.join(names)}"
            )
        lines = np.arange(first_line, first_line + batch.num_rows, dtype=np.int64)
        return cls(_bytes(batch, "value"), _bytes(batch, "key") if "key" in names else None, lines)

    def slice(self, start: int, stop: int) -> "Events":
        """Return the events from one place up to another."""
        keys = None if self.keys is None else self.keys.slice(start, stop - start)
        return Events(self.values.slice(start, stop - start), keys, self.lines[start:stop])

    def text(self) -> "bytes | pa.Buffer | None":
        """Return all values as JSON lines; None where values have line breaks inside."""
        joined = _as_they_lie(self.values)
        if joined is not None:
            return joined
        data = b"\n".join(value.rstrip() for value in self.values.to_pylist())
        return data if data.count(b"\n") == len(self) - 1 else None

    def take(self, rows: "npt.NDArray[np.int64] | npt.NDArray[np.bool_]") -> "Events":
        """Return some of the events, by their places or by flags."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        chosen = pa.array(places)
        keys = None if self.keys is None else self.keys.take(chosen)
        return Events(self.values.take(chosen), keys, self.lines[places])


def _whole_lines(data: bytes) -> "pa.Array[pa.Scalar[pa.DataType]]":
    """Return lines, each with its line break, without copying them."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data)) if data else ends
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    array = pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    short = np.flatnonzero(np.diff(offsets) <= _LONGEST_NULL)
    empty = [place for place in short.tolist() if array[place].as_py().strip() in (b"", b"null")]
    if not empty:
        return array
    if empty[-1] == len(array) - 1 and not array[empty[-1]].as_py().strip():
        empty.pop()
        array = array.slice(0, len(array) - 1)
    mask = np.zeros(len(array), np.bool_)
    mask[empty] = True
    return array.take(pa.array(np.arange(len(array)), mask=mask)) if empty else array


def _as_they_lie(values: "pa.Array[pa.Scalar[pa.DataType]]") -> "pa.Buffer | None":
    """Return the bytes of values that are whole lines, one after another; None where they are not."""
    _, offset_buffer, data = values.buffers()
    if not len(values) or data is None or values.null_count:
        return None
    offsets = np.frombuffer(offset_buffer, np.int32)[values.offset : values.offset + len(values) + 1]
    text = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    breaks = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n")) + 1 + offsets[0]
    ends = offsets[1:]
    if len(breaks) == len(ends) - 1:
        ends = ends[:-1]
    return text if np.array_equal(breaks, ends) else None


def concat(parts: Sequence[Events]) -> Events:
    """Return all events one after another."""
    keys = None
    if any(part.keys is not None for part in parts):
        keys = pa.concat_arrays([pa.nulls(len(p), pa.binary()) if p.keys is None else p.keys for p in parts])
    return Events(
        pa.concat_arrays([part.values for part in parts]), keys, np.concatenate([part.lines for part in parts])
    )


def _or_null(values: Sequence[bytes]) -> "pa.Array[pa.Scalar[pa.DataType]]":
    array = pa.array(values, pa.binary())
    is_null = pc.is_in(array, _NULLS)
    return pc.if_else(is_null, pa.scalar(None, pa.binary()), array) if pc.any(is_null).as_py() else array


def _bytes(batch: "pa.RecordBatch | pa.Table", name: str) -> "pa.Array[pa.Scalar[pa.DataType]]":
    column = batch.column(name)
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type) or pa.types.is_null(column.type)):
        column = _plain_bytes(column, name)
    column = column.cast(pa.binary())
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    is_null = pc.is_in(column, pa.array([b"null", b""], pa.binary()))
    return pc.if_else(is_null, pa.scalar(None, pa.binary()), column) if pc.any(is_null).as_py() else column


def _plain_bytes(
    column: "pa.ChunkedArray[pa.Scalar[pa.DataType]]", name: str
) -> "pa.ChunkedArray[pa.Scalar[pa.DataType]]":
    try:
        return column.cast(pa.binary())
    except pa.ArrowException as error:
        raise InvalidInputError(f"column {name!r} of change events is {column.type}; give bytes or text") from error


def _key_and_value(line: bytes) -> tuple[bytes, bytes] | None:
    """Take a line with a key and a value apart, as bytes; None for any other line."""
    head = _HEAD.match(line)
    if head is None:
        return None
    first = head[1]
    for separator in _NEXT[first].finditer(line, head.end()):
        one, other = line[head.end() : separator.start()], line[separator.end() :].rstrip()
        if not other.endswith(b"}") or other[:1] not in (b"{", b"n") or not _is_object(one):
            continue
        return (one, other[:-1].rstrip()) if first == b"key" else (other[:-1].rstrip(), one)
    return None


def _is_object(text: bytes) -> bool:
    """Return whether text is null or a JSON object; a row with columns called key and value has others there."""
    if text.lstrip()[:1] not in (b"{", b"n"):
        return False
    try:
        return isinstance(orjson.loads(text), dict | None)
    except orjson.JSONDecodeError:
        return False
