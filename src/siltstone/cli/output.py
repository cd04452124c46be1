"""Where results go: for people as text, for programs as JSON."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from siltstone.cli.parts import Note, Shown, new_console, show, styled
from siltstone.text import format_iso_time


@dataclasses.dataclass(kw_only=True)
class Output:
    """Shows what commands found or did; only `failure` and `warning` are about trouble."""

    json: bool = False

    def emit(self, result: object, text: Iterable[Shown], *, one_line: bool = False) -> None:
        """Show a result: as a JSON document, or as its text, which is made only where it is shown.

        With `one_line`, the document is one line; it or the text is out at once, since the command may go on.
        """
        if self.json:
            sys.stdout.write(_dumps(to_plain(result), indent=None if one_line else 2) + "\n")
        else:
            show(text)
        if one_line:
            sys.stdout.flush()

    def emit_lines(self, items: Iterable[object], text: Iterable[Shown]) -> None:
        """Show items as they come in, each as one line of JSON; or their text."""
        if not self.json:
            show(text)
            return
        for item in items:
            sys.stdout.write(_dumps(to_plain(item)) + "\n")

    def note(self, message: str) -> None:
        """Show on standard error something about the result, for people and programs alike."""
        if self.json:
            sys.stderr.write(f"{message}\n")
        else:
            show([Note(message)])

    def warning(self, message: str) -> None:
        """Show on standard error something to know that stops nothing."""
        self._complain("Warning: ", "yellow", message)

    def failure(self, error: str, kind: str, message: str) -> None:
        """Show why the command failed: as JSON in place of the result, as text on standard error."""
        if self.json:
            sys.stdout.write(_dumps({"error": {"type": error, "kind": kind, "message": message}}, indent=2) + "\n")
        else:
            self._complain("Error: ", "bold red", message)

    def _complain(self, word: str, style: str, message: str) -> None:
        if self.json:
            sys.stderr.write(f"{word}{message}\n")
        else:
            new_console(sys.stderr).print(styled((word, style), message), soft_wrap=True)


def _dumps(value: object, indent: int | None = None) -> str:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8", default=str)


def to_plain(value: Any, name: str = "") -> object:
    """Return a result as what JSON has: times as ISO 8601 in UTC, sizes as numbers of bytes.

    Of a dataclass, these are its fields but those whose metadata say `json=False`.
    """
    if isinstance(value, int) and (name.endswith("_at") or name == "lease_until"):
        return format_iso_time(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if dataclasses.is_dataclass(value):
        shown = [field.name for field in dataclasses.fields(value) if field.metadata.get("json", True)]
        return {name: to_plain(getattr(value, name), name) for name in shown}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [to_plain(item) for item in value]
    from siltstone.ingest.export import plain

    return plain(value)
