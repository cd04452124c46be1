"""A node of the service: its threads and its heartbeat."""

import logging
import threading
import time
from collections.abc import Callable

from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.service.database import Database
from siltstone.service.leader import Leader
from siltstone.service.leases import NodeIdentity, default_node_name, register_node, unregister_node
from siltstone.service.results import Tables
from siltstone.service.settings import ServiceSettings
from siltstone.service.worker import Worker

_log = logging.getLogger(__name__)


class Node:
    """One process of the service. `start` it, `stop` it; in between, failures are logged and the next try goes on."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        settings: ServiceSettings | None = None,
        *,
        name: str | None = None,
        workers: int = 1,
    ) -> None:
        if workers < 0:
            raise InvalidInputError(f"{workers} workers are too few; give 0 for a node that only leads")
        self.identity = NodeIdentity(name or default_node_name())
        self.settings = settings or ServiceSettings()
        owner = self.identity.owner
        self.leader = Leader(database, tables, self.settings, owner=owner, name=self.identity.name)
        self._workers = [Worker(database, tables, self.settings, owner=owner) for _ in range(workers)]
        self._database = database
        self._stopping = threading.Event()
        # Set to make a loop go on before its time.
        self._lead_now = threading.Event()
        self._work_now = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and all its threads live."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Register, and begin to lead and to work. Raises: StorageError."""
        register_node(self._database, self.identity, is_worker=bool(self._workers))
        loops: list[tuple[str, Callable[[], None]]] = [("leader", self._lead)]
        loops += [
            (f"worker-{number}", lambda worker=worker: self._work(worker))  # type: ignore[misc]
            for number, worker in enumerate(self._workers, 1)
        ]
        self._threads = [threading.Thread(target=loop, name=f"siltstone-{name}", daemon=True) for name, loop in loops]
        for thread in self._threads:
            thread.start()
        _log.info(
            "node started",
            extra={"node": self.identity.name, "database": self._database.address, "workers": len(self._workers)},
        )

    def stop(self, grace_seconds: float = 10, *, monotonic: Callable[[], float] = time.monotonic) -> bool:
        """Stop: let compactions end within the grace, then make them hand their partitions back; resign.

        Returns whether all threads ended. One that does not answer is left behind; its claim runs out, and what it may
        still commit is a sound round like any other.
        """
        self._stopping.set()
        self._lead_now.set()
        self._work_now.set()
        for reason, seconds in ((None, grace_seconds), ("the node is stopping", grace_seconds)):
            if reason is not None:
                for worker in self._workers:
                    worker.abandon(reason)
            deadline = monotonic() + seconds
            for thread in self._threads:
                thread.join(max(deadline - monotonic(), 0))
        is_clean = not any(thread.is_alive() for thread in self._threads)
        try:
            self.leader.resign()
            unregister_node(self._database, self.identity)
        except SiltstoneError as error:
            _log.warning("node not unregistered", extra={"node": self.identity.name, "reason": str(error)})
        _log.info("node stopped", extra={"node": self.identity.name, "is_clean": is_clean})
        return is_clean

    def wake(self) -> None:
        """Make the node act at once, e.g. because a cycle was requested."""
        self._lead_now.set()

    def _lead(self) -> None:
        while not self._stopping.is_set():
            self._lead_now.clear()
            if not self._guarded("lead", self._lead_once):
                self._lead_now.wait(self.settings.tick_seconds)

    def _lead_once(self) -> bool:
        """Tick; True where the next tick should follow at once."""
        register_node(self._database, self.identity, is_worker=bool(self._workers))
        tick = self.leader.tick()
        if tick.begun is not None:
            self._work_now.set()
            return tick.begun.partitions == 0
        return tick.action in ("finished", "trimmed")

    def _work(self, worker: Worker) -> None:
        while not self._stopping.is_set():
            if self._guarded("work", worker.step):
                # It may have been the last one of the cycle.
                self._lead_now.set()
                continue
            self._work_now.wait(self.settings.worker_poll_seconds)
            if not self._stopping.is_set():
                self._work_now.clear()

    def _guarded(self, what: str, do: Callable[[], bool]) -> bool:
        """Do something; a failure is logged and leaves the loop alive."""
        try:
            return do()
        except SiltstoneError as error:
            _log.warning(f"could not {what}", extra={"node": self.identity.name, "reason": str(error)})
        except Exception:  # noqa: BLE001 - one failure of whatever kind must not end the service
            _log.exception(f"could not {what}", extra={"node": self.identity.name})
        return False
