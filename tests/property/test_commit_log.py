"""Any interleaving of processes, faults, pauses and clean-ups leaves a commit log equal to a plain dictionary."""

import uuid
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siltstone.errors import CommitUnknownError, StorageError
from siltstone.log.commit import CommitLog
from siltstone.objects import Objects
from siltstone.testing import FaultyObjects, Killed
from tests.unit.log.test_commit_log import AgingObjects, Clock

KEYS = st.sampled_from(["a", "b", "c", "d"])
CHANGES = st.dictionaries(KEYS, st.none() | st.integers(0, 9), min_size=1, max_size=3)
PROCESSES = st.integers(0, 2)


class CommitLogMachine(RuleBasedStateMachine):
    """Three processes on one log, and the dictionary it should equal."""

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.root = f"memory://{uuid.uuid4().hex}"
        self.store = AgingObjects(self.root, self.clock)
        self.processes = [self.new_process() for _ in range(3)]
        self.model: dict[str, int] = {}
        self.commits = 0

    def new_process(self) -> CommitLog:
        log = CommitLog(self.root, "log")
        log.objects = self.store
        return log

    def commit(self, process: CommitLog, changes: dict[str, int | None]) -> None:
        process.commit(
            "test", lambda _: {key: None if value is None else {"value": value} for key, value in changes.items()}
        )

    def apply(self, changes: dict[str, int | None]) -> None:
        self.commits += 1
        for key, value in changes.items():
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value

    @rule(process=PROCESSES, changes=CHANGES)
    def commits_in_peace(self, process: int, changes: dict[str, int | None]) -> None:
        self.commit(self.processes[process], changes)
        self.apply(changes)

    @rule(process=PROCESSES, changes=CHANGES, count=st.integers(5, 15))
    def commits_often(self, process: int, changes: dict[str, int | None], count: int) -> None:
        for _ in range(count):
            self.commits_in_peace(process, changes)

    @rule(
        process=PROCESSES,
        changes=CHANGES,
        at_call=st.integers(1, 6),
        kind=st.sampled_from(["fail", "lose", "kill", "kill_after"]),
    )
    def commits_with_a_fault(self, process: int, changes: dict[str, int | None], at_call: int, kind: Any) -> None:
        log = self.processes[process]
        faulty: Objects = FaultyObjects(self.store, at_call=at_call, kind=kind)
        log.objects = faulty
        before = self.batches()
        try:
            self.commit(log, changes)
        except (StorageError, CommitUnknownError, Killed) as error:
            if self.batches() > before:
                self.apply(changes)
            else:
                assert self.batches() == before
            if isinstance(error, Killed):
                self.processes[process] = self.new_process()
        else:
            self.apply(changes)
        log.objects = self.store

    @rule(seconds=st.sampled_from([1, 50, 100, 700, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.seconds += seconds

    @rule(process=PROCESSES)
    def restarts(self, process: int) -> None:
        self.processes[process] = self.new_process()

    @rule(process=PROCESSES)
    def writes_a_checkpoint(self, process: int) -> None:
        self.processes[process].checkpoint()

    @rule(process=PROCESSES)
    def reads(self, process: int) -> None:
        assert self.content(self.processes[process]) == self.model

    def content(self, log: CommitLog) -> dict[str, int]:
        return log.read(lambda state: {entry["key"]: entry["value"] for entry in state.scan("") if "value" in entry})

    def batches(self) -> int:
        return self.new_process().read(lambda state: state.batch_id)

    @invariant()
    def a_new_process_sees_every_commit_once(self) -> None:
        assert self.content(self.new_process()) == self.model
        assert self.batches() == self.commits - 1


CommitLogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestCommitLog = CommitLogMachine.TestCase
