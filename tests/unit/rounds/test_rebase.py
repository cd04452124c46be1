"""Rebases: a destination made anew from one partition on behalf of another, and the rounds that go on from there."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.model import PartitionLocator
from siltstone.model import rounds as state
from siltstone.model.buckets import CompactedFile
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.rounds.plan import RoundPlan, plan_partition
from siltstone.rows.columns import hash_keys
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    CURRENT_KEY,
    bucket_objects,
    commit_round,
    current_completion,
    named_objects,
    write_completion,
)
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    check_rows,
    compact,
    compacted,
    completion_of,
    destination_of,
    found_rows,
    make_table,
    objects_of,
    only_file,
    only_partition,
    overwrite,
    request_for,
    rows,
)


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    """S2: three deltas, of which an old compactor has merged two."""
    table = make_table(local_root)
    table.write(rows([1, 2, 3], "first-"))
    table.write(rows([2], "second-"))
    table.write(rows([3, 4], "third-"))
    return table


@pytest.fixture
def old(table: siltstone.Table) -> siltstone.Table:
    """S1: what an old copy-on-write compactor made of the first two."""
    old = make_table(table.lake.root, "shop.old_compacted", primary_keys=[])
    old.write(pa.table({"id": [1, 2, 3], "v": ["first-1", "second-2", "first-3"]}), "append")
    return old


class TestOnBehalfOfAnother:
    """S1 and S2 differ."""

    def test_the_next_round_starts_after_the_watermark_given(
        self, table: siltstone.Table, old: siltstone.Table
    ) -> None:
        result = compact(
            table,
            source=only_partition(old),
            rebase_source=only_partition(table),
            rebase_high_watermark=2,
            last_stream_position=2,
        )
        (rebased,) = result.rounds
        assert (rebased.high_watermark, rebased.read_watermark) == (2, 1)
        assert rebased.source_partition_locator == rebased.rebase_source_partition_locator == only_partition(table)
        check_rows(table, 2)
        (done,) = compact(table).rounds
        assert (done.delta_count, done.high_watermark) == (1, 3)
        check_rows(table)

    def test_without_a_last_position_the_session_goes_on_to_the_newest(
        self, table: siltstone.Table, old: siltstone.Table
    ) -> None:
        result = compact(
            table, source=only_partition(old), rebase_source=only_partition(table), rebase_high_watermark=2
        )
        assert [(round_.delta_count, round_.high_watermark) for round_ in result.rounds] == [(1, 2), (1, 3)]
        check_rows(table)

    @pytest.mark.parametrize("watermark", [None, 0])
    def test_without_a_watermark_or_with_zero_all_of_the_other_source_follows(
        self, table: siltstone.Table, old: siltstone.Table, watermark: int | None
    ) -> None:
        old.write(rows([77], "only in the old one-"), "append")
        result = compact(
            table, source=only_partition(old), rebase_source=only_partition(table), rebase_high_watermark=watermark
        )
        assert [(round_.delta_count, round_.high_watermark) for round_ in result.rounds] == [(2, 0), (3, 3)]
        assert {(row["id"], row["v"]) for row in found_rows(table)} == {
            (1, "first-1"),
            (2, "second-2"),
            (3, "third-3"),
            (4, "third-4"),
            (77, "only in the old one-77"),
        }

    def test_all_of_the_old_source_is_read_whatever_last_position_is_asked_for(
        self, table: siltstone.Table, old: siltstone.Table
    ) -> None:
        for number in range(50, 60):
            old.write(rows([number]), "append")
        compact(
            table,
            source=only_partition(old),
            rebase_source=only_partition(table),
            rebase_high_watermark=2,
            last_stream_position=2,
        )
        assert completion_of(table).read_watermark == 11
        assert completion_of(table).live_rows == 13

    def test_a_compacted_partition_is_read_without_its_dead_rows(self, table: siltstone.Table) -> None:
        first = make_table(table.lake.root, "shop.first")
        first.write(rows(range(10), "a-"))
        compact(first)
        first.write(rows([3, 12], "b-"))
        first.write(rows([4, 5]).select(["id"]), "delete")
        compact(first)
        assert any(file.deletion_vector for file in completion_of(first).files)
        (rebased,) = compact(
            table,
            source=compacted(first),
            rebase_source=only_partition(table),
            rebase_high_watermark=3,
            last_stream_position=3,
        ).rounds
        assert (rebased.high_watermark, rebased.read_watermark) == (3, 3)
        same_rows(found_rows(table), found_rows(first))
        assert not any(file.deletion_vector for file in completion_of(table).files)
        assert not objects_of(completion_of(table)) & objects_of(completion_of(first))

    def test_a_destination_can_be_made_anew_from_itself(self, table: siltstone.Table) -> None:
        compact(table, max_round_bytes=1)
        before = completion_of(table)
        (rebased,) = compact(
            table, source=compacted(table), rebase_source=only_partition(table), rebase_high_watermark=3
        ).rounds
        assert not objects_of(rebased) & objects_of(before)
        check_rows(table)
        table.write(rows([1], "fourth-"))
        compact(table)
        check_rows(table)

    def test_every_later_completion_names_the_rebase_source(self, table: siltstone.Table, old: siltstone.Table) -> None:
        compact(table, source=only_partition(old), rebase_source=only_partition(table), rebase_high_watermark=2)
        for number in range(3):
            table.write(rows([number], "later-"))
            (done,) = compact(table, MAJOR if number == 1 else MINOR).rounds
            assert done.rebase_source_partition_locator == only_partition(table)
        compact(table, rebase_source=only_partition(table))
        assert completion_of(table).rebase_source_partition_locator == only_partition(table)

    def test_rounds_that_were_never_rebased_name_no_rebase_source(self, table: siltstone.Table) -> None:
        compact(table)
        assert completion_of(table).rebase_source_partition_locator is None

    def test_the_old_source_is_refused_afterwards(self, table: siltstone.Table, old: siltstone.Table) -> None:
        compact(table, source=only_partition(old), rebase_source=only_partition(table), rebase_high_watermark=2)
        with pytest.raises(InvalidInputError, match=r"was compacted from shop/orders/.*, not from shop/old_compacted"):
            compact(table, source=only_partition(old))

    def test_a_rebase_changes_source_and_sort_keys(self, table: siltstone.Table, old: siltstone.Table) -> None:
        compact(table)
        compact(table, source=only_partition(old), rebase_source=only_partition(old), sort_keys=("v",))
        completion = completion_of(table)
        assert (completion.primary_keys, completion.sort_keys) == (["id"], ["v"])
        assert completion.source_partition_locator == only_partition(old)
        same_rows(found_rows(table), [{"id": 1, "v": "first-1"}, {"id": 2, "v": "second-2"}, {"id": 3, "v": "first-3"}])

    def test_columns_and_wider_types_of_the_old_source_are_taken_over(self, table: siltstone.Table) -> None:
        wide = make_table(table.lake.root, "shop.wide", schema={"id": "int64", "v": "string", "note": "string"})
        wide.write(pa.table({"id": [1, 9], "v": ["x", "y"], "note": ["p", "q"]}), "append")
        narrow = make_table(table.lake.root, "shop.narrow", schema={"id": "int32", "v": "string"})
        narrow.write(pa.table({"id": pa.array([1], pa.int32()), "v": ["new"]}))
        compact(narrow, source=only_partition(wide), rebase_source=only_partition(narrow))
        same_rows(found_rows(narrow), [{"id": 1, "v": "new", "note": None}, {"id": 9, "v": "y", "note": "q"}])

    def test_types_that_do_not_fit_are_refused_with_the_column_named(self, table: siltstone.Table) -> None:
        odd = make_table(table.lake.root, "shop.odd", schema={"id": "int64", "v": "double"})
        odd.write(pa.table({"id": [1], "v": [1.5]}), "append")
        with pytest.raises(InvalidInputError, match="'v'"):
            compact(table, source=only_partition(odd), rebase_source=only_partition(table))
        assert current_completion(destination_of(table)) is None

    def test_an_old_source_that_is_not_there_leaves_the_destination_alone(self, table: siltstone.Table) -> None:
        compact(table)
        nowhere = PartitionLocator(**{**only_partition(table), "partition_values": ["nowhere"]})
        with pytest.raises(NotFoundError):
            compact(table, source=nowhere, rebase_source=only_partition(table))
        check_rows(table)

    def test_a_watermark_after_the_last_position_is_refused_before_anything_is_written(
        self, table: siltstone.Table, old: siltstone.Table
    ) -> None:
        with pytest.raises(InvalidInputError, match=r"position 2 .* after 1"):
            compact(
                table,
                source=only_partition(old),
                rebase_source=only_partition(table),
                rebase_high_watermark=2,
                last_stream_position=1,
            )
        assert current_completion(destination_of(table)) is None


class TestOnBehalfOfItself:
    """S1 is S2: what was there is discarded and read again."""

    def test_everything_is_read_again(self, table: siltstone.Table) -> None:
        compact(table, max_round_bytes=1)
        before = completion_of(table)
        (rebased,) = compact(table, rebase_source=only_partition(table)).rounds
        assert (rebased.delta_count, rebased.high_watermark, rebased.read_watermark) == (3, 3, 3)
        assert rebased.round_id == before.round_id + 1
        assert not objects_of(rebased) & objects_of(before)
        check_rows(table)

    def test_up_to_the_last_position_asked_for_even_where_more_was_compacted(self, table: siltstone.Table) -> None:
        compact(table)
        compact(table, rebase_source=only_partition(table), last_stream_position=2)
        assert completion_of(table).high_watermark == 2
        check_rows(table, 2)
        compact(table)
        check_rows(table)

    def test_the_first_session_may_be_a_rebase(self, table: siltstone.Table) -> None:
        compact(table, rebase_source=only_partition(table))
        check_rows(table)

    def test_rows_are_not_doubled_where_there_is_no_key(self, local_root: str) -> None:
        table = make_table(local_root, primary_keys=[])
        table.write(rows([1, 1, 2]), "append")
        compact(table)
        compact(table, rebase_source=only_partition(table))
        check_rows(table)

    def test_trimmed_deltas_are_an_error_and_not_a_loss(self, table: siltstone.Table) -> None:
        compact(table)
        storage.delete_deltas(only_partition(table), last_stream_position=2, root=table.lake.root)
        with pytest.raises(CorruptionError, match="deltas up to 2 are trimmed"):
            compact(table, rebase_source=only_partition(table))
        assert completion_of(table).live_rows == 4


def the_data_file(completion: RoundCompletion) -> str:
    return only_file(completion).uri


def the_index(completion: RoundCompletion) -> str:
    index = only_file(completion).index_uri
    assert index is not None
    return index


class TestTombstones:
    """A rebase from compacted rows takes their tombstones along, so that late rows stay out."""

    @pytest.fixture
    def first(self, local_root: str) -> siltstone.Table:
        table = self.table(local_root, "shop.first")
        table.write(pa.table({"id": range(40), "at": [5] * 40, "v": ["a"] * 40}))
        removals = {"id": range(0, 80, 2), "at": [7] * 40, "v": [None] * 40, "op": ["d"] * 40}
        table.write(pa.table(removals), op_column="op")
        compact(table, replace(MINOR, bucket_rows=8))
        assert sum(bucket.tombstones is not None for bucket in completion_of(table).buckets) > 1
        return table

    def table(self, root: str, name: str, sort_keys: tuple[str, ...] = ("at",)) -> siltstone.Table:
        return make_table(root, name, schema={"id": "int64", "at": "int64", "v": "string"}, sort_keys=list(sort_keys))

    @pytest.mark.parametrize("bucket_rows", [3, 1000])
    def test_late_rows_do_not_bring_deleted_ones_back(self, first: siltstone.Table, bucket_rows: int) -> None:
        table = self.table(first.lake.root, "shop.orders")
        late = {"id": [0, 1, 2, 4, 70, 72], "at": [6, 6, 8, 6, 6, 7], "v": ["late"] * 6}
        table.write(pa.table(late))
        for number, settings in enumerate((replace(MINOR, bucket_rows=bucket_rows), MAJOR)):
            rebase: dict[str, Any] = (
                {"source": compacted(first), "rebase_source": only_partition(table)} if not number else {}
            )
            compact(table, settings, **rebase)
            assert {row["id"] for row in found_rows(table) if row["v"] == "late"} == {1, 2, 72}
            table.write(pa.table({"id": [6], "at": [6], "v": ["late"]}))
        before = objects_of(completion_of(first))
        assert not objects_of(completion_of(table)) & before
        assert table.fsck(deep=True) == []

    def test_with_other_sort_keys_they_mean_nothing(self, first: siltstone.Table) -> None:
        for sort_keys in ((), ("v",), ("at", "v")):
            name = f"shop.by_{len(sort_keys)}_{''.join(sort_keys)}"
            table = self.table(first.lake.root, name, sort_keys)
            table.write(pa.table({"id": [0], "at": [6], "v": ["late"]}))
            compact(table, source=compacted(first), rebase_source=only_partition(table))
            assert [row["v"] for row in found_rows(table) if row["id"] == 0] == ["late"]

    def test_a_destination_made_anew_from_itself_keeps_them(self, first: siltstone.Table) -> None:
        compact(first, source=compacted(first), rebase_source=only_partition(first), rebase_high_watermark=2)
        first.write(pa.table({"id": [0, 70], "at": [6, 6], "v": ["late", "late"]}))
        compact(first)
        check_rows(first)


class TestIdentity:
    """A source is the table it was, whatever it is called."""

    def test_a_renamed_table_is_compacted_on(self, table: siltstone.Table) -> None:
        compact(table)
        table.write(rows([7], "later-"))
        renamed = table.rename("shop.sales")
        (done,) = compact(renamed).rounds
        assert (done.delta_count, done.source_partition_locator) == (1, only_partition(renamed))
        check_rows(renamed)
        assert {round_.source_partition_locator.table for round_ in renamed.rounds()} == {"sales"}
        assert {round_.destination_partition_locator.table for round_ in renamed.rounds()} == {"sales"}

    def test_a_source_of_another_table_may_be_renamed(self, table: siltstone.Table, old: siltstone.Table) -> None:
        compact(table, source=only_partition(old), rebase_source=only_partition(old))
        old.write(rows([50]), "append")
        renamed = old.rename("shop.older")
        (done,) = compact(table, source=only_partition(renamed)).rounds
        assert done.delta_count == 1
        assert 50 in {row["id"] for row in found_rows(table)}

    def test_another_table_under_the_name_of_the_source_is_refused(
        self, table: siltstone.Table, old: siltstone.Table
    ) -> None:
        compact(table, source=only_partition(old), rebase_source=only_partition(old))
        before = completion_of(table)
        old.drop()
        other = make_table(table.lake.root, "shop.old_compacted", primary_keys=[])
        for number in range(3):
            other.write(rows([number + 100]), "append")
        with pytest.raises(InvalidInputError, match=r"was compacted from .* another table of this name; rebase"):
            compact(table, source=only_partition(other))
        assert completion_of(table) == before

    def test_states_of_another_source_are_no_earlier_states_of_this_one(
        self, table: siltstone.Table, old: siltstone.Table
    ) -> None:
        for number in range(5):
            old.write(rows([number + 50]), "append")
        compact(table, source=only_partition(old), rebase_source=only_partition(old), last_stream_position=2)
        compact(table, source=only_partition(table), rebase_source=only_partition(table))
        same_rows(table.to_arrow(as_of=2), oracle_of(table, 2).rows())


class TestDamage:
    """What is missing or damaged is named, never passed over; a rebase cures it."""

    @pytest.fixture
    def damaged(self, local_root: str) -> siltstone.Table:
        table = make_table(local_root, schema={"id": "int64", "at": "int64", "v": "string"}, sort_keys=["at"])
        table.write(pa.table({"id": [1, 2, 3], "at": [5, 5, 5], "v": ["a", "b", "c"]}))
        compact(table)
        table.write(pa.table({"id": [2, 4], "at": [6, 6], "v": ["B", "d"]}))
        return table

    def check_cured(self, table: siltstone.Table) -> None:
        compact(table, rebase_source=only_partition(table))
        check_rows(table)
        table.write(pa.table({"id": [3], "at": [7], "v": ["C"]}))
        compact(table)
        check_rows(table)

    @pytest.mark.parametrize(
        "data",
        [None, b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe"],
        ids=["missing", "empty", "cut", "list", "bare", "null", "binary"],
    )
    def test_a_completion_file(self, damaged: siltstone.Table, data: bytes | None) -> None:
        entry = destination_of(damaged).log.read(lambda state: state.get(CURRENT_KEY))
        assert entry is not None
        overwrite(damaged.lake.root, entry["uri"], data)
        for settings in (MINOR, MAJOR):
            with pytest.raises(CorruptionError, match=rf"{entry['uri']}.*rebase"):
                compact(damaged, settings)
        with pytest.raises(CorruptionError, match=entry["uri"]):
            found_rows(damaged)
        self.check_cured(damaged)

    @pytest.mark.parametrize("what", [the_data_file, the_index], ids=["data", "index"])
    @pytest.mark.parametrize("data", [None, b"", b"PAR1 and no more"], ids=["missing", "empty", "foreign"])
    def test_a_data_file_or_index(
        self, damaged: siltstone.Table, what: Callable[[RoundCompletion], str], data: bytes | None
    ) -> None:
        before = completion_of(damaged)
        uri = what(before)
        overwrite(damaged.lake.root, uri, data)
        for settings in (MINOR, MAJOR):
            with pytest.raises(CorruptionError, match=uri):
                compact(damaged, settings)
        assert completion_of(damaged) == before
        self.check_cured(damaged)

    @pytest.mark.parametrize("cut", [1, 3], ids=["no footer", "no page"])
    def test_a_data_file_that_was_cut_short(self, damaged: siltstone.Table, cut: int) -> None:
        uri = the_data_file(completion_of(damaged))
        data = open_objects(damaged.lake.root).read(uri)
        broken = (
            data[: len(data) // 2] if cut == 1 else data[:4] + b"\0" * (len(data) // 3) + data[4 + len(data) // 3 :]
        )
        overwrite(damaged.lake.root, uri, broken)
        for settings in (MINOR, MAJOR):
            with pytest.raises(CorruptionError, match=uri):
                compact(damaged, settings)
        with pytest.raises(CorruptionError, match=uri):
            found_rows(damaged)
        self.check_cured(damaged)

    @pytest.mark.parametrize("kind", ["local", "memory"])
    def test_a_flipped_bit_in_a_data_file_a_delta_or_tombstones(
        self, kind: str, new_root: Callable[[str], str]
    ) -> None:
        root = new_root(kind)
        table = make_table(root, schema={"id": "int64", "at": "int64", "v": "string"}, sort_keys=["at"])
        number = 500
        names = [f"value {each * each}" for each in range(number)]
        table.write(pa.table({"id": range(number), "at": [1] * number, "v": names}))
        table.write(pa.table({"id": [7, 8], "at": [2, 2], "v": [None, None], "op": ["d", "d"]}), op_column="op")
        compact(table)
        table.write(pa.table({"id": range(0, number, 2), "at": [3] * (number // 2), "v": names[::-2]}))
        before = completion_of(table)
        tombstones = before.buckets[0].tombstones
        (entry,) = table.deltas()[-1].manifest.entries
        assert tombstones is not None
        for uri in (only_file(before).uri, entry.uri, tombstones.uri):
            data = open_objects(table.lake.root).read(uri)
            columns = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).to_dict()["columns"]
            starts = [column["dictionary_page_offset"] or column["data_page_offset"] for column in columns]
            for start, each in zip(starts, columns, strict=True):
                at = start + each["total_compressed_size"] - 1
                overwrite(table.lake.root, uri, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
                with pytest.raises(CorruptionError, match=uri):
                    compact(table, MAJOR)
                assert [finding.file for finding in table.fsck(deep=True)] == [uri]
            overwrite(table.lake.root, uri, data)
        assert completion_of(table) == before
        compact(table, MAJOR)
        check_rows(table)

    def test_a_data_file_of_other_rows(self, damaged: siltstone.Table) -> None:
        uri = the_data_file(completion_of(damaged))
        compact(damaged)
        (other,) = (file.uri for file in completion_of(damaged).files if file.uri != uri)
        overwrite(damaged.lake.root, uri, open_objects(damaged.lake.root).read(other))
        with pytest.raises(CorruptionError, match=rf"{uri}: has 2 rows instead of 3"):
            found_rows(damaged)
        self.check_cured(damaged)

    @pytest.mark.parametrize("data", [None, b"no bitmap"], ids=["missing", "foreign"])
    def test_a_deletion_vector(self, damaged: siltstone.Table, data: bytes | None) -> None:
        compact(damaged)
        (vector,) = (file.deletion_vector for file in completion_of(damaged).files if file.deletion_vector)
        overwrite(damaged.lake.root, vector.uri, data)
        damaged.write(pa.table({"id": [1], "at": [9], "v": ["z"]}))
        for settings in (MINOR, MAJOR):
            with pytest.raises(CorruptionError, match=vector.uri):
                compact(damaged, settings)
        with pytest.raises(CorruptionError, match=vector.uri):
            found_rows(damaged)
        self.check_cured(damaged)

    @pytest.mark.parametrize("data", [None, b"no parquet"], ids=["missing", "foreign"])
    def test_tombstones(self, damaged: siltstone.Table, data: bytes | None) -> None:
        damaged.write(pa.table({"id": [1], "at": [9], "v": [None], "op": ["d"]}), op_column="op")
        compact(damaged)
        tombstones = completion_of(damaged).buckets[0].tombstones
        assert tombstones is not None
        overwrite(damaged.lake.root, tombstones.uri, data)
        damaged.write(pa.table({"id": [1], "at": [8], "v": ["late"]}))
        with pytest.raises(CorruptionError, match=tombstones.uri):
            compact(damaged)
        self.check_cured(damaged)

    def test_what_a_round_touches_stops_it_and_fsck_finds_all_that_the_current_round_names(
        self, local_root: str
    ) -> None:
        table = make_table(local_root, schema={"id": "int64", "at": "int64", "v": "string"}, sort_keys=["at"])
        few = replace(MINOR, bucket_rows=10)
        table.write(pa.table({"id": range(60), "at": [1] * 60, "v": ["a"] * 60}))
        compact(table, few)
        table.write(pa.table({"id": range(20), "at": [2] * 20, "v": ["b"] * 20, "op": ["d", "u"] * 10}), op_column="op")
        compact(table, few)
        table.write(pa.table({"id": [0], "at": [3], "v": ["c"]}))
        before = completion_of(table)
        objects = open_objects(local_root)
        everything = list(named_objects(before.buckets))
        (hash_,) = hash_keys(pa.table({"id": [0]}), ["id"])
        touched = set(bucket_objects([before.buckets[before.buckets.number_of(int(hash_))]]))
        assert {each.kind for each in everything} == {
            "data file",
            "primary key index",
            "deletion vector",
            "tombstone file",
        }
        for each in everything:
            data = objects.read(each.uri)
            assert len(data) == each.size
            for damaged in (None, data[:-1], data + b"x"):
                overwrite(local_root, each.uri, damaged)
                assert isinstance(plan_partition(request_for(table)), RoundPlan)
                if each.uri in touched:
                    with pytest.raises(CorruptionError, match=rf"{each.uri}: .*rebase"):
                        compact(table, few)
                assert [finding.file for finding in table.fsck()] == [each.uri]
            overwrite(local_root, each.uri, data)
        assert {each.kind for each in everything if each.uri in touched} == {each.kind for each in everything}
        assert completion_of(table) == before
        compact(table, few)
        check_rows(table)

    @pytest.mark.parametrize("data", [None, b"", b"cut"], ids=["missing", "empty", "foreign"])
    def test_a_page_of_buckets(self, local_root: str, data: bytes | None) -> None:
        table = make_table(local_root)
        for value in ("a", "b"):
            table.write(rows(range(60), value))
            compact(table, replace(MINOR, bucket_rows=10))
        table.write(rows([1], "c"))
        before = completion_of(table)
        (hash_,) = hash_keys(pa.table({"id": [1]}), ["id"])
        page = before.buckets.pages[before.buckets.number_of(int(hash_)) // 2]
        kept = open_objects(local_root).read(page.uri)
        overwrite(local_root, page.uri, data)
        with pytest.raises(CorruptionError, match=rf"{page.uri}: the page of buckets is .*; restore it, or rebase"):
            compact(table)
        with pytest.raises(CorruptionError, match=page.uri):
            table.to_arrow()
        assert [finding.code for finding in table.fsck()] == ["state"]
        with pytest.raises(CorruptionError, match=page.uri):
            table.vacuum(retention_ms=0, orphan_grace_ms=0)
        overwrite(local_root, page.uri, kept)
        compact(table)
        table.vacuum(retention_ms=0, orphan_grace_ms=0)
        assert not open_objects(local_root).info(page.uri)
        check_rows(table)

    def test_a_flipped_bit_anywhere_in_a_completion_file(self, damaged: siltstone.Table) -> None:
        entry = destination_of(damaged).log.read(lambda state: state.get(CURRENT_KEY))
        assert entry is not None
        data = open_objects(damaged.lake.root).read(entry["uri"])
        for at in range(0, len(data), 37):
            overwrite(damaged.lake.root, entry["uri"], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(CorruptionError, match=rf"{entry['uri']}.*damaged.*rebase"):
                compact(damaged)

    def test_rolling_back_also_cures_a_damaged_current_round(self, damaged: siltstone.Table) -> None:
        compact(damaged)
        entry = destination_of(damaged).log.read(lambda state: state.get(CURRENT_KEY))
        assert entry is not None
        overwrite(damaged.lake.root, entry["uri"], b"{")
        damaged.rollback(1)
        check_rows(damaged, 1)
        compact(damaged)
        check_rows(damaged)

    @pytest.mark.parametrize("data", [None, b"no parquet"], ids=["missing", "foreign"])
    def test_a_file_of_a_delta(self, damaged: siltstone.Table, data: bytes | None) -> None:
        before = completion_of(damaged)
        (entry,) = damaged.deltas()[-1].manifest.entries
        overwrite(damaged.lake.root, entry.uri, data)
        with pytest.raises(CorruptionError, match=entry.uri):
            compact(damaged)
        assert completion_of(damaged) == before

    def test_a_damaged_old_source_is_named_by_a_rebase(self, table: siltstone.Table) -> None:
        first = make_table(table.lake.root, "shop.first")
        first.write(rows([1]))
        compact(first)
        uri = the_data_file(completion_of(first))
        overwrite(table.lake.root, uri, None)
        with pytest.raises(CorruptionError, match=uri):
            compact(table, source=compacted(first), rebase_source=only_partition(table))
        assert current_completion(destination_of(table)) is None


def test_a_completion_of_a_newer_format_is_left_alone(table: siltstone.Table) -> None:
    compact(table)
    destination = destination_of(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "FORMAT_VERSION", 99)
        newer = RoundCompletion(**{**completion_of(table), "round_id": 2, "format_version": 99})
        commit_round(destination, newer, write_completion(destination, newer, 0), 1)
    with pytest.raises(CorruptionError, match=r"format 99 is newer .* upgrade"):
        compact(table)


def test_files_are_what_a_completion_says(table: siltstone.Table) -> None:
    compact(table)
    completion = completion_of(table)
    assert all(isinstance(file, CompactedFile) for file in completion.files)
    assert (completion.written_files, completion.written_rows) == (1, 4)
    assert completion.written_bytes == sum(file.content_length for file in completion.files)
