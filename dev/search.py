"""Search at random for what the property tests say cannot happen: fresh seeds, more examples, until the time is up.

`python -m dev.search --minutes 10` takes the property tests in turn. What it finds is replayed by its seed.
"""

import argparse
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

# A run takes about so long: the search is then over soon after its time is, and little of it is spent on starting Python.
RUN_SECONDS = 20
MAX_TIMES = 200
_PYTEST = [sys.executable, "-m", "pytest", "-m", "hypothesis and not integration"]
_NO_TESTS = 5


@dataclass(frozen=True)
class Run:
    """One test, run once: with which seed, and with how many times its usual number of examples."""

    test: str
    seed: int
    times: int

    @property
    def replay(self) -> str:
        """The command that draws the same examples again."""
        chosen = shlex.quote(shlex.join(["--only", self.test, "--seed", str(self.seed), "--times", str(self.times)]))
        return f"make test-search ARGS={chosen}"


@dataclass(frozen=True)
class Outcome:
    """What came out of a run."""

    run: Run
    exit_code: int
    examples: int
    seconds: float
    output: str

    @property
    def is_violated(self) -> bool:
        """Whether the test did not pass; a process that died did not, either."""
        return self.exit_code != 0

    @property
    def verdict(self) -> str:
        """What to say of it."""
        if self.exit_code < 0:
            return f"died of {signal.Signals(-self.exit_code).name}"
        return "is violated" if self.is_violated else "holds"


class Turns:
    """Which test is next, until the time is up or something was found."""

    def __init__(self, tests: Sequence[str], seconds: float) -> None:
        self._tests = list(tests)
        self._times = dict.fromkeys(tests, 1)
        self._ends_at = time.monotonic() + seconds
        self._seeds = random.SystemRandom()
        self._lock = threading.Lock()
        self._is_over = False

    def __iter__(self) -> Iterator[Run]:
        while (run := self._next()) is not None:
            yield run

    def _next(self) -> Run | None:
        with self._lock:
            if self._is_over or time.monotonic() >= self._ends_at:
                return None
            test = self._tests.pop(0)
            self._tests.append(test)
            return Run(test, self._seeds.getrandbits(32), self._times[test])

    def note(self, outcome: Outcome) -> None:
        """Give the test as many examples as fit into the next run; end the search where it found something."""
        with self._lock:
            fitting = round(outcome.run.times * RUN_SECONDS / max(outcome.seconds, 0.1))
            self._times[outcome.run.test] = min(max(1, fitting), 4 * outcome.run.times, MAX_TIMES)
            self._is_over |= outcome.is_violated


def find_tests(only: str) -> list[str]:
    """Return the names of all property tests that have a text in their names."""
    listed = subprocess.run(  # noqa: S603
        [*_PYTEST, "--collect-only"], capture_output=True, text=True, check=False
    )
    if listed.returncode not in (0, _NO_TESTS):
        raise SystemExit(listed.stdout + listed.stderr)
    return [line for line in listed.stdout.splitlines() if "::" in line and only in line]


def carry_out(run: Run) -> Outcome:
    """Run a test in a process of its own."""
    started = time.monotonic()
    chosen = [f"--hypothesis-seed={run.seed}", f"--times={run.times}", "--hypothesis-show-statistics", run.test]
    ended = subprocess.run(  # noqa: S603
        [*_PYTEST, "--hypothesis-profile=search", *chosen],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    examples = sum(map(int, re.findall(r"- (\d+) passing", ended.stdout)))
    return Outcome(run, ended.returncode, examples, time.monotonic() - started, ended.stdout)


def search(turns: Turns, processes: int) -> list[Outcome]:
    """Let several processes take turns, and return what came out."""
    outcomes: list[Outcome] = []

    def take_turns() -> None:
        for run in turns:
            outcome = carry_out(run)
            turns.note(outcome)
            outcomes.append(outcome)
            show(outcome)

    with ThreadPoolExecutor(processes) as pool:
        for future in [pool.submit(take_turns) for _ in range(processes)]:
            future.result()
    return outcomes


def show(outcome: Outcome) -> None:
    """Say in one line what came out of a run."""
    run = outcome.run
    print(
        f"seed {run.seed:<10}  {outcome.examples:>6} examples  {outcome.seconds:>5.1f} s  {run.test} {outcome.verdict}",
        flush=True,
    )


def main() -> int:
    """Search, and return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="make test-search ARGS=…", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long to search (10)")
    parser.add_argument("--only", default="", help="only tests that have this text in their names, as file.py::name")
    parser.add_argument("--seed", type=int, help="replay: run each of the tests once, with this seed")
    parser.add_argument("--times", type=int, default=1, help="replay: how many times the usual number of examples")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs side by side (one per core)")
    asked = parser.parse_args()
    tests = find_tests(asked.only)
    if not tests:
        parser.error(f"no property test has {asked.only!r} in its name")
    started = time.monotonic()
    if asked.seed is None:
        outcomes = search(Turns(tests, asked.minutes * 60), asked.processes)
    else:
        outcomes = [carry_out(Run(test, asked.seed, asked.times)) for test in tests]
        for outcome in outcomes:
            show(outcome)
    violations = [outcome for outcome in outcomes if outcome.is_violated]
    for outcome in violations:
        print(f"\n{outcome.output}\n{outcome.run.test} {outcome.verdict}. To replay it:\n  {outcome.run.replay}")
    examples = sum(outcome.examples for outcome in outcomes)
    found = f"{len(violations)} violated" if violations else "no violation"
    print(
        f"\n{len(outcomes)} runs of {len(tests)} tests, {examples} examples, {time.monotonic() - started:.0f} s: {found}"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
