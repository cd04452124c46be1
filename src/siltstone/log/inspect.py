"""What people ask about a log: its state, its batches, and whether all of it is whole."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError
from siltstone.log import wire
from siltstone.log.batches import BatchFile, BatchListing, batch_name, batches_needed
from siltstone.log.codec import DECODING_ERRORS
from siltstone.log.opened import Entry, KeyedLog, Kind, OpenedLog, open_log, passed_batches
from siltstone.log.proof import Finding, find_problems
from siltstone.log.repair import CompactionReport, compact
from siltstone.log.spark_logs import SinkEntry, SinkLog, SourceLog, decoded
from siltstone.objects import Objects, open_objects

_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_BAD_LINES_PER_FILE = 100


_NOT_KNOWN = (
    "whether whole lines or the newest batches are missing, or were changed: Spark's logs have no checksums, and their "
    "batches do not name each other"
)


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
    return verify_opened(open_log(path), data_files=data_files)


def verify_opened(opened: OpenedLog, *, data_files: bool = True) -> VerificationReport:
    """Check a log that was opened, as `verify` does; one without any batch is sound."""
    listing = opened.log.listing()
    report = VerificationReport(opened.log.address(), opened.kind, len(listing.ids))
    if opened.kind != "siltstone":
        report.not_known = _NOT_KNOWN
    chain, missing = listing.chain()
    for gap in missing:
        report.add(
            "gap",
            opened.log.address(str(gap.start)),
            f"batches {gap.start} to {gap.stop - 1} are missing, although batch {listing.latest} is there",
            "restore them from a copy; without them the log cannot be read",
        )
    _check_names(opened, listing, report, complete=not missing)
    damaged = _check_proof(opened, listing, report)
    _check_older_files(opened, listing, [*chain, *damaged], report)
    _check_passed_batches(opened, listing, report)
    data = _DataFiles(opened.log if isinstance(opened.log, SinkLog) else None)
    own: list[dict[str, object]] = []
    for file in [file for file in chain if file not in damaged]:
        for entry in _sound_entries(opened, file, report):
            report.entries += 1
            if isinstance(entry, dict):
                own.append(entry)
            else:
                data.expect(entry.path, entry.size if isinstance(entry, SinkEntry) else 0, file.name, report)
    if data_files and opened.kind == "sink":
        data.check(report)
    if data_files and isinstance(opened.log, KeyedLog):
        _check_manifests(opened.log, opened.log.reconcile(own), report)
    return report


def _check_proof(opened: OpenedLog, listing: BatchListing, report: VerificationReport) -> list[BatchFile]:
    """Check what files of our own logs say of themselves and of each other; return those that cannot be read."""
    if not isinstance(opened.log, KeyedLog):
        return []
    problems = find_problems(opened.log, listing)
    report.findings += problems
    unreadable = {problem.file for problem in problems if problem.code == "bad-file"}
    return [file for file in listing.files if opened.log.address(file.name) in unreadable]


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
        present = {info.path.rpartition("/")[2]: info.size for info in open_objects(root).list_objects(folder)}
        _compare(f"{root}/{folder}", names, present, report)


def _root_of(log: KeyedLog, folder: str) -> str | None:
    """Return the root that data files are named from: what the log's address has before their common part."""
    address = log.address().rstrip("/").removesuffix("/log")
    parts = folder.split("/")
    endings = ("/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((address.removesuffix(ending) for ending in endings if address.endswith(ending)), None)


def _compare(folder: str, names: dict[str, int], present: dict[str, int], report: VerificationReport) -> None:
    for name, size in names.items():
        report.data_files_checked += 1
        actual_bytes = present.get(name)
        file = f"{folder}/{name}"
        if actual_bytes is None:
            report.add(
                "missing-file", file, "the log lists it, but it is not there", "restore it; reads fail until then"
            )
        elif actual_bytes != size:
            message = f"the log says {size} bytes, but it has {actual_bytes}"
            report.add("size-mismatch", file, message, "restore the file as it was when it was logged")


def _check_names(opened: OpenedLog, listing: BatchListing, report: VerificationReport, *, complete: bool) -> None:
    """Spark finds files by names that follow from the interval: what it needs must have that name."""
    if opened.kind == "siltstone" or not complete or len(listing.compact_ids) < 2 or listing.latest is None:
        return
    present = {file.name for file in listing.files}
    interval = opened.log.interval
    for batch_id in batches_needed(listing.latest, interval):
        name = batch_name(batch_id, interval)
        if name not in present:
            report.add(
                "interval",
                opened.log.address(name),
                f"the compact files say that the interval is {interval}, but then batch {batch_id} should be {name}",
                "Spark cannot read this log; restore the compact files it was written with",
            )


def _check_older_files(
    opened: OpenedLog, listing: BatchListing, chain: list[BatchFile], report: VerificationReport
) -> None:
    for file in listing.files:
        if file not in chain:
            try:
                next(opened.log.read_blocks(file.name), b"")
            except CorruptionError as error:
                report.add("bad-file", opened.log.address(file.name), str(error), "delete it; newer files replace it")
            except NotFoundError:
                continue


def _check_passed_batches(opened: OpenedLog, listing: BatchListing, report: VerificationReport) -> None:
    if not isinstance(opened.log, SinkLog | SourceLog):
        return
    with contextlib.suppress(CorruptionError, NotFoundError):  # a damaged compact file is a finding of its own
        for file, compact, hidden in passed_batches(opened.log, listing):
            report.add(
                "passed-batch",
                opened.log.address(file.name),
                f"{len(hidden)} of its entries are not in {compact.name}, which sums up the batches to "
                f"{compact.batch_id}: it was written after that, so readers do not see {hidden[0].path}",
                "add these entries again as the next batch, then delete the file",
            )


def _sound_entries(opened: OpenedLog, file: BatchFile, report: VerificationReport) -> Iterator[Entry]:
    """Yield the entries that can be read, and report the lines that cannot."""
    address = opened.log.address(file.name)
    line_number = 1
    bad_lines = 0
    try:
        for block in opened.log.read_blocks(file.name):
            for part in wire.split_block(block):
                try:
                    yield from opened.log.codec.decode_block(part)
                except DECODING_ERRORS:
                    for number, line in enumerate(part.split(b"\n"), line_number + 1):
                        try:
                            yield opened.log.codec.decode(line)
                        except DECODING_ERRORS as error:
                            bad_lines += 1
                            if bad_lines <= _BAD_LINES_PER_FILE:
                                _report_line(report, address, number, line, error)
                line_number += part.count(b"\n") + 1
    except CorruptionError as error:
        report.add("bad-file", address, str(error), "restore it from a copy")
    except NotFoundError as error:
        report.add("vanished", address, str(error), "somebody writes this log now; verify again")


def _report_line(report: VerificationReport, address: str, number: int, line: bytes, error: Exception) -> None:
    message = f"line {number}, {wire.excerpt(line)}, is not an entry: {error}"
    report.add("bad-line", address, message, "restore the file from a copy")


class _DataFiles:
    """The data files a log lists, by folder, to be compared with one listing per folder."""

    def __init__(self, log: SinkLog | None) -> None:
        self._log = log
        self._folders: dict[str, dict[str, int]] = {}

    def expect(self, uri: str, size: int, batch_file: str, report: VerificationReport) -> None:
        folder, _, name = decoded(uri).rpartition("/")
        names = self._folders.setdefault(folder, {})
        if name in names:
            report.add(
                "duplicate-path",
                uri,
                f"it is listed twice, for the second time in {batch_file}",
                "its rows count twice for Spark; remove one of the entries",
            )
        names[name] = size

    def check(self, report: VerificationReport) -> None:
        for folder, names in self._folders.items():
            located = self._locate(folder)
            if located is None:
                report.add(
                    "unchecked", folder, f"{len(names)} files lie in a store that only Spark reaches", "use Spark"
                )
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
                present = {info.path.rpartition("/")[2]: info.size for info in objects.list_objects(path)}
            except SiltstoneError as error:
                report.add("unchecked", folder, str(error), "make the folder accessible, then verify again")
                continue
            _compare(folder, names, present, report)

    def _locate(self, folder: str) -> tuple[Objects, str, bool] | None:
        """Return the store and path of a folder, and whether it is in the log's output directory."""
        if self._log is not None:
            base = decoded(self._log.base_uri)
            if folder == base or folder.startswith(base + "/"):
                return self._log.objects, folder[len(base) :].strip("/"), True
        scheme, _, rest = folder.partition("://")
        if scheme == "file":
            return open_objects("/"), rest.strip("/"), False
        bucket, _, path = rest.partition("/")
        return (open_objects(f"{scheme}://{bucket}"), path.strip("/"), False) if scheme in _STORES else None


__all__ = [
    "BatchSummary",
    "CompactionReport",
    "Finding",
    "LogSummary",
    "OpenedLog",
    "VerificationReport",
    "compact",
    "files",
    "open_log",
    "show",
    "verify",
]


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
    opened = open_log(path)
    listing = opened.log.listing()
    batches = [_summary(opened, file) for file in listing.files]
    chain, missing = listing.chain()
    counts = {batch.file: batch.entries for batch in batches}
    live = [counts[file.name] for file in chain]
    known_counts = [count for count in live if count is not None]
    return LogSummary(
        address=opened.log.address(),
        kind=opened.kind,
        interval=opened.log.interval,
        latest=listing.latest,
        live_entries=None if missing or len(known_counts) < len(live) else _count_live(opened, sum(known_counts)),
        bytes=sum(file.size for file in listing.files),
        batches=batches,
    )


def _count_live(opened: OpenedLog, listed: int) -> int:
    return len(opened.log.live_entries()) if opened.log.reconciles else listed


def _summary(opened: OpenedLog, file: BatchFile) -> BatchSummary:
    entries: int | None = None
    problem = None
    try:
        entries = opened.log.count_entries(file.name)
    except (CorruptionError, NotFoundError) as error:
        problem = str(error)
    return BatchSummary(file.batch_id, file.name, file.is_compact, entries, file.size, file.modified_ms, problem)


def files(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Stream the live entries of the log at `path`, oldest first, in bounded memory but for logs with keys.

    Raises: NotFoundError, CorruptionError.
    """
    log = open_log(path).log
    return iter(log.live_entries()) if log.reconciles else log.iter_entries()
