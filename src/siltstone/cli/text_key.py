"""The story of a key as text: what each delta did to it, and the row it led to."""

from collections.abc import Iterator

from rich.padding import Padding
from rich.text import Text

from siltstone.cli.results_maintenance import KeyEventLine, KeyStory
from siltstone.cli.text_parts import Shown, new_grid, to_text
from siltstone.cli.text_rows import record_text, to_cell
from siltstone.text import format_partition, format_time


def story_text(story: KeyStory) -> Iterator[Shown]:
    """Tell the events in order, then why the row is what it is, then the row."""
    key = ", ".join(f"{name} = {to_cell(value)}" for name, value in story.key.items())
    partition = f", partition {format_partition(story.partition)}" if story.partition else ""
    yield Text(f"{story.table}{partition}: {key}", style="bold")
    if story.events:
        yield ""
        yield Padding(_events_grid(story), (0, 0, 0, 2), expand=False)
        yield ""
    if story.why:
        yield story.why
    yield from story.notes
    row = story.row if story.events else story.compacted_row
    if row is not None:
        yield ""
        yield Padding(record_text(row), (0, 0, 0, 2), expand=False)


def _events_grid(story: KeyStory) -> Shown:
    keys = set(story.key)
    grid = new_grid("", ">position", "time (UTC)", "type", "what it did", "values")
    for event in story.events:
        cells = [format_time(event.committed_at), event.kind, event.effect, _values(event, keys)]
        mark = "→" if event.is_winner else ""
        style = "bold" if event.is_winner else ""
        position = f"{event.stream_position}"
        grid.add_row(to_text(mark), to_text(position), *(to_text(cell) for cell in cells), style=style)
    return grid


def _values(event: KeyEventLine, keys: set[str]) -> str:
    shown = {name: value for name, value in event.values.items() if name not in keys}
    return ", ".join(f"{name} {to_cell(value)}" for name, value in shown.items())
