"""Whatever is done to a compacted table, in any order, with deaths and races: its rows are what the oracle says."""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import siltstone
from siltstone.maintenance.fsck import check_partition
from siltstone.model import PartitionLocator
from siltstone.objects import open_objects
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import BucketResult, Engine, RoundJob, Settings
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    compacted_partition,
    completion_objects,
    current_completion,
    list_rounds,
    locate_destination,
)
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FAULT_KINDS
from siltstone.testing.oracle import Oracle, same_rows
from siltstone.testing.strategies import TableSettings, Write, histories
from tests.unit.rounds.compaction import live_batches

NEVER_MS = 1 << 60
Rows = list[dict[str, Any]]

# With these, a bucket that has a file, or two, merges small ones with the new rows; others seldom come to that.
TIERED = [
    Settings(max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=files, max_carried_fraction=1.0)
    for files in (1, 2)
]
SETTINGS = st.sampled_from(TIERED) | st.builds(
    Settings,
    bucket_rows=st.sampled_from([2, 5, 1000]),
    max_dead_fraction=st.sampled_from([1.0, 0.3, 0.0]),
    max_delta_fraction=st.sampled_from([100.0, 0.5, 0.0]),
    max_files=st.sampled_from([100, 2, 1]),
    max_carried_fraction=st.sampled_from([1.0, 0.5]),
    records_per_compacted_file=st.sampled_from([1000, 3, 1]),
    stretch_buckets=st.sampled_from([128, 2, 1]),
    stretch_rows=st.sampled_from([1 << 16, 2]),
    shared_rows=st.sampled_from([1000, 2, 0]),
    full=st.sampled_from([False, False, False, True]),
)
ROUND_BYTES = st.sampled_from([1 << 30, 1])
CHOICES = st.integers(0, 255)
READS = st.sampled_from(["compacted", "fresh"])


class RowsMachine(RuleBasedStateMachine):
    """A table, what is done to it, and an oracle for each of its partitions."""

    @initialize(history=histories(min_writes=10, max_writes=20, max_rows=8), first_writes=st.integers(1, 3))
    def create(self, history: tuple[TableSettings, list[Write]], first_writes: int) -> None:
        made, self.waiting = history
        self.table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
        self.root = self.table.lake.root
        self.oracles: dict[str, Oracle] = {}
        self.states: dict[str, dict[int, Rows]] = {}
        self.copies = 0
        for _ in range(first_writes):
            self.next_write()

    # What is expected

    def note_deltas(self, position: int) -> None:
        """Let the oracles take in what was written at a position, and remember the rows of that moment."""
        version = self.table.version
        for delta in self.table.deltas(first_stream_position=position):
            name = delta.locator.partition_id
            oracle = self.oracles.setdefault(name, Oracle.of_version(version))
            states = self.states.setdefault(name, {0: []})
            data = storage.download_delta(delta, root=self.root)
            overwrite: Literal["table"] | None = "table" if delta.replaces else None
            oracle.write(data, delta.type, delta.delete_columns, delta.op_column, overwrite=overwrite)
            states[position] = oracle.rows()

    def expected(self, source: PartitionLocator, upto: int) -> Rows:
        states = self.states.get(source.partition_id, {0: []})
        return self.complete(states[max(state for state in states if state <= upto)])

    def rows_at(self, position: int) -> Rows:
        return [row for source in self.sources() for row in self.expected(source, position)]

    def complete(self, rows: Sequence[dict[str, Any]]) -> Rows:
        """Give rows all columns that the table has by now."""
        names = self.table.schema.names
        return [{name: row.get(name) for name in names} for row in rows]

    # What is there

    def sources(self) -> list[PartitionLocator]:
        return self.table._sources()

    def found(self, source: PartitionLocator) -> tuple[int, Rows]:
        """Return up to where a partition is compacted, and its rows."""
        completion = current_completion(self.destination(source))
        if completion is None:
            return 0, []
        rows = [row for batch in live_batches(self.root, completion) for row in batch.to_pylist()]
        return completion.high_watermark, self.complete(rows)

    def compacted_position(self) -> int:
        """Return the one position that the table as compacted has: the highest that any partition has come to."""
        return max((self.found(source)[0] for source in self.sources()), default=0)

    def destination(self, source: PartitionLocator) -> Any:
        return locate_destination(compacted_partition(source), root=self.root)

    def check(self) -> None:
        for source in self.sources():
            watermark, rows = self.found(source)
            same_rows(rows, self.expected(source, watermark))

    # What is done

    def run(
        self,
        how: Settings,
        max_round_bytes: int = 1 << 30,
        *,
        engine: Engine = run_here,
        only: int | None = None,
        **more: Any,
    ) -> None:
        sources = self.sources()
        for source in sources if only is None or not sources else [sources[only % len(sources)]]:
            given = {name: value(source) if callable(value) else value for name, value in more.items()}
            request = Request(
                **{
                    "source": source,
                    "destination": compacted_partition(source),
                    "primary_keys": tuple(self.table.version.primary_keys),
                    "root": self.root,
                    "settings": how,
                    "max_round_bytes": max_round_bytes,
                    **given,
                }
            )
            run_session(request, engine)

    def rebase(self, how: Settings, **more: Any) -> None:
        self.run(how, rebase_source=lambda source: source, **more)

    def rebase_from_compacted(self, how: Settings) -> None:
        """Rebase each partition from its own compacted rows."""
        for number, source in enumerate(self.sources()):
            watermark, _ = self.found(source)
            if current_completion(self.destination(source)) is not None:
                self.rebase(how, only=number, source=compacted_partition(source), rebase_high_watermark=watermark)

    def roll_back(self, choice: int) -> None:
        for source in self.sources():
            rounds = [int(entry["round_id"]) for entry in list_rounds(self.destination(source))][:-1]
            if rounds:
                self.table.rollback(rounds[choice % len(rounds)], partition_values=source.partition_values)

    def vacuum(self, choice: int) -> None:
        self.table.vacuum(retention_ms=0 if choice % 2 else NEVER_MS, orphan_grace_ms=0)

    def next_write(self) -> None:
        if self.waiting:
            position = self.waiting.pop(0).write_to(self.table)
            self.note_deltas(position)

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        for _ in range(count):
            self.next_write()

    @precondition(lambda self: self.waiting)
    @rule(how=SETTINGS)
    def write_and_compact(self, how: Settings) -> None:
        self.next_write()
        self.run(how)
        self.check()

    @precondition(lambda self: self.waiting)
    @rule(how=st.sampled_from(TIERED), count=st.integers(2, 4))
    def write_and_merge_small_files(self, how: Settings, count: int) -> None:
        for _ in range(count):
            self.next_write()
            self.run(how)
        self.check()

    @rule(how=SETTINGS, max_round_bytes=ROUND_BYTES)
    def compact(self, how: Settings, max_round_bytes: int) -> None:
        self.run(how, max_round_bytes)
        for source in self.sources():
            watermark, rows = self.found(source)
            same_rows(rows, self.expected(source, 1 << 62))
            assert watermark >= max(self.states.get(source.partition_id, {0: []}))

    @rule(how=SETTINGS, choice=CHOICES, only=CHOICES)
    def compact_partly(self, how: Settings, choice: int, only: int) -> None:
        positions = sorted({0, *(delta.stream_position for delta in self.table.deltas())})
        with contextlib.suppress(siltstone.InvalidInputError):
            self.run(how, 1, only=only, last_stream_position=positions[choice % len(positions)])
        self.check()

    @rule(how=SETTINGS, choice=CHOICES)
    def rebase_on_the_same_source(self, how: Settings, choice: int) -> None:
        positions = sorted({0, *(delta.stream_position for delta in self.table.deltas())})
        last = positions[choice % len(positions)] if choice % 3 == 0 else None
        self.rebase(how, last_stream_position=last)
        self.check()

    @rule(how=SETTINGS)
    def rebase_on_compacted_rows(self, how: Settings) -> None:
        self.rebase_from_compacted(how)
        self.check()

    @precondition(lambda self: not self.table.version.sort_keys)
    @rule(how=SETTINGS)
    def rebase_on_another_table(self, how: Settings) -> None:
        """Rebase from a copy of the rows, as another compactor would have left them; tombstones are not in there."""
        version = self.table.version
        self.copies += 1
        copy = self.table.lake.create_table(
            f"shop.copy{self.copies}", schema=version.schema, partition_keys=version.partition_keys
        )
        snapshot = self.table.snapshot()
        copy.write(snapshot.scan().to_arrow(), "append")
        (watermark,) = snapshot.positions.values()
        for number, source in enumerate(self.sources()):
            there = {source.partition_id: source for source in copy._sources()}
            if source.partition_id in there:
                origin = there[source.partition_id]
                self.rebase(how, only=number, source=origin, rebase_high_watermark=watermark)
        self.check()

    @rule(choice=CHOICES)
    def roll_back_to_any_round(self, choice: int) -> None:
        self.roll_back(choice)
        self.check()

    @rule(choice=CHOICES)
    def vacuum_at_any_time(self, choice: int) -> None:
        self.vacuum(choice)
        self.check()

    @rule(
        what=st.sampled_from(["compact", "rebase", "compacted", "roll back", "vacuum"]),
        how=SETTINGS,
        at_call=st.integers(1, 120),
        kind=st.sampled_from(FAULT_KINDS),
        choice=CHOICES,
    )
    def die(self, what: str, how: Settings, at_call: int, kind: Any, choice: int) -> None:
        """Do something while the store fails or the process dies at some call."""
        act: dict[str, Callable[[], None]] = {
            "compact": lambda: self.run(how, 1 if choice % 2 else 1 << 30),
            "rebase": lambda: self.rebase(how),
            "compacted": lambda: self.rebase_from_compacted(how),
            "roll back": lambda: self.roll_back(choice),
            "vacuum": lambda: self.vacuum(choice),
        }
        with faults(self.root, at_call=at_call, kind=kind), contextlib.suppress(Killed, siltstone.SiltstoneError):
            act[what]()
        self.check()

    @rule(
        what=st.lists(st.sampled_from(["compact", "rebase", "roll back", "vacuum", "write"]), min_size=1, max_size=3),
        how=SETTINGS,
        other=SETTINGS,
        is_rebase=st.booleans(),
        choice=CHOICES,
    )
    def meet(self, what: list[str], how: Settings, other: Settings, is_rebase: bool, choice: int) -> None:
        """Compact while others change the same partitions, after the work and before the commit."""
        left = list(what)
        act: dict[str, Callable[[], None]] = {
            "compact": lambda: self.run(other),
            "rebase": lambda: self.rebase(other),
            "roll back": lambda: self.roll_back(choice),
            "vacuum": lambda: void(self.table.vacuum(retention_ms=0)),
            "write": self.next_write,
        }

        def engine(job: RoundJob) -> Iterator[BucketResult]:
            yield from run_here(job)
            if left:
                act[left.pop(0)]()

        run = self.rebase if is_rebase else self.run
        run(how, max_round_bytes=1, engine=engine)
        self.check()

    @rule(choice=CHOICES)
    def read_an_earlier_state(self, choice: int) -> None:
        positions = sorted({0, *(delta.stream_position for delta in self.table.deltas())})
        position = positions[choice % len(positions)]
        same_rows(self.complete(self.table.to_arrow(as_of=position).to_pylist()), self.rows_at(position))

    @rule()
    def read_with_what_is_not_compacted(self) -> None:
        same_rows(self.complete(self.table.to_arrow(include_uncompacted=True).to_pylist()), self.rows_at(1 << 62))

    def read(self, mode: str, columns: Sequence[str] | None) -> pa.Table:
        if mode == "compacted":
            return self.table.to_arrow(columns)
        return self.table.to_arrow(columns, include_uncompacted=True)

    def expected_read(self, mode: str, columns: Sequence[str] | None) -> tuple[list[str], Rows]:
        """Return the names of the columns that a read has by now, and the rows."""
        names = self.table.schema.names if columns is None else list(columns)
        rows = self.rows_at(self.compacted_position() if mode == "compacted" else 1 << 62)
        return names, [{name: row[name] for name in names} for row in rows]

    @rule(mode=READS, choice=st.integers(0, (1 << 16) - 1), are_newest=st.booleans())
    def read_some_columns(self, mode: str, choice: int, are_newest: bool) -> None:
        """Read any columns, also none, and also those only that came last, which rounds may not have."""
        names = self.table.schema.names
        columns = [name for number, name in enumerate(reversed(names)) if choice >> number & 1]
        columns = names[-1 - choice % 2 :] if are_newest else columns
        found = self.read(mode, columns)
        expected_names, rows = self.expected_read(mode, columns)
        assert found.column_names == expected_names
        same_rows(found, rows)

    @precondition(lambda self: self.waiting)
    @rule(mode=READS, at_call=st.integers(1, 24), how=SETTINGS, rounds=st.lists(CHOICES, max_size=2))
    def read_while_somebody_writes(self, mode: str, at_call: int, how: Settings, rounds: list[int]) -> None:
        """A read that meets a write anywhere, and rounds of some partitions, is one from before or from after any of it."""
        states = [self.expected_read(mode, None)]

        def act() -> None:
            self.next_write()
            states.append(self.expected_read(mode, None))
            for only in rounds:
                self.run(how, only=only)
                states.append(self.expected_read(mode, None))

        with faults(self.root, at_call=at_call, kind="meet", act=act):
            found = self.read(mode, None)
        assert found.column_names in [names for names, _ in states]
        assert any(is_same(found, names, rows) for names, rows in states), (found.to_pylist(), states)

    @precondition(lambda self: self.table.version.primary_keys)
    @rule(choice=CHOICES)
    def look_up_a_key(self, choice: int) -> None:
        keys = self.table.version.primary_keys
        rows = self.rows_at(self.compacted_position())
        if rows:
            key = {name: rows[choice % len(rows)][name] for name in keys}
            wanted = Oracle(primary_keys=keys, drop_duplicates=False, columns=self.table.schema.names)
            wanted.apply(rows)
            own = [row for row in wanted.rows() if _same_key(row, key)]
            # Of several versions, the current one is found.
            same_rows(self.table.lookup(key), [row for row in own if row.get("_valid_to") is None])

    def teardown(self) -> None:
        """At the end all is compacted, sound, and nothing is left over."""
        if not hasattr(self, "table"):
            return
        self.run(Settings(bucket_rows=5, page_buckets=2))
        for source in self.sources():
            same_rows(self.found(source)[1], self.expected(source, 1 << 62))
            assert check_partition(self.destination(source), deep=True) == []
        self.table.vacuum(retention_ms=0, orphan_grace_ms=0)
        named = {entry.uri for delta in self.table.deltas() for entry in delta.manifest.entries}
        for source in self.sources():
            destination = self.destination(source)
            completion = current_completion(destination)
            if completion is not None:
                (entry,) = list_rounds(destination)
                named |= {entry["uri"], *completion_objects(completion)}
        listed = open_objects(self.root).list_objects("tables/shop/orders", recursive=True)
        assert {each.path for each in listed if "/log/" not in each.path} == named


def void(_: object) -> None:
    """Drop a result."""


def is_same(found: pa.Table, names: Sequence[str], rows: Rows) -> bool:
    """Say whether a read has these columns and rows."""
    try:
        same_rows(found, rows)
    except AssertionError:
        return False
    return bool(found.column_names == list(names))


def _same_key(row: dict[str, Any], key: dict[str, Any]) -> bool:
    try:
        same_rows([{name: row[name] for name in key}], [key])
    except AssertionError:
        return False
    return True


RowsMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=20)
TestRowsMachine = RowsMachine.TestCase
