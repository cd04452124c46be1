"""What text output is made of: lines, tables without rules, and cells; and the console that prints them.

Rich is imported when something is printed: `--help`, `--json` and `documents eval` do without.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, NoReturn, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

Item = TypeVar("Item")
Shown: TypeAlias = "str | RenderableType"
"""One piece of output: a line, or a table."""

# Wide enough that nothing is ever cut where no window says how wide it is.
_PIPE_WIDTH = 100_000
_READABLE_WIDTH = 10
_SHORT = ("time (UTC)", "engine", "file", "action")


class Line(str):
    """A line that is written as it is, at once: there may be millions."""


class Note(str):
    """A line about the output rather than of it, for standard error."""


def styled(*pieces: str | tuple[str, str]) -> "Text":
    """Return a line of texts, each with its style where it has one."""
    from rich.text import Text

    return Text.assemble(*pieces)


def to_text(value: object) -> "Text":
    """Return a cell. Text, not markup: a column called [red] is called that."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return Text("" if value is None else str(value))


def new_grid(*headers: str) -> "Table":
    """Return a table with these columns; a name that begins with `>` is that of numbers."""
    from rich.table import Table

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


def grid_of(items: Iterable[Item], columns: Mapping[str, Callable[[Item], object]]) -> "Table":
    """Return a table with a row for each item; a column whose name ends with `?` is left out where it is empty."""
    rows = list(items)
    cells = {name: [cell(item) for item in rows] for name, cell in columns.items()}
    kept = {name.removesuffix("?"): column for name, column in cells.items() if not name.endswith("?") or any(column)}
    grid = new_grid(*kept)
    for row in zip(*kept.values(), strict=True):
        grid.add_row(*map(to_text, row))
    return grid


def new_facts(facts: Iterable[tuple[str, object]]) -> "Table":
    """Return a table of names and their values; those that are empty are left out."""
    from rich.table import Table

    grid = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts:
        if value != "":
            grid.add_row(to_text(name), to_text(value))
    return grid


def indented(part: "RenderableType") -> "Padding":
    """Return a table two columns further to the right."""
    from rich.padding import Padding

    return Padding(part, (0, 0, 0, 2), expand=False)


def show(parts: Iterable[Shown]) -> None:
    """Print on standard output, as it comes: whole lines in a pipe, as wide as needed on a terminal."""
    from rich.text import Text

    console = new_console(sys.stdout)
    for part in parts:
        if isinstance(part, Line):
            sys.stdout.write(f"{part}\n")
        elif isinstance(part, Note):
            # What is said about rows is not one of them: a program that counts lines must not see it.
            new_console(sys.stderr).print(Text(part, style="dim"), soft_wrap=True)
        elif isinstance(part, str | Text):
            console.print(to_text(part), soft_wrap=True)
        elif console.is_terminal:
            # In a narrow window, lines go on below; a number that is cut off would be another number.
            width = least_width(part)
            (new_console(sys.stdout, width) if width > console.width else console).print(part)
        else:
            with console.capture() as captured:
                console.print(part)
            sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def new_console(file: IO[str], width: int | None = None) -> "Console":
    """Return a console for one of the standard streams, as wide as its window where no width is given."""
    from rich.console import Console

    width = width if file.isatty() else _PIPE_WIDTH
    console = Console(file=file, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)
    # Rich would end the process; how it ends when nobody reads any more is up to the command.
    console.on_broken_pipe = _raise_broken_pipe  # type: ignore[method-assign]
    return console


def _raise_broken_pipe() -> NoReturn:
    raise BrokenPipeError


def least_width(what: "RenderableType") -> int:
    """Return how wide a window must be for nothing of a table to be cut, and for text to be read."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.table import Table

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
