"""Files that are missing are noticed within a day, also in partitions in which nothing changes."""

from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.rows.merge import run_here
from siltstone.service import daily_checks
from siltstone.service.lake_tables import LakeTables
from siltstone.table.completion import Destination, check_whole, current_completion

HOUR = 3600.0
DAYS = [f"day{number}" for number in range(5)]


class Clock:
    """A clock that only goes forward, when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(daily_checks, "monotonic", made)
    return made


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions whose files were looked for."""
    names: list[str] = []

    def noted(destination: Destination, completion: object) -> None:
        names.append(str(destination.locator.partition_values[0]))
        check_whole(destination, completion)  # type: ignore[arg-type]

    monkeypatch.setattr(daily_checks, "check_whole", noted)
    return names


@pytest.fixture
def visits(local_root: str) -> siltstone.Table:
    table = siltstone.open(local_root).create_table(
        "web.visits", schema={"day": "string", "id": "int64"}, primary_keys=["day", "id"], partition_keys=["day"]
    )
    table.write(pa.table({"day": DAYS, "id": range(5)}))
    table.compact(engine="local")
    return table


def look(tables: LakeTables) -> list[tuple[str, str]]:
    """Look for work, and return what is wrong, by partition."""
    return [(each.name.rpartition("/")[2], each.problem or "") for each in tables.find_work(lambda: None)]


def test_a_missing_file_is_noticed_in_a_partition_that_nobody_writes_to(
    visits: siltstone.Table, clock: Clock, checked: list[str]
) -> None:
    tables = LakeTables(visits.lake, engine=run_here)
    assert look(tables) == []
    assert checked == DAYS
    lost = Path(visits.lake.root, visits.current_rounds()[2].files[0].uri)
    content = lost.read_bytes()
    lost.unlink()
    clock.now += 23 * HOUR
    assert look(tables) == []
    assert checked == DAYS, "each once a day"
    clock.now += HOUR
    for _ in range(2):
        ((partition, problem),) = look(tables)
        assert partition == DAYS[2]
        assert lost.name in problem
    assert checked == [*DAYS, *DAYS, DAYS[2]], "one that is damaged stays so until it is found whole"
    lost.write_bytes(content)
    assert look(tables) == []


def test_a_pass_checks_some_partitions_and_as_many_as_get_all_of_them_done_in_a_day(
    visits: siltstone.Table, clock: Clock, checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daily_checks, "_LEAST_A_PASS", 1)
    tables = LakeTables(visits.lake, engine=run_here)
    for number in range(1, 4):
        look(tables)
        assert checked == DAYS[:number]
    monkeypatch.setattr(daily_checks, "_PASSES_A_DAY", 2)
    look(tables)
    assert checked == DAYS
    look(tables)
    assert checked == DAYS


def test_what_another_round_has_replaced_meanwhile_is_not_missed(
    visits: siltstone.Table, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = LakeTables(visits.lake, engine=run_here)
    raced: list[int] = []

    def slow(destination: Destination, entry: dict[str, object]) -> object:
        found = current_completion(destination, entry)
        if not raced:
            raced.append(1)
            visits.write(pa.table({"day": DAYS[:1], "id": [0]}))
            visits.compact(engine="local", full=True)
            visits.vacuum(retention_ms=0, orphan_grace_ms=0)
        return found

    monkeypatch.setattr(daily_checks, "current_completion", slow)
    assert look(tables) == []
    assert raced
