"""The simulator: seeds replay, seeds hold, and what is broken on purpose is found and made short."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from siltstone.testing.simulation import Plan, Step, make_plan, simulate
from siltstone.testing.simulation.minimize import choose_steps, describe_steps, minimize
from siltstone.testing.simulation.store import SimulatedObjects

LENGTH = 30


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_seed_holds(seed: int) -> None:
    outcome = simulate(make_plan(seed, LENGTH))
    assert outcome.violation is None, "\n".join([*outcome.history, str(outcome.violation)])


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_seed_with_damage_gives_right_answers_or_errors(seed: int) -> None:
    outcome = simulate(make_plan(seed, LENGTH, damage=True))
    assert outcome.violation is None, "\n".join([*outcome.history, str(outcome.violation)])


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        # A clock an hour ahead wrote once: documents were due by the log, and not by the clock of whoever compacts.
        (1766387389, "33 37"),
        # A vacuum forgot a round while somebody was about to read its completion file.
        (319914667, "19 23 25 53-wait 55 58"),
    ],
)
def test_a_history_that_was_once_wrong_holds(seed: int, steps: str) -> None:
    outcome = simulate(choose_steps(make_plan(seed), steps))
    assert outcome.violation is None, "\n".join([*outcome.history, str(outcome.violation)])


def test_a_seed_replays_bit_for_bit() -> None:
    first, second = simulate(make_plan(8, 25)), simulate(make_plan(8, 25))
    assert first.digest == second.digest
    assert first.history == second.history
    assert simulate(make_plan(9, 25)).digest != first.digest


def test_two_commits_that_both_believe_to_have_won_are_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_anyway(objects: SimulatedObjects, path: str, data: bytes | Iterable[bytes]) -> None:
        objects.replace(path, data)

    monkeypatch.setattr(SimulatedObjects, "create", create_anyway)
    # One process is interrupted by another one after its first call, then after its second, and so on.
    turns = [
        (Step(3 * n, 1, "write", calls=n), Step(3 * n + 1, 0, "write"), Step(3 * n + 2, 1, "write"))
        for n in range(1, 10)
    ]
    steps = tuple(step for turn in turns for step in turn)
    profile = replace(make_plan(1).profile, processes=2, partitions=1, operations={"write": 1}, listing_seconds=60.0)
    whole = Plan(1, profile, steps)
    failed = simulate(whole)
    assert failed.violation is not None
    assert failed.violation.kind == "lost write"
    shortest = minimize(failed)
    assert len(shortest.plan.steps) <= 5
    replayed = simulate(choose_steps(whole, describe_steps(whole, shortest.plan.steps)))
    assert replayed.history == shortest.history
    assert replayed.digest == shortest.digest
