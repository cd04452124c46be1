"""Logs by their address: opened, shown, and checked to be whole; the batches in them that came too late."""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import orjson

from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError
from siltstone.log import wire
from siltstone.log.batches import BatchFile, BatchListing, batch_name, batches_needed
from siltstone.log.codec import DECODING_ERRORS, ObjectCodec
from siltstone.log.compactible import CompactibleLog
from siltstone.log.proof import Finding as Finding
from siltstone.log.proof import find_problems
from siltstone.log.spark_logs import FOLDER, SinkEntry, SinkLog, SourceEntry, SourceLog, decoded
from siltstone.log.state import VERSION
from siltstone.log.wire import CHECKPOINT_KEY
from siltstone.objects import Objects, open_objects

Kind = Literal["sink", "source", "siltstone"]
Entry = SinkEntry | SourceEntry | dict[str, object]
_PEEKED_FILES = 20
_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_BAD_LINES_PER_FILE = 100
_NOT_KNOWN = (
    "whether whole lines or the newest batches are missing, or were changed: Spark's logs have no checksums, and their "
    "batches do not name each other"
)


class KeyedLog(CompactibleLog[dict[str, Any]]):
    """A commit log for those who read all files, damaged ones too: of entries with the same key the last counts.

    Every batch has the plain file `N`; `N.compact` comes beside it and says the same as all batches up to N.
    """

    kind: ClassVar[Literal["siltstone"]] = "siltstone"
    reconciles = True

    def __init__(self, objects: Objects, folder: str) -> None:
        super().__init__(objects, folder, ObjectCodec(), version=VERSION)
        self.writer = "Siltstone"

    def key(self, entry: dict[str, Any]) -> str | None:
        """Return what a later entry must share to replace this one."""
        key = entry.get("key")
        return key if isinstance(key, str) else None

    def is_removal(self, entry: dict[str, Any]) -> bool:
        """Return whether nothing is live by the entry: it removes what has its key, or is the head of a checkpoint."""
        return entry.get("removed") is True or entry.get("key") == CHECKPOINT_KEY

    def name_of(self, batch_id: int) -> str:
        """Return the one name under which a batch is committed, whatever the interval."""
        return str(batch_id)


Log = SinkLog | SourceLog | KeyedLog


def open_log(path: str | os.PathLike[str]) -> Log:
    """Open the log at `path`: an output directory, a log's own folder, or a checkpoint with one file source.

    Nothing is created. Raises: NotFoundError.
    """
    text = os.fspath(path).rstrip("/") or "/"
    parent, _, name = text.rpartition("/")
    if name == FOLDER:
        return SinkLog(parent or "/" if "/" in text else ".")
    if FOLDER in open_objects(text).list_folders(""):
        return SinkLog(text)
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
    keyed = KeyedLog(open_objects(text), "")
    kind = _peek(keyed, listing) or ("source" if parent.rpartition("/")[2] == "sources" else "siltstone")
    if kind == "source":
        return SourceLog(text)
    # Entries of a sink elsewhere than under their output directory: a copy, say, that somebody inspects.
    return SinkLog(text, folder="") if kind == "sink" else keyed


def _peek(log: KeyedLog, listing: BatchListing) -> Kind | None:
    """Return the kind of log whose entries the first files have, or None if they have none."""
    for file in listing.files[:_PEEKED_FILES]:
        try:
            keys = orjson.loads(next(log.read_lines(file.name), b"{}")).keys()
        except (CorruptionError, NotFoundError, ValueError, AttributeError):
            continue
        if {"path", "modificationTime", "action"} <= keys:
            return "sink"
        if {"path", "timestamp", "batchId"} <= keys:
            return "source"
        if keys & {"key", "kind"}:
            return "siltstone"
    return None


@dataclass(frozen=True)
class BatchSummary:
    """One batch file; `entries` is None if it cannot be read, and `problem` says why."""

    batch_id: int
    file: str
    is_compact: bool
    entries: int | None
    bytes: int
    modified_ms: int
    problem: str | None = None


@dataclass(frozen=True)
class LogSummary:
    """A log at a glance; `live_entries` counts what the files of the newest state hold, or is None if one is missing."""

    address: str
    kind: Kind
    interval: int
    latest: int | None
    live_entries: int | None
    bytes: int
    batches: list[BatchSummary]


def show(path: str | os.PathLike[str]) -> LogSummary:
    """Describe each batch of the log at `path`, counting entries without parsing them. Raises: NotFoundError."""
    log = open_log(path)
    listing = log.listing()
    batches = [_summary(log, file) for file in listing.files]
    counts = {batch.file: batch.entries for batch in batches}
    chain, missing = listing.chain()
    live = [counts[file.name] for file in chain]
    live_entries = None
    if not missing and None not in live:
        live_entries = len(log.live_entries()) if log.reconciles else sum(count or 0 for count in live)
    size = sum(file.size for file in listing.files)
    return LogSummary(log.address(), log.kind, log.interval, listing.latest, live_entries, size, batches)


def _summary(log: Log, file: BatchFile) -> BatchSummary:
    entries, problem = None, None
    try:
        entries = log.count_entries(file.name)
    except (CorruptionError, NotFoundError) as error:
        problem = str(error)
    return BatchSummary(file.batch_id, file.name, file.is_compact, entries, file.size, file.modified_ms, problem)


def files(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Stream the live entries at `path`, oldest first, in bounded memory but for logs with keys. Raises: CorruptionError."""
    log = open_log(path)
    return iter(log.live_entries()) if log.reconciles else log.iter_entries()


@dataclass
class VerificationReport:
    """What was checked, and the findings; none means sound, except for what is unknown."""

    address: str
    kind: Kind
    batches: int
    entries: int = 0
    data_files_checked: int = 0
    findings: list[Finding] = field(default_factory=list)
    not_known: str | None = None

    def add(self, code: str, file: str, message: str, action: str) -> None:
        """Note a finding."""
        self.findings.append(Finding(code, file, message, action))


def verify(path: str | os.PathLike[str], *, data_files: bool = True) -> VerificationReport:
    """Check the log at `path`: gaps, versions, each line of the newest state, batches it lacks, the data files it names.

    Folders of data files are listed once each, so it costs little more than the listing. Raises: NotFoundError.
    """
    return verify_log(open_log(path), data_files=data_files)


def verify_log(log: Log, *, data_files: bool = True) -> VerificationReport:
    """Check a log, as `verify` does; one without any batch is sound."""
    listing = log.listing()
    report = VerificationReport(log.address(), log.kind, len(listing.ids))
    chain, missing = listing.chain()
    for gap in missing:
        report.add(
            "gap",
            log.address(str(gap.start)),
            f"batches {gap.start} to {gap.stop - 1} are missing, although batch {listing.latest} is there",
            "restore them from a copy; without them the log cannot be read",
        )
    damaged: list[BatchFile] = []
    if isinstance(log, KeyedLog):
        problems = find_problems(log, listing)
        report.findings += problems
        unreadable = {problem.file for problem in problems if problem.code == "bad-file"}
        damaged = [file for file in listing.files if log.address(file.name) in unreadable]
    else:
        report.not_known = _NOT_KNOWN
        if not missing:
            _check_names(log, listing, report)
    _check_older_files(log, sorted({*listing.files} - {*chain, *damaged}), report)
    if not isinstance(log, KeyedLog):
        _check_passed_batches(log, listing, report)
    sizes: dict[str, dict[str, int]] = {}
    keyed: list[dict[str, Any]] = []
    for file in [file for file in chain if file not in damaged]:
        for entry in _sound_entries(log, file, report):
            report.entries += 1
            if isinstance(entry, dict):
                keyed.append(entry)
            else:
                _note_size(entry, file, sizes, report)
    if data_files and isinstance(log, SinkLog):
        _check_data_files(log, sizes, report)
    if data_files and isinstance(log, KeyedLog):
        _check_manifests(log, log.reconcile(keyed), report)
    return report


def _check_names(log: SinkLog | SourceLog, listing: BatchListing, report: VerificationReport) -> None:
    """Spark finds files by names that follow from the interval: what it needs must have that name."""
    if len(listing.compact_ids) < 2 or listing.latest is None:
        return
    present = {file.name for file in listing.files}
    for batch_id in batches_needed(listing.latest, log.interval):
        name = batch_name(batch_id, log.interval)
        if name not in present:
            report.add(
                "interval",
                log.address(name),
                f"the compact files say that the interval is {log.interval}, but then batch {batch_id} should be {name}",
                "Spark cannot read this log; restore the compact files it was written with",
            )


def _check_older_files(log: Log, older: list[BatchFile], report: VerificationReport) -> None:
    for file in older:
        try:
            next(log.read_blocks(file.name), b"")
        except CorruptionError as error:
            report.add("bad-file", log.address(file.name), str(error), "delete it; newer files replace it")
        except NotFoundError:
            continue


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
    batches: dict[BatchFile, list[SinkEntry | SourceEntry]] = {}
    for file in listing.plain.values():
        if file.batch_id <= compact.batch_id:
            with contextlib.suppress(CorruptionError, NotFoundError):
                batches[file] = list(log.read_entries(file.name))
    missing = {entry.path for entries in batches.values() for entry in entries}
    if not missing:
        return []
    oldest_ms = math.inf
    for part in log.stream_entries(compact.name):
        for entry in part:
            missing.discard(entry.path)
            if isinstance(entry, SinkEntry):
                oldest_ms = min(oldest_ms, entry.modified_ms)
    passed = []
    for file, entries in batches.items():
        hidden = [entry for entry in entries if entry.path in missing]
        hidden = [entry for entry in hidden if isinstance(entry, SourceEntry) or entry.modified_ms >= oldest_ms]
        if hidden:
            passed.append(PassedBatch(file, compact, hidden))
    return passed


def _check_passed_batches(log: SinkLog | SourceLog, listing: BatchListing, report: VerificationReport) -> None:
    with contextlib.suppress(CorruptionError, NotFoundError):  # a damaged compact file is a finding of its own
        for file, compact, hidden in passed_batches(log, listing):
            report.add(
                "passed-batch",
                log.address(file.name),
                f"{len(hidden)} of its entries are not in {compact.name}, which sums up the batches to "
                f"{compact.batch_id}: it was written after that, so readers do not see {hidden[0].path}",
                "add these entries again as the next batch, then delete the file",
            )


def _sound_entries(log: Log, file: BatchFile, report: VerificationReport) -> Iterator[Entry]:
    """Yield the entries that can be read, and report the lines that cannot."""
    address = log.address(file.name)
    line_number = 1
    bad_lines = 0
    try:
        for block in log.read_blocks(file.name):
            for part in wire.split_block(block):
                try:
                    yield from log.codec.decode_block(part)
                except DECODING_ERRORS:
                    for number, line in enumerate(part.split(b"\n"), line_number + 1):
                        try:
                            yield log.codec.decode(line)
                        except DECODING_ERRORS as error:
                            bad_lines += 1
                            if bad_lines <= _BAD_LINES_PER_FILE:
                                message = f"line {number}, {wire.excerpt(line)}, is not an entry: {error}"
                                report.add("bad-line", address, message, "restore the file from a copy")
                line_number += part.count(b"\n") + 1
    except CorruptionError as error:
        report.add("bad-file", address, str(error), "restore it from a copy")
    except NotFoundError as error:
        report.add("vanished", address, str(error), "somebody writes this log now; verify again")


def _note_size(
    entry: SinkEntry | SourceEntry, batch: BatchFile, sizes: dict[str, dict[str, int]], report: VerificationReport
) -> None:
    """Note the size that a data file should have, by its folder and name."""
    folder, _, name = decoded(entry.path).rpartition("/")
    names = sizes.setdefault(folder, {})
    if name in names:
        message = f"it is listed twice, for the second time in {batch.name}"
        report.add("duplicate-path", entry.path, message, "its rows count twice for Spark; remove one of the entries")
    names[name] = entry.size if isinstance(entry, SinkEntry) else 0


def _check_data_files(log: SinkLog, sizes: dict[str, dict[str, int]], report: VerificationReport) -> None:
    """Check the data files that a sink's log names, with one listing per folder."""
    for folder, names in sizes.items():
        located = _locate(log, folder)
        if located is None:
            report.add("unchecked", folder, f"{len(names)} files lie in a store that only Spark reaches", "use Spark")
            continue
        objects, path, is_inside = located
        if not is_inside:
            report.add(
                "foreign-path",
                folder,
                f"{len(names)} files are not in the output directory as it is addressed now",
                "Spark silently ignores them; was the directory moved? Log them again under its address",
            )
        try:
            _compare(folder, names, objects, path, report)
        except SiltstoneError as error:
            report.add("unchecked", folder, str(error), "make the folder accessible, then verify again")


def _locate(log: SinkLog, folder: str) -> tuple[Objects, str, bool] | None:
    """Return the store and path of a folder, and whether it is in the log's output directory."""
    base = decoded(log.base_uri)
    if folder == base or folder.startswith(base + "/"):
        return log.objects, folder[len(base) :].strip("/"), True
    scheme, _, rest = folder.partition("://")
    if scheme == "file":
        return open_objects("/"), rest.strip("/"), False
    bucket, _, path = rest.partition("/")
    return (open_objects(f"{scheme}://{bucket}"), path.strip("/"), False) if scheme in _STORES else None


def _check_manifests(log: KeyedLog, entries: list[dict[str, Any]], report: VerificationReport) -> None:
    """Check the data files that the live entries of a table's log name, relative to the root of the lake."""
    named: dict[str, dict[str, int]] = {}
    for entry in entries:
        try:
            for file in (entry.get("manifest") or {}).get("entries", []):
                folder, _, name = str(file["uri"]).rpartition("/")
                named.setdefault(folder, {})[name] = int(file["content_length"])
        except (*DECODING_ERRORS, AttributeError) as error:
            message = f"entry {entry.get('key')!r} has a manifest that is none ({error!r})"
            report.add("bad-line", log.address(), message, "restore the file that has this entry from a copy")
    for folder, names in named.items():
        root = _root_of(log, folder)
        if root is None:
            report.add("unchecked", folder, f"{len(names)} files: this log is a copy", "verify the original log")
            continue
        _compare(f"{root}/{folder}", names, open_objects(root), folder, report)


def _root_of(log: KeyedLog, folder: str) -> str | None:
    """Return the root that data files are named from: what the log's address has before their common part."""
    address = log.address().rstrip("/").removesuffix("/log")
    parts = folder.split("/")
    endings = ("/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((address.removesuffix(ending) for ending in endings if address.endswith(ending)), None)


def _compare(address: str, names: dict[str, int], objects: Objects, folder: str, report: VerificationReport) -> None:
    present = {info.path.rpartition("/")[2]: info.size for info in objects.list_objects(folder)}
    for name, size in names.items():
        report.data_files_checked += 1
        actual_bytes = present.get(name)
        file = f"{address}/{name}"
        if actual_bytes is None:
            message = "the log lists it, but it is not there"
            report.add("missing-file", file, message, "restore it; reads fail until then")
        elif actual_bytes != size:
            message = f"the log says {size} bytes, but it has {actual_bytes}"
            report.add("size-mismatch", file, message, "restore the file as it was when it was logged")
