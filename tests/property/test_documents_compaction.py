"""Whatever compactors do, and whatever they see of each other, a document is what it would be without any."""

import pickle
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.documents.expand import Expansion, expand, resolve
from siltstone.documents.language import value_text
from siltstone.documents.record import Change, CompactionRecord, Row, change_id_at, order_key, to_ms

TEXTS = st.sampled_from(
    [
        "..",
        "~",
        "{}",
        '{"a":1}',
        '{"a":1.0}',
        '{"a":-0.0,"s":["z","é","😀"]}',
        '{..,"a":1}',
        '{..,"a":2,"b":{"c":[1,2]}}',
        '{..,"b":{..,"c":~}?}?',
        '{..,"s":(..,"x",~"y")}',
        '{..,"s":(..,"y")}',
        '{"a":..}?',
        'if {..,"a":ge(1)} then {..,"a":0} else {..,"a":1} end',
        'if intrinsic("~deleted":true) then {"born":true} else {..,"again":true} end',
        'if intrinsic("~signature":like("*a*")) then {..,"sign":1} else {..,"sign":2} end',
        'if intrinsic("~lastMutateAt":lt("2014-08-25T14:35:05.000Z")) then {..,"early":1} else {..,"early":2} end',
        'if intrinsic("~firstUpdateAt":null) then {"first":1} end',
        'if partition(2:1) then {..,"p":1} else {..,"p":2} end',
    ]
)
TAGS = st.sampled_from([(), (), ("x",), ("x", "y"), ("y", "x")])
START_MS = 1_408_977_300_000


@dataclass(frozen=True)
class Compactor:
    """One that sees its own part of the truth, and may die after it wrote its record."""

    lag: int
    raw_lag: int
    hold: int | None
    misses: int
    revives: int
    dies: bool


COMPACTORS = st.builds(
    Compactor,
    lag=st.integers(0, 6),
    raw_lag=st.integers(0, 6),
    hold=st.none() | st.integers(0, 8),
    misses=st.integers(0, 255),
    revives=st.integers(0, 255),
    dies=st.booleans(),
)
# At each step a delta may arrive, then several compactors start from the same state.
STEPS = st.lists(
    st.tuples(st.none() | st.tuples(TEXTS, TAGS), st.lists(COMPACTORS, max_size=2)), min_size=1, max_size=10
)


@dataclass
class World:
    """Everything that was ever written, and what of it is still there."""

    clock_ms: int = START_MS
    written: list[Change] = field(default_factory=list)
    changes: dict[str, Change] = field(default_factory=dict)
    records: dict[str, CompactionRecord] = field(default_factory=dict)
    deleted_changes: dict[str, Change] = field(default_factory=dict)
    deleted_records: dict[str, CompactionRecord] = field(default_factory=dict)
    highest_fct: int = 0
    highest_raw: int = 0
    ids: int = 0

    def new_id(self) -> str:
        self.ids += 1
        return change_id_at(self.clock_ms, ticks=self.ids)

    def row(self) -> Row:
        # Rows come in any order.
        return Row([*self.changes.values()][::-1], [*self.records.values()], "key", "table")

    def seen_by(self, compactor: Compactor) -> Row:
        """The row without some of what is too young to be everywhere, and with some of what was deleted."""
        changes = [
            each
            for place, each in enumerate(self.changes.values())
            if to_ms(each.change_id) < self.highest_fct or not compactor.misses >> place % 8 & 1
        ]
        records = [
            each
            for place, each in enumerate(self.records.values())
            if to_ms(each.change_id) < self.highest_raw or not compactor.misses >> (place + 3) % 8 & 1
        ]
        changes += [
            each for place, each in enumerate(self.deleted_changes.values()) if compactor.revives >> place % 8 & 1
        ]
        records += [
            each for place, each in enumerate(self.deleted_records.values()) if compactor.revives >> (place + 3) % 8 & 1
        ]
        return Row(changes, records, "key", "table")

    def decide(self, compactor: Compactor) -> tuple[Row, Expansion]:
        fct, raw = self.clock_ms - 1000 * compactor.lag, self.clock_ms - 1000 * compactor.raw_lag
        self.highest_fct, self.highest_raw = max(self.highest_fct, fct), max(self.highest_raw, raw)
        row = self.seen_by(compactor)
        ctl = None if compactor.hold is None else START_MS + 1000 * compactor.hold
        found = expand(row, fct=fct, raw=raw, ctl=ctl, new_id=self.new_id)
        check_decision(row, found, raw, ctl)
        return row, found

    def carry_out(self, compactor: Compactor, found: Expansion) -> None:
        if found.write is not None:
            self.records[found.write.change_id] = found.write
        if compactor.dies:
            return
        for change_id in found.delete:
            if change_id in self.changes:
                self.deleted_changes[change_id] = self.changes.pop(change_id)
            if change_id in self.records:
                self.deleted_records[change_id] = self.records.pop(change_id)

    def everything(self) -> Row:
        """The row as if all that was deleted had come back."""
        return Row(
            [*self.changes.values(), *self.deleted_changes.values()],
            [*self.records.values(), *self.deleted_records.values()],
            "key",
            "table",
        )


def check_decision(row: Row, found: Expansion, raw: int, ctl: int | None) -> None:
    """A pass deletes only what an old record owns, never the record that counts, nor what it absorbs itself."""
    assert list(found.delete) == sorted(set(found.delete), key=order_key)
    if ctl is not None:
        assert all(to_ms(each) > ctl for each in found.delete)
    if not found.delete:
        return
    owners = [
        record for record in row.records if to_ms(record.change_id) < raw and record.change_id not in found.delete
    ]
    assert owners
    owner = max(owners, key=lambda each: (each.count, order_key(each.change_id)))
    assert owner.cutoff is not None
    changes = {change[0] for change in row.changes}
    for each in set(found.delete) & changes:
        assert order_key(each) <= order_key(owner.cutoff)


def facts(found: Expansion) -> tuple[object, ...]:
    """All that compaction must preserve."""
    return (
        found.deleted,
        None if found.deleted else value_text(found.content),
        found.version,
        found.signature,
        found.first_update_at,
        found.last_update_at,
        found.last_mutate_at,
        found.last_mutation,
        found.last_tags,
    )


@settings(max_examples=400)
@given(STEPS)
def test_no_schedule_of_compactions_changes_a_document(
    steps: list[tuple[tuple[str, tuple[str, ...]] | None, list[Compactor]]],
) -> None:
    world = World()
    for arrives, compactors in steps:
        world.clock_ms += 1000
        if arrives is not None:
            change = Change(world.new_id(), *arrives)
            world.written.append(change)
            world.changes[change.change_id] = change
        decisions = [(compactor, world.decide(compactor)[1]) for compactor in compactors]
        for compactor, found in decisions:
            world.carry_out(compactor, found)
        never = resolve(Row(world.written, (), "key", "table"))
        redundant = set(never.redundant)
        for row in (world.row(), world.everything()):
            now = resolve(row)
            assert facts(now) == facts(never)
            for change in world.written:
                assert not now.is_redundant(change.change_id) or change.change_id in redundant
                assert not now.is_pending(change.change_id, 0)
            assert set(now.redundant) <= redundant
    assert all(world.changes.get(each.change_id, each) == each for each in world.written), "deltas are never modified"


@settings(max_examples=150)
@given(st.lists(st.tuples(TEXTS, TAGS), min_size=1, max_size=8), st.integers(0, 9), st.integers(0, 9))
def test_expanding_tells_the_same_document_as_resolving(
    deltas: list[tuple[str, tuple[str, ...]]], fct: int, raw: int
) -> None:
    changes = [Change(change_id_at(START_MS + 1000 * at), *each) for at, each in enumerate(deltas)]
    row = Row(changes, (), "key", "table")
    new_id = change_id_at(START_MS + 20_000)
    found = expand(row, fct=START_MS + 1000 * fct, raw=START_MS + 1000 * raw, new_id=new_id, keep_history=True)
    assert facts(found) == facts(resolve(row))
    assert pickle.loads(pickle.dumps(found)) == found
    assert [each.change_id for each in found.archived] == [change.change_id for change in changes[:fct]]
    for archived in found.archived:
        then = resolve(row._replace(changes=changes[: archived.version]))
        assert archived.content == (None if then.deleted else value_text(then.content))


@settings(max_examples=150)
@given(st.lists(st.tuples(TEXTS, TAGS), min_size=1, max_size=6), st.lists(st.integers(1, 3), max_size=6))
def test_a_row_has_nothing_to_do_before_it_is_due_and_something_from_then_on(
    deltas: list[tuple[str, tuple[str, ...]]], passes: list[int]
) -> None:
    changes = [Change(change_id_at(START_MS + 1000 * at), *each) for at, each in enumerate(deltas)]
    row = Row(changes, (), "key", "table")
    clock = START_MS
    for seconds in passes:
        clock += 1000 * seconds
        found = expand(row, fct=clock, raw=clock, new_id=change_id_at(clock, ticks=7))
        records = [*row.records, *([found.write] if found.write else [])]
        row = row._replace(
            changes=[change for change in row.changes if change[0] not in found.delete],
            records=[record for record in records if record.change_id not in found.delete],
        )
        if found.due_ms is None:
            assert not expand(row, fct=1 << 50, raw=1 << 50, new_id=change_id_at(clock, ticks=8)).has_work
            return
        for time_ms, has_work in ((found.due_ms - 1, False), (found.due_ms, True)):
            assert expand(row, fct=time_ms, raw=time_ms, new_id=change_id_at(clock, ticks=9)).has_work == has_work
