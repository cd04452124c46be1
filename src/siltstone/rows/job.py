"""What a round asks of its tasks: plain data that travels to wherever a task runs, and the two steps of a task."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa

from siltstone.model import MergeEngine
from siltstone.model.properties import MAX_ROW_GROUP_ROWS, ROWS_KIND, TOMBSTONE_RETENTION_SECONDS
from siltstone.model.rounds import Accounting, Bucket, DeletionVector
from siltstone.model.schema import nullable, schema_from_json


@dataclass(frozen=True)
class Settings:
    """How files and buckets are sized, and when a bucket is rewritten."""

    target_file_bytes: int = 128 << 20
    records_per_compacted_file: int = 4_000_000
    bucket_rows: int = 500_000
    max_dead_fraction: float = 0.25
    max_delta_fraction: float = 0.5
    max_files: int = 8
    full: bool = False


@dataclass(frozen=True)
class ReadTask:
    """A data file of a delta, or every `of`-th row group of it from `share` on.

    `run` numbers the deltas of a round, `first_row` the rows of all of them. Rows of a file of tombstones are row-level
    deletes, all of them. `names` has the columns of another table that are called otherwise in the destination's
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
    deletion_vector: DeletionVector | None = None
    is_tombstones: bool = False
    names: tuple[tuple[str, str], ...] = ()
    share: int = 0
    of: int = 1


@dataclass(frozen=True)
class RoundJob:
    """Everything a task needs to know about a round.

    `kind` is how rows are merged. `closed_before_ms` is set where the round has read every change before that time
    that there will ever be; nothing up to `hold_floor_ms` may be deleted. `seed` is a number of 64 bits that no other
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
    buckets: tuple[Bucket, ...]
    reads: tuple[ReadTask, ...]
    settings: Settings
    now_ms: int
    kind: str = ROWS_KIND
    table: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    closed_before_ms: int | None = None
    hold_floor_ms: int | None = None
    due_buckets: frozenset[str] = frozenset()
    seed: int = 0
    began: int = -1
    expiry_ms: int = 0
    row_group_rows: int = MAX_ROW_GROUP_ROWS
    tombstone_retention_ms: int = round(TOMBSTONE_RETENTION_SECONDS.default * 1000)

    def visits(self, bucket: Bucket) -> bool:
        """Return whether all of a bucket is read, even if no delta has rows for it."""
        return bool(bucket.files) and (self.settings.full or bucket.name in self.due_buckets)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the compacted rows, and of all deltas: nullable, since of a delete only the key is there."""
        return nullable(schema_from_json(list(self.fields)))

    @property
    def input_bytes(self) -> int:
        """Bytes of all files that the round reads."""
        return sum(read.content_length for read in self.reads)

    @property
    def keeps_one_row(self) -> bool:
        """Whether a key has one row at most."""
        return bool(self.primary_keys) and self.drop_duplicates

    @property
    def composes_rows(self) -> bool:
        """Whether a row may have its values from several deltas."""
        return self.keeps_one_row and self.merge_engine == "partial_update"


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one delta for one bucket, in stream order; on the way between tasks it is bytes."""

    run: int
    first_row: int
    is_delete: bool
    delete_columns: tuple[str, ...]
    columns: tuple[str, ...]
    table: pa.Table


Action = Literal["untouched", "minor", "major"]


@dataclass(frozen=True)
class BucketResult:
    """What became of the bucket of a number: the buckets after it, and what was written for them."""

    number: int
    action: Action
    reason: str
    buckets: tuple[Bucket, ...]
    accounting: Accounting
    written_files: int
    written_bytes: int
    written_rows: int
    merge_seconds: float = 0.0
    write_seconds: float = 0.0


Engine = Callable[[RoundJob], Iterator[BucketResult]]
"""Runs the tasks of a round, wherever, and yields the result of each bucket that has one."""

Merge = Callable[[RoundJob, int, Sequence[bytes]], BucketResult | None]
"""Absorbs the parts of deltas for the bucket of a number; returns its result, or None if it stays as it is."""


def gather(parts: Iterable[Part]) -> list[Part]:
    """Return the parts of a bucket in stream order."""
    return sorted(parts, key=lambda part: (part.run, part.first_row))
