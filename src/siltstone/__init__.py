"""Siltstone compacts streams of change deltas into query-ready tables and documents, on Spark."""

from typing import TYPE_CHECKING

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
    NotInstalledError,
    SiltstoneError,
    StorageError,
)

if TYPE_CHECKING:
    from siltstone.document_table import DocumentTable
    from siltstone.lake import Lake, Table, open  # noqa: A004

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "CommitUnknownError",
    "ConflictError",
    "CorruptionError",
    "DocumentTable",
    "InvalidInputError",
    "Lake",
    "LeaseLostError",
    "NotFoundError",
    "NotInstalledError",
    "SiltstoneError",
    "StorageError",
    "Table",
    "__version__",
    "open",
]

_FROM_LAKE = ("Lake", "Table", "open")


def __getattr__(name: str) -> object:
    # The command line imports this package for every answer, also for `--help`; Arrow waits until a lake is opened.
    if name in _FROM_LAKE:
        from siltstone import lake

        return getattr(lake, name)
    if name == "DocumentTable":
        from siltstone.document_table import DocumentTable

        return DocumentTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
