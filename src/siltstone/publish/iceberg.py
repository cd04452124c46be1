"""Publishing a table as Iceberg: one more version of its metadata, which names the table's own files.

One create-if-absent of `vN.metadata.json` is the commit. Which round of each partition it has is in the summary of its snapshot,
so that publishing the same rounds again does nothing, whoever died in between, and of two publishers one finds its work done.

Each partition has manifests of its own. A version writes those anew in which something changes, and names the others as they are.
"""

import contextlib
import io
import logging
import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.catalog import main as catalog
from siltstone.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    SiltstoneError,
)
from siltstone.model import TableVersion
from siltstone.model.properties import PUBLISH_ICEBERG_VERSION
from siltstone.model.schema import schema_of
from siltstone.objects import open_objects
from siltstone.publish.cut import Target, are_kept, rounds_of, take_cut_for
from siltstone.publish.first_versions import announced
from siltstone.publish.iceberg_manifest import (
    ADDED,
    DATA,
    DELETED,
    DELETES,
    EXISTING,
    Entry,
    Manifest,
    write_manifest,
    write_manifest_list,
)
from siltstone.publish.iceberg_schema import (
    Description,
    bound_bytes,
    describe,
    misfit,
    partition_type,
    partition_value,
    value_bytes,
)
from siltstone.publish.iceberg_state import (
    FOLDER,
    ROUNDS,
    WRITE_ID,
    IcebergState,
    Metadata,
    commit_nothing,
    list_versions,
    read_state,
)
from siltstone.publish.live_files import LiveFile, PartitionChange, changes_since, read_published
from siltstone.publish.outcomes import Published
from siltstone.publish.puffin import Blob, write_puffin
from siltstone.publish.statistics import read_statistics
from siltstone.rows.vectors import FRAME_BYTES, blob_of, numbers_in
from siltstone.storage.parquet import open_parquet
from siltstone.table.snapshot import TableSnapshot

MANIFEST_ENTRIES = 2000
# Shorter ones are written anew with what is new, so that there are not ever more of them.
_SHORT_ENTRIES = 500
_ATTEMPTS = 20
_READERS = 8
_SNAPSHOTS = 1000
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_log = logging.getLogger(__name__)


def publish_iceberg(name: str, *, replace: bool = False, root: str) -> Published:
    """Publish the newest cut of a table, unless that is published already.

    With `replace`, what others committed is taken back. Raises: NotFoundError, CorruptionError, NotInstalledError,
    InvalidInputError where Iceberg cannot hold the table, ConflictError where others have written to it.
    """
    started = time.perf_counter()
    folder = catalog.version_folder(name, root=root)
    for _ in range(_ATTEMPTS):
        # The state comes first: what it has was compacted before, so that the snapshot cannot be older.
        state = read_state(root, folder)
        is_first = not state.is_published
        with announced(root, state.path(state.version + 1)) if is_first else contextlib.nullcontext():
            target = Target(folder, state.location, state.foreign, replaces=replace)
            published = _publish(state, take_cut_for(name, target, root=root))
        if published is not None:
            _write_hint(state)
            counts = (published.is_new, {**state.rounds}, published.added, published.removed)
            return Published(
                name, "iceberg", state.location, state.version, *counts, seconds=time.perf_counter() - started
            )
    raise ConflictError(f"{name}: others published {_ATTEMPTS} times meanwhile; try again")


def _publish(state: IcebergState, snapshot: TableSnapshot) -> "_Publish | None":
    """Commit what is new of a cut, and return what that is; None where others were first, or the cut was forgotten meanwhile."""
    try:
        publish = _Publish(_comparable(state), snapshot)
        publish.is_new = publish.is_needed(state)
        return publish if not publish.is_new or publish.commit(state) else None
    except (CorruptionError, NotFoundError):
        # A vacuum may have forgotten the rounds meanwhile, and removed what they name.
        if read_state(state.root, state.folder).version == state.version and are_kept(snapshot):
            raise
        return None


def read_metadata(name: str, *, root: str) -> tuple[str, Metadata] | None:
    """Return where the newest metadata of a published table are, and what they say; None where there are none.

    Raises: NotFoundError, CorruptionError.
    """
    state = read_state(root, catalog.version_folder(name, root=root))
    return None if state.metadata is None else (state.path_of(state.path(state.version)), state.metadata)


def _comparable(state: IcebergState) -> IcebergState:
    """Return the state that a new version is made from: an empty one where what is there cannot be gone on from."""
    metadata = state.metadata
    if state.foreign is None and metadata is not None and metadata["location"] == state.location:
        return state
    return IcebergState(state.root, state.folder, state.version)


@dataclass
class _Manifests:
    """The manifests of a new snapshot, and objects that were written for it."""

    named: list[Manifest] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class _Publish:
    """One new version: what changes since a state, and how the table is described now."""

    def __init__(self, state: IcebergState, snapshot: TableSnapshot) -> None:
        self._state = state
        self._snapshot = snapshot
        self._version = snapshot.version
        self._description: Description = describe(snapshot.name, snapshot.version)
        self._objects = open_objects(snapshot.root)
        self._format = PUBLISH_ICEBERG_VERSION.of(snapshot.version.properties, snapshot.name)
        rounds = rounds_of(snapshot)
        # Where some partitions are compacted further by now, the newest state of all in files may be an older one.
        is_older = any(rounds.get(partition, number) < number for partition, number in state.rounds.items())
        self._changes = [] if is_older else [*changes_since(state, snapshot, state.folder)]
        self.is_new = False
        self.added = sum(len(change.files) for change in self._changes)
        self.removed = sum(len(change.removed) for change in self._changes)

    def is_needed(self, state: IcebergState) -> bool:
        """Return whether there is anything to commit."""
        if state is not self._state or self._changes or state.metadata is None:
            return True
        metadata = state.metadata
        described = self._metadata()
        same = ("format-version", "current-schema-id", "default-spec-id", "properties")
        return any(metadata[name] != described[name] for name in same)

    def commit(self, state: IcebergState) -> bool:
        """Commit a version, and bring the state to it; return whether nobody else was first."""
        metadata = self._metadata()
        written: list[str] = []
        if self._changes or self._state.snapshot is None:
            written = self._add_snapshot(metadata)
        version = state.version + 1
        try:
            self._objects.create(state.path(version), orjson.dumps(metadata, option=orjson.OPT_INDENT_2))
        except AlreadyExistsError:
            self._objects.delete(written)
            return False
        state.version, state.metadata, state.foreign = version, metadata, None
        return True

    def _metadata(self) -> Metadata:
        """Return the table's metadata, as they are but for how it is described."""
        state, described = self._state, self._description
        before = state.metadata or {
            "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"siltstone:{state.folder}:iceberg")),
            "last-sequence-number": 0,
            "next-row-id": 0,
            "schemas": [],
            "partition-specs": [],
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
            "refs": {},
        }
        schemas, schema_id = _numbered(before["schemas"], "schema-id", {"type": "struct", "fields": described.fields})
        specs, spec_id = _numbered(before["partition-specs"], "spec-id", {"fields": described.partition_fields})
        metadata = {
            **before,
            "format-version": max(self._format, before.get("format-version", 0)),
            "location": state.location,
            "last-updated-ms": self._objects.now_ms(),
            "last-column-id": max(described.last_column_id, before.get("last-column-id", 0)),
            "schemas": schemas,
            "current-schema-id": schema_id,
            "partition-specs": specs,
            "default-spec-id": spec_id,
            "last-partition-id": max([999, *(each["field-id"] for each in described.partition_fields)]),
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {
                "gc.enabled": "false",
                "schema.name-mapping.default": described.name_mapping,
                "siltstone.table": self._snapshot.name,
                "write.metadata.delete-after-commit.enabled": "false",
            },
        }
        if metadata["format-version"] < 3:
            metadata.pop("next-row-id", None)
        if state.metadata is not None:
            previous = {
                "metadata-file": state.path_of(state.path(state.version)),
                "timestamp-ms": before["last-updated-ms"],
            }
            metadata["metadata-log"] = [*before["metadata-log"], previous][-100:]
        return metadata

    def _add_snapshot(self, metadata: Metadata) -> list[str]:
        """Write the manifests of a new snapshot, and make it the current one; return all that was written."""
        parent = self._state.snapshot
        snapshot: dict[str, Any] = {
            "snapshot-id": secrets.randbits(62) + 1,
            "sequence-number": metadata["last-sequence-number"] + 1,
            "timestamp-ms": metadata["last-updated-ms"],
            "schema-id": metadata["current-schema-id"],
            **({} if parent is None else {"parent-snapshot-id": parent["snapshot-id"]}),
        }
        manifests = _Manifests()
        touched = {change.partition_id for change in self._changes}
        for manifest in self._state.manifests():
            if not any(f"/metadata/{partition}/" in manifest["manifest_path"] for partition in touched):
                manifests.named.append(manifest)
        for change in self._changes:
            _PartitionManifests(self, snapshot, metadata, manifests).write(change)
        if metadata["format-version"] > 2:
            self._number_rows(snapshot, metadata, manifests)
        path = f"{self._state.folder}/{FOLDER}/metadata/snap-{snapshot['snapshot-id']}-{uuid.uuid4()}.avro"
        self._objects.create(path, write_manifest_list(manifests.named, snapshot, metadata["format-version"]))
        snapshot["manifest-list"] = self._state.path_of(path)
        snapshot["summary"] = self._summary(snapshot, manifests.named)
        metadata["last-sequence-number"] = snapshot["sequence-number"]
        metadata["current-snapshot-id"] = snapshot["snapshot-id"]
        metadata["snapshots"] = [*metadata["snapshots"], snapshot][-_SNAPSHOTS:]
        log = {"snapshot-id": snapshot["snapshot-id"], "timestamp-ms": snapshot["timestamp-ms"]}
        metadata["snapshot-log"] = [*metadata["snapshot-log"], log][-_SNAPSHOTS:]
        metadata["refs"] = {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}}
        return [*manifests.written, path]

    def _number_rows(self, snapshot: dict[str, Any], metadata: Metadata, manifests: _Manifests) -> None:
        """Give rows that are new the ids that no row had."""
        first = running = metadata.get("next-row-id", 0)
        for manifest in manifests.named:
            if manifest["content"] == DATA and manifest.get("first_row_id") is None:
                manifest["first_row_id"] = running
                running += manifest["added_rows_count"] + manifest["existing_rows_count"]
        snapshot |= {"first-row-id": first, "added-rows": running - first}
        metadata["next-row-id"] = running

    def _summary(self, snapshot: dict[str, Any], manifests: Sequence[Manifest]) -> dict[str, str]:
        new = [each for each in manifests if each["added_snapshot_id"] == snapshot["snapshot-id"]]

        def count(of: Sequence[Manifest], content: int, *names: str) -> int:
            return sum(each[name] for each in of if each["content"] == content for name in names)

        added, removed = count(new, DATA, "added_files_count"), count(new, DATA, "deleted_files_count")
        numbers = {
            "added-data-files": added,
            "deleted-data-files": removed,
            "added-records": count(new, DATA, "added_rows_count"),
            "deleted-records": count(new, DATA, "deleted_rows_count"),
            "added-delete-files": count(new, DELETES, "added_files_count"),
            "removed-delete-files": count(new, DELETES, "deleted_files_count"),
            "added-position-deletes": count(new, DELETES, "added_rows_count"),
            "removed-position-deletes": count(new, DELETES, "deleted_rows_count"),
            "total-data-files": count(manifests, DATA, "added_files_count", "existing_files_count"),
            "total-records": count(manifests, DATA, "added_rows_count", "existing_rows_count"),
            "total-delete-files": count(manifests, DELETES, "added_files_count", "existing_files_count"),
            "total-position-deletes": count(manifests, DELETES, "added_rows_count", "existing_rows_count"),
            "total-equality-deletes": 0,
        }
        if not any(change.changes_rows for change in self._changes):
            operation = "replace"
        else:
            operation = "overwrite" if removed or numbers["added-delete-files"] else "append"
        rounds = {**self._state.rounds, **rounds_of(self._snapshot)}
        gone = {change.partition_id for change in self._changes if change.round_id is None}
        kept = {partition: number for partition, number in rounds.items() if partition not in gone}
        return {
            "operation": operation,
            **{name: str(number) for name, number in numbers.items()},
            ROUNDS: orjson.dumps(kept).decode(),
            WRITE_ID: uuid.uuid4().hex,
        }

    @property
    def version(self) -> TableVersion:
        """The table's version."""
        return self._version

    @property
    def state(self) -> IcebergState:
        """What is published so far."""
        return self._state


def _numbered(known: Sequence[dict[str, Any]], key: str, wanted: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return all that were ever there with the one that is wanted, and its number."""
    for each in known:
        if {**each, key: None} == {**wanted, key: None}:
            return [*known], int(each[key])
    number = max((int(each[key]) for each in known), default=-1) + 1
    return [*known, {**wanted, key: number}], number


class _PartitionManifests:
    """Writes the manifests of a partition in which something changes."""

    def __init__(self, publish: _Publish, snapshot: dict[str, Any], metadata: Metadata, manifests: _Manifests) -> None:
        self._state, self._version = publish.state, publish.version.as_in_files()
        self._own_version = publish.version
        self._snapshot, self._metadata, self._manifests = snapshot, metadata, manifests
        self._objects = open_objects(self._state.root)
        self._format: int = metadata["format-version"]
        self._kinds = [schema_of(self._version.fields).field(key).type for key in self._version.partition_keys]

    def write(self, change: PartitionChange) -> None:
        paths = {self._state.path_of(uri) for uri in change.removed}
        new = [file for file in change.files if file.uri not in change.previous]
        self._write_content(change, DATA, paths, self._data_entries(new))
        marked = {self._state.path_of(file.uri) for file in change.files if file.uri in change.previous}
        self._write_content(change, DELETES, paths | marked, self._vector_entries(change))

    def _write_content(self, change: PartitionChange, content: int, gone: set[str], new: list[Entry]) -> None:
        """Write the entries of manifests that name a file which is gone, and the new ones; others stay as they are."""
        key = "file_path" if content == DATA else "referenced_data_file"
        entries: list[Entry] = []
        for manifest in self._state.manifests_of(change.partition_id, content):
            own = self._state.entries(manifest)
            is_short = len(own) < _SHORT_ENTRIES and bool(new)
            if not is_short and not any(entry["data_file"][key] in gone for entry in own):
                self._manifests.named.append(manifest)
                continue
            for entry in own:
                status = DELETED if entry["data_file"][key] in gone else EXISTING
                deleted = {"snapshot_id": self._snapshot["snapshot-id"]} if status == DELETED else {}
                entries.append({**entry, "status": status, **deleted})
        entries += new
        for first in range(0, len(entries), MANIFEST_ENTRIES):
            self._write_manifest(change, content, entries[first : first + MANIFEST_ENTRIES])

    def _write_manifest(self, change: PartitionChange, content: int, entries: list[Entry]) -> None:
        spec = next(each for each in self._metadata["partition-specs"] if each["spec-id"] == self._spec_id)
        schemas = self._metadata["schemas"]
        schema = next(each for each in schemas if each["schema-id"] == self._metadata["current-schema-id"])
        partition = [
            (each["name"], partition_type(kind)) for each, kind in zip(spec["fields"], self._kinds, strict=True)
        ]
        data = write_manifest(
            entries, content=content, schema=schema, spec=spec, partition=partition, format_version=self._format
        )
        name = f"{uuid.uuid4()}-{'deletes' if content == DELETES else 'data'}.avro"
        path = f"{self._state.folder}/{FOLDER}/metadata/{change.partition_id}/{name}"
        self._objects.create(path, data)
        self._manifests.written.append(path)
        by_status = {
            status: [each for each in entries if each["status"] == status] for status in (ADDED, EXISTING, DELETED)
        }
        counts = {
            f"{word}_{what}_count": (
                len(by_status[status])
                if what == "files"
                else sum(each["data_file"]["record_count"] for each in by_status[status])
            )
            for status, word in ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted"))
            for what in ("files", "rows")
        }
        number = self._snapshot["sequence-number"]
        numbers = [each["sequence_number"] for each in by_status[EXISTING]]
        self._manifests.named.append(
            {
                "manifest_path": self._state.path_of(path),
                "manifest_length": len(data),
                "partition_spec_id": self._spec_id,
                "content": content,
                "sequence_number": number,
                "min_sequence_number": min([number, *numbers]),
                "added_snapshot_id": self._snapshot["snapshot-id"],
                **counts,
                "partitions": self._partition_summary(entries),
                "first_row_id": None,
            }
        )

    @property
    def _spec_id(self) -> int:
        return int(self._metadata["default-spec-id"])

    def _partition_summary(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        values = entries[0]["data_file"]["partition"].values()
        bounds = [value_bytes(kind, value) for kind, value in zip(self._kinds, values, strict=True)]
        return [
            {"contains_null": bound is None, "contains_nan": False, "lower_bound": bound, "upper_bound": bound}
            for bound in bounds
        ]

    def _partition(self, file: LiveFile) -> dict[str, Any]:
        keys, values = self._own_version.partition_keys, file.partition_values
        return {key: partition_value(kind, value) for key, kind, value in zip(keys, self._kinds, values, strict=True)}

    def _entry(self, file: LiveFile, **own: Any) -> Entry:
        return {
            "status": ADDED,
            "snapshot_id": self._snapshot["snapshot-id"],
            "sequence_number": None,
            "file_sequence_number": None,
            "data_file": {"partition": self._partition(file), "sort_order_id": None, **own},
        }

    def _data_entries(self, files: Sequence[LiveFile]) -> list[Entry]:
        if len(files) <= 1:
            return [self._data_entry(file) for file in files]
        with ThreadPoolExecutor(_READERS) as threads:
            return list(threads.map(self._data_entry, files))

    def _data_entry(self, file: LiveFile) -> Entry:
        """Return the entry of a new data file, with what its footer says. Raises: InvalidInputError, CorruptionError."""
        root, schema = self._state.root, schema_of(self._version.fields)
        with open_parquet(root, file.uri) as opened:
            wrong = misfit(opened.schema_arrow, self._own_version)
        if wrong is not None:
            raise InvalidInputError(
                f"{root}/{file.uri}: readers of Iceberg would not find column {wrong!r} by its id there; run `siltstone "
                "compact --full` to write the files anew, then publish"
            )
        found = read_statistics(root, file.uri, file.row_count, schema)
        ids = {column.name: column.id for column in self._version.fields}
        bounds: dict[str, list[dict[str, Any]]] = {"lower_bounds": [], "upper_bounds": []}
        counts: dict[str, list[dict[str, Any]]] = {"value_counts": [], "null_value_counts": []}
        for name, column in found.columns.items():
            if column.null_count is not None:
                counts["value_counts"].append({"key": ids[name], "value": file.row_count})
                counts["null_value_counts"].append({"key": ids[name], "value": column.null_count})
            if column.least is not None and column.greatest is not None:
                kind = schema.field(name).type
                low = bound_bytes(kind, column.least, is_upper=False)
                high = bound_bytes(kind, column.greatest, is_upper=True)
                if low is not None and high is not None:
                    bounds["lower_bounds"].append({"key": ids[name], "value": low})
                    bounds["upper_bounds"].append({"key": ids[name], "value": high})
        return self._entry(
            file,
            content=0,
            file_path=self._state.path_of(file.uri),
            file_format="PARQUET",
            record_count=file.row_count,
            file_size_in_bytes=file.size,
            **counts,
            **bounds,
        )

    def _vector_entries(self, change: PartitionChange) -> list[Entry]:
        """Write what is dead of files, and return the entries for it."""
        files = [file for file in change.files if file.dead_count]
        if not files:
            return []
        return self._puffin_entries(change, files) if self._format > 2 else [*self._position_entries(change, files)]

    def _puffin_entries(self, change: PartitionChange, files: Sequence[LiveFile]) -> list[Entry]:
        blobs = [Blob(self._state.path_of(file.uri), file.dead_count, self._blob(file)) for file in files]
        data, offsets = write_puffin(blobs)
        path = self._new_path(change, "deletes.puffin")
        self._create(path, data)
        return [
            self._entry(
                file,
                content=1,
                file_path=self._state.path_of(path),
                file_format="PUFFIN",
                record_count=blob.row_count,
                file_size_in_bytes=len(data),
                referenced_data_file=blob.path,
                content_offset=offset,
                content_size_in_bytes=len(blob.data),
            )
            for file, blob, offset in zip(files, blobs, offsets, strict=True)
        ]

    def _blob(self, file: LiveFile) -> bytes:
        """Return the vector of a file in its frame, which is the same in the objects of rounds."""
        if file.vector is None:
            assert file.dead is not None
            return blob_of(file.dead)
        start = file.vector.offset
        data = self._objects.read(file.vector.uri)[start : start + file.vector.length + FRAME_BYTES]
        if len(data) < file.vector.length + FRAME_BYTES:
            raise CorruptionError(f"{self._state.root}/{file.vector.uri}: the deletion vector at {start} is cut off")
        return data

    def _position_entries(self, change: PartitionChange, files: Sequence[LiveFile]) -> Iterator[Entry]:
        """Write the dead rows of each file as a file of positions, which format 2 has instead of vectors."""
        schema = pa.schema(
            [
                pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
                pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
            ]
        )
        for file in files:
            dead = file.dead if file.vector is None else read_published(self._state.root, file.vector)
            assert dead is not None
            path, data_path = self._new_path(change, "deletes.parquet"), self._state.path_of(file.uri)
            rows = pa.table({"file_path": pa.repeat(data_path, len(dead)), "pos": numbers_in(dead)}, schema)
            sink = io.BytesIO()
            pq.write_table(rows, sink, compression="zstd")
            self._create(path, sink.getvalue())
            bound = [{"key": _PATH_ID, "value": data_path.encode()}]
            yield self._entry(
                file,
                content=1,
                file_path=self._state.path_of(path),
                file_format="PARQUET",
                record_count=len(dead),
                file_size_in_bytes=len(sink.getvalue()),
                referenced_data_file=data_path,
                lower_bounds=bound,
                upper_bounds=bound,
            )

    def _new_path(self, change: PartitionChange, ending: str) -> str:
        return f"{self._state.folder}/{FOLDER}/data/{change.partition_id}/{uuid.uuid4()}-{ending}"

    def _create(self, path: str, data: bytes) -> None:
        self._objects.create(path, data)
        self._manifests.written.append(path)


def _write_hint(state: IcebergState) -> None:
    """Write down, for readers that go by a path, which version is the newest. A failure is logged: the next publish tries again."""
    try:
        path = f"{state.folder}/{FOLDER}/metadata/version-hint.text"
        open_objects(state.root).replace(path, str(state.version).encode())
    except SiltstoneError as error:
        _log.warning("%s: the hint of the newest version was not written (%s)", state.location, error)


def unpublish_iceberg(name: str, *, root: str) -> bool:
    """Take back what was published: no reader finds the table any more, and nothing keeps its files. Return whether there was any.

    A last version that is no table stays, so that its number is never used again. Raises: NotFoundError, CorruptionError.
    """
    folder = catalog.version_folder(name, root=root)
    objects = open_objects(root)
    while True:
        versions = list_versions(root, folder)
        if not versions:
            return False
        newest = max(versions)
        state = IcebergState(objects.root, folder, newest)
        try:
            was_published = read_state(root, folder).is_published
        except CorruptionError:
            was_published = True
        if was_published:
            try:
                commit_nothing(state)
            except AlreadyExistsError:
                continue
            newest += 1
        old = [info.path for version, info in versions.items() if version < newest]
        objects.delete([f"{folder}/{FOLDER}/metadata/version-hint.text", *old])
        return was_published
