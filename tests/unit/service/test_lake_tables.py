"""A real lake under the service: what waits, what compaction and trimming do, and what is told about tables."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

import siltstone
from siltstone import clock
from siltstone.catalog import main as catalog
from siltstone.errors import InvalidInputError, LeaseLostError
from siltstone.log.commit import forget_logs
from siltstone.model import PartitionLocator, TableRules
from siltstone.model.schema import schema_from_json
from siltstone.rounds.events import BucketMerged, Event, RoundStarted
from siltstone.rows.merge import run_here
from siltstone.service.lake_tables import LakeTables, compacted_watermark
from siltstone.service.results import PendingPartition
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import SCHEMA, make_table, rows
from tests.unit.service.cycling import World, compact_one, trim_one

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def at_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set this machine's clock."""
    return lambda now_ms: monkeypatch.setattr(clock, "now_ms", lambda: now_ms)


def lake_tables(root: str, *, delta_retention_seconds: float = 7 * 24 * 3600) -> LakeTables:
    return LakeTables(siltstone.open(root), engine=run_here, delta_retention_seconds=delta_retention_seconds)


def pending(tables: LakeTables) -> dict[str, PendingPartition]:
    return {each.name: each for each in tables.find_work(lambda: None)}


def only(tables: LakeTables) -> PartitionLocator:
    (each,) = tables.find_work(lambda: None)
    assert each.locator is not None
    return each.locator


def compact_all(tables: LakeTables) -> None:
    for each in tables.find_work(lambda: None):
        assert each.locator is not None
        compact_one(tables, each.locator)


def test_partitions_with_new_deltas_are_found_with_their_size_and_age(local_root: str) -> None:
    tables = lake_tables(local_root)
    assert pending(tables) == {}
    small, large = make_table(local_root, "shop.small"), make_table(local_root, "shop.large")
    assert pending(tables) == {}
    small.write(rows([1]))
    for _ in range(3):
        large.write(rows(range(100)))
    found = pending(tables)
    assert sorted(found) == ["shop/large/1/deltas/_", "shop/small/1/deltas/_"]
    one = found["shop/large/1/deltas/_"]
    assert (one.table, one.deltas) == ("shop.large", 3)
    assert one.bytes == sum(delta.manifest.content_length for delta in large.deltas())
    assert one.oldest_at == large.deltas()[0].committed_at


def test_only_what_is_after_the_watermark_of_each_partition_counts(local_root: str) -> None:
    lake = siltstone.open(local_root)
    table = lake.create_table(
        "shop.orders", schema={"id": "int64", "day": "string"}, primary_keys=["day", "id"], partition_keys=["day"]
    )
    tables = lake_tables(local_root)
    table.write(pa.table({"id": [1, 2], "day": ["mon", "tue"]}))
    compact_all(tables)
    assert pending(tables) == {}
    table.write(pa.table({"id": [3], "day": ["tue"]}))
    table.write(pa.table({"id": [4, 5], "day": ["tue", "wed"]}))
    found = pending(tables)
    assert {each.rpartition("/")[2]: found[each].deltas for each in found} == {"tue": 2, "wed": 1}


def test_a_compacted_partition_equals_the_oracle_and_tells_what_it_did(local_root: str) -> None:
    table = make_table(local_root, "shop.orders")
    table.write(rows([1, 2, 3], "a"))
    table.write(rows([2], "b"))
    tables = lake_tables(local_root)
    events: list[Event] = []
    result = compact_one(tables, only(tables), events.append)
    same_rows(table.to_arrow().to_pylist(), oracle_of(table, None).rows())
    assert (result.high_watermark, result.rounds, result.rows) == (2, 1, 4)
    assert result.input_bytes > 0
    assert result.written_bytes > 0
    assert any(isinstance(event, RoundStarted) for event in events)
    assert compact_one(tables, PartitionLocator(**table.deltas()[0].locator.partition_locator)) == (
        dataclasses.replace(result, rounds=0, rows=0, input_bytes=0, written_bytes=0)
    )


def test_a_compaction_that_is_told_to_stop_commits_nothing(local_root: str) -> None:
    table = make_table(local_root, "shop.orders")
    table.write(rows([1]))
    tables = lake_tables(local_root)

    def stop(event: Event) -> None:
        if isinstance(event, BucketMerged):
            raise LeaseLostError("lost")

    partition = only(tables)
    with pytest.raises(LeaseLostError):
        compact_one(tables, partition, stop)
    assert compacted_watermark(partition, root=local_root) == 0
    assert compact_one(tables, partition).high_watermark == 1


def test_a_table_dropped_meanwhile_is_no_failure(local_root: str) -> None:
    table = make_table(local_root, "shop.orders")
    table.write(rows([1]))
    tables = lake_tables(local_root)
    partition = only(tables)
    table.drop()
    assert compact_one(tables, partition).high_watermark is None
    assert trim_one(tables, partition, 1) is None


def test_a_damaged_table_is_told_and_does_not_hide_others(local_root: str) -> None:
    good, bad = make_table(local_root, "shop.good"), make_table(local_root, "shop.bad")
    good.write(rows([1]))
    bad.write(rows([1]))
    compact_all(lake_tables(local_root))
    good.write(rows([2]))
    bad.write(rows([2]))
    for log in Path(local_root).glob("**/bad*/**/compacted/**/log/*"):
        log.write_bytes(b"damaged")
    forget_logs(local_root)
    found = pending(lake_tables(local_root))
    assert found["shop/good/1/deltas/_"].problem is None
    assert found["shop/bad/1/deltas/_"].problem
    assert siltstone.Table(siltstone.open(local_root), "shop.bad").report().problem
    assert [each.problem is None for each in siltstone.open(local_root).report()] == [False, True]


def test_trimming_forgets_what_is_compacted_and_old_and_nothing_else(
    local_root: str, at_time: Callable[[int], None]
) -> None:
    table = make_table(local_root, "shop.orders")
    for number in range(3):
        table.write(rows([number]))
    tables = lake_tables(local_root, delta_retention_seconds=3600)
    partition = only(tables)
    now_ms = table.deltas()[-1].committed_at
    at_time(now_ms + DAY_MS)
    assert trim_one(tables, partition, 3) == 0
    at_time(now_ms)
    compact_all(tables)
    table.write(rows([9]))
    at_time(now_ms + 60_000)
    assert trim_one(tables, partition, 3) == 0
    at_time(now_ms + DAY_MS)
    assert trim_one(tables, partition, 2) == 2
    assert trim_one(tables, partition, 2) == 0
    assert trim_one(tables, partition, 10) == 1
    assert storage.get_partition(partition, root=local_root).trimmed_stream_position == 3
    assert [delta.stream_position for delta in table.deltas()] == [4]
    compact_all(tables)
    assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == [0, 1, 2, 9]


def test_the_retention_is_a_property_of_the_table(local_root: str, at_time: Callable[[int], None]) -> None:
    table = make_table(local_root, "shop.orders", properties={"delta_retention_seconds": "0"})
    table.write(rows([1]))
    tables = lake_tables(local_root)
    partition = only(tables)
    compact_all(tables)
    now_ms = table.deltas()[-1].committed_at
    table.alter(properties={"delta_retention_seconds": "forever"})
    at_time(now_ms + DAY_MS)
    assert trim_one(tables, partition, 1) == 0
    at_time(now_ms)
    table.alter(properties={"delta_retention_seconds": "3600"})
    at_time(now_ms + 3_599_999)
    assert trim_one(tables, partition, 1) == 0
    at_time(now_ms + 3_600_000)
    assert trim_one(tables, partition, 1) == 1


@pytest.mark.parametrize("wrong", ["soon", "-1", "nan", "inf"])
def test_a_retention_that_was_set_before_values_were_checked_and_means_nothing_trims_nothing(
    wrong: str, local_root: str
) -> None:
    catalog.create_table(
        "shop.orders",
        schema=schema_from_json(SCHEMA),
        rules=TableRules(primary_keys=["id"]),
        reserved_properties={"delta_retention_seconds": wrong},
        root=local_root,
    )
    table = siltstone.open(local_root).table("shop.orders")
    table.write(rows([1]))
    tables = lake_tables(local_root)
    partition = only(tables)
    compact_all(tables)
    with pytest.raises(InvalidInputError, match=r"delta_retention_seconds is .* give seconds"):
        trim_one(tables, partition, 1)


def test_after_a_rollback_the_deltas_that_are_needed_again_stay(local_root: str) -> None:
    table = make_table(local_root, "shop.orders")
    tables = lake_tables(local_root, delta_retention_seconds=0)
    for number in range(3):
        table.write(rows([number]))
        partition = only(tables)
        compact_all(tables)
    table.rollback(1)
    assert trim_one(tables, partition, 3) == 1
    compact_all(tables)
    assert len(table.to_arrow()) == 3


def test_an_overview_tells_rows_files_backlog_and_amplification(local_root: str) -> None:
    table = make_table(local_root, "shop.orders")
    lake = siltstone.open(local_root)
    empty = table.report()
    assert (empty.rows, empty.files, empty.high_watermark, empty.last_round) == (0, 0, None, None)
    assert empty.write_amplification is None
    table.write(rows(range(100), "a"))
    tables = lake_tables(local_root)
    compact_all(tables)
    table.write(rows(range(10), "b"))
    compact_all(tables)
    table.write(rows([500]))
    (found,) = lake.report()
    assert (found.rows, found.stream_position, found.high_watermark) == (100, 3, 2)
    assert (found.backlog_deltas, found.backlog_partitions) == (1, 1)
    assert found.backlog_bytes > 0
    assert found.oldest_at == table.deltas()[-1].committed_at
    assert found.dead_rows == 10
    assert found.read_amplification == pytest.approx(1.1)
    assert found.write_amplification is not None
    assert found.last_round is not None
    assert found.last_round.round_id == 2
    assert orjson.loads(orjson.dumps(found))["name"] == "shop.orders"


def test_cycles_keep_a_lake_equal_to_the_oracle(local_root: str, tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/service.db", tables="")
    lake = LakeTables(siltstone.open(local_root), engine=run_here, delta_retention_seconds=0)
    world.tables = lake  # type: ignore[assignment]
    world.clock.now_ms *= 2
    made = [make_table(local_root, f"shop.t{number}") for number in range(3)]
    leader, worker = world.leader(), world.worker()
    leader.tick()
    for cycle in range(3):
        for number, table in enumerate(made):
            table.write(rows(range(cycle * 5, cycle * 5 + 10), f"{cycle}-{number}-"))
        tick = world.run_cycle(leader, worker)
        assert tick.record is not None
        assert tick.record.status == "COMPLETED", tick.record.failed_partitions
        for number, table in enumerate(made):
            found = {row["id"]: row["v"] for row in table.to_arrow().to_pylist()}
            assert found == {key: f"{min(key // 5, cycle)}-{number}-{key}" for key in range(cycle * 5 + 10)}
    assert [len(table.deltas()) for table in made] == [1, 1, 1]
    world.close()
