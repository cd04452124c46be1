"""Which commits happened, by the names that writers gave them: an entry for each app, however many batches it wrote.

Ids that rise by one make up a run, which grows in place. An app has a few runs; where its ids leave gaps again and again,
the runs before those become an entry for each id, which expires by itself. Ids that only ever rise, as those of a
streaming query, whose empty batches commit nothing, make up one run with gaps.
"""

import urllib.parse
from typing import NamedTuple

from siltstone.log.state import EXPIRES_AT, Entry, LogState
from siltstone.model import Idempotency

RETENTION_MS = 30 * 24 * 3600 * 1000
# Apps that begin so count their batches without a gap, and may come back after any time: their newest run stays.
LASTING_PREFIX = "ingest:"
MAX_RUNS = 16
# A longer run stays one: so many commits made it that its few bytes do not count.
MAX_SPLIT_IDS = 1000
_PREFIX = "transaction/"
_GIVEN_UP = "given_up"


class Run(NamedTuple):
    """Batches of an app whose ids rise, by one unless it has gaps: the first and last with positions, the time of the last."""

    first_id: int
    first_position: int
    last_id: int
    last_position: int
    committed_at: int
    has_gaps: int = 0

    def position_of(self, batch_id: int) -> int | None:
        """Return the position of a batch, None where others wrote in between, so that only its delta tells."""
        if batch_id == self.last_id:
            return self.last_position
        is_even = not self.has_gaps and self.last_position - self.first_position == self.last_id - self.first_id
        return self.first_position + batch_id - self.first_id if is_even or batch_id == self.first_id else None


class Found(NamedTuple):
    """A commit that happened: its position where that is known, and else one that it is not after."""

    position: int
    is_exact: bool


def find_transaction(state: LogState, stream: str, idempotency: Idempotency) -> Found | None:
    """Return the commit that happened under an id, or None."""
    if is_given_up(state, stream, idempotency):
        return None
    single = state.get(_key(stream, idempotency.app_id, idempotency.batch_id))
    if single is not None:
        return Found(int(single["stream_position"]), is_exact=single.get("is_exact", True))
    for run in _runs(state, stream, idempotency.app_id):
        if run.first_id <= idempotency.batch_id <= run.last_id:
            position = run.position_of(idempotency.batch_id)
            return Found(run.last_position if position is None else position, position is not None)
    return None


def newest_id(state: LogState, stream: str, app_id: str) -> int | None:
    """Return the highest id that an app whose ids rise has committed under, or None."""
    return max((run.last_id for run in _runs(state, stream, app_id)), default=None)


def is_given_up(state: LogState, stream: str, idempotency: Idempotency) -> bool:
    """Return whether an id is the newest of its app, and was given up."""
    entry = state.get(_key(stream, idempotency.app_id)) or {}
    return bool(entry.get(_GIVEN_UP) == idempotency.batch_id)


def given_up_changes(
    state: LogState, stream: str, idempotency: Idempotency, position: int, now_ms: int
) -> dict[str, Entry]:
    """Return what the log remembers of an id that nothing was committed under, and nothing will be."""
    changes = transaction_changes(state, stream, idempotency, position, now_ms)
    changes[_key(stream, idempotency.app_id)][_GIVEN_UP] = idempotency.batch_id
    return changes


def transaction_changes(
    state: LogState,
    stream: str,
    idempotency: Idempotency,
    position: int,
    committed_at: int,
    *,
    rising_ids: bool = False,
) -> dict[str, Entry]:
    """Return what the log remembers of a commit under an id that nothing was committed under before."""
    app_id, batch_id = idempotency.app_id, idempotency.batch_id
    # By the time that is sure, as everything in a log expires: a clock that is ahead makes nothing forgotten.
    runs = [run for run in _runs(state, stream, app_id) if run.committed_at + RETENTION_MS > state.sure_ms]
    before = next((run for run in runs if run.last_id == batch_id - 1 or (rising_ids and run.last_id < batch_id)), None)
    if before is None:
        runs.append(Run(batch_id, position, batch_id, position, committed_at))
    else:
        runs.remove(before)
        has_gaps = int(before.has_gaps or before.last_id < batch_id - 1)
        runs.append(Run(before.first_id, before.first_position, batch_id, position, committed_at, has_gaps))
    changes: dict[str, Entry] = {}
    short = [run for run in runs if run.last_id - run.first_id < MAX_SPLIT_IDS]
    for run in short[:-MAX_RUNS]:
        runs.remove(run)
        for each in range(run.first_id, run.last_id + 1):
            exact = run.position_of(each)
            changes[_key(stream, app_id, each)] = {
                "stream_position": run.last_position if exact is None else exact,
                **({"is_exact": False} if exact is None else {}),
                "committed_at": run.committed_at,
                EXPIRES_AT: run.committed_at + RETENTION_MS,
            }
    lasts = app_id.startswith(LASTING_PREFIX)
    changes[_key(stream, app_id)] = {
        "runs": [_listed(run) for run in runs],
        **({} if lasts else {EXPIRES_AT: committed_at + RETENTION_MS}),
    }
    return changes


def _listed(run: Run) -> list[int]:
    return list(run if run.has_gaps else run[:-1])


def _runs(state: LogState, stream: str, app_id: str) -> list[Run]:
    """Return the runs of an app, those that grew last at the end."""
    entry = state.get(_key(stream, app_id)) or {}
    return [Run(*map(int, run)) for run in entry.get("runs", ())]


def _key(stream: str, app_id: str, batch_id: int | None = None) -> str:
    key = f"{_PREFIX}{stream}/{urllib.parse.quote(app_id, safe='')}"
    return key if batch_id is None else f"{key}/{batch_id}"
