"""The list of tables: which of them are shown, in which order, and on which page of the list."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from siltstone.table.report import TableReport

PAGE_ROWS = 100
# What each order goes by, the largest first but for names.
_ORDERS: dict[str, Callable[[TableReport], float]] = {
    "rows": lambda table: table.rows,
    "size": lambda table: table.bytes,
    "files": lambda table: table.files,
    "dead": lambda table: table.dead_rows,
    "backlog": lambda table: table.backlog_bytes,
    "lag": lambda table: -(table.oldest_at or 1 << 62),
    "writes": lambda table: table.write_amplification or 0.0,
    "reads": lambda table: table.read_amplification or 0.0,
    "round": lambda table: table.last_round.completed_at if table.last_round else 0.0,
}


@dataclass(frozen=True)
class TableList:
    """Tables as asked for: those whose names have a text in them, in an order, so many of them at once."""

    tables: Sequence[TableReport]
    text: str
    order: str
    page: int
    # How many there are at all, and how many have the text.
    total: int
    found: int

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return max(1, -(-self.found // PAGE_ROWS))


def choose_tables(
    tables: Sequence[TableReport], troubled: Collection[str], *, text: str = "", order: str = "", page: int = 1
) -> TableList:
    """Return the tables to show; without an order they go by name, those that are `troubled` or cannot be read first."""
    wanted = text.strip().casefold()
    found = [table for table in tables if wanted in table.name.casefold()]
    key = _ORDERS.get(order)
    if key is not None:
        found.sort(key=lambda table: (-key(table), table.name))
    else:
        order = "name" if order == "name" else ""
        found.sort(key=lambda table: (not order and table.name not in troubled and table.problem is None, table.name))
    last = max(1, -(-len(found) // PAGE_ROWS))
    page = min(max(page, 1), last)
    shown = found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    return TableList(shown, text.strip(), order, page, len(tables), len(found))
