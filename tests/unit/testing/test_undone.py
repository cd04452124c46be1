"""What the simulator sees: with a fix taken back it finds the hole, in a few steps, and with the fix the same steps hold."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pytest
from dev.undone import UNDONE, undone

from siltstone.testing.simulation import Plan, Step, make_plan, simulate
from siltstone.testing.simulation.clocks import DAY_MS, HOUR_MS, MINUTE_MS

MOST_STEPS = 30
INTERRUPTIONS = range(3, 9)


@dataclass(frozen=True)
class Case:
    """Steps in which a hole shows, and what is violated."""

    kind: str
    steps: tuple[Step, ...]
    partitions: int = 1
    seeds: int = 1
    has_damage: bool = False


def interrupted(between: Iterable[Step]) -> Iterator[Step]:
    """Interrupt a write of one process after some calls, let the other one do something, and let the first go on."""
    for calls in INTERRUPTIONS:
        yield Step(0, 1, "write", calls=calls)
        yield from between
        yield Step(0, 1, "write")


def numbered(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(replace(step, number=number) for number, step in enumerate(steps, 1))


CASES = {
    "numbers": Case(
        "lost write",
        numbered(
            interrupted([Step(0, 0, "burst"), Step(0, 0, "burst", wait_ms=11 * MINUTE_MS), Step(0, 0, "burst")]),
        ),
    ),
    "horizon": Case("missing file", numbered(interrupted([Step(0, 0, "vacuum", wait_ms=25 * HOUR_MS)]))),
    "time": Case("commit time", numbered([Step(0, 1, "write", clock="set", skew_ms=31 * DAY_MS)])),
    "cut": Case(
        "torn read",
        numbered([Step(0, place % 2, kind) for place in range(8) for kind in ("write", "compact", "read")]),
        partitions=3,
    ),
    "chain": Case(
        "lost write",
        numbered([Step(0, 0, kind) for _ in range(8) for kind in ("write", "damage", "restart")]),
        seeds=12,
        has_damage=True,
    ),
}


def make_case_plan(case: Case, seed: int) -> Plan:
    profile = replace(
        make_plan(1).profile,
        processes=2,
        partitions=case.partitions,
        operations={"write": 1},
        checkpoint_interval=2,
        anchor_interval=4,
        recent_batches=100,
        listing_seconds=0.0 if case.has_damage else 60.0,
        is_local=False,
    )
    return Plan(seed, profile, case.steps, case.has_damage)


def test_each_fix_that_can_be_taken_back_has_a_case() -> None:
    assert set(CASES) == set(UNDONE)


@pytest.mark.parametrize("name", CASES)
def test_a_fix_that_is_taken_back_is_missed_within_few_steps(name: str) -> None:
    case = CASES[name]
    plans = [make_case_plan(case, seed) for seed in range(1, case.seeds + 1)]
    with undone(name):
        outcomes = [simulate(plan) for plan in plans]
    found = [outcome for outcome in outcomes if outcome.violation is not None and outcome.violation.kind == case.kind]
    assert found, [str(outcome.violation) for outcome in outcomes]
    assert len(found[0].history) <= MOST_STEPS
    for plan in plans:
        held = simulate(plan)
        assert held.violation is None, "\n".join([*held.history, str(held.violation)])
