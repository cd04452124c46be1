"""Tables that follow one stream, with trims, rollbacks, rebases, damage and repairs in any order: no delta is missed."""

import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import siltstone
from siltstone.model import PartitionLocator
from siltstone.objects import open_objects
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.service.lake_tables import LakeTables
from siltstone.table.completion import bucket_objects, current_completion, list_rounds, locate_destination
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FAULT_KINDS
from tests.unit.service.cycling import compact_one, trim_one

IDS = st.lists(st.integers(0, 11), min_size=1, max_size=6)
CHOICES = st.integers(0, 255)
TABLES = st.sampled_from(["orders", "copy", "mirror"])
FOLLOWERS = st.sampled_from(["copy", "mirror"])
SMALL = Settings(bucket_rows=3, max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=100, page_buckets=2)
Rows = dict[int, str]


class FollowersMachine(RuleBasedStateMachine):
    """A table of deltas, two tables that stand in for it, and the rows that there were at each position."""

    @initialize()
    def create(self) -> None:
        self.lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
        self.root = self.lake.root
        self.service = LakeTables(self.lake, engine=run_here, delta_retention_seconds=0)
        self.states: list[Rows] = [{}]
        for name in ("orders", "copy", "mirror"):
            self.make(name)
        self.write([1, 2, 3], is_delete=False)
        compact_one(self.service, self.partition("orders"))
        self.begin_to_follow("copy", "orders")

    def make(self, name: str) -> None:
        self.lake.create_table(f"shop.{name}", schema={"id": "int64", "v": "string"}, primary_keys=["id"])

    def table(self, name: str) -> siltstone.Table:
        return self.lake.table(f"shop.{name}")

    def partition(self, name: str, stream: str = "deltas") -> PartitionLocator:
        return PartitionLocator(**self.table(name).version.locator, stream=stream)

    def current(self, name: str) -> Any:
        return current_completion(locate_destination(self.partition(name, "compacted"), root=self.root))

    def check(self) -> None:
        for name in ("orders", "copy", "mirror"):
            completion = self.current(name)
            if completion is not None:
                found = {row["id"]: row["v"] for row in self.table(name).to_arrow().to_pylist()}
                assert found == self.states[completion.high_watermark], name
                fresh = self.table(name).to_arrow(include_uncompacted=True).to_pylist()
                assert {row["id"]: row["v"] for row in fresh} == self.states[-1], name

    @rule(ids=IDS, is_delete=st.booleans())
    def write(self, ids: list[int], is_delete: bool) -> None:
        before = self.states[-1]
        if is_delete:
            self.table("orders").write(pa.table({"id": ids}), "delete")
            self.states.append({key: value for key, value in before.items() if key not in ids})
        else:
            values = [f"{len(self.states)}-{number}" for number, _ in enumerate(ids)]
            self.table("orders").write(pa.table({"id": ids, "v": values}))
            self.states.append({**before, **dict(zip(ids, values, strict=True))})

    @rule(name=TABLES)
    def compact_one(self, name: str) -> None:
        if name == "orders" or self.current(name) is not None:
            compact_one(self.service, self.partition(name))
            assert self.current(name).high_watermark == len(self.states) - 1
        self.check()

    @rule()
    def compact_what_waits(self) -> None:
        for each in self.service.find_work(lambda: None):
            assert each.locator is not None, each.problem
            compact_one(self.service, each.locator)
        for name in ("orders", "copy", "mirror"):
            completion = self.current(name)
            assert completion is None or completion.high_watermark == len(self.states) - 1
        self.check()

    def begin_to_follow(self, name: str, origin: str) -> None:
        """Let a table begin anew from what another one holds, on behalf of the orders."""
        completion = self.current(origin)
        if completion is not None:
            request = Request(
                self.partition(origin, "compacted"),
                self.partition(name, "compacted"),
                ("id",),
                self.root,
                rebase_source=self.partition("orders"),
                rebase_high_watermark=completion.high_watermark,
                last_stream_position=completion.high_watermark,
                settings=SMALL,
            )
            run_session(request, run_here)

    @rule(name=FOLLOWERS, origin=TABLES)
    def rebase(self, name: str, origin: str) -> None:
        self.begin_to_follow(name, origin)
        self.check()

    @rule(name=TABLES)
    def trim(self, name: str) -> None:
        with contextlib.suppress(siltstone.NotFoundError):
            trim_one(self.service, self.partition(name), 1 << 40)
        self.check()

    @rule(ids=IDS, is_delete=st.booleans(), count=st.integers(1, 3))
    def write_compact_and_trim(self, ids: list[int], is_delete: bool, count: int) -> None:
        """Let the table of deltas run ahead of its followers."""
        for _ in range(count):
            self.write(ids, is_delete)
            compact_one(self.service, self.partition("orders"))
        self.trim("orders")

    @rule(name=TABLES, choice=CHOICES)
    def roll_back(self, name: str, choice: int) -> None:
        rounds = list_rounds(locate_destination(self.partition(name, "compacted"), root=self.root))[:-1]
        if rounds:
            with contextlib.suppress(siltstone.InvalidInputError):
                self.table(name).rollback(int(rounds[choice % len(rounds)]["round_id"]))
        self.check()

    @rule(name=TABLES)
    def vacuum(self, name: str) -> None:
        self.table(name).vacuum(retention_ms=0, orphan_grace_ms=0)
        self.check()

    @rule(name=FOLLOWERS)
    def drop_and_create_again(self, name: str) -> None:
        self.table(name).drop()
        self.make(name)
        self.check()

    @rule(name=TABLES, choice=CHOICES)
    def damage_and_repair(self, name: str, choice: int) -> None:
        """Lose a file: a repair brings back all rows, or says that it cannot; then the file comes back."""
        completion = self.current(name)
        objects = bucket_objects(completion.buckets) if completion is not None else []
        if not objects:
            return
        lost = objects[choice % len(objects)]
        data = open_objects(self.root).read(lost)
        open_objects(self.root).delete([lost])
        try:
            self.table(name).repair()
        except siltstone.InvalidInputError:
            open_objects(self.root).create(lost, data)
        assert self.table(name).fsck(deep=True) == []
        self.check()

    @rule(
        what=st.sampled_from(["compact", "rebase", "trim", "roll back"]),
        name=FOLLOWERS,
        at_call=st.integers(1, 60),
        kind=st.sampled_from(FAULT_KINDS),
        choice=CHOICES,
    )
    def die(self, what: str, name: str, at_call: int, kind: Any, choice: int) -> None:
        """Do something while the store fails or the process dies at some call."""
        act: dict[str, Callable[[], object]] = {
            "compact": lambda: compact_one(self.service, self.partition("orders")),
            "rebase": lambda: self.begin_to_follow(name, "orders"),
            "trim": lambda: trim_one(self.service, self.partition("orders"), 1 << 40),
            "roll back": lambda: self.roll_back(name, choice),
        }
        with faults(self.root, at_call=at_call, kind=kind), contextlib.suppress(Killed, siltstone.SiltstoneError):
            act[what]()
        self.check()

    def teardown(self) -> None:
        """At the end all is compacted and sound, and without followers all deltas can go."""
        if not hasattr(self, "states"):
            return
        self.compact_what_waits()
        for name in ("orders", "copy", "mirror"):
            assert self.table(name).fsck(deep=True) == []
        for name in ("copy", "mirror"):
            self.table(name).drop()
        trim_one(self.service, self.partition("orders"), 1 << 40)
        assert self.table("orders").deltas() == []


FollowersMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25)
TestFollowersMachine = FollowersMachine.TestCase
