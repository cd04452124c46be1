"""Two processes compact one partition at once: one commits, the other plans again, and nothing is lost or doubled."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.table.completion import get_round, list_rounds
from tests.unit.rounds.compaction import (
    check_rows,
    completion_of,
    destination_of,
    make_table,
    objects_below,
    objects_of,
    rows,
)

TURNS = 15
# Each says when its work is done, and commits when it is told to: so both have planned on the same round.
COMPACTOR = """
import sys, siltstone
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.rounds.session import run_session
from tests.unit.rounds.compaction import request_for

table = siltstone.open(sys.argv[1]).table("shop.orders")

def engine(job):
    yield from run_here(job)
    print("worked", flush=True)
    sys.stdin.readline()

for line in sys.stdin:
    settings = Settings(bucket_rows=20, page_buckets=2, max_dead_fraction=float(line), max_delta_fraction=float(line))
    result = run_session(request_for(table, settings), engine)
    print(len(result.rounds), result.conflicts, flush=True)
"""


class Compactor:
    """A process that compacts when it is told to."""

    def __init__(self, root: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMPACTOR, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    return make_table(local_root)


def test_of_two_processes_one_commits_each_round_and_the_other_plans_again(table: siltstone.Table) -> None:
    compactors = [Compactor(table.lake.root), Compactor(table.lake.root)]
    for turn in range(TURNS):
        table.write(rows(range(turn * 5, turn * 5 + 40), f"turn {turn}-"))
        table.write(pa.table({"id": [turn, 3 * turn]}), "delete")
        for compactor, fraction in zip(compactors, (1.0, turn % 3 / 3), strict=True):
            compactor.tell(str(fraction))
        assert [compactor.hear() for compactor in compactors] == ["worked", "worked"]
        for compactor in compactors:
            compactor.tell("commit")
        # The one that lost finds nothing left to do.
        assert sorted(compactor.hear() for compactor in compactors) == ["0 1", "1 0"]
        check_rows(table)
    assert [compactor.end() for compactor in compactors] == [0, 0]
    destination = destination_of(table)
    rounds = list_rounds(destination)
    assert [int(round_["high_watermark"]) for round_ in rounds] == [2 * turn + 2 for turn in range(TURNS)]
    named: set[str] = set()
    for entry in rounds:
        named |= {entry["uri"], *objects_of(get_round(destination, int(entry["round_id"])))}
    found = {path for path in objects_below(table.lake.root) if path.startswith(destination.folder)}
    assert found == named, "the one that lost deletes its files"
    assert table.fsck(deep=True) == []


def test_a_process_that_lost_goes_on_with_what_came_meanwhile(table: siltstone.Table) -> None:
    table.write(rows(range(30), "a-"))
    compactors = [Compactor(table.lake.root), Compactor(table.lake.root)]
    for compactor in compactors:
        compactor.tell("1.0")
        assert compactor.hear() == "worked"
    compactors[0].tell("commit")
    assert compactors[0].hear() == "1 0"
    table.write(rows(range(20, 50), "b-"))
    compactors[1].tell("commit")
    assert compactors[1].hear() == "worked", "on the second delta alone"
    compactors[1].tell("commit")
    assert compactors[1].hear() == "1 1"
    assert [compactor.end() for compactor in compactors] == [0, 0]
    completion = completion_of(table)
    assert (completion.round_id, completion.delta_count, completion.high_watermark) == (2, 1, 2)
    check_rows(table)
