"""`siltstone tag`, `tags` and `untag`: names for states of a table that are kept."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.completion import complete_tag
from siltstone.cli.options import DryRun, Shell, TableName, argument, command, option
from siltstone.cli.parts import Note, Shown, new_grid
from siltstone.text import format_count, format_time

if TYPE_CHECKING:
    from siltstone.table.tags import Tag

TagName = Annotated[str, argument("NAME", "The name of the tag, e.g. release-7.", autocompletion=complete_tag)]

app = typer.Typer()


@command(
    app,
    "tag",
    "siltstone tag shop.orders release-7",
    "siltstone tag shop.orders year-end --as-of 2025-12-31T23:59:59Z",
    "siltstone tag shop.orders good --round 12 --replace",
)
def tag(
    shell: Shell,
    name: TableName,
    tag: TagName,
    as_of: Annotated[
        str | None,
        option(
            "--as-of WHEN",
            "A stream position, an ISO 8601 time, or another tag; else as compacted.",
            autocompletion=complete_tag,
        ),
    ] = None,
    round_id: Annotated[int | None, option("--round N", "After this round, of a table with one partition.")] = None,
    replace: Annotated[bool, option("--replace", "Move the tag to this state if another one has it.")] = False,
) -> None:
    """Name a state of a table, so that it is kept.

    No vacuum removes a tagged state, and --as-of NAME reads it.
    """
    made = shell.lake.table(name).tag(tag, as_of=as_of, round_id=round_id, overwrite=replace)
    rows = "" if made.rows is None else f", {format_count(made.rows, 'row')}"
    waiting = f", {format_count(made.waiting_deltas, 'delta')} merged on read" if made.waiting_deltas else ""
    sentence = f"{name}: tag {made.name} names position {made.position}{rows}{waiting}."
    shell.emit({"table": name, "tag": made}, [sentence])


@command(app, "tags", "siltstone tags shop.orders")
def tags(shell: Shell, name: TableName) -> None:
    """List the tags of a table."""
    known = shell.lake.table(name).tags()
    shell.emit(known, _tags_text(name, known))


def _tags_text(table: str, known: "Sequence[Tag]") -> Iterator[Shown]:
    if not known:
        yield Note(f"{table}: no tags.")
        return
    grid = new_grid("tag", ">position", "rounds", ">rows", ">deltas", "made (UTC)")
    for each in known:
        numbers = list(each.rounds.values())
        rounds = str(numbers[0]) if len(numbers) == 1 else f"of {format_count(len(numbers), 'partition')}"
        rows = "" if each.rows is None else f"{each.rows:,}"
        grid.add_row(
            each.name, str(each.position), rounds, rows, str(each.waiting_deltas), format_time(each.created_at)
        )
    yield grid


@command(app, "untag", "siltstone untag shop.orders release-7")
def untag(shell: Shell, name: TableName, tag: TagName, dry_run: DryRun = False) -> None:
    """Remove a tag.

    Files that only this tag kept are removed by the next vacuum.
    """
    table = shell.lake.table(name)
    gone = table.find_tag(tag) if dry_run else table.untag(tag)
    verb = "would be" if dry_run else "was"
    shell.emit({"table": name, "dry_run": dry_run, "tag": gone}, [f"{name}: tag {gone.name} {verb} removed."])
