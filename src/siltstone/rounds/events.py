"""What a session reports while it runs: typed events, for progress bars, heartbeats and whoever may stop it."""

from collections.abc import Callable
from dataclasses import dataclass

from siltstone.model import PartitionValue
from siltstone.model.rounds import Accounting
from siltstone.rows.job import Action


@dataclass(frozen=True)
class RoundStarted:
    """A round was planned and begins to read."""

    partition: tuple[PartitionValue, ...]
    round_id: int
    deltas: int
    bytes: int
    buckets: int
    high_watermark: int


@dataclass(frozen=True)
class JobAwaited:
    """Tasks run elsewhere, and no other has ended since the last event."""


@dataclass(frozen=True)
class TasksDone:
    """So many tasks of a step have ended: of `read` or `merge`; before them, of partitions, `check` or `plan`."""

    step: str
    done: int
    tasks: int


@dataclass(frozen=True)
class BucketMerged:
    """The result of a bucket has arrived."""

    round_id: int
    action: Action
    accounting: Accounting


@dataclass(frozen=True)
class RoundCommitted:
    """A round is the current one of its partition."""

    round_id: int
    live_rows: int


Event = RoundStarted | JobAwaited | TasksDone | BucketMerged | RoundCommitted
Progress = Callable[[Event], None]
"""Called with each event; what it raises ends the session."""
