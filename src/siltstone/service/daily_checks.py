"""That all files of each partition are there: a round notices only what is missing of what it touches."""

from collections.abc import Iterator, Sequence

from siltstone.clock import monotonic
from siltstone.errors import CorruptionError
from siltstone.log.state import Entry
from siltstone.service.results import KeepAlive
from siltstone.service.settings import DAY_SECONDS
from siltstone.table.completion import Destination, check_whole, current_completion, current_entry
from siltstone.table.followers import PartitionWork

# Each is a listing. A pass over all tables comes every few minutes, so that thousands are checked in a day.
_LEAST_A_PASS = 32
_PASSES_A_DAY = 48


class DailyChecks:
    """Which partitions this process has found whole within the last day, by the clock that only goes forward."""

    def __init__(self) -> None:
        self._checked_at: dict[str, float] = {}
        self._idle_count = 0
        self._left = 0

    def begin_pass(self) -> None:
        """Begin a pass over all tables, in which some of the partitions are checked that no round touches."""
        self._left = max(_LEAST_A_PASS, -(-self._idle_count // _PASSES_A_DAY))
        self._idle_count = 0

    def check(self, destination: Destination, entry: Entry | None) -> None:
        """Check a partition unless it was found whole within a day. Raises: CorruptionError."""
        if not self._is_due(destination):
            return
        completion = None if entry is None else current_completion(destination, entry)
        if completion is not None:
            check_whole(destination, completion)
        self._checked_at[str(destination.locator)] = monotonic()

    def check_idle(
        self, works: Sequence[PartitionWork], keep_alive: KeepAlive
    ) -> Iterator[tuple[PartitionWork, CorruptionError]]:
        """Check some partitions of a table that have nothing to do; yield those that are not whole, each with what is wrong."""
        self._idle_count += len(works)
        for work in works:
            destination, entry = work.followed.destination, work.followed.state.current
            if entry is None or self._left <= 0 or not self._is_due(destination):
                continue
            self._left -= 1
            keep_alive()
            try:
                self.check(destination, entry)
            except CorruptionError as error:
                # What is missing may be of a round that another one has followed since.
                if current_entry(destination) == entry:
                    yield work, error

    def _is_due(self, destination: Destination) -> bool:
        return monotonic() - self._checked_at.get(str(destination.locator), -DAY_SECONDS) >= DAY_SECONDS
