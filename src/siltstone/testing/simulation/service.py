"""A service in a simulation: any process is a node, which leads or works for one step, on a database with its own clock."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import event

from siltstone import clock
from siltstone.documents.merge import run_here
from siltstone.errors import LeaseLostError, SiltstoneError
from siltstone.lake import Lake
from siltstone.service.claims import Claim, claim_table
from siltstone.service.database import Database, Transaction, open_database
from siltstone.service.lake_tables import LakeTables
from siltstone.service.leader import Leader
from siltstone.service.settings import ServiceSettings
from siltstone.service.worker import Handover, Heartbeat
from siltstone.testing.simulation.checker import ViolationError
from siltstone.testing.simulation.clocks import SECOND_MS, ProcessClock, TrueTime
from siltstone.testing.simulation.processes import Operation, Process
from siltstone.testing.simulation.store import Gate

T = TypeVar("T")
# As in a real service, but faster: a call takes milliseconds, and a simulation some seconds.
SETTINGS = ServiceSettings(
    interval_seconds=1,
    tick_seconds=0.2,
    leader_lease_seconds=1,
    claim_lease_seconds=1,
    heartbeat_seconds=0.2,
    stuck_seconds=5,
    stall_seconds=2,
    retry_pause_seconds=0,
    min_pause_seconds=0.2,
    backlog_bytes=None,
    # What fails in a simulation is disturbed, and must be done soon after.
    max_backoff_seconds=1,
    delta_retention_seconds=3600,
)
_TURNS = 12


class SimulatedDatabase(Database):
    """A database in which each transaction passes the gate, by a clock of its own."""

    def __init__(self, opened: Database, gate: Gate, time: ProcessClock) -> None:
        super().__init__(opened.engine, clock=lambda connection: time.now_ms(), sleep=clock.sleep)
        self._gate = gate

    def _once(self, do: Callable[[Transaction], T], *, reads: bool) -> T:
        whole = super()._once
        return self._gate("database", "read" if reads else "change", lambda: whole(do, reads=reads))


class Service:
    """The database of a service, and what its nodes do."""

    def __init__(self, root: str, time: TrueTime, gate: Gate) -> None:
        self.clock = ProcessClock(time)
        self._time = time
        self._folder = tempfile.TemporaryDirectory()
        opened = open_database(f"sqlite:///{Path(self._folder.name)}/service.db")
        # It need not survive a power cut.
        event.listen(opened.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
        opened.engine.dispose()
        self._database = SimulatedDatabase(opened, gate, self.clock)
        self._tables = LakeTables(Lake(root), engine=run_here, delta_retention_seconds=SETTINGS.delta_retention_seconds)

    def close(self) -> None:
        """Close the database, and delete it."""
        self._database.close()
        self._folder.cleanup()

    def lead(self, process: Process, operation: Operation) -> None:
        """Let a node lead, if it can."""
        owner = f"{process.name}#{process.deaths}"
        leader = process.memory.objects.get("leader")
        if not isinstance(leader, Leader):
            leader = process.memory.objects["leader"] = Leader(
                self._database, self._tables, SETTINGS, owner=owner, name=process.name, monotonic=clock.monotonic
            )
        operation.what = f"lead: {leader.tick().action}"

    def work(self, process: Process, operation: Operation) -> None:
        """Let a node compact what is due of one table, if there is something to claim."""
        claim = claim_table(self._database, f"{process.name}#{process.deaths}", SETTINGS)
        if claim is not None:
            operation.what = f"work on {', '.join(partition.name for partition in claim.partitions)}"
            self._compact(claim)

    def _compact(self, claim: Claim) -> None:
        # Its heartbeat beats between the steps of a round only: here no thread runs beside another one.
        heartbeat = Heartbeat(self._database, claim, SETTINGS, monotonic=clock.monotonic)
        handover = Handover(self._database, claim, SETTINGS, monotonic=clock.monotonic)
        partitions = [partition.locator for partition in claim.partitions]
        failures: list[SiltstoneError] = []
        try:
            for partition, ended in self._tables.compact(partitions, heartbeat.on_progress):
                handover.add(partition, ended)
                if isinstance(ended, SiltstoneError):
                    failures.append(ended)
        except LeaseLostError:
            return
        except SiltstoneError as error:
            handover.end("FAILED", str(error))
            raise
        handover.end()
        if failures:
            raise failures[0]

    def check_progress(self, process: Process, operation: Operation) -> None:
        """Check that a node alone, undisturbed, soon compacts all there is. Raises: ViolationError."""
        for _ in range(_TURNS):
            self._time.pass_ms(SECOND_MS // 2)
            self.lead(process, operation)
            for _ in range(_TURNS):
                self.work(process, operation)
            if not self._tables.find_work(lambda: None):
                return
        waiting = [each.name for each in self._tables.find_work(lambda: None)]
        raise ViolationError("idle service", f"no cycle compacts {waiting}, though nothing disturbs")
