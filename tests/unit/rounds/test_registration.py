"""A destination belongs to its table from its first round on, whoever asked for that round."""

from collections.abc import Callable

import pyarrow as pa
import pytest

import siltstone
from siltstone.model import PartitionLocator
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import current_entry, locate_destination
from siltstone.testing import Killed, faults
from tests.unit.rounds.compaction import make_table, only_partition, rows


@pytest.fixture
def root(new_root: Callable[[str], str]) -> str:
    return new_root("memory")


@pytest.fixture
def orders(root: str) -> siltstone.Table:
    table = make_table(root)
    table.write(rows([1, 2, 3], "first"))
    return table


@pytest.fixture
def migration(orders: siltstone.Table) -> Request:
    """The first call of a migration: an old table into a fresh one, on behalf of the orders."""
    old = make_table(orders.lake.root, "shop.old", primary_keys=[])
    old.write(rows([1, 2, 3], "first"), "append")
    fresh = make_table(orders.lake.root, "shop.fresh")
    return Request(
        source=only_partition(old),
        destination=PartitionLocator(**fresh.version.locator, stream="compacted"),
        primary_keys=("id",),
        root=orders.lake.root,
        last_stream_position=1,
        rebase_source=only_partition(orders),
        rebase_high_watermark=1,
    )


def test_a_fresh_destination_is_read_looked_up_and_listed(orders: siltstone.Table, migration: Request) -> None:
    run_session(migration, run_here)
    fresh = orders.lake.table("shop.fresh")
    assert [row["id"] for row in fresh.to_arrow().sort_by("id").to_pylist()] == [1, 2, 3]
    assert fresh.lookup({"id": 2}) == [{"id": 2, "v": "first2"}]
    assert [round_.round_id for round_ in fresh.rounds()] == [1]
    assert fresh.fsck(deep=True) == []


def test_a_partition_of_a_fresh_destination_is_registered_with_its_values(root: str) -> None:
    lake = siltstone.open(root)
    made = [
        lake.create_table(
            name, schema={"id": "int64", "day": "string"}, primary_keys=["id", "day"], partition_keys=["day"]
        )
        for name in ("shop.orders", "shop.fresh")
    ]
    made[0].write(pa.table({"id": [1], "day": ["mon"]}))
    destination = PartitionLocator(**made[1].version.locator, stream="compacted", partition_values=["mon"])
    run_session(Request(made[0]._sources()[0], destination, ("id", "day"), root), run_here)
    assert made[1].to_arrow().to_pylist() == [{"id": 1, "day": "mon"}]
    assert [source.partition_values for source in made[1]._sources()] == [["mon"]]


@pytest.mark.parametrize("kind", ["fail", "kill", "kill_after"])
def test_dying_anywhere_on_the_way_to_the_first_round_does_no_harm(
    orders: siltstone.Table, migration: Request, kind: str
) -> None:
    root = orders.lake.root
    at_call = 0
    while True:
        at_call += 1
        fresh = make_table(root, f"shop.fresh{at_call}")
        request = Request(
            **{**vars(migration), "destination": PartitionLocator(**fresh.version.locator, stream="compacted")}
        )
        try:
            with faults(root, at_call=at_call, kind=kind) as store:  # type: ignore[arg-type]
                run_session(request, run_here)
        except (Killed, siltstone.StorageError):
            pass
        is_committed = current_entry(locate_destination(request.destination, root=root)) is not None
        assert len(fresh.to_arrow()) == (3 if is_committed else 0)
        assert fresh.fsck(deep=True) == []
        if not is_committed:
            run_session(request, run_here)
        assert len(fresh.to_arrow()) == 3
        if store.calls < at_call:
            break


def test_a_check_finds_rounds_of_a_partition_that_the_table_does_not_know(
    orders: siltstone.Table, migration: Request
) -> None:
    run_session(migration, run_here)
    fresh = orders.lake.table("shop.fresh")
    storage.delete_partition(fresh._sources()[0], root=fresh.lake.root)
    assert len(fresh.to_arrow()) == 0
    (finding,) = fresh.fsck()
    assert finding.code == "partition"
    assert "3 rows" in finding.message
    run_session(Request(only_partition(orders), migration.destination, ("id",), fresh.lake.root), run_here)
    assert len(fresh.to_arrow()) == 3
    assert fresh.fsck() == []
