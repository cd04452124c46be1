"""A node of the service: its threads and its entry among the nodes; its process: Spark, logs, and how it is stopped."""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import orjson
from sqlalchemy import delete

from siltstone import __version__
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.service.database import Database, Transaction, in_transaction
from siltstone.service.leader import Leader
from siltstone.service.results import Tables
from siltstone.service.schema import nodes
from siltstone.service.settings import DAY_SECONDS, ServiceSettings, to_ms
from siltstone.service.worker import Worker
from siltstone.text import format_checkpoint, format_iso_time, mask_secrets, mask_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_NAME_LIMIT = 200
_WATCH_SECONDS = 0.5
_STOP_SPARK_SECONDS = 10.0
# Loggers of others that tell too much.
_NOISY = ("py4j", "pyspark", "uvicorn.error", "asyncio")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


@dataclass(frozen=True)
class NodeIdentity:
    """A node's name, and what distinguishes this process from others of the same name."""

    name: str
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > _NAME_LIMIT or not self.name.isprintable() or "#" in self.name:
            raise InvalidInputError(
                f"node name {self.name[:40]!r} must have 1 to {_NAME_LIMIT} printable characters, and no #"
            )

    @property
    def owner(self) -> str:
        """What leases and claims of this process are held under."""
        return f"{self.name}#{self.incarnation}"


@in_transaction("register the node")
def register_node(transaction: Transaction, identity: NodeIdentity, *, is_worker: bool) -> None:
    """Record that a node is alive, the first time and later; forget those not seen for a day. Raises: StorageError."""
    now_ms = transaction.now_ms()
    is_new = transaction.insert_if_absent(
        nodes,
        owner=identity.owner,
        name=identity.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        is_worker=is_worker,
        started_at=now_ms,
        seen_at=now_ms,
    )
    if is_new:
        transaction.execute(delete(nodes).where(nodes.c.seen_at < now_ms - to_ms(DAY_SECONDS)))
    else:
        transaction.execute(nodes.update().filter_by(owner=identity.owner).values(seen_at=now_ms))


@in_transaction("unregister the node")
def unregister_node(transaction: Transaction, identity: NodeIdentity) -> None:
    """Record that a node has stopped. Raises: StorageError."""
    transaction.execute(nodes.update().filter_by(owner=identity.owner).values(stopped_at=transaction.now_ms()))


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
        self.identity = NodeIdentity(name or f"{socket.gethostname()}-{os.getpid()}")
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
        self._threads = [threading.Thread(target=self._lead, name="siltstone-leader", daemon=True)]
        self._threads += [
            threading.Thread(target=self._work, args=(worker,), name=f"siltstone-worker-{number}", daemon=True)
            for number, worker in enumerate(self._workers, 1)
        ]
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
        for is_patient in (True, False):
            if not is_patient:
                for worker in self._workers:
                    worker.abandon("the node is stopping")
            deadline = monotonic() + grace_seconds
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
            return tick.partitions == 0
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

    @property
    def is_starting(self) -> bool:
        """Whether somebody needs a session that is not there yet."""
        return self._session is None and self._lock.locked()

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


class JsonFormatter(logging.Formatter):
    """Writes a log record as one line of JSON: time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "time": format_iso_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask_secrets(record.getMessage()),
            **_extra_fields(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = mask_secrets("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return orjson.dumps(
            line, default=lambda value: mask_secrets(str(value)), option=orjson.OPT_NON_STR_KEYS
        ).decode()


class TextFormatter(logging.Formatter):
    """Writes a log record as one line for people: time, level, message, then the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = format_iso_time(int(record.created * 1000)).partition(".")[0]
        extra = _extra_fields(record)
        if "partition" in extra:
            extra["partition"] = format_checkpoint(str(extra["partition"]))
        fields = "".join(f" {name}={value}" for name, value in extra.items() if value is not None)
        line = f"{moment}Z {record.levelname.lower():<7} {record.getMessage()}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return mask_secrets(line)


def set_up_logs(format: Literal["text", "json"], *, debug: bool = False) -> None:
    """Send the logs of this process to standard error, without secrets."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # Its connections break when Spark stops, which is no news.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    names = [name for name in vars(record) if name not in _STANDARD and not name.startswith("_")]
    fields: dict[str, object] = mask_values({name: getattr(record, name) for name in names})
    return fields
