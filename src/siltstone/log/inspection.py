"""Looking into a log: what it holds, whether it is sound, and making an oversized one small again.

Results are plain dataclasses that `dataclasses.asdict` makes ready for JSON; nothing here prints.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.batches import BatchFile
from siltstone.log.opening import Entry, Kind, OpenedLog, open_log
from siltstone.log.repair import CompactionReport, compact
from siltstone.log.verification import Finding, VerificationReport, verify

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
    """One batch file; `entries` is None where it cannot be read, and `problem` says why."""

    batch_id: int
    file: str
    is_compact: bool
    entries: int | None
    bytes: int
    modified_ms: int
    problem: str | None = None


@dataclass(frozen=True)
class LogSummary:
    """A log at a glance; `live_entries` counts what the files of the newest state hold, None where one is missing."""

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
    known = [count for count in live if count is not None]
    return LogSummary(
        address=opened.log.address(),
        kind=opened.kind,
        interval=opened.log.interval,
        latest=listing.latest,
        live_entries=None if missing or len(known) < len(live) else _count_live(opened, sum(known)),
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
