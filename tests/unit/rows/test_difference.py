"""What differs between states: rounds that move rows tell what died, and what they tell is only a shortcut."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.objects import open_objects
from siltstone.rows.files import StoredFile
from tests.unit.rounds.compaction import MAJOR, MINOR, compact, completion_of, make_table, rows

ROWS = 400


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> siltstone.Table:
    """Return a table of four rounds: many rows; an update, an insert and a delete; another update, by rewriting; and again."""
    made = make_table(str(tmp_path / "lake"))
    monkeypatch.setattr("siltstone.rows.deaths._MOST_INLINE", 10)
    made.write(rows(range(ROWS)))
    compact(made)
    made.write(rows([1, ROWS], "x"))
    made.write(pa.table({"id": [2]}), "delete")
    compact(made, MINOR)
    made.write(rows([1, 3], "y"))
    compact(made, MAJOR)
    made.write(rows([1, 2, ROWS], "z"))
    made.write(pa.table({"id": [3]}), "delete")
    compact(made, MAJOR)
    return made


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many rows are read, each time that any are."""
    counts: list[int] = []
    read_rows = StoredFile.read_rows

    def counted(file: StoredFile, numbers: Any, schema: pa.Schema) -> pa.Table:
        counts.append(len(numbers))
        return read_rows(file, numbers, schema)

    monkeypatch.setattr(StoredFile, "read_rows", counted)
    return counts


def told(changes: Any) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["_change_type"], row["v"]) for row in changes.to_arrow().to_pylist())


THIRD = [(1, "update_after", "y1"), (1, "update_before", "x1"), (3, "update_after", "y3"), (3, "update_before", "3")]
ALL = [
    (1, "update_after", "z1"),
    (1, "update_before", "1"),
    (2, "update_after", "z2"),
    (2, "update_before", "2"),
    (3, "delete", "3"),
    (ROWS, "insert", f"z{ROWS}"),
]


def test_changes_of_a_round_that_rewrote_all_read_what_changed(table: siltstone.Table, read: list[int]) -> None:
    assert told(table.changes("round:2", "round:3")) == THIRD
    assert sum(read) == len(THIRD)


def test_a_small_record_is_in_the_round_completion(table: siltstone.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    table.write(rows([5], "w"))
    compact(table, MAJOR)
    deaths = completion_of(table).deaths
    assert deaths is not None
    assert deaths.uri is None
    assert told(table.changes("round:4")) == [(5, "update_after", "w5"), (5, "update_before", "5")]


def test_rounds_that_rewrote_are_netted_without_what_they_moved(table: siltstone.Table, read: list[int]) -> None:
    assert told(table.changes("round:1")) == ALL
    assert sum(read) < 20
    by_round = table.changes("round:1", net=False).to_arrow()
    assert sorted(set(by_round["_round"].to_pylist())) == [2, 3, 4]


@pytest.mark.parametrize("damage", [None, b"nonsense"])
def test_a_record_that_is_missing_or_damaged_costs_time_only(
    table: siltstone.Table, read: list[int], damage: bytes | None
) -> None:
    deaths = completion_of(table).deaths
    assert deaths is not None
    assert deaths.uri is not None
    objects = open_objects(table.lake.root)
    objects.delete([deaths.uri])
    if damage is not None:
        objects.create(deaths.uri, damage)
    assert told(table.changes("round:1")) == ALL
    assert sum(read) > ROWS
    assert not table.fsck(deep=True)


def test_a_record_that_does_not_add_up_is_left_aside(
    table: siltstone.Table, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.table.change_feed.read_deaths", lambda *_: {})
    assert told(table.changes("round:1")) == ALL
    assert sum(read) > ROWS


def test_a_record_is_kept_as_long_as_its_round(table: siltstone.Table) -> None:
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    deaths = completion_of(table).deaths
    assert deaths is not None
    stored = [each.path for each in open_objects(table.lake.root).list_objects("", recursive=True)]
    assert [path for path in stored if path.endswith(".died")] == [deaths.uri]
    table.write(rows([1]))
    compact(table)
    rolled_back = table.rollback(4)
    assert rolled_back.deaths is None
