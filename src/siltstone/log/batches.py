"""Names and arithmetic of log batches: which batch is compact, which batches make up a state, what may expire.

Nothing here touches a store. Batch ids count from 0; with interval `k` the ids `k-1`, `2k-1`, ... are compaction
batches, whose file holds everything still needed of the batches before it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from siltstone.errors import CorruptionError, InvalidInputError

COMPACT_SUFFIX = ".compact"
MAX_BATCH_ID = (1 << 63) - 1
_CANONICAL_ID = re.compile(r"(?:0|[1-9][0-9]{0,18})", re.ASCII)


def batch_id_from_name(name: str) -> int | None:
    """Return the batch id in a batch's file name, plain or compact; None for any other name."""
    digits = name.removesuffix(COMPACT_SUFFIX)
    if _CANONICAL_ID.fullmatch(digits) is None or int(digits) > MAX_BATCH_ID:
        return None
    return int(digits)


def batch_name(batch_id: int, interval: int) -> str:
    """Return the file name that every writer using `interval` gives to the batch."""
    return f"{batch_id}{COMPACT_SUFFIX}" if is_compaction_batch(batch_id, interval) else str(batch_id)


def is_compaction_batch(batch_id: int, interval: int) -> bool:
    """Return whether the batch's file holds the history before it."""
    return (batch_id + 1) % interval == 0


def batches_needed(batch_id: int, interval: int) -> range:
    """Return the batches that together hold the state as of `batch_id`. Raises: InvalidInputError for a negative id."""
    if batch_id < 0:
        raise InvalidInputError(f"batch id {batch_id} is negative; ids count from 0")
    return range(max(0, (batch_id + 1) // interval * interval - 1), batch_id + 1)


def derive_interval(default: int, latest_compact: int) -> int:
    """Return the interval to go on with, when all that is known is one compact batch.

    The result divides `latest_compact + 1`. That a `default` of exactly half of it is passed over is a quirk
    to keep: file names depend on it.
    """
    batches = latest_compact + 1
    if default < batches // 2:
        for interval in range(default, batches // 2 + 1):
            if batches % interval == 0:
                return interval
    return batches


def interval_of(default: int, compact_ids: Iterable[int]) -> int:
    """Return the interval of a log that has these compact batches; what is on disk outweighs `default`.

    Raises: InvalidInputError where `default` is not positive.
    """
    if default <= 0:
        raise InvalidInputError(f"Please set compact interval (was {default}) to a positive value.")
    newest = sorted(set(compact_ids), reverse=True)[:2]
    if not newest:
        return default
    return newest[0] - newest[1] if len(newest) == 2 else derive_interval(default, newest[0])


def oldest_to_keep(current: int, interval: int, min_batches: int) -> int | None:
    """Return the compaction batch below which batches may expire once `current` is committed, or None.

    At least the last `min_batches` batches stay readable.
    """
    boundary = current + 1 - min_batches
    return boundary - boundary % interval - 1 if interval <= boundary else None


def verify_batch_ids(ids: Sequence[int], start: int | None, end: int | None) -> None:
    """Check that sorted `ids` run from `start` to `end` without a gap; None leaves that side open.

    Raises: CorruptionError, InvalidInputError where `start` is after `end`.
    """
    bounds = f"(startId: {_option(start)}, endId: {_option(end)})"
    if not ids:
        if start is not None or end is not None:
            raise CorruptionError(f"batch {end if start is None else start} doesn't exist {bounds}")
        return
    first = ids[0] if start is None else start
    last = ids[-1] if end is None else end
    if first > last or first > ids[0] or last < ids[-1]:
        raise InvalidInputError(f"batches {ids[0]} to {ids[-1]} are not within the range asked for {bounds}")
    missing = missing_ranges(ids, first, last)
    if missing:
        raise CorruptionError(f"batches ({_described(missing)}) don't exist {bounds}")


def missing_ranges(ids: Iterable[int], first: int, last: int) -> list[range]:
    """Return what rising `ids` leave out of `first` to `last`; takes time by ids, however far apart they are."""
    missing = []
    expected = first
    for batch_id in ids:
        if batch_id > expected:
            missing.append(range(expected, batch_id))
        expected = batch_id + 1
    if expected <= last:
        missing.append(range(expected, last + 1))
    return missing


def _option(bound: int | None) -> str:
    return "None" if bound is None else f"Some({bound})"


def _described(ranges: Sequence[range]) -> str:
    shown = []
    for ids in ranges[:10]:
        shown += [str(batch_id) for batch_id in ids] if ids.stop - ids.start <= 5 else [f"{ids[0]}, ..., {ids[-1]}"]
    return ", ".join(shown if len(ranges) <= 10 else [*shown, "..."])


class BatchFile(NamedTuple):
    """One batch file as listed. In a log that checkpoints apart, a batch may have a plain and a compact file."""

    batch_id: int
    is_compact: bool
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        """The file's name in the log's folder."""
        return f"{self.batch_id}{COMPACT_SUFFIX if self.is_compact else ''}"


class BatchListing:
    """The batch files of a log at one moment, in order, and what they make up together; `plain` and `compact` by id."""

    def __init__(self, files: Iterable[BatchFile], checksum_names: Iterable[str] = ()) -> None:
        self.files = tuple(sorted(files))
        self.checksum_names = frozenset(checksum_names)
        self.plain = {file.batch_id: file for file in self.files if not file.is_compact}
        self.compact = {file.batch_id: file for file in self.files if file.is_compact}

    @property
    def ids(self) -> list[int]:
        """The batch ids, rising."""
        return sorted(self.plain.keys() | self.compact.keys())

    @property
    def latest(self) -> int | None:
        """The highest batch id."""
        return self.files[-1].batch_id if self.files else None

    @property
    def compact_ids(self) -> list[int]:
        """The ids of compact files, falling."""
        return sorted(self.compact, reverse=True)

    def newest_compact(self, upto: int | None = None) -> BatchFile | None:
        """Return the newest compact file, or the newest of those with an id of at most `upto`."""
        batch_ids = [batch_id for batch_id in self.compact if upto is None or batch_id <= upto]
        return self.compact[max(batch_ids)] if batch_ids else None

    def checksums_of(self, name: str) -> list[str]:
        """Return the name of the checksum that Spark left beside a file, if it did."""
        checksum = f".{name}.crc"
        return [checksum] if checksum in self.checksum_names else []

    def chain(self, upto: int | None = None) -> tuple[list[BatchFile], list[range]]:
        """Return the files that hold the state as of `upto` (the latest by default), and the ids missing among them.

        The files are the newest compact one and the plain ones after it, so no interval needs to be known.
        """
        last = self.latest if upto is None else upto
        if last is None:
            return [], []
        compact = self.newest_compact(last)
        first = 0 if compact is None else compact.batch_id + 1
        files = [file for batch_id, file in self.plain.items() if first <= batch_id <= last]
        missing = missing_ranges((file.batch_id for file in files), first, last)
        return files if compact is None else [compact, *files], missing
