"""Where results go: for people as text, for programs as JSON.

A result is a frozen dataclass. JSON shows its fields but those whose metadata say `json=False`, or the one that its
class names in `json_field`. Text is what the
renderer for its type yields, see `siltstone.cli.render`.
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from siltstone.text import format_iso_time


class Output:
    """Shows what commands found or did; only `failure` and `warning` are about trouble."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json

    def emit(self, result: object) -> None:
        """Show a result: its fields as one JSON document, one item a line where it has `json_lines`, or as text."""
        if not self.json:
            from siltstone.cli.render import render, show

            show(render(result))
        elif hasattr(result, "json_lines"):
            for item in result.json_lines():
                sys.stdout.write(_dumps(to_plain(item)) + "\n")
        else:
            is_line = getattr(result, "is_json_line", False)
            sys.stdout.write(_dumps(to_plain(result), indent=None if is_line else 2) + "\n")
        if getattr(result, "is_json_line", False):
            sys.stdout.flush()

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
            return
        from rich.text import Text

        from siltstone.cli.render.parts import new_console

        new_console(sys.stderr).print(Text.assemble((word, style), message), soft_wrap=True)


def _dumps(value: object, indent: int | None = None) -> str:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8", default=str)


def to_plain(value: Any, name: str = "") -> object:
    """Turn a result into what JSON has: times as ISO 8601 in UTC, sizes as numbers of bytes."""
    if isinstance(value, int) and (name.endswith("_at") or name == "lease_until"):
        return format_iso_time(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if dataclasses.is_dataclass(value):
        alone = getattr(value, "json_field", None)
        if alone is not None:
            return to_plain(getattr(value, alone))
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
