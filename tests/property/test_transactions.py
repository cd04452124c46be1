"""A batch is committed once, in whatever order ids come and come again, and what is remembered of them stays small."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone import clock
from siltstone.errors import InvalidInputError
from siltstone.log.commit import forget_logs
from siltstone.model import Delta, Idempotency
from siltstone.storage import object_store as storage
from siltstone.storage import transactions

DAY_MS = 24 * 3600 * 1000
# How an app goes on: with the next id, with one after a gap, with a lower one, or with one that it used before.
STEPS = st.tuples(st.sampled_from("ab"), st.sampled_from(["next", "next", "next", "gap", "lower", "again"]))


class ShiftedClock(clock.SystemClock):
    """The clock of this machine, set ahead."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def new_table() -> siltstone.Table:
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    return lake.create_table("shop.orders", schema={"id": "int64"}, primary_keys="id")


def remembered(table: siltstone.Table) -> list[str]:
    stream = storage.find_stream("shop", "orders", root=table.lake.root)
    return stream.log.read(lambda state: state.keys("transaction/"))  # type: ignore[attr-defined,no-any-return]


@settings(max_examples=40)
@given(steps=st.lists(STEPS, min_size=10, max_size=24), max_runs=st.integers(1, 2), split=st.sampled_from([2, 1000]))
def test_a_batch_is_committed_once_in_any_order_of_ids(steps: list[tuple[str, str]], max_runs: int, split: int) -> None:
    table = new_table()
    root = table.lake.root
    stream = storage.find_stream("shop", "orders", root=root).locator
    positions: dict[tuple[str, int], int] = {}
    staged: dict[tuple[str, int], list[Delta]] = {}
    newest, lowest = {"a": 50, "b": 50}, {"a": 50, "b": 50}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "MAX_RUNS", max_runs)
        patch.setattr(transactions, "MAX_SPLIT_IDS", split)
        for number, (app, kind) in enumerate(steps):
            before = [batch_id for name, batch_id in positions if name == app]
            if kind == "again" and before:
                batch_id = before[number * 7 % len(before)]
            elif kind == "lower":
                batch_id = lowest[app] = lowest[app] - 2
            else:
                batch_id = newest[app] = newest[app] + (2 if kind == "gap" else 1)
            deltas = storage.stage_deltas(pa.table({"id": [number]}), stream, root=root)
            name = Idempotency(app_id=app, batch_id=batch_id)
            position = storage.commit_deltas(deltas, stream, idempotency=name, root=root).stream_position
            assert position == positions.setdefault((app, batch_id), len(positions) + 1)
            staged.setdefault((app, batch_id), deltas)
        for (app, batch_id), position in positions.items():
            name = Idempotency(app_id=app, batch_id=batch_id)
            assert storage.find_commit(stream, name, root=root) == position
            # Who did not hear of its commit repeats it, and the files that are committed stay.
            again = storage.commit_deltas(staged[app, batch_id], stream, idempotency=name, root=root)
            assert again.stream_position == position
    assert table.scan(fresh=True).count() == len(table.deltas()) == len(positions)
    forget_logs(root)


def test_a_clock_that_was_ahead_makes_no_batch_forgotten(local_root: str) -> None:
    set_clock = ShiftedClock()
    with clock.replaced(set_clock):
        table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys="id")
        table.write(pa.table({"id": [7]}), idempotency=("stream", 7))
        set_clock.ahead_ms = 31 * DAY_MS
        table.write(pa.table({"id": [8]}), idempotency=("stream", 9))
        set_clock.ahead_ms = 0
        assert table.write(pa.table({"id": [7]}), idempotency=("stream", 7)) == 1
        assert len(table.deltas()) == 2


def test_ids_that_rise_by_one_are_one_entry_though_others_write_in_between() -> None:
    table = new_table()
    for number in range(40):
        table.write(pa.table({"id": [number]}), idempotency=("stream", number))
        table.write(pa.table({"id": [number]}), idempotency=("other", number))
    assert len(remembered(table)) == 2
    assert table.write(pa.table({"id": [1]}), idempotency=("stream", 7)) == 15


def test_where_a_delta_is_trimmed_its_batch_is_still_known_to_be_committed() -> None:
    table = new_table()
    root = table.lake.root
    for number in range(4):
        table.write(pa.table({"id": [number]}), idempotency=("stream", number))
        table.write(pa.table({"id": [number]}))
    (partition,) = storage.list_partitions(storage.find_stream("shop", "orders", root=root).locator, root=root)
    storage.delete_deltas(partition.locator, last_stream_position=6, root=root)
    assert table.write(pa.table({"id": [9]}), idempotency=("stream", 1)) == 7, "not after its last commit"
    assert len(table.deltas()) == 2


def test_ids_with_gaps_are_remembered_one_by_one_beyond_a_few() -> None:
    table = new_table()
    for number in range(0, 2 * (transactions.MAX_RUNS + 5), 2):
        table.write(pa.table({"id": [number]}), idempotency=("sparse", number))
    assert len(remembered(table)) == 6
    assert table.write(pa.table({"id": [0]}), idempotency=("sparse", 0)) == 1


@settings(max_examples=10)
@given(gaps=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=2, max_size=12))
def test_ids_that_rise_are_one_entry_whatever_gaps_they_have_and_only_the_newest_can_be_repeated(
    gaps: list[tuple[int, bool]],
) -> None:
    table = new_table()
    root = table.lake.root
    stream = storage.find_stream("shop", "orders", root=root).locator

    def commit(batch_id: int) -> int:
        deltas = storage.stage_deltas(pa.table({"id": [batch_id]}), stream, root=root)
        name = Idempotency(app_id="stream", batch_id=batch_id)
        return storage.commit_deltas(deltas, stream, idempotency=name, rising_ids=True, root=root).stream_position

    batch_id = 0
    positions: dict[int, int] = {}
    for gap, do_others_write in gaps:
        batch_id += gap
        positions[batch_id] = commit(batch_id)
        if do_others_write:
            table.write(pa.table({"id": [-1]}))
        assert commit(batch_id) == positions[batch_id]
        for lower in {0, batch_id - 1}:
            with pytest.raises(InvalidInputError, match="is of another run of batches"):
                commit(lower)
    for batch_id, position in positions.items():
        found = storage.find_commit(stream, Idempotency(app_id="stream", batch_id=batch_id), root=root)
        assert found == position
    assert len(remembered(table)) == 1
    forget_logs(root)
