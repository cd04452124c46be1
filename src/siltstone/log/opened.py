"""Finding a log and its kind by what lies at an address, and the batches in it that came too late."""

import itertools
import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

import orjson

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.batches import BatchFile, BatchListing
from siltstone.log.chain import CHECKPOINT_KEY
from siltstone.log.codec import ObjectCodec
from siltstone.log.compactible import CompactibleLog
from siltstone.log.spark_logs import FOLDER, SinkEntry, SinkLog, SourceEntry, SourceLog
from siltstone.log.state import VERSION
from siltstone.log.state import Entry as LogEntry
from siltstone.objects import Objects, open_objects

Kind = Literal["sink", "source", "siltstone"]
Entry = SinkEntry | SourceEntry | dict[str, object]
_PEEKED_FILES = 20


class KeyedLog(CompactibleLog[LogEntry]):
    """A commit log for those who read all files, damaged ones too: of entries with the same key the last counts.

    Every batch has the plain file `N`; `N.compact` comes beside it and says the same as all batches up to N.
    """

    reconciles = True

    def __init__(self, objects: Objects, folder: str) -> None:
        super().__init__(objects, folder, ObjectCodec(), version=VERSION)
        self.writer = "Siltstone"

    def key(self, entry: LogEntry) -> str | None:
        """Return what a later entry must share to replace this one."""
        key = entry.get("key")
        return key if isinstance(key, str) else None

    def is_removal(self, entry: LogEntry) -> bool:
        """Return whether nothing is live by the entry: it removes what has its key, or is the head of a checkpoint."""
        return entry.get("removed") is True or entry.get("key") == CHECKPOINT_KEY

    def name_of(self, batch_id: int) -> str:
        """Return the one name under which a batch is committed, whatever the interval."""
        return str(batch_id)


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
    # Entries of a sink elsewhere than under their output directory: a copy, say, that somebody inspects.
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


class PassedBatch(NamedTuple):
    """A plain batch, and those of its entries that the compact file after it lacks."""

    file: BatchFile
    compact: BatchFile
    hidden: list[SinkEntry | SourceEntry]


def passed_batches(log: SinkLog | SourceLog, listing: BatchListing) -> list[PassedBatch]:
    """Find the batches that the newest compact file should hold and does not; a batch that is damaged is left out.

    Retention drops the oldest files and no others: only an entry younger than one that was kept is missing.
    Raises: CorruptionError, NotFoundError for the compact file.
    """
    compact = listing.newest_compact()
    if compact is None:
        return []
    batches = {
        file: _readable_entries(log, file)
        for file in listing.files
        if not file.is_compact and file.batch_id <= compact.batch_id
    }
    missing = {entry.path for entries in batches.values() for entry in entries}
    if not missing:
        return []
    oldest_ms: int | None = None
    for part in log.stream_entries(compact.name):
        for entry in part:
            missing.discard(entry.path)
            if isinstance(entry, SinkEntry) and (oldest_ms is None or entry.modified_ms < oldest_ms):
                oldest_ms = entry.modified_ms
    passed = []
    for file, entries in batches.items():
        hidden = [entry for entry in entries if entry.path in missing and not _may_have_expired(entry, oldest_ms)]
        if hidden:
            passed.append(PassedBatch(file, compact, hidden))
    return passed


def _readable_entries(log: SinkLog | SourceLog, file: BatchFile) -> list[SinkEntry | SourceEntry]:
    try:
        return list(log.read_entries(file.name))
    except (CorruptionError, NotFoundError):
        return []


def _may_have_expired(entry: SinkEntry | SourceEntry, oldest_ms: int | None) -> bool:
    return isinstance(entry, SinkEntry) and (oldest_ms is None or entry.modified_ms < oldest_ms)
