"""Removing what nothing readable names any more: rounds past their retention, files of a table version, and dropped tables."""

import errno
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from siltstone.errors import CommitUnknownError, CorruptionError, StorageError
from siltstone.ingest.drop_log import is_drop_log
from siltstone.log.actions import AUDIT_PREFIX, Action
from siltstone.log.batches import MAX_BATCH_ID, batch_id_from_name
from siltstone.log.commit import CONFIRMED_KEY, FORGOTTEN_KEY, Commit, CommitLog, commit_log
from siltstone.log.horizon import HORIZON_KEY, WORK_PREFIX, began_at, raise_horizon
from siltstone.log.proof import refuse_unproven
from siltstone.log.state import LogState
from siltstone.log.wire import COMMIT_KEY
from siltstone.maintenance.audit import carry_over
from siltstone.model import PartitionLocator
from siltstone.objects import ObjectInfo, find_leftovers, give_up_reserve, keep_reserve, open_objects
from siltstone.publish.retention import PublishedVersions, is_publication
from siltstone.storage import object_store as storage
from siltstone.storage.layout import (
    CATALOG_FOLDER,
    DROPPED_PREFIX,
    TABLES_FOLDER,
    catalog_log,
    dropped_key,
    version_log,
)
from siltstone.table.completion import (
    CONSUMER_PREFIX,
    CURRENT_KEY,
    HOLD_PREFIX,
    ROUND_PREFIX,
    Destination,
    completion_objects,
    current_entry,
    is_kept,
    list_rounds,
    read_completion,
)
from siltstone.table.consumers import rounds_kept_for_consumers
from siltstone.table.followers import refuse_lost_commits
from siltstone.table.tags import mark_sweep, named_by_tags, tagged_rounds

DAY_MS = 24 * 3600 * 1000
ROUND_RETENTION_MS = 7 * DAY_MS
ORPHAN_GRACE_MS = DAY_MS
DROPPED_RETENTION_MS = 7 * DAY_MS
_LOG = "log"
_DELTAS = "delta/"


@dataclass
class VacuumReport:
    """What a vacuum removed, or would remove in a dry run."""

    dry_run: bool
    expired_rounds: list[int] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    removed_bytes: int = 0
    kept_files: int = 0
    # Symbolic links, which are neither followed nor removed.
    skipped_links: list[str] = field(default_factory=list)
    # Why nothing expired, where this machine's clock or the store's may be wrong.
    unsure_time: str | None = None


def vacuum(
    folder: str,
    *,
    root: str,
    retention_ms: int = ROUND_RETENTION_MS,
    orphan_grace_ms: int = ORPHAN_GRACE_MS,
    confirm_time: bool = False,
    dry_run: bool = False,
    at_once: Callable[[str], bool] = lambda path: False,
) -> VacuumReport:
    """Forget rounds past the retention, then remove files of a table version that nothing readable names.

    All that is compacted into the version's folder counts, from whatever source, and all streams of its deltas. The
    current round stays, however old. Files younger than the grace stay too: a write or a round may be about to name
    them. Whoever wrote the others, and might still be about to name them, is refused from now on: see `horizon`. What a
    writer on local disk left behind half written is removed, too. No grace is for files that are to go `at_once`. Symbolic links are neither followed nor removed. On a
    full disk, a reserve is given up, so that there is room for the commits that this takes.
    Raises: CorruptionError; then nothing is removed.
    """
    is_confirmed = confirm_time and not dry_run
    if is_confirmed:
        version_log(root, folder).confirm_time()
    run = partial(
        _vacuum, root, folder, retention_ms, orphan_grace_ms, at_once, is_confirmed=is_confirmed, dry_run=dry_run
    )
    try:
        report = run()
    except (StorageError, CommitUnknownError) as error:
        if not _is_out_of_space(error) or not give_up_reserve(root):
            raise
        report = run()
    if not dry_run:
        keep_reserve(root)
    return report


def _is_out_of_space(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


def _vacuum(
    root: str,
    folder: str,
    retention_ms: int,
    orphan_grace_ms: int,
    at_once: Callable[[str], bool],
    *,
    is_confirmed: bool,
    dry_run: bool,
) -> VacuumReport:
    log = version_log(root, folder)
    now_ms = log.expiry_ms(is_confirmed=is_confirmed)
    sweep = _Sweep(root, folder, now_ms - orphan_grace_ms, at_once)
    refuse_unproven(log)
    expiring: dict[str, list[int]] = {}
    tagged = tagged_rounds(root, folder)
    for destination in sweep.destinations:
        refuse_unproven(destination.log)
        current = current_entry(destination)
        if current is not None:
            refuse_lost_commits(current, destination.locator, root=root)
        # Everything is read before anything is forgotten: a damaged completion file stops the vacuum here.
        kept = tagged.get(destination.folder.rpartition("/")[2], set())
        expired = _expired_rounds(destination, now_ms - retention_ms, now_ms)
        expiring[destination.folder] = [round_id for round_id in expired if round_id not in kept]
        _named_by_rounds(destination, [])
    report = VacuumReport(dry_run, skipped_links=sweep.leftovers.links, unsure_time=log.time_warning(now_ms))
    published = PublishedVersions(root, folder, now_ms - max(retention_ms, 0), now_ms)
    named = sweep.named_by_deltas | published.named() | named_by_tags(root, folder)
    expiring_rounds = sum(map(len, expiring.values()))
    if expiring_rounds and not dry_run:
        mark_sweep(root, folder, Action("vacuum", {"rounds": expiring_rounds}))
    for destination in sweep.destinations:
        expired = expiring[destination.folder]
        if expired and not dry_run:
            expired = _forget_rounds(destination, expired, now_ms)
        report.expired_rounds += expired
        named |= _named_by_rounds(destination, expired)
    doomed = sweep.unnamed(named)
    if not dry_run:
        doomed = _refused(sweep, doomed, published)
        open_objects(root).delete([file.path for file in doomed])
    report.removed_files = [file.path for file in doomed]
    report.removed_bytes = sum(file.size for file in doomed)
    report.kept_files = len({file.path for file in sweep.listed} - set(report.removed_files))
    return report


def _refused(sweep: "_Sweep", doomed: Sequence[ObjectInfo], published: PublishedVersions) -> list[ObjectInfo]:
    """Refuse whoever could still name files, and return those that nobody named before."""
    if doomed:
        published.fence()
        removed: dict[str, int | str | list[str]] = {"files": len(doomed), "bytes": sum(file.size for file in doomed)}
        mark_sweep(sweep.root, sweep.folder, Action("vacuum", removed))
    horizons: dict[str, int] = {}
    for log, files in sweep.by_log(doomed).items():
        horizon = 1 + max(began_at(file.path).batch_id for file in files)
        horizons |= dict.fromkeys((file.path for file in files), raise_horizon(log, horizon))
    named = _named_by_deltas(sweep.root, sweep.folder) | published.named() | named_by_tags(sweep.root, sweep.folder)
    for destination in sweep.destinations:
        named |= _named_by_rounds(destination, [])
    return [
        file
        for file in doomed
        if file.path not in named and began_at(file.path).batch_id < horizons.get(file.path, MAX_BATCH_ID)
    ]


class _Sweep:
    """What is in the folder of a table version, listed once, before any log says what is named."""

    def __init__(self, root: str, folder: str, before_ms: int, at_once: Callable[[str], bool]) -> None:
        self.root = root
        self.folder = folder
        self._before_ms = before_ms
        self._at_once = at_once
        self.leftovers = find_leftovers(root, folder)
        self.listed = open_objects(root).list_objects(folder, recursive=True)
        self.named_by_deltas = _named_by_deltas(root, folder)
        with_logs = list(_destinations(root, folder, self.listed))
        self.destinations = [destination for destination in with_logs if not _is_foreign(destination)]
        self._kept_folders = tuple(f"{place.folder}/" for place in with_logs if place not in self.destinations)

    def by_log(self, files: Iterable[ObjectInfo]) -> dict[CommitLog, list[ObjectInfo]]:
        """Return the files by the log that they would be committed to; half-written ones, and a publisher's, could be to none."""
        half_written = set(self.leftovers.half_written)
        by_log: dict[CommitLog, list[ObjectInfo]] = {}
        for file in files:
            if file not in half_written and not is_publication(file.path, self.folder):
                by_log.setdefault(self._log_of(file.path), []).append(file)
        return by_log

    def _log_of(self, path: str) -> CommitLog:
        folder = "/".join(path.split("/")[: self.folder.count("/") + 3])
        began = began_at(path)
        if began.is_round or (began.batch_id < 0 and folder in {place.folder for place in self.destinations}):
            return commit_log(self.root, f"{folder}/{_LOG}")  # which a first round has not made yet
        return version_log(self.root, self.folder)

    def unnamed(self, named: Container[str]) -> list[ObjectInfo]:
        """Return the files that are old enough and not among those that are named."""
        unnamed = [
            file
            for file in self.listed
            if not _is_log(file.path, self.folder)
            and not is_drop_log(file.path, self.folder)
            and file.path not in named
            and not file.path.startswith(self._kept_folders)
        ]
        return [
            file
            for file in [*unnamed, *self.leftovers.half_written]
            if (file.modified_ms <= self._before_ms or self._at_once(file.path))
            and not self.leftovers.are_beyond_a_link(file.path)
        ]


def _is_log(path: str, folder: str) -> bool:
    """Return whether a file is in a log, and not in a partition with the name of one."""
    parts = path.removeprefix(f"{folder}/").split("/")
    return (len(parts) == 2 and parts[0] == _LOG) or (len(parts) == 4 and parts[2] == _LOG)


def _destinations(root: str, folder: str, listed: Iterable[ObjectInfo]) -> Iterator[Destination]:
    """Yield everything with a log of its own in a version's folder, whoever compacted it from wherever."""
    below = {file.path.rpartition("/")[0] for file in listed if _is_log(file.path, folder)}
    for log_folder in sorted(below - {f"{folder}/{_LOG}"}):
        partition_folder = log_folder.removesuffix(f"/{_LOG}")
        stream, partition_id = partition_folder.split("/")[-2:]
        # Only messages show it: the folder says what it is, but not the table's name today.
        _, namespace, table, version = folder.split("/")
        locator = PartitionLocator(
            namespace=namespace,
            table=table,
            table_version=version.rpartition("-")[0],
            stream=stream,
            partition_values=[] if partition_id == "_" else [partition_id],
        )
        yield Destination(locator, partition_folder, root)


def _is_foreign(destination: Destination) -> bool:
    """Return whether a log holds anything but rounds, so that what its entries name is not known here."""
    keys = destination.log.read(lambda state: state.keys())
    own, prefixes = (
        (CURRENT_KEY, COMMIT_KEY, HORIZON_KEY, CONFIRMED_KEY, FORGOTTEN_KEY),
        (ROUND_PREFIX, HOLD_PREFIX, WORK_PREFIX, CONSUMER_PREFIX, AUDIT_PREFIX),
    )
    return any(key not in own and not key.startswith(prefixes) for key in keys)


def _named_by_deltas(root: str, folder: str) -> set[str]:
    entries = version_log(root, folder).read(lambda state: state.scan(_DELTAS))
    return {file["uri"] for delta in entries for file in delta.get("manifest", {}).get("entries", [])}


def _named_by_rounds(destination: Destination, expired: Sequence[int]) -> set[str]:
    named: set[str] = set()
    for entry in list_rounds(destination):
        if int(entry["round_id"]) not in expired:
            try:
                completion = read_completion(destination, entry)
                named |= {entry["uri"], *completion_objects(completion, known_pages=named)}
            except CorruptionError:
                if is_kept(destination, entry):
                    raise
    return named


def _expired_rounds(destination: Destination, before_ms: int, now_ms: int) -> list[int]:
    current = current_entry(destination)
    if current is None:
        return []
    rounds = list_rounds(destination)
    kept = destination.log.read(lambda state: _kept_by_holds(state, now_ms))
    # A state is readable until the next one replaced it, so what counts is when that happened.
    replaced_at = {int(old["round_id"]): int(new["completed_at"]) for old, new in itertools.pairwise(rounds)}
    return [
        round_id
        for round_id, time_ms in replaced_at.items()
        if time_ms <= before_ms and round_id != int(current["round_id"]) and round_id not in kept
    ]


def _kept_by_holds(state: LogState, now_ms: int) -> set[int | None]:
    """Return the rounds of states that holds keep, and those that consumers of changes need."""
    held = {hold.get("round_id") for hold in state.scan(HOLD_PREFIX) if int(hold["until_ms"]) > now_ms}
    return held | rounds_kept_for_consumers(state, now_ms)


def _forget_rounds(destination: Destination, expired: Sequence[int], now_ms: int) -> list[int]:
    """Take rounds out of the log, but for those that became current or held meanwhile; return which."""

    def prepare(state: LogState) -> Commit[list[int]]:
        needed = {(state.get(CURRENT_KEY) or {}).get("round_id"), *_kept_by_holds(state, now_ms)}
        forgotten = [
            round_id for round_id in expired if f"{ROUND_PREFIX}{round_id}" in state and round_id not in needed
        ]
        return Commit({f"{ROUND_PREFIX}{round_id}": None for round_id in forgotten}, forgotten)

    return destination.log.commit("expire rounds", prepare).result


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
    refuse_unproven(log)
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
        if not files:
            if not leftovers.links:
                forgotten.append(dropped_key(folder))
            continue
        entry = remembered.get(dropped_key(folder))
        if entry is None and any(_is_batch(file.path) for file in files):
            report.unclaimed.append(folder)
            continue
        dropped_at = int(entry["dropped_at"]) if entry is not None else max(file.modified_ms for file in files)
        if dropped_at > now_ms - retention_ms:
            report.waiting.append(folder)
            continue
        report.removed_folders.append(folder)
        report.removed_files += len(files)
        report.removed_bytes += sum(file.size for file in files)
        forgotten.append(dropped_key(folder))
        if not dry_run:
            if entry is not None:
                removed = {"files": len(files), "bytes": sum(file.size for file in files)}
                carry_over(root, folder, entry, Action("vacuum dropped", removed, str(entry["table"])))
            objects.delete([file.path for file in files])
    stale = [
        file for file in find_leftovers(root, CATALOG_FOLDER).half_written if file.modified_ms <= now_ms - retention_ms
    ]
    if report.waiting:
        report.unsure_time = log.time_warning(now_ms)
    report.removed_files += len(stale)
    report.removed_bytes += sum(file.size for file in stale)
    if not dry_run:
        objects.delete([file.path for file in stale])
        _forget(root, [key for key in forgotten if key in remembered])
    return report


def _is_batch(path: str) -> bool:
    """Return whether a file is a batch or checkpoint of a log."""
    folder, _, name = path.rpartition("/")
    return folder.endswith("/log") and batch_id_from_name(name) is not None


def _version_folders(root: str) -> Iterator[str]:
    objects = open_objects(root)
    for namespace in objects.list_folders(TABLES_FOLDER):
        for table in objects.list_folders(f"{TABLES_FOLDER}/{namespace}"):
            folder = f"{TABLES_FOLDER}/{namespace}/{table}"
            yield from (f"{folder}/{version}" for version in objects.list_folders(folder))


def _forget(root: str, keys: list[str]) -> None:
    if keys:
        catalog_log(root).commit("forget dropped tables", lambda state: {key: None for key in keys if key in state})
