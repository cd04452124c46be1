"""What came out of simulations: how one ended, and what happened in one or in many."""

from dataclasses import dataclass

from siltstone.testing.simulation.checker import ViolationError
from siltstone.testing.simulation.steps import Plan


@dataclass
class Counts:
    """What happened in one simulation, or in many."""

    seeds: int = 0
    steps: int = 0
    calls: int = 0
    commits: int = 0
    reads: int = 0
    faults: int = 0
    deaths: int = 0
    clock_changes: int = 0
    damages: int = 0
    sleeps: int = 0

    def add(self, other: "Counts") -> None:
        """Add what happened in another one."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Outcome:
    """How a simulation ended."""

    plan: Plan
    counts: Counts
    digest: str
    history: list[str]
    violation: ViolationError | None = None
