"""What conditions can ask about a document besides its content."""

from typing import Final, Protocol

from siltstone.documents.language.values import Json

ID: Final = "~id"
TABLE: Final = "~table"
VERSION: Final = "~version"
SIGNATURE: Final = "~signature"
DELETED: Final = "~deleted"
FIRST_UPDATE_AT: Final = "~firstUpdateAt"
LAST_UPDATE_AT: Final = "~lastUpdateAt"
LAST_MUTATE_AT: Final = "~lastMutateAt"
PLACEMENT: Final = "~placement"
TAGS: Final = "~tags"

# A version depends on which deltas have been seen so far, so no condition may rest on it.
ASKABLE: Final = (
    ID,
    TABLE,
    SIGNATURE,
    DELETED,
    FIRST_UPDATE_AT,
    LAST_UPDATE_AT,
    LAST_MUTATE_AT,
    PLACEMENT,
)
RESERVED: Final = frozenset({*ASKABLE, VERSION, TAGS})

_MASK: Final = 0xFFFFFFFF


class Intrinsics(Protocol):
    """A document as it was before the delta that asks."""

    def intrinsic(self, name: str) -> Json:
        """Return one of `ASKABLE`; times as ISO 8601 in milliseconds, null before the first delta."""

    def partition(self, count: int) -> int:
        """Return which of `count` partitions the document is in, from 1."""


def partition_of(table: str, key: str, count: int) -> int:
    """Return the partition, from 1 to `count`, that a document of this table and key belongs to."""
    unsigned = _murmur3((table + key).encode())
    signed = unsigned - (1 << 32) if unsigned >> 31 else unsigned
    return abs(signed) % count + 1


def _murmur3(data: bytes) -> int:
    """Return the 32-bit MurmurHash3 with seed 0."""
    state = 0
    for start in range(0, len(data), 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & _MASK
        state ^= _rotated(word, 15) * 0x1B873593 & _MASK
        if start + 4 <= len(data):
            state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK
