"""What the commands on tables of documents do and print."""

import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from siltstone.cli.exporting import replacing
from siltstone.cli.hints import find_table
from siltstone.cli.results import Exported
from siltstone.cli.shell import Shell
from siltstone.cli.units import iso_time, spell_count, spell_duration, spell_time
from siltstone.document_table import Document, DocumentTable
from siltstone.documents.language import value_text
from siltstone.errors import AlreadyExistsError, InvalidInputError

if TYPE_CHECKING:
    from siltstone.compactor.consistency import Hold
    from siltstone.documents.intake import UpdateLike


def find(shell: Shell, name: str) -> DocumentTable:
    """Return a table of documents. Raises: NotFoundError that also guesses which was meant, InvalidInputError."""
    find_table(shell.lake, name)
    return shell.lake.document_table(name)


def create(shell: Shell, name: str, delay_ms: int, description: str) -> None:
    """Create a table."""
    delay = datetime.timedelta(milliseconds=delay_ms)
    docs = shell.lake.create_document_table(name, full_consistency_delay=delay, description=description)
    if shell.json:
        _print({"table": docs.name, "full_consistency_delay_ms": delay_ms})
    else:
        _say(f"created {docs.name}, a table of documents; changes may be {spell_duration(delay_ms)} old when written")


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
    if file == "-":
        count = docs.update_many(_updates(sys.stdin.buffer, "standard input"))
    else:
        try:
            with Path(file).open("rb") as lines:
                count = docs.update_many(_updates(lines, file))
        except OSError as error:
            raise InvalidInputError(f"{file}: {error.strerror or error}; give a file that can be read") from error
    if shell.json:
        _print({"table": name, "updates": count})
    else:
        _say(f"applied {spell_count(count, 'delta')} to {name}")


def _updates(lines: Iterable[bytes], where: str) -> "Iterator[UpdateLike]":
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidInputError(f"{where}, line {number}: is no JSON ({error}); write one update a line") from error
        if not isinstance(found, dict):
            raise InvalidInputError(f'{where}, line {number}: is no update; write {{"key": …, "delta": …}}')
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


def hold(shell: Shell, name: str, duration_ms: int, reason: str) -> None:
    """Begin a hold."""
    made = find(shell, name).hold(until=datetime.timedelta(milliseconds=duration_ms), reason=reason)
    if shell.json:
        _print(_fields(made))
    else:
        _say(f"hold {made.hold_id}: nothing that is stored now is deleted until {spell_time(made.until_ms)}")


def holds(shell: Shell, name: str) -> None:
    """List the holds that are on."""
    found = find(shell, name).holds()
    if shell.json:
        _print([_fields(each) for each in found])
        return
    for each in found:
        since, until = spell_time(each.since_ms), spell_time(each.until_ms)
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
        "since": iso_time(hold.since_ms),
        "until": iso_time(hold.until_ms),
        "reason": hold.reason,
    }


def _print(value: object) -> None:
    _say(orjson.dumps(value).decode())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
