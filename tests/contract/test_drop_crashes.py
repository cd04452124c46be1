"""A crash at any storage call of an intake, or another process in between, leaves each file taken once or not at all."""

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import siltstone
from siltstone.errors import SiltstoneError
from siltstone.ingest.drop_log import Batch, DropLog, FileKey, KnownFile
from siltstone.ingest.drop_options import DropOptions
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.testing import FaultKind, Killed, faults
from siltstone.testing.faults import FAULT_KINDS

FILES = 3
BAD = "bad.jsonl"
# Earlier batches, so that the next ones are the ninth and the tenth of the folder's log, which is a compact one.
EARLIER = 8
LONG_AGO = 1_700_000_000
OPTIONS: dict[str, Any] = {"done": "move", "quarantine": True, "max_files": 2}


def fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(FILES):
        drop(folder, f"{number}.jsonl", json.dumps({"id": number}))
    drop(folder, BAD, "{")


def drop(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    os.utime(folder / name, (LONG_AGO, LONG_AGO))


@pytest.fixture(scope="module")
def make_table(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], siltstone.Table]:
    """Copy a table without a key that has taken files before: what is written twice is there twice."""
    template = open_objects(f"memory://{uuid.uuid4().hex}")
    table = siltstone.open(template.root).create_table("shop.orders", schema={"id": "int64"})
    folder = tmp_path_factory.mktemp("earlier")
    for number in range(EARLIER):
        drop(folder, f"{number}.jsonl", json.dumps({"id": 100 + number}))
        table.ingest(folder, source_id="orders", done="delete")

    def make(root: str) -> siltstone.Table:
        for object_ in template.list_objects("", recursive=True):
            open_objects(root).create(object_.path, template.read(object_.path))
        return siltstone.open(root).table("shop.orders")

    return make


def ids_of(table: siltstone.Table) -> list[int]:
    deltas = table.deltas()[EARLIER:]
    root = table.lake.root
    return sorted(
        number for delta in deltas for number in storage.download_delta(delta, root=root).column("id").to_pylist()
    )


def take(table: siltstone.Table, folder: Path) -> None:
    table.ingest(folder, source_id="orders", **OPTIONS)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


ALL_MOVED = [*(f"done/{number}.jsonl" for number in range(FILES)), f"rejected/{BAD}"]


def calls_of(root: str, table: siltstone.Table, folder: Path) -> list[str]:
    """Return the calls of an intake that goes well."""
    fill(folder)
    with faults(root) as store:
        take(table, folder)
    assert ids_of(table) == list(range(FILES))
    assert names_in(folder) == ALL_MOVED
    return store.history


def is_change(call: str) -> bool:
    return call.startswith(("create", "replace", "close", "open writer", "delete t"))


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_leaves_each_file_taken_once_or_not_at_all(
    kind: FaultKind, new_root: Callable[[str], str], make_table: Callable[[str], siltstone.Table], tmp_path: Path
) -> None:
    root = new_root("memory")
    calls = calls_of(root, make_table(root), tmp_path / "count")
    assert len([call for call in calls if is_change(call)]) > 10
    outcomes = set()
    for at_call, call in enumerate(calls, 1):
        # Between two changes, all calls leave the same behind; so those that only read share the kinds of faults.
        if not is_change(call) and at_call % 20 != FAULT_KINDS.index(kind):
            continue
        root, folder = new_root("memory"), tmp_path / f"{kind}-{at_call}"
        table = make_table(root)
        fill(folder)
        with faults(root, at_call=at_call, kind=kind):
            try:
                take(table, folder)
                outcomes.add("done")
            except Killed:
                outcomes.add("killed")
            except SiltstoneError:
                outcomes.add("failed")
        doubled = [number for number, count in Counter(ids_of(table)).items() if count > 1]
        assert not doubled, f"call {at_call}"
        # What is no longer in the folder is in the table.
        left = {name for name in names_in(folder) if "/" not in name}
        assert {number for number in range(FILES) if f"{number}.jsonl" not in left} <= set(ids_of(table))
        take(table, folder)
        assert ids_of(table) == list(range(FILES)), f"call {at_call}"
        assert names_in(folder) == ALL_MOVED, f"call {at_call}"
        assert table.fsck() == []
    assert outcomes >= ({"killed"} if "kill" in kind else {"failed"})


def test_another_process_may_take_the_same_files_between_any_two_calls(
    new_root: Callable[[str], str], make_table: Callable[[str], siltstone.Table], tmp_path: Path
) -> None:
    root = new_root("memory")
    calls = calls_of(root, make_table(root), tmp_path / "count")
    for at_call, call in enumerate(calls, 1):
        if not is_change(call) and at_call % 6:
            continue
        root, folder = new_root("memory"), tmp_path / f"meet-{at_call}"
        table = make_table(root)
        fill(folder)
        others: list[None] = []

        def meet(table: siltstone.Table = table, folder: Path = folder, others: list[None] = others) -> None:
            if not others:
                others.append(None)
                take(siltstone.open(table.lake.root).table("shop.orders"), folder)

        with faults(root, at_call=at_call, kind="meet", act=meet):
            take(table, folder)
        assert others
        assert ids_of(table) == list(range(FILES)), f"call {at_call}"
        assert names_in(folder) == ALL_MOVED, f"call {at_call}"


@pytest.mark.parametrize("done", ["move", "delete"])
def test_files_stay_that_another_process_has_only_listed(
    make_table: Callable[[str], siltstone.Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    done: Literal["move", "delete"],
) -> None:
    table, folder = make_table(f"memory://{uuid.uuid4().hex}"), tmp_path / "drops"
    folder.mkdir()
    for number in range(FILES):
        drop(folder, f"{number}.jsonl", json.dumps({"id": number}))
    options = DropOptions(done=done)
    other = table.open_drops(folder, options, source_id="orders")
    known = DropLog.known

    def list_and_die(log: DropLog, newest: Batch | None) -> dict[FileKey, KnownFile]:
        """Let the other one list all files in the log after this one has read which batch is the newest."""
        monkeypatch.setattr(DropLog, "known", known)
        look = other._looks.look(newest, waits=True)
        assert other._begin(newest, look, look.ready) is not None
        return known(log, newest)

    monkeypatch.setattr(DropLog, "known", list_and_die)
    table.open_drops(folder, options, source_id="orders").take()
    assert names_in(folder) == [f"{number}.jsonl" for number in range(FILES)]
    table.open_drops(folder, options, source_id="orders").take()
    assert ids_of(table) == list(range(FILES))
    assert not list(folder.glob("*.jsonl"))


TAKER = """
import sys, siltstone
root, folder = sys.argv[1:]
table = siltstone.open(root).table("shop.orders")
print("ready", flush=True)
sys.stdin.readline()
while table.ingest(folder, max_files=3, done="delete").files:
    pass
"""


def test_processes_that_take_from_one_folder_take_each_file_once(local_root: str, tmp_path: Path) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"})
    folder = tmp_path / "drops"
    folder.mkdir()
    for number in range(30):
        drop(folder, f"{number}.jsonl", json.dumps({"id": number}))
    command = [sys.executable, "-c", TAKER, local_root, str(folder)]
    takers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for taker in takers:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "ready\n"
    # One of them is killed on its way.
    for taker in takers:
        assert taker.stdin is not None
        taker.stdin.write("go\n")
        taker.stdin.close()
    takers[0].kill()
    assert [taker.wait() for taker in takers][1:] == [0, 0]
    table.ingest(folder, done="delete")
    rows = [
        number
        for delta in table.deltas()
        for number in storage.download_delta(delta, root=local_root)["id"].to_pylist()
    ]
    assert sorted(rows) == list(range(30))
    assert [name for name in names_in(folder) if not name.startswith(".")] == []
    (report,) = table.ingests()
    assert (report.files, report.rows) == (30, 30)
