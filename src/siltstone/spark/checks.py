"""What the doctor checks about Spark: whether it runs, what its sessions left behind, and its archive of classes."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from siltstone.maintenance.machine import Check, leftover
from siltstone.spark.folders import own_folders
from siltstone.text import format_bytes, format_count, mask_secrets

_UNUSED_SECONDS = 30 * 86400


def check_spark() -> Check:
    """Start a local Spark, and run a small job on it."""
    started = time.monotonic()
    try:
        from siltstone.spark.session import local_session

        session = local_session("siltstone-doctor", is_short=True)
        rows = session.range(1000).selectExpr("sum(id) AS total").collect()
        version = session.version
        session.stop()
    except Exception as error:  # noqa: BLE001
        reason = mask_secrets(str(error)).strip().partition("\n")[0]
        return Check("spark", "failed", f"{type(error).__name__}: {reason}", "see what Java says above")
    seconds = time.monotonic() - started
    if rows[0]["total"] != 499_500:
        return Check("spark", "failed", f"{version} counts wrong: {rows[0]['total']}", "install pyspark again")
    return Check("spark", "ok", f"{version} started and ran a job in {seconds:.1f} s")


def check_folders() -> Check:
    """Return what Spark sessions of this user have left in the temporary folder."""
    name = "spark folders"
    folders = list(own_folders())
    dead = [folder for folder, owner in folders if owner == "dead"]
    if dead:
        size = sum(map(_size, dead))
        detail = f"{format_count(len(dead), 'folder')} of processes that died, {format_bytes(size)}"
        return leftover(name, detail, lambda: _remove_folders(dead))
    unknown = [folder for folder, owner in folders if owner == "unknown"]
    if unknown:
        # They may be another machine's or container's, which cannot be seen from here.
        detail = f"{format_count(len(unknown), 'folder')} of processes that cannot be seen from here: {unknown[0]}"
        more = ", …" if len(unknown) > 1 else ""
        return Check(name, "ok", f"{detail}{more}; delete by hand what no other machine or container uses")
    alive = len(folders)
    return Check(name, "ok", f"{format_count(alive, 'session')} running" if alive else "nothing left over")


def check_cache() -> Iterator[Check]:
    """Yield the findings about the cache folder and the archive of classes in it."""
    from siltstone.spark.session import CACHE_VARIABLE, archive_file, cache_folder, is_whole

    choose = f"set {CACHE_VARIABLE} to a folder that can be written, or to off"
    try:
        folder = cache_folder()
    except RuntimeError as error:
        yield Check("cache folder", "warning", str(error), choose)
        return
    if folder is None:
        yield Check("cache folder", "ok", f"off by {CACHE_VARIABLE}; each start of Spark takes longer")
        return
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Check("cache folder", "warning", f"{folder} cannot be written, so that Spark starts slowly", choose)
        return
    yield Check("cache folder", "ok", f"{folder}, {format_bytes(shutil.disk_usage(existing).free)} free")
    try:
        archive = archive_file(folder)
        unused = [file for file in folder.glob("spark-*.jsa") if file != archive and _is_unused(file)]
        if archive.exists() and not is_whole(archive):
            yield leftover("class archive", f"{archive} is damaged", lambda: _remove_archives([archive]))
        elif archive.with_suffix(".coming").exists():
            yield Check("class archive", "ok", "is being made, for this Java and Spark")
        elif archive.exists():
            yield Check("class archive", "ok", f"{format_bytes(archive.stat().st_size)}, for this Java and Spark")
        else:
            yield Check("class archive", "ok", "none yet; the next start of Spark makes it, about 160 MB")
        if unused:
            size = format_bytes(sum(file.stat().st_size for file in unused))
            detail = f"{format_count(len(unused), 'archive')} of another Java or Spark, unused for 30 days, {size}"
            yield leftover("old archives", detail, lambda: _remove_archives(unused))
    except OSError as error:
        yield Check("class archive", "warning", f"cannot be read: {error}", choose)


def _is_unused(file: Path) -> bool:
    status = file.stat()
    return max(status.st_atime, status.st_mtime) < time.time() - _UNUSED_SECONDS


def _remove_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)


def _remove_archives(archives: Iterable[Path]) -> None:
    for archive in archives:
        for file in archive.parent.glob(f"{archive.stem}.*"):
            file.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
