"""A worker: it claims partitions of a table in the current cycle, compacts them as one job and records what came of each."""

import logging
import threading
import time
from collections.abc import Callable

from siltstone.errors import (
    AccessDeniedError,
    CorruptionError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
    SiltstoneError,
    StorageError,
)
from siltstone.model import PartitionLocator
from siltstone.rounds.events import BucketMerged, Event, JobAwaited, RoundStarted
from siltstone.service.claims import (
    Beat,
    Claim,
    Outcome,
    OutcomeStatus,
    claim_table,
    release_partitions,
    send_heartbeat,
)
from siltstone.service.database import Database
from siltstone.service.results import CheckpointResult, Tables
from siltstone.service.settings import ServiceSettings
from siltstone.text import mask_secrets

# Trying these again in the same cycle would fail in the same way.
_LASTING = (InvalidInputError, CorruptionError, NotFoundError, AccessDeniedError)
_HANDOVER_SECONDS = 1.0
_log = logging.getLogger(__name__)


class Heartbeat:
    """Keeps a claim alive from a thread of its own, and stops the compaction once the claim is lost."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        settings: ServiceSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_lost = False
        # Set to make the compaction stop at its next step.
        self.stop_reason: str | None = None
        self._database = database
        self._claim = claim
        self._settings = settings
        self._monotonic = monotonic
        self._beat_at = monotonic()
        self._done = threading.Event()
        self._progress = self._buckets_done = self._buckets_total = 0
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {claim.table}", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def on_progress(self, event: Event) -> None:
        """Note a step of the compaction, and end it where it has lost the right to go on. Raises: LeaseLostError."""
        # Being waited for is no step, or a compaction that hangs would seem to move.
        self._progress += not isinstance(event, JobAwaited)
        # Rounds that run together are told one by one only after all of them have been run.
        is_alone = len(self._claim.partitions) == 1
        if is_alone and isinstance(event, RoundStarted):
            self._buckets_done, self._buckets_total = 0, event.buckets
        elif is_alone and isinstance(event, BucketMerged):
            self._buckets_done += 1
        # After a pause of the whole process, the thread may not have noticed yet what happened meanwhile.
        if self._monotonic() - self._beat_at > self._settings.claim_lease_seconds / 2:
            self.beat()
        reason = self.stop_reason
        if reason is None and self.is_lost:
            reason = f"the claim of cycle {self._claim.cycle} is lost"
        if reason is not None:
            raise LeaseLostError(f"{self._claim.table}: {reason}, so nothing more is committed")

    def beat(self) -> None:
        """Send one heartbeat. A database that is not reached for a whole lease means that the claim is lost."""
        beat = Beat(self._progress, self._buckets_done, self._buckets_total)
        started_at = self._monotonic()
        try:
            is_ours = send_heartbeat(self._database, self._claim, beat, self._settings)
        except StorageError as error:
            is_ours = self._monotonic() - self._beat_at <= self._settings.claim_lease_seconds
            _log.warning("heartbeat failed", extra={"table": self._claim.table, "reason": str(error)})
        else:
            self._beat_at = started_at
        if not is_ours:
            self.is_lost = True

    def _run(self) -> None:
        while not self._done.wait(self._settings.heartbeat_seconds) and not self.is_lost:
            self.beat()


class Handover:
    """Hands the partitions of a claim back with what came of each: those that end within a second together."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        settings: ServiceSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_refused = False
        self._database = database
        self._claim = claim
        self._settings = settings
        self._monotonic = monotonic
        self._sent_at = monotonic()
        self._open = {partition.locator: partition for partition in claim.partitions}
        self._unsent: list[Outcome] = []

    @property
    def open(self) -> int:
        """How many partitions have not ended."""
        return len(self._open)

    def add(self, partition: PartitionLocator, ended: CheckpointResult | SiltstoneError) -> None:
        """Note what came of a partition, and hand back what was noted, unless that has just been done."""
        claimed = self._open.pop(partition)
        if isinstance(ended, SiltstoneError):
            about = {**_about(self._claim), "partition": claimed.name, "attempt": claimed.attempt}
            _log.error("checkpoint failed", extra={**about, "reason": str(ended)}, exc_info=ended)
            outcome = Outcome(claimed.name, "FAILED", error=str(ended), may_retry=not isinstance(ended, _LASTING))
        else:
            outcome = Outcome(claimed.name, "COMPLETED", result=ended)
        self._unsent.append(outcome)
        if self._monotonic() - self._sent_at < _HANDOVER_SECONDS:
            return
        try:
            self._send()
        except StorageError as error:
            # They go with the next ones. If the database stays away for as long as the lease, the claim is lost.
            _log.warning("partitions not handed back yet", extra={**_about(self._claim), "reason": str(error)})

    def end(
        self, status: OutcomeStatus = "FAILED", error: str = "nothing was said of it", *, may_retry: bool = False
    ) -> bool:
        """Hand back all the rest, what has not ended with this status; False where the claim is lost. Raises: StorageError."""
        self._unsent += [Outcome(each.name, status, None, error, may_retry) for each in self._open.values()]
        self._open.clear()
        self._send()
        return not self.is_refused

    def _send(self) -> None:
        if not self._unsent:
            return
        if not release_partitions(self._database, self._claim, self._unsent, self._settings):
            self.is_refused = True
            _log.warning("late results refused", extra={**_about(self._claim), "results": len(self._unsent)})
        for outcome in [] if self.is_refused else self._unsent:
            if outcome.result is not None:
                about = {**_about(self._claim), "partition": outcome.partition}
                _log.info("checkpoint completed", extra={**about, **vars(outcome.result)})
        self._unsent = []
        self._sent_at = self._monotonic()


class Worker:
    """One node's worker; `step` does one claim. Several threads may each have one."""

    def __init__(self, database: Database, tables: Tables, settings: ServiceSettings, *, owner: str) -> None:
        self._database = database
        self._tables = tables
        self._settings = settings
        self._owner = owner
        self._current: Heartbeat | None = None
        self._stop_reason: str | None = None
        self._lock = threading.Lock()

    def step(self) -> bool:
        """Claim a table, compact it and release it; False if there is nothing to claim. Raises: StorageError."""
        claim = claim_table(self._database, self._owner, self._settings)
        if claim is None:
            return False
        self.work(claim)
        return True

    def work(self, claim: Claim) -> bool:
        """Compact what is claimed, and hand each partition back; False where the claim was lost. Raises: StorageError."""
        with self._watched(claim) as heartbeat:
            handover = Handover(self._database, claim, self._settings)
            try:
                partitions = [partition.locator for partition in claim.partitions]
                for partition, ended in self._tables.compact(partitions, heartbeat.on_progress):
                    handover.add(partition, ended)
                    if handover.is_refused:
                        return False
            except LeaseLostError as error:
                _log.warning(
                    "checkpoints stopped", extra={**_about(claim), "open": handover.open, "reason": str(error)}
                )
                if heartbeat.is_lost or heartbeat.stop_reason is None:
                    return False
                return handover.end("ABANDONED", str(error))
            except Exception as error:  # noqa: BLE001 - whatever a compaction fails with is an outcome of its checkpoints
                reason = mask_secrets(str(error) or type(error).__name__)
                about = {**_about(claim), "open": handover.open, "reason": reason}
                _log.error("checkpoints failed", extra=about, exc_info=error)
                # Of several it is not known which one it is about, so that they are tried again with fewer others.
                is_lasting = isinstance(error, _LASTING) and handover.open == 1
                return handover.end("FAILED", reason, may_retry=not is_lasting)
            return handover.end()

    def abandon(self, reason: str) -> None:
        """Make the compaction that runs stop at its next step and hand its partitions back, for others to take."""
        with self._lock:
            self._stop_reason = reason
            if self._current is not None:
                self._current.stop_reason = reason

    def _watched(self, claim: Claim) -> Heartbeat:
        with self._lock:
            self._current = Heartbeat(self._database, claim, self._settings)
            self._current.stop_reason = self._stop_reason
            return self._current


def _about(claim: Claim) -> dict[str, object]:
    return {"cycle": claim.cycle, "table": claim.table, "partitions": len(claim.partitions), "worker": claim.owner}
