"""What a cycle is, on every database: who may begin, claim, release and finish, and what is left afterwards."""

import dataclasses
import threading
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from siltstone.errors import (
    AccessDeniedError,
    CorruptionError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
    StorageError,
)
from siltstone.rounds.request import MAX_ROUND_BYTES
from siltstone.rounds.session import JOINT_ROUNDS
from siltstone.service import controls, leader
from siltstone.service.claims import Beat, claim_table, most_partitions, send_heartbeat
from siltstone.service.cycles import begin_cycle, check_lead, finish_cycle, take_lead
from siltstone.service.history import cycle_details, cycle_records
from siltstone.service.results import CheckpointResult, FailedPartition
from siltstone.service.schema import active_checkpoints, cycle_history, manager
from siltstone.service.settings import ServiceSettings
from siltstone.service.worker import Handover, Heartbeat, Worker
from siltstone.testing import Killed
from tests.unit.service.cycling import World, count_rows, locator, names_of, status_of

# Beginning


def test_a_second_begin_is_refused_while_a_cycle_runs(world: World) -> None:
    first = world.begin()
    assert first.lease is not None
    assert begin_cycle(world.database, first.lease, [], "interval", "again") is None
    assert world.status == "STARTED"
    assert world.rows == {"a": "IDLE", "b": "IDLE", "c": "IDLE"}


def test_of_two_that_begin_at_once_exactly_one_does(world: World) -> None:
    one = world.leader()
    one.tick()
    lease = one.lease
    assert lease is not None
    results: list[object] = []
    barrier = threading.Barrier(2)

    def begin() -> None:
        barrier.wait()
        results.append(begin_cycle(world.database, lease, world.tables.find_work(lambda: None), "interval", "node"))

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result is None for result in results) == [False, True]
    assert len(world.rows) == 3


def test_of_two_nodes_that_want_the_lead_at_once_exactly_one_gets_it(world: World) -> None:
    leases: list[object] = []
    barrier = threading.Barrier(4)

    def take(name: str) -> None:
        barrier.wait()
        leases.append(take_lead(world.database, name, 1000))

    threads = [threading.Thread(target=take, args=(f"node{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lease is not None for lease in leases) == 1


def test_a_cycle_begins_after_a_failed_one(world: World) -> None:
    one = world.begin()
    tick = world.watch(one, world.settings.stall_seconds + 1)
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    world.due()
    assert one.tick().action == "begun"
    assert status_of(world).cycle_count == 2


def test_without_a_trigger_nothing_begins(world: World) -> None:
    one = world.leader()
    for _ in range(3):
        assert one.tick().action == "waits"
        world.clock.advance(10)
    assert world.status == "IDLE"
    assert status_of(world).cycle_count == 0


def test_a_node_that_does_not_lead_creates_nothing(world: World) -> None:
    assert take_lead(world.database, "another", 1_000_000) is not None
    follower = world.leader()
    world.clock.advance(10)
    assert follower.tick().action == "follows"
    assert not world.worker().step()
    assert world.status is None
    assert count_rows(world.database) == (0, 0)


def test_the_manager_cannot_be_read_and_nothing_begins(world: World) -> None:
    one = world.leader()
    one.tick()
    world.due()
    world.database.faults = [None, "fail", "fail", "fail", "fail", "fail", "fail"]
    with pytest.raises(StorageError, match="could not read the state of the cycle"):
        one.tick()
    world.database.faults = []
    assert world.status == "IDLE"
    assert one.tick().action == "begun"


def test_a_failure_that_passes_is_not_noticed(world: World) -> None:
    one = world.leader()
    one.tick()
    world.due()
    world.database.faults = ["fail", "fail", None, "fail", None, "lose"]
    assert one.tick().action in ("begun", "waits")
    assert world.status == "STARTED"
    assert status_of(world).cycle_count == 1


def test_the_list_of_tables_cannot_be_read_and_the_next_tick_tries_again(world: World) -> None:
    one = world.leader()
    one.tick()
    world.due()
    world.tables.listing_error = StorageError("no answer")
    with pytest.raises(StorageError, match="no answer"):
        one.tick()
    assert world.status == "IDLE"
    world.tables.listing_error = None
    assert one.tick().action == "begun"


def test_one_broken_table_fails_the_cycle_but_does_not_keep_others_from_compaction(world: World) -> None:
    world.tables.problems["broken"] = "its log is damaged"
    one = world.leader()
    one.tick()
    tick = world.run_cycle(one, world.worker())
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    assert (tick.record.completed, tick.record.failed) == (3, 1)
    assert list(tick.record.failed_partitions) == [FailedPartition("fake.broken", "its log is damaged")]


def test_a_cycle_with_nothing_to_do_is_completed(world: World) -> None:
    world.tables.partitions.clear()
    one = world.begin()
    tick = one.tick()
    assert tick.record is not None
    assert (tick.record.status, tick.record.partitions) == ("COMPLETED", 0)


def test_partitions_without_new_deltas_are_left_out(world: World) -> None:
    world.tables.partitions["b"].watermark = world.tables.partitions["b"].position
    world.begin()
    assert sorted(world.rows) == ["a", "c"]


# Working


def test_one_node_completes_a_cycle(world: World) -> None:
    one = world.leader("one")
    one.tick()
    tick = world.run_cycle(one, world.worker())
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    assert world.rows == dict.fromkeys("abc", "COMPLETED")
    assert world.tables.compactions == ["c", "b", "a"]
    status = status_of(world)
    assert status.last_completed_at == world.clock.now_ms
    assert status.totals.completed_cycles == 1
    assert status.totals.rows == tick.record.rows == 6


def test_two_nodes_claim_each_table_once(world: World) -> None:
    for name in "defghij":
        world.tables.write(name)
    one = world.begin()
    workers = [world.worker() for _ in range(3)]
    threads = [
        threading.Thread(target=lambda worker=worker: [None for _ in iter(worker.step, False)]) for worker in workers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        while worker.step():
            pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    assert sorted(world.tables.compactions) == list("abcdefghij")
    assert tick.record.attempts == 10


def test_without_a_leader_that_looks_the_cycle_stays_open(world: World) -> None:
    world.begin()
    worker = world.worker()
    while worker.step():
        pass
    assert world.rows == dict.fromkeys("abc", "COMPLETED")
    assert world.status == "STARTED"


def test_finishing_with_nothing_done_is_a_failure(world: World) -> None:
    one = world.begin()
    assert one.lease is not None
    record = finish_cycle(world.database, one.lease, 1)
    assert record is not None
    assert (record.status, record.unfinished) == ("FAILED", 3)
    assert world.rows == dict.fromkeys("abc", "IDLE")
    assert {each.status for each in cycle_details(world.database, 1).timeline} == {"IDLE"}


def test_a_table_dropped_during_the_cycle_does_not_fail_it(world: World) -> None:
    one = world.begin()
    del world.tables.partitions["b"]
    worker = world.worker()
    while worker.step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"


def test_what_was_written_after_the_start_is_checkpointed_as_far_as_it_was_read(world: World) -> None:
    one = world.begin()
    worker = world.worker()
    world.tables.while_compacting = lambda: world.tables.write("c", 5)
    worker.step()
    world.tables.while_compacting = None
    while worker.step():
        pass
    one.tick()
    marks = {checkpoint.table: checkpoint.high_watermark for checkpoint in status_of(world).checkpoints}
    assert marks["fake.c"] == 3
    assert world.tables.partitions["c"].position == 8


# Dying


def test_a_new_leader_completes_the_cycle_of_one_that_died(world: World) -> None:
    world.begin(world.leader("first"))
    started_at = status_of(world).started_at
    worker = world.worker()
    worker.step()
    second = world.leader("second")
    assert second.tick().action == "follows"
    world.clock.advance(world.settings.leader_lease_seconds + 1)
    assert second.tick().action == "watches"
    while worker.step():
        pass
    tick = second.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    assert tick.record.start_time_ms == started_at
    assert tick.record.leader == "first"
    assert tick.record.end_time_ms == world.clock.now_ms


def test_a_partition_of_a_dead_worker_is_compacted_by_another(world: World) -> None:
    one = world.begin()
    dead = world.claim("dead")
    other = world.worker("other")
    while other.step():
        pass
    assert world.rows["c"] == "STARTED"
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    assert list(one.tick().evicted) == [dead.partitions[0].name]
    assert world.rows["c"] == "IDLE"
    assert other.step()
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    tries = [each for each in cycle_details(world.database, 1).timeline if each.table == "fake.c"]
    assert [(try_.attempt, try_.worker, try_.status) for try_ in tries] == [
        (1, "dead", "EXPIRED"),
        (2, "other", "COMPLETED"),
    ]
    assert status_of(world).totals.evictions == 1


def test_a_partition_that_kills_every_worker_fails_in_the_end_and_alone(world: World) -> None:
    one = world.begin()
    other = world.worker()
    for number in range(world.settings.max_attempts):
        doomed = claim_table(world.database, f"doomed{number}#1", world.settings)
        assert doomed is not None
        assert doomed.table == "fake.c"
        world.clock.advance(world.settings.claim_lease_seconds + 1)
        assert one.tick().evicted
    while other.step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    assert world.rows == {"a": "COMPLETED", "b": "COMPLETED", "c": "FAILED"}
    (problem,) = tick.record.failed_partitions
    assert "the claim of doomed2 expired: it sent no heartbeat in time; tried 3 times" in problem.error


def test_a_forged_claim_without_progress_delays_the_cycle_but_does_not_end_it(world: World) -> None:
    one = world.begin()
    request = controls.trigger_cycle(world.database)
    claim = world.claim("forger")
    worker = world.worker()
    while worker.step():
        pass
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    one.tick()
    worker.step()
    assert one.tick().action == "finished"
    assert not world.release(claim)
    assert one.tick().begun is not None
    assert controls.get_request(world.database, request.request_id).state == "RUNNING"


def test_a_claim_lives_as_long_as_its_heartbeats(world: World) -> None:
    one = world.begin()
    claim = world.claim()
    for beats in range(1, 10):
        world.clock.advance(world.settings.claim_lease_seconds - 1)
        assert send_heartbeat(world.database, claim, Beat(beats), world.settings)
        assert not one.tick().evicted
    (active,) = [checkpoint for checkpoint in status_of(world).checkpoints if checkpoint.status == "STARTED"]
    assert active.heartbeats == 9
    assert world.release(claim)


def test_a_claim_holds_until_its_lease_is_over_and_not_longer(world: World) -> None:
    one = world.begin()
    world.claim()
    world.clock.advance(world.settings.claim_lease_seconds)
    assert not one.tick().evicted
    world.clock.advance(0.001)
    assert one.tick().evicted


def test_a_worker_that_is_alive_but_stuck_loses_its_claim(world: World) -> None:
    one = world.begin()
    claim = world.claim("stuck")
    waited = 0.0
    while waited <= world.settings.stuck_seconds:
        assert not one.tick().evicted
        world.clock.advance(30)
        waited += 30
        assert send_heartbeat(world.database, claim, Beat(progress=1), world.settings)
    world.clock.advance(30)
    assert send_heartbeat(world.database, claim, Beat(progress=1), world.settings)
    assert list(one.tick().evicted) == [claim.partitions[0].name]
    assert not send_heartbeat(world.database, claim, Beat(progress=2), world.settings)
    assert "made no progress" in str(cycle_details(world.database, 1).timeline[0].error)


def test_a_cycle_that_nobody_works_on_fails_after_the_time_for_it(world: World) -> None:
    one = world.begin()
    assert one.tick().action == "watches"
    assert world.watch(one, world.settings.stall_seconds).action == "watches"
    world.clock.advance(0.001)
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    assert {failed_partition.error for failed_partition in tick.record.failed_partitions} == {
        "no worker claimed it in time"
    }


def test_workers_that_were_down_together_with_all_leaders_get_time_to_come_back(world: World) -> None:
    world.begin()
    world.clock.advance(24 * 3600)
    back = world.leader()
    assert back.tick().action == "watches"
    worker = world.worker()
    while worker.step():
        pass
    tick = back.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"


def test_a_leader_that_overslept_its_lease_commits_nothing(world: World) -> None:
    old, new = world.leader("old"), world.leader("new")
    old.tick()
    world.due()
    old.tick()

    def oversleep() -> None:
        world.clock.advance(world.settings.leader_lease_seconds + 1)
        assert new.tick().action == "watches"

    lease = old.lease
    assert lease is not None
    oversleep()
    with pytest.raises(LeaseLostError, match="its term is 2, the newest is 3"):
        finish_cycle(world.database, dataclasses.replace(lease, term=2), 1)
    assert old.tick().action == "follows"
    assert world.status == "STARTED"


def test_a_leader_that_falls_asleep_while_it_looks_for_work_does_not_begin_a_second_cycle(world: World) -> None:
    old, new = world.leader("old"), world.leader("new")
    old.tick()

    def oversleep() -> None:
        world.clock.advance(world.settings.leader_lease_seconds + 1)
        assert new.tick().action == "begun"

    world.due()
    world.tables.while_finding = oversleep
    assert old.tick().action == "follows"
    status = status_of(world)
    assert (status.cycle_count, status.cycle_leader) == (1, "new")


def test_the_lead_can_be_given_up_at_once(world: World) -> None:
    old, new = world.leader("old"), world.leader("new")
    old.tick()
    old.resign()
    world.clock.advance(0.001)
    assert new.tick().action == "waits"
    assert old.tick().action == "follows"


def test_a_lease_that_ran_out_is_no_lead_even_if_nobody_took_it(world: World) -> None:
    lease = take_lead(world.database, "one", 1000)
    assert lease is not None
    world.clock.advance(1)
    assert world.database.change("check", lambda transaction: check_lead(transaction, lease)) == world.clock.now_ms
    world.clock.advance(0.001)
    with pytest.raises(LeaseLostError):
        world.database.change("check", lambda transaction: check_lead(transaction, lease))


# Claims and releases


def test_there_is_nothing_to_claim_before_and_after_a_cycle(world: World) -> None:
    assert claim_table(world.database, "w#1", world.settings) is None
    one = world.leader()
    one.tick()
    assert claim_table(world.database, "w#1", world.settings) is None
    world.run_cycle(one, world.worker())
    assert claim_table(world.database, "w#1", world.settings) is None


def test_a_claim_whose_answer_got_lost_is_found_again(world: World) -> None:
    world.begin()
    world.database.faults = ["lose"]
    claim = world.claim("w")
    assert claim.table == "fake.c"
    assert world.rows == {"a": "IDLE", "b": "IDLE", "c": "STARTED"}
    assert world.release(claim)


def test_a_claim_fails_for_good_and_the_worker_says_so(world: World) -> None:
    world.begin()
    world.database.faults = ["fail"] * 10
    with pytest.raises(StorageError, match="could not claim a table"):
        world.worker().step()


def test_a_release_whose_answer_got_lost_counts(world: World) -> None:
    world.begin()
    claim = world.claim()
    world.database.faults = ["lose"]
    assert world.release(claim)
    assert world.rows["c"] == "COMPLETED"


def test_a_release_that_is_refused_by_the_database_for_a_moment_is_tried_again(world: World) -> None:
    world.begin()
    claim = world.claim()
    world.database.faults = ["fail", "fail"]
    assert world.release(claim)


def test_a_release_after_an_eviction_is_refused(world: World) -> None:
    one = world.begin()
    claim = world.claim("slow")
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    one.tick()
    assert not world.release(claim)
    assert world.rows["c"] == "IDLE"
    again = world.claim("fast")
    assert again.partitions[0].attempt == 2
    assert not world.release(claim)
    assert world.rows["c"] == "STARTED"
    assert world.release(again)


def test_a_release_after_the_end_of_the_cycle_is_refused(world: World) -> None:
    one = world.begin()
    claim = world.claim()
    assert one.lease is not None
    finish_cycle(world.database, one.lease, 1)
    assert not world.release(claim)
    assert world.rows["c"] == "STARTED"


def test_a_release_after_the_next_cycle_began_is_refused(world: World) -> None:
    one = world.begin()
    stale = world.claim("stale")
    assert one.lease is not None
    finish_cycle(world.database, one.lease, 1)
    world.due()
    assert one.tick().action == "begun"
    fresh = world.claim("fresh")
    assert fresh.partitions == stale.partitions
    assert not world.release(stale)
    assert not send_heartbeat(world.database, stale, Beat(1), world.settings)
    assert world.rows["c"] == "STARTED"
    assert world.release(fresh)


def test_an_error_that_lasts_fails_the_checkpoint_at_once_and_the_worker_goes_on(world: World) -> None:
    world.tables.errors["c"] = [CorruptionError("file x is damaged; rebase")]
    one = world.begin()
    worker = world.worker()
    while worker.step():
        pass
    assert world.rows == {"a": "COMPLETED", "b": "COMPLETED", "c": "FAILED"}
    tick = one.tick()
    assert tick.record is not None
    assert list(tick.record.failed_partitions) == [FailedPartition("fake/c/1/deltas/_", "file x is damaged; rebase")]


def test_an_error_that_passes_is_tried_again_in_the_same_cycle(world: World) -> None:
    world.tables.errors["c"] = [StorageError("no answer"), RuntimeError("executor lost")]
    one = world.begin()
    worker = world.worker()
    while worker.step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    assert tick.record.attempts == 5
    assert world.tables.compactions == ["b", "a", "c"]


def test_an_error_that_does_not_pass_fails_the_checkpoint_after_all_tries(world: World) -> None:
    world.tables.errors["c"] = [StorageError(f"no answer {number}") for number in range(10)]
    world.begin()
    worker = world.worker()
    while worker.step():
        pass
    assert world.rows == {"a": "COMPLETED", "b": "COMPLETED", "c": "FAILED"}
    assert len(world.tables.errors["c"]) == 10 - world.settings.max_attempts


def test_a_retry_waits_a_little(world: World) -> None:
    world.settings = ServiceSettings(retry_pause_seconds=5, backlog_bytes=None)
    world.tables.errors["c"] = [StorageError("no answer")]
    world.begin()
    worker = world.worker()
    while worker.step():
        pass
    assert world.rows["c"] == "IDLE"
    world.clock.advance(5)
    assert worker.step()
    assert world.rows["c"] == "COMPLETED"


def test_an_abandoned_partition_is_free_at_once_and_has_not_failed(world: World) -> None:
    world.begin()
    for number in range(world.settings.max_attempts + 1):
        claim = world.claim(f"node{number}")
        assert world.release(claim, "ABANDONED", error="stopping")
    (row,) = [checkpoint for checkpoint in status_of(world).checkpoints if checkpoint.attempt]
    assert (row.status, row.failures) == ("IDLE", 0)


def test_a_worker_prefers_what_it_has_not_tried(world: World) -> None:
    world.begin()
    claim = world.claim("w")
    world.release(claim, "ABANDONED")
    assert world.claim("w").table == "fake.b"
    assert world.claim("other").table == "fake.c"


def test_a_worker_whose_claim_is_lost_stops_before_it_commits(world: World) -> None:
    one = world.begin()
    worker = world.worker("slow")

    def freeze_and_wake() -> None:
        world.tables.while_compacting = None
        world.clock.advance(world.settings.claim_lease_seconds + 1)
        assert one.tick().evicted

    world.tables.while_compacting = freeze_and_wake
    claim = world.claim("slow")
    heartbeat = Heartbeat(world.database, claim, world.settings, monotonic=world.clock.monotonic)
    with pytest.raises(LeaseLostError, match=r"fake\.c: the claim of cycle 1 is lost"):
        list(world.tables.compact([claim.partitions[0].locator], heartbeat.on_progress))
    assert world.tables.compactions == []
    assert worker.step()


def test_a_worker_that_cannot_reach_the_database_for_a_lease_takes_its_claim_for_lost(world: World) -> None:
    world.begin()
    claim = world.claim()
    heartbeat = Heartbeat(world.database, claim, world.settings, monotonic=world.clock.monotonic)
    for seconds, is_lost in ((world.settings.claim_lease_seconds, False), (1, True)):
        world.clock.advance(seconds)
        world.database.faults = ["fail"] * 6
        heartbeat.beat()
        assert heartbeat.is_lost is is_lost


def test_a_heartbeat_without_its_row_does_no_harm(world: World) -> None:
    world.begin()
    claim = world.claim()
    world.database.change("test", lambda transaction: transaction.execute(delete(active_checkpoints)))
    assert not send_heartbeat(world.database, claim, Beat(1), world.settings)
    assert not world.release(claim)


# Claims of several partitions


def with_partitions(world: World, count: int, **chosen: Any) -> list[str]:
    """Let a world have one table with so many partitions."""
    world.settings = dataclasses.replace(world.settings, **chosen)
    world.tables.partitions.clear()
    names = [f"t/{number:03}" for number in range(count)]
    for name in names:
        world.tables.write(name)
    return names


def test_a_claim_is_a_table_with_all_its_partitions_that_are_due(world: World) -> None:
    names = with_partitions(world, 5)
    world.tables.partitions[names[3]].watermark = 1
    world.tables.write("a", 2)
    world.begin()
    claim = world.claim("one")
    assert (claim.table, names_of(claim)) == ("fake.t", [*names[:3], names[4]])
    assert names_of(world.claim("two")) == ["a"]
    assert claim_table(world.database, "three#1", world.settings) is None
    assert [node.status for node in status_of(world).checkpoints] == ["STARTED"] * 5


def test_a_very_large_table_is_shared_by_ranges_of_its_partitions(world: World) -> None:
    names = with_partitions(world, 7, claim_partitions=3)
    one = world.begin()
    claims = [world.claim(f"worker{number}") for number in range(3)]
    assert [names_of(claim) for claim in claims] == [names[:3], names[3:6], names[6:]]
    for claim in claims:
        assert world.release(claim)
    tick = one.tick()
    assert tick.record is not None
    assert (tick.record.status, tick.record.completed, tick.record.attempts) == ("COMPLETED", 7, 7)


def test_partitions_with_much_to_do_are_claimed_with_fewer_others(world: World) -> None:
    names = with_partitions(world, 5, claim_bytes=1000)
    for name, size in zip(names, [400, 600, 1, 5000, 2], strict=True):
        world.tables.partitions[name].bytes_each = size
    world.begin()
    assert [names_of(world.claim()) for _ in range(4)] == [names[:2], names[2:3], names[3:4], names[4:]]


def test_workers_that_claim_at_once_share_a_large_table_and_do_each_partition_once(world: World) -> None:
    names = with_partitions(world, 40, claim_partitions=6)
    one = world.begin()
    workers = [world.worker() for _ in range(4)]
    barrier = threading.Barrier(4)

    def work(worker: Worker) -> None:
        barrier.wait()
        while worker.step():
            pass

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while workers[0].step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    assert sorted(world.tables.compactions) == names
    assert tick.record.attempts == 40
    assert sum(world.tables.jobs) == 40
    assert max(world.tables.jobs) <= 6


def test_one_partition_that_fails_for_good_fails_alone_and_by_its_name(world: World) -> None:
    names = with_partitions(world, 5)
    world.tables.errors[names[2]] = [CorruptionError("file x is damaged; rebase")]
    one = world.begin()
    worker = world.worker()
    while worker.step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert (tick.record.completed, tick.record.failed) == (4, 1)
    assert list(tick.record.failed_partitions) == [
        FailedPartition(f"fake/t/1/deltas/{names[2][2:]}", "file x is damaged; rebase")
    ]
    assert world.tables.jobs == [5]
    assert world.rows == {**dict.fromkeys(names, "COMPLETED"), names[2]: "FAILED"}


def test_an_error_that_ends_a_job_is_narrowed_down_to_the_partition_that_causes_it(world: World) -> None:
    names = with_partitions(world, 9, claim_partitions=9)
    # Access may be denied to one of them only, and which one is not known of several.
    world.tables.errors[names[4]] = [AccessDeniedError("not yours") for _ in range(10)]
    one = world.begin()
    worker = world.worker()
    while worker.step():
        pass
    assert world.rows == {**dict.fromkeys(names, "COMPLETED"), names[4]: "FAILED"}
    # The first four were done before the error; the rest three by three; then those three alone.
    assert sorted(world.tables.jobs, reverse=True) == [9, 3, 2, 1, 1, 1]
    assert Counter(world.tables.compactions) == dict.fromkeys([*names[:4], *names[5:]], 1)
    tick = one.tick()
    assert tick.record is not None
    assert [failed.partition for failed in tick.record.failed_partitions] == [str(locator(names[4]))]


def test_a_partition_that_kills_every_worker_takes_no_other_of_its_table_with_it(world: World) -> None:
    names = with_partitions(world, 9, claim_partitions=9)
    one = world.begin()
    sizes = []
    for number in range(world.settings.max_attempts):
        while names[0] not in names_of(claim := world.claim(f"doomed{number}")):
            assert world.release(claim)
        sizes.append(len(claim.partitions))
        world.clock.advance(world.settings.claim_lease_seconds + 1)
        assert len(one.tick().evicted) == len(claim.partitions)
    assert sizes == [9, 3, 1]
    worker = world.worker()
    while worker.step():
        pass
    assert world.rows == {**dict.fromkeys(names, "COMPLETED"), names[0]: "FAILED"}
    assert status_of(world).totals.evictions == 3


def test_what_a_worker_handed_back_before_it_died_counts_and_only_the_rest_is_taken_over(world: World) -> None:
    names = with_partitions(world, 6)
    one = world.begin()
    dead = world.claim("dead")
    assert world.release(dead, only=names[:2])
    assert world.rows == {**dict.fromkeys(names[:2], "COMPLETED"), **dict.fromkeys(names[2:], "STARTED")}
    assert send_heartbeat(world.database, dead, Beat(1), world.settings)
    assert {each.heartbeats for each in status_of(world).checkpoints if each.status == "STARTED"} == {1}
    assert {each.heartbeats for each in status_of(world).checkpoints if each.status == "COMPLETED"} == {None}
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    assert sorted(one.tick().evicted) == [str(locator(name)) for name in names[2:]]
    assert not world.release(dead, only=names[2:])
    assert world.release(dead, only=names[:2]), "this it had done in time"
    other = world.worker("other")
    while other.step():
        pass
    assert not world.release(dead, only=names[2:])
    tick = one.tick()
    assert tick.record is not None
    assert (tick.record.status, tick.record.attempts) == ("COMPLETED", 6 + 4)
    assert sorted(world.tables.compactions) == names[2:]
    timeline = cycle_details(world.database, 1).timeline
    assert Counter((each.status, each.worker) for each in timeline) == {
        ("COMPLETED", "dead"): 2,
        ("EXPIRED", "dead"): 4,
        ("COMPLETED", "other"): 4,
    }


def test_results_whose_answer_got_lost_are_handed_back_again_together_with_others(world: World) -> None:
    names = with_partitions(world, 4)
    world.begin()
    claim = world.claim()
    world.database.faults = ["lose"] * 6
    with pytest.raises(StorageError):
        world.release(claim, only=names[:2])
    world.database.faults = ["fail", "lose"]
    assert world.release(claim)
    assert set(world.rows.values()) == {"COMPLETED"}
    assert world.release(claim)
    assert not world.release(claim, "ABANDONED")


def test_a_claim_of_several_whose_answer_got_lost_is_found_again_whole(world: World) -> None:
    names = with_partitions(world, 4, claim_partitions=3)
    world.begin()
    world.database.faults = ["lose"]
    claim = world.claim()
    assert names_of(claim) == names[:3]
    assert world.rows[names[3]] == "IDLE"
    assert world.release(claim)


def test_a_worker_that_is_stopped_hands_back_what_it_has_not_done(world: World) -> None:
    names = with_partitions(world, 5)
    world.begin()
    worker = world.worker("stopped")

    def stop() -> None:
        if len(world.tables.compactions) == 2:
            worker.abandon("the node is stopping")

    world.tables.while_compacting = stop
    assert worker.step()
    assert world.rows == {**dict.fromkeys(names[:2], "COMPLETED"), **dict.fromkeys(names[2:], "IDLE")}
    assert {each.failures for each in status_of(world).checkpoints} == {0}
    world.tables.while_compacting = None
    assert names_of(world.claim("other")) == names[2:]


def test_a_worker_whose_results_are_refused_stops_at_once(world: World) -> None:
    names = with_partitions(world, 5)
    one = world.begin()
    claim = world.claim("late")
    handover = Handover(world.database, claim, world.settings, monotonic=world.clock.monotonic)
    handover.add(claim.partitions[0].locator, CheckpointResult(1))
    assert world.rows[names[0]] == "STARTED", "they are handed back together"
    world.clock.advance(1)
    handover.add(claim.partitions[1].locator, CheckpointResult(1))
    assert [world.rows[name] for name in names] == ["COMPLETED"] * 2 + ["STARTED"] * 3
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    assert one.tick().evicted
    handover.add(claim.partitions[2].locator, CheckpointResult(1))
    assert handover.is_refused
    assert not handover.end("ABANDONED", "stopping")
    assert [world.rows[name] for name in names] == ["COMPLETED"] * 2 + ["IDLE"] * 3


def test_results_are_kept_while_the_database_is_away(world: World) -> None:
    names = with_partitions(world, 3)
    world.begin()
    claim = world.claim()
    handover = Handover(world.database, claim, world.settings, monotonic=world.clock.monotonic)
    world.clock.advance(1)
    world.database.faults = ["fail"] * 6
    handover.add(claim.partitions[0].locator, CheckpointResult(1))
    assert world.rows[names[0]] == "STARTED"
    handover.add(claim.partitions[1].locator, CorruptionError("damaged"))
    assert [world.rows[name] for name in names] == ["COMPLETED", "FAILED", "STARTED"]
    assert handover.end("FAILED", "no memory", may_retry=True)
    assert [world.rows[name] for name in names] == ["COMPLETED", "FAILED", "IDLE"]


def test_disabling_ends_a_claim_of_several_and_keeps_what_it_had_done(world: World) -> None:
    names = with_partitions(world, 4)
    one = world.begin()
    claim = world.claim()
    assert world.release(claim, only=names[:1])
    controls.disable(world.database)
    tick = one.tick()
    assert tick.record is not None
    assert (tick.record.completed, tick.record.unfinished) == (1, 3)
    assert not world.release(claim, only=names[1:])
    timeline = cycle_details(world.database, 1).timeline
    assert Counter(each.status for each in timeline) == {"COMPLETED": 1, "ABANDONED": 3}


def test_a_claim_takes_no_more_than_one_job() -> None:
    assert ServiceSettings.claim_partitions <= JOINT_ROUNDS
    assert ServiceSettings.claim_bytes <= MAX_ROUND_BYTES
    assert [most_partitions(failures, ServiceSettings()) for failures in range(4)] == [1000, 32, 1, 1]
    assert [most_partitions(failures, ServiceSettings(max_attempts=1)) for failures in range(2)] == [1000, 1]


# Controls


def test_disabling_ends_a_running_cycle_and_leaves_its_rows(world: World) -> None:
    one = world.begin()
    claim = world.claim()
    controls.disable(world.database, requester="me")
    assert not world.worker().step()
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    assert world.rows == {"a": "IDLE", "b": "IDLE", "c": "STARTED"}
    assert not world.release(claim)
    assert not send_heartbeat(world.database, claim, Beat(1), world.settings)
    world.due()
    assert one.tick().action == "waits"
    assert status_of(world).next_due_at is None
    assert controls.enable(world.database)
    assert not controls.enable(world.database)
    assert one.tick().action == "begun"


def test_a_freeze_lets_the_running_cycle_go_on_and_blocks_the_next(world: World) -> None:
    one = world.begin()
    controls.freeze(world.database, seconds=3600)
    worker = world.worker()
    while worker.step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    world.due()
    assert one.tick().action == "waits"
    assert controls.unfreeze(world.database)
    assert one.tick().action == "begun"


def test_a_freeze_runs_out_after_two_hours(world: World) -> None:
    one = world.leader()
    one.tick()
    frozen = controls.freeze(world.database, requester="me")
    assert frozen.expires_at == world.clock.now_ms + 2 * 3600 * 1000
    world.clock.advance(2 * 3600 - 0.001)
    assert one.tick().action == "waits"
    assert status_of(world).next_due_at == frozen.expires_at
    world.clock.advance(0.001)
    assert one.tick().action == "begun"
    assert status_of(world).frozen is None
    assert not controls.unfreeze(world.database)


def test_frozen_then_disabled_stays_idle_and_both_hold(world: World) -> None:
    one = world.leader()
    controls.freeze(world.database, seconds=10**9)
    controls.disable(world.database)
    controls.trigger_cycle(world.database)
    for _ in range(3):
        world.due()
        assert one.tick().action == "waits"
    status = status_of(world)
    assert status.status == "IDLE"
    assert status.frozen is not None
    assert status.disabled is not None
    assert len(status.pending_requests) == 1


def test_disabling_between_the_decision_and_the_beginning_prevents_the_cycle(world: World) -> None:
    one = world.leader()
    one.tick()
    world.due()
    world.tables.while_finding = lambda: controls.disable(world.database)
    assert one.tick().action == "waits"
    assert world.status == "IDLE"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_freezing_for_no_time_is_refused(world: World, seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="use a positive time"):
        controls.freeze(world.database, seconds=seconds)


def test_a_request_begins_a_cycle_and_is_told_its_outcome(world: World) -> None:
    one = world.leader()
    one.tick()
    request = controls.trigger_cycle(world.database, requester="me")
    assert (request.state, request.requester) == ("PENDING", "me")
    assert one.tick().action == "begun"
    assert controls.get_request(world.database, request.request_id).cycle == 1
    worker = world.worker()
    while worker.step():
        pass
    one.tick()
    done = controls.wait_for_request(world.database, request.request_id)
    assert (done.state, done.outcome, done.ended_at) == ("DONE", "COMPLETED", world.clock.now_ms)
    assert cycle_records(world.database)[0].trigger_reason == "request"


def test_requests_during_a_cycle_queue_exactly_one_more(world: World) -> None:
    one = world.begin()
    early = [controls.trigger_cycle(world.database) for _ in range(3)]
    worker = world.worker()
    while worker.step():
        pass
    one.tick()
    world.tables.write("a")
    assert one.tick().action == "begun"
    while worker.step():
        pass
    one.tick()
    assert {controls.get_request(world.database, each.request_id).cycle for each in early} == {2}
    assert one.tick().action == "waits"


def test_a_request_whose_answer_got_lost_is_made_once(world: World) -> None:
    world.database.faults = ["lose"]
    controls.trigger_cycle(world.database)
    assert len(status_of(world).pending_requests) == 1


def test_an_unknown_request_is_not_found(world: World) -> None:
    with pytest.raises(NotFoundError, match="nosuch"):
        controls.get_request(world.database, "nosuch")


def test_waiting_for_a_request_survives_an_outage_and_ends_in_time(world: World) -> None:
    request = controls.trigger_cycle(world.database)
    world.database.faults = ["fail"] * 6
    found = controls.wait_for_request(
        world.database,
        request.request_id,
        timeout_seconds=10,
        sleep=world.clock.advance,
        monotonic=world.clock.monotonic,
    )
    assert found.state == "PENDING"


# Trimming


def test_what_a_completed_cycle_compacted_is_trimmed_when_the_next_one_starts(world: World) -> None:
    one = world.leader()
    one.tick()
    world.run_cycle(one, world.worker())
    assert world.tables.partitions["c"].trimmed == 0
    world.tables.write("c", 4)
    world.run_cycle(one, world.worker())
    assert world.tables.partitions["c"].trimmed == 3
    assert [cycle_record.trimmed_deltas for cycle_record in cycle_records(world.database)] == [None, 6]


def test_the_trim_variant_trims_at_once(world: World) -> None:
    one = world.leader()
    one.tick()
    request = controls.trigger_cycle(world.database, trim=True)
    one.tick()
    worker = world.worker()
    while worker.step():
        pass
    one.tick()
    assert [partition.trimmed for partition in world.tables.partitions.values()] == [1, 2, 3]
    assert controls.get_request(world.database, request.request_id).is_done


def test_a_trim_that_was_interrupted_is_done_by_the_next_leader(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.leader()
    one.tick()
    request = controls.trigger_cycle(world.database, trim=True)
    one.tick()
    worker = world.worker()
    while worker.step():
        pass
    with monkeypatch.context() as patch:
        patch.setattr(leader.Leader, "_trim", _die)
        with pytest.raises(Killed):
            one.tick()
    assert controls.get_request(world.database, request.request_id).state == "TRIMMING"
    world.clock.advance(world.settings.leader_lease_seconds + 1)
    assert world.leader().tick().action == "trimmed"
    assert world.tables.partitions["c"].trimmed == 3
    assert controls.get_request(world.database, request.request_id).is_done


def _die(*given: object) -> int:
    raise Killed("before the trim")


def test_plain_and_trimming_requests_are_served_by_one_cycle_that_trims(world: World) -> None:
    one = world.leader()
    one.tick()
    made = [controls.trigger_cycle(world.database, trim=trim) for trim in (False, True)]
    one.tick()
    worker = world.worker()
    while worker.step():
        pass
    one.tick()
    assert all(controls.get_request(world.database, each.request_id).is_done for each in made)
    assert world.tables.partitions["c"].trimmed == 3
    assert one.tick().action == "waits"


def test_after_a_failed_cycle_only_what_was_compacted_is_trimmed(world: World) -> None:
    world.tables.errors["a"] = [CorruptionError("damaged")]
    one = world.leader()
    one.tick()
    request = controls.trigger_cycle(world.database, trim=True)
    one.tick()
    worker = world.worker()
    while worker.step():
        pass
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    assert controls.get_request(world.database, request.request_id).outcome == "FAILED"
    assert [partition.trimmed for partition in world.tables.partitions.values()] == [0, 2, 3]
    world.tables.errors["a"] = [CorruptionError("damaged still")]
    world.tables.write("c")
    world.run_cycle(one, worker)
    world.due()
    one.tick()
    assert [partition.trimmed for partition in world.tables.partitions.values()] == [0, 2, 4]


def test_after_a_cycle_in_which_nothing_was_compacted_nothing_is_trimmed(world: World) -> None:
    one = world.begin()
    assert one.lease is not None
    assert finish_cycle(world.database, one.lease, 1) is not None
    world.due()
    one.tick()
    assert [partition.trimmed for partition in world.tables.partitions.values()] == [0, 0, 0]


def test_marks_of_earlier_cycles_survive_a_failed_one(world: World) -> None:
    one, worker = world.leader(), world.worker()
    one.tick()
    world.run_cycle(one, worker)
    world.tables.write("a")
    world.begin(one)
    assert world.tables.partitions["c"].trimmed == 3
    assert world.watch(one, world.settings.stall_seconds + 1).action == "finished"
    world.tables.write("c")
    world.run_cycle(one, worker)
    world.due()
    one.tick()
    assert world.tables.partitions["c"].trimmed == 4
    assert world.tables.partitions["a"].trimmed == 2


def test_marks_of_tables_that_are_gone_are_forgotten(world: World) -> None:
    one, worker = world.leader(), world.worker()
    one.tick()
    world.run_cycle(one, worker)
    del world.tables.partitions["b"]
    world.run_cycle(one, worker)
    world.tables.partitions["b"] = type(world.tables.partitions["a"])(position=9, watermark=9)
    world.run_cycle(one, worker)
    assert world.tables.partitions["b"].trimmed == 0


# Health and history


def test_health_follows_the_last_cycle_that_ended(world: World) -> None:
    one, worker = world.leader(), world.worker()
    one.tick()
    assert status_of(world).is_healthy
    world.tables.errors["a"] = [CorruptionError("damaged")]
    world.run_cycle(one, worker)
    assert not status_of(world).is_healthy
    world.due()
    one.tick()
    assert not status_of(world).is_healthy
    while worker.step():
        pass
    one.tick()
    assert status_of(world).is_healthy


def test_the_record_equals_what_the_manager_says(world: World) -> None:
    one = world.leader("one")
    one.tick()
    world.run_cycle(one, world.worker())
    (record,) = cycle_records(world.database)
    status = status_of(world)
    assert (record.cycle_count, record.status) == (status.cycle_count, status.status)
    assert (record.start_time_ms, record.end_time_ms) == (status.started_at, status.ended_at)
    assert (record.leader, record.trigger_reason) == ("one", "interval")
    assert (record.partitions, record.completed, record.failed, record.unfinished) == (3, 3, 0, 0)
    assert (record.rounds, record.rows, record.input_bytes, record.written_bytes) == (3, 6, 600, 60)
    details = cycle_details(world.database, 1)
    assert details.record == record
    assert len(details.timeline) == len(details.checkpoints) == 3


def test_a_finish_that_is_rolled_back_leaves_no_record(world: World) -> None:
    one = world.begin()
    assert one.lease is not None
    world.database.faults = ["fail"] * 6
    with pytest.raises(StorageError):
        finish_cycle(world.database, one.lease, 1)
    assert world.status == "STARTED"
    assert cycle_records(world.database) == []
    worker = world.worker()
    while worker.step():
        pass
    assert one.tick().action == "finished"
    assert [cycle_record.status for cycle_record in cycle_records(world.database)] == ["COMPLETED"]


def test_a_finish_whose_answer_got_lost_is_recorded_once(world: World) -> None:
    one = world.begin()
    assert one.lease is not None
    world.database.faults = ["lose"]
    finish_cycle(world.database, one.lease, 1)
    assert world.status == "FAILED"
    assert world.kept() == [1]


def test_finishing_a_cycle_that_does_not_run_changes_nothing(world: World) -> None:
    one = world.begin()
    assert one.lease is not None
    assert finish_cycle(world.database, one.lease, 7) is None
    assert world.status == "STARTED"
    assert finish_cycle(world.database, one.lease, 1) is not None
    request = controls.trigger_cycle(world.database)
    assert finish_cycle(world.database, one.lease, 1) is None
    assert controls.get_request(world.database, request.request_id).state == "PENDING"
    assert world.kept() == [1]


def test_after_250_cycles_exactly_the_newest_100_are_kept(world: World) -> None:
    one = world.leader()
    one.tick()
    world.tables.partitions.clear()
    for number in range(250):
        if number > 200:
            world.tables.write("a")
        if number == 120:
            world.tables.problems["x"] = "a failure among them"
        world.run_cycle(one, world.worker())
        world.tables.problems.clear()
    assert world.kept() == list(range(151, 251))
    records = cycle_records(world.database)
    assert [record.cycle_count for record in records] == list(range(250, 150, -1))
    assert cycle_records(world.database, 3) == records[:3]
    assert cycle_records(world.database, status="FAILED") == []
    with pytest.raises(NotFoundError, match="cycle 150"):
        cycle_details(world.database, 150)
    assert cycle_details(world.database, 202).timeline[0].status == "COMPLETED"


def test_a_failure_of_pruning_harms_nothing_and_the_next_cycle_prunes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.leader()
    one.tick()
    world.tables.partitions.clear()
    for _ in range(100):
        world.run_cycle(one, world.worker())
    with monkeypatch.context() as patch:
        patch.setattr(leader, "prune_history", _prune_while_the_database_fails(world))
        tick = world.run_cycle(one, world.worker())
    assert tick.record is not None
    assert tick.record.status == "COMPLETED"
    assert len(world.kept()) == 101
    assert len(cycle_records(world.database)) == 100
    world.run_cycle(one, world.worker())
    assert world.kept() == list(range(3, 103))


def _prune_while_the_database_fails(world: World) -> object:
    from siltstone.service.history import prune_history

    def prune(*given: object) -> int:
        world.database.faults = ["fail"] * 6
        return prune_history(*given)  # type: ignore[arg-type]

    return prune


def test_numbers_go_on_after_the_manager_row_was_lost(world: World) -> None:
    one = world.leader()
    one.tick()
    for _ in range(3):
        world.run_cycle(one, world.worker())
    world.database.change("test", lambda transaction: transaction.execute(delete(manager)))
    one.tick()
    world.run_cycle(one, world.worker())
    assert world.kept() == [1, 2, 3, 4]


def test_numbers_go_on_after_the_manager_row_was_restored_from_an_old_copy(world: World) -> None:
    one = world.leader()
    one.tick()
    for _ in range(3):
        world.run_cycle(one, world.worker())
    world.database.change("test", lambda transaction: transaction.execute(update(manager).values(cycle_count=1)))
    world.run_cycle(one, world.worker())
    assert world.kept() == [1, 2, 3, 4]


def test_a_restart_waits_for_the_rest_of_the_interval_and_no_longer(world: World) -> None:
    one = world.leader()
    one.tick()
    world.run_cycle(one, world.worker())
    world.clock.advance(world.settings.interval_seconds - 10)
    restarted = world.leader("restarted")
    assert restarted.tick().action == "waits"
    world.clock.advance(10)
    assert restarted.tick().action == "waits"
    world.clock.advance(0.001)
    assert restarted.tick().action == "begun"


def test_a_request_of_a_long_gone_cycle_is_forgotten_with_it(world: World) -> None:
    one = world.leader()
    one.tick()
    world.tables.partitions.clear()
    request = controls.trigger_cycle(world.database)
    one.tick()
    one.tick()
    values = [_record_values(number) for number in range(2, 101)]
    world.database.change("test", lambda transaction: transaction.connection.execute(insert(cycle_history), values))
    world.run_cycle(one, world.worker())
    assert world.kept() == list(range(2, 102))
    with pytest.raises(NotFoundError):
        controls.get_request(world.database, request.request_id)


def _record_values(number: int) -> dict[str, object]:
    counts = ("partitions", "completed", "failed", "unfinished", "attempts", "rounds", "rows")
    return {
        "cycle_count": number,
        "status": "COMPLETED",
        "start_time_ms": number,
        "end_time_ms": number,
        "trigger_reason": "interval",
        "leader": "x",
        "failed_partitions": "[]",
        **dict.fromkeys((*counts, "input_bytes", "written_bytes"), 0),
    }


def test_what_a_result_says_is_what_the_books_keep(world: World) -> None:
    world.begin()
    claim = world.claim()
    result = CheckpointResult(high_watermark=7, rounds=2, rows=30, input_bytes=400, written_bytes=50)
    assert world.release(claim, result=result)
    (attempt,) = cycle_details(world.database, 1).timeline
    assert (attempt.high_watermark, attempt.rounds, attempt.rows) == (7, 2, 30)
    assert (attempt.input_bytes, attempt.written_bytes) == (400, 50)


def test_a_service_that_nobody_leads_is_unhealthy_once_a_cycle_is_overdue(world: World) -> None:
    assert status_of(world).is_healthy, "it was never started"
    one = world.leader("one")
    one.tick()
    world.run_cycle(one, world.worker())
    world.clock.advance(world.settings.leader_lease_seconds + 1)
    assert status_of(world).is_healthy, "no cycle is due yet"
    world.due()
    problem = status_of(world).health_problem
    assert problem == ("a cycle is overdue, and no node leads (the last one was one); start one with `siltstone serve`")
    controls.disable(world.database)
    assert status_of(world).is_healthy
    controls.enable(world.database)
    controls.freeze(world.database, seconds=100)
    assert status_of(world).is_healthy
    controls.unfreeze(world.database)
    assert not status_of(world).is_healthy
    world.leader("two").tick()
    assert status_of(world).is_healthy


def test_a_cycle_whose_leader_died_is_unhealthy_when_the_next_one_is_due(world: World) -> None:
    world.begin()
    world.clock.advance(world.settings.leader_lease_seconds + 1)
    assert status_of(world).is_healthy
    world.due()
    assert not status_of(world).is_healthy


def test_a_dead_leader_of_the_future_makes_nothing_look_healthy(world: World) -> None:
    one = world.leader()
    one.tick()
    world.run_cycle(one, world.worker())
    assert status_of(world).is_healthy
    world.clock.step(-3600)
    assert not status_of(world).is_healthy
