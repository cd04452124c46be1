"""One bad table among good ones, on every database: it is left alone for a while, the others are compacted and trimmed."""

import pytest

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.service import controls
from siltstone.service.failures import backoff_seconds
from siltstone.service.history import audit_trail, cycle_records
from siltstone.service.leader import Leader
from siltstone.service.results import CycleRecord
from siltstone.service.settings import QuietHours, ServiceSettings, parse_quiet_hours
from siltstone.service.worker import Worker
from tests.unit.service.cycling import START_MS, World, names_of, status_of

HOUR_MS = 3_600_000


def run_cycle(world: World, leader: Leader, worker: Worker) -> CycleRecord:
    record = world.run_cycle(leader, worker).record
    assert record is not None
    return record


def test_a_table_that_fails_is_tried_ever_less_often_and_the_others_always(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    tried = []
    for _ in range(12):
        world.tables.errors["a"] = [CorruptionError("file x is damaged; rebase")]
        for name in "abc":
            world.tables.write(name)
        record = run_cycle(world, leader, worker)
        assert record.completed == 2
        tried.append(record.failed_tables)
    # After n failures in a row, 2**(n - 1) - 1 cycles go without it.
    assert tried == [1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]
    (failing,) = status_of(world).failing
    assert (failing.table, failing.partitions[0].failures) == ("fake.a", 4)
    assert not status_of(world).is_healthy
    assert status_of(world).health_problem == "1 table fails: fake.a"


def test_a_table_that_is_cured_is_compacted_when_its_time_has_come_and_counts_as_well(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")] * 2
    for _ in range(3):
        run_cycle(world, leader, worker)
    assert "a" not in world.tables.compactions
    run_cycle(world, leader, worker)
    assert "a" in world.tables.compactions
    assert status_of(world).is_healthy
    assert not status_of(world).failing


def test_what_was_dropped_or_cured_by_hand_is_forgotten(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")]
    run_cycle(world, leader, worker)
    assert status_of(world).failing
    world.tables.partitions["a"].watermark = world.tables.partitions["a"].position
    run_cycle(world, leader, worker)
    assert not status_of(world).failing


def test_a_clock_that_is_set_back_does_not_make_a_table_wait_for_it(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")] * 3
    for _ in range(2):
        run_cycle(world, leader, worker)
    world.clock.step(-48 * 3600)
    leader.tick()
    world.due()
    leader.tick()
    assert "a" in world.rows


def test_the_others_are_trimmed_though_the_cycle_failed(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")]
    assert run_cycle(world, leader, worker).status == "FAILED"
    world.due()
    assert leader.tick().action == "begun"
    assert {name: each.trimmed for name, each in world.tables.partitions.items()} == {"a": 0, "b": 2, "c": 3}


def test_a_trim_that_was_asked_for_follows_a_cycle_that_failed(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")]
    request = controls.trigger_cycle(world.database, trim=True)
    assert leader.tick().action == "begun"
    while worker.step():
        pass
    leader.tick()
    answer = controls.get_request(world.database, request.request_id)
    assert (answer.state, answer.outcome) == ("DONE", "FAILED")
    assert world.tables.partitions["b"].trimmed == 2


def test_a_failing_table_begins_no_cycle_by_its_backlog(world: World) -> None:
    world.settings = ServiceSettings(retry_pause_seconds=0, backlog_bytes=1000, backlog_check_seconds=0)
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")] * 9
    for _ in range(2):
        run_cycle(world, leader, worker)
    world.tables.write("a", 100)
    world.clock.advance(61)
    assert leader.tick().action == "waits"
    world.tables.write("b", 100)
    assert leader.tick().action == "begun"
    assert set(world.rows) == {"b"}


def test_pauses_double_up_to_a_limit() -> None:
    settings = ServiceSettings(interval_seconds=900, max_backoff_seconds=6 * 3600)
    assert [backoff_seconds(count, settings) / 900 for count in range(1, 8)] == [0.5, 1.5, 3.5, 7.5, 15.5, 24, 24]
    assert backoff_seconds(10**9, settings) == 6 * 3600


# Pausing


def test_a_paused_table_is_in_no_cycle_until_it_is_resumed(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    pause = controls.pause_table(world.database, "fake.a", requester="ann")
    assert controls.pause_table(world.database, "fake.a", requester="bob") == pause, "it is paused once"
    run_cycle(world, leader, worker)
    assert world.rows.keys() == {"b", "c"}
    assert list(status_of(world).paused) == [pause]
    assert controls.resume_table(world.database, "fake.a")
    assert not controls.resume_table(world.database, "fake.a")
    run_cycle(world, leader, worker)
    assert world.rows.keys() == {"a"}


def test_a_table_that_fails_and_is_paused_does_not_count(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")]
    run_cycle(world, leader, worker)
    controls.pause_table(world.database, "fake.a")
    assert status_of(world).is_healthy
    assert status_of(world).failing, "it is shown still"


# One table now


def test_a_cycle_of_one_table_leaves_the_others_and_their_interval_alone(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    due_at = status_of(world).next_due_at
    request = controls.trigger_cycle(world.database, tables=["fake.b"])
    assert leader.tick().action == "begun"
    assert world.rows == {"b": "IDLE"}
    while worker.step():
        pass
    leader.tick()
    assert controls.get_request(world.database, request.request_id).outcome == "COMPLETED"
    assert status_of(world).next_due_at == due_at


def test_a_cycle_that_is_due_for_all_takes_requests_for_one_along(world: World) -> None:
    leader = world.leader()
    leader.tick()
    controls.trigger_cycle(world.database, tables=["fake.b"])
    controls.trigger_cycle(world.database)
    assert leader.tick().action == "begun"
    assert world.rows.keys() == {"a", "b", "c"}


def test_a_table_that_waits_after_failures_is_tried_when_asked_for(world: World) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    world.tables.errors["a"] = [CorruptionError("damaged")] * 2
    for _ in range(2):
        run_cycle(world, leader, worker)
    controls.trigger_cycle(world.database, tables=["fake.a"])
    assert leader.tick().action == "begun"
    assert world.rows == {"a": "IDLE"}


def test_a_paused_table_cannot_be_asked_for(world: World) -> None:
    controls.pause_table(world.database, "fake.a")
    with pytest.raises(InvalidInputError, match=r"fake\.a: is paused; `siltstone cycle resume fake\.a` first"):
        controls.trigger_cycle(world.database, tables=["fake.a"])


# Cycles that somebody stops


def test_a_stopped_cycle_is_failed_by_name_but_counts_neither_for_health_nor_among_failures(world: World) -> None:
    leader = world.begin()
    controls.disable(world.database, requester="ann")
    leader.tick()
    (record,) = cycle_records(world.database)
    assert (record.status, record.failure_reason, record.outcome) == ("FAILED", "disabled", "STOPPED")
    status = status_of(world)
    assert (status.outcome, status.is_healthy, status.failing) == ("STOPPED", True, [])
    assert (status.totals.failed_cycles, status.totals.stopped_cycles) == (0, 1)


def test_a_cycle_that_nobody_works_on_is_a_failure_of_the_service_not_of_tables(world: World) -> None:
    leader = world.begin()
    tick = world.watch(leader, world.settings.stall_seconds + 1)
    assert tick.record is not None
    assert (tick.record.failure_reason, tick.record.failed_tables) == ("stalled", 0)
    status = status_of(world)
    assert not status.failing
    assert status.health_problem == "the last cycle ended because no worker claimed what was left"


# In which order, how much at once, and when not


def test_tables_of_a_higher_priority_come_first_and_a_large_one_does_not_keep_others_waiting(world: World) -> None:
    world.tables.partitions.clear()
    world.settings = ServiceSettings(claim_partitions=1, backlog_bytes=None)
    for name, count in {"large/1": 90, "large/2": 90, "large/3": 90, "small": 1, "middle": 5, "urgent": 1}.items():
        world.tables.write(name, count)
    world.tables.priorities["urgent"] = 7
    world.begin()
    order = [names_of(world.claim(f"worker{number}"))[0] for number in range(6)]
    assert order == ["urgent", "large/1", "middle", "small", "large/2", "large/3"]


def test_no_more_is_claimed_at_once_than_the_limits_say(world: World) -> None:
    world.settings = ServiceSettings(max_claims=2, backlog_bytes=None)
    world.begin()
    first = world.claim("one")
    world.claim("two")
    assert not world.worker().step()
    world.release(first)
    assert world.worker().step()


def test_no_more_bytes_are_claimed_at_once_than_the_limits_say(world: World) -> None:
    world.settings = ServiceSettings(max_claimed_bytes=450, backlog_bytes=None)
    world.begin()
    assert names_of(world.claim("one")) == ["c"]
    assert not world.worker().step(), "c has 300 bytes, b 200"


@pytest.mark.parametrize(
    ("text", "hours", "quiet", "loud"),
    [("08:00-18:30", (480, 1110), [8, 12, 18], [7, 19, 0]), ("22:00-06:00", (1320, 360), [22, 23, 0, 5], [6, 12, 21])],
)
def test_quiet_hours_are_a_time_of_day_that_may_go_over_midnight(
    text: str, hours: tuple[int, int], quiet: list[int], loud: list[int]
) -> None:
    found = parse_quiet_hours(text)
    assert found == QuietHours(*hours)
    assert str(found) == text
    assert all(found.is_quiet(hour * HOUR_MS) for hour in quiet)
    assert not any(found.is_quiet(hour * HOUR_MS) for hour in loud)
    assert all(not found.is_quiet(found.over_at(hour * HOUR_MS)) for hour in quiet)


@pytest.mark.parametrize("text", ["", "8-18", "25:00-06:00", "08:00-08:00", "08:60-09:00"])
def test_quiet_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="quiet hours"):
        parse_quiet_hours(text)


def test_in_quiet_hours_only_requests_begin_a_cycle(world: World) -> None:
    now = START_MS // 60_000 % (24 * 60)
    world.settings = ServiceSettings(backlog_bytes=None, quiet_hours=QuietHours(now, (now + 120) % (24 * 60)))
    leader = world.leader()
    leader.tick()
    world.due()
    assert leader.tick().action == "waits"
    due_at = status_of(world).next_due_at
    assert due_at is not None
    assert START_MS + 119 * 60_000 < due_at <= START_MS + 121 * 60_000
    controls.trigger_cycle(world.database)
    assert leader.tick().action == "begun"


# Who did what


def test_the_audit_trail_says_who_asked_for_what(world: World) -> None:
    controls.trigger_cycle(world.database, requester="ann")
    controls.trigger_cycle(world.database, trim=True, tables=["fake.b"], requester="bob")
    controls.freeze(world.database, seconds=60, requester="ann")
    controls.unfreeze(world.database, requester="bob")
    controls.unfreeze(world.database, requester="carl")
    controls.disable(world.database, requester="ann")
    controls.enable(world.database, requester="bob")
    controls.pause_table(world.database, "fake.a", requester="ann")
    controls.resume_table(world.database, "fake.a", requester="bob")
    entries = audit_trail(world.database)
    assert [(entry.action, entry.requester) for entry in reversed(entries)] == [
        ("trigger", "ann"),
        ("trigger and trim", "bob"),
        ("freeze", "ann"),
        ("unfreeze", "bob"),
        ("disable", "ann"),
        ("enable", "bob"),
        ("pause", "ann"),
        ("resume", "bob"),
    ]
    assert entries[-2].about == "fake.b"
    assert all(entry.at == START_MS for entry in entries)
