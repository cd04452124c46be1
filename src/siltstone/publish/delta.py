"""Publishing a table as Delta Lake: one more version of the Delta table in its folder, which names the table's own files.

One create-if-absent of `_delta_log/N.json` is the commit. Which round of each partition it has is in it (`txn`), so that
publishing the same rounds again does nothing, whoever died in between, and of two publishers one finds its work done.
"""

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from siltstone.catalog import main as catalog
from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from siltstone.model import COMPACTED_STREAM
from siltstone.model.schema import schema_of
from siltstone.objects import open_objects
from siltstone.publish.change_files import changes_to_write, write_change_files
from siltstone.publish.cut import Target, are_kept, rounds_of, take_cut_for
from siltstone.publish.delta_log import ENGINE, UNPUBLISH, DeltaLog
from siltstone.publish.delta_schema import (
    CHANGE_FEED,
    COLUMN_MAPPING,
    DELETION_VECTORS,
    FEED_SETTING,
    LOCK_FEATURE,
    READER_FEATURES,
    TIMESTAMP_NTZ,
    describe,
    has_change_feed,
    loosened,
    partition_texts,
    statistics_text,
    table_id,
)
from siltstone.publish.delta_state import APP_PREFIX, Action, DeltaState, remove_action
from siltstone.publish.first_versions import announced
from siltstone.publish.live_files import LiveFile, PartitionChange, Vector, changes_since
from siltstone.publish.outcomes import Published
from siltstone.publish.statistics import read_statistics
from siltstone.rows.vectors import LENGTH_BYTES, frame
from siltstone.table.change_feed import Changes
from siltstone.table.snapshot import TableSnapshot

_ATTEMPTS = 20
_READERS = 8


@dataclass
class _Plan:
    """The actions of one version, but for what says who commits it; and dead rows and changes that have no object yet."""

    now_ms: int
    actions: list[Action] = field(default_factory=list)
    unwritten: list[tuple[Action, LiveFile]] = field(default_factory=list)
    unwritten_changes: Changes | None = None
    written: list[str] = field(default_factory=list)
    added: int = 0
    removed: int = 0
    changes_rows: bool = False
    # None where there are no rounds in it.
    tells_changes: bool | None = None
    is_new: bool = False

    def remove(self, add: Action, *, changes_rows: bool) -> Action:
        """Return the action that takes back what another one added."""
        self.removed += 1
        return remove_action(add, self.now_ms, changes_rows=changes_rows)


def publish_delta(name: str, *, replace: bool = False, root: str) -> Published:
    """Publish the newest cut of a table, unless that is published already.

    With `replace`, what others committed in spite of the lock is taken back. Raises: NotFoundError, CorruptionError,
    InvalidInputError where Delta Lake cannot hold the table, ConflictError where others have written to it.
    """
    started = time.perf_counter()
    folder = catalog.version_folder(name, root=root)
    log = DeltaLog(root, folder)
    for _ in range(_ATTEMPTS):
        # The state comes first: what it has was compacted before, so that the snapshot cannot be older.
        state = log.read()
        is_first = not state.is_published
        with announced(root, log.path(state.version + 1)) if is_first else contextlib.nullcontext():
            target = Target(folder, f"{root}/{folder}", state.foreign, replaces=replace)
            plan = _publish(log, state, take_cut_for(name, target, root=root))
        if plan is not None:
            log.keep_checkpoints(state)
            seconds = time.perf_counter() - started
            counts = (plan.added, plan.removed, seconds)
            return Published(name, "delta", target.address, state.version, plan.is_new, state.rounds, *counts)
    raise ConflictError(f"{name}: others published {_ATTEMPTS} times meanwhile; try again")


def _publish(log: DeltaLog, state: DeltaState, snapshot: TableSnapshot) -> _Plan | None:
    """Commit what is new of a cut, and return what that is; None where others were first, or the cut was forgotten meanwhile."""
    try:
        plan = _plan(state, snapshot, log.folder)
        plan.is_new = bool(plan.actions) or state.foreign is not None
        return plan if not plan.is_new or _commit(log, state, plan, snapshot) else None
    except (CorruptionError, NotFoundError):
        # A vacuum may have forgotten the rounds meanwhile, and removed what they name.
        if log.read().version == state.version and are_kept(snapshot):
            raise
        return None


def _plan(state: DeltaState, snapshot: TableSnapshot, folder: str) -> _Plan:
    plan = _Plan(now_ms=open_objects(snapshot.root).now_ms())
    # Where others have written, what is there is not what the rounds say.
    published = state if state.foreign is None else dataclasses.replace(state, txns={})
    rounds = rounds_of(snapshot)
    if any(rounds.get(partition, round_id) < round_id for partition, round_id in published.rounds.items()):
        # Some partitions are compacted further by now, and the newest state of all in files is an older one.
        return plan
    changes = [*changes_since(published, snapshot, folder)]
    actions = [*_file_actions(plan, state, snapshot, changes)]
    if state.foreign is not None:
        paths = state.all_adds().field("path").to_pylist()
        others = state.adds(state.uri_of(path) for path in paths if not path.startswith(f"{COMPACTED_STREAM}/"))
        actions += [plan.remove(add, changes_rows=True) for add in others.values()]
    for change in changes:
        if change.round_id is not None:
            app = f"{APP_PREFIX}{change.partition_id}"
            actions.append({"txn": {"appId": app, "version": change.round_id, "lastUpdated": plan.now_ms}})
    plan.changes_rows = any(change.changes_rows for change in changes)
    if changes:
        plan.tells_changes = _tells_changes(plan, published, snapshot, changes)
    has_dead = any(file.dead_count for change in changes for file in change.files)
    plan.actions = [*_table_actions(plan, state, snapshot, folder, has_dead=has_dead), *actions]
    return plan


def _tells_changes(
    plan: _Plan, published: DeltaState, snapshot: TableSnapshot, changes: Sequence[PartitionChange]
) -> bool:
    """Return whether readers can be told what changed, and let it be written where the data files do not tell it."""
    if not has_change_feed(snapshot.name, snapshot.version):
        return False
    # Of files with dead rows that only come or only go, delta-rs takes the dead rows for those that changed.
    is_misread = any(change.changes_rows and _has_unpaired_vector(change) for change in changes)
    is_known = published.is_published and published.foreign is None
    if is_known and (is_misread or any(change.moves_rows for change in changes)):
        plan.unwritten_changes = changes_to_write(snapshot, published.rounds, changes)
    return not is_misread or plan.unwritten_changes is not None


def _has_unpaired_vector(change: PartitionChange) -> bool:
    come = any(file.dead_count and file.uri not in change.previous for file in change.files)
    return come or any(change.previous[uri].vector is not None for uri in change.removed)


def _table_actions(
    plan: _Plan, state: DeltaState, snapshot: TableSnapshot, folder: str, *, has_dead: bool
) -> Iterator[Action]:
    """Yield what a reader has to know, and how the table is described, where that is news."""
    described = describe(snapshot.name, snapshot.version)
    feed = _feed_setting(plan, state, is_wanted=CHANGE_FEED in described.features)
    before = {*(state.protocol or {}).get("writerFeatures", ())}
    features = before | described.features | ({DELETION_VECTORS} if has_dead else set())
    features -= {LOCK_FEATURE, *(() if feed or CHANGE_FEED in before else (CHANGE_FEED,))}
    protocol: Action = {"minReaderVersion": 1, "minWriterVersion": 7}
    if features & {DELETION_VECTORS, TIMESTAMP_NTZ}:
        protocol |= {"minReaderVersion": 3, "readerFeatures": sorted(features & READER_FEATURES)}
    elif COLUMN_MAPPING in features:
        protocol["minReaderVersion"] = 2
    protocol["writerFeatures"] = sorted({*features, LOCK_FEATURE})
    if protocol != state.protocol:
        yield {"protocol": protocol}
    configuration = {**described.configuration, **feed}
    if DELETION_VECTORS in features:
        configuration["delta.enableDeletionVectors"] = "true"
    metadata = {
        "id": table_id(folder),
        "name": described.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": described.schema,
        "partitionColumns": described.partition_columns,
        "configuration": configuration,
        "createdTime": plan.now_ms if state.metadata is None else state.metadata.get("createdTime", plan.now_ms),
    }
    if metadata != state.metadata:
        yield {"metaData": metadata}


def _feed_setting(plan: _Plan, state: DeltaState, *, is_wanted: bool) -> dict[str, str]:
    """Return the setting by which a version has a change data feed. It changes only with versions of rounds."""
    before = None if state.metadata is None else state.metadata["configuration"].get(FEED_SETTING)
    if plan.tells_changes is None and state.metadata is not None:
        return {} if before is None else {FEED_SETTING: before}
    if plan.tells_changes or (plan.tells_changes is None and is_wanted):
        return {FEED_SETTING: "true"}
    # Where it is not there at all, delta-rs does not notice.
    return {FEED_SETTING: "false"} if is_wanted or before is not None else {}


def _file_actions(
    plan: _Plan, state: DeltaState, snapshot: TableSnapshot, changes: Sequence[PartitionChange]
) -> Iterator[Action]:
    version = snapshot.version.as_in_files()
    statistics = _new_statistics(state, snapshot, changes)
    for change in changes:
        adds = state.adds(change.previous)
        changed = {file.uri for file in change.files}
        for uri, add in adds.items():
            if uri in change.removed or uri in changed:
                yield plan.remove(add, changes_rows=change.changes_rows)
        for file in change.files:
            stats = adds[file.uri].get("stats") if file.uri in adds else statistics[file.uri]
            add = {
                "path": state.path_of(file.uri),
                "partitionValues": partition_texts(snapshot.name, version, file.partition_values),
                "size": file.size,
                "modificationTime": plan.now_ms,
                "dataChange": change.changes_rows,
                "stats": loosened(stats or "{}", has_dead=file.dead_count > 0),
            }
            if file.vector is not None:
                add["deletionVector"] = state.vector_action(file.vector)
            elif file.dead is not None:
                plan.unwritten.append((add, file))
            plan.added += 1
            yield {"add": add}


def _new_statistics(state: DeltaState, snapshot: TableSnapshot, changes: Iterable[PartitionChange]) -> dict[str, str]:
    """Read the footers of files that were not published before."""
    version = snapshot.version.as_in_files()
    schema = schema_of(version.fields)

    def read(file: LiveFile) -> tuple[str, str]:
        found = read_statistics(snapshot.root, file.uri, file.row_count, schema)
        return file.uri, statistics_text(found, version.partition_keys, has_dead=file.dead_count > 0)

    new = [file for change in changes for file in change.files if file.uri not in change.previous]
    if len(new) <= 1:
        return dict(map(read, new))
    with ThreadPoolExecutor(_READERS) as threads:
        return dict(threads.map(read, new))


def _commit(log: DeltaLog, state: DeltaState, plan: _Plan, snapshot: TableSnapshot) -> bool:
    """Commit a version, and bring the state to it; return whether nobody else was first."""
    objects = open_objects(log.root)
    _write_vectors(plan, state, log)
    _write_changes(plan, state, snapshot)
    version = state.version + 1
    actions = [_commit_info(plan, snapshot, replaces=state.foreign is not None), *plan.actions]
    try:
        log.commit(version, actions)
    except AlreadyExistsError:
        objects.delete(plan.written)
        return False
    state.apply(actions)
    state.version, state.is_unpublished, state.committed_ms = version, False, objects.now_ms()
    return True


def _write_vectors(plan: _Plan, state: DeltaState, log: DeltaLog) -> None:
    """Write dead rows that have no object yet into one."""
    if not plan.unwritten:
        return
    path = f"{log.folder}/deletion_vector_{uuid.uuid4()}.bin"
    data, places = frame([file.dead for _, file in plan.unwritten if file.dead is not None])
    open_objects(log.root).create(path, data)
    plan.written.append(path)
    for (add, file), place in zip(plan.unwritten, places, strict=True):
        vector = Vector(path, place.start - LENGTH_BYTES, place.length, file.dead_count)
        add["deletionVector"] = state.vector_action(vector)


def _write_changes(plan: _Plan, state: DeltaState, snapshot: TableSnapshot) -> None:
    """Write the changes of rows that data files do not tell."""
    if plan.unwritten_changes is None:
        return
    version = snapshot.version.as_in_files()
    for file in write_change_files(plan.unwritten_changes, snapshot, state.folder):
        plan.written.append(file.uri)
        values = partition_texts(snapshot.name, version, file.partition_values)
        cdc = {"path": state.path_of(file.uri), "partitionValues": values, "size": file.size, "dataChange": False}
        plan.actions.append({"cdc": cdc})
    if not any("cdc" in action for action in plan.actions):
        # Without such a file, readers would take what only moved for changes.
        plan.changes_rows = False
        for action in plan.actions:
            for kind in action.keys() & {"add", "remove"}:
                action[kind]["dataChange"] = False


def _commit_info(plan: _Plan, snapshot: TableSnapshot, *, replaces: bool) -> Action:
    has_files = plan.added or plan.removed
    info = {
        "timestamp": plan.now_ms,
        "operation": "MERGE" if plan.changes_rows else "OPTIMIZE" if has_files else "SET TBLPROPERTIES",
        "operationParameters": {},
        "engineInfo": ENGINE,
        "isBlindAppend": False,
        "operationMetrics": {"numAddedFiles": str(plan.added), "numRemovedFiles": str(plan.removed)},
        "siltstone": {"write_id": uuid.uuid4().hex, "positions": snapshot.positions, "replaces": replaces},
    }
    return {"commitInfo": info}


def unpublish_delta(name: str, *, root: str) -> bool:
    """Take back what was published: no reader finds the table any more, and nothing keeps its files. Return whether there was any.

    The last commit of the log stays, so that its number is never used again. Raises: NotFoundError, CorruptionError.
    """
    log = DeltaLog(root, catalog.version_folder(name, root=root))
    while True:
        state = _readable(log)
        was_published = state.is_published
        if was_published:
            now_ms = open_objects(root).now_ms()
            uris = [state.uri_of(path) for path in state.all_adds().field("path").to_pylist()]
            removes = [remove_action(add, now_ms, changes_rows=True) for add in state.adds(uris).values()]
            try:
                log.commit_alone(state, UNPUBLISH, removes)
            except AlreadyExistsError:
                continue
        log.forget_before(state.version if state.is_unpublished else state.version + 1)
        return was_published


def _readable(log: DeltaLog) -> DeltaState:
    """Read what was published; where the log is damaged, return that something was, with the newest version."""
    try:
        return log.read()
    except CorruptionError:
        return DeltaState(log.folder, max(log.list_files().commits), metadata={})
