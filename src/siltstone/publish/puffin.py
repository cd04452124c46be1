"""Puffin files, in which Iceberg keeps deletion vectors: their frames one after another, and a footer that says where each is."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import orjson

_MAGIC = b"PFA1"
_ROW_POSITION_ID = 2147483645
_VECTOR_TYPE = "deletion-vector-v1"


class Blob(NamedTuple):
    """A vector in its frame (`rows.vectors`), of the data file at a path."""

    path: str
    row_count: int
    data: bytes


def write_puffin(blobs: Sequence[Blob]) -> tuple[bytes, list[int]]:
    """Return a Puffin file of vectors, and where in it each begins."""
    pieces, offsets, end = [_MAGIC], [], len(_MAGIC)
    for blob in blobs:
        offsets.append(end)
        pieces.append(blob.data)
        end += len(blob.data)
    footer = orjson.dumps(
        {
            "blobs": [
                {
                    "type": _VECTOR_TYPE,
                    "fields": [_ROW_POSITION_ID],
                    "snapshot-id": -1,
                    "sequence-number": -1,
                    "offset": offset,
                    "length": len(blob.data),
                    "properties": {"referenced-data-file": blob.path, "cardinality": str(blob.row_count)},
                }
                for blob, offset in zip(blobs, offsets, strict=True)
            ],
            "properties": {},
        }
    )
    return b"".join([*pieces, _MAGIC, footer, struct.pack("<i", len(footer)), bytes(4), _MAGIC]), offsets
