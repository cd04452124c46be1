"""Tables that stand in for others under the service: what waits for them is compacted, and what they need is kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.errors import ConflictError, CorruptionError, InvalidInputError
from siltstone.log.commit import forget_logs
from siltstone.model import Follower, PartitionLocator
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.service.lake_tables import LakeTables
from siltstone.storage import object_store as storage
from siltstone.table.completion import compacted_partition, current_entry, locate_destination
from siltstone.table.followers import read_work, trim_limit
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import make_table, only_partition, rows
from tests.unit.service.cycling import World, compact_one, trim_one

LATER_MS = 1 << 60


@pytest.fixture
def orders(local_root: str) -> siltstone.Table:
    """A table of deltas that others follow."""
    table = make_table(local_root, "shop.orders")
    table.write(rows([1, 2], "first"))
    return table


@pytest.fixture
def copy(orders: siltstone.Table) -> siltstone.Table:
    """A table that was rebased on behalf of the orders, and has read the first delta."""
    old = make_table(orders.lake.root, "shop.old", primary_keys=[])
    old.write(rows([1, 2], "first"), "append")
    table = make_table(orders.lake.root, "shop.copy")
    rebase(table, old, orders, 1)
    old.drop()
    return table


@pytest.fixture
def tables(local_root: str) -> LakeTables:
    """The lake as the service sees it; deltas that are compacted may go at once."""
    return LakeTables(siltstone.open(local_root), engine=run_here, delta_retention_seconds=0)


@pytest.fixture
def world(tables: LakeTables, tmp_path: Path) -> Iterator[World]:
    world = World(f"sqlite:///{tmp_path}/service.db", tables="")
    world.tables = tables  # type: ignore[assignment]
    world.clock.now_ms *= 2
    yield world
    world.close()


def compacted_beside(table: siltstone.Table) -> PartitionLocator:
    return PartitionLocator(**table.version.locator, stream="compacted")


def rebase(table: siltstone.Table, source: siltstone.Table, behalf: siltstone.Table, watermark: int) -> None:
    request = Request(
        only_partition(source),
        compacted_beside(table),
        tuple(table.version.primary_keys),
        table.lake.root,
        rebase_source=only_partition(behalf),
        rebase_high_watermark=watermark,
        last_stream_position=watermark,
    )
    run_session(request, run_here)


def run_cycles(world: World, count: int, write: Any = None) -> None:
    leader, worker = world.leader(), world.worker()
    leader.tick()
    for number in range(count):
        if write is not None:
            write(number)
        tick = world.run_cycle(leader, worker)
        assert tick.record is not None
        assert tick.record.status == "COMPLETED", tick.record.failed_partitions


def same_as_orders(copy: siltstone.Table, orders: siltstone.Table) -> None:
    same_rows(copy.to_arrow().to_pylist(), orders.to_arrow().to_pylist())


def compact_all(tables: LakeTables) -> list[str]:
    found = list(tables.find_work(lambda: None))
    for each in found:
        assert each.locator is not None, each.problem
        compact_one(tables, each.locator)
    return [each.table for each in found]


def trim(tables: LakeTables, table: siltstone.Table, upto: int = 1 << 40) -> int | None:
    return trim_one(tables, PartitionLocator(**table.version.locator, stream="deltas"), upto)


def test_cycles_compact_a_table_on_behalf_of_another_and_trim_nothing_it_still_needs(
    orders: siltstone.Table, copy: siltstone.Table, world: World
) -> None:
    expected = oracle_of(orders)

    def write(number: int) -> None:
        data = rows([number, 10 + number], f"cycle {number} ")
        orders.write(data)
        expected.write(data, "upsert", None, None)

    run_cycles(world, 3, write)
    same_rows(orders.to_arrow().to_pylist(), expected.rows())
    same_as_orders(copy, orders)
    assert [delta.stream_position for delta in orders.deltas()] == [4]
    orders.write(rows([99], "waiting"))
    same_rows(
        copy.to_arrow(include_uncompacted=True).to_pylist(), orders.to_arrow(include_uncompacted=True).to_pylist()
    )
    assert copy.fsck(deep=True) == []


def test_a_database_whose_clock_is_a_month_ahead_trims_nothing_that_is_younger_than_the_retention(
    orders: siltstone.Table, local_root: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = siltstone.open(local_root)
    world.tables = LakeTables(lake, engine=run_here, delta_retention_seconds=3600)  # type: ignore[assignment]
    world.clock.now_ms = clock.now_ms() + 30 * 24 * 3_600_000
    run_cycles(world, 3, lambda number: orders.write(rows([number])))
    assert [delta.stream_position for delta in orders.deltas()] == [1, 2, 3, 4]
    later_ms = clock.now_ms() + 2 * 3_600_000
    monkeypatch.setattr(clock, "now_ms", lambda: later_ms)
    run_cycles(world, 1, lambda number: orders.write(rows([number])))
    assert [delta.stream_position for delta in orders.deltas()] == [5]


def test_a_follower_that_is_behind_holds_trimming_back(
    orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables
) -> None:
    orders.write(rows([3], "second"))
    compact_one(tables, only_partition(orders))
    assert trim(tables, orders) == 1
    assert [delta.stream_position for delta in orders.deltas()] == [2]
    assert compact_all(tables) == ["shop.copy"]
    assert trim(tables, copy) == 1
    same_as_orders(copy, orders)


def test_a_table_goes_on_with_the_one_it_stands_in_for_without_being_told(
    orders: siltstone.Table, copy: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", lambda *_: run_here)
    orders.write(rows([3], "second"))
    (result,) = copy.compact(spark=object())  # type: ignore[arg-type]
    assert [round_.delta_count for round_ in result.rounds] == [1]
    assert not any(work.is_waiting for work in read_work("shop.copy", root=copy.lake.root))


def test_partitions_that_begin_later_are_followed_too(local_root: str, tables: LakeTables, world: World) -> None:
    lake = siltstone.open(local_root)
    schema = {"id": "int64", "day": "string"}
    made = [
        lake.create_table(f"shop.{name}", schema=schema, primary_keys=["id", "day"], partition_keys=["day"])
        for name in ("orders", "copy")
    ]
    orders, copy = made
    orders.write(pa.table({"id": [1], "day": ["mon"]}))
    (monday,) = orders._sources()
    into = PartitionLocator(**copy.version.locator, stream="compacted", partition_values=["mon"])
    run_session(Request(monday, into, ("id", "day"), local_root), run_here)
    orders.write(pa.table({"id": [2], "day": ["tue"]}))
    (tuesday,) = (source for source in orders._sources() if source != monday)
    compact_one(tables, tuesday)
    assert trim_one(tables, tuesday, 2) == 0
    assert len(copy.to_arrow(include_uncompacted=True)) == 2
    run_cycles(world, 2, lambda number: orders.write(pa.table({"id": [number], "day": [f"day {number}"]})))
    same_as_orders(copy, orders)
    assert len(copy.to_arrow()) == 4
    assert [delta.stream_position for delta in orders.deltas()] == [4]


def test_a_renamed_source_is_still_followed(orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables) -> None:
    orders = orders.rename("shop.sales")
    copy = copy.rename("shop.mirror")
    orders.write(rows([3], "second"))
    assert sorted(compact_all(tables)) == ["shop.mirror", "shop.sales"]
    same_as_orders(copy, orders)
    assert trim(tables, orders) == 2


def test_a_dropped_follower_holds_nothing_back_and_a_dropped_source_leaves_nothing_waiting(
    orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables
) -> None:
    orders.write(rows([3], "second"))
    compact_one(tables, only_partition(orders))
    copy.drop()
    assert trim(tables, orders) == 2
    assert storage.list_followers(only_partition(orders).stream_locator, root=orders.lake.root) == []
    other = make_table(orders.lake.root, "shop.other")
    request = Request(
        compacted_beside(orders), compacted_beside(other), ("id",), orders.lake.root,
        rebase_source=only_partition(orders), rebase_high_watermark=2,
    )  # fmt: skip
    run_session(request, run_here)
    orders.drop()
    assert [each.problem for each in tables.find_work(lambda: None)] == []
    assert len(other.to_arrow()) == 3


def test_a_table_rebased_onto_other_deltas_follows_the_first_no_more(
    orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables
) -> None:
    own = make_table(orders.lake.root, "shop.others")
    own.write(rows([7], "other"))
    rebase(copy, own, own, 0)
    orders.write(rows([3], "second"))
    compact_one(tables, only_partition(orders))
    assert trim(tables, orders) == 2
    compact_all(tables)
    assert [row["id"] for row in copy.to_arrow().to_pylist()] == [7]


def test_a_follower_before_its_first_round_needs_everything_above_its_start(
    orders: siltstone.Table, tables: LakeTables
) -> None:
    for number in range(3):
        orders.write(rows([number], "more"))
    compact_all(tables)
    copy = make_table(orders.lake.root, "shop.copy")
    source = only_partition(orders)
    destination = locate_destination(compacted_beside(copy), root=orders.lake.root)
    storage.commit_partition(
        storage.stage_partition(only_stream(copy), [], root=orders.lake.root), root=orders.lake.root
    )
    follower = Follower(locator=source, folder=destination.folder, start_position=2)
    assert storage.add_follower(follower, root=orders.lake.root)
    assert trim(tables, orders) == 2
    assert [delta.stream_position for delta in orders.deltas()] == [3, 4]


def only_stream(table: siltstone.Table) -> Any:
    return PartitionLocator(**table.version.locator, stream="deltas").stream_locator


def test_a_follower_that_cannot_be_read_stops_trimming_with_a_message(
    orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables
) -> None:
    compact_all(tables)
    folder = locate_destination(compacted_beside(copy), root=copy.lake.root).folder
    for log in (Path(copy.lake.root) / folder / "log").iterdir():
        log.write_bytes(b"damaged")
    forget_logs(copy.lake.root)
    with pytest.raises(CorruptionError, match=r"is followed by .*copy.* which cannot be read, so nothing is trimmed"):
        trim(tables, orders)
    assert len(orders.deltas()) == 1


def test_a_follower_that_comes_while_a_trim_is_under_way_stops_it(
    orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables
) -> None:
    compact_all(tables)
    source = only_partition(orders)
    limit = trim_limit(source, LATER_MS, root=orders.lake.root)
    assert limit.position == 1
    storage.add_follower(Follower(locator=source, folder="tables/elsewhere"), root=orders.lake.root)
    with pytest.raises(ConflictError, match="its followers changed"):
        storage.delete_deltas(source, last_stream_position=1, followers=limit.followers, root=orders.lake.root)


def test_a_lake_in_which_nobody_recorded_followers_is_put_right_when_the_service_looks_for_work(
    orders: siltstone.Table, copy: siltstone.Table, tables: LakeTables
) -> None:
    root = orders.lake.root
    source = only_partition(orders)
    (follower,) = storage.list_followers(source.stream_locator, root=root)
    storage.remove_follower(follower, root=root)
    assert list(tables.find_work(lambda: None))
    orders.write(rows([3], "second"))
    compact_one(tables, source)
    assert trim(tables, orders) == 1
    compact_all(tables)
    same_as_orders(copy, orders)


def test_a_rebase_that_could_never_go_on_is_refused(orders: siltstone.Table, tables: LakeTables) -> None:
    compact_all(tables)
    orders.write(rows([3], "second"))
    compact_all(tables)
    assert trim(tables, orders) == 2
    copy = make_table(orders.lake.root, "shop.copy")
    old = make_table(orders.lake.root, "shop.old", primary_keys=[])
    old.write(rows([1, 2], "first"), "append")
    with pytest.raises(InvalidInputError, match="its deltas up to 2 are trimmed"):
        rebase(copy, old, orders, 1)
    assert current_entry(locate_destination(compacted_partition(compacted_beside(copy)), root=copy.lake.root)) is None


def test_what_is_needed_again_after_a_rebase_to_an_earlier_position_is_kept(
    orders: siltstone.Table, tables: LakeTables
) -> None:
    old = make_table(orders.lake.root, "shop.old", primary_keys=[])
    old.write(rows([1, 2], "first"), "append")
    for number in range(3):
        orders.write(rows([number], "more"))
        compact_all(tables)
    rebase(orders, old, orders, 1)
    assert trim(tables, orders) == 1
    compact_all(tables)
    assert {row["id"]: row["v"] for row in orders.to_arrow().to_pylist()} == {0: "more0", 1: "more1", 2: "more2"}
