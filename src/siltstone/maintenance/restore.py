"""Restoring a lake, or some tables of it, from a backup to a root that is empty: all files, then one commit that names the tables."""

from collections.abc import Collection

from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes, forget_logs
from siltstone.log.state import LogState
from siltstone.maintenance.backup import BackupReport
from siltstone.maintenance.backup_manifest import BackupFile, Manifest, read_manifest
from siltstone.maintenance.file_copies import Progress, check_copy, copy_object, for_each, measure
from siltstone.model.locators import did_you_mean
from siltstone.objects import canonical_root, open_objects
from siltstone.storage.layout import CATALOG_FOLDER, NAMESPACE_PREFIX, TABLE_PREFIX, catalog_log
from siltstone.text import mask_secrets


def restore(
    source: str,
    root: str,
    *,
    number: int | None = None,
    tables: Collection[str] | None = None,
    check: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda message: None,
) -> BackupReport:
    """Make a lake under an empty root as it was when a backup was made, by default the newest; or some tables of it.

    Tables appear by one commit, when all files are there. Whatever stops it, it can be run again, and goes on; files that
    are not of the backup make it refuse the root. Every file is compared while it is copied, and with `check` those, too, that
    an earlier run had copied. Raises: AlreadyExistsError, NotFoundError, CorruptionError, StorageError.
    """
    source = canonical_root(source)
    manifest = read_manifest(source, number)
    catalog, files = _chosen(manifest, tables)
    stored, target = open_objects(source), open_objects(root)
    there = {info.path: info.size for info in target.list_objects("", recursive=True)}
    _refuse_others(root, there, files)
    missing = [file for file in files if there.get(file.path) != file.copied.size]
    names = sorted(
        key.removeprefix(TABLE_PREFIX).replace("/", ".", 1) for key in catalog if key.startswith(TABLE_PREFIX)
    )
    size, copied = (sum(file.copied.size for file in group) for group in (files, missing))
    report = BackupReport(
        source,
        root,
        manifest.number,
        dry_run,
        names,
        len(files),
        size,
        len(missing),
        copied,
        len(files) if check else 0,
    )
    if dry_run:
        return report
    progress(f"Copying {len(missing):,} files to {root}")

    def copy(file: BackupFile) -> None:
        try:
            found = copy_object(stored, file.stored, target, file.path)
            if found != file.copied:
                target.delete([file.path])
            check_copy(stored, file.stored, found, file.copied)
        except NotFoundError as error:
            raise CorruptionError(f"{source}/{file.stored}: is missing; use another backup") from error

    for_each(missing, copy, stored, target)
    if check:
        progress(f"Checking {len(files):,} files of {root}")
        for_each(files, lambda file: check_copy(target, file.path, measure(target, file.path), file.copied), target)
    forget_logs(root)

    def prepare(state: LogState) -> Changes:
        if state.batch_id >= 0:
            raise ConflictError(f"{root}: has a catalog, which somebody else made meanwhile; restore to an empty root")
        return catalog

    action = Action("restore", {"backup": manifest.number, "from": mask_secrets(source), "tables": len(names)})
    catalog_log(root).commit("restore", prepare, action=action)
    return report


def _chosen(
    manifest: Manifest, tables: Collection[str] | None
) -> tuple[dict[str, dict[str, object]], list[BackupFile]]:
    """Return the entries of the catalog and the files of the tables that are asked for. Raises: NotFoundError."""
    if tables is None:
        return {**manifest.catalog}, list(manifest.files)
    for name in tables:
        if name not in manifest.tables:
            raise NotFoundError(f"backup {manifest.number}: has no table {name}{did_you_mean(name, manifest.tables)}")
    keys = {f"{TABLE_PREFIX}{name.replace('.', '/', 1)}" for name in tables}
    keys |= {f"{NAMESPACE_PREFIX}{name.partition('.')[0]}" for name in tables}
    catalog = {key: entry for key, entry in manifest.catalog.items() if key in keys}
    folders = tuple(f"{version['folder']}/" for entry in catalog.values() for version in entry.get("versions", ()))
    return catalog, [file for file in manifest.files if file.path.startswith(folders)]


def _refuse_others(root: str, there: dict[str, int], files: list[BackupFile]) -> None:
    """Refuse a root that holds anything but what a run of the same restore left. Raises: AlreadyExistsError."""
    sizes = {file.path: file.copied.size for file in files}
    others = [path for path, size in there.items() if sizes.get(path) != size]
    if others:
        what = "a lake" if any(path.startswith(f"{CATALOG_FOLDER}/") for path in others) else "files"
        raise AlreadyExistsError(
            f"{root}: holds {what} already, e.g. {min(others)}; restore to an empty root, or one where the same restore was stopped"
        )
