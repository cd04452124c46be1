"""How a table is, for people on call: its last error with the cure, its lag, and which way its backlog goes."""

from siltstone.errors import CorruptionError
from siltstone.service import controls
from siltstone.service.backlogs import Trend, trend_of
from siltstone.service.results import BacklogSample
from tests.unit.web.serving import Service

NAME = "shop.orders"


def trend(*sizes: int) -> Trend:
    return trend_of([BacklogSample(cycle, cycle, 1, size, None) for cycle, size in enumerate(sizes)])


def test_the_trend_is_that_of_the_newest_cycles_and_not_of_one() -> None:
    assert trend(10, 20, 30, 40, 50, 60, 70, 80) == "growing"
    assert trend(60, 50, 40, 30, 5, 0, 0, 0) == "shrinking"
    assert trend(100, 120, 80, 110, 90, 100, 130, 80) == "steady"
    assert trend(1, 9, 1, 9, 1, 9, 1, 9) == "steady"
    assert trend(*[0] * 8) == "steady"
    assert trend(1, 2, 3, 4, 5, 6, 7) == "unknown"


def test_a_failing_table_says_why_how_old_its_backlog_is_and_that_it_grows(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    well = service.browser().get(f"/api/tables/{NAME}/health").json()
    assert (well["state"], well["problem"], well["lag_ms"], well["backlog_trend"]) == ("well", None, None, "unknown")
    assert [sample["deltas"] for sample in well["backlogs"]] == [1]

    def fail(*_: object) -> None:
        raise CorruptionError("file x is damaged; rebase the table")

    service.worker._tables.compact = fail  # type: ignore[method-assign, assignment]
    for number in range(7):
        service.write(number)
        service.run_cycle()
    told = service.browser().get(f"/api/tables/{NAME}/health").json()
    assert (told["state"], told["backlog_trend"], told["backlog_deltas"]) == ("failing", "growing", 7)
    assert told["problem"].endswith("rebase the table")
    assert told["failing"]["partitions"][0]["failures"] == 7
    assert told["lag_ms"] >= 0
    assert [sample["deltas"] for sample in told["backlogs"]] == [1, 1, 2, 3, 4, 5, 6, 7]
    assert told["backlogs"][-1]["oldest_at"] == told["backlogs"][1]["oldest_at"]
    controls.pause_table(service.database, NAME)
    assert service.browser().get(f"/api/tables/{NAME}/health").json()["state"] == "paused"
    assert service.browser().get("/api/tables/shop.nothing/health").status_code == 404


def test_a_cycle_in_which_nothing_waited_counts_as_no_backlog(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    service.run_cycle()
    told = service.browser().get(f"/api/tables/{NAME}/health").json()
    assert [sample["deltas"] for sample in told["backlogs"]] == [1, 0]
