"""Removing the files of tables that were dropped, and of creations that never came to an end."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from siltstone.log.batches import batch_id_from_name
from siltstone.log.commit import Changes
from siltstone.log.proof import refuse_unproven
from siltstone.log.state import Entry, LogState
from siltstone.maintenance.vacuum import DAY_MS
from siltstone.objects import ObjectInfo, find_leftovers, open_objects
from siltstone.storage import object_store as storage
from siltstone.storage.layout import CATALOG_FOLDER, DROPPED_PREFIX, TABLES_FOLDER, catalog_log, dropped_key

DROPPED_RETENTION_MS = 7 * DAY_MS


@dataclass
class DroppedReport:
    """What was removed of dropped tables, or would be in a dry run; `waiting` are folders within the retention."""

    dry_run: bool
    removed_folders: list[str] = field(default_factory=list)
    removed_files: int = 0
    removed_bytes: int = 0
    waiting: list[str] = field(default_factory=list)
    # Folders with a log that no table names and nobody dropped: they are not removed.
    unclaimed: list[str] = field(default_factory=list)
    # Symbolic links, which are neither followed nor removed.
    skipped_links: list[str] = field(default_factory=list)
    # Why folders wait, where this machine's clock or the store's may be wrong.
    unsure_time: str | None = None


def vacuum_dropped(
    root: str, *, retention_ms: int = DROPPED_RETENTION_MS, confirm_time: bool = False, dry_run: bool = False
) -> DroppedReport:
    """Remove the files of table versions that no table has, if they were dropped longer ago than the retention.

    A folder whose drop is not recorded is from a creation that failed, or is still under way; or the catalog lost the
    table. So it stays if it has a log, and goes when its newest file is older than the retention if it has none.
    Raises: CorruptionError, StorageError; a run that failed can be repeated.
    """
    log = catalog_log(root)
    is_confirmed = confirm_time and not dry_run
    if is_confirmed:
        log.confirm_time()
    now_ms = log.expiry_ms(is_confirmed=is_confirmed)
    report = DroppedReport(dry_run)
    objects = open_objects(root)
    refuse_unproven(log.batches)
    # Folders are listed before the catalog is read: one that is made meanwhile is then either known or not seen.
    folders = list(_version_folders(root))
    live_folders = {version.folder for table in storage.list_tables(root=root) for version in table.versions}
    remembered = log.read(lambda state: {entry["key"]: entry for entry in state.scan(DROPPED_PREFIX)})
    forgotten = [key for key in remembered if key.removeprefix(DROPPED_PREFIX) not in folders]
    for folder in folders:
        if folder in live_folders:
            continue
        leftovers = find_leftovers(root, folder)
        report.skipped_links += leftovers.links
        files = [*objects.list_objects(folder, recursive=True), *leftovers.half_written]
        files = [file for file in files if not leftovers.are_beyond_a_link(file.path)]
        if leftovers.links and not files:
            continue
        if not files:
            forgotten.append(dropped_key(folder))
            continue
        if dropped_key(folder) not in remembered and any(_is_log(file.path) for file in files):
            report.unclaimed.append(folder)
            continue
        if _dropped_at(remembered.get(dropped_key(folder)), files) > now_ms - retention_ms:
            report.waiting.append(folder)
            continue
        report.removed_folders.append(folder)
        report.removed_files += len(files)
        report.removed_bytes += sum(file.size for file in files)
        forgotten.append(dropped_key(folder))
        if not dry_run:
            objects.delete([file.path for file in files])
    stale = [
        file for file in find_leftovers(root, CATALOG_FOLDER).half_written if file.modified_ms <= now_ms - retention_ms
    ]
    if report.waiting:
        report.unsure_time = log.doubt(now_ms)
    report.removed_files += len(stale)
    report.removed_bytes += sum(file.size for file in stale)
    if not dry_run:
        objects.delete([file.path for file in stale])
        _forget(root, [key for key in forgotten if key in remembered])
    return report


def _is_log(path: str) -> bool:
    """Return whether a file is a batch or checkpoint of a log."""
    folder, _, name = path.rpartition("/")
    return folder.endswith("/log") and batch_id_from_name(name) is not None


def _version_folders(root: str) -> Iterator[str]:
    objects = open_objects(root)
    for namespace in objects.list_folders(TABLES_FOLDER):
        for table in objects.list_folders(f"{TABLES_FOLDER}/{namespace}"):
            folder = f"{TABLES_FOLDER}/{namespace}/{table}"
            yield from (f"{folder}/{version}" for version in objects.list_folders(folder))


def _dropped_at(entry: Entry | None, files: list[ObjectInfo]) -> int:
    return int(entry["dropped_at"]) if entry is not None else max((file.modified_ms for file in files), default=0)


def _forget(root: str, keys: list[str]) -> None:
    def prepare(state: LogState) -> Changes:
        return {key: None for key in keys if key in state}

    if keys:
        catalog_log(root).commit("forget dropped tables", prepare)
