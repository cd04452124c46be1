"""Making an oversized log of Spark's small again, while no query uses it."""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from siltstone import clock
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.log.batch_log import delete_batches
from siltstone.log.batches import COMPACT_SUFFIX, BatchFile, BatchListing
from siltstone.log.commit import CommitLog
from siltstone.log.inspect import KeyedLog, Kind, open_log, passed_batches
from siltstone.log.spark_logs import SinkLog, SourceLog


@dataclass
class CompactionReport:
    """What `compact` did, or would do in a dry run; entries and bytes are those of the newest compact file."""

    address: str
    kind: Kind
    dry_run: bool
    compact_file: str | None = None
    entries_before: int = 0
    entries_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    backup_file: str | None = None
    deleted_files: list[str] = field(default_factory=list)
    deleted_bytes: int = 0
    message: str = "nothing to do"


def compact(
    path: str | os.PathLike[str],
    *,
    retention_ms: int | None = None,
    dry_run: bool = False,
    backup: bool = True,
    now_ms: Callable[[], int] = clock.now_ms,
) -> CompactionReport:
    """Shrink the log of a file sink or source, which no query may use meanwhile, or sum up a commit log of ours.

    The newest compact file is replaced by itself without the entries past the retention, and files that nobody
    needs any more are deleted. No batch is added: a query that starts again goes on where it stopped. The compact
    file before the newest stays too, shrunk alike, since Spark derives the interval from both. With `backup` the
    newest one is first copied to a name that Spark and we pass over.

    Raises: NotFoundError, InvalidInputError for a retention on a log that has none, CorruptionError where the log
    has a gap or a batch that its compact file lacks: then nothing is changed.
    """
    log = open_log(path)
    report = CompactionReport(log.address(), log.kind, dry_run)
    if not isinstance(log, SinkLog | SourceLog):
        if retention_ms is not None:
            raise InvalidInputError(f"{log.address()}: a commit log has no retention; compact it without one")
        return _write_checkpoint(log, report)
    if retention_ms is not None:
        if not isinstance(log, SinkLog):
            raise InvalidInputError(
                f"{log.address()}: a source log has no retention, since a forgotten file would be read again; "
                "compact it without one"
            )
        if retention_ms < 0:
            raise InvalidInputError(f"retention of {retention_ms} ms is negative; use 0 or more")
        log.retention_ms = retention_ms
    listing = log.listing()
    newest = listing.newest_compact()
    if listing.chain()[1]:
        raise CorruptionError(f"{log.address()}: batches are missing; run verify, restore them, then compact")
    if newest is None:
        return report
    for file, compact, _ in passed_batches(log, listing):
        raise CorruptionError(
            f"{log.address(file.name)}: entries of this batch are not in {compact.name}, which should hold them; run "
            "verify, add them again, then compact"
        )
    previous = listing.newest_compact(newest.batch_id - 1)
    report.compact_file = newest.name
    compact_files = [newest] if previous is None else [newest, previous]
    _shrink(log, compact_files, listing, report, backup=backup, now_ms=now_ms())
    superfluous = [file for file in listing.files if file.batch_id < newest.batch_id and file != previous]
    report.deleted_files = [file.name for file in superfluous]
    report.deleted_bytes = sum(file.size for file in superfluous)
    if not dry_run:
        delete_batches(log, superfluous, listing)
    dropped = report.entries_before - report.entries_after
    if dropped or superfluous:
        verb = "would be" if dry_run else "were"
        report.message = f"{dropped} entries {verb} dropped, {len(superfluous)} files {verb} deleted"
    return report


def _write_checkpoint(log: KeyedLog, report: CompactionReport) -> CompactionReport:
    """Sum up a commit log beside its newest batch, which is safe while it is in use."""
    files, missing = log.listing().chain()
    if missing:
        raise CorruptionError(f"{log.address()}: batches are missing; run verify, restore them, then compact")
    if not files or files[-1].is_compact:
        return report
    live = len(log.live_entries())
    report.compact_file = f"{files[-1].batch_id}{COMPACT_SUFFIX}"
    report.entries_before = sum(log.count_entries(file.name) for file in files)
    report.entries_after = live
    report.bytes_before = report.bytes_after = sum(file.size for file in files)
    report.message = f"{live} live entries {'would be' if report.dry_run else 'were'} summed up"
    if not report.dry_run:
        CommitLog(log.objects.root, log.folder).checkpoint()
        report.bytes_after = sum(file.size for file in log.listing().chain()[0])
    return report


def _shrink(
    log: SinkLog | SourceLog,
    compact_files: list[BatchFile],
    listing: BatchListing,
    report: CompactionReport,
    *,
    backup: bool,
    now_ms: int,
) -> None:
    """Drop what is past the retention from compact files, the newest first, if that one has any of it."""
    newest = compact_files[0]
    report.entries_before = report.entries_after = log.count_entries(newest.name)
    report.bytes_before = report.bytes_after = newest.size
    if not log.filters:
        return
    entries, size = 0, 0
    for chunk in log.compact_content([newest], [], now_ms):
        entries += chunk.count(b"\n")
        size += len(chunk)
    if entries == report.entries_before:
        return
    report.entries_after, report.bytes_after = entries, size
    if backup:
        report.backup_file = _free_name(log, newest)
    if report.dry_run:
        return
    if report.backup_file is not None:
        log.objects.create(log.path(report.backup_file), log.objects.stream(log.path(newest.name)))
    for file in compact_files:
        for checksum in listing.checksums_of(file.name):
            log.objects.delete([log.path(checksum)])
        log.objects.replace(log.path(file.name), log.compact_content([file], [], now_ms))


def _free_name(log: SinkLog | SourceLog, file: BatchFile) -> str:
    taken = {info.path.rpartition("/")[2] for info in log.objects.list_objects(log.folder)}
    names = (f"_backup-{number}-{file.name}" for number in itertools.count(1))
    return next(name for name in names if name not in taken)
