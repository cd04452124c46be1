"""What the commands that explain, check and maintain tables hand to the output: plain records, cheap to import."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siltstone.cli.results_rounds import RoundLine


@dataclass(frozen=True)
class KeyEventLine:
    """One row of a delta that concerns a key, what it did, and whether a round has taken it in."""

    stream_position: int
    committed_at: int
    kind: str
    effect: str
    is_winner: bool
    is_compacted: bool
    file: str
    row: int
    values: Mapping[str, object]


@dataclass(frozen=True)
class KeyStory:
    """All that happened to a key in one partition; `row` is current after it, `compacted_row` as compacted last."""

    table: str
    key: Mapping[str, object]
    partition: Sequence[object]
    events: Sequence[KeyEventLine]
    row: Mapping[str, object] | None
    why: str
    compacted_row: Mapping[str, object] | None
    high_watermark: int
    notes: Sequence[str]


@dataclass(frozen=True)
class Problem:
    """Something wrong with a table: a stable `code`, the file, what is the matter, and what to do."""

    code: str
    file: str
    message: str
    action: str


@dataclass(frozen=True)
class TableChecked:
    """What was looked at in a table, and what was found; no findings means sound."""

    table: str
    deep: bool
    deltas: int
    delta_files: int
    rounds: int
    compacted_files: int
    live_rows: int
    findings: Sequence[Problem]


@dataclass(frozen=True)
class TableVacuumed:
    """What was removed of a table, or would be in a dry run."""

    table: str
    expired_rounds: Sequence[int]
    removed_files: Sequence[str]
    removed_bytes: int
    kept_files: int
    skipped_links: Sequence[str] = ()
    unsure_time: str | None = None


@dataclass(frozen=True)
class DroppedVacuumed:
    """What was removed of tables that were dropped; `waiting_folders` are those within the retention."""

    removed_folders: Sequence[str]
    removed_files: int
    removed_bytes: int
    waiting_folders: Sequence[str]
    skipped_links: Sequence[str] = ()
    unclaimed_folders: Sequence[str] = ()
    unsure_time: str | None = None


@dataclass(frozen=True)
class Vacuumed:
    """What was removed of one table, or of all and of those that were dropped; or would be in a dry run."""

    dry_run: bool
    tables: Sequence[TableVacuumed]
    dropped: DroppedVacuumed | None


@dataclass(frozen=True)
class RolledBack:
    """A partition that is, or in a dry run would be, as it was after an earlier round."""

    table: str
    dry_run: bool
    round: RoundLine
    previous_high_watermark: int
    previous_live_rows: int
    deltas_to_compact: int


@dataclass(frozen=True)
class BucketRepaired:
    """What was, or in a dry run would be, done for one range of key hashes; see `BucketRepair`."""

    bucket: str
    first_hash: str
    last_hash: str
    damaged: Sequence[str]
    cure: str
    from_round: int | None
    deltas: int
    lost_rows: int
    lost_tombstones: int


@dataclass(frozen=True)
class PartitionRepaired:
    """What was, or in a dry run would be, done for a partition, by the round that says so."""

    partition: Sequence[object]
    round_id: int | None
    is_registered: bool
    lost_rows: int
    buckets: Sequence[BucketRepaired]


@dataclass(frozen=True)
class Repaired:
    """What was, or in a dry run would be, repaired of a table."""

    table: str
    dry_run: bool
    lost_rows: int
    partitions: Sequence[PartitionRepaired]
