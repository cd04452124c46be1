"""Damaged compacted partitions are repaired: what can be brought back is, and what cannot is given up knowingly."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.maintenance.recovery import PartitionRepair
from siltstone.model.buckets import Bucket
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    compacted_partition,
    current_completion,
    get_round,
    list_rounds,
    locate_destination,
    write_completion,
)
from siltstone.table.followers import trim_limit
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    compact,
    completion_of,
    destination_of,
    found_rows,
    make_table,
    objects_below,
    objects_of,
    only_partition,
    overwrite,
    rows,
)

KINDS = ["data file", "deletion vector", "index"]
BUCKETS = dataclasses.replace(MINOR, bucket_rows=5)


@pytest.fixture
def root(new_root: Callable[[str], str]) -> str:
    return new_root("memory")


@pytest.fixture(params=[1, 3, 128], ids=["alone", "some together", "together"])
def table(root: str, request: pytest.FixtureRequest) -> siltstone.Table:
    """A table of several buckets and three rounds; the last two left deletion vectors and files beside others.

    Buckets that were merged together share these.
    """
    how = dataclasses.replace(BUCKETS, stretch_buckets=request.param)
    table = make_table(root)
    table.write(rows(range(40), "first"))
    compact(table, how)
    table.write(rows(range(0, 40, 3), "second"))
    compact(table, how)
    table.write(pa.table({"id": [1, 2]}), "delete")
    table.write(rows([3, 50, 51], "third"))
    compact(table, how)
    assert any(file.is_shared for file in completion_of(table).files) == (request.param > 1)
    return table


def damaged_bucket(completion: RoundCompletion, kind: str, earlier: Collection[str] = ()) -> tuple[Bucket, str]:
    """Return a bucket and one of its objects, of a kind, that is not among those of an earlier round."""
    for bucket in completion.buckets:
        for file in bucket.files[1 if kind != "deletion vector" else 0 :]:
            uri = {
                "data file": file.uri,
                "index": file.index_uri,
                "deletion vector": file.deletion_vector.uri if file.deletion_vector else None,
            }[kind]
            if uri is not None and uri not in earlier:
                return bucket, uri
    raise AssertionError(kind)


def trim(table: siltstone.Table, upto: int) -> None:
    storage.delete_deltas(only_partition(table), last_stream_position=upto, root=table.lake.root)


def forget_rounds(table: siltstone.Table) -> None:
    table.vacuum(retention_ms=0, orphan_grace_ms=0)


def one(repairs: list[PartitionRepair]) -> PartitionRepair:
    (repair,) = repairs
    return repair


def check_sound(table: siltstone.Table, expected: list[dict[str, Any]]) -> None:
    same_rows(found_rows(table), expected)
    assert table.fsck(deep=True) == []
    accounting = completion_of(table).accounting
    assert accounting.is_balanced
    assert accounting.live_rows == len(expected)
    table.write(rows([1000], "later"))
    compact(table, BUCKETS)
    same_rows(found_rows(table), [*expected, {"id": 1000, "v": "later1000"}])


@pytest.mark.parametrize("damage", [b"damaged", None], ids=["damaged", "missing"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trimmed", [0, 1, 2])
def test_an_earlier_round_and_the_deltas_since_bring_everything_back(
    table: siltstone.Table, kind: str, damage: bytes | None, trimmed: int
) -> None:
    expected = oracle_of(table).rows()
    second = get_round(destination_of(table), 2)
    _, uri = damaged_bucket(completion_of(table), kind, objects_of(second))
    overwrite(table.lake.root, uri, damage)
    trim(table, trimmed)
    assert table.fsck()
    before = objects_below(table.lake.root)
    planned = one(table.repair(dry_run=True))
    assert objects_below(table.lake.root) == before
    done = one(table.repair())
    assert done == dataclasses.replace(planned, dry_run=False)
    assert (done.round_id, done.lost_rows) == (4, 0)
    assert {bucket.cure for bucket in done.buckets} == {"index" if kind == "index" else "round"}
    assert completion_of(table)["repaired"]
    check_sound(table, expected)


@pytest.mark.parametrize("kind", ["data file", "deletion vector"])
def test_all_deltas_bring_everything_back_where_no_round_does(table: siltstone.Table, kind: str) -> None:
    expected = oracle_of(table).rows()
    forget_rounds(table)
    _, uri = damaged_bucket(completion_of(table), kind)
    overwrite(table.lake.root, uri, None)
    with pytest.raises(CorruptionError):
        compact(table, MAJOR)
    (done,) = one(table.repair()).buckets
    assert (done.cure, done.bucket, done.deltas, done.lost_rows) == ("deltas", "all", 4, 0)
    check_sound(table, expected)


def test_nothing_damaged_is_nothing_to_repair(table: siltstone.Table) -> None:
    before = objects_below(table.lake.root)
    with pytest.raises(InvalidInputError, match="nothing is damaged"):
        table.repair()
    assert objects_below(table.lake.root) == before


@pytest.mark.parametrize("kind", ["data file", "deletion vector"])
def test_what_is_lost_is_given_up_only_if_that_is_accepted_and_counted(table: siltstone.Table, kind: str) -> None:
    expected = oracle_of(table).rows()
    _, uri = damaged_bucket(completion_of(table), kind)
    lost_rows = {
        bucket.name: file.live_count
        for bucket in completion_of(table).buckets
        for file in bucket.files
        if uri in (file.uri, file.deletion_vector and file.deletion_vector.uri)
    }
    ranges = {bucket.name: (bucket.first_hash, bucket.last_hash) for bucket in completion_of(table).buckets}
    forget_rounds(table)
    trim(table, 4)
    overwrite(table.lake.root, uri, None)
    before = objects_below(table.lake.root)
    with pytest.raises(InvalidInputError, match=f"up to {sum(lost_rows.values())} rows .* cannot be brought back"):
        table.repair()
    planned = one(table.repair(dry_run=True))
    assert objects_below(table.lake.root) == before
    done = one(table.repair(accept_loss=True))
    assert done == dataclasses.replace(planned, dry_run=False)
    assert {lost.bucket: lost.lost_rows for lost in done.buckets} == lost_rows
    for lost in done.buckets:
        assert lost.cure == "loss"
        assert (int(lost.first_hash, 16), int(lost.last_hash, 16)) == ranges[lost.bucket]
    kept = found_rows(table)
    assert len(kept) == len(expected) - done.lost_rows
    assert {row["id"]: row for row in kept}.items() <= {row["id"]: row for row in expected}.items()
    assert completion_of(table).accounting.lost_rows == done.lost_rows
    check_sound(table, kept)


def test_what_deltas_that_are_still_there_say_of_lost_rows_is_applied(table: siltstone.Table) -> None:
    expected = oracle_of(table).rows()
    forget_rounds(table)
    trim(table, 1)
    for bucket in completion_of(table).buckets:
        for file in bucket.files:
            overwrite(table.lake.root, file.uri, None)
    assert one(table.repair(dry_run=True)).lost_rows == len(expected)
    done = one(table.repair(accept_loss=True))
    # The first delta is gone; all that was written after it is there.
    kept = [row for row in expected if not str(row["v"]).startswith("first")]
    assert done.lost_rows == len(expected) - len(kept)
    check_sound(table, kept)


@pytest.mark.parametrize(
    "settings", [{"sort_keys": ["v"]}, {"merge_engine": "partial_update"}, {"merge_engine": "first_row"}, {"primary_keys": []}],
    ids=["sort keys", "partial update", "first row", "no key"],
)  # fmt: skip
def test_no_row_appears_as_it_never_was(root: str, settings: dict[str, Any]) -> None:
    table = make_table(root, **settings)
    table.write(rows([1, 2], "b"), "append")
    compact(table)
    table.write(rows([1, 3], "a"), "append")
    compact(table)
    expected = found_rows(table)
    forget_rounds(table)
    trim(table, 1)
    first = completion_of(table).files[0]
    overwrite(root, first.uri, None)
    done = one(table.repair(accept_loss=True))
    kept = found_rows(table)
    assert done.lost_rows == len(expected) - len(kept) > 0
    for row in kept:
        assert row in expected
    assert table.fsck(deep=True) == []


def test_damage_inside_a_file_of_the_right_size_is_found(table: siltstone.Table) -> None:
    expected = oracle_of(table).rows()
    bucket, uri = damaged_bucket(completion_of(table), "index")
    (file,) = (file for file in bucket.files if file.index_uri == uri)
    data = bytearray(b"\0" * file.content_length)
    overwrite(table.lake.root, file.uri, bytes(data))
    assert one(table.repair()).lost_rows == 0
    check_sound(table, expected)


def test_lost_tombstones_come_from_an_earlier_round_or_are_given_up(root: str) -> None:
    table = make_table(root, sort_keys=["v"])
    table.write(rows([1, 2], "b"))
    compact(table)
    table.write(pa.table({"id": [1], "v": ["c1"], "op": ["d"]}), op_column="op")
    compact(table)
    expected = found_rows(table)
    (bucket,) = completion_of(table).buckets
    assert bucket.tombstones is not None
    overwrite(root, bucket.tombstones.uri, None)
    assert [bucket.cure for bucket in one(table.repair()).buckets] == ["round"]
    same_rows(found_rows(table), expected)
    (bucket,) = completion_of(table).buckets
    assert bucket.tombstones is not None
    forget_rounds(table)
    trim(table, 2)
    overwrite(root, bucket.tombstones.uri, None)
    (given_up,) = one(table.repair(accept_loss=True)).buckets
    assert (given_up.lost_rows, given_up.lost_tombstones) == (0, 1)
    same_rows(found_rows(table), expected)


def test_a_bucket_that_has_split_since_is_taken_from_before_the_split(root: str) -> None:
    table = make_table(root)
    table.write(rows(range(10), "first"))
    compact(table, dataclasses.replace(MAJOR, bucket_rows=100))
    table.write(rows(range(5, 60), "second"))
    compact(table, dataclasses.replace(MAJOR, bucket_rows=5))
    expected = oracle_of(table).rows()
    assert len(completion_of(table).buckets) > 1
    trim(table, 1)
    overwrite(root, completion_of(table).buckets[-1].files[0].uri, None)
    (repair,) = one(table.repair()).buckets
    assert (repair.bucket, repair.from_round, repair.deltas) == ("all", 1, 1)
    check_sound(table, expected)


def test_rounds_before_a_rebase_from_elsewhere_are_not_taken(table: siltstone.Table) -> None:
    old = make_table(table.lake.root, "shop.old", primary_keys=[])
    old.write(rows([77], "only there"), "append")
    compact(table, source=only_partition(old), rebase_source=only_partition(table), rebase_high_watermark=4,
            last_stream_position=4)  # fmt: skip
    assert [row["id"] for row in found_rows(table)] == [77]
    overwrite(table.lake.root, completion_of(table).files[0].uri, None)
    with pytest.raises(InvalidInputError, match="cannot be brought back"):
        table.repair()


def test_a_repair_that_another_one_overtakes_is_planned_again(
    table: siltstone.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = oracle_of(table).rows()
    root = table.lake.root
    _, uri = damaged_bucket(completion_of(table), "data file")
    overwrite(root, uri, None)
    others = [lambda: table.rollback(1)]

    def meet(*given: Any) -> Any:
        if others:
            others.pop(0)()
        return write_completion(*given)

    monkeypatch.setattr("siltstone.maintenance.recovery.write_completion", meet)
    before = objects_below(root)
    with pytest.raises(InvalidInputError, match="nothing is damaged"):
        table.repair()
    assert len(objects_below(root)) == len(before) + 1
    compact(table, BUCKETS)
    same_rows(found_rows(table), expected)


def test_partitions_are_repaired_each_by_its_own_round(root: str) -> None:
    lake = siltstone.open(root)
    table = lake.create_table(
        "shop.days", schema={"id": "int64", "day": "string"}, primary_keys=["id", "day"], partition_keys=["day"]
    )
    for day in ("mon", "tue"):
        table.write(pa.table({"id": [1, 2], "day": [day] * 2}))
    for source in table._sources():
        run_session(Request(source, compacted_partition(source), ("id", "day"), root), run_here)
    monday = current_completion(locate_destination(compacted_partition(table._sources()[0]), root=root))
    assert monday is not None
    overwrite(root, monday.files[0].uri, None)
    done = one(table.repair())
    assert done.partition_values == ["mon"]
    assert len(table.to_arrow()) == 4
    assert table.fsck(deep=True) == []


class TestRollback:
    """A rollback goes no further back than deltas are there to come forward again."""

    def test_a_rollback_past_a_trim_is_refused_with_the_oldest_round_that_can_be_reached(
        self, table: siltstone.Table
    ) -> None:
        trim(table, 2)
        before = len(list_rounds(destination_of(table)))
        for dry_run in (True, False):
            with pytest.raises(InvalidInputError, match="the oldest round that can be reached is 2"):
                table.rollback(1, dry_run=dry_run)
        assert len(list_rounds(destination_of(table))) == before
        table.rollback(2)
        compact(table, BUCKETS)
        assert len(found_rows(table)) == 40

    def test_what_a_rollback_needs_is_not_trimmed(self, table: siltstone.Table) -> None:
        source = only_partition(table)
        assert trim_limit(source, 0, root=table.lake.root).position == 4
        table.rollback(1)
        assert trim_limit(source, 0, root=table.lake.root).position == 1
        compact(table, BUCKETS)
        assert trim_limit(source, 0, root=table.lake.root).position == 4

    def test_a_table_that_was_rolled_back_past_a_trim_is_found_by_a_check(self, table: siltstone.Table) -> None:
        table.rollback(1)
        trim(table, 2)
        with pytest.raises(CorruptionError, match="deltas up to 2 are trimmed"):
            compact(table)
        (finding,) = table.fsck()
        assert (finding.code, finding.action) == ("trimmed", "roll back to round 3, which has them")
        table.rollback(3)
        assert table.fsck(deep=True) == []
        assert len(found_rows(table)) == 40
