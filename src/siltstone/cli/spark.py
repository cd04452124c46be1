"""Spark for commands: where it runs, how it starts, and how Ctrl-C ends it."""

import contextlib
import logging
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siltstone.errors import InvalidInputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?")
_CLUSTER_MASTER = re.compile(r"(spark|k8s)://.+|yarn")


@dataclass(frozen=True)
class SparkStarting:
    """There is work, and Spark starts for it."""


def spark_settings(master: str | None) -> dict[str, str]:
    """Return Spark's settings for a master. Raises: InvalidInputError."""
    if master is None:
        return {}
    if _LOCAL_MASTER.fullmatch(master):
        return {"spark.master": master}
    if _CLUSTER_MASTER.fullmatch(master):
        # Executors elsewhere call back; they cannot do so at the loopback address.
        host = socket.getfqdn()
        return {"spark.master": master, "spark.driver.host": host, "spark.driver.bindAddress": "0.0.0.0"}  # noqa: S104
    raise InvalidInputError(
        f"unknown Spark master {master!r}; use e.g. local[4], spark://host:7077, k8s://https://host:6443 or yarn"
    )


class SparkStarter(contextlib.ExitStack):
    """Starts Spark when it is called, once. Until it is left, Ctrl-C ends Spark's Java before it ends the command.

    `seconds` has how long the start took. Raises: InvalidInputError for an unknown master.
    """

    def __init__(self, master: str | None, progress: "Callable[[SparkStarting], None]") -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._conf = spark_settings(master)
        self._progress = progress
        self._session: SparkSession | None = None

    def __call__(self) -> "SparkSession":
        """Return the session."""
        if self._session is None:
            self._progress(SparkStarting())
            self.enter_context(ending_java())
            from siltstone.spark import session

            started = time.perf_counter()
            self._session = session.local_session(conf=self._conf, is_short=True)
            self.seconds = {"spark_start": time.perf_counter() - started}
        return self._session


@contextlib.contextmanager
def ending_java() -> Iterator[None]:
    """Let Ctrl-C end Java, so that nothing waits for it any longer, and what it says about that is not shown.

    What is running is of no use without the command, which commits when all of it is done. Calls into Java that are under
    way then fail in many ways, all of which are the interrupt. A Java that ran before, for whoever runs commands in this
    process, goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before_it = sys.modules.get("siltstone.spark.gateway")
    is_own = before_it is None or not before_it.is_running()
    is_interrupted = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        gateway = sys.modules.get("siltstone.spark.gateway")
        if gateway is not None and is_own:
            gateway.end()
        raise KeyboardInterrupt

    def is_shown(record: logging.LogRecord) -> bool:
        # The connection to Java logs its failures by the root logger.
        return not is_interrupted

    root = logging.getLogger()
    root.addFilter(is_shown)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
        root.removeFilter(is_shown)
