"""The database's clock is set, forward or back: no lease, freeze or cycle of the future keeps the service from its work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.errors import LeaseLostError
from siltstone.service import controls
from siltstone.service.claims import Beat, claim_table, send_heartbeat
from siltstone.service.cycles import bootstrap, take_lead
from siltstone.service.history import cycle_details, list_nodes
from siltstone.service.leader import Leader
from siltstone.service.node import NodeIdentity, register_node
from siltstone.service.settings import ServiceSettings
from tests.unit.service.cycling import World, status_of

HOUR = 3600.0


def begin(leader: Leader) -> None:
    """Let a cycle begin at once: the first tick may find that the lease is of another time."""
    assert "begun" in (leader.tick().action, leader.tick().action)


def run_to_the_end(world: World, leader: Leader) -> None:
    """Let one healthy worker do all there is, and the leader watch; no time passes."""
    worker = world.worker()
    for _ in range(5):
        while worker.step():
            pass
        if leader.tick().action == "finished":
            return
    raise AssertionError(f"the cycle does not end: {world.rows}")


@pytest.mark.parametrize("back", [60.0, HOUR, 30 * 24 * HOUR])
def test_a_cycle_that_began_in_the_future_keeps_no_other_from_beginning(world: World, back: float) -> None:
    one = world.leader()
    one.tick()
    world.run_cycle(one, world.worker())
    world.clock.step(-back)
    assert status_of(world).next_due_at == world.clock.now_ms
    world.tables.write("a")
    begin(one)
    run_to_the_end(world, one)
    assert status_of(world).status == "COMPLETED"
    assert one.tick().action == "waits", "once is enough"


def test_the_lease_of_a_dead_leader_from_the_future_is_free_and_shown_so(world: World) -> None:
    dead = NodeIdentity("dead")
    register_node(world.database, dead, is_worker=True)
    assert take_lead(world.database, dead.owner, 45_000) is not None
    assert [(node.is_leader, node.is_alive) for node in list_nodes(world.database)] == [(True, True)]
    world.clock.step(-HOUR)
    assert [(node.is_leader, node.is_alive) for node in list_nodes(world.database)] == [(False, False)]
    leader = status_of(world).leader
    assert leader is not None
    assert not leader.is_current
    assert take_lead(world.database, "other#1", 45_000) is not None


def test_a_leader_whose_lease_is_from_the_future_begins_a_new_term(world: World) -> None:
    lease = take_lead(world.database, "one#1", 45_000)
    assert lease is not None
    world.clock.advance(40)
    renewed = take_lead(world.database, "one#1", 45_000)
    assert renewed is not None
    assert (renewed.term, renewed.acquired_at) == (lease.term, lease.acquired_at)
    # Before it was renewed, and after it was acquired.
    world.clock.step(-30)
    with pytest.raises(LeaseLostError):
        bootstrap(world.database, renewed)
    again = take_lead(world.database, "one#1", 45_000)
    assert again is not None
    assert again.term == lease.term + 1
    bootstrap(world.database, again)


def test_a_clock_that_is_corrected_by_a_little_costs_nobody_anything(world: World) -> None:
    one = world.begin()
    claim = world.claim()
    controls.freeze(world.database, seconds=100)
    world.clock.step(-1)
    tick = one.tick()
    assert (tick.action, list(tick.evicted)) == ("watches", [])
    assert status_of(world).frozen is not None
    assert world.release(claim)


def test_a_claim_of_a_dead_worker_from_the_future_is_free_and_no_failure(world: World) -> None:
    one = world.begin()
    claims = [world.claim("dead") for _ in range(3)]
    for _ in range(5):
        world.clock.step(-HOUR)
        assert sorted(one.tick().evicted) == sorted(claim.partitions[0].name for claim in claims)
        claims = [world.claim("dead") for _ in range(3)]
    details = cycle_details(world.database, 1)
    assert {each.error for each in details.timeline if each.status == "EXPIRED"} == {
        "the claim of dead expired: the clock of the database was set back"
    }
    world.clock.step(-HOUR)
    one.tick()
    run_to_the_end(world, one)
    assert status_of(world).status == "COMPLETED"


def test_a_worker_that_lives_keeps_its_claim_by_its_heartbeat(world: World) -> None:
    one = world.begin()
    claim = world.claim("alive")
    assert send_heartbeat(world.database, claim, Beat(progress=1), world.settings)
    world.clock.step(-HOUR)
    assert send_heartbeat(world.database, claim, Beat(progress=1), world.settings)
    assert not one.tick().evicted
    world.clock.advance(world.settings.claim_lease_seconds + 1)
    assert one.tick().evicted


def test_a_retry_in_the_future_is_due(tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/service.db", ServiceSettings(retry_pause_seconds=20, backlog_bytes=None))
    world.begin()
    claims = [world.claim() for _ in range(3)]
    for claim in claims:
        assert world.release(claim, "FAILED", error="x", may_retry=True)
    assert claim_table(world.database, "one#1", world.settings) is None
    world.clock.step(-HOUR)
    assert claim_table(world.database, "one#1", world.settings) is not None
    world.close()


def test_a_freeze_lasts_no_longer_than_it_was_meant_to(world: World) -> None:
    one = world.leader()
    one.tick()
    controls.freeze(world.database, seconds=2 * HOUR)
    controls.trigger_cycle(world.database)
    world.clock.step(-HOUR)
    assert status_of(world).frozen is None
    begin(one)
    run_to_the_end(world, one)
    # It is forgotten, and does not come back with the time at which it was set.
    world.clock.step(HOUR)
    assert status_of(world).frozen is None


def test_a_disabled_service_stays_so_whatever_the_clock_says(world: World) -> None:
    one = world.leader()
    one.tick()
    controls.disable(world.database)
    world.clock.step(-HOUR)
    controls.trigger_cycle(world.database)
    assert {one.tick().action for _ in range(3)} == {"waits"}
    assert status_of(world).disabled is not None


def test_a_cycle_that_nobody_works_on_fails_also_if_it_began_in_the_future(world: World) -> None:
    one = world.begin()
    world.clock.step(-HOUR)
    assert one.tick().action == "watches"
    assert world.watch(one, world.settings.stall_seconds).action == "watches"
    world.clock.advance(1)
    tick = one.tick()
    assert tick.record is not None
    assert tick.record.status == "FAILED"
    assert tick.record.duration_ms == 0


def test_the_backlog_is_measured_again_after_the_clock_was_set_back(tmp_path: Path) -> None:
    settings = ServiceSettings(backlog_bytes=1000, min_pause_seconds=0, interval_seconds=10 * HOUR)
    world = World(f"sqlite:///{tmp_path}/service.db", settings)
    one = world.leader()
    one.tick()
    # By so little that the lease holds.
    world.clock.step(-0.5)
    world.tables.write("a", 100)
    assert one.tick().action == "begun"
    world.close()


@pytest.mark.parametrize("back", [-HOUR, HOUR])
@pytest.mark.parametrize("moment", range(8))
def test_a_cycle_ends_wherever_in_it_the_clock_is_set(world: World, moment: int, back: float) -> None:
    one, worker = world.leader("one"), world.worker("one")
    steps: list[Callable[[], object]] = [
        one.tick,
        world.due,
        one.tick,
        worker.step,
        one.tick,
        worker.step,
        worker.step,
        one.tick,
    ]
    for number, step in enumerate(steps):
        if number == moment:
            world.clock.step(back)
        step()
    if status_of(world).cycle_count == 0:
        world.due()
        begin(one)
    if status_of(world).status == "STARTED":
        run_to_the_end(world, one)
    assert status_of(world).status == "COMPLETED"
    world.tables.write("a")
    world.due()
    begin(one)
    run_to_the_end(world, one)
    assert all(partition.watermark == partition.position for partition in world.tables.partitions.values())
