"""Two processes that publish one table while it is compacted: each version is made once, and all are there.

`SILTSTONE_PUBLISHED_ROUNDS` says how many rounds there are.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.publish.foreign import actions_of, delta_changes, same_as, same_changes, versions_of
from tests.unit.publish.test_delta import SMALL, step
from tests.unit.rounds.compaction import MAJOR, make_table

pytestmark = pytest.mark.integration
ROUNDS = int(os.environ.get("SILTSTONE_PUBLISHED_ROUNDS", "12"))
PUBLISHER = """
import pathlib, sys
import siltstone

table, stop = siltstone.open(sys.argv[1]).table("shop.orders"), pathlib.Path(sys.argv[2])
print("begun", flush=True)
while True:
    is_last = stop.exists()
    done = table.publish()
    if done.is_new:
        print(done.version, done.rounds["_"], flush=True)
    if is_last:
        break
"""


def test_two_processes_make_each_version_once(tmp_path: Path) -> None:
    table = make_table(str(tmp_path / "lake"), properties={"publish.delta.change_feed": "true"})
    step(table, range(20), "first", SMALL)
    table.publish()
    stop = tmp_path / "stop"
    command = [sys.executable, "-c", PUBLISHER, table.lake.root, str(stop)]
    publishers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for publisher in publishers:
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == "begun\n"
    for number in range(ROUNDS):
        step(table, range(number, number + 4), f"{number} ", MAJOR if number % 4 == 3 else SMALL)
    stop.touch()
    printed = [publisher.communicate()[0] for publisher in publishers]
    assert [publisher.returncode for publisher in publishers] == [0, 0]
    lines = [line.split() for text in printed for line in text.splitlines()]
    made = dict(sorted((int(version), int(round_id)) for version, round_id in lines))
    assert len(lines) == len(made), "one version was made twice"
    assert versions_of(table) == [0, *made]
    assert [*made] == list(range(1, len(made) + 1))
    assert [*made.values()] == sorted(set(made.values())), "one round was published twice"
    same_as(table, table.to_arrow())
    before = 1
    for version, round_id in made.items():
        ours = table.changes(after={"_": before}, upto={"_": round_id}).to_arrow()
        same_changes(table, ours, delta_changes(table, version), version)
        before = round_id
    # What the slower of both has written for a version that it lost, it has taken away.
    named = {cdc["path"] for version in versions_of(table) for cdc in actions_of(table, version, "cdc")}
    (folder,) = Path(table.lake.root).glob("tables/shop/orders/*")
    assert {f"_change_data/{path.name}" for path in folder.glob("_change_data/*")} == named
