"""Files of dropped tables go when their time has come, and nothing else does."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.maintenance.vacuum import vacuum_dropped
from siltstone.objects import canonical_root, open_objects
from siltstone.objects.store import StoreObjects
from siltstone.storage.layout import DROPPED_PREFIX, catalog_log

HOUR_MS = 3_600_000


def make(root: str, name: str) -> siltstone.Table:
    table = siltstone.open(root).create_table(name, schema={"id": "int64"}, primary_keys=["id"])
    table.write(pa.table({"id": [1, 2]}))
    return table


def paths(root: str) -> set[str]:
    return {object_.path for object_ in open_objects(root).list_objects("tables", recursive=True)}


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def move(hours: int) -> None:
        now = clock.now_ms() + hours * HOUR_MS
        monkeypatch.setattr(clock, "now_ms", lambda: now)
        monkeypatch.setattr(StoreObjects, "now_ms", lambda _: now)

    return move


def test_a_dropped_table_goes_after_the_retention_and_others_stay(root: str, later: Callable[[int], None]) -> None:
    root = canonical_root(root)
    make(root, "shop.kept").rename("shop.renamed")
    kept = paths(root)
    make(root, "shop.gone").drop()
    gone = paths(root) - kept
    again = make(root, "shop.gone")
    kept |= paths(root) - gone
    report = vacuum_dropped(root, retention_ms=HOUR_MS)
    assert (report.removed_folders, len(report.waiting)) == ([], 1)
    later(2)
    report = vacuum_dropped(root, retention_ms=HOUR_MS, dry_run=True)
    assert (len(report.removed_folders), report.removed_files, report.waiting) == (1, len(gone), [])
    assert report.removed_bytes > 0
    assert paths(root) == kept | gone
    assert vacuum_dropped(root, retention_ms=HOUR_MS).removed_files == len(gone)
    assert paths(root) == kept
    assert vacuum_dropped(root, retention_ms=HOUR_MS).removed_folders == []
    assert catalog_log(root).read(lambda state: state.keys(DROPPED_PREFIX)) == []
    assert again.write(pa.table({"id": [3]})) == 2
    assert [table.name for table in siltstone.open(root).tables()] == ["shop.gone", "shop.renamed"]


def test_a_table_that_was_written_long_ago_and_dropped_now_stays_for_the_retention(
    local_root: str, later: Callable[[int], None]
) -> None:
    table = make(local_root, "shop.gone")
    later(1000)
    with pytest.MonkeyPatch.context() as patch:
        now = clock.now_ms() + 1000 * HOUR_MS
        patch.setattr(catalog_log(canonical_root(local_root)), "now_ms", lambda: now)
        table.drop()
    before = paths(local_root)
    assert len(vacuum_dropped(canonical_root(local_root), retention_ms=HOUR_MS).waiting) == 1
    assert paths(local_root) == before


def test_what_a_failed_creation_left_goes_by_the_age_of_its_files(
    local_root: str, later: Callable[[int], None]
) -> None:
    root = canonical_root(local_root)
    make(root, "shop.kept")
    before = paths(root)
    open_objects(root).create("tables/shop/never/1-abc/deltas/_/abc.parquet", b"v1")
    aside = Path(root) / "tables/shop/never/1-abc/.0.0123.tmp"
    aside.write_bytes(b"half")
    (Path(root) / "catalog/.7.0123.tmp").write_bytes(b"half")
    assert vacuum_dropped(root, retention_ms=HOUR_MS).removed_files == 0
    later(2)
    assert vacuum_dropped(root, retention_ms=HOUR_MS).removed_files == 3
    assert paths(root) == before
    assert not list(Path(root).rglob(".*.tmp"))


def test_a_folder_with_a_log_that_nobody_dropped_stays_however_old(
    local_root: str, later: Callable[[int], None]
) -> None:
    root = canonical_root(local_root)
    make(root, "shop.kept")
    open_objects(root).create("tables/shop/lost/1-abc/log/0", b"v1")
    before = paths(root)
    later(2000)
    report = vacuum_dropped(root, retention_ms=HOUR_MS)
    assert (report.removed_files, report.unclaimed) == (0, ["tables/shop/lost/1-abc"])
    assert paths(root) == before


def test_a_root_without_tables_has_nothing_to_remove(root: str) -> None:
    assert vacuum_dropped(canonical_root(root)).removed_folders == []
