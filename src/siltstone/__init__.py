"""Siltstone compacts streams of change deltas into query-ready tables and documents, on Spark."""

from siltstone._version import __version__
from siltstone.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
    SiltstoneError,
    StorageError,
)
from siltstone.lake import Lake, Table, open

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "CommitUnknownError",
    "ConflictError",
    "CorruptionError",
    "InvalidInputError",
    "Lake",
    "LeaseLostError",
    "NotFoundError",
    "SiltstoneError",
    "StorageError",
    "Table",
    "__version__",
    "open",
]
