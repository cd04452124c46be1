"""Spark for commands: where it runs, how it starts, and Ctrl-C meanwhile."""

import contextlib
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siltstone.errors import InvalidInputError
from siltstone.text import mask_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from siltstone.maintenance.machine import Check

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
    """Starts Spark when it is called, once; until it is left, Ctrl-C then is as everywhere else.

    `seconds` has how long that took. Raises: InvalidInputError for an unknown master.
    """

    def __init__(self, master: str | None, progress: "Callable[[SparkStarting], None]") -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}
        self._conf = spark_settings(master)
        self._progress = progress
        self._session: SparkSession | None = None

    def __call__(self) -> "SparkSession":
        """Return the session; an interrupt waits until it has started."""
        if self._session is None:
            from siltstone.spark import session

            self._progress(SparkStarting())
            started = time.perf_counter()
            with _interrupted_later():
                self._session = session.local_session(conf=self._conf, is_short=True)
            self.seconds = {"spark_start": time.perf_counter() - started}
            self.enter_context(interrupted_quietly())
        return self._session


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Keep a first Ctrl-C until Spark has started: in the middle of that, its Java would go on without us for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def keep(number: int, frame: object) -> None:
        if waiting:
            raise KeyboardInterrupt
        waiting.append(number)

    before = signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        # Spark sets a handler of its own, which cancels its jobs.
        if signal.getsignal(signal.SIGINT) is keep:
            signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted_quietly() -> Iterator[None]:
    """Take Ctrl-C as everywhere else.

    Spark's own handler talks to Java while an answer of Java's is awaited on the same connection, which fails with
    pages of traces; and what ends with this process needs no cancelling. The gateway to Java logs the interrupt, too.
    """
    root = logging.getLogger()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if is_main else None
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)
        if is_main:
            signal.signal(signal.SIGINT, before)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def check_spark() -> "Check":
    """Start a local Spark, and run a small job on it."""
    from siltstone.maintenance.machine import Check

    started = time.monotonic()
    try:
        from siltstone.spark.session import local_session

        session = local_session("siltstone-doctor", is_short=True)
        rows = session.range(1000).selectExpr("sum(id) AS total").collect()
        version = session.version
        session.stop()
    except Exception as error:  # noqa: BLE001
        reason = mask_secrets(str(error)).strip().partition("\n")[0]
        return Check("spark", "failed", f"{type(error).__name__}: {reason}", "see what Java says above")
    seconds = time.monotonic() - started
    if rows[0]["total"] != 499_500:
        return Check("spark", "failed", f"{version} counts wrong: {rows[0]['total']}", "install pyspark again")
    return Check("spark", "ok", f"{version} started and ran a job in {seconds:.1f} s")
