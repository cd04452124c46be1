"""What the compaction commands hand to the output: plain records, cheap to import."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RoundLine:
    """One committed round. `base_rows`, `delta_rows` and `added_rows` add up to `live_rows` and all rows that went.

    Rows that are added are records of documents.
    `problem` says why little else is known of it.
    """

    partition: Sequence[object]
    round_id: int
    completed_at: int
    high_watermark: int
    live_rows: int
    files: int
    deltas: int = 0
    base_rows: int = 0
    delta_rows: int = 0
    added_rows: int = 0
    removal_rows: int = 0
    superseded_rows: int = 0
    deleted_rows: int = 0
    duplicate_rows: int = 0
    lost_rows: int = 0
    bytes: int = 0
    input_bytes: int = 0
    written_bytes: int = 0
    written_files: int = 0
    written_rows: int = 0
    carried_files: int = 0
    carried_bytes: int = 0
    copied_by_reference_ratio: float = 0.0
    write_amplification: float | None = None
    dead_rows: int = 0
    read_amplification: float | None = None
    bucket_actions: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    rolled_back_to: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Compacted:
    """What a compaction did; no rounds where nothing was new. Dead rows and read amplification are as of now."""

    table: str
    partitions: int
    stream_position: int
    rounds: Sequence[RoundLine]
    deltas: int
    delta_rows: int
    superseded_rows: int
    deleted_rows: int
    duplicate_rows: int
    live_rows: int
    dead_rows: int
    read_amplification: float | None
    input_bytes: int
    written_bytes: int
    carried_bytes: int
    write_amplification: float | None
    conflicts: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class BucketPlan:
    """What a round would do to one bucket, and why."""

    bucket: str
    action: str
    reason: str
    base_rows: int
    new_rows: int
    dead_rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class RoundPreview:
    """The next round of one partition: what it would read and do; what comes after it is left over."""

    partition: Sequence[object]
    round_id: int
    rebase_from: str | None
    previous_high_watermark: int
    high_watermark: int
    deltas: int
    rows: int
    bytes: int
    deltas_left_over: int
    buckets: Sequence[BucketPlan]


@dataclass(frozen=True)
class TablePlan:
    """The next round of each partition that has one."""

    table: str
    partitions: int
    stream_position: int
    rounds: Sequence[RoundPreview]


@dataclass(frozen=True)
class FileLine:
    """A data file of a bucket, with how many of its rows are dead."""

    uri: str
    rows: int
    bytes: int
    dead_rows: int
    deletion_vector: str | None
    index: str | None


@dataclass(frozen=True)
class BucketLine:
    """A bucket after a round; tombstones are counted."""

    bucket: str
    live_rows: int
    bytes: int
    files: Sequence[FileLine]
    tombstones: int


@dataclass(frozen=True)
class RoundDetails:
    """All that a round completion file tells."""

    table: str
    round: RoundLine
    previous_round_id: int | None
    read_watermark: int
    source: str
    destination: str
    rebased_from: str | None
    primary_keys: Sequence[str]
    sort_keys: Sequence[str]
    merge_engine: str
    columns: Sequence[str]
    buckets: Sequence[BucketLine]
