"""Intake of files that tables declare by their properties: the node that leads looks into each folder when it is due.

Whether a node leads only saves work: two that take from one folder at the same time take each file once, by its log.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from siltstone import clock
from siltstone.cdc.changes import read_times
from siltstone.errors import SiltstoneError
from siltstone.ingest.drop_options import DropOptions, Ingested, write_options
from siltstone.ingest.drops import Drops
from siltstone.lake import Lake, Table
from siltstone.model.properties import (
    INGEST_CREATE,
    INGEST_DECIMALS,
    INGEST_DONE,
    INGEST_EVERY_SECONDS,
    INGEST_FORMAT,
    INGEST_HEADER,
    INGEST_INTO,
    INGEST_OP_COLUMN,
    INGEST_PATTERN,
    INGEST_QUARANTINE,
    INGEST_REJECTS,
    INGEST_SOURCE,
    INGEST_TIMES,
)

# So often the properties of all tables are read.
_DECLARED_SECONDS = 30.0
_POLL_SECONDS = 0.5
_RETRY_SECONDS = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Declared:
    """What the properties of a table say about files to take."""

    source: str
    every_seconds: float
    options: DropOptions


def declared_ingest(properties: Mapping[str, str], where: object) -> Declared | None:
    """Return what a table declares, or None. Raises: InvalidInputError."""
    source = INGEST_SOURCE.of(properties, where)
    if source is None:
        return None
    rejects, header = INGEST_REJECTS.of(properties, where), INGEST_HEADER.of(properties, where)
    options = DropOptions(
        pattern=INGEST_PATTERN.of(properties, where),
        done=INGEST_DONE.of(properties, where),  # type: ignore[arg-type]
        quarantine=INGEST_QUARANTINE.of(properties, where) or rejects is not None,
        rejects=rejects,
        how=write_options(
            INGEST_FORMAT.of(properties, where),
            None,
            "upsert",
            INGEST_OP_COLUMN.of(properties, where),
            evolve=True,
            decimals=INGEST_DECIMALS.of(properties, where),
            times=read_times(INGEST_TIMES.of(properties, where) or ""),
            header=header.split(",") if header else None,
            into=INGEST_INTO.of(properties, where),
            create=INGEST_CREATE.of(properties, where),
        ),
    )
    return Declared(source, INGEST_EVERY_SECONDS.of(properties, where), options)


@dataclass
class _Running:
    """A declared intake, what takes its files once that could be opened, and when it is due."""

    declared: Declared
    drops: Drops | None = None
    due_at: float = 0.0
    error: str | None = None


class Ingests:
    """All declared intakes of a lake, in one thread; they go on only while this node leads."""

    def __init__(self, lake: Lake, is_leading: Callable[[], bool]) -> None:
        self._lake = lake
        self._is_leading = is_leading
        self._running: dict[str, _Running] = {}
        self._declared_at: float | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="siltstone-ingests", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether its thread lives."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, grace_seconds: float) -> None:
        """Stop after the batch that is being written; one that takes longer is finished by whoever comes next."""
        self._stopping.set()
        self._thread.join(grace_seconds)

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                if self._is_leading():
                    self.step()
            except SiltstoneError as error:
                _log.warning("could not look for files", extra={"reason": str(error)})
            except Exception:  # noqa: BLE001 - one failure of whatever kind must not end the service
                _log.exception("could not look for files")

    def step(self) -> list[Ingested]:
        """Take what has arrived in each folder that is due; return what was taken. Raises: StorageError."""
        now = clock.monotonic()
        if self._declared_at is None or now - self._declared_at >= _DECLARED_SECONDS:
            self._read_declared()
            self._declared_at = now
        due = [name for name, running in self._running.items() if running.due_at <= now]
        return [taken for name in due if not self._stopping.is_set() for taken in self._take(name)]

    def _read_declared(self) -> None:
        before, self._running = self._running, {}
        for table in self._lake.tables():
            try:
                declared = declared_ingest(table.properties, table.name)
            except SiltstoneError as error:
                _log.warning("files not taken", extra={"table": table.name, "reason": str(error)})
                continue
            if declared is not None:
                running = before.get(table.name)
                is_same = running is not None and running.declared == declared
                self._running[table.name] = running if running and is_same else _Running(declared)

    def _take(self, name: str) -> list[Ingested]:
        running = self._running[name]
        table, source = Table(self._lake, name), running.declared.source
        try:
            if running.drops is None:
                running.drops = table.open_drops(source, running.declared.options)
            taken = running.drops.take(is_stopping=self._stopping.is_set)
        except SiltstoneError as error:
            if str(error) != running.error:
                _log.warning("files not taken", extra={"table": name, "source": source, "reason": str(error)})
            if running.drops is None:
                table.note_ingest_failure(source, str(error))
            running.error = str(error)
            running.due_at = clock.monotonic() + max(running.declared.every_seconds, _RETRY_SECONDS)
            return []
        running.error = None
        running.due_at = clock.monotonic() + running.declared.every_seconds
        if taken.files or taken.rejected:
            counts = {"files": taken.files, "rows": taken.rows, "rejected": len(taken.rejected)}
            _log.info("files taken", extra={"table": name, "source": source, **counts})
        return [taken]
