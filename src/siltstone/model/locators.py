"""Locators: the identity of namespaces, tables, versions, streams, partitions and deltas; and which names are allowed."""

import difflib
import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

from siltstone.errors import InvalidInputError
from siltstone.model.dict_model import Model, field

NAME_LIMIT = 128
COLUMN_NAME_LIMIT = 255
RESERVED_COLUMN_PREFIX = "_siltstone_"
UNPARTITIONED = "_"
MAX_STREAM_POSITION = (1 << 63) - 1
PartitionValue = None | bool | int | str
_READABLE_LIMIT = 100
L = TypeVar("L", bound="Locator")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it may name a thing. Raises: InvalidInputError."""
    if not isinstance(name, str):
        raise InvalidInputError(f"{what} must be text, not {type(name).__name__} {name!r}")
    if not name:
        raise InvalidInputError(f"{what} is empty")
    if len(name) > NAME_LIMIT:
        raise InvalidInputError(f"{what} {name[:40]!r}… has {len(name)} characters; at most {NAME_LIMIT} are allowed")
    if not _NAME.match(name) or ".." in name:
        raise InvalidInputError(
            f"{what} {name!r} is not allowed: start with a letter or digit, go on with letters, digits, "
            "'_', '-' and single '.'"
        )
    return name


def check_namespace(name: str) -> str:
    """Return `name` if it may name a namespace: no dot, since `namespace.table` splits at the first one."""
    check_name(name, "namespace")
    if "." in name:
        raise InvalidInputError(f"namespace {name!r} has a dot; the dot separates namespace and table")
    return name


def check_tag(name: str) -> str:
    """Return `name` if it may name a tag: one that no position and no time can be taken for. Raises: InvalidInputError."""
    if not check_name(name, "tag")[0].isalpha():
        raise InvalidInputError(f"tag {name!r} is not allowed: start with a letter, so that it is no position or time")
    return name


def split_table_name(name: str) -> tuple[str, str]:
    """Split `namespace.table`. Raises: InvalidInputError."""
    namespace, dot, table = name.partition(".") if isinstance(name, str) else ("", "", "")
    if not dot:
        raise InvalidInputError(f"table {name!r} has no namespace; write it as namespace.table, e.g. shop.orders")
    return check_namespace(namespace), check_name(table, "table")


def check_column(name: str) -> str:
    """Return `name` if it may name a column. Raises: InvalidInputError."""
    if not name or not name.strip():
        raise InvalidInputError("a column has an empty name; name every column")
    if len(name.encode("utf-8", "surrogatepass")) > COLUMN_NAME_LIMIT:
        raise InvalidInputError(f"column {name[:40]!r}… is longer than {COLUMN_NAME_LIMIT} bytes; shorten it")
    if not name.isprintable():
        raise InvalidInputError(f"column {name!r} has characters that do not print; rename it")
    if name.lower().startswith(RESERVED_COLUMN_PREFIX):
        raise InvalidInputError(f"column {name!r}: the prefix {RESERVED_COLUMN_PREFIX} is reserved; rename it")
    return name


# A commit or a round checks the same few paths again and again.
@functools.lru_cache(maxsize=4096)
def check_path(path: str) -> str:
    """Return the path of an object or folder that stays under the root. Raises: InvalidInputError."""
    if not path or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise InvalidInputError(
            f"path {path!r} is not allowed: paths are relative to the root, without empty, '.' or '..' parts"
        )
    return path


def did_you_mean(name: str, candidates: Sequence[str]) -> str:
    """Return a question that names what is close, or nothing."""
    lowered = {other.lower(): other for other in candidates}
    close = difflib.get_close_matches(name.lower(), lowered, n=2, cutoff=0.7)
    close = close or [other for other in lowered if other.rpartition(".")[2] == name.lower().rpartition(".")[2]][:2]
    return f"; did you mean {' or '.join(lowered[other] for other in close)}?" if close else ""


def check_position(position: int, what: str, *, least: int = 0) -> int:
    """Return a stream position, or refuse what is none; 0 is before all. Raises: InvalidInputError."""
    if isinstance(position, bool) or not isinstance(position, int):
        raise InvalidInputError(f"{what} {position!r} is not a stream position; give a whole number")
    if not least <= position <= MAX_STREAM_POSITION:
        raise InvalidInputError(
            f"{what} {position} is not a stream position; they go from {least} to {MAX_STREAM_POSITION}"
        )
    return position


def check_new_position(requested: int, newest: int, stream: str) -> None:
    """Refuse a position that a delta cannot be committed at. Raises: InvalidInputError."""
    check_position(requested, f"{stream}: after the newest, {newest},", least=1)
    if requested <= newest:
        raise InvalidInputError(
            f"{stream}: stream position {requested} is not after the newest, {newest}; give a higher one or none"
        )


class Locator(Model):
    """What every locator can do; each level adds its part to those of the level above."""

    def canonical_string(self) -> str:
        """Return the one text of this identity, such as `shop/orders/1/deltas/eu,2026-11-15/7`; no part has a `/`.

        Where there are no partition keys, their part is `_`.
        """
        parts = (getattr(self, name) for name in self._fields)
        return "/".join(partition_id(part) if isinstance(part, list) else str(part) for part in parts)

    def _above(self, level: type[L]) -> L:
        return level(**{name: getattr(self, name) for name in level._fields})

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


class TableLocator(NamespaceLocator):
    """A table in a namespace."""

    table: str = field(check=check_name)

    @property
    def full_name(self) -> str:
        """The name as people write it, e.g. `shop.orders`."""
        return f"{self.namespace}.{self.table}"


class TableVersionLocator(TableLocator):
    """One version of a table."""

    table_version: str = field(check=check_name)

    @property
    def table_locator(self) -> TableLocator:
        """The table."""
        return self._above(TableLocator)


class StreamLocator(TableVersionLocator):
    """One stream of a table version."""

    stream: str = field(check=check_name)

    @property
    def table_version_locator(self) -> TableVersionLocator:
        """The table version."""
        return self._above(TableVersionLocator)


class PartitionLocator(StreamLocator):
    """One partition of a stream: the values of the partition keys, in their order."""

    partition_values: list[PartitionValue] = field(default_factory=list)

    @property
    def partition_id(self) -> str:
        """The values as one path-safe segment."""
        return partition_id(self.partition_values)

    @property
    def stream_locator(self) -> StreamLocator:
        """The stream."""
        return self._above(StreamLocator)


class DeltaLocator(PartitionLocator):
    """One delta of a partition; position 0 stands for one that is staged and has none yet."""

    stream_position: int = 0

    @property
    def partition_locator(self) -> PartitionLocator:
        """The partition."""
        return self._above(PartitionLocator)


def partition_value(value: Any) -> PartitionValue:
    """Return a value of a partition key as locators have it: dates as text."""
    return value if value is None or isinstance(value, bool | int | str) else value.isoformat()


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
