"""`siltstone publish` and `unpublish`: tables for other people's readers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.cli.completion import complete_table
from siltstone.cli.options import Shell, TableName, argument, command, option
from siltstone.cli.parts import Shown, styled
from siltstone.errors import SiltstoneError
from siltstone.text import format_count

if TYPE_CHECKING:
    from siltstone.lake import Lake
    from siltstone.publish.comparison import ReaderCheck
    from siltstone.publish.outcomes import Published, PublishFailure

_STYLES = {"equal": "green", "different": "bold red", "refused": "yellow", "absent": "dim"}

app = typer.Typer()


@dataclass(frozen=True)
class PublishedTable:
    """What was published of a table, or why nothing was, and what other readers found in it."""

    published: "Published | None" = None
    failure: "PublishFailure | None" = None
    readers: "Sequence[ReaderCheck]" = ()

    @property
    def is_well(self) -> bool:
        """Whether it was published, and no reader found anything else in it."""
        return self.failure is None and all(check.state != "different" for check in self.readers)


@command(
    app,
    "publish",
    "siltstone publish shop.orders --as delta",
    "siltstone publish shop.orders --check",
    "siltstone publish --all --json",
)
def publish(
    shell: Shell,
    name: Annotated[
        str | None, argument("TABLE", "The table, e.g. shop.orders.", autocompletion=complete_table)
    ] = None,
    format: Annotated[Literal["delta", "iceberg"], option("--as", "The format.")] = "delta",
    check: Annotated[
        bool, option("--check", "Then compare every row with the readers that are installed here.")
    ] = False,
    every: Annotated[bool, option("--all", "All tables whose property `publish` names a format.")] = False,
    replace: Annotated[bool, option("--replace", "Overwrite what others wrote there in spite of the lock.")] = False,
) -> None:
    """Publish a table as Delta Lake or Iceberg, without a copy.

    Other systems then read the newest compacted state from the table's own files, at the address that is shown; they
    cannot write there. Exit code 1 if a table could not be published, or a reader found other rows in it.
    """
    if (name is None) != every:
        raise typer.BadParameter("give a table, or --all", param_hint="TABLE")
    results = []
    with shell.progress("Looking for tables") as progress:
        for table, wanted in _wanted(shell.lake, name, format):
            progress(f"Publishing {table}")
            results.append(_publish(shell.lake, table, wanted, replace=replace, check=check, stops=not every))
    shell.emit(results, _published_text(results))
    if not all(result.is_well for result in results):
        raise typer.Exit(1)


def _wanted(lake: "Lake", name: str | None, format: str) -> Iterator[tuple[str, str]]:
    if name is not None:
        yield lake.table(name).name, format
        return
    for table in lake.tables():
        yield from ((table.name, wanted) for wanted in table.publish_formats())


def _publish(lake: "Lake", table: str, format: str, *, replace: bool, check: bool, stops: bool) -> PublishedTable:
    from siltstone.publish.outcomes import PublishFailure

    try:
        published = lake.table(table).publish(format, replace=replace)
        readers = list(lake.table(table).check_published(published)) if check else []
    except SiltstoneError as error:
        if stops:
            raise
        return PublishedTable(failure=PublishFailure(table, format, str(error), error.kind))
    return PublishedTable(published, None, readers)


def _published_text(results: Sequence[PublishedTable]) -> Iterator[Shown]:
    if not results:
        yield "No table has the property `publish`; set it with `siltstone table alter TABLE --set publish=delta`."
    for result in results:
        if result.failure is not None:
            yield styled((f"{result.failure.table}: not published: {result.failure.error}", "bold red"))
        published = result.published
        if published is None:
            continue
        yield published_line(published)
        yield f"  {published.address}"
        yield from _reading_lines(published)
        for check in result.readers:
            rows = "" if check.rows is None else f"  {format_count(check.rows, 'row')}"
            detail = f"  {check.detail}" if check.detail else ""
            yield styled(f"  {check.reader:<9} ", (f"{check.state:<9}", _STYLES[check.state]), f"{rows}{detail}")


def _reading_lines(published: "Published") -> Iterator[str]:
    address, newest = published.address, published.address
    if published.format == "iceberg":
        newest = f"{address}/metadata/v{published.version}.metadata.json"
    yield f"  DuckDB  FROM {published.format}_scan('{newest}');"
    yield f"  Polars  pl.scan_{published.format}({newest!r})"
    yield f"  Spark   spark.read.format({published.format!r}).load({address!r})"


def published_line(published: "Published | PublishFailure") -> str:
    """Return in one sentence what was published, or why nothing was."""
    from siltstone.publish.outcomes import PublishFailure

    if isinstance(published, PublishFailure):
        return f"{published.table}: not published: {published.error}"
    if not published.is_new:
        return f"{published.table}: version {published.version} as {published.format} is up to date."
    files = format_count(published.added_files, "file")
    return (
        f"{published.table}: published version {published.version} as {published.format}: {files} added, "
        f"{published.removed_files:,} removed, in {published.seconds * 1000:.0f} ms."
    )


@command(app, "unpublish", "siltstone unpublish shop.orders")
def unpublish(shell: Shell, name: TableName) -> None:
    """Remove what is published of a table; its rows stay.

    The property `publish` is not changed: where it is set, the next compaction publishes the table again.
    """
    table = shell.lake.table(name)
    formats = table.unpublish()
    text = f"{name}: is no longer published as {', '.join(formats)}." if formats else f"{name}: was not published."
    again = "The property `publish` is set, so that the next compaction publishes it again."
    shell.emit({"table": name, "formats": formats}, [text, again] if table.publish_formats() else [text])
