"""The service takes files that tables declare by their properties, on the node that leads."""

import json
import logging
import os
from pathlib import Path

import pytest

import siltstone
from siltstone import clock
from siltstone.errors import InvalidInputError
from siltstone.service.ingests import Ingests, declared_ingest
from tests.waiting import wait_for

LONG_AGO = 1_700_000_000


class Place:
    """A lake with a table that declares a folder."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "drops"
        self.folder.mkdir()
        self.lake = siltstone.open(tmp_path / "lake")
        self.lake.create_table("shop.other", schema={"id": "int64"})
        self.table = self.lake.create_table(
            "shop.orders", schema={"id": "int64"}, properties={"ingest.source": str(self.folder), "ingest.done": "move"}
        )

    def drop(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        os.utime(self.folder / name, (LONG_AGO, LONG_AGO))


class SteppedClock(clock.SystemClock):
    """A clock whose time passes when it is told."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_declared_folders_are_looked_at_when_they_are_due(place: Place) -> None:
    ingests = Ingests(place.lake, lambda: True)
    place.drop("a.jsonl", '{"id": 1}')
    with clock.replaced(stepped := SteppedClock()):
        assert [taken.files for taken in ingests.step()] == [1]
        place.drop("b.jsonl", '{"id": 2}')
        assert ingests.step() == []
        stepped.seconds += 10
        assert [taken.files for taken in ingests.step()] == [1]
        place.table.alter(properties={"ingest.every_seconds": "100"})
        stepped.seconds += 30
        ingests.step()
        stepped.seconds += 50
        assert ingests.step() == []
        place.table.alter(properties={"ingest.source": None})
        stepped.seconds += 100
        assert ingests.step() == []
    assert sorted(os.listdir(place.folder / "done")) == ["a.jsonl", "b.jsonl"]


def test_a_table_that_was_renamed_goes_on_where_it_was(place: Place) -> None:
    place.drop("a.jsonl", '{"id": 1}')
    place.table.alter(properties={"ingest.done": None})
    with clock.replaced(stepped := SteppedClock()):
        ingests = Ingests(place.lake, lambda: True)
        ingests.step()
        renamed = place.table.rename("shop.sales")
        stepped.seconds += 31
        assert [(taken.table, taken.files) for taken in ingests.step()] == [("shop.sales", 0)]
    (report,) = renamed.ingests()
    assert report.files == 1


def test_a_failure_is_kept_and_logged_once_and_does_not_stop_the_others(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inside = f"{place.lake.root}/catalog"
    place.lake.table("shop.other").alter(properties={"ingest.source": inside})
    place.drop("a.jsonl", "{")
    with clock.replaced(stepped := SteppedClock()), caplog.at_level(logging.WARNING):
        ingests = Ingests(place.lake, lambda: True)
        for _ in range(3):
            assert ingests.step() == []
            stepped.seconds += 61
        assert len([record for record in caplog.records if record.message == "files not taken"]) == 2
        (report,) = place.lake.table("shop.other").ingests()
        assert (report.source, report.files) == (inside, 0)
        assert "is inside the lake" in (report.error or "")
        (report,) = place.table.ingests()
        assert "a.jsonl" in (report.error or "")
        place.table.alter(properties={"ingest.quarantine": "true"})
        stepped.seconds += 61
        assert [len(taken.rejected) for taken in ingests.step()] == [1]
        (report,) = place.table.ingests()
        assert (report.error, report.rejected) == (None, 1)


def test_only_the_node_that_leads_takes_files(place: Place) -> None:
    place.drop("a.jsonl", '{"id": 1}')
    is_leading = False
    asked: list[None] = []

    def leads() -> bool:
        asked.append(None)
        return is_leading

    ingests = Ingests(place.lake, leads)
    ingests.start()
    try:
        wait_for("two looks", lambda: len(asked) > 1)
        assert place.table.deltas() == []
        is_leading = True
        wait_for("the file", place.table.deltas)
        assert ingests.is_running
    finally:
        ingests.stop(60)
    assert not ingests.is_running


def test_what_properties_declare_is_checked() -> None:
    properties = {
        "ingest.source": "/drops",
        "ingest.format": "csv",
        "ingest.pattern": "*.txt",
        "ingest.op_column": "op",
    }
    declared = declared_ingest(properties, "shop.orders")
    assert declared is not None
    assert (declared.source, declared.every_seconds, declared.options.pattern) == ("/drops", 10, "*.txt")
    assert json.dumps(dict(declared.options.how)) == '{"format": "csv", "op_column": "op"}'
    assert declared_ingest({"ingest.format": "csv"}, "shop.orders") is None
    with pytest.raises(InvalidInputError, match=r"ingest\.done is 'burn'; give `keep`, `move` or `delete`"):
        declared_ingest({**properties, "ingest.done": "burn"}, "shop.orders")
