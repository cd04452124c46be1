"""Compacting whole tables from Python: rebases by table, on behalf of others, and calls that make no sense."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.model import PartitionLocator
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import oracle_of, same_rows

SCHEMA = {"id": "int64", "region": "string", "v": "string"}
Compact = Callable[..., list[RoundCompletion]]


@pytest.fixture
def compact(monkeypatch: pytest.MonkeyPatch) -> Compact:
    """Compact in this process; gives the rounds of all partitions."""
    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", lambda *_: run_here)

    def run(table: siltstone.Table, **options: Any) -> list[RoundCompletion]:
        results = table.compact(spark=object(), **options)  # type: ignore[arg-type]
        return [completion for result in results for completion in result.rounds]

    return run


def make(root: str, name: str, **settings: Any) -> siltstone.Table:
    return siltstone.open(root).create_table(name, **{"schema": SCHEMA, "primary_keys": ["id"], **settings})


def rows(ids: list[int], v: str, region: str = "eu") -> pa.Table:
    return pa.table({"id": ids, "region": [region] * len(ids), "v": [v] * len(ids)})


def values(table: siltstone.Table, **options: Any) -> dict[int, str]:
    return {row["id"]: row["v"] for row in table.to_arrow(**options).to_pylist()}


@pytest.fixture
def root(new_root: Callable[[str], str]) -> str:
    return new_root("memory")


@pytest.fixture
def orders(root: str) -> siltstone.Table:
    """A table of three deltas, never compacted."""
    table = make(root, "shop.orders")
    table.write(rows([1, 2, 3], "first"))
    table.write(rows([2], "second"))
    table.write(rows([3, 4], "third"))
    return table


@pytest.fixture
def old(orders: siltstone.Table) -> siltstone.Table:
    """What another program had compacted of the first two deltas, and one row that only it had."""
    old = make(orders.lake.root, "shop.old", primary_keys=[])
    old.write(pa.concat_tables([rows([1, 3], "first"), rows([2], "second"), rows([77], "only there")]), "append")
    return old


def files_below(root: str) -> list[str]:
    return sorted(object_.path for object_ in open_objects(root).list_objects("", recursive=True))


def refused(table: siltstone.Table, compact: Compact, match: str, **options: Any) -> None:
    before = files_below(table.lake.root)
    with pytest.raises((siltstone.InvalidInputError, siltstone.NotFoundError), match=match):
        compact(table, **options)
    assert files_below(table.lake.root) == before


def test_a_table_moves_over_from_what_another_program_compacted(
    orders: siltstone.Table, old: siltstone.Table, compact: Compact
) -> None:
    rebased, followed = compact(orders, rebase_from=old, high_watermark=2)
    assert (rebased.high_watermark, followed.high_watermark, followed.delta_count) == (2, 3, 1)
    assert values(orders) == {1: "first", 2: "second", 3: "third", 4: "third", 77: "only there"}
    assert str(followed.rebase_source_partition_locator) == "shop/orders/1/deltas/_"
    orders.write(rows([5], "fourth"))
    assert [each.high_watermark for each in compact(orders)] == [4]


@pytest.mark.parametrize("spelled", ["shop.old", "shop/old/1/deltas", "shop/old/1/deltas/_"])
def test_the_source_can_be_named_in_several_ways(
    orders: siltstone.Table, old: siltstone.Table, compact: Compact, spelled: str
) -> None:
    compact(orders, rebase_from=spelled, high_watermark=2, to=2)
    assert values(orders) == {1: "first", 2: "second", 3: "first", 77: "only there"}


def test_without_a_watermark_all_deltas_follow(orders: siltstone.Table, old: siltstone.Table, compact: Compact) -> None:
    assert [each.delta_count for each in compact(orders, rebase_from="shop.old")] == [1, 3]
    assert values(orders)[77] == "only there"


def test_a_rebase_from_itself_discards_what_was_compacted(orders: siltstone.Table, compact: Compact) -> None:
    (first,) = compact(orders)
    open_objects(orders.lake.root).replace(first.files[0].uri, b"damaged")
    with pytest.raises(siltstone.CorruptionError, match=first.files[0].uri):
        orders.to_arrow()
    (again,) = compact(orders, rebase_from=orders)
    assert (again.round_id, again.delta_count) == (2, 3)
    same_rows(orders.to_arrow(), oracle_of(orders).rows())
    assert orders.fsck(deep=True) == []


def test_a_table_that_was_compacted_is_read_as_compacted(orders: siltstone.Table, compact: Compact) -> None:
    source = make(orders.lake.root, "shop.source")
    source.write(rows([1, 2], "compacted"))
    compact(source)
    source.write(rows([9], "waiting"))
    refused(orders, compact, "1 of its deltas are not; compact it", rebase_from=source, high_watermark=3)
    compact(source)
    (rebased,) = compact(orders, rebase_from=source, high_watermark=3)
    assert rebased.read_watermark == 2
    assert values(orders) == {1: "compacted", 2: "compacted", 9: "waiting"}


def test_compacted_rows_are_known_to_have_what_they_were_compacted_from(
    orders: siltstone.Table, compact: Compact
) -> None:
    compact(orders, to=2)
    rebased, followed = compact(orders, rebase_from="shop/orders/1/compacted")
    assert (rebased.high_watermark, followed.delta_count) == (2, 1)
    same_rows(orders.to_arrow(), oracle_of(orders).rows())


class TestOnBehalfOfAnotherTable:
    """The deltas are those of one table, the compacted rows those of another."""

    @pytest.fixture
    def copy(self, orders: siltstone.Table) -> siltstone.Table:
        return make(orders.lake.root, "shop.copy")

    def test_a_table_without_deltas_of_its_own_is_compacted_and_read(
        self, orders: siltstone.Table, old: siltstone.Table, copy: siltstone.Table, compact: Compact
    ) -> None:
        compact(copy, rebase_from=old, on_behalf_of=orders, high_watermark=2, to=2)
        assert values(copy) == {1: "first", 2: "second", 3: "first", 77: "only there"}
        assert values(copy, include_uncompacted=True)[4] == "third"
        assert 4 not in values(copy, as_of=2)
        (done,) = compact(copy, on_behalf_of=orders)
        assert (done.delta_count, done.high_watermark) == (1, 3)
        assert values(copy)[3] == "third"
        assert orders.rounds() == []

    def test_going_on_with_another_source_needs_a_rebase(
        self, orders: siltstone.Table, copy: siltstone.Table, compact: Compact
    ) -> None:
        compact(copy, on_behalf_of=orders, to=1)
        copy.write(rows([1], "its own"))
        refused(copy, compact, "shop/orders/1/deltas/_, not from shop/copy/1/deltas/_; rebase to change the source")
        compact(copy, rebase_from=copy)
        assert values(copy) == {1: "its own"}

    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"primary_keys": ["region"]}, "primary_keys"),
            ({"sort_keys": ["v"]}, "sort_keys"),
            ({"merge_engine": "first_row"}, "merge_engine"),
            ({"partition_keys": ["region"], "unique_within_partition": True}, "partition_keys"),
            ({"drop_duplicates": False}, "drop_duplicates"),
        ],
    )
    def test_tables_must_have_the_same_rules(
        self, orders: siltstone.Table, compact: Compact, settings: dict[str, Any], match: str
    ) -> None:
        other = make(orders.lake.root, "shop.other", **settings)
        refused(other, compact, match, on_behalf_of=orders)


class TestPartitions:
    """Every partition is rebased from the one with the same values."""

    @pytest.fixture
    def regions(self, root: str) -> siltstone.Table:
        table = make(root, "shop.regions", partition_keys=["region"], unique_within_partition=True)
        table.write(rows([1], "first", "eu"))
        table.write(rows([2], "second", "us"))
        return table

    @pytest.fixture
    def source(self, regions: siltstone.Table) -> siltstone.Table:
        source = make(regions.lake.root, "shop.source", partition_keys=["region"], unique_within_partition=True)
        source.write(rows([10], "there", "eu"))
        source.write(rows([30], "there", "asia"))
        return source

    def test_all_partitions_of_both_tables_are_taken(
        self, regions: siltstone.Table, source: siltstone.Table, compact: Compact
    ) -> None:
        compact(regions, rebase_from=source, high_watermark=1)
        assert values(regions) == {10: "there", 30: "there", 2: "second"}
        assert {each["region"] for each in regions.to_arrow().to_pylist()} == {"eu", "us", "asia"}
        assert [row["id"] for row in regions.lookup({"id": 30})] == [30]
        assert regions.fsck(deep=True) == []

    def test_one_partition_alone(self, regions: siltstone.Table, source: siltstone.Table, compact: Compact) -> None:
        compact(regions)
        stream = {"namespace": "shop", "table": "source", "table_version": "1", "stream": "deltas"}
        compact(regions, rebase_from=PartitionLocator(**stream, partition_values=["eu"]), high_watermark=2)
        assert values(regions) == {10: "there", 2: "second"}
        compact(regions, rebase_from="shop/source/1/deltas/asia", high_watermark=2)
        assert values(regions) == {10: "there", 2: "second", 30: "there"}
        refused(regions, compact, "mars: there is no such", rebase_from="shop/source/1/deltas/mars")

    def test_a_compacted_partition_is_not_lost_to_a_source_that_has_none(
        self, regions: siltstone.Table, source: siltstone.Table, compact: Compact
    ) -> None:
        compact(regions)
        refused(regions, compact, "shop/source/1/deltas/us: there is no such partition", rebase_from=source)

    def test_a_position_before_the_watermark_of_any_partition_changes_none(
        self, regions: siltstone.Table, compact: Compact
    ) -> None:
        compact(regions)
        regions.write(rows([3], "third", "asia"))
        refused(regions, compact, "is compacted up to position 2 already, which is after 1", to=1)


def test_a_watermark_alone_says_where_to_go_on_from(orders: siltstone.Table, compact: Compact) -> None:
    (done,) = compact(orders, high_watermark=2)
    assert (done.delta_count, values(orders)) == (1, {3: "third", 4: "third"})
    compact(orders, high_watermark=0)
    assert values(orders) == {1: "first", 2: "second", 3: "third", 4: "third"}


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"high_watermark": 9}, "high watermark 9 is after the newest delta of shop.orders, 3"),
        ({"high_watermark": 3}, "no delta of shop/orders/1/deltas/_ is after position 3"),
        ({"high_watermark": -1}, "high watermark -1 is not a stream position"),
        ({"to": -1}, "position -1 is not a stream position"),
        ({"rebase_from": "shop.old", "high_watermark": 3, "to": 2}, "up to position 3 already, which is after 2"),
        ({"rebase_from": "shop.nosuch"}, "there is no table shop.nosuch"),
        ({"rebase_from": "old"}, "no namespace"),
        ({"rebase_from": "shop/old"}, "names no stream; write namespace.table"),
        ({"rebase_from": "shop/old/1/nosuch"}, "nothing was compacted there"),
        ({"rebase_from": "shop/old/1/compacted"}, "nothing was compacted there"),
        ({"rebase_from": "shop/old/7/deltas"}, "7"),
        ({"on_behalf_of": "shop.nosuch"}, "there is no table shop.nosuch"),
        ({"on_behalf_of": "shop.old"}, "primary_keys"),
        ({"on_behalf_of": "shop/orders/1/compacted"}, "there is no stream compacted"),
    ],
    ids=lambda value: " ".join(f"{name}={each}" for name, each in value.items()) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    orders: siltstone.Table, old: siltstone.Table, compact: Compact, options: dict[str, Any], match: str
) -> None:
    refused(orders, compact, match, **options)


def test_a_source_with_columns_that_would_not_be_shown_is_refused(orders: siltstone.Table, compact: Compact) -> None:
    wide = make(orders.lake.root, "shop.wide", schema={**SCHEMA, "note": "string"})
    refused(orders, compact, "would not show note of shop/wide/1", rebase_from=wide)
    strange = make(orders.lake.root, "shop.strange", schema={**SCHEMA, "v": "int64"})
    refused(orders, compact, "column 'v' is string in the table but int64", rebase_from=strange)
    keyless = make(orders.lake.root, "shop.keyless", schema={"v": "string"}, primary_keys=[])
    refused(orders, compact, "has no column 'id', which is a key", rebase_from=keyless)


def test_a_table_of_another_lake_is_refused(
    orders: siltstone.Table, compact: Compact, new_root: Callable[[str], str]
) -> None:
    other = make(new_root("memory"), "shop.orders")
    refused(orders, compact, "is in another lake", rebase_from=other)


def test_deltas_that_are_gone_are_not_rebased_from(orders: siltstone.Table, compact: Compact) -> None:
    compact(orders)
    (source,) = orders._sources()
    storage.delete_deltas(source, last_stream_position=2, root=orders.lake.root)
    with pytest.raises(siltstone.CorruptionError, match="deltas up to 2 are trimmed"):
        compact(orders, rebase_from=orders)
    compact(orders, rebase_from=compacted_partition(source))
    assert values(orders) == {1: "first", 2: "second", 3: "third", 4: "third"}


def test_a_renamed_table_goes_on_with_its_deltas(orders: siltstone.Table, compact: Compact) -> None:
    compact(orders, to=2)
    renamed = orders.rename("shop.sales")
    assert values(renamed, include_uncompacted=True)[4] == "third"
    assert values(renamed, as_of=1)[2] == "first"
    (told,) = renamed.explain_key({"id": 3})
    assert [event.stream_position for event in told.events] == [1, 3]
    assert [each.delta_count for each in compact(renamed)] == [1]
    compact(renamed, rebase_from="shop.sales")
    same_rows(renamed.to_arrow(), oracle_of(renamed).rows())
