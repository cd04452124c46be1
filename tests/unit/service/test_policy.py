"""When a cycle begins."""

from dataclasses import replace

import pytest

from siltstone.errors import InvalidInputError
from siltstone.service.leader import Backlog, Situation, decide
from siltstone.service.schema import FailureReason
from siltstone.service.settings import ServiceSettings

NOW = 10_000_000
QUIET = Situation(
    now_ms=NOW,
    status="COMPLETED",
    is_disabled=False,
    is_frozen=False,
    has_requests=False,
    last_started_at=NOW - 100_000,
    ended_at=NOW - 90_000,
)
LIMITS = ServiceSettings(interval_seconds=900, backlog_bytes=1000, backlog_age_seconds=300, min_pause_seconds=60)
NOTHING = Backlog(0, None)


def decided(situation: Situation, backlog: Backlog | None = NOTHING, settings: ServiceSettings = LIMITS) -> str | None:
    return decide(situation, settings, lambda: backlog)


def test_nothing_happens_by_itself() -> None:
    assert decided(QUIET) is None


def test_the_interval_counts_from_start_to_start_and_must_be_over() -> None:
    assert decided(replace(QUIET, last_started_at=NOW - 900_000)) is None
    assert decided(replace(QUIET, last_started_at=NOW - 900_001)) == "interval"


def test_a_request_needs_no_interval() -> None:
    assert decided(replace(QUIET, has_requests=True)) == "request"


@pytest.mark.parametrize("blocked", [{"is_disabled": True}, {"is_frozen": True}, {"status": "STARTED"}])
def test_nothing_begins_while_disabled_frozen_or_running(blocked: dict[str, object]) -> None:
    due = replace(QUIET, last_started_at=0, has_requests=True)
    assert decided(replace(due, **blocked), Backlog(10**12, 0)) is None  # type: ignore[arg-type]


def test_much_waiting_begins_a_cycle_before_its_time() -> None:
    assert decided(QUIET, Backlog(999, None)) is None
    assert decided(QUIET, Backlog(1000, None)) == "backlog_bytes"


def test_long_waiting_begins_a_cycle_before_its_time() -> None:
    assert decided(QUIET, Backlog(1, NOW - 299_999)) is None
    assert decided(QUIET, Backlog(1, NOW - 300_000)) == "backlog_age"


def test_a_backlog_waits_for_the_pause_after_the_last_cycle() -> None:
    much = Backlog(10**9, 0)
    assert decided(replace(QUIET, ended_at=NOW - 60_000), much) is None
    assert decided(replace(QUIET, ended_at=NOW - 60_001), much) == "backlog_bytes"
    assert decided(replace(QUIET, ended_at=None, status="IDLE"), much) == "backlog_bytes"


def test_after_a_cycle_that_nobody_worked_on_a_backlog_waits_for_the_interval() -> None:
    stalled = replace(QUIET, status="FAILED", failure_reason="stalled")
    assert decided(stalled, Backlog(10**9, 0)) is None
    assert decided(replace(stalled, last_started_at=0), Backlog(10**9, 0)) == "interval"


@pytest.mark.parametrize("reason", ["partitions", "disabled"])
def test_after_other_failures_a_backlog_begins_a_cycle(reason: FailureReason) -> None:
    assert decided(replace(QUIET, status="FAILED", failure_reason=reason), Backlog(10**9, 0)) == "backlog_bytes"


def test_the_backlog_is_measured_only_where_it_decides() -> None:
    def measure() -> Backlog:
        raise AssertionError("measured")

    assert decide(replace(QUIET, has_requests=True), LIMITS, measure) == "request"
    assert decide(QUIET, ServiceSettings(backlog_bytes=None), measure) is None
    assert decided(QUIET, None) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval_seconds": 0}, "interval_seconds is 0"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"heartbeat_seconds": 40}, "one late heartbeat"),
        ({"tick_seconds": 30}, "one late tick"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ServiceSettings(**wrong)  # type: ignore[arg-type]
