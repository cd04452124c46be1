"""How deletion vectors lie in an object: in the framing that Delta Lake and Iceberg have in common, so that nothing is copied.

An object has the byte 1, then for each vector: the length of its data (int32, big endian), the data, and their CRC-32
(uint32, big endian). The data are a magic number (int32, little endian) and a portable 64-bit Roaring bitmap. From the
length to the CRC-32 it is also, byte for byte, a blob of the type `deletion-vector-v1` of Iceberg's Puffin files.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

FORMAT_BYTE = b"\x01"
_MAGIC = struct.pack("<i", 1681511377)
_LENGTH = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size
FRAME_BYTES = LENGTH_BYTES + _CHECKSUM.size
"""How much longer a frame is than the data in it."""


class Framed(NamedTuple):
    """One vector within an object: where its data are, after their length, how long they are, and their CRC-32."""

    start: int
    length: int
    checksum: int


def blob_of(dead: BitMap64) -> bytes:
    """Return a vector in its frame: length, data, CRC-32."""
    data = _MAGIC + dead.serialize()
    return _LENGTH.pack(len(data)) + data + _CHECKSUM.pack(zlib.crc32(data))


def frame(vectors: Sequence[BitMap64]) -> tuple[bytes, list[Framed]]:
    """Return an object of vectors, and where in it each is."""
    pieces, places, end = [FORMAT_BYTE], [], len(FORMAT_BYTE)
    for dead in vectors:
        blob = blob_of(dead)
        length = len(blob) - LENGTH_BYTES - _CHECKSUM.size
        places.append(Framed(end + LENGTH_BYTES, length, _CHECKSUM.unpack(blob[-_CHECKSUM.size :])[0]))
        pieces.append(blob)
        end += len(blob)
    return b"".join(pieces), places


def is_whole(data: bytes, place: Framed) -> bool:
    """Return whether an object has an undamaged vector at its place, frame included."""
    start, stop = place.start, place.start + place.length
    return (
        data.startswith(FORMAT_BYTE)
        and data[start - LENGTH_BYTES : start] == _LENGTH.pack(place.length)
        and zlib.crc32(data[start:stop]) == place.checksum
        and data[stop : stop + _CHECKSUM.size] == _CHECKSUM.pack(place.checksum)
    )


def parse_vector(data: bytes) -> BitMap64:
    """Return the vector of framed data, without their length. Raises: ValueError where they are none."""
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin with the number of a deletion vector")
    return BitMap64.deserialize(data[len(_MAGIC) :])


def numbers_in(rows: BitMap64) -> npt.NDArray[np.int64]:
    """Return the numbers in a vector, rising."""
    return np.frombuffer(rows.to_array(), np.uint64).view(np.int64)
