"""Locators: the identity of namespaces, tables, versions, streams, partitions and deltas.

Two locators are equal, and hash alike, when they are of one kind and have one canonical string.
"""

import hashlib
import re
from collections.abc import Sequence

from siltstone.errors import InvalidInputError
from siltstone.model.dict_model import Model, field
from siltstone.model.names import check_name, check_namespace

PartitionValue = None | bool | int | str

UNPARTITIONED = "_"
_READABLE_LIMIT = 100
MAX_STREAM_POSITION = (1 << 63) - 1


def check_position(position: int, what: str, *, least: int = 0) -> int:
    """Return a stream position, or refuse what is none; 0 is before all. Raises: InvalidInputError."""
    if isinstance(position, bool) or not isinstance(position, int):
        raise InvalidInputError(f"{what} {position!r} is not a stream position; give a whole number")
    if not least <= position <= MAX_STREAM_POSITION:
        raise InvalidInputError(
            f"{what} {position} is not a stream position; they go from {least} to {MAX_STREAM_POSITION}"
        )
    return position


class Locator(Model):
    """What every locator can do."""

    def canonical_string(self) -> str:
        """Return the one text of this identity; parts are separated by `/`, which no part has."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.canonical_string() == other.canonical_string()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        return hash((type(self).__name__, self.canonical_string()))

    def __str__(self) -> str:
        return self.canonical_string()


class NamespaceLocator(Locator):
    """A namespace."""

    namespace: str = field(check=check_namespace)

    def canonical_string(self) -> str:
        """Return e.g. `shop`."""
        return self.namespace


class TableLocator(NamespaceLocator):
    """A table in a namespace."""

    table: str = field(check=check_name)

    def canonical_string(self) -> str:
        """Return e.g. `shop/orders`."""
        return f"{self.namespace}/{self.table}"

    @property
    def full_name(self) -> str:
        """The name as people write it, e.g. `shop.orders`."""
        return f"{self.namespace}.{self.table}"


class TableVersionLocator(TableLocator):
    """One version of a table."""

    table_version: str = field(check=check_name)

    def canonical_string(self) -> str:
        """Return e.g. `shop/orders/1`."""
        return f"{super().canonical_string()}/{self.table_version}"

    @property
    def table_locator(self) -> TableLocator:
        """The table."""
        return TableLocator(namespace=self.namespace, table=self.table)


class StreamLocator(TableVersionLocator):
    """One stream of a table version."""

    stream: str = field(check=check_name)

    def canonical_string(self) -> str:
        """Return e.g. `shop/orders/1/deltas`."""
        return f"{super().canonical_string()}/{self.stream}"

    @property
    def table_version_locator(self) -> TableVersionLocator:
        """The table version."""
        return TableVersionLocator(namespace=self.namespace, table=self.table, table_version=self.table_version)


class PartitionLocator(StreamLocator):
    """One partition of a stream: the values of the partition keys, in their order."""

    partition_values: list[PartitionValue] = field(default_factory=list)

    def canonical_string(self) -> str:
        """Return e.g. `shop/orders/1/deltas/eu,2026-11-15`, or `…/_` where there are no partition keys."""
        return f"{super().canonical_string()}/{self.partition_id}"

    @property
    def partition_id(self) -> str:
        """The values as one path-safe segment."""
        return partition_id(self.partition_values)

    @property
    def stream_locator(self) -> StreamLocator:
        """The stream."""
        return StreamLocator(
            namespace=self.namespace, table=self.table, table_version=self.table_version, stream=self.stream
        )


class DeltaLocator(PartitionLocator):
    """One delta of a partition; position 0 stands for one that is staged and has none yet."""

    stream_position: int = 0

    def canonical_string(self) -> str:
        """Return e.g. `shop/orders/1/deltas/_/7`."""
        return f"{super().canonical_string()}/{self.stream_position}"

    @property
    def partition_locator(self) -> PartitionLocator:
        """The partition."""
        return PartitionLocator(
            namespace=self.namespace,
            table=self.table,
            table_version=self.table_version,
            stream=self.stream,
            partition_values=list(self.partition_values),
        )


def check_new_position(requested: int, newest: int, stream: str) -> None:
    """Refuse a position that a delta cannot be committed at. Raises: InvalidInputError."""
    check_position(requested, f"{stream}: after the newest, {newest},", least=1)
    if requested <= newest:
        raise InvalidInputError(
            f"{stream}: stream position {requested} is not after the newest, {newest}; give a higher one or none"
        )


def partition_id(values: Sequence[PartitionValue]) -> str:
    """Write partition values as one segment that is safe in file names and object keys.

    Different values give different segments: null, the empty string and every reserved character are
    escaped with `!`, and what gets too long ends in a hash of the whole.
    """
    if not values:
        return UNPARTITIONED
    text = ",".join(_escape(value) for value in values)
    if len(text) > _READABLE_LIMIT:
        return f"{text[:_READABLE_LIMIT]}!h{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return text


def _escape(value: PartitionValue) -> str:
    if value is None:
        return "!null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not text:
        return "!empty"
    return re.sub(r"[^A-Za-z0-9_.=+-]|^[._]", lambda match: "".join(f"!{byte:02X}" for byte in match[0].encode()), text)
