"""Who may still commit: a vacuum says so in the log before it deletes, and whoever began earlier stages anew.

A file that is written gets a name by which readers know it only when it is committed. Until then a vacuum cannot tell it
from one that was left behind. So a vacuum commits a *horizon*, a batch number, to the log first: work that began before
that batch is refused from then on, when it wants to commit. After that, files of such work that nothing names can go,
however long anybody sleeps. Work that takes long says so in the log, again and again: the horizon stays below it.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator

from siltstone.errors import ConflictError, SiltstoneError
from siltstone.log.commit import Changes, CommitLog, LogState
from siltstone.log.expiry import EXPIRES_AT
from siltstone.storage.layout import began_at

HORIZON_KEY = "horizon"
WORK_PREFIX = "work/"
ANNOUNCE_SECONDS = 600.0
# Work that was announced longer ago, and not since, is taken for dead. If it is not, it is refused, and begins anew.
LEASE_MS = 3600 * 1000
_FORGET_MS = 24 * 3600 * 1000
_log = logging.getLogger(__name__)


def horizon_of(state: LogState) -> int:
    """Return the batch before which no work may have begun; -1 where no vacuum ever said so."""
    entry = state.get(HORIZON_KEY)
    return -1 if entry is None else int(entry["batch"])


def refuse_late(state: LogState, paths: Iterable[str], what: str) -> None:
    """Refuse to commit files of work that began before the horizon: a vacuum may have deleted them.

    Raises: ConflictError.
    """
    horizon = horizon_of(state)
    for path in paths:
        if began_at(path).batch_id < horizon:
            raise ConflictError(
                f"{what}: a vacuum has gone over files that were written before batch {horizon} of the log and were not "
                f"committed, and {path} is one of them; write the data again"
            )


def raise_horizon(log: CommitLog, wanted: int) -> int:
    """Refuse all work that began before batch `wanted`, but for what is alive; return before which batch it is refused."""
    raised: list[int] = []

    def prepare(state: LogState) -> Changes:
        living = [int(work["began"]) for work in state.scan(WORK_PREFIX) if _is_alive(work, log.now_ms())]
        known = horizon_of(state)
        # Whoever sees this commit begins at its batch, at the earliest.
        raised[:] = [max(known, min([wanted, state.batch_id + 1, *living]))]
        return {HORIZON_KEY: {"batch": raised[0]}} if raised[0] > known else {}

    log.commit("vacuum", prepare)
    return raised[0]


def _is_alive(work: dict[str, object], now_ms: int) -> bool:
    # A time that is further ahead is from a clock that was wrong.
    return abs(now_ms - int(str(work["renewed_at"]))) <= LEASE_MS


@contextlib.contextmanager
def announced(log: CommitLog, began: int) -> Iterator[None]:
    """Keep vacuums from refusing what this thread works on, however long it takes; short work costs nothing."""
    key = f"{WORK_PREFIX}{uuid.uuid4().hex}"
    is_over = threading.Event()
    is_announced = threading.Event()

    def announce() -> None:
        while not is_over.wait(ANNOUNCE_SECONDS):
            with contextlib.suppress(SiltstoneError):
                now_ms = log.now_ms()
                entry = {"began": began, "renewed_at": now_ms, EXPIRES_AT: now_ms + _FORGET_MS}
                log.commit("announce work", lambda _, entry=entry: {key: entry})  # type: ignore[misc]
                is_announced.set()

    thread = threading.Thread(target=announce, name="siltstone-announcement", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if is_announced.is_set():
            try:
                log.commit("end work", lambda state: {key: None} if key in state else {})
            except SiltstoneError as error:
                _log.warning(
                    "%s: the end of work was not recorded (%s); it is forgotten in a day", log.address(), error
                )
