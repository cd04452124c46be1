"""The memory of a process: what Siltstone keeps for a whole process, swapped when another simulated one goes on."""

import contextlib
from collections.abc import Iterator
from typing import Any

from siltstone.clock import StoreClock
from siltstone.documents import record
from siltstone.log import commit


class Memory:
    """The known state of logs, the maker of change ids, the store's time, and objects of a program's own; a new process has none."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}
        self.store_clock: StoreClock | None = None
        self._logs: dict[Any, Any] = {}
        self._change_ids: dict[str, Any] | None = None

    def enter(self) -> None:
        """Let this process go by this memory."""
        commit._logs = self._logs
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
    logs, ids = commit._logs, dict(vars(record._ids))
    try:
        yield
    finally:
        commit._logs = logs
        vars(record._ids).update(ids)
