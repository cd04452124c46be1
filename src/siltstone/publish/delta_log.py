"""The log of a published Delta table: reading its newest state, committing a version, and summing it up in checkpoints.

It lies in `_delta_log` of the table version's folder: version N is `N.json`, created if absent, with an action in each line.
`N.checkpoint.parquet` has the state after N. What was published, and up to which round, is known from here alone.
"""

import importlib.metadata
import io
import logging
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.errors import AlreadyExistsError, CorruptionError, NotFoundError, SiltstoneError
from siltstone.objects import ObjectInfo, open_objects
from siltstone.publish.delta_state import ADD, TEXTS, VECTOR, Action, DeltaState
from siltstone.storage.parquet import DAMAGE_ERRORS

LOG_FOLDER = "_delta_log"
CHECKPOINT_INTERVAL = 10
UNPUBLISH = "UNPUBLISH"
ENGINE = f"siltstone/{importlib.metadata.version('siltstone')}"
_NAME = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)\Z")
_log = logging.getLogger(__name__)
_CHECKPOINT: dict[str, pa.DataType] = {
    "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
    "add": ADD,
    "remove": pa.struct(
        {
            "path": pa.string(),
            "deletionTimestamp": pa.int64(),
            "dataChange": pa.bool_(),
            "extendedFileMetadata": pa.bool_(),
            "partitionValues": TEXTS,
            "size": pa.int64(),
            "deletionVector": VECTOR,
        }
    ),
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "name": pa.string(),
            "description": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": TEXTS}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()),
            "createdTime": pa.int64(),
            "configuration": TEXTS,
        }
    ),
    "protocol": pa.struct(
        {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": pa.list_(pa.string()),
            "writerFeatures": pa.list_(pa.string()),
        }
    ),
}


class LogFiles(NamedTuple):
    """What is in the folder of a log: commits and checkpoints by their versions, and all objects."""

    commits: dict[int, ObjectInfo]
    checkpoints: dict[int, ObjectInfo]
    objects: list[ObjectInfo]


class DeltaLog:
    """The log of the Delta table in a table version's folder."""

    def __init__(self, root: str, folder: str) -> None:
        self.root = root
        self.folder = folder
        self._objects = open_objects(root)

    def path(self, version: int, ending: str = "json") -> str:
        """Return where a commit or checkpoint is."""
        return f"{self.folder}/{LOG_FOLDER}/{version:020d}.{ending}"

    @property
    def hint_path(self) -> str:
        """Where it is said which checkpoint is the newest."""
        return f"{self.folder}/{LOG_FOLDER}/_last_checkpoint"

    def list_files(self) -> LogFiles:
        """Return what is in the log."""
        files = LogFiles({}, {}, self._objects.list_objects(f"{self.folder}/{LOG_FOLDER}"))
        for info in files.objects:
            match = _NAME.search(info.path)
            if match is not None:
                (files.commits if match.group(2) == "json" else files.checkpoints)[int(match.group(1))] = info
        return files

    def read_commit(self, version: int) -> list[Action]:
        """Return the actions of a version. Raises: CorruptionError, NotFoundError."""
        path = self.path(version)
        try:
            return [orjson.loads(line) for line in self._objects.read(path).splitlines() if line.strip()]
        except ValueError as error:
            raise CorruptionError(
                f"{self.root}/{path}: not valid JSON ({error}); unpublish, and publish again"
            ) from error

    def read(self) -> DeltaState:
        """Read what was published last. Raises: CorruptionError."""
        while True:
            files = self.list_files()
            try:
                return self._read(files)
            except NotFoundError:
                # What was listed is gone: somebody unpublished the table, or an old part of the log was removed.
                if self.list_files() == files:
                    raise

    def _read(self, files: LogFiles) -> DeltaState:
        state = DeltaState(self.folder)
        if not files.commits:
            return state
        newest = max(files.commits)
        first = max((version for version in files.checkpoints if version <= newest), default=-1)
        state.first_version = min(files.commits)
        if first >= 0:
            self._read_checkpoint(state, first)
        for version in range(first + 1 if first >= 0 else state.first_version, newest + 1):
            if version not in files.commits:
                raise CorruptionError(
                    f"{self.root}/{self.path(version)}: version {version} of the published table is missing; unpublish the "
                    "table, and publish it again"
                )
            self._apply(state, version)
        state.version = newest
        state.committed_ms = files.commits[newest].modified_ms
        return state

    def _apply(self, state: DeltaState, version: int) -> None:
        actions = self.read_commit(version)
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if not any("siltstone" in info for info in infos):
            engine = next((info.get("engineInfo") for info in infos), None) or "an unknown engine"
            state.foreign = state.foreign or f"version {version} was written by {engine}"
        elif any(info["siltstone"].get("replaces") for info in infos):
            state.foreign = None
        if any(info.get("operation") == UNPUBLISH for info in infos):
            state.clear()
        else:
            state.is_unpublished = False
        state.apply(actions)

    def _read_checkpoint(self, state: DeltaState, version: int) -> None:
        path = self.path(version, "checkpoint.parquet")
        try:
            table = pq.read_table(io.BytesIO(self._objects.read(path)), columns=["txn", "add", "metaData", "protocol"])
        except DAMAGE_ERRORS as error:
            raise CorruptionError(
                f"{self.root}/{path}: the checkpoint is damaged ({error}); unpublish, and publish again"
            ) from error
        rest = table.select(["txn", "metaData", "protocol"]).filter(table.column("add").is_null()).to_pylist()
        state.checkpoint = pa.concat_arrays(table.column("add").drop_null().cast(ADD).chunks or [pa.array([], ADD)])
        state.apply([{kind: _json_of(value)} for row in rest for kind, value in row.items() if value is not None])
        state.checkpoint_version = version

    def commit(self, version: int, actions: Sequence[Action]) -> None:
        """Make a version real. Raises: AlreadyExistsError where somebody else has made it."""
        self._objects.create(self.path(version), b"\n".join(map(orjson.dumps, actions)) + b"\n")

    def commit_alone(self, state: DeltaState, operation: str, actions: Sequence[Action] = ()) -> None:
        """Commit a version that publishes nothing: whoever planned one before loses it. Raises: AlreadyExistsError."""
        info = {"timestamp": self._objects.now_ms(), "operation": operation, "engineInfo": ENGINE, "siltstone": {}}
        self.commit(state.version + 1, [{"commitInfo": info}, *actions])

    def forget_before(self, version: int) -> None:
        """Delete commits and checkpoints of earlier versions, and what points to them."""
        files = self.list_files()
        old = [info for each in (files.checkpoints, files.commits) for number, info in each.items() if number < version]
        self._objects.delete([self.hint_path, *(info.path for info in old)])

    def keep_checkpoints(self, state: DeltaState) -> None:
        """Write a checkpoint where one is due, or readers cannot start without. A failure is logged: the next publish tries again."""
        is_due = state.version - state.checkpoint_version >= CHECKPOINT_INTERVAL
        if not state.is_published or not (is_due or state.checkpoint_version < state.first_version > 0):
            return
        try:
            self._write_checkpoint(state)
        except SiltstoneError as error:
            _log.warning("%s/%s: no checkpoint was written (%s)", self.root, self.folder, error)

    def _write_checkpoint(self, state: DeltaState) -> None:
        rows: list[tuple[str, Any]] = [("protocol", state.protocol), ("metaData", state.metadata)]
        rows += [("txn", txn) for txn in state.txns.values()]
        adds = state.all_adds()
        columns = {}
        for name, kind in _CHECKPOINT.items():
            own = pa.array([value if name == kind_of_row else None for kind_of_row, value in rows], kind)
            columns[name] = pa.chunked_array([own, adds if name == "add" else pa.nulls(len(adds), kind)])
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, compression="zstd")
        data = sink.getvalue()
        try:
            self._objects.create(self.path(state.version, "checkpoint.parquet"), data)
        except AlreadyExistsError:
            return
        hint = {"version": state.version, "size": len(rows) + len(adds), "sizeInBytes": len(data)}
        self._objects.replace(self.hint_path, orjson.dumps(hint))
        state.checkpoint_version = state.version


def _json_of(value: Any) -> Any:
    """Return an action of a checkpoint as JSON has it: maps are lists of pairs in Arrow, and absent values null."""
    if not isinstance(value, dict):
        return value
    if "schemaString" in value:
        form = {**value["format"], "options": dict(value["format"]["options"] or ())}
        value = {**value, "format": form, "configuration": dict(value["configuration"] or ())}
    return {name: each for name, each in value.items() if each is not None}
