"""Dict models of everything a lake holds, and the locators that identify them."""

from siltstone.model.entities import (
    COMPACTED_STREAM,
    DEFAULT_STREAM,
    Delta,
    DeltaType,
    Idempotency,
    Manifest,
    ManifestEntry,
    MergeEngine,
    Namespace,
    Partition,
    Stream,
    Table,
    TableVersion,
)
from siltstone.model.locators import (
    DeltaLocator,
    Locator,
    NamespaceLocator,
    PartitionLocator,
    PartitionValue,
    StreamLocator,
    TableLocator,
    TableVersionLocator,
)
from siltstone.model.metafile import Model, field

__all__ = [
    "COMPACTED_STREAM",
    "DEFAULT_STREAM",
    "Delta",
    "DeltaLocator",
    "DeltaType",
    "Idempotency",
    "Locator",
    "Manifest",
    "ManifestEntry",
    "MergeEngine",
    "Model",
    "Namespace",
    "NamespaceLocator",
    "Partition",
    "PartitionLocator",
    "PartitionValue",
    "Stream",
    "StreamLocator",
    "Table",
    "TableLocator",
    "TableVersion",
    "TableVersionLocator",
    "field",
]
