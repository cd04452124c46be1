"""`siltstone documents …`: tables of documents, and the language of their deltas."""

import datetime
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from siltstone.cli import rounds
from siltstone.cli.options import Master, Shell, TableName, argument, command, new_group, option, parse_duration_ms
from siltstone.cli.parts import Line, Shown
from siltstone.cli.rows import emit_export
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.text import format_count, format_duration, format_iso_time, format_time

if TYPE_CHECKING:
    from siltstone.document_table import Document
    from siltstone.documents.timeline import Difference, HistoryEntry, TimelineEvent
    from siltstone.table.completion import Hold

CasesFile = Annotated[str | None, argument("FILE", "The cases, one JSON object per line.  [default: standard input]")]

app = new_group(
    "Work with tables of JSON documents.",
    "siltstone documents create shop.reviews",
    """siltstone documents update shop.reviews r17 '{"stars":4,"text":"good"}'""",
    "siltstone documents get shop.reviews r17",
)


@command(
    app,
    "create",
    "siltstone documents create shop.reviews",
    "siltstone documents create shop.reviews --full-consistency-delay 15m --description 'what people write'",
)
def create(
    shell: Shell,
    name: TableName,
    delay: Annotated[
        str, option("--full-consistency-delay TIME", "How old a change may be when it is written, e.g. 15m.")
    ] = "5m",
    keep_history: Annotated[
        bool, option("--keep-history", "Keep each delta that compaction absorbs, for `documents history`.")
    ] = False,
    retention: Annotated[str | None, option("--history-retention TIME", "Keep them only this long, e.g. 90d.")] = None,
    description: Annotated[str, option("--description TEXT", "What it is for.")] = "",
) -> None:
    """Create a table of JSON documents."""
    delay_ms = parse_duration_ms(delay, "--full-consistency-delay")
    kept: bool | datetime.timedelta = keep_history
    if retention is not None:
        kept = datetime.timedelta(milliseconds=parse_duration_ms(retention, "--history-retention"))
    docs = shell.lake.create_document_table(
        name, full_consistency_delay=delay_ms / 1000, keep_history=kept, description=description
    )
    sentence = f"created {docs.name}, a table of documents; changes may be {format_duration(delay_ms)} old when written"
    fields = {"table": docs.name, "full_consistency_delay_ms": delay_ms, "keep_history": kept is not False}
    _emit_done(shell, sentence, fields)


@command(
    app,
    "update",
    """siltstone documents update shop.reviews r17 '{"stars":4,"text":"good"}'""",
    """siltstone documents update shop.reviews r17 '{..,"stars":5}' --tag edit""",
    "siltstone documents update shop.reviews --from updates.jsonl",
)
def update(
    shell: Shell,
    name: TableName,
    key: Annotated[str | None, argument("KEY", "The document.")] = None,
    delta: Annotated[str | None, argument("DELTA", 'A JSON map, or what to change, e.g. {..,"n":1}.')] = None,
    tags: Annotated[list[str] | None, option("--tag TAG", "A tag, at most three.")] = None,
    change_id: Annotated[
        str | None, option("--change-id ID", "The id of this change, so that repeating it is safe.")
    ] = None,
    file: Annotated[
        str | None,
        option("--from FILE", "Updates as JSON lines with key, delta, tags, change_id; - for standard input."),
    ] = None,
) -> None:
    """Apply deltas to one document, or to many from a file.

    All deltas of a file are one commit.
    """
    if (file is None) != (key is not None and delta is not None) or (file is not None and (key or tags or change_id)):
        raise typer.BadParameter("use a key and a delta, or a file with --from", param_hint="KEY DELTA")
    docs = shell.lake.document_table(name)
    if key is not None and delta is not None:
        change_id = docs.update(key, delta, tags or [], change_id)
        fields = {"table": name, "key": key, "change_id": change_id}
        _emit_done(shell, f"updated {key} by change {change_id}", fields)
        return
    from siltstone.ingest.document_lines import read_objects

    updates = docs.update_many(read_objects(file or "", '{"key": …, "delta": …}'))
    _emit_done(shell, f"applied {format_count(updates, 'delta')} to {name}", {"table": name, "updates": updates})


@command(
    app,
    "import",
    "siltstone documents import shop.reviews old-store.jsonl --dry-run",
    "siltstone documents import shop.reviews old-store.jsonl --skip-existing",
    "siltstone documents import shop.reviews cells.jsonl --rejects bad",
)
def import_(
    shell: Shell,
    name: TableName,
    file: Annotated[str, argument("FILE", "JSON lines, one per document; - for standard input.")],
    skip_existing: Annotated[bool, option("--skip-existing", "Skip documents that are stored already.")] = False,
    rejects: Annotated[
        str | None, option("--rejects DIR", "Write documents that do not fit there, with the reason, and go on.")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Check them and show what would be imported.")] = False,
) -> None:
    """Import documents of another store, with their history.

    Each commit holds 10,000 documents. Importing the same again adds nothing.

    A line is {"key": text, "deltas": [{"id", "delta", "tags"}], "compactions": [{"id", "count", "first", "cutoff",
    "cutoff_signature", "last_content_mutation", "last_mutation", "compacted_delta", "last_tags"}], "history": [{"id",
    "version", "delta", "tags", "content"}]}. A record without compacted_delta is a legacy one: its content is the delta at
    its cutoff. Or it is {"key": text, "cells": {id: value}}, with values as the store itself has them (D1, D2, D3, C1, H1).
    """
    docs = shell.lake.document_table(name)
    shell.when_interrupted = "What is committed stays; importing the same again adds only the rest."
    with shell.progress(f"Reading {file}") as progress:
        done = docs.import_file(file, skip_existing=skip_existing, rejects=rejects, dry_run=dry_run, progress=progress)
    parts = [f"{'would import' if dry_run else 'imported'} {format_count(done.imported, 'document')} into {name}"]
    if done.repeated:
        parts.append(f"{format_count(done.repeated, 'document')} imported before")
    if done.skipped:
        parts.append(f"{format_count(done.skipped, 'document')} left out, stored already")
    if done.rejected:
        parts.append(f"{format_count(done.rejected, 'document')} put aside in {', '.join(done.rejects_files)}")
    _emit_done(shell, "; ".join(parts), {"table": name, **done._asdict(), "dry_run": dry_run})


@command(
    app,
    "get",
    "siltstone documents get shop.reviews r17 r18",
    "siltstone documents get shop.reviews r17 --change febb5880-2c64-11e4-8000-000000000000",
)
def get(
    shell: Shell,
    name: TableName,
    keys: Annotated[list[str], argument("KEY...", "The documents.")],
    change_id: Annotated[
        str | None, option("--change ID", "Show the state of a change: resolved, redundant or pending.")
    ] = None,
) -> None:
    """Print documents.

    What is known about a document itself is under keys that begin with ~.
    """
    if change_id is not None and len(keys) != 1:
        raise typer.BadParameter("--change applies to one document; name one key", param_hint="--change")
    docs = shell.lake.document_table(name)
    if change_id is None:
        documents = docs.get_many(keys)
        shell.emit_lines(documents, _documents_text(documents))
        return
    status = docs.get_for_change(keys[0], change_id)
    shell.emit(status, itertools.chain([status.state], _documents_text([status.document])), one_line=True)


def _documents_text(documents: "Iterable[Document]") -> Iterator[Shown]:
    for document in documents:
        yield Line(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


@command(app, "timeline", "siltstone documents timeline shop.reviews r17")
def timeline(shell: Shell, name: TableName, key: Annotated[str, argument("KEY", "The document.")]) -> None:
    """Show what happened to a document, delta by delta.

    Each delta is shown with what it changed, the content after it and its state: waiting, compacted (absorbed by a
    compaction, but still stored), or in history only. Compactions are listed as well.
    """
    events = shell.lake.document_table(name).timeline(key)
    shell.emit(events, _timeline_text(key, events), one_line=True)


def _timeline_text(key: str, events: "Sequence[TimelineEvent]") -> Iterator[Shown]:
    for event in events:
        version = "" if event.version is None else f"version {event.version}"
        what = "compaction" if event.kind == "compaction" else f"{event.delta}{_tags(event.tags)}"
        yield Line(f"{event.at}  {event.change_id}  {event.state:<9}  {version:<10}  {what}")
        for line in _event_lines(event):
            yield Line(f"{'':26}{line}")
    if not events:
        yield Line(f"nothing was written to {key}")


def _event_lines(event: "TimelineEvent") -> Iterator[str]:
    from siltstone.documents.language import value_text

    if event.note:
        yield event.note
    yield from map(_difference_text, event.differences or ())
    if event.version is None:
        yield "the content after it is not known any more"
    elif not event.is_redundant:
        yield f"= {'deleted' if event.content is None else value_text(event.content)}"


def _difference_text(difference: "Difference") -> str:
    from siltstone.documents.language import value_text

    place, before, after = ".".join(difference.path), value_text(difference.before), value_text(difference.after)
    if difference.kind == "added":
        return f"+ {place}: {after}"
    return f"- {place}: {before}" if difference.kind == "removed" else f"~ {place}: {before} -> {after}"


@command(
    app,
    "history",
    "siltstone documents history shop.reviews r17",
    "siltstone documents history shop.reviews r17 --json | jq '.[].version'",
    "siltstone documents history shop.reviews > changes.jsonl",
)
def history(
    shell: Shell,
    name: TableName,
    key: Annotated[str | None, argument("KEY", "The document.  [default: all, as JSON lines in no order]")] = None,
) -> None:
    """Show every version of a document, compacted or not.

    The table must keep its history: `documents create --keep-history`, or `table alter --set keep_history=true`.
    """
    docs = shell.lake.document_table(name)
    if key is None:
        from siltstone.ingest.export import plain_rows

        for batch in docs.to_dataset(history=True).scanner().to_batches():
            for row in plain_rows(batch):
                _print(_dumps(row))
        return
    entries = docs.history(key)
    shell.emit(entries, _history_text(key, entries), one_line=True)


def _history_text(key: str, entries: "Sequence[HistoryEntry]") -> Iterator[Shown]:
    from siltstone.documents.language import value_text

    version = 0
    for entry in entries:
        if entry.version > version + 1:
            first, last = version + 1, entry.version - 1
            yield f"version {first} is not kept" if first == last else f"versions {first} to {last} are not kept"
        version = entry.version
        yield Line(f"{entry.at}  {entry.change_id}  version {entry.version}  {entry.delta}{_tags(entry.tags)}")
        yield Line(f"{'':26}{'deleted' if entry.content is None else value_text(entry.content)}")
    if not entries:
        yield Line(f"nothing was written to {key}")


def _tags(tags: Sequence[str]) -> str:
    return f"  #{' #'.join(tags)}" if tags else ""


@command(
    app,
    "compact",
    "siltstone documents compact shop.reviews",
    "siltstone documents compact shop.reviews --full --master 'local[4]'",
)
def compact(
    shell: Shell,
    name: TableName,
    full: rounds.Full = False,
    master: Master = None,
    engine: rounds.Engine = "spark",
) -> None:
    """Compact documents; `siltstone compact` does the same.

    Deltas older than the full consistency delay are absorbed into one record per document; when that record is as old, the
    deltas are deleted.
    """
    shell.lake.document_table(name)
    rounds.compact(shell, name, full=full, master=master, engine=engine)


@command(
    app,
    "hold",
    "siltstone documents hold shop.reviews --for 2h --reason 'nightly export'",
    "siltstone documents hold shop.reviews",
    "siltstone documents hold shop.reviews --release 0d6f1c5e8f3b4a0c9a51f7e2b7c3d4e5",
)
def hold(
    shell: Shell,
    name: TableName,
    duration: Annotated[str | None, option("--for TIME", "Begin a hold for this long, e.g. 90m or 10h.")] = None,
    reason: Annotated[str, option("--reason TEXT", "What it is for.")] = "",
    release: Annotated[str | None, option("--release ID", "End a hold before its time.")] = None,
) -> None:
    """Protect what is stored now from deletion for a while.

    Made for exports that take long. Compaction goes on; only its deletions wait. Without options, holds are listed.
    """
    if duration is not None and release is not None:
        raise typer.BadParameter("begin a hold or end one, not both", param_hint="--release")
    docs = shell.lake.document_table(name)
    if release is not None:
        docs.release(release)
        _emit_done(shell, f"released hold {release}", {"table": name, "released": release})
    elif duration is not None:
        until = datetime.timedelta(milliseconds=parse_duration_ms(duration, "--for"))
        made = docs.hold(until=until, reason=reason)
        sentence = f"hold {made.hold_id}: nothing that is stored now is deleted until {format_time(made.until_ms)}"
        _emit_done(shell, sentence, _hold_fields(made))
    else:
        holds = docs.holds()
        shell.emit([_hold_fields(hold) for hold in holds], _holds_text(name, holds), one_line=True)


def _hold_fields(hold: "Hold") -> Mapping[str, object]:
    times = {"since": format_iso_time(hold.since_ms), "until": format_iso_time(hold.until_ms)}
    return {"hold_id": hold.hold_id, **times, "reason": hold.reason}


def _holds_text(table: str, holds: "Sequence[Hold]") -> Iterator[Shown]:
    for hold in holds:
        reason = f"  {hold.reason}" if hold.reason else ""
        yield Line(f"{hold.hold_id}  since {format_time(hold.since_ms)}  until {format_time(hold.until_ms)}{reason}")
    if not holds:
        yield f"nothing of {table} is held"


@command(
    app,
    "export",
    "siltstone documents export shop.reviews reviews.jsonl",
    "siltstone documents export shop.reviews --include-deleted | jq .stars",
    "siltstone documents export shop.reviews reviews.jsonl --hold 0d6f1c5e8f3b4a0c9a51f7e2b7c3d4e5",
)
def export(
    shell: Shell,
    name: TableName,
    file: Annotated[str | None, argument("FILE", "Where to.  [default: standard output]")] = None,
    hold_id: Annotated[str | None, option("--hold ID", "Documents as they were when this hold began.")] = None,
    include_deleted: Annotated[bool, option("--include-deleted", "Also documents that are deleted.")] = False,
    overwrite: Annotated[bool, option("--overwrite", "Replace the file if it exists.")] = False,
) -> None:
    """Write all documents as JSON lines, in no order.

    Deltas that are not compacted yet are included.
    """
    from siltstone.documents.language import value_text
    from siltstone.ingest.document_lines import write_lines

    documents = shell.lake.document_table(name).scan(hold=hold_id, include_deleted=include_deleted)
    lines = (value_text(document) for document in documents)
    if file is None or file == "-":
        for line in lines:
            _print(line)
        return
    count, size = write_lines(lines, file, overwrite=overwrite)
    emit_export(shell, name, file, count, size, "document")


@command(
    app,
    "eval",
    """siltstone documents eval --delta '{..,"n":1}' --on '{"a":2}'""",
    """siltstone documents eval --delta '{..,"tags":(..,"new",~"old")}' --on '{"tags":["old"]}'""",
    """siltstone documents eval --delta 'if ~ then {"n":0} else {..,"n":~} end'""",
    "siltstone documents eval < cases.jsonl",
    has_root=False,
)
def evaluate(
    shell: Shell,
    delta: Annotated[
        str | None, option("--delta DELTA", "The delta. Without one, cases are read from standard input.")
    ] = None,
    on: Annotated[str | None, option("--on JSON", "What it is applied to.  [default: ~, nothing]")] = None,
) -> None:
    """Apply a delta to a value, and print the result.

    ~ means that nothing is left.

    Cases are read as {"delta": text, "on": value}, one per line, and answered as {"content", "deleted"}, one per line.
    """
    from siltstone.documents.intake import apply_case
    from siltstone.documents.language import UNDEFINED, parse_delta, parse_value, value_text

    if delta is None:
        if on is not None:
            raise typer.BadParameter("--on needs a --delta to apply", param_hint="--delta")
        _answer_cases("-", apply_case)
        return
    change = parse_delta(delta)
    result = change.apply(UNDEFINED if on is None or on.strip() == "~" else parse_value(on, "--on"))
    if shell.json:
        _print(_dumps({"content": None if result is UNDEFINED else result, "deleted": result is UNDEFINED}))
    else:
        _print("~" if result is UNDEFINED else value_text(result))


@command(
    app,
    "expand",
    "siltstone documents expand < case.json",
    "siltstone documents expand cases.jsonl | jq .write",
    has_root=False,
)
def expand(shell: Shell, file: CasesFile = None) -> None:
    """Show what compaction would make of given deltas.

    A case is {"deltas": [{"id", "delta", "tags"}], "compactions": [{"id", "count", "first", "cutoff",
    "cutoff_signature", "last_content_mutation", "last_mutation", "compacted_delta", "last_tags"}], "fct": ms,
    "raw": ms, "ctl": ms or null, "new_id": id}: the row of a document; the times before which deltas, and records,
    are complete everywhere; the time up to which nothing is deleted; and the id of a record to write. Each case is
    answered on a line of its own, a bad one by {"error"}; exit code 1 if there was one.
    """
    from siltstone.documents.intake import expand_case

    _answer_cases(file or "-", expand_case)


@command(
    app,
    "canonical",
    """siltstone documents canonical '{"b":1, "a":(2,1), "c":~}'""",
    """siltstone documents canonical --condition 'or(1, in(3,2))'""",
    "siltstone documents canonical < deltas.txt",
    has_root=False,
)
def canonical(
    shell: Shell,
    texts: Annotated[list[str] | None, argument("DELTA...", "Deltas.  [default: the lines of standard input]")] = None,
    condition: Annotated[bool, option("--condition", "Read conditions, not deltas.")] = False,
) -> None:
    """Print deltas in canonical form: simplified and sorted.

    Lines of standard input are answered one by one, a bad one by {"error"}; exit code 1 if there was one.
    """
    from siltstone.documents.language import parse_condition, parse_delta

    def answer(text: str) -> str:
        canonical = str(parse_condition(text) if condition else parse_delta(text))
        return _dumps({"canonical": canonical}) if shell.json else canonical

    if not texts:
        _answer((line for line in sys.stdin.buffer if line.strip()), lambda line: answer(_decoded(line)))
        return
    for text in texts:
        _print(answer(text))


def _emit_done(shell: Shell, sentence: str, fields: Mapping[str, object]) -> None:
    """Show something small that was done: a sentence for people, fields for programs."""
    shell.emit(fields, [Line(sentence)], one_line=True)


def _answer_cases(file: str, answer: Callable[[object], object]) -> None:
    from siltstone.documents.language import parse_value
    from siltstone.ingest.document_lines import read_cases

    _answer(read_cases(file), lambda line: _dumps(answer(parse_value(_decoded(line), "case"))))


def _answer(lines: Iterator[bytes], answer: Callable[[bytes], str]) -> None:
    """Print an answer to each line; go on after a bad one, and end with exit code 1 then."""
    failed = False
    for line in lines:
        try:
            _print(answer(line))
        except SiltstoneError as error:
            failed = True
            _print(_dumps({"error": str(error)}))
    if failed:
        raise typer.Exit(1)


def _decoded(line: bytes) -> str:
    try:
        return line.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"byte {error.start + 1} is not UTF-8; write the text in UTF-8") from error


def _dumps(value: object) -> str:
    return orjson.dumps(value).decode()


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
