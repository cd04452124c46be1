"""Processes of a simulation: each has its own clock and its own memory of the logs, and dies and comes back.

An operation runs in a thread of its own, but never beside another one: a process goes on only while the simulation
waits for it, for as many calls as its step allows.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from siltstone.errors import StorageError
from siltstone.testing.faults import Killed
from siltstone.testing.simulation.clocks import ProcessClock, TrueTime
from siltstone.testing.simulation.memory import Memory
from siltstone.testing.simulation.steps import Step

T = TypeVar("T")
CALL_MS = 3


class Task:
    """An operation under way; it runs while `resume` waits, until it pauses or is over."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.is_over = False
        self.result: object = None
        self.problem: BaseException | None = None
        self._do = do
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="simulated", daemon=True)

    def resume(self) -> None:
        """Let the operation go on, and wait until it pauses or is over."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._may_go.release()
        self._has_stopped.acquire()
        if self.is_over:
            self._thread.join()

    def pause(self) -> None:
        """Hand over to the simulation; called by the operation."""
        self._has_stopped.release()
        self._may_go.acquire()

    def _run(self) -> None:
        try:
            self.result = self._do()
        except BaseException as error:  # noqa: BLE001 - how an operation ends is looked at elsewhere
            self.problem = error
        self.is_over = True
        self._has_stopped.release()


@dataclass
class Operation:
    """What a process does, since when, under which write number, and what is to be checked when it is over."""

    step: Step
    begun_ms: int
    what: str = ""
    write_number: int | None = None
    needs_old_deltas: bool = False
    check: Callable[[], None] | None = None
    violation: Exception | None = None


class Process:
    """One simulated process."""

    def __init__(self, name: str, time: TrueTime) -> None:
        self.name = name
        self.clock = ProcessClock(time, self._wait)
        self.memory = Memory()
        self.chance = random.Random(0)
        self.operation: Operation | None = None
        self.task: Task | None = None
        self.calls: list[str] = []
        self.faults_met = 0
        self.deaths = 0
        self._time = time
        self._step: Step | None = None
        self._calls_left: int | None = None
        self._is_dead = False

    @property
    def is_busy(self) -> bool:
        """Whether an operation is under way."""
        return self.task is not None

    def begin(self, operation: Operation, do: Callable[[], object], chance: random.Random) -> None:
        """Make an operation ready to run."""
        self.operation = operation
        self.chance = chance
        self.task = Task(do)

    def go_on(self, step: Step) -> bool:
        """Let the operation go on as a step says; return whether it is over."""
        assert self.task is not None
        self.clock.wake_up()
        self._step = step
        self._calls_left = step.calls
        self.calls = []
        self.task.resume()
        if not self.task.is_over and step.sleeps:
            self.clock.fall_asleep()
        return self.task.is_over

    def end(self) -> Task:
        """Forget the operation that is over; after a death, forget everything."""
        task = self.task
        assert task is not None
        self.task = None
        if self._is_dead:
            self._is_dead = False
            self.deaths += 1
            self.forget()
        return task

    def forget(self) -> None:
        """Remember nothing, as a new process."""
        self.memory = Memory()

    def die(self) -> None:
        """Let the process die where it is."""
        self._is_dead = True

    def call(self, name: str, path: str, do: Callable[[], T]) -> T:
        """Carry out a call to the store, unless the step says something else."""
        self._wait_for_turn()
        self.calls.append(f"{name} {path}")
        fault = self._step.fault if self._step is not None and self._calls_left == 0 else None
        if fault is None:
            return do()
        self.faults_met += 1
        self.calls[-1] += f" ({fault})"
        if fault == "kill":
            self.die()
            raise Killed("the process died")
        if fault == "fail":
            raise StorageError(f"{path}: the store failed at {name}")
        result = do()
        if fault == "kill_after":
            self.die()
            raise Killed("the process died")
        raise StorageError(f"{path}: the answer to {name} got lost: {type(result).__name__}")

    def _wait_for_turn(self) -> None:
        if self._is_dead:
            raise Killed("the process is dead")
        if self._calls_left == 0:
            assert self.task is not None
            self.task.pause()
            if self._is_dead:
                raise Killed("the process is dead")
        if self._calls_left is not None:
            self._calls_left -= 1
        self._time.pass_ms(CALL_MS)

    def _wait(self, seconds: float) -> None:
        self._wait_for_turn()
        self.calls.append(f"sleep {seconds:.3f}")
