"""`siltstone changes` and `consumers`: what changed between rounds, and who takes it under a name."""

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import orjson
import typer

from siltstone.cli.options import DryRun, Shell, TableName, command, option
from siltstone.cli.parts import Line, Note, Shown, new_console, new_grid
from siltstone.cli.rows import SHOWN_ROWS, limited, parse_names, rows_text
from siltstone.errors import InvalidInputError
from siltstone.text import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from siltstone.documents.feed import DocumentChanges
    from siltstone.table.change_feed import Changes
    from siltstone.table.consumers import Consumer

FeedFormat = Literal["table", "jsonl", "debezium"]
WHEN = "A stream position, an ISO 8601 time, round:12, or the rounds of partitions in JSON"
app = typer.Typer()


@command(
    app,
    "changes",
    "siltstone changes shop.orders --after 12 --upto 20",
    "siltstone changes shop.orders --after 2024-05-01T08:00:00Z --format debezium --output orders.jsonl",
    "siltstone changes shop.orders --consumer billing --json | ./bill",
    """siltstone changes shop.reviews --consumer search --where '{..,"stars":ge(4)}' --json | ./index""",
)
def changes(
    shell: Shell,
    name: TableName,
    after: Annotated[str | None, option("--after WHEN", f"{WHEN}; else from the beginning.")] = None,
    upto: Annotated[str | None, option("--upto WHEN", "The same; else all that all partitions have.")] = None,
    columns: Annotated[list[str] | None, option("--columns A,B", "Only these columns, in this order.")] = None,
    images: Annotated[
        Literal["both", "after"], option("--images", "Of updates, the rows before and after them, or after only.")
    ] = "both",
    every_round: Annotated[bool, option("--every-round", "Round by round, instead of the first to the last.")] = False,
    on_rebase: Annotated[
        Literal["difference", "error"], option("--on-rebase", "How to report a rebase in between.")
    ] = "difference",
    consumer: Annotated[
        str | None, option("--consumer NAME", "Continue after what NAME has acknowledged, and acknowledge the rest.")
    ] = None,
    format: Annotated[
        FeedFormat | None, option("--format", "The output format; by default by the file's name.")
    ] = None,
    where: Annotated[
        str | None, option("--where CONDITION", "Of documents: only those that meet it before or after the change.")
    ] = None,
    tags: Annotated[list[str] | None, option("--tag TAG", "Of documents: only changes with one of these tags.")] = None,
    without_tags: Annotated[
        list[str] | None, option("--without-tag TAG", "Of documents: only changes with none of these tags.")
    ] = None,
    to_file: Annotated[str | None, option("--output FILE", "Write to a file.", "-o")] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the --output file if it exists.")] = False,
) -> None:
    """Show what changed in a table between rounds.

    Each changed row is shown as it was before and as it is after. For documents, every change that is not redundant is
    shown in the order of commits, compacted or not.
    """
    if consumer is not None and to_file is None and not shell.json and format in (None, "table"):
        raise typer.BadParameter(
            "goes with --json, --format jsonl, --format debezium or --output", param_hint="--consumer"
        )
    if consumer is not None and overwrite:
        raise typer.BadParameter(
            "a file that was not taken yet would be lost with its changes; take it, or name another",
            param_hint="--overwrite",
        )
    if to_file is not None and format == "table":
        raise typer.BadParameter("a table is shown, not written; use jsonl or debezium", param_hint="--format")
    if shell.lake.table(name).holds_documents:
        if columns or every_round or on_rebase == "error" or format == "debezium":
            hint = "--columns, --every-round, --on-rebase, --format debezium"
            raise typer.BadParameter("goes with tables of rows; changes of documents have one form", param_hint=hint)
        documents = shell.lake.document_table(name).changes(
            after, upto, where=where, tags=tags or (), without_tags=without_tags or (), images=images, consumer=consumer
        )
        _show_documents(shell, documents, to_file, format, overwrite=overwrite)
        return
    if where or tags or without_tags:
        raise typer.BadParameter("is for tables of documents", param_hint="--where, --tag, --without-tag")
    feed = shell.lake.table(name).changes(
        after,
        upto,
        columns=parse_names(columns) or None,
        images=images,
        net=not every_round,
        on_rebase=on_rebase,
        consumer=consumer,
    )
    if to_file is not None:
        _export(shell, feed, to_file, format, overwrite=overwrite)
    elif format in ("jsonl", "debezium"):
        sys.stdout.writelines(line.decode() for line in _lines(feed, format))
    else:
        from siltstone.ingest.export import plain_rows

        shell.emit_lines((row for batch in feed for row in plain_rows(batch)), _changes_text(feed))
    if consumer is not None:
        sys.stdout.flush()
        feed.acknowledge()


def _show_documents(
    shell: Shell, feed: "DocumentChanges", path: str | None, format: FeedFormat | None, *, overwrite: bool
) -> None:
    """Show the changes of documents, or write them to a file; then acknowledge them for a consumer."""
    from siltstone.ingest.export import check_output, check_place, replacing, write_rows

    if path is None:
        lines = (orjson.dumps(fields).decode() + "\n" for fields in feed.to_fields())
        sys.stdout.writelines(lines) if format == "jsonl" else shell.emit_lines(feed.to_fields(), _documents_text(feed))
        sys.stdout.flush()
    else:
        if format == "jsonl":
            check_place(path, overwrite=overwrite)
            with replacing(path) as unfinished:
                fields = (orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in feed.to_fields())
                count, size = _write_lines(unfinished, fields), os.path.getsize(unfinished)
        else:
            file_format = check_output(path, overwrite=overwrite)
            count, size = write_rows(feed.to_batches(), feed.schema, path, file_format)
        result = {"table": feed.name, "file": path, "rows": count, "bytes": size}
        told = f"{feed.name}: wrote {format_count(count, 'change')} to {path} ({format_bytes(size)})."
        shell.emit({**result, "after": feed.after, "upto": feed.upto}, [told, _document_span(feed)])
    if feed.consumer is not None:
        feed.acknowledge()


def _documents_text(feed: "DocumentChanges") -> Iterator[Shown]:
    shown = list(itertools.islice(feed, SHOWN_ROWS + 1))
    for change in shown[:SHOWN_ROWS]:
        tags = "".join(f"  #{tag}" for tag in change.tags)
        delta = "(whole document)" if change.delta is None else change.delta
        yield Line(
            f"{change.position:>8}  {change.change_type:<6}  {change.key}  version {change.version}  {delta}{tags}"
        )
    if len(shown) > SHOWN_ROWS:
        yield Note(f"{SHOWN_ROWS} changes, and more; --json shows all, --output FILE writes all.")
    yield _document_span(feed)


def _document_span(feed: "DocumentChanges") -> Note:
    if feed.after == feed.upto:
        return Note(f"{feed.name}: nothing was committed since position {feed.after}.")
    return Note(f"{feed.name}: after position {feed.after} up to {feed.upto}.")


def _lines(feed: "Changes", format: Literal["jsonl", "debezium"]) -> Iterator[bytes]:
    from siltstone.cdc.debezium_events import encode_changes
    from siltstone.ingest.export import plain_rows

    if format == "jsonl":
        rows = (row for batch in feed for row in plain_rows(batch))
        return (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
    keys = feed.version.primary_keys
    if not keys or not feed.version.drop_duplicates or feed.version.keeps_history:
        raise InvalidInputError(
            f"{feed.name}: has no key with one row, by which a change event could tell it; use jsonl"
        )
    missing = [key for key in keys if key not in feed.columns]
    if missing:
        raise InvalidInputError(f"{feed.name}: change events need the key; add {', '.join(missing)} to --columns")
    namespace, _, table = feed.name.partition(".")
    schema = feed.version.schema.empty_table().select(list(feed.columns)).schema
    return encode_changes(feed, schema, keys, (namespace, table))


def _export(shell: Shell, feed: "Changes", path: str, format: FeedFormat | None, *, overwrite: bool) -> None:
    from siltstone.ingest.export import check_output, check_place, replacing, write_rows

    if format in ("jsonl", "debezium"):
        check_place(path, overwrite=overwrite)
        lines = _lines(feed, format)
        with replacing(path) as unfinished:
            count = _write_lines(unfinished, lines)
            size = os.path.getsize(unfinished)
    else:
        file_format = check_output(path, overwrite=overwrite)
        count, size = write_rows(feed, feed.schema, path, file_format)
    result = {"table": feed.name, "file": path, "rows": count, "bytes": size, "after": feed.after, "upto": feed.upto}
    shell.emit(
        result, [f"{feed.name}: wrote {format_count(count, 'change')} to {path} ({format_bytes(size)}).", _span(feed)]
    )


def _write_lines(path: str, lines: Iterable[bytes]) -> int:
    count = 0
    with open(path, "wb") as file:
        for line in lines:
            file.write(line)
            count += 1
    return count


def _changes_text(feed: "Changes") -> Iterator[Shown]:
    rows = list(limited(feed, SHOWN_ROWS + 1))
    is_cut = sum(batch.num_rows for batch in rows) > SHOWN_ROWS
    schema = feed.schema.remove(feed.schema.get_field_index("_committed_at"))
    shown = [batch.select(schema.names) for batch in limited(rows, SHOWN_ROWS)]
    yield from rows_text(shown, schema, new_console(sys.stdout).width)
    if is_cut:
        yield Note(f"{SHOWN_ROWS} changes, and more; --json shows all, --output FILE writes all.")
    yield _span(feed)


def _span(feed: "Changes") -> Note:
    first, last = feed.positions
    if feed.after == feed.upto:
        return Note(f"{feed.name}: no round since position {first}.")
    rounds = f"rounds {feed.after} to {feed.upto}"
    if len(feed.spans) == 1:
        (older,), (newer,) = feed.after.values(), feed.upto.values()
        rounds = f"round {older} to round {newer}"
    return Note(f"{feed.name}: from {rounds}, position {first} to {last}.")


@command(app, "consumers", "siltstone consumers shop.orders", "siltstone consumers shop.orders --remove billing")
def consumers(
    shell: Shell,
    name: TableName,
    remove: Annotated[
        str | None, option("--remove NAME", "Remove a consumer; nothing is kept for it any longer.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """List the consumers of a table's changes, or remove one."""
    table = shell.lake.table(name)
    known = table.consumers()
    if remove is not None:
        if not dry_run or all(consumer.name != remove for consumer in known):
            table.remove_consumer(remove)
        known = [consumer for consumer in known if consumer.name != remove]
    shell.emit(known, _consumers_text(name, known))


def _consumers_text(table: str, known: "Sequence[Consumer]") -> Iterator[Shown]:
    if not known:
        yield Note(f"{table}: no consumers.")
        return
    grid = new_grid(
        "consumer", "partition", ">round", ">position", ">rounds behind", "acknowledged (UTC)", "held until (UTC)"
    )
    for each in known:
        place = each.name, each.partition, str(each.round_id), str(each.high_watermark), str(each.rounds_behind)
        grid.add_row(*place, format_time(each.acknowledged_at), format_time(each.held_until_at))
    yield grid
