"""What was published last of a table as Delta Lake: files, vectors and rounds, by the actions of its log."""

import struct
import urllib.parse
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.publish.live_files import PublishedFile, Vector

APP_PREFIX = "siltstone:"
Action = dict[str, Any]
"""What `add`, `remove` and the others say, as JSON has it; Delta Lake decides which names there are."""
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_TEXT = 20
# One that others have written, in a way that we never do: it equals none of ours.
_FOREIGN_VECTOR = Vector("", -1, -1, -1)
TEXTS = pa.map_(pa.string(), pa.string())
VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
ADD = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": TEXTS,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
        "deletionVector": VECTOR,
    }
)


@dataclass
class DeltaState:
    """What was published last; version -1 is before the first one. A `PublishedState`.

    `is_unpublished` where the last commit took all back: then all else is empty. `foreign` says which commit somebody else
    has made, in spite of the lock.
    """

    folder: str
    version: int = -1
    is_unpublished: bool = False
    protocol: Action | None = None
    metadata: Action | None = None
    txns: dict[str, Action] = field(default_factory=dict)
    foreign: str | None = None
    committed_ms: int = 0
    checkpoint_version: int = -1
    first_version: int = 0
    checkpoint: "pa.StructArray | None" = None
    _later: dict[str, Action | None] = field(default_factory=dict)

    @property
    def is_published(self) -> bool:
        """Whether there is a table for readers."""
        return self.metadata is not None

    @property
    def rounds(self) -> dict[str, int]:
        """The round of each partition that is published, by the partition's id."""
        own = {name: txn for name, txn in self.txns.items() if name.startswith(APP_PREFIX)}
        return {name.removeprefix(APP_PREFIX): int(txn["version"]) for name, txn in own.items()}

    def files(self, uris: Iterable[str]) -> dict[str, PublishedFile]:
        """Return those of the data files that are published."""
        return {uri: PublishedFile(uri, self._vector(add)) for uri, add in self.adds(uris).items()}

    def adds(self, uris: Iterable[str]) -> dict[str, Action]:
        """Return the actions that added data files, by their paths under the root."""
        wanted = {self.path_of(uri): uri for uri in uris}
        found = {path: self._later[path] for path in wanted if path in self._later}
        if self.checkpoint is not None:
            mask = pc.is_in(self.checkpoint.field("path"), pa.array(list(wanted.keys() - found.keys()), pa.string()))
            found |= {add["path"]: add for add in map(plain, self.checkpoint.filter(mask).to_pylist())}
        return {wanted[path]: add for path, add in found.items() if add is not None}

    def all_adds(self) -> "pa.StructArray":
        """Return the actions of all data files."""
        later = pa.array([add for add in self._later.values() if add is not None], ADD)
        if self.checkpoint is None:
            return later
        is_later = pc.is_in(self.checkpoint.field("path"), pa.array(list(self._later), pa.string()))
        return pa.concat_arrays([self.checkpoint.filter(pc.invert(is_later)), later])

    @property
    def file_count(self) -> int:
        """How many data files are published."""
        return len(self.all_adds())

    def uris_in(self, folder: str) -> list[str]:
        """Return the data files that are published of the compacted partition in a folder."""
        adds = self.all_adds()
        inside = pc.starts_with(adds.field("path"), f"{self.path_of(folder)}/")
        return [self.uri_of(path) for path in adds.field("path").filter(inside).to_pylist()]

    def named(self, actions: Iterable[Action]) -> set[str]:
        """Return the data files, and the objects of vectors, that adds or removes name."""
        named = set()
        for action in actions:
            vector = self._vector(action)
            named |= {self.uri_of(action["path"])} | (set() if vector is None else {vector.uri})
        return named

    def change_files(self, actions: Iterable[Action]) -> set[str]:
        """Return the files of changes that the actions of a version name."""
        return {self.uri_of(action["cdc"]["path"]) for action in actions if "cdc" in action}

    def apply(self, actions: Sequence[Action]) -> None:
        """Take over the actions of the next version."""
        for action in actions:
            if "remove" in action:
                self._later[action["remove"]["path"]] = None
            elif "txn" in action:
                self.txns[action["txn"]["appId"]] = action["txn"]
            self.metadata = action.get("metaData", self.metadata)
            self.protocol = action.get("protocol", self.protocol)
        # A file whose vector changes is removed and added in one version.
        for action in actions:
            if "add" in action:
                self._later[action["add"]["path"]] = {**action["add"], "dataChange": False}

    def clear(self) -> None:
        """Take over that all was taken back."""
        self.protocol = self.metadata = self.checkpoint = None
        self.txns, self._later, self.is_unpublished = {}, {}, True

    def uri_of(self, path: str) -> str:
        """Return where a data file of an action is under the root."""
        return f"{self.folder}/{urllib.parse.unquote(path)}"

    def path_of(self, uri: str) -> str:
        """Return the path of a data file in actions. Names of ours have no character that has to be escaped in an address."""
        return uri.removeprefix(f"{self.folder}/")

    def _vector(self, action: Action) -> Vector | None:
        vector = action.get("deletionVector")
        if vector is None:
            return None
        if vector["storageType"] != "u":
            return _FOREIGN_VECTOR
        text = vector["pathOrInlineDv"]
        prefix, name = text[:-_UUID_TEXT], uuid.UUID(bytes=_from_z85(text[-_UUID_TEXT:]))
        place = f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"
        return Vector(f"{self.folder}/{place}", vector["offset"], vector["sizeInBytes"], vector["cardinality"])

    def vector_action(self, vector: Vector) -> Action:
        """Return a vector as actions have it: the folder of its object, and the UUID in its name."""
        prefix, _, name = self.path_of(vector.uri).rpartition("/")
        own = uuid.UUID(name.removeprefix("deletion_vector_").removesuffix(".bin"))
        return {
            "storageType": "u",
            "pathOrInlineDv": prefix + _to_z85(own.bytes),
            "offset": vector.offset,
            "sizeInBytes": vector.length,
            "cardinality": vector.row_count,
        }


def _to_z85(data: bytes) -> str:
    """Write bytes as ZeroMQ's Z85, five characters for four bytes, in which Delta Lake has UUIDs."""
    text = ""
    for (number,) in struct.iter_unpack(">I", data):
        text += "".join(_Z85[number // 85**place % 85] for place in (4, 3, 2, 1, 0))
    return text


def _from_z85(text: str) -> bytes:
    numbers = [0] * (len(text) // 5)
    for place, character in enumerate(text):
        numbers[place // 5] = numbers[place // 5] * 85 + _Z85.index(character)
    return struct.pack(f">{len(numbers)}I", *numbers)


def remove_action(add: Action, now_ms: int, *, changes_rows: bool) -> Action:
    """Return the action that takes back what another one added."""
    remove = {
        "path": add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": changes_rows,
        "extendedFileMetadata": True,
        "partitionValues": add["partitionValues"],
        "size": add["size"],
    }
    if add.get("deletionVector") is not None:
        remove["deletionVector"] = add["deletionVector"]
    return {"remove": remove}


def plain(add: Action) -> Action:
    """Return an action of a checkpoint as JSON has it."""
    return {**add, "partitionValues": dict(add["partitionValues"] or ())}
