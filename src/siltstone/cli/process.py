"""What `siltstone serve` does: starts a node and its pages, waits for a signal, and ends all of it in order."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from siltstone.cli.output import Output
from siltstone.cli.results import Serving
from siltstone.cli.spark import spark_settings
from siltstone.errors import InvalidInputError
from siltstone.java import require_java
from siltstone.lake import Lake
from siltstone.masks import mask_secrets, mask_values
from siltstone.service import (
    JsonFormatter,
    LakeTables,
    Node,
    ServiceSettings,
    default_address,
    open_database,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.rows.job import Engine

LEASE_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_STOP_SPARK_SECONDS = 10.0
# So that progress on pages is never old.
_HEARTBEAT_SECONDS = 5.0
_NOISY = ("py4j", "pyspark", "uvicorn.error", "asyncio")
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """How to serve; `workers` are 0 for a node that only leads. An engine, where given, compacts instead of Spark."""

    root: str
    database: str | None = None
    workers: int = 1
    has_web: bool = True
    master: str | None = None
    node: str | None = None
    host: str = "127.0.0.1"
    port: int = 8765
    allowed_hosts: Sequence[str] = ()
    token: str | None = field(default=None, repr=False)
    is_private: bool = False
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    grace_seconds: float = 10
    engine: "Engine | None" = None


def service_settings(
    *,
    interval: float,
    tick: float,
    retention: float,
    lease: float = LEASE_SECONDS,
    backlog_bytes: int | None = None,
    backlog_age: float | None = None,
) -> ServiceSettings:
    """Return the settings for these seconds; a leader is given up sooner than a worker. Raises: InvalidInputError."""
    defaults = ServiceSettings()
    heartbeat = _HEARTBEAT_SECONDS if tick >= _HEARTBEAT_SECONDS else max(tick, 0.2)
    return ServiceSettings(
        interval_seconds=interval,
        tick_seconds=tick,
        leader_lease_seconds=max(0.75 * lease, 4 * tick),
        claim_lease_seconds=lease,
        heartbeat_seconds=min(heartbeat, lease / 4),
        worker_poll_seconds=min(defaults.worker_poll_seconds, max(tick, 0.05)),
        backlog_bytes=backlog_bytes,
        backlog_age_seconds=backlog_age,
        delta_retention_seconds=retention,
    )


def read_token(path: str) -> str:
    """Read a token from a file, without the white space around it. Raises: InvalidInputError."""
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: the token cannot be read; give a text file") from error
    if not token:
        raise InvalidInputError(f"{path}: is empty; write a token into it")
    return token


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


def run_service(options: ServeOptions, output: Output, stopping: threading.Event | None = None) -> bool:
    """Serve until a signal comes or `stopping` is set; False where a part of it died. Raises: SiltstoneError."""
    stopping = stopping or threading.Event()
    spark = SparkStarter(spark_settings(options.master))
    if options.workers and options.engine is None:
        require_java()
    lake = Lake(options.root)
    if "://" not in options.root and not Path(options.root).is_dir():
        output.warning(f"{lake.root}: there is no lake yet; its tables are looked after once they are there")
    with contextlib.ExitStack() as cleanup:
        database = open_database(options.database or default_address(lake.root))
        cleanup.callback(database.close)
        cleanup.callback(spark.stop)
        retention = options.settings.delta_retention_seconds
        tables = LakeTables(lake, session=spark, engine=options.engine, delta_retention_seconds=retention)
        node = Node(database, tables, options.settings, name=options.node, workers=options.workers)
        parts: dict[str, Callable[[], bool]] = {"node": lambda: node.is_running}
        address = None
        if options.has_web:
            from siltstone.web.access import Access
            from siltstone.web.server import WebServer
            from siltstone.web.site import LakeReader, Site

            site = Site(
                database,
                LakeReader(lake),
                options.settings,
                Access(options.token),
                node.identity.name,
                node.wake,
                lambda: node.is_running and not stopping.is_set(),
                options.is_private,
            )
            web = WebServer(site, host=options.host, port=options.port, allowed_hosts=options.allowed_hosts)
            cleanup.callback(web.stop)
            web.start()
            parts["web"] = lambda: web.is_running
            address = web.address
        with _signals(stopping):
            node.start()
            cleanup.callback(node.stop, options.grace_seconds)
            output.emit(
                Serving(node.identity.name, mask_secrets(lake.root), database.address, address, options.workers)
            )
            is_well = _watch(parts, stopping)
            stopping.set()
            _log.info("stopping", extra={"node": node.identity.name})
            cleanup.close()
    return is_well


def _watch(parts: Mapping[str, Callable[[], bool]], stopping: threading.Event) -> bool:
    """Wait for the end; False where a part ended by itself."""
    while not stopping.wait(_WATCH_SECONDS):
        for name, is_running in parts.items():
            if not is_running():
                _log.error("a part of the service died", extra={"part": name})
                return False
    return True


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
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


class TextFormatter(logging.Formatter):
    """Writes a record as one line for people: time, level, message, then the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = "".join(
            f" {name}={value}"
            for name, value in mask_values(vars(record)).items()
            if name not in _STANDARD and not name.startswith("_") and value is not None
        )
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
