"""Rows and documents as text: a table while it fits the window, else one column below the other; the explanation of a key."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
from rich.table import Table
from rich.text import Text

from siltstone.cli.render.parts import Line, Note, Shown, grid_of, indented, new_console, new_facts, new_grid, render
from siltstone.cli.results import (
    Documents,
    DocumentStatus,
    Done,
    Explained,
    Exported,
    FoundRows,
    History,
    HoldList,
    Rows,
    Timeline,
)
from siltstone.ingest.export import plain
from siltstone.table.explain import Explanation, KeyEvent
from siltstone.text import format_bytes, format_count, format_pairs, format_partition, format_time

_CHUNK_ROWS = 1000
_NARROW = 16
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}


@render.register
def _(rows: Rows) -> Iterator[Shown]:
    """A table of rows, and how many more there are where that is known."""
    counted = _Counted(rows.batches, rows.shown)
    yield from rows_text(counted, rows.schema, new_console(sys.stdout).width)
    if counted.is_cut:
        of_all = f" of {rows.total:,}" if rows.total is not None else ""
        yield Note(f"{counted.rows:,}{of_all} rows; --limit N shows more, --output FILE writes all.")
    elif not counted.rows:
        yield Note(f"{rows.table}: no rows.")
    if rows.uncompacted:
        yield Note(
            f"{format_count(rows.uncompacted, 'delta')} not compacted yet; --include-uncompacted shows them too."
        )


class _Counted:
    """Batches that are cut after `most` rows, and counted on the way."""

    def __init__(self, batches: Iterator[pa.RecordBatch], most: int | None) -> None:
        self._batches = batches
        self._most = most
        self.rows = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            left = batch.num_rows if self._most is None else self._most - self.rows
            self.is_cut = batch.num_rows > left
            self.rows += min(left, batch.num_rows)
            yield batch.slice(0, left)


def rows_text(batches: Iterable[pa.RecordBatch], schema: pa.Schema, width: int) -> Iterator[Shown]:
    """Show rows a chunk at a time, each as wide as the first one or wider."""
    names = schema.names
    numbers = [pa.types.is_integer(field.type) or pa.types.is_floating(field.type) for field in schema]
    widths = [0] * len(names)
    is_first = True
    for rows in _chunks(batches):
        cells = [[to_cell(row[name]) for name in names] for row in rows]
        if is_first:
            widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
        if sum(min(width, _NARROW) + 2 for width in widths) > width:
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


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
    waiting: list[dict[str, Any]] = []
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            waiting += batch.slice(start, _CHUNK_ROWS).to_pylist()
            if len(waiting) >= _CHUNK_ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting


def record_text(row: Mapping[str, Any]) -> Table:
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


@render.register
def _(exported: Exported) -> Iterator[Shown]:
    """One sentence."""
    what = f"{format_count(exported.rows, 'row')} to {exported.file} ({format_bytes(exported.bytes)})"
    yield f"{exported.table}: wrote {what}."


@render.register
def _(lookup: FoundRows) -> Iterator[Shown]:
    """Each row, a column on each line."""
    for number, row in enumerate(lookup.items):
        yield from ([""] if number else [])
        yield record_text(row)
    if not lookup.items:
        waiting = f"; {format_count(lookup.uncompacted, 'delta')} not compacted yet" if lookup.uncompacted else ""
        yield f"{lookup.table}: no compacted row has {format_pairs(lookup.key)}{waiting}."


@render.register
def _(explained: Explained) -> Iterator[Shown]:
    """The explanation of the key in each partition."""
    for number, explanation in enumerate(explained.items):
        yield from ([""] if number else [])
        yield from render(explanation)
    if not explained.items:
        yield f"{explained.table}: no delta has {format_pairs(explained.key)}."


@render.register
def _(explanation: Explanation) -> Iterator[Shown]:
    """The events in order, then why the row is what it is, then the row."""
    key = ", ".join(f"{name} = {to_cell(value)}" for name, value in explanation.key.items())
    partition = f", partition {format_partition(explanation.partition)}" if explanation.partition else ""
    yield Text(f"{explanation.table}{partition}: {key}", style="bold")
    if explanation.events:
        yield ""
        yield indented(_events_grid(explanation))
        yield ""
    if explanation.why:
        yield explanation.why
    yield from explanation.notes
    row = explanation.row if explanation.events else explanation.compacted_row
    if row is not None:
        yield ""
        yield indented(record_text(row))


def _events_grid(explanation: Explanation) -> Table:
    grid = grid_of(
        explanation.events,
        {
            "": lambda event: "→" if event.is_winner else "",
            ">position": lambda event: event.stream_position,
            "time (UTC)": lambda event: format_time(event.committed_at),
            "type": lambda event: event.kind,
            "what it did": lambda event: event.effect,
            "values": lambda event: _values(event, set(explanation.key)),
        },
    )
    for row, event in zip(grid.rows, explanation.events, strict=True):
        row.style = "bold" if event.is_winner else ""
    return grid


def _values(event: KeyEvent, keys: set[str]) -> str:
    return ", ".join(f"{name} {to_cell(value)}" for name, value in event.values.items() if name not in keys)


@render.register
def _(done: Done) -> Iterator[Shown]:
    yield Line(done.sentence)


@render.register
def _(documents: Documents) -> Iterator[Shown]:
    for document in documents.documents:
        yield Line(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


@render.register
def _(status: DocumentStatus) -> Iterator[Shown]:
    yield status.state
    yield from render(Documents([status.document]))


@render.register
def _(timeline: Timeline) -> Iterator[Shown]:
    for event in timeline.items:
        mark = "redundant" if event.is_redundant else "owned" if event.is_owned else event.kind
        yield Line(f"{event.at}  {event.change_id}  {mark:<10}  {event.delta}{_tags(event.tags)}")
        if event.note:
            yield Line(f"{'':26}{event.note}")
    if not timeline.items:
        yield Line(f"nothing was written to {timeline.key}")


@render.register
def _(history: History) -> Iterator[Shown]:
    from siltstone.documents.language import value_text

    version = 0
    for entry in history.items:
        if entry.version > version + 1:
            first, last = version + 1, entry.version - 1
            yield f"version {first} is not kept" if first == last else f"versions {first} to {last} are not kept"
        version = entry.version
        yield Line(f"{entry.at}  {entry.change_id}  version {entry.version}  {entry.delta}{_tags(entry.tags)}")
        yield Line(f"{'':26}{'deleted' if entry.content is None else value_text(entry.content)}")
    if not history.items:
        yield Line(f"nothing was written to {history.key}")


def _tags(tags: Sequence[str]) -> str:
    return f"  #{' #'.join(tags)}" if tags else ""


@render.register
def _(holds: HoldList) -> Iterator[Shown]:
    for hold in holds.items:
        reason = f"  {hold.reason}" if hold.reason else ""
        yield Line(f"{hold.hold_id}  since {format_time(hold.since_ms)}  until {format_time(hold.until_ms)}{reason}")
    if not holds.items:
        yield f"nothing of {holds.table} is held"
