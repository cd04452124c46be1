"""The change data feed of a published Delta table: which versions have files of their changes, and how long these are kept."""

import contextlib
from collections.abc import Callable
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import StorageError
from siltstone.log.commit import forget_logs
from siltstone.testing.faults import FAULT_KINDS, FaultKind, Killed, faults
from tests.unit.publish.foreign import actions_of, delta_changes, folder_of, same_changes, versions_of
from tests.unit.publish.test_delta import step
from tests.unit.publish.test_publish_failures import EVERY_CALL, copied
from tests.unit.rounds.compaction import MAJOR, make_table

FEED = {"publish.delta.change_feed": "true"}


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    return make_table(local_root, properties=FEED)


def change_files(table: siltstone.Table) -> set[str]:
    return {path.name for path in (folder_of(table) / "_change_data").glob("*")}


def published_changes(table: siltstone.Table, after: dict[str, int]) -> tuple[int, dict[str, int]]:
    """Publish, and compare what delta-rs says that changed with what we say."""
    published = table.publish()
    ours = table.changes(after=after, upto=published.rounds).to_arrow()
    same_changes(table, ours, delta_changes(table, published.version), published.version)
    return published.version, published.rounds


def test_only_versions_of_rounds_that_move_rows_have_files_of_their_changes(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    _, rounds = published_changes(table, {})
    step(table, range(5), "b")
    _, rounds = published_changes(table, rounds)
    assert not change_files(table)
    step(table, range(3, 8), "c", MAJOR)
    version, rounds = published_changes(table, rounds)
    (cdc,) = actions_of(table, version, "cdc")
    assert cdc["path"].startswith("_change_data/")
    assert delta_changes(table, version).num_rows == 10
    table.rollback(2)
    version, _ = published_changes(table, rounds)
    assert len(actions_of(table, version, "cdc")) == 1
    assert table.fsck() == []


def test_rows_that_are_written_again_as_they_are_do_not_change(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    table.publish()
    step(table, range(5), "a", MAJOR)
    version = table.publish().version
    assert not actions_of(table, version, "cdc")
    assert {add["dataChange"] for add in actions_of(table, version, "add")} == {False}
    assert delta_changes(table, version).num_rows == 0


def test_all_changes_of_a_version_are_in_files_where_one_partition_moves_rows(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.sales",
        schema={"id": "int64", "region": "string", "n": "int64"},
        primary_keys=["id", "region"],
        partition_keys=["region"],
        properties=FEED,
    )

    def write(region: str | None, ids: range, n: int, *, full: bool = False) -> None:
        table.write(pa.table({"id": ids, "region": pa.array([region] * len(ids)), "n": [n] * len(ids)}))
        table.compact(engine="local", full=full)

    write("a%b", range(10), 1)
    write(None, range(10), 1)
    _, rounds = published_changes(table, {})
    write(None, range(4), 2)
    write("a%b", range(3), 3, full=True)
    write("new", range(2), 4)
    version, _ = published_changes(table, rounds)
    values = [cdc["partitionValues"]["region"] for cdc in actions_of(table, version, "cdc")]
    assert sorted(values, key=str) == [None, "a%b", "new"]


def test_a_table_without_a_key_counts_rows(local_root: str) -> None:
    table = make_table(local_root, primary_keys=[], properties=FEED)
    step(table, range(10), "a")
    step(table, range(5), "a")
    _, rounds = published_changes(table, {})
    step(table, range(3), "b")
    version, rounds = published_changes(table, rounds)
    assert not actions_of(table, version, "cdc")
    step(table, range(3), "b", MAJOR)
    published_changes(table, rounds)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"properties": FEED, "schema": {"id": "int64", "v": "string", "_Change_Type": "string"}},
    ],
)
def test_a_table_may_have_no_feed(local_root: str, settings: dict[str, Any]) -> None:
    table = make_table(local_root, **settings)
    step(table, range(10), "a")
    step(table, range(3), "b", MAJOR)
    table.publish()
    assert feed_of(table, 0) is None
    step(table, range(2), "c", MAJOR)
    table.publish()
    assert not change_files(table)


def test_a_feed_that_is_switched_on_begins_there(local_root: str) -> None:
    table = make_table(local_root)
    step(table, range(10), "a")
    rounds = table.publish().rounds
    table.alter(properties=FEED)
    assert not table.publish().is_new
    step(table, range(3), "b", MAJOR)
    version, _ = published_changes(table, rounds)
    with pytest.raises(Exception, match=r"(?i)change data"):
        deltalake.DeltaTable(str(folder_of(table))).load_cdf(starting_version=version - 1)


def test_files_with_dead_rows_that_only_come_or_go_are_told_by_files_of_changes(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    step(table, range(20, 24), "b")
    _, rounds = published_changes(table, {})
    step(table, range(20, 21), "c")
    version, rounds = published_changes(table, rounds)
    assert not actions_of(table, version, "cdc")
    step(table, range(21, 24), "d")  # the rest of a file that had a vector
    version, rounds = published_changes(table, rounds)
    assert actions_of(table, version, "cdc")
    step(table, range(30, 34), "e")
    step(table, range(30, 32), "f")  # a new file has one
    version, _ = published_changes(table, rounds)
    assert actions_of(table, version, "cdc")


def feed_of(table: siltstone.Table, version: int) -> str | None:
    (metadata,) = actions_of(table, version, "metaData")
    setting: str | None = metadata["configuration"].get("delta.enableChangeDataFeed")
    return setting


def test_a_first_version_with_dead_rows_has_no_changes_and_the_next_one_has(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    step(table, range(3), "b")
    rounds = table.publish().rounds
    assert feed_of(table, 0) == "false"
    with pytest.raises(Exception, match=r"(?i)change data"):
        delta_changes(table, 0)
    assert not table.publish().is_new
    step(table, range(4), "c")
    published_changes(table, rounds)
    assert feed_of(table, 1) == "true"


def test_where_the_published_round_is_forgotten_rows_that_moved_go_and_come(table: siltstone.Table) -> None:
    step(table, range(10), "a")
    table.publish()
    before = table.to_arrow()
    step(table, range(3), "b", MAJOR)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    version = table.publish().version
    assert not actions_of(table, version, "cdc")
    changed = delta_changes(table, version)
    assert changed.num_rows == before.num_rows + table.to_arrow().num_rows


def test_where_the_published_round_is_forgotten_changes_that_would_be_misread_are_not_told(
    table: siltstone.Table,
) -> None:
    step(table, range(10), "a")
    table.publish()
    step(table, range(3), "b")
    table.publish()
    step(table, range(5), "c", MAJOR)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    version = table.publish().version
    assert feed_of(table, version) == "false"
    with pytest.raises(Exception, match=r"(?i)change data"):
        deltalake.DeltaTable(str(folder_of(table))).load_cdf(starting_version=1)
    rounds = table.published()[0].rounds
    step(table, range(2), "d")
    published_changes(table, rounds)


def test_a_vacuum_keeps_the_changes_of_the_newest_version_and_of_those_within_its_retention(
    table: siltstone.Table,
) -> None:
    step(table, range(10), "a")
    table.publish()
    for value in "bcd":
        step(table, range(3), value, MAJOR)
        table.publish()
    assert len(change_files(table)) == 3
    table.vacuum(retention_ms=3600_000, orphan_grace_ms=0)
    assert len(change_files(table)) == 3
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    newest = {cdc["path"].rpartition("/")[2] for cdc in actions_of(table, 3, "cdc")}
    assert change_files(table) == newest
    assert not table.vacuum(retention_ms=0, orphan_grace_ms=0).removed_files
    assert delta_changes(table, 3).num_rows == 6
    table.unpublish()
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert not change_files(table)


def test_a_key_that_is_erased_is_not_left_in_files_of_changes(table: siltstone.Table) -> None:
    step(table, range(10), "a")
    table.publish()
    step(table, range(3), "b", MAJOR)
    table.publish()
    report = table.erase({"id": 1})
    assert (report.left_files, report.published_again) == ([], ["delta"])
    assert not change_files(table)


def test_a_file_of_changes_that_is_missing_is_found(table: siltstone.Table) -> None:
    step(table, range(10), "a")
    table.publish()
    step(table, range(3), "b", MAJOR)
    table.publish()
    (folder_of(table) / "_change_data" / change_files(table).pop()).unlink()
    assert [finding.code for finding in table.fsck()] == ["published"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A lake with a published version, and a round after it that moves rows."""
    folder = str(tmp_path_factory.mktemp("published"))
    table = make_table(folder, properties=FEED)
    step(table, range(10), "a")
    table.publish()
    step(table, range(0, 10, 2), "b", MAJOR)
    return folder


@pytest.mark.parametrize("kind", FAULT_KINDS if EVERY_CALL else ("lose", "kill"))
def test_a_publish_that_fails_at_any_call_leaves_no_files_that_a_vacuum_does_not_find(
    new_root: Callable[[str], str], kind: FaultKind, template: str
) -> None:
    at_call = calls = 0
    while at_call <= calls:
        at_call += 1
        table = copied(template, new_root("local"))
        with faults(table.lake.root, at_call=at_call, kind=kind) as store, contextlib.suppress(StorageError, Killed):
            table.publish()
        calls = max(calls, store.calls)
        forget_logs(table.lake.root)
        table.publish()
        assert versions_of(table) == [0, 1], f"call {at_call}"
        ours = table.changes(after={"_": 1}).to_arrow()
        same_changes(table, ours, delta_changes(table, 1), 1)
        table.vacuum(orphan_grace_ms=0)
        assert len(change_files(table)) == 1
    assert calls > 8


def test_of_two_publishers_the_one_that_is_late_takes_its_files_away(
    new_root: Callable[[str], str], template: str
) -> None:
    table = copied(template, new_root("local"))
    with faults(table.lake.root) as store:
        table.publish()
    (commit,) = [number for number, call in enumerate(store.history, 1) if call.endswith(f"_delta_log/{1:020d}.json")]
    table = copied(template, new_root("local"))

    def others() -> None:
        siltstone.open(table.lake.root).table(table.name).publish()

    with faults(table.lake.root, at_call=commit, kind="meet", act=others):
        table.publish()
    assert versions_of(table) == [0, 1]
    assert len(change_files(table)) == 1
