"""What a round asks of its tasks: plain data that travels to wherever a task runs, and the two steps of a task."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError, SiltstoneError
from siltstone.model import MergeEngine
from siltstone.model.buckets import Bucket, BucketLine, Buckets, CompactedFile, is_due
from siltstone.model.entities import HISTORY_COLUMNS
from siltstone.model.properties import MAX_ROW_GROUP_ROWS, ROWS_KIND, TOMBSTONE_RETENTION_SECONDS
from siltstone.model.rounds import Accounting
from siltstone.model.schema import nullable, schema_of
from siltstone.rows.columns import Integers

PAGE_BUCKETS = 128


@dataclass(frozen=True)
class Settings:
    """How files, buckets, pages of buckets and stretches of them are sized, and when a bucket is rewritten."""

    target_file_bytes: int = 128 << 20
    records_per_compacted_file: int = 4_000_000
    # By default as the size of the table asks for.
    bucket_rows: int | None = None
    max_dead_fraction: float = 0.25
    max_delta_fraction: float = 2.0
    max_files: int = 8
    # A bucket with too many files is rewritten where more than this fraction of its rows is in small ones.
    max_carried_fraction: float = 0.5
    page_buckets: int = PAGE_BUCKETS
    # Neighbours that are merged together have at most so many changed rows, unless there is only one bucket.
    stretch_buckets: int = 4 * PAGE_BUCKETS
    stretch_rows: int = 1 << 18
    # A bucket that is rewritten, and has no more rows and bytes, shares a file with neighbours that are merged together with it.
    shared_rows: int = 4096
    shared_bytes: int = 256 << 10
    full: bool = False


_LEAST_BUCKET_BYTES = 16 << 20
_MOST_BUCKET_BYTES = 256 << 20
# A table that is four times as large has buckets that are twice as large, and twice as many of them.
_GROWTH_BYTES = 2 << 20
# Merging costs by the row, too: as much as so many bytes.
_ROW_BYTES = 24
_LEAST_BUCKET_ROWS = 16


def bucket_rows(rows: int, size: int) -> int:
    """Return how many rows a bucket should have in a table of so many rows and bytes.

    Buckets are what tasks share, so that a table needs some; but a round that changes keys all over the table touches
    each of them, however little changes there, so that a large table has large ones.
    """
    weight = max(size, rows * _ROW_BYTES, 1)
    target = min(max(math.isqrt(weight * _GROWTH_BYTES), _LEAST_BUCKET_BYTES), _MOST_BUCKET_BYTES)
    return max(_LEAST_BUCKET_ROWS, target * rows // weight)


@dataclass(frozen=True)
class ReadTask:
    """A data file of a delta, or every `of`-th row group of it from `share` on.

    `run` numbers the deltas of a round, `first_row` the rows of all of them. Of a compacted file, only the live rows of
    the `slices` are read. Rows of a file of tombstones are row-level deletes, all of them. `names` has the columns of another table that are called otherwise in the destination's
    files; all other names here are those of the destination.
    """

    uri: str
    run: int
    first_row: int
    record_count: int
    content_length: int
    is_delete: bool
    columns: tuple[str, ...] = ()
    op_column: str | None = None
    delete_columns: tuple[str, ...] = ()
    slices: tuple[CompactedFile, ...] = ()
    is_tombstones: bool = False
    names: tuple[tuple[str, str], ...] = ()
    floor: str | None = None
    share: int = 0
    of: int = 1

    @property
    def live_count(self) -> int:
        """Rows that are read, all shares together."""
        return sum(each.live_count for each in self.slices) if self.slices else self.record_count


@dataclass(frozen=True)
class RoundJob:
    """Everything a task needs to know about a round.

    `kind` is how rows are merged. `closed_before_ms` is set where the round has read every change before that time
    that there will ever be; nothing up to `hold_floor_ms` may be deleted. With `visits_due`, it also reads buckets that
    are due though no delta is for them. `seed` is a number of 64 bits that no other
    round has, so that a task makes the same names whenever it is run again; `began` is the batch of the destination's log
    at which it was planned, `expiry_ms` the time by which tombstones may expire.
    """

    root: str
    folder: str
    fields: tuple[dict[str, Any], ...]
    primary_keys: tuple[str, ...]
    sort_keys: tuple[str, ...]
    merge_engine: MergeEngine
    drop_duplicates: bool
    buckets: Buckets
    reads: tuple[ReadTask, ...]
    settings: Settings
    now_ms: int
    kind: str = ROWS_KIND
    table: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    closed_before_ms: int | None = None
    hold_floor_ms: int | None = None
    visits_due: bool = False
    seed: int = 0
    began: int = -1
    expiry_ms: int = 0
    bucket_rows: int = 500_000
    row_group_rows: int = MAX_ROW_GROUP_ROWS
    tombstone_retention_ms: int = round(TOMBSTONE_RETENTION_SECONDS.default * 1000)
    floor: str | None = None
    # By which columns the versions of a key differ, where it has several.
    tracked: tuple[str, ...] = ()

    @property
    def floor_after(self) -> str | None:
        """The floor of the sort key after the round: the highest of all there were."""
        return max((each for each in (self.floor, *(read.floor for read in self.reads)) if each), default=None)

    def visits(self, bucket: Bucket) -> bool:
        """Return whether all of a bucket is read, even if no delta has rows for it."""
        if not bucket.files:
            return False
        return self.settings.full or (self.visits_due and is_due(bucket, self.due_ms, self.hold_floor_ms))

    @property
    def due_ms(self) -> int:
        """The time by which buckets are due: now, or an earlier time where that is not sure."""
        return min(self.now_ms, self.expiry_ms)

    def due_numbers(self) -> list[range]:
        """Return the numbers of buckets, in ranges, among which all are that it visits since they are due."""
        return self.buckets.due_numbers(self.due_ms, self.hold_floor_ms) if self.visits_due else []

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the compacted rows, and of all deltas: nullable, since of a delete only the key is there."""
        return nullable(schema_of(self.fields))

    @property
    def input_bytes(self) -> int:
        """Bytes of all files that the round reads."""
        return sum(read.content_length for read in self.reads)

    def goes_by_key(self, read: ReadTask) -> bool:
        """Return whether the keys of its rows tell which buckets it is for; a delete by other columns is for all of them."""
        is_by_key = not read.is_delete or (set(read.delete_columns) == set(self.primary_keys) and read.floor is None)
        return bool(self.primary_keys) and is_by_key

    @property
    def copied_bytes(self) -> int:
        """Bytes of deltas that every task gets, since any bucket may have rows that they delete."""
        return sum(read.content_length for read in self.reads if read.is_delete and not self.goes_by_key(read))

    @property
    def keeps_one_row(self) -> bool:
        """Whether a key has one row at most."""
        return bool(self.primary_keys) and self.drop_duplicates and not self.keeps_history

    @property
    def keeps_newest(self) -> bool:
        """Whether of a key only its newest row counts."""
        return self.keeps_one_row and self.merge_engine == "deduplicate"

    @property
    def keeps_first(self) -> bool:
        """Whether of a key only the row counts that came first."""
        return self.keeps_one_row and self.merge_engine == "first_row"

    @property
    def keeps_history(self) -> bool:
        """Whether a key has a row for each of its versions, which its sort key tells apart."""
        return self.merge_engine == "history"

    @property
    def merge_columns(self) -> set[str]:
        """The columns without which rows cannot be merged."""
        names = {*self.primary_keys, *self.sort_keys, *(name for read in self.reads for name in read.delete_columns)}
        return names | {*self.tracked, *HISTORY_COLUMNS} if self.keeps_history else names

    @property
    def stretch_buckets(self) -> int:
        """How many neighbouring buckets may be merged together; documents are merged a bucket at a time."""
        return max(1, self.settings.stretch_buckets) if self.kind == ROWS_KIND else 1

    @property
    def composes_rows(self) -> bool:
        """Whether a row may have its values from several deltas."""
        return self.keeps_one_row and self.merge_engine == "partial_update"


class Combined(NamedTuple):
    """How many rows of deltas were left out of a part, since others of the same key count instead of them, by bucket."""

    buckets: Integers
    upserts: Integers
    removals: Integers


_NO_NUMBERS = np.zeros(0, np.int64)
NOTHING_COMBINED = Combined(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one delta for neighbouring buckets, in stream order within each.

    `buckets` has the number of each row's bucket, rising; None where they are deletes that any bucket may have rows for.
    """

    run: int
    first_row: int
    is_delete: bool
    delete_columns: tuple[str, ...]
    columns: tuple[str, ...]
    table: pa.Table
    buckets: Integers | None
    combined: Combined = NOTHING_COMBINED
    floor: str | None = None


@dataclass(frozen=True, eq=False)
class Stretch:
    """Neighbouring buckets that are merged together, by their rising numbers, and their parts of deltas in stream order."""

    numbers: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    parts: Sequence[Part] = ()


Action = Literal["untouched", "minor", "tiered", "major"]


@dataclass(frozen=True)
class Died:
    """Rows that died of a file, or slice, that is not carried on: a bitmap of their numbers in base64."""

    uri: str
    first_row: int
    rows: str


@dataclass(frozen=True)
class BucketResult:
    """What became of the bucket of a number: the buckets after it, what was written for them, and what died with its files."""

    number: int
    action: Action
    reason: str
    buckets: tuple[BucketLine, ...]
    accounting: Accounting
    written_files: int
    written_bytes: int
    written_rows: int
    merge_seconds: float = 0.0
    write_seconds: float = 0.0
    died: tuple[Died, ...] = ()


Engine = Callable[[RoundJob], Iterator[BucketResult]]
"""Runs the tasks of a round, wherever, and yields the result of each bucket that has one."""

# Of several partitions, one that fails so does not keep the others from being compacted; trying again would not help.
LASTING_ERRORS = (CorruptionError, InvalidInputError, NotFoundError)
Outcome = Sequence[BucketResult] | SiltstoneError
"""What became of a round among several: its results, or why it failed."""


@runtime_checkable
class JointEngine(Protocol):
    """An engine that runs the rounds of several partitions together."""

    def __call__(self, job: RoundJob) -> Iterator[BucketResult]:
        """Run one round."""

    def run_all(self, jobs: Sequence[RoundJob]) -> Sequence[Outcome]:
        """Run rounds, and return the outcome of each; what fails in no lasting way is raised."""

    def core_count(self) -> int:
        """Return how many cores there are to run them, 0 where nobody says; asked only where there is much to do."""


def run_jobs(engine: Engine, jobs: Sequence[RoundJob]) -> Sequence[Outcome]:
    """Run rounds together where the engine can do that, else one after another; see `JointEngine.run_all`."""
    return engine.run_all(jobs) if isinstance(engine, JointEngine) else [_outcome(engine, job) for job in jobs]


def _outcome(engine: Engine, job: RoundJob) -> Outcome:
    try:
        return list(engine(job))
    except LASTING_ERRORS as error:
        return error


Merge = Callable[[RoundJob, Stretch], list[BucketResult]]
"""Absorbs the parts of deltas for neighbouring buckets; returns a result for each bucket that may have changed."""
