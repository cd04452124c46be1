"""A simulation: processes over one store, carried on step by step, and checked after each."""

import contextlib
import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from unittest.mock import patch

from siltstone import clock
from siltstone.clock import StoreClock
from siltstone.log import state
from siltstone.objects import canonical_root, replaced
from siltstone.testing.faults import Killed
from siltstone.testing.oracle import Oracle
from siltstone.testing.simulation.actors import Actor, create_table
from siltstone.testing.simulation.chance import determined
from siltstone.testing.simulation.checker import Ledger, ViolationError
from siltstone.testing.simulation.clocks import START_MS, ClockChange, ProcessClock, TrueTime
from siltstone.testing.simulation.damage import damage_store
from siltstone.testing.simulation.documents import DocumentActor, create_documents
from siltstone.testing.simulation.judge import BlindError, Judge
from siltstone.testing.simulation.memory import memory_kept
from siltstone.testing.simulation.outcomes import Counts, Outcome
from siltstone.testing.simulation.processes import Operation, Process
from siltstone.testing.simulation.service import Service
from siltstone.testing.simulation.steps import DAMAGE, DATABASE_CLOCK, Plan, Step
from siltstone.testing.simulation.store import SimulatedObjects

T = TypeVar("T")
ROOT = "memory://simulation"
_HEALING = ("write", "compact", "read fresh", "read", "vacuum", "read fresh", "read")
_HEALING_DOCUMENTS = ("update documents", "compact documents", "read documents")
_LAST_STEP = 100_000


def actions(rows: Actor, documents: DocumentActor) -> dict[str, Callable[[], None]]:
    """Return what each operation on tables does."""
    return {
        "write": rows.write,
        "burst": rows.burst,
        "resend": rows.resend,
        "read": rows.read,
        "read fresh": rows.read_fresh,
        "read as of": rows.read_as_of,
        "compact": rows.compact,
        "compact full": rows.compact_full,
        "rebase": rows.rebase,
        "roll back": rows.roll_back,
        "trim": rows.trim,
        "vacuum": rows.vacuum,
        "vacuum dropped": rows.vacuum_dropped,
        "restart": rows.restart,
        "update documents": documents.update,
        "read documents": documents.read,
        "compact documents": documents.compact,
    }


@dataclass
class World:
    """Everything that a simulation consists of."""

    plan: Plan
    ignored: frozenset[str] = frozenset()
    time: TrueTime = field(default_factory=TrueTime)
    counts: Counts = field(default_factory=lambda: Counts(seeds=1))
    history: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the processes, which have done nothing yet."""
        self.root = canonical_root(ROOT)
        self.observer = Process("observer", self.time)
        known_clock = None if self.plan.profile.is_local else self._store_clock
        self.store = SimulatedObjects(self.root, self.observer.clock, self.call, known_clock)
        self.processes = [Process(f"p{number}", self.time) for number in range(self.plan.profile.processes)]
        self.service: Service | None = None
        self._running = self.observer
        self._digest = hashlib.sha256()

    def call(self, name: str, path: str, do: Callable[[], T]) -> T:
        """Let the process that runs call the store; what observes is never disturbed."""
        process = self._running
        operation = process.operation
        if name == "write" and operation is not None and operation.write_number is not None:
            self.ledger.writer_of[path] = operation.write_number
        return do() if process is self.observer else process.call(name, path, do)

    def _store_clock(self) -> StoreClock:
        """Return what the process that runs knows of the store's time."""
        memory = self._running.memory
        if memory.store_clock is None:
            memory.store_clock = StoreClock(lambda: self.call("time", "of the store", lambda: self.time.now_ms))
        return memory.store_clock

    def run(self) -> Outcome:
        """Carry out the plan, then see whether all is well once nothing disturbs any more."""
        violation: ViolationError | None = None
        with self._in_place():
            try:
                self._begin()
                for step in self.plan.steps:
                    self._carry_out(step)
                self._finish()
            except ViolationError as found:
                violation = found
            except BlindError as error:
                self.history.append(f"the end: {error.__cause__}")
            finally:
                self._stop()
        self._digest.update(str(violation).encode())
        return Outcome(self.plan, self.counts, self._digest.hexdigest()[:16], self.history, violation)

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        profile = self.plan.profile
        with (
            memory_kept(),
            patch.object(state, "CHECKPOINT_INTERVAL", profile.checkpoint_interval),
            patch.object(state, "RECENT_BATCHES", profile.recent_batches),
            patch.multiple(state, ANCHOR_INTERVAL=profile.anchor_interval, LISTING_SECONDS=profile.listing_seconds),
            clock.replaced(_RunningClock(self)),
            replaced(self.root, self.store),
            determined(lambda: self._running.chance, lambda: (self.time.now_ms - START_MS) / 1000),
        ):
            self.observer.memory.enter()
            yield

    @property
    def running_clock(self) -> ProcessClock:
        """The clock of the process that runs."""
        return self._running.clock

    def _let_run(self, process: Process) -> None:
        self._running.memory.leave()
        self._running = process
        process.memory.enter()

    def _begin(self) -> None:
        self.table = create_table(self.root)
        self.ledger = Ledger(Oracle.of_version(self.table.version), self.ignored)
        self.judge = Judge(self.table, self.ledger, self.store, self.observer.clock)
        if self.plan.profile.has_documents:
            self.judge.documents = create_documents(self.root)
        if self.plan.profile.has_service:
            self.service = Service(self.root, self.time, self.call)

    def _carry_out(self, step: Step) -> None:
        process = self.processes[step.process]
        self.counts.steps += 1
        self.time.pass_ms(step.wait_ms)
        if step.operation == DAMAGE:
            self._damage(step)
            return
        if step.operation == DATABASE_CLOCK:
            self._move_database_clock(step)
            return
        if step.clock is not None:
            self._change_clocks([process], step.clock, step.skew_ms)
            self.counts.clock_changes += 1
        if not process.is_busy:
            self._start(process, step)
        before = process.deaths
        is_over = self._go_on(process, step)
        self.counts.sleeps += step.sleeps and not is_over
        self.counts.calls += len(process.calls)
        self._digest.update("\n".join([str(step), str(self.time.now_ms), *process.calls]).encode())
        ending = self._end(process) if is_over else "paused"
        self.counts.deaths += process.deaths - before
        self._tell(process, step, ending)
        self._check(process.operation if is_over else None)

    def _change_clocks(self, processes: Sequence[Process], change: ClockChange, skew_ms: int = 0) -> None:
        """Change the clocks of processes; on one machine all have the same one, and so does the store."""
        for process in [*self.processes, self.observer] if self.plan.profile.is_local else processes:
            process.clock.change(change, skew_ms)

    def _damage(self, step: Step) -> None:
        damage = damage_store(self.store, random.Random(f"{self.plan.seed}/{step.number}/damage"))
        if damage is None:
            return
        self.counts.damages += 1
        self.judge.note_damage(damage)
        self.history.append(f"{step.number:>3} damage: {damage.kind} {' and '.join(damage.paths)}")
        self._digest.update(self.history[-1].encode())

    def _move_database_clock(self, step: Step) -> None:
        assert self.service is not None
        self.service.clock.change("set" if self.service.clock.is_right else "right", step.skew_ms)
        self.counts.clock_changes += 1
        self.history.append(
            f"{step.number:>3} the database's clock is {'right' if self.service.clock.is_right else step.skew_ms}"
        )

    def _start(self, process: Process, step: Step) -> None:
        operation = Operation(step, self.observer.clock.now_ms(), what=step.operation)
        seed = f"{self.plan.seed}/{step.number}"
        data = random.Random(f"{seed}/data")
        rows = Actor(self.root, self.ledger, operation, data, self.plan.profile.partitions)
        documents = DocumentActor(self.root, self.judge.document_ledger, operation, data)
        known = actions(rows, documents)
        if self.service is not None:
            for name, act in (
                ("lead", self.service.lead),
                ("work", self.service.work),
                ("check", self.service.check_progress),
            ):
                known[f"{name} service"] = functools.partial(act, process, operation)
        process.begin(operation, known[step.operation], random.Random(f"{seed}/chance"))

    def _go_on(self, process: Process, step: Step) -> bool:
        faults = process.faults_met
        self._let_run(process)
        try:
            return process.go_on(step)
        finally:
            self._let_run(self.observer)
            self.counts.faults += process.faults_met - faults

    def _end(self, process: Process) -> str:
        """Note how an operation ended, and what is wrong with that."""
        task, operation = process.end(), process.operation
        assert operation is not None
        if operation.step.operation == "restart":
            process.forget()
        problem = task.problem
        if problem is None:
            return "done"
        operation.check = None
        operation.violation = self.judge.problem_with(operation, problem, is_healed=operation.step.number >= _LAST_STEP)
        return "dead" if isinstance(problem, Killed) else f"{type(problem).__name__}: {problem}"

    def _check(self, ended: Operation | None) -> None:
        """Check all that is known. Raises: ViolationError."""
        self.counts.commits += self.judge.look()
        if ended is None:
            return
        try:
            if ended.violation is not None:
                raise ended.violation
            if ended.check is not None:
                self.counts.reads += 1
                ended.check()
        except ViolationError as violation:
            if violation.kind not in self.ignored:
                raise

    def _finish(self) -> None:
        """Let all that is under way end, put all clocks right, and see whether everybody can go on."""
        number = _LAST_STEP
        if self.service is not None:
            self.service.clock.change("right")
        self._change_clocks(self.processes, "right")
        for place, process in enumerate(self.processes):
            if process.is_busy:
                self._carry_out(Step(number - len(self.processes) + place, place, ""))
        for place in range(len(self.processes)):
            rows = _HEALING if place == 0 else _HEALING[:4]
            for operation in (*rows, *_HEALING_DOCUMENTS) if self.plan.profile.has_documents else rows:
                self._carry_out(Step(number, place, operation))
                number += 1
        if self.service is not None and not self.judge.damages:
            self._carry_out(Step(number, 0, "write"))
            self._carry_out(Step(number + 1, 0, "check service"))
        self.observer.forget()
        self.observer.memory.enter()
        self.judge.look_deep()

    def _stop(self) -> None:
        """Let every process that is still busy die, so that no thread is left."""
        for process in self.processes:
            if process.task is not None:
                process.die()
                self._let_run(process)
                process.task.resume()
        self._let_run(self.observer)
        if self.service is not None:
            self.service.close()

    def _tell(self, process: Process, step: Step, ending: str) -> None:
        assert process.operation is not None
        time = f"+{(self.time.now_ms - START_MS) / 1000:.1f}s"
        parts = [f"{step.number:>3} {time:>10} {process.name} {process.operation.what}"]
        if step.clock is not None:
            parts.append(
                f"clock {step.clock} {step.skew_ms / 60000:+.0f} min" if step.skew_ms else f"clock {step.clock}"
            )
        parts.append(f"{len(process.calls)} calls" + (f" to {process.calls[-1]}" if process.calls else ""))
        asleep = ", then its machine sleeps" if step.sleeps and process.is_busy else ""
        self.history.append(f"{'; '.join(parts)}: {ending}{asleep}")


class _RunningClock:
    """The clock of whichever process runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.running_clock.now_ms()

    def monotonic(self) -> float:
        return self._world.running_clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._world.running_clock.sleep(seconds)


def simulate(plan: Plan, ignored: Iterable[str] = ()) -> Outcome:
    """Run a simulation from beginning to end; some kinds of violation may be ignored, so that others are found."""
    return World(plan, frozenset(ignored)).run()
