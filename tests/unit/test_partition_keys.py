"""One row per key in the whole table: partition keys are part of the key, unless a table says otherwise."""

import warnings
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.catalog.main import version_folder
from siltstone.errors import InvalidInputError, KeysInSeveralPartitionsWarning
from siltstone.log.state import Entry
from siltstone.storage import object_store as storage
from siltstone.storage.layout import VERSION_KEY, version_log
from siltstone.testing.oracle import oracle_of, same_rows

SCHEMA = {"id": "int64", "region": "string", "v": "string"}


@pytest.fixture
def visits(local_root: str) -> siltstone.Table:
    """A table whose keys are unique within a region; key 1 is in two of them."""
    table = siltstone.open(local_root).create_table(
        "web.visits", schema=SCHEMA, primary_keys=["id"], partition_keys=["region"], unique_within_partition=True
    )
    table.write(changes((1, "eu", "u"), (1, "us", "u"), (2, "eu", "u"), (3, None, "u")), op_column="op")
    return table


def changes(*rows: tuple[int, str | None, str]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "region": pa.array([row[1] for row in rows], pa.string()),
            "v": [f"v{place}" for place, _ in enumerate(rows)],
            "op": [row[2] for row in rows],
        }
    )


def keys_of(table: siltstone.Table) -> set[tuple[Any, Any]]:
    found = table.to_arrow(include_uncompacted=True).to_pylist()
    same_rows(found, oracle_of(table).rows())
    return {(row["id"], row["region"]) for row in found}


def test_a_partition_key_outside_the_primary_key_is_refused_with_what_to_do(local_root: str) -> None:
    lake = siltstone.open(local_root)
    with pytest.raises(InvalidInputError, match=r"would be there twice.*unique_within_partition=True"):
        lake.create_table("web.visits", schema=SCHEMA, primary_keys=["id"], partition_keys=["region"])
    assert not lake.has_table("web.visits")


def test_a_table_without_primary_key_may_have_any_partition_key(local_root: str) -> None:
    lines = siltstone.open(local_root).create_table("web.lines", schema=SCHEMA, partition_keys=["region"])
    assert lines.version.partition_keys_outside == []


def test_a_row_level_delete_without_a_partition_value_removes_the_key_from_every_partition(
    visits: siltstone.Table,
) -> None:
    visits.write(changes((1, None, "d")), op_column="op")
    assert keys_of(visits) == {(2, "eu"), (3, None)}


def test_a_row_level_delete_may_leave_out_the_partition_key_altogether(visits: siltstone.Table) -> None:
    visits.write(changes((1, None, "d"), (3, None, "D")).select(["id", "op"]), op_column="op")
    assert keys_of(visits) == {(2, "eu")}


def test_other_rows_may_not_leave_out_the_partition_key(visits: siltstone.Table) -> None:
    with pytest.raises(InvalidInputError, match="must have the partition key 'region'"):
        visits.write(changes((1, None, "d"), (3, None, "u")).select(["id", "op"]), op_column="op")
    assert len(visits.deltas()) == 3


def test_deletes_and_upserts_of_one_write_keep_their_order_in_each_partition(visits: siltstone.Table) -> None:
    visits.write(
        changes((1, "eu", "u"), (1, None, "d"), (1, "us", "u"), (2, None, "d"), (4, "asia", "u"), (4, None, "d")),
        op_column="op",
    )
    assert keys_of(visits) == {(1, "us"), (3, None)}


def test_a_delete_reaches_a_partition_that_first_appears_in_a_later_batch(visits: siltstone.Table) -> None:
    first, second = changes((1, None, "d"), (2, "eu", "u")), changes((9, "us", "u"))
    visits.write([*first.to_batches(), *second.to_batches()], op_column="op")
    assert keys_of(visits) == {(2, "eu"), (3, None), (9, "us")}


def test_a_delete_reaches_a_partition_that_was_made_after_it_was_staged(visits: siltstone.Table) -> None:
    root = visits.lake.root
    stream = visits.deltas()[0].locator.stream_locator
    staged = storage.stage_deltas(changes((5, None, "d"), (1, None, "d")), stream, op_column="op", root=root)
    visits.write(changes((5, "asia", "u")), op_column="op")
    storage.commit_deltas(staged, stream, root=root)
    assert keys_of(visits) == {(2, "eu"), (3, None)}


def test_a_delete_that_tells_its_partition_removes_the_key_there_only(visits: siltstone.Table) -> None:
    visits.write(changes((1, "us", "d")), op_column="op")
    assert keys_of(visits) == {(1, "eu"), (2, "eu"), (3, None)}


class TestTablesFromBefore:
    """Tables of this shape that were made before there was a rule."""

    @pytest.fixture
    def earlier(self, visits: siltstone.Table) -> siltstone.Table:
        folder = version_folder(visits.name, root=visits.lake.root)
        log = version_log(visits.lake.root, folder)

        def forget(state: Any) -> dict[str, Entry]:
            entry = state.get(VERSION_KEY)
            return {VERSION_KEY: {key: entry[key] for key in entry if key not in ("unique_within_partition", "key")}}

        log.commit("forget", forget)
        return visits

    def test_they_open_with_a_warning_and_work_as_before(self, earlier: siltstone.Table) -> None:
        with pytest.warns(KeysInSeveralPartitionsWarning, match="partitioned by region"):
            table = earlier.lake.table("web.visits")
        table.write(changes((1, None, "d")), op_column="op")
        assert keys_of(table) == {(2, "eu"), (3, None)}

    def test_saying_that_it_is_meant_so_ends_the_warning(self, earlier: siltstone.Table) -> None:
        earlier.alter(unique_within_partition=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            earlier.lake.table("web.visits")

    def test_saying_that_it_is_not_meant_so_is_refused(self, earlier: siltstone.Table) -> None:
        with pytest.raises(InvalidInputError, match="would be there twice"):
            earlier.alter(unique_within_partition=False)
