"""Which rows died of files that a round did not carry on: in the round completion, or in an object beside it.

A round that merges or rewrites files moves rows that do not change. With this, and with how many rows of a new file were
carried over, its changes are known without reading what was only moved. It is a shortcut: where it is missing, or damaged, states
are compared as a whole.
"""

import base64
import zlib
from array import array
from collections.abc import Iterable

import orjson
from pyroaring import BitMap64

from siltstone.errors import NotFoundError
from siltstone.log.horizon import new_round_name
from siltstone.model.rounds import DeathRecord
from siltstone.objects import open_objects
from siltstone.rows.columns import Integers
from siltstone.rows.job import Died

# So that a round that changes little makes no more requests for it.
_MOST_INLINE = 8 << 10

Deaths = dict[tuple[str, int], BitMap64]
"""The rows that died, numbered from the first one of the slice, by data file and first row of the slice."""


def died_rows(uri: str, first_row: int, rows: Integers) -> Died:
    """Return rows of a file, or slice, that died, as they travel."""
    dead = BitMap64(array("Q", rows.tobytes()))
    return Died(uri, first_row, base64.b64encode(dead.serialize()).decode())


def write_deaths(root: str, folder: str, began: int, died: Iterable[Died]) -> DeathRecord:
    """Return which rows died; what is too much for a round completion is stored under a new name.

    That says at which batch of the log the round began.
    """
    entries = orjson.dumps(list(died))
    if len(entries) <= _MOST_INLINE:
        return DeathRecord(inline=entries.decode())
    path = f"{folder}/rounds/{new_round_name(began)}.died"
    data = zlib.compress(entries, 1)
    open_objects(root).create(path, data)
    return DeathRecord(uri=path, content_length=len(data), checksum=zlib.crc32(data))


def read_deaths(root: str, record: DeathRecord) -> Deaths | None:
    """Return which rows died, None where that is not there any more."""
    data = (record.inline or "[]").encode()
    if record.uri is not None:
        try:
            packed = open_objects(root).read(record.uri)
        except NotFoundError:
            return None
        if zlib.crc32(packed) != record.checksum:
            return None
        data = zlib.decompress(packed)
    entries = [Died(**each) for each in orjson.loads(data)]
    return {(each.uri, each.first_row): BitMap64.deserialize(base64.b64decode(each.rows)) for each in entries}
