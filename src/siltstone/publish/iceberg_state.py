"""What was published last of a table as Iceberg: files, vectors and rounds, by its newest metadata and their manifests.

It lies in `iceberg/metadata` of the table version's folder: version N is `vN.metadata.json`, created if absent. Manifests of a
partition are in a folder of its own. Paths in them begin with the root, so that a lake that was moved is published anew.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.model import COMPACTED_STREAM
from siltstone.objects import ObjectInfo, open_objects
from siltstone.publish.iceberg_manifest import DATA, DELETED, DELETES, Entry, Manifest, read_avro
from siltstone.publish.live_files import PublishedFile, Vector
from siltstone.rows.vectors import FRAME_BYTES

FOLDER = "iceberg"
ROUNDS = "siltstone.rounds"
WRITE_ID = "siltstone.write-id"
_NAME = re.compile(r"v(\d+)\.metadata\.json\Z")
Metadata = dict[str, Any]
"""Table metadata, with the names that Iceberg's specification gives."""


@dataclass
class IcebergState:
    """What was published last; version 0 is before the first one. A `PublishedState`.

    Without `metadata` nothing is published: nothing was, or it was taken back. `foreign` says which version somebody else made.
    """

    root: str
    folder: str
    version: int = 0
    metadata: Metadata | None = None
    committed_ms: int = 0
    foreign: str | None = None
    _manifests: list[Manifest] | None = None
    _entries: dict[str, list[Entry]] = field(default_factory=dict)

    @property
    def location(self) -> str:
        """The address of the published table."""
        return f"{self.root}/{self.folder}/{FOLDER}"

    @property
    def is_published(self) -> bool:
        """Whether there is a table for readers."""
        return self.metadata is not None

    @property
    def snapshot(self) -> dict[str, Any] | None:
        """The current snapshot."""
        metadata = self.metadata or {}
        current = metadata.get("current-snapshot-id")
        return next((each for each in metadata.get("snapshots", ()) if each["snapshot-id"] == current), None)

    @property
    def rounds(self) -> Mapping[str, int]:
        """The round of each partition that is published, by the partition's id."""
        text = "{}" if self.snapshot is None else self.snapshot["summary"].get(ROUNDS, "{}")
        rounds: dict[str, int] = orjson.loads(text)
        return rounds

    def path(self, version: int) -> str:
        """Return where the metadata of a version are."""
        return f"{self.folder}/{FOLDER}/metadata/v{version}.metadata.json"

    def path_of(self, uri: str) -> str:
        """Return the address of an object, as manifests have it."""
        return f"{self.root}/{uri}"

    def uri_of(self, path: str) -> str:
        """Return where an object is under the root."""
        return path.removeprefix(f"{self.root}/")

    def manifests(self, snapshot: dict[str, Any] | None = None) -> list[Manifest]:
        """Return the manifests of a snapshot, the current one unless another is given. Raises: CorruptionError."""
        if snapshot is not None:
            return self._read(snapshot["manifest-list"])
        if self._manifests is None:
            self._manifests = [] if self.snapshot is None else self._read(self.snapshot["manifest-list"])
        return self._manifests

    def manifests_of(self, partition_id: str, content: int) -> list[Manifest]:
        """Return the manifests of a partition."""
        folder = self.path_of(f"{self.folder}/{FOLDER}/metadata/{partition_id}/")
        return [
            each for each in self.manifests() if each["content"] == content and each["manifest_path"].startswith(folder)
        ]

    def entries(self, manifest: Manifest) -> list[Entry]:
        """Return the entries of a manifest that are not deleted, with all that they inherit. Raises: CorruptionError."""
        path = manifest["manifest_path"]
        if path not in self._entries:
            self._entries[path] = [*_inherited(manifest, self._read(path))]
        return self._entries[path]

    def files(self, uris: Iterable[str]) -> dict[str, PublishedFile]:
        """Return those of the data files that are published."""
        wanted = set(uris)
        found: dict[str, PublishedFile] = {}
        for partition_id in {self._partition_of(uri) for uri in wanted}:
            published = self._files_of(partition_id)
            found |= {uri: published[uri] for uri in published.keys() & wanted}
        return found

    def uris_in(self, folder: str) -> list[str]:
        """Return the data files that are published of the compacted partition in a folder."""
        return list(self._files_of(folder.rpartition("/")[2]))

    def _files_of(self, partition_id: str) -> dict[str, PublishedFile]:
        vectors = {}
        for manifest in self.manifests_of(partition_id, DELETES):
            for entry in self.entries(manifest):
                file = entry["data_file"]
                vectors[file["referenced_data_file"]] = self._vector(file)
        return {
            self.uri_of(path): PublishedFile(self.uri_of(path), vectors.get(path))
            for manifest in self.manifests_of(partition_id, DATA)
            for path in (entry["data_file"]["file_path"] for entry in self.entries(manifest))
        }

    def _vector(self, file: Entry) -> Vector:
        uri, count = self.uri_of(file["file_path"]), file["record_count"]
        if file.get("content_offset") is None:
            return Vector(uri, -1, -1, count)
        return Vector(uri, file["content_offset"], file["content_size_in_bytes"] - FRAME_BYTES, count)

    def _partition_of(self, uri: str) -> str:
        return uri.removeprefix(f"{self.folder}/{COMPACTED_STREAM}/").partition("/")[0]

    def _read(self, path: str) -> list[dict[str, Any]]:
        uri = self.uri_of(path)
        try:
            return read_avro(open_objects(self.root).read(uri), path)
        except NotFoundError as error:
            raise CorruptionError(
                f"{path}: is missing, and version {self.version} names it; unpublish, and publish again"
            ) from error

    @property
    def file_count(self) -> int:
        """How many data files are published."""
        data = [each for each in self.manifests() if each["content"] == DATA]
        return sum(each["added_files_count"] + each["existing_files_count"] for each in data)

    def sizes(self) -> dict[str, int | None]:
        """Return all objects that the current snapshot names, with their bytes where they are said. Raises: CorruptionError."""
        if self.snapshot is None:
            return {}
        sizes: dict[str, int | None] = {self.uri_of(self.snapshot["manifest-list"]): None}
        for manifest in self.manifests():
            sizes[self.uri_of(manifest["manifest_path"])] = manifest["manifest_length"]
            files = [entry["data_file"] for entry in self.entries(manifest)]
            sizes |= {self.uri_of(file["file_path"]): file["file_size_in_bytes"] for file in files}
        return sizes

    def named(self, snapshots: Iterable[dict[str, Any]]) -> set[str]:
        """Return all objects that snapshots name, their manifests included. Raises: CorruptionError."""
        named: set[str] = set()
        seen: set[str] = set()
        for snapshot in snapshots:
            named.add(self.uri_of(snapshot["manifest-list"]))
            for manifest in self.manifests(snapshot):
                path = manifest["manifest_path"]
                if path not in seen:
                    seen.add(path)
                    named.add(self.uri_of(path))
                    named |= {self.uri_of(entry["data_file"]["file_path"]) for entry in self.entries(manifest)}
        return named


def _inherited(manifest: Manifest, entries: Iterable[Entry]) -> Iterable[Entry]:
    """Yield live entries with what stands in their manifest: sequence numbers, and the ids of first rows."""
    next_row = manifest.get("first_row_id")
    for entry in entries:
        if entry["status"] == DELETED:
            continue
        file = entry["data_file"]
        if next_row is not None and file.get("first_row_id") is None:
            file["first_row_id"] = next_row
            next_row += file["record_count"]
        for name in ("sequence_number", "file_sequence_number"):
            entry[name] = manifest["sequence_number"] if entry[name] is None else entry[name]
        yield entry


def list_versions(root: str, folder: str) -> dict[int, ObjectInfo]:
    """Return the metadata files of a table, by their versions."""
    found = {}
    for info in open_objects(root).list_objects(f"{folder}/{FOLDER}/metadata"):
        match = _NAME.search(info.path)
        if match is not None:
            found[int(match.group(1))] = info
    return found


def read_state(root: str, folder: str) -> IcebergState:
    """Read what was published last. Raises: CorruptionError."""
    objects = open_objects(root)
    while True:
        versions = list_versions(root, folder)
        state = IcebergState(objects.root, folder)
        if not versions:
            return state
        state.version = max(versions)
        info = versions[state.version]
        try:
            metadata: Metadata = orjson.loads(objects.read(info.path))
        except NotFoundError:
            # Somebody unpublished the table and published it again meanwhile.
            if list_versions(root, folder) == versions:
                raise
            continue
        except ValueError as error:
            raise CorruptionError(
                f"{root}/{info.path}: not valid JSON ({error}); unpublish, and publish again"
            ) from error
        state.committed_ms = info.modified_ms
        if "format-version" in metadata:
            state.metadata = metadata
            if state.snapshot is not None and WRITE_ID not in state.snapshot["summary"]:
                state.foreign = f"version {state.version} was written by others"
        return state


def commit_nothing(state: IcebergState) -> None:
    """Make the next version one that is no table. Raises: AlreadyExistsError."""
    open_objects(state.root).create(state.path(state.version + 1), orjson.dumps({"siltstone": "unpublished"}))
