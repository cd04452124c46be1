"""What `siltstone serve` does: starts a node and its pages, waits for a signal, and ends all of it in order."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from siltstone.cli.output import Output
from siltstone.cli.parts import Shown, styled
from siltstone.cli.spark import spark_settings
from siltstone.errors import StorageError
from siltstone.java import require_java
from siltstone.lake import Lake
from siltstone.service import Database, LakeTables, Node, ServiceSettings, default_address, open_database
from siltstone.service.ingests import Ingests
from siltstone.service.node import SparkStarter, stopping_signals, watch
from siltstone.text import format_count, mask_secrets

if TYPE_CHECKING:
    from siltstone.rows.job import Engine

_DATABASE_SECONDS = 5.0
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
    read_token: str | None = field(default=None, repr=False)
    is_private: bool = False
    # Whether pages and API show rows.
    has_preview: bool = True
    # The files of a certificate and its key.
    tls: tuple[str, str] | None = None
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    grace_seconds: float = 10
    engine: "Engine | None" = None


@dataclass(frozen=True)
class Serving:
    """A service that has started; no address where it has no web pages."""

    node: str
    root: str
    database: str
    address: str | None
    workers: int


def run_service(options: ServeOptions, output: Output, stopping: threading.Event | None = None) -> bool:
    """Serve until a signal comes or `stopping` is set; False where a part of it died. Raises: SiltstoneError."""
    stopping = stopping or threading.Event()
    spark = SparkStarter(spark_settings(options.master))
    if options.workers and options.engine is None:
        require_java()
    lake = Lake(options.root)
    if "://" not in options.root and not Path(options.root).is_dir():
        output.warning(f"{lake.root}: no lake yet; its tables are compacted once they exist")
    with contextlib.ExitStack() as cleanup, stopping_signals(stopping):
        database = _open_database(options.database or default_address(lake.root), stopping)
        if database is None:
            return True
        cleanup.callback(database.close)
        cleanup.callback(spark.stop)
        retention = options.settings.delta_retention_seconds
        tables = LakeTables(lake, session=spark, engine=options.engine, delta_retention_seconds=retention)
        node = Node(database, tables, options.settings, name=options.node, workers=options.workers)
        parts: dict[str, Callable[[], bool]] = {"node": lambda: node.is_running}
        address = None
        if options.has_web:
            from siltstone.web.app import WebServer
            from siltstone.web.row_reader import RowReader
            from siltstone.web.site import Access, LakeReader, Site

            site = Site(
                database,
                LakeReader(lake),
                options.settings,
                Access(options.token, options.read_token),
                node.identity.name,
                node.wake,
                lambda: node.is_running and not stopping.is_set(),
                options.is_private,
                RowReader(lake) if options.has_preview else None,
                lambda: spark.is_starting,
            )
            web = WebServer(
                site, host=options.host, port=options.port, allowed_hosts=options.allowed_hosts, tls=options.tls
            )
            cleanup.callback(web.stop)
            web.start()
            parts["web"] = lambda: web.is_running
            address = web.address
        node.start()
        cleanup.callback(node.stop, options.grace_seconds)
        ingests = Ingests(lake, is_leading=lambda: node.leader.lease is not None)
        ingests.start()
        cleanup.callback(ingests.stop, options.grace_seconds)
        parts["ingests"] = lambda: ingests.is_running
        serving = Serving(node.identity.name, mask_secrets(lake.root), database.address, address, options.workers)
        output.emit(serving, _serving_text(serving), one_line=True)
        is_well = watch(parts, stopping)
        stopping.set()
        _log.info("stopping", extra={"node": node.identity.name})
        cleanup.close()
    return is_well


def _open_database(address: str, stopping: threading.Event) -> Database | None:
    """Open the database, and wait for one that does not answer as running nodes do; None where a signal came first.

    Raises: InvalidInputError for an address that can never be right.
    """
    while True:
        try:
            return open_database(address)
        except StorageError as error:
            _log.warning("waiting for the database", extra={"reason": str(error)})
        if stopping.wait(_DATABASE_SECONDS):
            return None


def _serving_text(serving: Serving) -> Iterator[Shown]:
    workers = format_count(serving.workers, "worker")
    yield f"Node {serving.node} serves {serving.root} with {workers}; its database is {serving.database}."
    if serving.address is not None:
        yield styled("Open ", (serving.address, "bold"))
    yield "Ctrl-C stops it."
