"""Going back to an earlier round, and removing what no readable state names any more."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from siltstone.compactor.completion import (
    CURRENT_KEY,
    ROUND_PREFIX,
    Destination,
    commit_round,
    current_completion,
    get_round,
    list_rounds,
    read_completion,
    write_completion,
)
from siltstone.compactor.state import Bucket, RoundCompletion
from siltstone.errors import InvalidInputError
from siltstone.log.commit import Changes, LogState
from siltstone.log.compactible import system_now_ms
from siltstone.model import Delta
from siltstone.objects import ObjectInfo, open_objects

DAY_MS = 24 * 3600 * 1000
ROUND_RETENTION_MS = 7 * DAY_MS
ORPHAN_GRACE_MS = DAY_MS


def bucket_objects(buckets: Iterable[Bucket]) -> list[str]:
    """Return the paths of everything that buckets name."""
    names: list[str | None] = []
    for bucket in buckets:
        names.append(bucket.tombstones.uri if bucket.tombstones else None)
        for file in bucket.files:
            names += [file.uri, file.index_uri, file.deletion_vector.uri if file.deletion_vector else None]
    return [name for name in names if name is not None]


def roll_back(destination: Destination, round_id: int) -> RoundCompletion:
    """Make the state after an earlier round current again, by a new round that says so; deltas since are read anew.

    Raises: NotFoundError, InvalidInputError, ConflictError, CorruptionError.
    """
    target = get_round(destination, round_id)
    current = current_completion(destination)
    assert current is not None
    if current.round_id == round_id:
        raise InvalidInputError(f"{destination.locator}: round {round_id} is the current one; choose an earlier one")
    missing = [uri for uri in bucket_objects(target.buckets) if open_objects(destination.root).info(uri) is None]
    if missing:
        raise InvalidInputError(
            f"{destination.locator}: {missing[0]} of round {round_id} is gone; choose a later round"
        )
    completion = RoundCompletion.from_serializable(
        {
            **target.to_serializable(),
            "round_id": current.round_id + 1,
            "previous_round_id": current.round_id,
            "rolled_back_to": round_id,
            "completed_at": system_now_ms(),
        }
    )
    uri = write_completion(destination, completion)
    commit_round(destination, completion, uri, current.round_id)
    return completion


@dataclass
class VacuumReport:
    """What a vacuum removed, or would remove in a dry run."""

    dry_run: bool
    expired_rounds: list[int] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    removed_bytes: int = 0
    kept_files: int = 0


def vacuum(
    folder: str,
    destinations: Sequence[Destination],
    deltas: Sequence[Delta],
    *,
    root: str,
    retention_ms: int = ROUND_RETENTION_MS,
    orphan_grace_ms: int = ORPHAN_GRACE_MS,
    dry_run: bool = False,
) -> VacuumReport:
    """Forget rounds past the retention, then remove files of a table version that nothing readable names.

    The current round stays, however old. Files younger than the grace stay too: a write or a round may be about to
    name them. Raises: CorruptionError; then nothing is removed.
    """
    now_ms = system_now_ms()
    report = VacuumReport(dry_run)
    listed = open_objects(root).list_objects(folder, recursive=True)
    named = {entry.uri for delta in deltas for entry in delta.manifest.entries}
    for destination in destinations:
        expired = _expired_rounds(destination, now_ms - retention_ms)
        report.expired_rounds += expired
        if expired and not dry_run:
            _forget_rounds(destination, expired)
        for entry in list_rounds(destination):
            if int(entry["round_id"]) not in expired:
                named |= {entry["uri"], *bucket_objects(read_completion(destination, entry).buckets)}
    doomed = [each for each in listed if _is_orphan(each, named, now_ms - orphan_grace_ms)]
    report.removed_files = [each.path for each in doomed]
    report.removed_bytes = sum(each.size for each in doomed)
    report.kept_files = len(listed) - len(doomed)
    if not dry_run:
        open_objects(root).delete(report.removed_files)
    return report


def _is_orphan(found: ObjectInfo, named: set[str], before_ms: int) -> bool:
    is_log = found.path.split("/")[-2] == "log"
    return not is_log and found.path not in named and found.modified_ms <= before_ms


def _expired_rounds(destination: Destination, before_ms: int) -> list[int]:
    current = destination.log.read(lambda state: state.get(CURRENT_KEY))
    if current is None:
        return []
    rounds = list_rounds(destination)
    # A state is readable until the next one replaced it, so what counts is when that happened.
    replaced_at = {int(one["round_id"]): int(other["completed_at"]) for one, other in itertools.pairwise(rounds)}
    return [
        round_id
        for round_id, time_ms in replaced_at.items()
        if time_ms < before_ms and round_id != int(current["round_id"])
    ]


def _forget_rounds(destination: Destination, expired: Sequence[int]) -> None:
    def prepare(state: LogState) -> Changes:
        current = state.get(CURRENT_KEY) or {}
        return {f"{ROUND_PREFIX}{each}": None for each in expired if each != current.get("round_id")}

    destination.log.commit("expire rounds", prepare)
