"""The memory of a process: what Siltstone keeps for a whole process, swapped when another simulated one goes on."""

import contextlib
from collections.abc import Iterator
from typing import Any

from siltstone.clock import StoreClock
from siltstone.documents import groups, recent, record
from siltstone.log import commit


class Memory:
    """What a process knows of logs and of recent deltas, its maker of change ids, the store's time, and its own objects."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}
        self.store_clock: StoreClock | None = None
        self._logs: dict[Any, Any] = {}
        self._recent_deltas = recent.RecentDeltas()
        self._commit_groups = groups.CommitGroups()
        self._change_ids: dict[str, Any] | None = None

    def enter(self) -> None:
        """Let this process go by this memory."""
        commit._logs = self._logs
        recent.recent_deltas = self._recent_deltas
        groups.commit_groups = self._commit_groups
        if self._change_ids is None:
            record._ids._last_ticks = 0
            record._ids._become_unique()
        else:
            vars(record._ids).update(self._change_ids)

    def leave(self) -> None:
        """Remember what is known now."""
        self._change_ids = dict(vars(record._ids))


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Put back what this process knew before."""
    logs, deltas, ids = commit._logs, recent.recent_deltas, dict(vars(record._ids))
    updates = groups.commit_groups
    try:
        yield
    finally:
        commit._logs, recent.recent_deltas, groups.commit_groups = logs, deltas, updates
        vars(record._ids).update(ids)
