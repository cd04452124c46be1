"""How the events of one schema are decoded for a table, and what was met on the way."""

from dataclasses import dataclass, field

import pyarrow as pa

from siltstone.cdc.changes import Options, Target
from siltstone.cdc.event_columns import Placeholder
from siltstone.cdc.event_lines import Events
from siltstone.cdc.images import Collected, Column

META_PREFIX = "__"


@dataclass
class Plan:
    """How the events of one schema are decoded for a table."""

    target: Target
    options: Options
    columns: list[Column]
    is_told: bool
    is_flat: bool | None
    collected: Collected
    tables: dict[str, int] = field(default_factory=dict)
    failures: int = 0

    def __post_init__(self) -> None:
        self.placeholder = Placeholder(self.options.placeholder)
        self.by_name = {column.name: column for column in self.columns}
        self.keys = [name for name in self.target.primary_keys if name in self.by_name]

    def count_table(self, name: str, line: int) -> None:
        """Remember which table an event is of."""
        self.tables.setdefault(name, line)


def row_bytes(events: Events, place: int) -> bytes:
    """Return the value of one event."""
    value = events.values[place].as_py()
    return value if isinstance(value, bytes) else b""


def may_be_unavailable(column: Column) -> bool:
    """Return whether null may stand for a large value that did not change."""
    kind, types = column.type, pa.types
    if types.is_list(kind):
        inner = kind.value_type
        return bool(
            types.is_decimal(inner) or types.is_timestamp(inner) or types.is_boolean(inner) or types.is_floating(inner)
        )
    return bool(types.is_decimal(kind)) or column.encoding.name == "variable_decimal"


def null_warning(column: str) -> str:
    """Return the sentence that warns of nulls in a column."""
    return (
        f"column {column!r} is null in updates of a table whose replica identity is not FULL: for its type, the source "
        "writes null for a large value that did not change, too, and nothing tells the two apart; if its values can be "
        "large, ALTER TABLE … REPLICA IDENTITY FULL at the source"
    )
