"""The audit trail of a lake: every change that somebody asked for has its entry, in the batch of the change itself."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.actor import ACTOR_VARIABLE, acting_through
from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError, SiltstoneWarning
from siltstone.log.actions import AUDIT_PREFIX, AUDIT_RETENTION_MS
from siltstone.log.commit import commit_log, forget_logs
from siltstone.log.state import EXPIRES_AT, LogState
from siltstone.maintenance.audit import AuditEntry
from siltstone.objects import open_objects
from siltstone.storage.layout import catalog_log
from siltstone.testing.faults import FAULT_KINDS, FaultKind, Killed, faults

NAME = "shop.orders"


@pytest.fixture(autouse=True)
def eve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACTOR_VARIABLE, "eve")


@pytest.fixture(autouse=True)
def rising_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two commits are of the same millisecond, so that their order shows."""
    newest, now_ms = 0, clock.now_ms

    def rising() -> int:
        nonlocal newest
        newest = max(newest + 1, now_ms())
        return newest

    monkeypatch.setattr(clock, "now_ms", rising)


@pytest.fixture
def lake(tmp_path: Path) -> siltstone.Lake:
    return siltstone.open(tmp_path / "lake")


def a_table(lake: siltstone.Lake, name: str = NAME) -> siltstone.Table:
    return lake.create_table(name, schema={"id": "int64", "text": "string"}, primary_keys=["id"])


def rows(*ids: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids)})


def with_rounds(lake: siltstone.Lake, count: int = 2) -> siltstone.Table:
    table = a_table(lake)
    for number in range(count):
        table.write(rows(1, 2, 3, text=f"text-{number}"))
        table.compact(engine="local")
    return table


def shown(entries: list[AuditEntry]) -> list[tuple[str, str]]:
    """Return what was done, oldest first, and about what."""
    return [(entry.action, entry.about) for entry in reversed(entries)]


def test_what_somebody_asks_for_is_listed_by_time_and_what_follows_from_writes_is_not(lake: siltstone.Lake) -> None:
    table = with_rounds(lake)
    table.tag("good")
    table.untag("good")
    table.rollback(1)
    table.compact(engine="local", rebase_from=NAME)
    table.alter(add_columns={"extra": "int64"}, drop_columns=["text"], properties={"priority": "3"})
    table.erase({"id": 2})
    table.rename("shop.sales")
    lake.clone_table("shop.sales", "shop.copy")
    lake.drop_table("shop.sales")
    entries = lake.audit()
    assert shown(entries) == [
        ("create", NAME),
        ("tag", "shop.sales: tag good"),
        ("untag", "shop.sales: tag good"),
        ("rollback", "shop.sales: to round 1, from round 2"),
        ("rebase", f"shop.sales: round 4, watermark 2, from {NAME}"),
        ("alter", "shop.sales: dropped text, added extra, properties priority"),
        ("erase", "shop.sales: files of deltas 2"),
        ("erase", "shop.sales: round 5, buckets 1"),
        ("erase", "shop.sales: forgotten rounds 4"),
        *[(entry.action, entry.about) for entry in entries if entry.action == "vacuum"],
        ("rename", f"{NAME}: to shop.sales"),
        ("clone", "shop.copy: of shop.sales"),
        ("drop", "shop.sales"),
    ]
    assert {(entry.requester, entry.through) for entry in entries} == {("eve", "python")}
    assert shown(lake.audit("shop.copy")) == [("clone", "shop.copy: of shop.sales")]
    assert shown(lake.audit(limit=1)) == [("drop", "shop.sales")]
    with pytest.raises(NotFoundError, match=r"nothing is known of a table shop\.nothing"):
        lake.audit("shop.nothing")


def test_who_acts_is_named_by_the_environment_or_the_operating_system(
    lake: siltstone.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_table(lake)
    monkeypatch.delenv(ACTOR_VARIABLE)
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    with acting_through("command"):
        lake.drop_table(NAME)
    drop, create = lake.audit()
    assert (create.requester, create.through) == ("eve", "python")
    assert (drop.requester, drop.through) == ("bob@laptop", "command")


def test_a_vacuum_notes_what_it_forgets_and_removes(lake: siltstone.Lake) -> None:
    table = with_rounds(lake, 3)
    table.vacuum(retention_ms=-1000, orphan_grace_ms=-1000)
    forgets, removes = (entry for entry in reversed(lake.audit(NAME)) if entry.action == "vacuum")
    assert forgets.details == {"rounds": 2}
    assert set(removes.details) == {"files", "bytes"}
    # The entries of a partition's log do not keep a vacuum from knowing what the log names.
    table.compact(engine="local", rebase_from=NAME)
    table.write(rows(4))
    table.compact(engine="local", full=True)
    assert table.vacuum(retention_ms=-1000, orphan_grace_ms=-1000).removed_files


def test_entries_expire_after_their_retention(lake: siltstone.Lake) -> None:
    a_table(lake)
    (entry,) = catalog_log(lake.root).read(lambda state: state.scan(AUDIT_PREFIX))
    assert entry[EXPIRES_AT] == entry["at"] + AUDIT_RETENTION_MS


def test_entries_of_a_dropped_table_outlive_its_files(lake: siltstone.Lake) -> None:
    table = with_rounds(lake)
    table.rollback(1)
    table.drop()
    before = shown(lake.audit())
    assert lake.vacuum_dropped(retention_ms=-1000).removed_files
    # As another process sees it, which has none of the removed logs in memory.
    forget_logs(lake.root)
    after = shown(lake.audit(NAME))
    assert after[:-1] == before
    assert after[-1][0] == "vacuum dropped"
    assert not open_objects(lake.root).list_objects("tables", recursive=True)


def test_a_removal_of_dropped_files_that_dies_at_any_call_keeps_each_entry_once(tmp_path: Path) -> None:
    for number in range(1, 200):
        lake = siltstone.open(tmp_path / str(number))
        table = a_table(lake)
        table.tag("good")
        table.drop()
        forget_logs(lake.root)
        with faults(lake.root, at_call=number, kind="kill") as store, contextlib.suppress(Killed):
            lake.vacuum_dropped(retention_ms=-1000)
        forget_logs(lake.root)
        with warnings.catch_warnings():
            # Where the log was removed in part, what it had is in the catalog's.
            warnings.simplefilter("ignore", SiltstoneWarning)
            left = [action for action, _ in shown(lake.audit(NAME)) if action != "vacuum dropped"]
        assert left == ["create", "tag", "drop"]
        lake.vacuum_dropped(retention_ms=-1000)
        forget_logs(lake.root)
        done = [action for action, _ in shown(lake.audit(NAME))]
        assert [action for action in done if action != "vacuum dropped"] == ["create", "tag", "drop"]
        assert "vacuum dropped" in done
        if store.calls < number:
            return
    pytest.fail("a removal takes fewer calls than that")


def test_nothing_of_an_erased_key_is_in_the_trail(lake: siltstone.Lake) -> None:
    table = lake.create_table("shop.people", schema={"who": "string", "day": "string"}, primary_keys=["who", "day"])
    secret = "somebody-special"
    table.write(pa.table({"who": [secret, "other"], "day": ["monday", "monday"]}))
    table.compact(engine="local")
    report = table.erase({"who": secret, "day": "monday"})
    assert report.mentioning_logs == []
    assert [entry.action for entry in lake.audit("shop.people")].count("erase") >= 2
    store = open_objects(lake.root)
    found = [info.path for info in store.list_objects("", recursive=True) if secret.encode() in store.read(info.path)]
    assert found == []


def test_a_damaged_log_hides_its_own_table_only(lake: siltstone.Lake) -> None:
    damaged, sound = a_table(lake, "shop.damaged"), a_table(lake, "shop.sound")
    for table in (damaged, sound):
        table.tag("first")
    store = open_objects(lake.root)
    (batch,) = [
        info.path for info in store.list_objects("tables/shop/damaged", recursive=True) if info.path.endswith("/log/1")
    ]
    data = store.read(batch)
    store.delete([batch])
    store.create(batch, data[:-1])
    forget_logs(lake.root)
    with pytest.warns(SiltstoneWarning, match=f"left out of the audit trail: .*{batch}"):
        entries = lake.audit()
    assert ("tag", "shop.sound: tag first") in shown(entries)
    with pytest.raises(CorruptionError):
        lake.audit("shop.damaged")


def test_a_clone_begins_with_a_trail_of_its_own(lake: siltstone.Lake) -> None:
    with_rounds(lake).rollback(1)
    lake.clone_table(NAME, "shop.copy")
    assert shown(lake.audit("shop.copy")) == [("clone", f"shop.copy: of {NAME}")]


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_leaves_a_change_with_its_entry_or_neither(tmp_path: Path, kind: FaultKind) -> None:
    for number in range(1, 100):
        lake = siltstone.open(tmp_path / f"{kind}-{number}")
        a_table(lake)
        forget_logs(lake.root)
        with faults(lake.root, at_call=number, kind=kind) as store, contextlib.suppress(SiltstoneError, Killed):
            lake.drop_table(NAME)
        forget_logs(lake.root)
        assert lake.has_table(NAME) == (("drop", NAME) not in shown(lake.audit()))
        if store.calls < number:
            return
    pytest.fail("a drop takes fewer calls than that")


def batches_of(root: str, folder: str) -> Iterator[set[str]]:
    """Yield the kinds of keys that each batch of a log has."""
    log = commit_log(root, folder)
    for file in log.listing().files:
        if not file.is_compact:
            state = LogState()
            state.apply(log.read_chained(file.name).lines, file.name)
            yield {key.partition("/")[0] for key in state.lines}


def test_the_entry_is_in_the_batch_of_the_round_it_is_about(lake: siltstone.Lake) -> None:
    table = with_rounds(lake)
    table.rollback(1)
    (entry,) = catalog_log(lake.root).read(lambda state: state.scan("table/"))
    folder = f"{entry['versions'][0]['folder']}/compacted/_/log"
    rolled_back = [kinds for kinds in batches_of(lake.root, folder) if "audit" in kinds]
    assert rolled_back == [{"commit", "round", "audit"}]


def test_an_unreadable_name_of_an_actor_is_made_one_line(lake: siltstone.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACTOR_VARIABLE, f"  job\n7 {'x' * 1000}")
    a_table(lake)
    (entry,) = lake.audit()
    assert entry.requester.startswith("job 7 xxx")
    assert len(entry.requester) == 200
