"""A batch is committed once, in whatever order ids come and come again, and what is remembered of them stays small."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.model import Idempotency
from siltstone.storage import object_store as storage
from siltstone.storage import transactions

IDS = st.integers(0, 9) | st.integers(0, 10**9)


def new_table() -> siltstone.Table:
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    return lake.create_table("shop.orders", schema={"id": "int64"}, primary_keys="id")


def remembered(table: siltstone.Table) -> list[str]:
    stream = storage.find_stream("shop", "orders", root=table.lake.root)
    return stream.log.read(lambda state: state.keys("transaction/"))  # type: ignore[attr-defined,no-any-return]


@settings(max_examples=40)
@given(
    ids=st.lists(st.tuples(st.sampled_from("ab"), IDS), max_size=14),
    max_runs=st.integers(1, 4),
    split=st.integers(0, 3),
)
def test_a_batch_is_committed_once_in_any_order_of_ids(ids: list[tuple[str, int]], max_runs: int, split: int) -> None:
    table = new_table()
    positions: dict[tuple[str, int], int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transactions, "MAX_RUNS", max_runs)
        patch.setattr(transactions, "MAX_SPLIT_IDS", split)
        for name in ids:
            newest = len(table.deltas())
            position = table.write(pa.table({"id": [newest]}), idempotency=name)
            assert position == positions.get(name, newest + 1)
            positions[name] = position
        stream = storage.find_stream("shop", "orders", root=table.lake.root)
        for (app_id, batch_id), position in positions.items():
            assert (
                storage.find_commit(stream, Idempotency(app_id=app_id, batch_id=batch_id), root=table.lake.root)
                == position
            )
    forget_logs(table.lake.root)


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
