"""Change-data envelopes: bytes and a table's columns in; rows, operations, source positions and rejects out."""

from siltstone.cdc.changes import (
    CHANGE_FORMATS,
    OP_COLUMN,
    SOURCE_POSITION,
    Carry,
    ChangeFormat,
    Changes,
    Decoded,
    FindRows,
    Options,
    Reject,
    Target,
    Truncate,
)
from siltstone.cdc.decode import decode
from siltstone.cdc.event_lines import Events

__all__ = [
    "CHANGE_FORMATS",
    "OP_COLUMN",
    "SOURCE_POSITION",
    "Carry",
    "ChangeFormat",
    "Changes",
    "Decoded",
    "Events",
    "FindRows",
    "Options",
    "Reject",
    "Target",
    "Truncate",
    "decode",
]
