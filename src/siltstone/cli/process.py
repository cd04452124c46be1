"""What `siltstone serve` does: starts a node and its pages, waits for a signal, and ends all of it in order."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.cli.output import Output
from siltstone.cli.results import Serving
from siltstone.cli.spark import spark_settings
from siltstone.errors import InvalidInputError
from siltstone.java import require_java
from siltstone.lake import Lake
from siltstone.masks import mask_secrets
from siltstone.service import (
    LakeTables,
    Node,
    ServiceSettings,
    default_address,
    open_database,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.rows.job import Engine

_WATCH_SECONDS = 0.5
_STOP_SPARK_SECONDS = 10.0
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
