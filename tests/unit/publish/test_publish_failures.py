"""A publish that dies, meets others, or lags behind a vacuum: each state is published once, and what is published is readable."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import StorageError
from siltstone.log.commit import forget_logs
from siltstone.publish.outcomes import PublishFailure
from siltstone.testing.faults import FAULT_KINDS, FaultKind, Killed, faults
from tests.unit.publish.foreign import delta_rows, folder_of, same_as, versions_of
from tests.unit.publish.test_delta import SMALL, step
from tests.unit.rounds.compaction import make_table, rows

LAG = 2
# Whether first publishes are disturbed at every call, which takes a minute.
EVERY_CALL = "SILTSTONE_EVERY_CALL" in os.environ


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with a published version, and a round after it whose files need a vector of the publisher's own."""
    folder = str(tmp_path_factory.mktemp("published"))
    table = make_table(folder)
    step(table, range(16), "first", SMALL)
    step(table, range(0, 16, 2), "second", SMALL)
    table.publish()
    step(table, range(0, 16, 3), "third", SMALL)
    return folder


def copied(template: str, root: str, name: str = "shop.orders") -> siltstone.Table:
    """Return a table in a copy of a lake: all paths are relative."""
    shutil.copytree(template, root)
    return siltstone.open(root).table(name)


def test_the_version_that_is_prepared_needs_a_vector_of_its_own(local_root: str, template: str) -> None:
    table = copied(template, local_root)
    before = set(folder_of(table).glob("deletion_vector_*"))
    table.publish()
    assert len(set(folder_of(table).glob("deletion_vector_*")) - before) == 1


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_publish_that_fails_at_any_call_is_done_again_once(
    new_root: Callable[[str], str], kind: FaultKind, template: str
) -> None:
    at_call = calls = 0
    while at_call <= calls:
        at_call += 1
        table = copied(template, new_root("local"))
        with (
            faults(table.lake.root, at_call=at_call, kind=kind) as store,
            contextlib.suppress(StorageError, Killed),
        ):
            table.publish()
        calls = max(calls, store.calls)
        forget_logs(table.lake.root)
        table.publish()
        same_as(table, table.to_arrow(), polars=False)
        assert versions_of(table) == [0, 1], f"call {at_call}"
    assert calls > 5


def test_two_publishers_make_each_version_once(local_root: str) -> None:
    table = make_table(local_root)
    published: list[int] = []
    stopped = threading.Event()

    def publish() -> None:
        while True:
            is_last = stopped.is_set()
            done = table.publish()
            if done.is_new:
                published.append(done.version)
            if is_last:
                return

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(12):
        step(table, range(number, number + 4), f"{number}", SMALL)
    stopped.set()
    for thread in threads:
        thread.join()
    assert sorted(published) == list(range(len(published))) == versions_of(table)
    same_as(table, table.to_arrow())


def test_a_vacuum_keeps_what_a_version_names_that_lags_behind(local_root: str, template: str) -> None:
    table = copied(template, local_root)
    before = delta_rows(table)
    for number in range(LAG):
        step(table, range(16), f"more {number}", SMALL)
    report = table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert report.expired_rounds
    assert report.removed_files
    assert delta_rows(table).sort_by("id") == before.sort_by("id")
    assert table.fsck() == []
    table.publish()
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    same_as(table, table.to_arrow())
    assert not table.vacuum(retention_ms=0, orphan_grace_ms=0).removed_files


def test_a_vacuum_with_a_retention_keeps_what_replaced_versions_name(local_root: str, template: str) -> None:
    table = copied(template, local_root)
    before, version = delta_rows(table), table.published()[0].version
    step(table, range(16), "more", SMALL)
    table.publish()
    table.vacuum(retention_ms=3600_000, orphan_grace_ms=0)
    assert delta_rows(table, version).sort_by("id") == before.sort_by("id")


def test_a_vacuum_removes_what_a_dead_publisher_left(local_root: str, template: str) -> None:
    table = copied(template, local_root)
    name = "deletion_vector_00000000-0000-4000-8000-000000000000.bin"
    # What Spark leaves when it is refused, too.
    names = (name, f".{name}.crc", f"_delta_log/.{0:020d}.json.crc", f"_delta_log/.{9:020d}.json.a-b.tmp")
    for name in names:
        (folder_of(table) / name).write_bytes(b"x")
    assert table.vacuum().removed_files == [], "they are too young"
    table.vacuum(orphan_grace_ms=0)
    assert not [name for name in names if (folder_of(table) / name).exists()]
    table.publish()
    same_as(table, table.to_arrow())


def test_a_vacuum_at_any_moment_of_a_publish_leaves_no_version_without_its_files(
    new_root: Callable[[str], str], template: str
) -> None:
    at_call = calls = 0
    while at_call <= calls:
        # Every third call is enough: what comes between them is read at one go.
        at_call += 3
        table = copied(template, new_root("local"))

        def others(table: siltstone.Table = table) -> None:
            other = siltstone.open(table.lake.root).table(table.name)
            step(other, range(16), "meanwhile", SMALL)
            other.vacuum(retention_ms=0, orphan_grace_ms=0)

        with faults(table.lake.root, at_call=at_call, kind="meet", act=others) as store:
            table.publish()
        calls = max(calls, store.calls)
        assert table.fsck() == []
        assert delta_rows(table).num_rows == 16
        table.publish()
        same_as(table, table.to_arrow(), polars=False)
    assert calls > 5


@pytest.fixture(scope="module")
def unpublished(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with a table that was never published, and an older one that was taken back."""
    folder = str(tmp_path_factory.mktemp("unpublished"))
    for name in ("shop.orders", "shop.returns"):
        table = make_table(folder, name)
        step(table, range(16), "first", SMALL)
        step(table, range(0, 16, 2), "second", SMALL)
    table.publish("delta")
    table.publish("iceberg")
    table.unpublish()
    return folder


@pytest.mark.parametrize(
    ("name", "format"), [("shop.orders", "delta"), ("shop.orders", "iceberg"), ("shop.returns", "delta")]
)
def test_a_vacuum_at_any_moment_of_a_first_publish_leaves_no_version_without_its_files(
    new_root: Callable[[str], str], unpublished: str, name: str, format: str
) -> None:
    table = copied(unpublished, new_root("local"), name)
    with faults(table.lake.root) as store:
        table.publish(format)
    # Every call with the variable; else each that writes, and some of the others.
    for at_call, call in enumerate(store.history, 1):
        if not (EVERY_CALL or call.startswith("create ") or at_call % 6 == 0):
            continue
        table = copied(unpublished, new_root("local"), name)

        def others(table: siltstone.Table = table) -> None:
            other = siltstone.open(table.lake.root).table(table.name)
            step(other, range(16), "meanwhile", SMALL)
            other.vacuum(retention_ms=0, orphan_grace_ms=0)

        with faults(table.lake.root, at_call=at_call, kind="meet", act=others):
            table.publish(format)
        assert table.fsck() == [], call
        table.publish(format)
        table.vacuum(retention_ms=0, orphan_grace_ms=0)
        assert table.fsck() == []
        assert not list(folder_of(table).rglob("*.begun"))
        if format == "delta":
            same_as(table, table.to_arrow(), polars=False)


@pytest.mark.parametrize("kind", FAULT_KINDS if EVERY_CALL else ("lose", "kill"))
def test_a_first_publish_that_fails_at_any_call_is_done_again_once(
    new_root: Callable[[str], str], kind: FaultKind, unpublished: str
) -> None:
    at_call = calls = 0
    while at_call <= calls:
        at_call += 1
        table = copied(unpublished, new_root("local"))
        with faults(table.lake.root, at_call=at_call, kind=kind) as store, contextlib.suppress(StorageError, Killed):
            table.publish()
        calls = max(calls, store.calls)
        forget_logs(table.lake.root)
        # What a publisher left that died is refused, and goes.
        table.vacuum(orphan_grace_ms=0)
        assert table.publish().version in (0, 1)
        same_as(table, table.to_arrow(), polars=False)
        table.vacuum(orphan_grace_ms=0)
        assert not list(folder_of(table).rglob("*.begun"))
    assert calls > 5


def test_a_vacuum_makes_no_log_where_nobody_publishes(local_root: str, unpublished: str) -> None:
    table = copied(unpublished, local_root)
    step(table, range(16), "more", SMALL)
    assert table.vacuum(retention_ms=0, orphan_grace_ms=0).removed_files
    assert not (folder_of(table) / "_delta_log").exists()
    assert not (folder_of(table) / "iceberg").exists()


def test_a_failed_publish_does_not_fail_the_round_and_the_next_one_makes_up_for_it(local_root: str) -> None:
    table = make_table(local_root, properties={"publish": "delta"})
    table.write(rows(range(10), "a"))
    (published,) = table.compact(engine="local").published
    assert published.table == table.name
    same_as(table, table.to_arrow())
    log = folder_of(table) / "_delta_log"
    saved = (log / f"{0:020d}.json").read_bytes()
    (log / f"{0:020d}.json").write_bytes(b"{")
    table.write(rows(range(3), "b"))
    compacted = table.compact(engine="local")
    assert len(compacted.rounds) == 1
    (failure,) = compacted.published
    assert isinstance(failure, PublishFailure)
    assert failure.kind == "corruption"
    assert [finding.code for finding in table.fsck()] == ["published"]
    (log / f"{0:020d}.json").write_bytes(saved)
    (published,) = table.compact(engine="local").published
    same_as(table, table.to_arrow())


def test_a_damaged_log_is_unpublished_and_published_anew(local_root: str, template: str) -> None:
    table = copied(template, local_root)
    (folder_of(table) / "_delta_log" / f"{0:020d}.json").write_bytes(b"{")
    assert table.unpublish() == ["delta"]
    assert table.publish().version == 2
    same_as(table, pa.table(table.to_arrow()))
