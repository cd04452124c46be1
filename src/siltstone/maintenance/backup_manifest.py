"""The manifests of backups: what a lake was at a time, each written once, when all its files are there."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from siltstone.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.state import Entry
from siltstone.maintenance.file_copies import Copied
from siltstone.model.locators import check_path
from siltstone.objects import canonical_root, open_objects
from siltstone.storage.layout import TABLE_PREFIX

_FORMAT = 1
_MANIFESTS = "backups"


class BackupFile(NamedTuple):
    """A file of a lake: its path there, where the backup has it, and what it must be."""

    path: str
    stored: str
    copied: Copied


@dataclass(frozen=True)
class Manifest:
    """What a lake was: its entries in the catalog, and all its files."""

    number: int
    source: str
    created_at: int
    catalog: Mapping[str, Entry]
    files: Sequence[BackupFile]

    @property
    def tables(self) -> list[str]:
        """The names of the tables, e.g. `shop.orders`."""
        return sorted(table_name(key) for key in self.catalog if key.startswith(TABLE_PREFIX))

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.copied.size for file in self.files)

    def holds(self, catalog: Mapping[str, Entry], files: Collection[BackupFile]) -> bool:
        """Return whether it is of the same state."""
        return self.catalog == catalog and {*self.files} == {*files}


@dataclass(frozen=True)
class BackupSummary:
    """A backup as a line of a list."""

    number: int
    source: str
    created_at: int
    tables: list[str]
    files: int
    bytes: int


def table_name(key: str) -> str:
    """Return the name of a table by its key in the catalog."""
    return key.removeprefix(TABLE_PREFIX).replace("/", ".", 1)


def write_manifest(target: str, source: str, catalog: Mapping[str, Entry], files: Sequence[BackupFile]) -> int:
    """Make a backup real, and return its number."""
    objects = open_objects(target)
    while True:
        number = max(manifest_numbers(target), default=0) + 1
        content: dict[str, Any] = {
            "format_version": _FORMAT,
            "source": source,
            "created_at": open_objects(source).now_ms(),
            "catalog": catalog,
            "files": [[file.path, file.stored, *file.copied] for file in files],
        }
        body = orjson.dumps(content)
        try:
            objects.create(f"{_MANIFESTS}/{number}.json", b"%08x\n" % zlib.crc32(body) + body)
        except AlreadyExistsError:
            continue
        return number


def manifest_numbers(target: str) -> list[int]:
    """Return the numbers of the backups under a root, rising."""
    names = (info.path.rpartition("/")[2] for info in open_objects(target).list_objects(_MANIFESTS))
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())


def list_backups(target: str) -> list[BackupSummary]:
    """Return the backups under a root, oldest first. Raises: CorruptionError."""
    root = canonical_root(target)
    manifests = [read_manifest(root, number) for number in manifest_numbers(root)]
    return [
        BackupSummary(each.number, each.source, each.created_at, each.tables, len(each.files), each.bytes)
        for each in manifests
    ]


def newest_manifest(target: str) -> Manifest | None:
    """Return the manifest of the newest backup under a root, None where there is none. Raises: CorruptionError."""
    numbers = manifest_numbers(target)
    return read_manifest(target, numbers[-1]) if numbers else None


def read_manifest(target: str, number: int | None = None) -> Manifest:
    """Return the manifest of a backup, by default the newest. Raises: NotFoundError, CorruptionError."""
    numbers = manifest_numbers(target)
    if not numbers or (number is not None and number not in numbers):
        known = f"there are {', '.join(map(str, numbers))}" if numbers else "there is none"
        raise NotFoundError(f"{target}: no backup{'' if number is None else f' {number}'}; {known}")
    chosen = numbers[-1] if number is None else number
    path = f"{_MANIFESTS}/{chosen}.json"
    try:
        checksum, _, body = open_objects(target).read(path).partition(b"\n")
        if int(checksum, 16) != zlib.crc32(body):
            raise ValueError("wrong checksum")
        content = orjson.loads(body)
        if content["format_version"] > _FORMAT:
            raise InvalidInputError(f"{target}/{path}: is of a newer version of Siltstone; upgrade")
        files = [
            BackupFile(check_path(file[0]), check_path(file[1]), Copied(file[2], file[3])) for file in content["files"]
        ]
        return Manifest(chosen, content["source"], content["created_at"], content["catalog"], files)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptionError(f"{target}/{path}: the manifest is damaged ({error}); use an earlier backup") from error
