"""What a cycle works on: partitions with uncompacted deltas, and what can be done with one: compact it, trim it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from siltstone.model import PartitionLocator
from siltstone.rounds.session import Progress

KeepAlive = Callable[[], None]


@dataclass(frozen=True)
class PendingPartition:
    """A partition with something to do; one with a problem cannot even be looked at, and has no locator."""

    name: str
    table: str
    locator: PartitionLocator | None
    deltas: int = 0
    bytes: int = 0
    oldest_at: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class CheckpointResult:
    """What the compaction of a partition did; no watermark where the partition is gone."""

    high_watermark: int | None
    rounds: int = 0
    rows: int = 0
    input_bytes: int = 0
    written_bytes: int = 0


class Tables(Protocol):
    """The tables that the service looks after."""

    def find_work(self, keep_alive: KeepAlive) -> Sequence[PendingPartition]:
        """Return the partitions that have something to do; `keep_alive` is called in between. Raises: StorageError."""
        ...

    def compact(self, partition: PartitionLocator, progress: Progress) -> CheckpointResult:
        """Compact one partition. What `progress` raises ends it before the next commit. Raises: SiltstoneError."""
        ...

    def trim(self, partition: PartitionLocator, high_watermark: int) -> int | None:
        """Forget compacted deltas up to a watermark that are past their retention; return how many.

        None where the partition is gone. Raises: SiltstoneError.
        """
        ...


def largest_first(pending: Sequence[PendingPartition]) -> list[PendingPartition]:
    """Order partitions so that the longest work begins first."""
    return sorted(pending, key=lambda each: (-each.bytes, -each.deltas, each.name))
