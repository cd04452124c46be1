"""Simulate lakes with wrong clocks, sleepers, deaths and a bad store, seed after seed, until the time is up.

`python -m dev.simulate --minutes 60` searches. What it finds is made short, and replayed by its seed.
"""

import argparse
import json
import logging
import multiprocessing
import os
import queue
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dev.undone import UNDONE, undone
from siltstone.testing.simulation import Counts, Outcome, Plan, make_plan, simulate
from siltstone.testing.simulation.minimize import choose_steps, describe_steps, minimize

LENGTH = 60
_MINIMIZING_SECONDS = 120
_PROGRESS_SECONDS = 60
_SLOW_SECONDS = 60


@dataclass(frozen=True)
class Failure:
    """A seed that fails, and the shortest way found to see it."""

    seed: int
    kind: str
    message: str
    steps: str
    history: list[str]
    seconds: float
    is_damaged: bool
    undone: str | None

    @property
    def replay(self) -> str:
        """The command that shows the short history again."""
        damage = " --damage" if self.is_damaged else ""
        undo = f" --undo {self.undone}" if self.undone else ""
        return f"make simulate ARGS=\"--seed {self.seed}{damage}{undo} --steps '{self.steps}'\""


def run_seed(
    seed: int, length: int, damage: bool, ignored: Sequence[str], undo: str | None
) -> tuple[int, Counts, str | None]:
    """Run one seed; return what happened, and the kind of violation if there was one."""
    logging.getLogger("siltstone").setLevel(logging.CRITICAL)
    with undone(undo):
        outcome = simulate(make_plan(seed, length, damage=damage), ignored)
    return seed, outcome.counts, None if outcome.violation is None else outcome.violation.kind


def explain(whole: Plan, asked: argparse.Namespace, found_after: float) -> Failure:
    """Run a failing seed again, and make it short."""
    ends_at = time.monotonic() + _MINIMIZING_SECONDS
    failed = simulate(whole, asked.ignore)
    shortest = minimize(failed, ignored=asked.ignore, may_go_on=lambda: time.monotonic() < ends_at)
    return _failure(shortest, describe_steps(whole, shortest.plan.steps), found_after, asked.undo)


def _failure(outcome: Outcome, steps: str, seconds: float, undo: str | None) -> Failure:
    violation = outcome.violation
    assert violation is not None
    plan = outcome.plan
    return Failure(plan.seed, violation.kind, str(violation), steps, outcome.history, seconds, plan.has_damage, undo)


def search(asked: argparse.Namespace, total: Counts) -> list[Failure]:
    """Run seeds until the time is up or enough kinds of failure were found; return one failure of each kind."""
    started = time.monotonic()
    first = random.SystemRandom().getrandbits(31) if asked.first is None else asked.first
    failures: dict[str, Failure] = {}
    explaining, told = 0.0, started
    for seed, counts, kind in _in_processes(asked, first, started + asked.minutes * 60):
        total.add(counts)
        told = _tell_progress(total, len(failures), started, told)
        if kind is None or kind in failures:
            continue
        plan = make_plan(seed, asked.length, damage=asked.damage)
        failure = explain(plan, asked, time.monotonic() - started - explaining)
        explaining = time.monotonic() - started - failure.seconds
        failures[kind] = failure
        if not asked.json:
            show(failure)
        if len(failures) >= asked.failures:
            break
    return list(failures.values())


def _tell_progress(total: Counts, kinds: int, started: float, told: float) -> float:
    """Print once a minute how far the search has come; return when that was last done."""
    now = time.monotonic()
    if now - told < _PROGRESS_SECONDS:
        return told
    found = f"{kinds} kinds of violation" if kinds else "no violation"
    print(
        f"{(now - started) / 60:.0f} min: {total.seeds} seeds, {total.steps} steps, {found}",
        file=sys.stderr,
        flush=True,
    )
    return now


def _in_processes(asked: argparse.Namespace, seed: int, ends_at: float) -> Iterator[tuple[int, Counts, str | None]]:
    """Yield what became of seeds until the time is up; those that run then are given up, since one may take for ever."""
    results: queue.SimpleQueue[tuple[int, Counts, str | None] | BaseException] = queue.SimpleQueue()
    running: dict[int, float] = {}
    with multiprocessing.Pool(asked.processes) as pool:
        while time.monotonic() < ends_at:
            while len(running) < asked.processes:
                given = (seed, asked.length, asked.damage, asked.ignore, asked.undo)
                pool.apply_async(run_seed, given, callback=results.put, error_callback=results.put)
                running[seed] = time.monotonic()
                seed += 1
            try:
                done = results.get(timeout=max(0.0, ends_at - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(done, BaseException):
                raise done
            del running[done[0]]
            yield done
    for slow, began in running.items():
        if time.monotonic() - began > _SLOW_SECONDS:
            print(
                f"seed {slow} was given up after {time.monotonic() - began:.0f} s; see --seed {slow}", file=sys.stderr
            )


def replay(asked: argparse.Namespace, total: Counts) -> list[Failure]:
    """Run one seed, or some steps of it."""
    plan = make_plan(asked.seed, asked.length, damage=asked.damage)
    if asked.steps is not None:
        plan = choose_steps(plan, asked.steps)
    outcome = simulate(plan, asked.ignore)
    total.add(outcome.counts)
    if not asked.json:
        print("\n".join([*outcome.history, f"digest {outcome.digest}"]))
    if outcome.violation is None:
        return []
    found = explain(plan, asked, 0.0) if asked.steps is None else _failure(outcome, asked.steps, 0.0, asked.undo)
    if not asked.json:
        show(found)
    return [found]


def show(failure: Failure) -> None:
    """Print a failure with its short history."""
    print(f"\nseed {failure.seed}, after {failure.seconds:.0f} s, in {len(failure.history)} steps:")
    print("\n".join(failure.history))
    print(f"VIOLATED: {failure.message}\nTo replay it:\n  {failure.replay}\n", flush=True)


def report(total: Counts, failures: list[Failure], seconds: float, *, as_json: bool) -> None:
    """Print what happened in all."""
    if as_json:
        print(
            json.dumps(
                {**vars(total), "seconds": round(seconds, 1), "failures": [vars(failure) for failure in failures]}
            )
        )
        return
    counts = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in vars(total).items())
    verdict = f"{len(failures)} kinds of violation" if failures else "no violation"
    print(f"{counts}; {seconds:.0f} s: {verdict}")


def main() -> int:
    """Search or replay, and return 1 if something is violated."""
    parser = argparse.ArgumentParser(prog="make simulate ARGS=…", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long to search (10)")
    parser.add_argument("--seed", type=int, help="replay: run this seed only, and show its history")
    parser.add_argument("--steps", help="replay: only these steps of the seed, as a failure shows them")
    parser.add_argument(
        "--damage", action="store_true", help="cut, flip, swap and delete what is stored; clocks are right"
    )
    parser.add_argument("--length", type=int, default=LENGTH, help=f"steps of a seed ({LENGTH})")
    parser.add_argument("--first", type=int, help="the first seed of the search (a random one)")
    parser.add_argument("--failures", type=int, default=1, help="end after so many kinds of violation (1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="seeds side by side (one per core)")
    parser.add_argument("--ignore", action="append", default=[], help="a kind of violation to ignore, e.g. 'torn read'")
    parser.add_argument(
        "--undo", choices=UNDONE, help="take back what closes a hole, to see that the search finds it; chain: --damage"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    logging.getLogger("siltstone").setLevel(logging.CRITICAL)
    started = time.monotonic()
    total = Counts()
    with undone(asked.undo):
        failures = search(asked, total) if asked.seed is None else replay(asked, total)
    report(total, failures, time.monotonic() - started, as_json=asked.json)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
