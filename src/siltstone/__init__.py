"""Siltstone compacts streams of change deltas into query-ready tables and documents, on Spark."""

import importlib
from typing import TYPE_CHECKING

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

__version__ = "0.2.0"

if TYPE_CHECKING:
    from siltstone.document_table import DocumentTable
    from siltstone.lake import Lake, Table, open  # noqa: A004
    from siltstone.spark.compaction import compact_partition
    from siltstone.table.scan import Scan
    from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot

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
    "PartitionSnapshot",
    "Scan",
    "SiltstoneError",
    "StorageError",
    "Table",
    "TableSnapshot",
    "__version__",
    "compact_partition",
    "open",
]

_MODULES = {
    "DocumentTable": "siltstone.document_table",
    "Lake": "siltstone.lake",
    "PartitionSnapshot": "siltstone.table.snapshot",
    "Scan": "siltstone.table.scan",
    "Table": "siltstone.lake",
    "TableSnapshot": "siltstone.table.snapshot",
    "compact_partition": "siltstone.spark.compaction",
    "open": "siltstone.lake",
}


def __getattr__(name: str) -> object:
    # The command line imports this package for every answer, also for `--help`; Arrow waits until a lake is opened.
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
