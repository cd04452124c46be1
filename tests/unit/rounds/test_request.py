"""What `compact_partition` refuses, before it starts Spark or writes anything."""

import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.model import PartitionLocator
from siltstone.objects import open_objects
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.spark.compaction import compact_partition
from siltstone.table.completion import current_completion, locate_destination
from tests.unit.rounds.compaction import compacted, make_table, only_partition, rows

Compact = Callable[..., Any]


@pytest.fixture
def root(new_root: Callable[[str], str]) -> str:
    return new_root("memory")


@pytest.fixture
def orders(root: str) -> siltstone.Table:
    table = make_table(root)
    table.write(rows([1, 2, 3], "first"))
    return table


@pytest.fixture
def old(orders: siltstone.Table) -> siltstone.Table:
    """What another program had compacted, in a table without keys."""
    table = make_table(orders.lake.root, "shop.old", primary_keys=[])
    table.write(rows([1, 2], "old"), "append")
    return table


@pytest.fixture
def compact(orders: siltstone.Table, monkeypatch: pytest.MonkeyPatch) -> Compact:
    """Call the seed's function in this process, by default for the orders."""
    monkeypatch.setattr("siltstone.spark.tasks.spark_engine", lambda *_: run_here)

    def call(**given: Any) -> Any:
        defaults = {
            "source_partition_locator": only_partition(orders),
            "destination_partition_locator": compacted(orders),
            "primary_keys": ["id"],
            "compaction_artifact_path": orders.lake.root,
            "spark": object(),
        }
        return compact_partition(**{**defaults, **given})

    return call


@pytest.fixture
def refused(orders: siltstone.Table, compact: Compact, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check that a call is refused, with a message, and that nothing is written for it."""

    def call(match: str, kind: type[Exception] = InvalidInputError, **given: Any) -> None:
        monkeypatch.setattr("siltstone.spark.session.local_session", lambda: pytest.fail("Spark was started"))
        before = stored(orders.lake.root)
        with pytest.raises(kind, match=match):
            compact(**{"spark": None, **given})
        assert stored(orders.lake.root) == before

    return call


def stored(root: str) -> list[str]:
    return sorted(object_.path for object_ in open_objects(root).list_objects("", recursive=True))


def test_a_destination_that_is_a_stream_of_deltas_is_refused(
    orders: siltstone.Table, old: siltstone.Table, refused: Callable[..., None]
) -> None:
    refused("orders/1/deltas/_: holds deltas", destination_partition_locator=only_partition(orders))
    migration = {
        "source_partition_locator": only_partition(old),
        "rebase_source_partition_locator": only_partition(orders),
    }
    for table in (orders, old):
        refused("holds deltas", destination_partition_locator=only_partition(table), **migration)


def test_keys_other_than_those_of_the_destination_are_refused(
    orders: siltstone.Table, old: siltstone.Table, refused: Callable[..., None]
) -> None:
    refused("by the keys v: those of its table are id", primary_keys=["v"])
    refused("by the keys none: those of its table are id", primary_keys=[])
    refused("by the keys nope: those", primary_keys=["nope"])
    refused("by the keys id, id: those", primary_keys=["id", "id"])
    refused("by the keys id: those of its table are none", destination_partition_locator=compacted(old))


def test_the_table_that_is_rebased_from_may_have_other_keys_or_none(
    orders: siltstone.Table, old: siltstone.Table, compact: Compact
) -> None:
    compact(
        source_partition_locator=only_partition(old),
        rebase_source_partition_locator=only_partition(orders),
        rebase_source_partition_high_watermark=1,
    )
    assert sorted(row["v"] for row in orders.to_arrow().to_pylist()) == ["old1", "old2"]


@pytest.mark.parametrize("keys", ["id", ("id",), {"id"}, iter(["id"])], ids=["text", "tuple", "set", "iterator"])
def test_keys_are_given_in_any_form_also_as_one_name(orders: siltstone.Table, compact: Compact, keys: Any) -> None:
    compact(primary_keys=keys, sort_keys="v")
    completion = current_completion(locate_destination(compacted(orders), root=orders.lake.root))
    assert completion is not None
    assert (completion.primary_keys, completion.sort_keys) == (["id"], ["v"])


def test_partition_values_other_than_those_of_the_deltas_are_refused(
    root: str, orders: siltstone.Table, refused: Callable[..., None]
) -> None:
    days = siltstone.open(root).create_table(
        "shop.days", schema={"id": "int64", "day": "string"}, primary_keys=["id", "day"], partition_keys=["day"]
    )
    days.write(pa.table({"id": [1, 2], "day": ["mon", "tue"]}))
    monday, tuesday = days._sources()
    keys = {"primary_keys": ["id", "day"]}
    into = PartitionLocator(**{**tuesday, "stream": "compacted"})
    refused(
        r"\['tue'\], but .* has \['mon'\]", source_partition_locator=monday, destination_partition_locator=into, **keys
    )
    refused(r"\['tue'\], but .* has \['mon'\]", source_partition_locator=tuesday, destination_partition_locator=into,
            rebase_source_partition_locator=monday, **keys)  # fmt: skip
    refused(r"\['tue'\], but .* has \[\]", destination_partition_locator=into, **keys)


def test_deltas_that_are_partitioned_by_another_column_are_refused(root: str, refused: Callable[..., None]) -> None:
    schema = {"id": "int64", "day": "string", "zone": "string"}
    keys = ["id", "day", "zone"]
    days = make_table(root, "shop.days", schema=schema, primary_keys=keys, partition_keys=["day"])
    zones = make_table(root, "shop.zones", schema=schema, primary_keys=keys, partition_keys=["zone"])
    for table in (days, zones):
        table.write(pa.table({"id": [1], "day": ["x"], "zone": ["x"]}))
    # Readers who ask for a zone open the partition of that zone only.
    refused(
        "is partitioned by zone, but shop/days/1/deltas/x by day",
        source_partition_locator=only_partition(days),
        destination_partition_locator=compacted(zones),
        primary_keys=keys,
    )


def test_a_key_or_sort_column_that_is_not_there_is_named(orders: siltstone.Table, refused: Callable[..., None]) -> None:
    refused("sort key 'nope', which shop/orders/1/deltas/_ does not have; its columns are id, v", sort_keys=["nope"])
    keyless = make_table(orders.lake.root, "shop.keyless", schema={"v": "string"}, primary_keys=[])
    keyless.write(pa.table({"v": ["x"]}), "append")
    refused(
        "key 'id', which shop/keyless/1/deltas/_ does not have",
        source_partition_locator=only_partition(keyless),
        rebase_source_partition_locator=only_partition(orders),
    )


def test_sort_keys_are_refused_where_the_first_row_counts(
    orders: siltstone.Table, refused: Callable[..., None]
) -> None:
    first = make_table(orders.lake.root, "shop.first", merge_engine="first_row")
    first.write(rows([1]))
    partition = only_partition(first)
    destination = PartitionLocator(**{**partition, "stream": "compacted"})
    keys = {"source_partition_locator": partition, "destination_partition_locator": destination, "sort_keys": ["v"]}
    refused("keeps the first row of each key as it comes; leave out the sort keys v", **keys)


@pytest.mark.parametrize("name", ["records_per_compacted_file", "target_file_bytes", "max_round_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 63, 1.5, True, "7"])
def test_sizes_that_make_no_sense_are_refused(refused: Callable[..., None], name: str, value: Any) -> None:
    refused(f"{name} is {value!r}; give a whole number from 1", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bucket_rows", 0),
        ("max_files", 0),
        ("shared_rows", -1),
        ("shared_bytes", 0.5),
        ("max_dead_fraction", -0.1),
        ("max_delta_fraction", math.nan),
        ("max_delta_fraction", math.inf),
        ("max_carried_fraction", -1),
    ],
)
def test_settings_that_make_no_sense_are_refused(refused: Callable[..., None], name: str, value: Any) -> None:
    refused(f"{name} is", settings=Settings(**{name: value}))


def test_positions_that_cannot_be_are_refused(orders: siltstone.Table, refused: Callable[..., None]) -> None:
    refused("position -1 is not a stream position", last_stream_position_to_compact=-1)
    refused(
        "high watermark 9223372036854775808 is not a stream position", rebase_source_partition_high_watermark=1 << 63
    )
    refused(
        "high watermark 9 is after the newest delta of shop/orders/1/deltas/_, 1",
        rebase_source_partition_locator=only_partition(orders),
        rebase_source_partition_high_watermark=9,
    )


def test_a_rebase_on_behalf_of_compacted_rows_is_refused(
    orders: siltstone.Table, old: siltstone.Table, compact: Compact, refused: Callable[..., None]
) -> None:
    compact()
    refused(
        "there is no stream compacted",
        NotFoundError,
        source_partition_locator=only_partition(old),
        rebase_source_partition_locator=compacted(orders),
    )
