"""Backups: the files of a lake's tables under another root, and manifests, each of which says what the lake was at a time.

    backups/N.json              the manifest of backup N, created last: with it, the backup is there
    files/<path>                a data file, by its path in the lake; it never changes, so one copy serves all backups
    files/<path>-<checksum>     a file of a log, which may

A table is copied as one cut, though writers, rounds and vacuums go on: what is read first may lag behind what is read later,
and never the other way round. So logs of partitions come before those of the streams that they read, and all logs before data
files. A vacuum marks the log of a version before it removes anything: where the mark is another one in the end, files may be
missing, and what has changed is looked for again.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.ingest.drop_log import is_drop_log
from siltstone.log.commit import commit_log
from siltstone.log.state import Entry, LogState, anchor_of
from siltstone.maintenance.backup_manifest import (
    BackupFile,
    newest_manifest,
    read_manifest,
    table_name,
    write_manifest,
)
from siltstone.maintenance.file_copies import Copied, Progress, check_copy, copy_object, for_each, measure
from siltstone.model.locators import did_you_mean
from siltstone.objects import ObjectInfo, canonical_root, open_objects
from siltstone.publish.retention import is_publication
from siltstone.storage.layout import NAMESPACE_PREFIX, TABLE_PREFIX, catalog_log, version_log
from siltstone.table.completion import CURRENT_KEY
from siltstone.table.tags import SWEEP_KEY

_FILES = "files"
_ATTEMPTS = 20


@dataclass(frozen=True)
class BackupReport:
    """What a backup or a restore did, or would do: of which tables, how much there is, and how much of it was copied.

    `number` is that of the backup; None where a dry run would make one.
    """

    source: str
    target: str
    number: int | None
    dry_run: bool
    tables: list[str]
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    checked_files: int = 0


def back_up(
    root: str,
    target: str,
    *,
    tables: Collection[str] | None = None,
    check: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda message: None,
) -> BackupReport:
    """Copy some tables of a lake, by default all, to another root, but for files that are there from earlier backups.

    Whatever stops it, it can be run again, and goes on. With `check`, every file of the backup is read again and compared.
    Where nothing has changed since the last backup, that one is it. Raises: InvalidInputError, NotFoundError,
    ConflictError where vacuums keep coming, CorruptionError, StorageError.
    """
    target = canonical_root(target)
    if target == root or target.startswith(f"{root}/") or root.startswith(f"{target}/"):
        raise InvalidInputError(
            f"{target}: a backup cannot be in the lake {root}, nor the lake in it; give another place"
        )
    for attempt in range(_ATTEMPTS):
        progress(f"Reading the logs of {root}" if not attempt else f"A vacuum came; reading the logs of {root} again")
        run = _Run(root, target, dry_run=dry_run, progress=progress)
        try:
            report = run.run(tables)
        except NotFoundError:
            if tables is None or attempt == _ATTEMPTS - 1:
                _refuse_unknown(root, tables)
            continue
        if report is not None:
            return run.checked(report) if check and not dry_run else report
    raise ConflictError(
        f"{root}: files were removed {_ATTEMPTS} times while they were copied; try again when no vacuum runs"
    )


def _refuse_unknown(root: str, tables: Collection[str] | None) -> None:
    known = [table_name(key) for key in catalog_log(root).read(lambda state: state.keys(TABLE_PREFIX))]
    for name in tables or ():
        if name not in known:
            raise NotFoundError(f"{root}: there is no table {name}{did_you_mean(name, known)}")


class _Run:
    """One attempt at a backup."""

    def __init__(self, root: str, target: str, *, dry_run: bool, progress: Progress) -> None:
        self._root = root
        self._source = open_objects(root)
        self._target_root = target
        self._target = open_objects(target)
        self._dry_run = dry_run
        self._progress = progress
        self._stored = {info.path: info.size for info in self._target.list_objects(_FILES, recursive=True)}
        self._last = newest_manifest(target)
        files = () if self._last is None else self._last.files
        self._known = {file.stored: file.copied for file in files}
        self._copied: list[Copied] = []

    def run(self, tables: Collection[str] | None) -> BackupReport | None:
        """Return what was done, None where files were removed meanwhile. Raises: NotFoundError likewise."""
        _refuse_unknown(self._root, tables)
        catalog = catalog_log(self._root).read(lambda state: _chosen(state, tables))
        folders = [version["folder"] for entry in catalog.values() for version in entry.get("versions", ())]
        logs = {folder: version_log(self._root, folder) for folder in folders}
        marks = {folder: log.read(_mark) for folder, log in logs.items()}
        files: list[BackupFile] = []
        rounds: dict[str, _Round] = {}
        for folder in folders:
            files += self._drop_logs(folder)
            for place in self._partition_logs(folder):
                entry = commit_log(self._root, place).read(_current)
                files += self._log(place)
                rounds[place] = entry
        trimmed: dict[str, int] = {}
        for folder, log in logs.items():
            files += self._log(f"{folder}/log")
            trimmed |= {f"{folder}/{key}": position for key, position in log.recall(_trimmed).items()}
        if self._is_behind(rounds, trimmed):
            return None
        for folder in folders:
            files += self._data_files(folder)
        if {folder: log.read(_mark) for folder, log in logs.items()} != marks:
            return None
        return self._commit(catalog, files)

    def _is_behind(self, rounds: "Mapping[str, _Round]", trimmed: Mapping[str, int]) -> bool:
        """Return whether deltas were trimmed after a round that came after the one that was copied."""
        behind = [
            (place, batch_id)
            for place, (entry, batch_id) in rounds.items()
            if entry is not None and trimmed.get(str(entry["source_folder"]), 0) > int(entry["high_watermark"])
        ]
        return any(commit_log(self._root, place).read(_current).batch_id != batch_id for place, batch_id in behind)

    def _partition_logs(self, folder: str) -> list[str]:
        listed = self._source.list_objects(folder, recursive=True)
        return sorted({place for info in listed if (place := _log_of(info.path, folder)) and place != f"{folder}/log"})

    def _log(self, place: str) -> list[BackupFile]:
        """Copy the files that hold the state of a log as this process has read it, and those that prove it."""
        log = commit_log(self._root, place)
        newest, listing = log.recall(lambda state: state.batch_id), log.listing()
        checkpoint = listing.newest_compact(newest)
        first = anchor_of(0 if checkpoint is None else checkpoint.batch_id)
        plain = [file.name for number, file in listing.plain.items() if first <= number <= newest]
        if listing.chain(newest)[1]:
            raise CorruptionError(
                f"{log.address()}: has a gap, so that it is not backed up; see `siltstone log verify`"
            )
        names = [*([] if checkpoint is None else [checkpoint.name]), *plain]
        return [self._changing(log.path(name)) for name in names]

    def _drop_logs(self, folder: str) -> list[BackupFile]:
        """Copy what is known of files that were taken from folders.

        How batches ended is listed before the batches. What is older here than the log of the version is taken again, and
        found to be written.
        """
        first, second = (
            {info.path for info in self._source.list_objects(f"{folder}/ingest", recursive=True)} for _ in range(2)
        )
        own = [path for path in sorted(second) if is_drop_log(path, folder) and ("/done/" not in path or path in first)]
        return [self._changing(path) for path in own]

    def _changing(self, path: str) -> BackupFile:
        """Copy a file whose content may be another one next time. Raises: NotFoundError."""
        data = self._source.read(path)
        copied = Copied(len(data), zlib.crc32(data))
        stored = f"{_FILES}/{path}-{copied.checksum:08x}"
        if self._stored.get(stored) != copied.size:
            self._copied.append(copied)
            if not self._dry_run:
                self._put(stored, data)
        return BackupFile(path, stored, copied)

    def _put(self, stored: str, data: bytes) -> None:
        try:
            self._target.create(stored, data)
        except AlreadyExistsError:
            check_copy(self._target, stored, measure(self._target, stored), Copied(len(data), zlib.crc32(data)))
        self._stored[stored] = len(data)

    def _data_files(self, folder: str) -> list[BackupFile]:
        listed = [
            info
            for info in self._source.list_objects(folder, recursive=True)
            if _log_of(info.path, folder) is None
            and not is_publication(info.path, folder)
            and not is_drop_log(info.path, folder)
        ]
        self._progress(f"Copying {folder}: {len(listed):,} files")
        return for_each(listed, self._data_file, self._source, self._target)

    def _data_file(self, info: ObjectInfo) -> BackupFile:
        """Copy a file, unless it is there. Raises: NotFoundError where it was removed since it was listed."""
        stored = f"{_FILES}/{info.path}"
        if self._stored.get(stored) == info.size:
            known = self._known.get(stored)
            copied = known if known is not None or self._dry_run else measure(self._target, stored)
            return BackupFile(info.path, stored, copied or Copied(info.size, 0))
        if stored in self._stored:
            raise CorruptionError(
                f"{self._target.root}/{stored}: has {self._stored[stored]} bytes, and {info.path} of the lake has {info.size}: one "
                "of them is damaged; delete the former if the lake is sound"
            )
        copied = Copied(info.size, 0) if self._dry_run else copy_object(self._source, info.path, self._target, stored)
        if copied.size != info.size:
            raise CorruptionError(
                f"{self._target.root}/{stored}: has {copied.size} bytes instead of {info.size}; copy it again"
            )
        self._copied.append(copied)
        return BackupFile(info.path, stored, copied)

    def _commit(self, catalog: Mapping[str, Entry], files: Sequence[BackupFile]) -> BackupReport:
        number: int | None = None
        if self._last is not None and self._last.holds(catalog, files):
            number = self._last.number
        elif not self._dry_run:
            number = write_manifest(self._target_root, self._root, catalog, files)
        names = sorted(table_name(key) for key in catalog if key.startswith(TABLE_PREFIX))
        size, copied = sum(file.copied.size for file in files), sum(each.size for each in self._copied)
        counts = len(files), size, len(self._copied), copied
        return BackupReport(self._root, self._target_root, number, self._dry_run, names, *counts)

    def checked(self, report: BackupReport) -> BackupReport:
        """Read every file of the newest backup, and compare it. Raises: CorruptionError."""
        return check_backup(self._target_root, report.number, report, self._progress)


def check_backup(
    target: str, number: int | None, report: BackupReport, progress: Progress = lambda message: None
) -> BackupReport:
    """Read every file of a backup, and compare it with what it was when it was copied. Raises: CorruptionError."""
    manifest, objects = read_manifest(target, number), open_objects(target)
    progress(f"Checking {len(manifest.files):,} files of {target}")

    def check(file: BackupFile) -> None:
        try:
            check_copy(objects, file.stored, measure(objects, file.stored), file.copied)
        except NotFoundError as error:
            raise CorruptionError(f"{target}/{file.stored}: is missing; back up once more") from error

    for_each(manifest.files, check, objects)
    return BackupReport(**{**vars(report), "checked_files": len(manifest.files)})


class _Round(NamedTuple):
    """The current round of a compacted partition, None before the first, and the newest batch of its log."""

    entry: Entry | None
    batch_id: int


def _current(state: LogState) -> _Round:
    return _Round(state.get(CURRENT_KEY), state.batch_id)


def _mark(state: LogState) -> Entry | None:
    return state.get(SWEEP_KEY)


def _trimmed(state: LogState) -> dict[str, int]:
    entries = state.scan("partition/")
    return {
        str(entry["key"]).removeprefix("partition/"): int(entry.get("trimmed_stream_position", 0)) for entry in entries
    }


def _chosen(state: LogState, tables: Collection[str] | None) -> dict[str, Entry]:
    entries = {str(entry["key"]): entry for entry in state.scan(TABLE_PREFIX)}
    chosen = {key: entry for key, entry in entries.items() if tables is None or table_name(key) in tables}
    namespaces = {key.removeprefix(TABLE_PREFIX).partition("/")[0] for key in chosen}
    for entry in state.scan(NAMESPACE_PREFIX):
        if tables is None or str(entry["key"]).removeprefix(NAMESPACE_PREFIX) in namespaces:
            chosen[str(entry["key"])] = entry
    return {key: {name: value for name, value in entry.items() if name != "key"} for key, entry in chosen.items()}


def _log_of(path: str, folder: str) -> str | None:
    """Return the folder of the commit log that a file belongs to, None where it is another file."""
    parts = path.removeprefix(f"{folder}/").split("/")
    if (len(parts) == 2 and parts[0] == "log") or (len(parts) == 4 and parts[2] == "log"):
        return path.rpartition("/")[0]
    return None
