"""The worker: claims a partition, compacts it under a heartbeat, and hands it back."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from siltstone.errors import (
    AccessDeniedError,
    CorruptionError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
    StorageError,
)
from siltstone.masking import mask_secrets
from siltstone.service.claims import Beat, Claim, claim_partition, release_partition, send_heartbeat
from siltstone.service.database import Database
from siltstone.service.partitions import CheckpointResult, Tables
from siltstone.service.settings import ServiceSettings

# Trying these again in the same cycle would fail in the same way.
_LASTING = (InvalidInputError, CorruptionError, NotFoundError, AccessDeniedError)
_log = logging.getLogger(__name__)


class Heartbeat:
    """Keeps a claim alive from a thread of its own, and tells the compaction to stop once the claim is lost."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        settings: ServiceSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_lost = False
        self._database = database
        self._claim = claim
        self._settings = settings
        self._monotonic = monotonic
        self._beat_at = monotonic()
        self._done = threading.Event()
        self._stop_reason: str | None = None
        self._progress = self._buckets_done = self._buckets_total = 0
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {claim.partition}", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def abandon(self, reason: str) -> None:
        """Make the compaction stop at its next step."""
        self._stop_reason = reason

    @property
    def is_abandoned(self) -> bool:
        """Whether the compaction was told to stop."""
        return self._stop_reason is not None

    def on_progress(self, event: dict[str, Any]) -> None:
        """Note a step of the compaction, and end it where it has lost the right to go on. Raises: LeaseLostError."""
        # Being waited for is no step, or a compaction that hangs would look as if it moved.
        self._progress += event.get("event") != "job_awaited"
        if event.get("event") == "round_started":
            self._buckets_done, self._buckets_total = 0, int(event.get("buckets", 0))
        elif event.get("event") == "bucket_merged":
            self._buckets_done += 1
        # After a pause of the whole process, the thread may not have noticed yet what happened meanwhile.
        if self._monotonic() - self._beat_at > self._settings.claim_lease_seconds / 2:
            self.beat()
        if self._stop_reason is not None:
            raise LeaseLostError(f"{self._claim.partition}: {self._stop_reason}, so nothing more is committed")
        if self.is_lost:
            raise LeaseLostError(
                f"{self._claim.partition}: the claim of cycle {self._claim.cycle}, attempt {self._claim.attempt}, is "
                "lost, so nothing more is committed"
            )

    def beat(self) -> None:
        """Send one heartbeat. A database that is not reached for a whole lease means that the claim is lost."""
        beat = Beat(self._progress, self._buckets_done, self._buckets_total)
        started_at = self._monotonic()
        try:
            is_ours = send_heartbeat(self._database, self._claim, beat, self._settings)
        except StorageError as error:
            is_ours = self._monotonic() - self._beat_at <= self._settings.claim_lease_seconds
            _log.warning("heartbeat failed", extra={"partition": self._claim.partition, "reason": str(error)})
        else:
            self._beat_at = started_at
        if not is_ours:
            self.is_lost = True

    def _run(self) -> None:
        while not self._done.wait(self._settings.heartbeat_seconds) and not self.is_lost:
            self.beat()


class Worker:
    """One node's worker; `step` does one partition. Several threads may each have one."""

    def __init__(self, database: Database, tables: Tables, settings: ServiceSettings, *, owner: str) -> None:
        self._database = database
        self._tables = tables
        self._settings = settings
        self._owner = owner
        self._current: Heartbeat | None = None
        self._stop_reason: str | None = None
        self._lock = threading.Lock()

    def step(self) -> bool:
        """Claim a partition, compact it and hand it back; False where there is nothing to claim. Raises: StorageError."""
        claim = claim_partition(self._database, self._owner, self._settings)
        if claim is None:
            return False
        self.work(claim)
        return True

    def work(self, claim: Claim) -> bool:
        """Compact a claimed partition and hand it back; False where the claim was lost. Raises: StorageError."""
        with self._watched(claim) as heartbeat:
            try:
                result = self._tables.compact(claim.locator, heartbeat.on_progress)
            except LeaseLostError as error:
                return self._give_back(claim, heartbeat, error)
            except Exception as error:  # noqa: BLE001 - whatever a compaction fails with is an outcome of the checkpoint
                return self._fail(claim, error)
            return self._complete(claim, result)

    def abandon(self, reason: str) -> None:
        """Make the compaction that runs stop at its next step and hand its partition back, for others to take."""
        with self._lock:
            self._stop_reason = reason
            if self._current is not None:
                self._current.abandon(reason)

    def _watched(self, claim: Claim) -> Heartbeat:
        with self._lock:
            self._current = Heartbeat(self._database, claim, self._settings)
            if self._stop_reason is not None:
                self._current.abandon(self._stop_reason)
            return self._current

    def _complete(self, claim: Claim, result: CheckpointResult) -> bool:
        is_taken = release_partition(self._database, claim, "COMPLETED", self._settings, result=result)
        if is_taken:
            _log.info("checkpoint completed", extra={**_fields(claim), **vars(result)})
        else:
            _log.warning("late result refused", extra=_fields(claim))
        return is_taken

    def _fail(self, claim: Claim, error: Exception) -> bool:
        message = mask_secrets(str(error) or type(error).__name__)
        _log.error("checkpoint failed", extra={**_fields(claim), "reason": message}, exc_info=error)
        may_retry = not isinstance(error, _LASTING)
        return release_partition(self._database, claim, "FAILED", self._settings, error=message, may_retry=may_retry)

    def _give_back(self, claim: Claim, heartbeat: Heartbeat, error: LeaseLostError) -> bool:
        _log.warning("checkpoint stopped", extra={**_fields(claim), "reason": str(error)})
        if heartbeat.is_lost or not heartbeat.is_abandoned:
            return False
        return release_partition(self._database, claim, "ABANDONED", self._settings, error=str(error))


def _fields(claim: Claim) -> dict[str, object]:
    return {"cycle": claim.cycle, "partition": claim.partition, "attempt": claim.attempt, "worker": claim.owner}
