"""What the commands on tables of documents do and print."""

import contextlib
import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from siltstone.cli.hints import find_table
from siltstone.cli.results import Exported
from siltstone.cli.shell import Shell
from siltstone.document_table import Document, DocumentTable
from siltstone.documents.language import value_text
from siltstone.errors import AlreadyExistsError, InvalidInputError
from siltstone.ingest.export import replacing
from siltstone.text import format_count, format_duration, format_iso_time, format_time

if TYPE_CHECKING:
    from siltstone.table.holds import Hold


def find(shell: Shell, name: str) -> DocumentTable:
    """Return a table of documents. Raises: NotFoundError that also guesses which was meant, InvalidInputError."""
    find_table(shell.lake, name)
    return shell.lake.document_table(name)


def create(shell: Shell, name: str, delay_ms: int, description: str, *, keep_history: bool) -> None:
    """Create a table."""
    delay = datetime.timedelta(milliseconds=delay_ms)
    docs = shell.lake.create_document_table(
        name, full_consistency_delay=delay, keep_history=keep_history, description=description
    )
    if shell.json:
        _print({"table": docs.name, "full_consistency_delay_ms": delay_ms, "keep_history": keep_history})
    else:
        _say(f"created {docs.name}, a table of documents; changes may be {format_duration(delay_ms)} old when written")


def update(shell: Shell, name: str, key: str, delta: str, tags: Sequence[str], change_id: str | None) -> None:
    """Update one document."""
    found = find(shell, name).update(key, delta, tags, change_id)
    if shell.json:
        _print({"table": name, "key": key, "change_id": found})
    else:
        _say(f"updated {key} by change {found}")


def update_from(shell: Shell, name: str, file: str) -> None:
    """Update the documents that the lines of a file name."""
    docs = find(shell, name)
    with _lines_of(file) as (lines, where):
        count = docs.update_many(_objects(lines, where, '{"key": …, "delta": …}'))
    if shell.json:
        _print({"table": name, "updates": count})
    else:
        _say(f"applied {format_count(count, 'delta')} to {name}")


def import_from(shell: Shell, name: str, file: str, *, skip_existing: bool, dry_run: bool) -> None:
    """Import the documents of a file."""
    docs = find(shell, name)
    with _lines_of(file) as (lines, where):
        documents = _objects(lines, where, '{"key": …, "deltas": […], "compactions": […]}')
        done = docs.import_documents(documents, skip_existing=skip_existing, dry_run=dry_run)
    if shell.json:
        _print({"table": name, "imported": done.imported, "skipped": done.skipped, "dry_run": dry_run})
        return
    skipped = f"; {format_count(done.skipped, 'document')} left out, stored already" if done.skipped else ""
    _say(f"{'would import' if dry_run else 'imported'} {format_count(done.imported, 'document')} into {name}{skipped}")


@contextlib.contextmanager
def _lines_of(file: str) -> "Iterator[tuple[Iterable[bytes], str]]":
    """Give the lines of a file, or of standard input, and what it is called. Raises: InvalidInputError."""
    if file == "-":
        yield sys.stdin.buffer, "standard input"
        return
    try:
        with Path(file).open("rb") as lines:
            yield lines, file
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror or error}; give a file that can be read") from error


def _objects(lines: Iterable[bytes], where: str, form: str) -> "Iterator[dict[str, object]]":
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidInputError(f"{where}, line {number}: is not JSON ({error}); write {form} on a line") from error
        if not isinstance(found, dict):
            raise InvalidInputError(f"{where}, line {number}: is not a JSON object; write {form}")
        yield found


def get(shell: Shell, name: str, keys: Sequence[str], change_id: str | None) -> None:
    """Print documents."""
    docs = find(shell, name)
    if change_id is None:
        for document in docs.get_many(keys):
            _show(shell, document)
        return
    status = docs.get_for_change(keys[0], change_id)
    if shell.json:
        _print({"state": status.state, "document": status.document})
    else:
        _say(status.state)
        _show(shell, status.document)


def timeline(shell: Shell, name: str, key: str) -> None:
    """Print what is stored of a document."""
    events = find(shell, name).timeline(key)
    if shell.json:
        _print([event._asdict() for event in events])
        return
    for event in events:
        mark = "redundant" if event.is_redundant else "owned" if event.is_owned else event.kind
        tags = f"  #{' #'.join(event.tags)}" if event.tags else ""
        _say(f"{event.at}  {event.change_id}  {mark:<10}  {event.delta}{tags}")
        if event.note:
            _say(f"{'':26}{event.note}")
    if not events:
        _say(f"nothing was written to {key}")


def history(shell: Shell, name: str, key: str) -> None:
    """Print the changes of a document, with the content after each."""
    entries = find(shell, name).history(key)
    if shell.json:
        _print([entry._asdict() for entry in entries])
        return
    version = 0
    for entry in entries:
        if entry.version > version + 1:
            first, last = version + 1, entry.version - 1
            _say(f"version {first} is not kept" if first == last else f"versions {first} to {last} are not kept")
        version = entry.version
        tags = f"  #{' #'.join(entry.tags)}" if entry.tags else ""
        _say(f"{entry.at}  {entry.change_id}  version {entry.version}  {entry.delta}{tags}")
        _say(f"{'':26}{'deleted' if entry.content is None else value_text(entry.content)}")
    if not entries:
        _say(f"nothing was written to {key}")


def hold(shell: Shell, name: str, duration_ms: int, reason: str) -> None:
    """Begin a hold."""
    made = find(shell, name).hold(until=datetime.timedelta(milliseconds=duration_ms), reason=reason)
    if shell.json:
        _print(_fields(made))
    else:
        _say(f"hold {made.hold_id}: nothing that is stored now is deleted until {format_time(made.until_ms)}")


def holds(shell: Shell, name: str) -> None:
    """List the holds that are on."""
    found = find(shell, name).holds()
    if shell.json:
        _print([_fields(each) for each in found])
        return
    for each in found:
        since, until = format_time(each.since_ms), format_time(each.until_ms)
        _say(f"{each.hold_id}  since {since}  until {until}" + (f"  {each.reason}" if each.reason else ""))
    if not found:
        _say(f"nothing of {name} is held")


def release(shell: Shell, name: str, hold_id: str) -> None:
    """End a hold."""
    find(shell, name).release(hold_id)
    if shell.json:
        _print({"table": name, "released": hold_id})
    else:
        _say(f"released hold {hold_id}")


def export(
    shell: Shell, name: str, file: str | None, hold_id: str | None, *, include_deleted: bool, overwrite: bool
) -> None:
    """Write all documents as JSON lines."""
    documents = find(shell, name).scan(hold=hold_id, include_deleted=include_deleted)
    if file is None or file == "-":
        for document in documents:
            _say(value_text(document))
        return
    if not overwrite and Path(file).exists():
        raise AlreadyExistsError(f"{file}: is there already; --overwrite replaces it")
    count = 0
    with replacing(file) as unfinished, Path(unfinished).open("w", encoding="utf-8") as lines:
        for document in documents:
            lines.write(value_text(document) + "\n")
            count += 1
    shell.output.exported(Exported(name, file, count, Path(file).stat().st_size))


def _show(shell: Shell, document: Document) -> None:
    if shell.json:
        _say(value_text(document))
    else:
        _say(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _fields(hold: "Hold") -> dict[str, object]:
    return {
        "hold_id": hold.hold_id,
        "since": format_iso_time(hold.since_ms),
        "until": format_iso_time(hold.until_ms),
        "reason": hold.reason,
    }


def _print(value: object) -> None:
    _say(orjson.dumps(value).decode())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
