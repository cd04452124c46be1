"""What happens in a simulation, drawn from a seed before it begins: a list of steps that can be cut down and replayed."""

import random
from dataclasses import dataclass, replace
from typing import Literal

from siltstone.testing.simulation.clocks import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, ClockChange

Fault = Literal["fail", "lose", "kill", "kill_after"]
FAULTS: tuple[Fault, ...] = ("fail", "lose", "kill", "kill_after")
SKEWS_MS = (20 * MINUTE_MS, HOUR_MS, 2 * DAY_MS, 8 * DAY_MS, 31 * DAY_MS, -HOUR_MS, -2 * DAY_MS)
WAITS_MS = (SECOND_MS, MINUTE_MS, 11 * MINUTE_MS, 11 * MINUTE_MS, HOUR_MS, 2 * HOUR_MS, 25 * HOUR_MS)
# Less than what the lake keeps for a time: tombstones for 7 days, idempotency ids for 30. So none may ever expire.
LONGEST_MS = 6 * DAY_MS

# How often each operation is drawn, compared with the others.
OPERATIONS = {
    "write": 10,
    "burst": 6,
    "resend": 3,
    "read": 4,
    "read fresh": 4,
    "read as of": 2,
    "compact": 6,
    "compact full": 2,
    "rebase": 1,
    "roll back": 1,
    "trim": 2,
    "vacuum": 2,
    "vacuum dropped": 1,
    "restart": 1,
    "update documents": 6,
    "read documents": 3,
    "compact documents": 3,
    "lead service": 6,
    "work service": 6,
}
DAMAGE = "damage"
DATABASE_CLOCK = "database clock"
_ALWAYS = ("write", "read fresh")
# Of these, a seed has all or none.
_TOGETHER = {name: name.split()[-1] for name in OPERATIONS if name.endswith(("documents", "service"))}
# A process is interrupted after about so many calls: a write makes a dozen, a round some dozens.
_CALLS = 6
# What a process is left alone with, after so many calls at most, and what others do then, among other things.
_INTERRUPTED = ("write", "burst", "compact")
_MOST_CALLS = 16
_MEANWHILE: tuple[tuple[tuple[str, int], ...], ...] = (
    (),
    (("vacuum", 25 * HOUR_MS),),
    (("burst", 0), ("burst", 11 * MINUTE_MS), ("burst", 0)),
)


@dataclass(frozen=True)
class Step:
    """One process goes on for some calls, or to the end of its operation; if it has none, it begins one.

    A fault strikes the last of the calls. Before the step, time passes and the process's clock may change; after it,
    its machine may sleep until its next step.
    """

    number: int
    process: int
    operation: str
    calls: int | None = None
    fault: Fault | None = None
    wait_ms: int = 0
    clock: ClockChange | None = None
    skew_ms: int = 0
    sleeps: bool = False


@dataclass(frozen=True)
class Profile:
    """What a seed is about. Each has only some operations and faults, so that these meet more often."""

    processes: int
    partitions: int
    operations: dict[str, int]
    interruptions: float
    faults: float
    waits: float
    clocks: float
    sleeps: float
    skews_ms: tuple[int, ...]
    checkpoint_interval: int
    anchor_interval: int
    recent_batches: int
    listing_seconds: float
    is_local: bool = False
    """Whether all processes are on one machine, whose disk is the store: there is no clock but that machine's."""

    @property
    def has_documents(self) -> bool:
        """Whether there is a table of documents too."""
        return "update documents" in self.operations

    @property
    def has_service(self) -> bool:
        """Whether processes are nodes of a service too."""
        return "lead service" in self.operations


@dataclass(frozen=True)
class Plan:
    """A simulation to be run."""

    seed: int
    profile: Profile
    steps: tuple[Step, ...]
    has_damage: bool = False


def make_plan(seed: int, length: int = 60, *, damage: bool = False) -> Plan:
    """Draw the plan of a seed; with damage, clocks are right, and processes come and go more often."""
    chance = random.Random(f"plan {seed}")
    profile = _make_profile(chance)
    if damage:
        profile = replace(profile, clocks=0.0, sleeps=0.0, listing_seconds=0.0)
        profile = replace(profile, operations={**profile.operations, "restart": 6, "read": 4})
    steps = []
    left_ms = LONGEST_MS
    for number in range(1, length + 1):
        step = _make_step(number, profile, chance, left_ms)
        left_ms -= step.wait_ms
        steps.append(step)
    if chance.random() < 0.6:
        _leave_alone(steps, profile, chance)
    if damage:
        first = chance.randrange(length // 4, length)
        steps[first] = replace(steps[first], operation=DAMAGE, calls=None, fault=None)
    return Plan(seed, profile, tuple(steps), damage)


def _leave_alone(steps: list[Step], profile: Profile, chance: random.Random) -> None:
    """Let one process do nothing for long, most often in the middle of something, while the others go on."""
    absent = chance.randrange(profile.processes)
    first = chance.randrange(len(steps) // 10, len(steps) // 2)
    last = first + chance.randrange(len(steps) // 3, len(steps) // 2)
    own = [place for place, step in enumerate(steps[:first]) if step.process == absent]
    if own and chance.random() < 0.8:
        steps[own[-1]] = replace(
            steps[own[-1]],
            operation=chance.choice([name for name in _INTERRUPTED if name in profile.operations]),
            calls=chance.randint(1, _MOST_CALLS),
            fault=None,
        )
    for place in range(first, last):
        if steps[place].process == absent:
            other = (absent + chance.randrange(1, profile.processes)) % profile.processes
            steps[place] = replace(steps[place], process=other)
    meanwhile = chance.choice(_MEANWHILE)
    if all(operation in profile.operations for operation, _ in meanwhile):
        for place, (operation, wait_ms) in zip(
            sorted(chance.sample(range(first, last), len(meanwhile))), meanwhile, strict=True
        ):
            passed = sum(step.wait_ms for step in steps) - steps[place].wait_ms
            wait_ms = min(wait_ms, max(LONGEST_MS - passed, 0))
            steps[place] = replace(steps[place], operation=operation, calls=None, fault=None, wait_ms=wait_ms)


def _make_profile(chance: random.Random) -> Profile:
    kinds = dict.fromkeys(_TOGETHER.get(name, name) for name in OPERATIONS)
    drawn = {
        kind for kind in kinds if kind in _ALWAYS or chance.random() < (0.3 if kind in _TOGETHER.values() else 0.75)
    }
    chosen = [name for name in OPERATIONS if _TOGETHER.get(name, name) in drawn]
    profile = Profile(
        processes=chance.choice((2, 3, 3, 4)),
        partitions=chance.choice((1, 1, 3)),
        operations={name: OPERATIONS[name] for name in chosen},
        interruptions=chance.choice((0.1, 0.6, 0.8)),
        faults=chance.choice((0.0, 0.0, 0.1, 0.3)),
        waits=chance.choice((0.0, 0.1, 0.3)),
        clocks=chance.choice((0.0, 0.0, 0.1, 0.2)),
        sleeps=chance.choice((0.0, 0.0, 0.5)),
        skews_ms=tuple(chance.sample(SKEWS_MS, chance.choice((1, 1, 3)))),
        # As they are, or so small that logs are summed up and cleaned up all the time.
        checkpoint_interval=chance.choice((2, 5, 10)),
        anchor_interval=chance.choice((1, 4, 16)),
        recent_batches=chance.choice((5, 100)),
        listing_seconds=chance.choice((0.0, 60.0)),
    )
    # While one machine sleeps, nothing happens at all.
    return replace(profile, is_local=True, sleeps=0.0) if chance.random() < 0.25 else profile


def _make_step(number: int, profile: Profile, chance: random.Random, left_ms: int) -> Step:
    (operation,) = chance.choices(list(profile.operations), list(profile.operations.values()))
    calls = 1 + int(chance.expovariate(1 / _CALLS)) if chance.random() < profile.interruptions else None
    wait_ms = chance.choice(WAITS_MS) if chance.random() < profile.waits else 0
    fault = chance.choice(FAULTS) if chance.random() < profile.faults else None
    clock: ClockChange | None = None
    if chance.random() < profile.clocks:
        clock = chance.choice(("set", "set", "set", "stop", "right"))
    if profile.has_service and chance.random() < profile.clocks:
        operation = DATABASE_CLOCK
    return Step(
        number=number,
        process=chance.randrange(profile.processes),
        operation=operation,
        calls=(calls or 1 + int(chance.expovariate(1 / _CALLS))) if fault else calls,
        fault=fault,
        wait_ms=min(wait_ms, max(left_ms, 0)),
        clock=clock,
        skew_ms=chance.choice(profile.skews_ms) if clock == "set" or operation == DATABASE_CLOCK else 0,
        sleeps=chance.random() < profile.sleeps,
    )
