"""The source position: where a change happened at its source, as bytes of one width that sort in that order.

A byte for the kind of source, then four big-endian unsigned integers, of which the first is mostly the time of the
change in microseconds: logs of a source are renamed and started anew, and a second snapshot reads old rows again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WIDTH = 33
_MOST = (1 << 64) - 1
# Numbers are stored with rows, so they stay as they are; what is not known comes last.
CONNECTORS = {
    "arrival": 0, "postgresql": 1, "mysql": 2, "mariadb": 3, "sqlserver": 4, "oracle": 5, "mongodb": 6, "db2": 7,
    "maxwell": 16, "canal": 17, "goldengate": 18, "dms": 19, "other": 255,
}  # fmt: skip
_SEQUENCE = re.compile(r'\s*\[\s*(?:null|"?(\d+)"?)\s*,\s*(?:null|"?(\d+)"?)\s*\]\s*\Z')
_FILE_NUMBER = re.compile(r"(\d+)\Z")
_LSN = re.compile(r"([0-9a-fA-F]{8}):([0-9a-fA-F]{8}):([0-9a-fA-F]{4})\Z")


def pack(connector: str, numbers: Sequence[int]) -> bytes:
    """Return a position of up to four numbers; what is out of range becomes the nearest that is not."""
    padded = [*numbers, 0, 0, 0, 0][:4]
    code = CONNECTORS.get(connector, CONNECTORS["other"])
    return bytes([code]) + b"".join(min(max(each, 0), _MOST).to_bytes(8, "big") for each in padded)


def pack_columns(connector: str, numbers: Sequence[npt.NDArray[np.uint64]]) -> "pa.Array[Any]":
    """Return the positions of many changes, given by four columns of numbers."""
    count = len(numbers[0])
    data = np.zeros((count, WIDTH), np.uint8)
    data[:, 0] = CONNECTORS.get(connector, CONNECTORS["other"])
    for place, each in enumerate(numbers):
        data[:, 1 + place * 8 : 9 + place * 8] = each.astype(">u8").view(np.uint8).reshape(count, 8)
    offsets = np.arange(0, (count + 1) * WIDTH, WIDTH, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def of_source(source: Mapping[str, Any], op: str, transaction: Mapping[str, Any] | None = None) -> bytes | None:
    """Return the position of a Debezium event, None where its `source` does not have one.

    Of changes at one place of the log, a delete comes first: a key that changes is a delete and a create.
    """
    connector = source.get("connector") or _guessed(source)
    time_us = _time_us(source)
    order = _number((transaction or {}).get("total_order"))
    place = (order * 2 if order else 0) + (0 if op == "d" else 1)
    if connector in ("mysql", "mariadb"):
        return pack(
            connector,
            [time_us, file_number(source.get("file")), _number(source.get("pos")), _number(source.get("row"))],
        )
    if connector == "sqlserver":
        serial = min(_number(source.get("event_serial_no")), (1 << 32) - 1)
        lsns = _lsn_bytes(source.get("commit_lsn")) + _lsn_bytes(source.get("change_lsn"))
        return pack(connector, [time_us])[:9] + lsns + serial.to_bytes(4, "big")
    if connector == "oracle":
        return pack(connector, [time_us, _number(source.get("commit_scn")), _number(source.get("scn")), place])
    if connector == "mongodb":
        return pack(connector, [time_us, _number(source.get("ord")), 0, place])
    if connector == "postgresql":
        commit, lsn = sequence_of(source.get("sequence"))
        return pack(connector, [time_us, commit, lsn or _number(source.get("lsn")), place])
    if not time_us:
        return None
    numbers = [source.get(name) for name in ("commit_lsn", "lsn", "pos", "change_lsn")]
    known = [_number(each) for each in numbers if isinstance(each, int | str) and str(each).isdecimal()]
    return pack("other", [time_us, *[*known, 0, 0][:2], place])


def _guessed(source: Mapping[str, Any]) -> str:
    """Return which connector wrote a `source` that does not name it, as flattened rows do not."""
    if "file" in source and "pos" in source:
        return "mysql"
    return "postgresql" if "lsn" in source or "sequence" in source else "other"


def _time_us(source: Mapping[str, Any]) -> int:
    if source.get("ts_us") is not None:
        return _number(source["ts_us"])
    if source.get("ts_ns") is not None:
        return _number(source["ts_ns"]) // 1000
    return _number(source.get("ts_ms")) * 1000


def _number(value: Any) -> int:
    if isinstance(value, bool) or value is None:
        return 0
    if isinstance(value, int):
        return max(value, 0)
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() else 0


def sequence_of(text: Any) -> tuple[int, int]:
    """Return the two numbers of PostgreSQL's `sequence`: the last commit's place in the log, and the change's own."""
    found = _SEQUENCE.match(text) if isinstance(text, str) else None
    return (0, 0) if found is None else (int(found[1] or 0), int(found[2] or 0))


def file_number(name: Any) -> int:
    """Return the number of a binary log by its name, e.g. 7 of `mysql-bin.000007`."""
    found = _FILE_NUMBER.search(name) if isinstance(name, str) else None
    return 0 if found is None else int(found[1])


def _lsn_bytes(text: Any) -> bytes:
    found = _LSN.match(text) if isinstance(text, str) else None
    return bytes(10) if found is None else bytes.fromhex(found[1] + found[2] + found[3])
