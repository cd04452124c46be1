"""What a vacuum has to know of published versions: which files they name, and which files only publishers write.

A reader may be at work on the newest version, or on one that was replaced a short while ago. So a vacuum keeps what the newest
version names, and what those name that were replaced within its retention. Files that a publisher is about to name are
safe by a fence: before a vacuum deletes anything, it commits an empty version, so that whoever planned one before has to
plan again, from what is there then.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import orjson

from siltstone.errors import AlreadyExistsError
from siltstone.objects import open_objects
from siltstone.publish.change_files import CHANGE_FOLDER
from siltstone.publish.delta_log import LOG_FOLDER, UNPUBLISH, DeltaLog
from siltstone.publish.delta_state import DeltaState
from siltstone.publish.failure_notes import FAILURE_FOLDER, failure_paths
from siltstone.publish.first_versions import is_announced
from siltstone.publish.iceberg_state import FOLDER as ICEBERG_FOLDER
from siltstone.publish.iceberg_state import IcebergState, Metadata, commit_nothing, list_versions, read_state

VACUUM = "VACUUM START"
LOG_RETENTION_MS = 30 * 24 * 3600 * 1000
_State = TypeVar("_State", DeltaState, IcebergState)
_OWN = re.compile(
    rf"(({LOG_FOLDER}|{CHANGE_FOLDER}|{FAILURE_FOLDER})/[^/]+|{ICEBERG_FOLDER}/.+|deletion_vector_[0-9a-f-]{{36}}\.bin)\Z"
)


def is_publication(path: str, folder: str) -> bool:
    """Return whether a file in a table version's folder is one that only publishers write."""
    return _OWN.match(path.removeprefix(f"{folder}/")) is not None


class PublishedVersions(NamedTuple):
    """What is published of the table in a folder, of which a vacuum keeps what was replaced after the time `since_ms`."""

    root: str
    folder: str
    since_ms: int
    now_ms: int

    def named(self) -> set[str]:
        """Return all that versions name which are the newest, or were replaced since then.

        That includes what describes them, but for old commits that checkpoints sum up. Raises: CorruptionError.
        """
        return self._named_by_delta() | self._named_by_iceberg() | failure_paths(self.folder)

    def _named_by_delta(self) -> set[str]:
        log = DeltaLog(self.root, self.folder)
        state = log.read()
        if state.version < 0:
            return set()
        adds = state.adds(state.uri_of(path) for path in state.all_adds().field("path").to_pylist())
        old_ms = min(self.since_ms, self.now_ms - LOG_RETENTION_MS)
        named = state.named(adds.values()) | _named_by_log(log, state, old_ms)
        return named if state.is_unpublished else named | self._named_by_commits(log, state)

    def _named_by_commits(self, log: DeltaLog, state: DeltaState) -> set[str]:
        """Return what versions name that were replaced since then, and the changes of those and of the newest one."""
        named = set()
        replaced_ms: int | None = None
        for version, info in sorted(log.list_files().commits.items(), reverse=True):
            is_kept = replaced_ms is None or replaced_ms > self.since_ms
            actions = log.read_commit(version) if is_kept or info.modified_ms > self.since_ms else []
            if info.modified_ms > self.since_ms:
                named |= state.named(action["remove"] for action in actions if "remove" in action)
            if is_kept:
                named |= state.change_files(actions)
            # What a fence follows is still the newest.
            if not any(action.get("commitInfo", {}).get("operation") == VACUUM for action in actions):
                replaced_ms = info.modified_ms
        return named

    def _named_by_iceberg(self) -> set[str]:
        versions = list_versions(self.root, self.folder)
        state = read_state(self.root, self.folder)
        named = {state.path(version) for version in (state.version, state.version - 1) if version in versions}
        if state.metadata is not None:
            named |= {info.path for info in versions.values() if info.modified_ms > self.since_ms}
            named |= state.named(kept_snapshots(state.metadata, self.since_ms))
            named.add(f"{self.folder}/{ICEBERG_FOLDER}/metadata/version-hint.text")
        return named

    def fence(self) -> None:
        """Refuse what publishers have planned so far, if the table is published, or about to be: they plan again.

        What is no longer kept of an Iceberg table is forgotten by its metadata, too. Raises: CorruptionError.
        """
        log = DeltaLog(self.root, self.folder)

        def fence(state: DeltaState) -> None:
            if state.is_published:
                log.commit_alone(state, VACUUM)
            elif is_announced(self.root, log.path(state.version + 1)):
                log.commit_alone(state, UNPUBLISH)

        def forget(state: IcebergState) -> None:
            if state.metadata is None:
                if is_announced(self.root, state.path(state.version + 1)):
                    commit_nothing(state)
                return
            metadata = {**state.metadata, "snapshots": kept_snapshots(state.metadata, self.since_ms)}
            ids = {snapshot["snapshot-id"] for snapshot in metadata["snapshots"]}
            metadata["snapshot-log"] = [each for each in metadata["snapshot-log"] if each["snapshot-id"] in ids]
            open_objects(self.root).create(state.path(state.version + 1), orjson.dumps(metadata))

        _until_committed(log.read, fence)
        _until_committed(lambda: read_state(self.root, self.folder), forget)


def _named_by_log(log: DeltaLog, state: DeltaState, before_ms: int) -> set[str]:
    files = log.list_files()
    if state.is_unpublished:
        return {log.path(state.version)}
    checkpoints = sorted(version for version in files.checkpoints if version <= state.version)
    first = checkpoints[-2] if len(checkpoints) > 1 else 0
    versions = [*files.commits.items(), *files.checkpoints.items()]
    kept = {info.path for version, info in versions if version >= first or info.modified_ms > before_ms}
    return kept | {log.hint_path}


def _until_committed(read: Callable[[], _State], commit: Callable[[_State], None]) -> None:
    while True:
        state = read()
        try:
            commit(state)
        except AlreadyExistsError:
            continue
        return


def kept_snapshots(metadata: Metadata, since_ms: int) -> list[dict[str, Any]]:
    """Return the snapshots of an Iceberg table that are current, or were replaced after a time."""
    snapshots = metadata["snapshots"]
    replaced = [*(each["timestamp-ms"] for each in snapshots[1:]), None]
    return [
        snapshot
        for snapshot, replaced_ms in zip(snapshots, replaced, strict=True)
        if replaced_ms is None or replaced_ms > since_ms
    ]
