"""Vacuums of a lake on local disk: beside writers, on a full disk, and where somebody has put links."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import StorageError
from siltstone.log.commit import forget_logs
from siltstone.objects import Objects, canonical_root, find_leftovers, open_objects, replaced
from siltstone.storage import object_store as storage
from tests.unit.rounds.compaction import MAJOR, compact, make_table, only_partition, rows


@pytest.fixture
def orders(local_root: str) -> siltstone.Table:
    """A table with three rounds, of which two are past any retention, and whose first delta is trimmed."""
    table = make_table(canonical_root(local_root))
    for number in range(3):
        table.write(rows(range(50), f"{number}-"))
        compact(table, MAJOR)
    storage.delete_deltas(only_partition(table), last_stream_position=1, root=table.lake.root)
    return table


def vacuum(table: siltstone.Table) -> Any:
    return table.vacuum(retention_ms=0, orphan_grace_ms=0)


def deltas_folder(table: siltstone.Table) -> Path:
    return Path(table.lake.root, table.deltas()[0].manifest.entries[0].uri).parent


def test_a_half_written_file_that_a_writer_is_done_with_meanwhile_is_no_error(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = deltas_folder(orders) / ".a.parquet.01.tmp"
    aside.write_bytes(b"half")
    other = deltas_folder(orders) / ".b.parquet.02.tmp"
    other.write_bytes(b"half")
    real = os.scandir

    @contextlib.contextmanager
    def vanishing(path: Any) -> Iterator[Any]:
        with real(path) as entries:
            listed = list(entries)
        if str(path) == str(aside.parent):
            aside.unlink(missing_ok=True)
        yield listed

    monkeypatch.setattr("siltstone.objects.local.os.scandir", vanishing)
    found = find_leftovers(orders.lake.root, str(deltas_folder(orders).relative_to(orders.lake.root)))
    assert [each.path.rpartition("/")[2] for each in found.half_written] == [other.name]
    assert any(path.endswith(other.name) for path in vacuum(orders).removed_files)


def test_a_folder_that_vanishes_meanwhile_is_no_error(orders: siltstone.Table) -> None:
    assert find_leftovers(orders.lake.root, "tables/shop/gone").half_written == []


class TestLinks:
    """Nothing outside the table's folder is ever removed, and no link either."""

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> Path:
        folder = tmp_path / "elsewhere"
        (folder / "inside").mkdir(parents=True)
        for name in ("precious.parquet", "inside/precious.parquet", ".precious.tmp"):
            (folder / name).write_bytes(b"precious")
        return folder

    def check(self, elsewhere: Path) -> None:
        assert sorted(path.name for path in elsewhere.rglob("*") if path.is_file()) == [
            ".precious.tmp",
            "precious.parquet",
            "precious.parquet",
        ]

    def test_a_vacuum_neither_follows_nor_removes_links(self, orders: siltstone.Table, elsewhere: Path) -> None:
        links = [
            deltas_folder(orders) / "folder",
            deltas_folder(orders) / "file.parquet",
            deltas_folder(orders) / "loop",
        ]
        for link, target in zip(links, (elsewhere, elsewhere / "precious.parquet", links[0].parent), strict=True):
            link.symlink_to(target)
        report = vacuum(orders)
        assert report.removed_files
        self.check(elsewhere)
        assert sorted(report.skipped_links) == sorted(str(link.relative_to(orders.lake.root)) for link in links)
        assert all(link.is_symlink() for link in links)
        assert orders.fsck(deep=True) == []

    def test_a_table_whose_folder_is_a_link_is_left_alone(self, orders: siltstone.Table) -> None:
        folder = deltas_folder(orders).parents[1]
        moved = Path(orders.lake.root, "moved")
        folder.rename(moved)
        folder.symlink_to(moved)
        before = sorted(path for path in moved.rglob("*") if path.suffix == ".parquet")
        report = vacuum(orders)
        assert report.removed_files == []
        assert report.skipped_links == [str(folder.relative_to(orders.lake.root))]
        assert sorted(path for path in moved.rglob("*") if path.suffix == ".parquet") == before
        assert len(orders.to_arrow()) == 50

    @pytest.mark.parametrize("place", ["", "shop", "shop/gone"])
    def test_links_among_the_folders_of_dropped_tables_are_left_alone(
        self, orders: siltstone.Table, elsewhere: Path, place: str
    ) -> None:
        tables = Path(orders.lake.root, "tables")
        (tables / place).mkdir(exist_ok=True)
        for depth in range(3):
            (elsewhere / "a/b"[: depth * 2]).mkdir(parents=True, exist_ok=True)
        (tables / place / "linked").symlink_to(elsewhere)
        report = orders.lake.vacuum_dropped(retention_ms=0)
        self.check(elsewhere)
        assert (tables / place / "linked").is_symlink()
        assert report.removed_files == 0


class FullDisk:
    """A store that has no room for anything new until something is deleted."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.root = objects.root
        self.is_full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def create(self, path: str, data: Any) -> None:
        if self.is_full:
            cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(f"{self.root}/{path}: {cause.strerror}") from cause
        self._objects.create(path, data)

    def delete(self, paths: Any) -> None:
        self._objects.delete(paths)
        self.is_full = self.is_full and not paths


@contextlib.contextmanager
def full_disk(root: str, *, stays_full: bool = False) -> Iterator[None]:
    """Let the store of a lake have no room; logs are opened anew, since they keep the store they began with."""
    store = FullDisk(open_objects(root))
    if stays_full:
        store.delete = lambda paths: None  # type: ignore[method-assign]
    forget_logs(root)
    with replaced(root, store):
        yield
    forget_logs(root)


def test_a_full_disk_is_freed_of_what_nothing_names_before_rounds_are_forgotten(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.clock.sleep", lambda seconds: None)
    (trimmed,) = set(deltas_folder(orders).glob("*.parquet")) - {
        Path(orders.lake.root, entry.uri) for delta in orders.deltas() for entry in delta.manifest.entries
    }
    with full_disk(orders.lake.root):
        report = vacuum(orders)
    assert report.expired_rounds == [1, 2]
    assert str(trimmed.relative_to(orders.lake.root)) in report.removed_files
    assert len(report.removed_files) == len(set(report.removed_files)) > 2
    assert orders.fsck(deep=True) == []
    assert len(orders.to_arrow()) == 50


def test_a_disk_that_stays_full_is_an_error_that_says_so(
    orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.clock.sleep", lambda seconds: None)
    with (
        full_disk(orders.lake.root, stays_full=True),
        pytest.raises(siltstone.SiltstoneError, match="No space left"),
    ):
        vacuum(orders)
    assert len(orders.rounds()) == 3


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Give a folder on a disk of its own, of 2 MB, and what fills that up; without root, a store that says it is full."""
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        yield lambda: full_disk(canonical_root(folder))
        return
    try:
        yield lambda: _filled(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    with (folder / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)
    yield


def test_a_disk_that_is_really_full_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.clock.sleep", lambda seconds: None)
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder) as full:
        table = make_table(canonical_root(folder), schema={"id": "int64", "v": "binary"})
        for number in range(3):
            table.write(pa.table({"id": [number], "v": [os.urandom(100_000)]}))
            compact(table, MAJOR)
        storage.delete_deltas(only_partition(table), last_stream_position=3, root=table.lake.root)
        more = pa.table({"id": [7], "v": [b"more"]})
        with full():
            with pytest.raises(siltstone.SiltstoneError):
                table.write(more)
            assert vacuum(table).expired_rounds == [1, 2]
            table.write(more)
        assert len(table.to_arrow(include_uncompacted=True)) == 4
