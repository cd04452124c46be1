"""What notebooks show of lakes, tables and rows: small tables of HTML, in which everything is escaped."""

import html
import itertools
from collections.abc import Iterable, Sequence

import pyarrow as pa

from siltstone.ingest.export import plain_rows

SHOWN_ROWS = 20
_CELL_LIMIT = 200


def rows_html(batches: pa.RecordBatchReader) -> str:
    """Return the first rows; no more are read than are shown, and one that says there are more."""
    rows = list(itertools.islice((row for batch in batches for row in plain_rows(batch)), SHOWN_ROWS + 1))
    cells = [row.values() for row in rows[:SHOWN_ROWS]]
    more = f"{SHOWN_ROWS} rows, and there are more" if len(rows) > SHOWN_ROWS else ""
    return table_html(batches.schema.names, cells, more)


def table_html(header: Sequence[str], rows: Iterable[Iterable[object]], caption: str = "") -> str:
    """Return a table with what is known of it below."""
    lines: list[Iterable[object]] = [header, *rows]
    marks = ["th", *["td"] * (len(lines) - 1)]
    body = "".join(
        f"<tr>{''.join(f'<{mark}>{_cell(value)}</{mark}>' for value in line)}</tr>"
        for mark, line in zip(marks, lines, strict=True)
    )
    return f"<table>{body}</table>" + (f"<p>{html.escape(caption)}</p>" if caption else "")


def _cell(value: object) -> str:
    if value is None:
        return "<i>null</i>"
    text = str(value)
    return html.escape(text if len(text) <= _CELL_LIMIT else f"{text[:_CELL_LIMIT]}…")
