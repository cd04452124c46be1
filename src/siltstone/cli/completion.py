"""What the shell completes: names of tables, namespaces and tags, read from the logs of a lake on local disk.

A shell waits for the answer at every Tab, so that nothing is imported for it that takes longer than reading the files. Lakes in
an object store are not asked, and whatever goes wrong completes nothing.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

_TABLE = "table/"
_TAG = "tag/"


def complete_table(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of tables that begin so."""
    return _beginning(incomplete, (f"{namespace}.{table}" for namespace, table in _tables(ctx)))


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces that begin so."""
    return _beginning(incomplete, (namespace for namespace, _ in _tables(ctx)))


def complete_tag(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the tags of the table on the command line that begin so."""
    return _beginning(incomplete, _tags(ctx))


def _beginning(incomplete: str, names: Iterator[str]) -> list[str]:
    with contextlib.suppress(Exception):
        return sorted({name for name in names if name.startswith(incomplete)})
    return []


def _tables(context: typer.Context) -> Iterator[tuple[str, str]]:
    for entry in _catalog(context).values():
        yield entry["locator"]["namespace"], entry["locator"]["table"]


def _tags(context: typer.Context) -> Iterator[str]:
    """Yield the tags of the table that the command line has already."""
    tables = _catalog(context)
    # While the value of an option is being typed, the arguments are words only.
    words = (context.params.get("name") or "", *context.args)
    keys = (f"{_TABLE}{word.replace('.', '/', 1)}" for word in words)
    folder = next(tables[key]["versions"][-1]["folder"] for key in keys if key in tables)
    yield from (key.removeprefix(_TAG) for key in _entries(_root(context) / folder / "log", _TAG))


def _catalog(context: typer.Context) -> Mapping[str, Mapping[str, Any]]:
    return _entries(_root(context) / "catalog", _TABLE)


def _root(context: typer.Context) -> Path:
    """Return the folder of the lake: by the command's own --root, or by one before it, which knows the environment."""
    each: Any = context
    while not each.params.get("root"):
        each = each.parent
        if "--root" in each.args[:-1]:
            # The command has it, but does not know it yet.
            return Path(each.args[each.args.index("--root") + 1])
    return Path(each.params["root"])


def _entries(log: Path, prefix: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the live entries of a log whose keys begin with a prefix: those of its newest checkpoint, and what came since."""
    names = [file.name for file in log.iterdir()]
    newest = max((int(name[: -len(".compact")]) for name in names if re.fullmatch(r"\d+\.compact", name)), default=-1)
    batches = sorted(int(name) for name in names if name.isdecimal() and int(name) > newest)
    found: dict[str, Mapping[str, Any]] = {}
    start = f'{{"key":"{prefix}'
    for name in [*([f"{newest}.compact"] if newest >= 0 else []), *map(str, batches)]:
        with (log / name).open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(start):
                    entry = json.loads(line)
                    found.pop(entry["key"], None)
                    if not entry.get("removed"):
                        found[entry["key"]] = entry
    return found
