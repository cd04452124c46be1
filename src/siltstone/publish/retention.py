"""What a vacuum has to know of published versions: which files they name, and which files only publishers write.

A reader may be at work on the newest version, or on one that was replaced a short while ago. So a vacuum keeps what the newest
version names, and what those name that were replaced within its retention. Files that a publisher is about to name are
safe by a fence: before a vacuum deletes anything, it commits an empty version, so that whoever planned one before has to
plan again, from what is there then.
"""

import re

from siltstone.errors import AlreadyExistsError
from siltstone.publish.delta_log import LOG_FOLDER, DeltaLog
from siltstone.publish.delta_state import DeltaState

VACUUM = "VACUUM START"
LOG_RETENTION_MS = 30 * 24 * 3600 * 1000
_OWN = re.compile(rf"({LOG_FOLDER}/[^/]+|deletion_vector_[0-9a-f-]{{36}}\.bin)\Z")


def is_publication(path: str, folder: str) -> bool:
    """Return whether a file in a table version's folder is one that only publishers write."""
    return _OWN.match(path.removeprefix(f"{folder}/")) is not None


def named_by_published(root: str, folder: str, *, now_ms: int, retention_ms: int) -> set[str]:
    """Return all that published versions name which are the newest, or were replaced within the retention.

    That includes their logs, but for old commits that checkpoints sum up. Raises: CorruptionError.
    """
    log = DeltaLog(root, folder)
    state = log.read()
    if state.version < 0:
        return set()
    adds = state.adds(state.uri_of(path) for path in state.all_adds().field("path").to_pylist())
    named = state.named(adds.values()) | _named_by_log(log, state, now_ms - max(retention_ms, LOG_RETENTION_MS))
    for version, info in log.list_files().commits.items():
        if info.modified_ms > now_ms - retention_ms and not state.is_unpublished:
            removes = [action["remove"] for action in log.read_commit(version) if "remove" in action]
            named |= state.named(removes)
    return named


def _named_by_log(log: DeltaLog, state: DeltaState, before_ms: int) -> set[str]:
    files = log.list_files()
    if state.is_unpublished:
        return {log.path(state.version)}
    checkpoints = sorted(version for version in files.checkpoints if version <= state.version)
    first = checkpoints[-2] if len(checkpoints) > 1 else 0
    versions = [*files.commits.items(), *files.checkpoints.items()]
    old = {info.path for version, info in versions if version < first and info.modified_ms <= before_ms}
    return {info.path for info in files.objects} - old


def fence(root: str, folder: str) -> None:
    """Refuse what publishers have planned so far, if the table is published: they plan again. Raises: CorruptionError."""
    log = DeltaLog(root, folder)
    while True:
        state = log.read()
        if not state.is_published:
            return
        try:
            log.commit_alone(state, VACUUM)
        except AlreadyExistsError:
            continue
        return
