"""A node of the service: its threads and its heartbeat, its Spark, and how its process is stopped."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.service.database import Database
from siltstone.service.leader import Leader
from siltstone.service.leases import NodeIdentity, default_node_name, register_node, unregister_node
from siltstone.service.results import Tables
from siltstone.service.settings import ServiceSettings
from siltstone.service.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_WATCH_SECONDS = 0.5
_STOP_SPARK_SECONDS = 10.0


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
            raise InvalidInputError(f"cannot run {workers} workers; use 0 for a node that only leads")
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


class SparkStarter:
    """Starts Spark when it is first needed, and stops it."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def __call__(self) -> "SparkSession":
        """Return the session."""
        with self._lock:
            if self._session is None:
                from siltstone.spark.session import local_session

                started = time.monotonic()
                self._session = local_session(conf=self._conf)
                _log.info("spark started", extra={"seconds": round(time.monotonic() - started, 1)})
            return self._session

    def stop(self) -> None:
        """Stop the session, if there is one; what it runs is cancelled."""
        if not self._lock.acquire(timeout=_STOP_SPARK_SECONDS):
            _log.warning("spark not stopped", extra={"reason": "it is still starting"})
            return
        try:
            if self._session is not None:
                self._session.stop()
                self._session = None
                _log.info("spark stopped")
        except Exception as error:  # noqa: BLE001 - the process ends anyway, and Spark with it
            _log.warning("spark not stopped", extra={"reason": str(error)})
        finally:
            self._lock.release()


def watch(parts: Mapping[str, Callable[[], bool]], stopping: threading.Event) -> bool:
    """Wait for the end; False where a part ended by itself."""
    while not stopping.wait(_WATCH_SECONDS):
        for name, is_running in parts.items():
            if not is_running():
                _log.error("a part of the service died", extra={"part": name})
                return False
    return True


@contextlib.contextmanager
def stopping_signals(stopping: threading.Event) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT stop the service, and the second end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
