"""Rows of data as text: a table while it fits the window, else one column below the other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
from rich.text import Text

from siltstone.cli.text_parts import Shown, new_facts, new_grid
from siltstone.ingest.export import plain

_CHUNK_ROWS = 1000
_NARROW = 16
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


def rows_text(batches: Iterator[pa.RecordBatch], schema: pa.Schema, width: int) -> Iterator[Shown]:
    """Show rows a chunk at a time, each as wide as the first one or wider; nothing where there are none."""
    names = schema.names
    numbers = [pa.types.is_integer(each.type) or pa.types.is_floating(each.type) for each in schema]
    widths = [0] * len(names)
    is_first = True
    for rows in _chunks(batches):
        cells = [[to_cell(row[name]) for name in names] for row in rows]
        if is_first:
            widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
        if sum(min(each, _NARROW) + 2 for each in widths) > width:
            for row in rows:
                yield from (() if is_first else ("",))
                yield record_text(row)
                is_first = False
            continue
        grid = new_grid(*(f">{name}" if number else f"{name}" for name, number in zip(names, numbers, strict=True)))
        grid.show_header = is_first
        for column, name, least in zip(grid.columns, names, widths, strict=True):
            column.header, column.no_wrap, column.min_width = Text(name), False, min(least, _NARROW)
        for row_cells in cells:
            grid.add_row(*row_cells)
        yield grid
        is_first = False


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    waiting: list[dict[str, Any]] = []
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            waiting += batch.slice(start, _CHUNK_ROWS).to_pylist()
            if len(waiting) >= _CHUNK_ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def record_text(row: Mapping[str, Any]) -> Shown:
    """Show one row, a column on each line."""
    facts = new_facts()
    for name, value in row.items():
        facts.add_row(Text(name), to_cell(value))
    return facts


def to_cell(value: Any) -> Text:
    """Write a value on one line."""
    if value is None:
        return Text("null", style="dim")
    shown = plain(value)
    text = str(shown).lower() if isinstance(shown, bool) else _json(shown) if _is_nested(shown) else str(shown)
    return Text(text.translate(_CONTROLS))


def _is_nested(value: object) -> bool:
    return isinstance(value, dict | list)


def _json(value: Mapping[str, object] | Sequence[object]) -> str:
    return orjson.dumps(value).decode()
