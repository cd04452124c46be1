"""Finding a log, and out what kind it is, by what lies at an address."""

import itertools
import os
from dataclasses import dataclass
from typing import Literal

import orjson

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.batches import BatchListing
from siltstone.log.keyed import KeyedLog
from siltstone.log.sink import FOLDER, SinkEntry, SinkLog
from siltstone.log.source import SourceEntry, SourceLog
from siltstone.objects import open_objects

Kind = Literal["sink", "source", "siltstone"]
Entry = SinkEntry | SourceEntry | dict[str, object]
_PEEKED_FILES = 20


@dataclass(frozen=True)
class OpenedLog:
    """A log that was found, with its kind."""

    kind: Kind
    log: SinkLog | SourceLog | KeyedLog


def open_log(path: str | os.PathLike[str]) -> OpenedLog:
    """Open the log at `path`: an output directory, a log's own folder, or a checkpoint with one file source.

    Nothing is created. Raises: NotFoundError.
    """
    text = os.fspath(path).rstrip("/") or "/"
    parent, _, name = text.rpartition("/")
    if name == FOLDER:
        return OpenedLog("sink", SinkLog(parent or "/" if "/" in text else "."))
    objects = open_objects(text)
    if FOLDER in objects.list_folders(""):
        return OpenedLog("sink", SinkLog(text))
    listing = SourceLog(text).listing()
    if not listing.files:
        nested = f"{text}/sources/0"
        listing = SourceLog(nested).listing()
        if not listing.files:
            raise NotFoundError(
                f"{text}: no log here; give an output directory with a {FOLDER} folder, the folder that has the "
                "numbered batch files, or a query's checkpoint"
            )
        text, parent = nested, f"{text}/sources"
    kind = _peeked_kind(KeyedLog(open_objects(text), ""), listing)
    if kind is None:
        kind = "source" if parent.rpartition("/")[2] == "sources" else "siltstone"
    if kind == "siltstone":
        return OpenedLog(kind, KeyedLog(open_objects(text), ""))
    # Entries of a sink elsewhere than under their output directory: a copy, say, that somebody looks into.
    return OpenedLog(kind, SourceLog(text) if kind == "source" else SinkLog(text, folder=""))


def _peeked_kind(log: KeyedLog, listing: BatchListing) -> Kind | None:
    for file in listing.files[:_PEEKED_FILES]:
        try:
            lines = list(itertools.islice(log.read_lines(file.name), 1))
            keys = orjson.loads(lines[0]).keys() if lines else set()
        except (CorruptionError, NotFoundError, ValueError, AttributeError):
            continue
        if {"path", "modificationTime", "action"} <= keys:
            return "sink"
        if {"path", "timestamp", "batchId"} <= keys:
            return "source"
        if keys & {"key", "kind"}:
            return "siltstone"
    return None
