"""What text output is made of: a console, tables without lines, and cells."""

from typing import IO, NoReturn

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Shown = str | RenderableType
"""One piece of output: a line, or a table."""

# Wide enough that nothing is ever cut where no window says how wide it is.
_PIPE_WIDTH = 100_000
_READABLE_WIDTH = 10
_SHORT = ("time (UTC)", "engine", "file", "action")


class _Console(Console):
    """A console that leaves it to the command to end when nobody reads any more."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def new_console(file: IO[str], width: int | None = None) -> Console:
    """Make a console for one of the standard streams, as wide as its window where no width is given."""
    is_terminal = file.isatty()
    return _Console(
        file=file,
        width=width if is_terminal else _PIPE_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )


def least_width(what: RenderableType) -> int:
    """Return how wide a window must be for nothing of a table to be cut, and for text to be read."""
    if isinstance(what, Padding):
        return least_width(what.renderable) + what.left + what.right
    if not isinstance(what, Table):
        return 0
    console = Console(width=_PIPE_WIDTH)
    width = 0
    for column in what.columns:
        cells = [column.header, *column.cells]
        widest = max(Measurement.get(console, console.options, cell).maximum for cell in cells)
        width += 2 + (widest if column.no_wrap else min(widest, _READABLE_WIDTH))
    return width


def new_grid(*headers: str) -> Table:
    """Make a table with these columns; a name that begins with `>` is that of numbers."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        is_number = header.startswith(">")
        grid.add_column(
            header.removeprefix(">"),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number or header in _SHORT,
        )
    return grid


def new_facts() -> Table:
    """Make a table of names and their values."""
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    return facts


def to_text(value: object) -> Text:
    """Write a cell. Text, not markup: a column called [red] is called that."""
    return Text("" if value is None else str(value))
