"""What each merge engine makes of deltas, on cases small enough to be checked by eye."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import siltstone
from siltstone.model import MergeEngine
from siltstone.rows.columns import NULL_HASH, equal_ids, hash_keys, sort_ranks
from siltstone.rows.fold import NONE, DeleteRun, FoldInput, FoldResult, RowsRun, fold
from siltstone.rows.job import BucketResult, RoundJob, Settings
from siltstone.rows.merge import merge_stretch
from siltstone.rows.parts import Tasks, read_parts, stretches
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, check_rows, compact, completion_of, found_rows, make_table

SORTED = {"id": "int64", "at": "int64", "v": "string"}


def ints(*values: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.array(values, np.int64)


def folded(
    engine: MergeEngine,
    *,
    base: tuple[int, ...] = (),
    deltas: tuple[int, ...] = (),
    removals: tuple[int, ...] = (),
    runs: tuple[RowsRun | DeleteRun, ...],
    ranks: tuple[int, ...] | None = None,
    tombstones: tuple[tuple[int, int], ...] = (),
) -> FoldResult:
    """Fold rows that are given by their keys; `removals` has the numbers of delta rows that are deletes."""
    given = FoldInput(
        key_count=4,
        base_keys=ints(*base),
        delta_keys=ints(*deltas),
        removals=np.isin(np.arange(len(deltas)), removals),
        runs=runs,
        ranks=None if ranks is None else ints(*ranks),
        tombstone_keys=ints(*(key for key, _ in tombstones)),
        tombstone_ranks=ints(*(rank for _, rank in tombstones)),
        column_count=2,
    )
    return fold(given, engine)


def test_the_last_row_of_a_key_wins() -> None:
    result = folded("deduplicate", base=(0, 1), deltas=(1, 2, 2), runs=(RowsRun(0, 2, ()), RowsRun(2, 3, ())))
    assert result.winners.tolist() == [0, 2, 4, NONE]


def test_a_removal_hides_rows_before_it_and_none_after_it() -> None:
    result = folded("deduplicate", base=(0, 1), deltas=(0, 1, 1, 2, 2), removals=(0, 1, 4), runs=(RowsRun(0, 5, ()),))
    assert result.winners.tolist() == [NONE, 4, NONE, NONE]


def test_a_delete_delta_hits_what_is_current_and_nothing_later() -> None:
    runs = (RowsRun(0, 1, ()), DeleteRun(keys=ints(0, 1, 2)), RowsRun(1, 2, ()))
    result = folded("deduplicate", base=(0, 3), deltas=(1, 0), runs=runs)
    assert result.winners.tolist() == [3, NONE, NONE, 1]


def test_a_delete_by_columns_hits_the_current_row_of_a_key_only() -> None:
    hits = np.array([True, False, True])  # the base row of key 0, which is superseded, and the delta's row of key 1
    runs = (RowsRun(0, 2, ()), DeleteRun(hits=hits))
    result = folded("deduplicate", base=(0,), deltas=(0, 1), runs=runs)
    assert result.winners.tolist() == [1, NONE, NONE, NONE]


def test_the_greatest_sort_key_wins_and_a_tie_goes_to_the_later() -> None:
    runs = (RowsRun(0, 3, ()), RowsRun(3, 4, ()))
    result = folded("deduplicate", base=(0, 1), deltas=(0, 1, 2, 2), runs=runs, ranks=(5, 5, 4, 5, 7, 7))
    assert result.winners.tolist() == [0, 3, 5, NONE]


def test_a_late_removal_removes_nothing_and_one_that_wins_leaves_a_tombstone() -> None:
    result = folded(
        "deduplicate", base=(0, 1), deltas=(0, 1), removals=(0, 1), runs=(RowsRun(0, 2, ()),), ranks=(5, 5, 4, 6)
    )
    assert result.winners.tolist() == [0, NONE, NONE, NONE]
    assert result.is_tombstone.tolist() == [False, True, False, False]
    assert result.tombstone_rows[1] == 3


def test_a_tombstone_keeps_older_rows_out_and_yields_to_equal_ones() -> None:
    result = folded("deduplicate", deltas=(0, 1), runs=(RowsRun(0, 2, ()),), ranks=(4, 5), tombstones=((0, 5), (1, 5)))
    assert result.winners.tolist() == [NONE, 1, NONE, NONE]
    assert result.is_tombstone.tolist() == [True, False, False, False]


def test_a_delete_delta_does_not_clear_a_tombstone() -> None:
    runs = (DeleteRun(keys=ints(0)), RowsRun(0, 1, ()))
    result = folded("deduplicate", deltas=(0,), runs=runs, ranks=(4,), tombstones=((0, 5),))
    assert result.winners[0] == NONE
    assert result.is_tombstone[0]


def test_a_delete_delta_leaves_no_sort_key_behind() -> None:
    runs = (DeleteRun(keys=ints(0)), RowsRun(0, 1, ()))
    result = folded("deduplicate", base=(0,), deltas=(0,), runs=runs, ranks=(9, 1))
    assert result.winners[0] == 1


def test_the_first_row_of_a_key_stays_until_it_is_removed() -> None:
    result = folded("first_row", base=(0,), deltas=(0, 1, 1, 0, 0, 2, 2), removals=(3, 6), runs=(RowsRun(0, 7, ()),))
    assert result.winners.tolist() == [5, 2, NONE, NONE]


def test_a_partial_update_takes_each_column_from_the_last_row_that_has_it() -> None:
    runs = (RowsRun(0, 1, (0,)), RowsRun(1, 2, (1,)), RowsRun(2, 3, (1,)))
    result = folded("partial_update", base=(0,), deltas=(0, 0, 1), runs=runs)
    assert result.sources is not None
    assert result.sources[:, 0].tolist() == [1, 2]
    assert result.sources[:, 1].tolist() == [NONE, 3]


def test_a_partial_update_after_a_removal_starts_from_nothing() -> None:
    result = folded("partial_update", base=(0,), deltas=(0, 0), removals=(0,), runs=(RowsRun(0, 2, (1,)),))
    assert result.sources is not None
    assert result.sources[:, 0].tolist() == [NONE, 2]
    runs = (DeleteRun(keys=ints(0)), RowsRun(0, 1, (1,)))
    result = folded("partial_update", base=(0,), deltas=(0,), runs=runs)
    assert result.sources is not None
    assert result.sources[:, 0].tolist() == [NONE, 1]


def test_a_partial_update_takes_nothing_from_late_rows() -> None:
    runs = (RowsRun(0, 3, (0, 1)),)
    result = folded("partial_update", base=(0,), deltas=(0, 0, 0), runs=runs, ranks=(5, 6, 4, 6))
    assert result.winners[0] == 3
    result = folded("partial_update", base=(0,), deltas=(0, 0, 0), runs=runs, ranks=(5, 6, 4, 5))
    assert result.winners[0] == 1


def test_equal_values_get_one_number() -> None:
    one = pa.table({"a": pa.array([None, float("nan"), 0.0, 1.0]), "b": ["", None, "x", "x"]})
    other = pa.table({"a": pa.array([1.0, -0.0, float("nan"), None]), "b": ["x", "x", None, None]})
    (own, theirs), count = equal_ids([one, other], ["a", "b"])
    assert theirs.tolist()[:3] == [own[3], own[2], own[1]]
    assert theirs[3] not in own
    assert count == 5


@pytest.mark.parametrize(
    ("kind", "rising"),
    [
        (pa.string(), [None, "", "A", "B", "a", "aa", "é", "\uffff", "\U0001f642"]),
        (pa.float64(), [None, -float("inf"), -1.5, 0.0, 1e-300, 1.5, float("inf"), float("nan")]),
        (pa.int64(), [None, -(2**63), -1, 0, 2**63 - 1]),
        (pa.bool_(), [None, False, True]),
        (pa.binary(), [None, b"", b"\x00", b"\x7f", b"\x80", b"\xff"]),
    ],
    ids=str,
)
def test_sort_keys_rank_by_value_with_nulls_first(kind: pa.DataType, rising: list[Any]) -> None:
    shuffled = [*rising[1::2], *rising[::2]]
    parts = [pa.table({"s": pa.array(part, kind)}) for part in (shuffled[:3], shuffled[3:], [])]
    ranks = np.concatenate(sort_ranks(parts, ["s"]))
    assert [shuffled[place] for place in np.argsort(ranks)] == pytest.approx(rising, nan_ok=True)
    assert len(set(ranks.tolist())) == len(rising)


def test_negative_zero_ranks_as_zero_and_the_first_sort_key_comes_first() -> None:
    (ranks,) = sort_ranks([pa.table({"s": [0.0, -0.0, 1.0], "t": [3, 3, 1]})], ["s", "t"])
    assert ranks[0] == ranks[1] < ranks[2]


class TestThroughARound:
    """The same through files, minor and major."""

    @pytest.fixture(params=[MINOR, MAJOR], ids=["minor", "major"])
    def how(self, request: pytest.FixtureRequest) -> Settings:
        settings: Settings = request.param
        return settings

    def check(self, table: siltstone.Table, how: Settings, expected: list[dict[str, object]]) -> None:
        """Compact in one more round and compare, with what is expected and with the oracle."""
        compact(table, how)
        same_rows(found_rows(table), expected)
        check_rows(table)

    def test_before_images_leave_nothing(self, local_root: str, how: Settings) -> None:
        table = make_table(local_root)
        table.write(pa.table({"id": [1, 2], "v": ["a", "b"]}))
        compact(table, how)
        changes = pa.table({"id": [1, 1, 3], "v": ["a", "A", "c"], "op": ["-U", "+U", "-U"]})
        table.write(changes, op_column="op")
        self.check(table, how, [{"id": 1, "v": "A"}, {"id": 2, "v": "b"}])
        assert completion_of(table).accounting.delta_rows == 1

    def test_a_delete_delta_does_not_bring_a_late_row_back(self, local_root: str, how: Settings) -> None:
        table = make_table(local_root, schema=SORTED, sort_keys=["at"])
        table.write(pa.table({"id": [1, 2], "at": [5, 5], "v": ["a", "b"]}))
        table.write(pa.table({"id": [1], "at": [6], "v": [None], "op": ["d"]}), op_column="op")
        compact(table, how)
        table.write(pa.table({"id": [1]}), "delete")
        compact(table, how)
        table.write(pa.table({"id": [1], "at": [5], "v": ["late"]}))
        self.check(table, how, [{"id": 2, "at": 5, "v": "b"}])
        table.write(pa.table({"id": [1], "at": [6], "v": ["in time"]}))
        self.check(table, how, [{"id": 2, "at": 5, "v": "b"}, {"id": 1, "at": 6, "v": "in time"}])

    def test_late_data_never_overwrites_rows_of_earlier_rounds(self, local_root: str, how: Settings) -> None:
        table = make_table(local_root, schema={"id": "int64", "at": "string", "v": "string"}, sort_keys=["at"])
        table.write(pa.table({"id": [1, 2, 3], "at": ["\U0001f642", "a", None], "v": ["a", "b", "c"]}))
        compact(table, how)
        # By UTF-16 units the smiling face would come before U+FFFF.
        table.write(pa.table({"id": [1, 2, 3], "at": ["\uffff", "B", ""], "v": ["x", "y", "z"]}))
        self.check(
            table,
            how,
            [{"id": 1, "at": "\U0001f642", "v": "a"}, {"id": 2, "at": "a", "v": "b"}, {"id": 3, "at": "", "v": "z"}],
        )

    def test_a_partial_update_keeps_absent_columns_and_takes_explicit_nulls(
        self, local_root: str, how: Settings
    ) -> None:
        table = make_table(
            local_root, schema={"id": "int64", "v": "string", "w": "string"}, merge_engine="partial_update"
        )
        table.write(pa.table({"id": [1, 3], "v": ["a", "c"], "w": ["A", "C"]}))
        compact(table, how)
        # The order differs from the stored one, and 2 is new: values must follow their key.
        table.write(pa.table({"id": [3, 2, 1], "v": ["c2", "b", None]}))
        self.check(
            table,
            how,
            [{"id": 1, "v": None, "w": "A"}, {"id": 3, "v": "c2", "w": "C"}, {"id": 2, "v": "b", "w": None}],
        )

    def test_a_delete_by_old_values_misses_rows_that_have_changed(self, local_root: str, how: Settings) -> None:
        table = make_table(local_root)
        table.write(pa.table({"id": [1, 2, 3], "v": ["old", "old", None]}))
        compact(table, how)
        table.write(pa.table({"id": [1], "v": ["new"]}))
        table.write(pa.table({"v": ["old", None]}), "delete", ["v"])
        table.write(pa.table({"id": [4], "v": ["old"]}))
        self.check(table, how, [{"id": 1, "v": "new"}, {"id": 4, "v": "old"}])

    @pytest.mark.parametrize("rounds", ["one round", "a round each"])
    def test_a_delete_by_columns_looks_at_the_row_that_partial_updates_composed(
        self, local_root: str, how: Settings, rounds: str
    ) -> None:
        table = make_table(
            local_root, schema={"id": "int64", "v": "string", "w": "string"}, merge_engine="partial_update"
        )
        table.write(pa.table({"id": [1, 2, 3, 4], "v": ["a", "b", None, "d"], "w": [None, "B", "C", "D"]}))
        compact(table, how)
        changes: list[tuple[pa.Table, list[str] | None]] = [
            (pa.table({"id": [1, 2, 3, 5], "w": ["A", "B", "B", "E"]}), None),
            (pa.table({"v": pa.array([None], pa.string())}), ["v"]),  # 3 and 5; not 1, whose v is a
            (pa.table({"v": ["b", "d"], "w": ["B", "B"]}), ["v", "w"]),  # 2 by a carried and an own value; not 4
            (pa.table({"id": [2, 4], "more": [1, 1]}), None),
            (pa.table({"v": ["a", None], "more": pa.array([None, 1], pa.int64())}), ["v", "more"]),  # 1 and 2
        ]
        for data, columns in changes:
            table.write(data, "upsert" if columns is None else "delete", columns)
            if rounds == "a round each":
                compact(table, how)
        same_rows(table.to_arrow(include_uncompacted=True), [{"id": 4, "v": "d", "w": "D", "more": 1}])
        self.check(table, how, [{"id": 4, "v": "d", "w": "D", "more": 1}])

    def test_a_delete_by_columns_finds_what_rows_of_the_same_round_composed(
        self, local_root: str, how: Settings
    ) -> None:
        table = make_table(
            local_root,
            schema={"id": "int64", "at": "int64", "v": "string", "w": "string"},
            sort_keys=["at"],
            merge_engine="partial_update",
        )
        table.write(pa.table({"id": [1, 2, 3], "at": [1, 1, 1], "v": ["a", "a", "a"]}))
        table.write(pa.table({"id": [1, 2, 3], "at": [2, 0, 2], "w": ["b", "late", "b"]}))
        table.write(pa.table({"id": [3, 3], "at": [3, 3], "w": ["gone", "b"], "op": ["d", "c"]}), op_column="op")
        table.write(pa.table({"v": ["a"], "w": ["b"]}), "delete", ["v", "w"])  # 1; of 3 no v is left
        self.check(table, how, [{"id": 2, "at": 1, "v": "a", "w": None}, {"id": 3, "at": 3, "v": None, "w": "b"}])

    def test_null_is_a_key_and_differs_from_the_empty_string(self, local_root: str, how: Settings) -> None:
        table = make_table(local_root, schema={"id": "string", "v": "string"})
        table.write(pa.table({"id": [None, "", "a"], "v": ["null", "empty", "a"]}))
        compact(table, how)
        table.write(pa.table({"id": [None], "v": ["null again"]}))
        table.write(pa.table({"id": pa.array(["a"])}), "delete")
        self.check(table, how, [{"id": None, "v": "null again"}, {"id": "", "v": "empty"}])
        table.write(pa.table({"id": pa.array([None], pa.string())}), "delete")
        self.check(table, how, [{"id": "", "v": "empty"}])

    def test_keys_with_one_hash_stay_apart(self, local_root: str, how: Settings) -> None:
        one, other = colliding_strings()
        table = make_table(local_root, schema={"id": "string", "v": "string"})
        table.write(pa.table({"id": [one, other], "v": ["1", "2"]}))
        compact(table, how)
        table.write(pa.table({"id": [other], "v": ["3"]}))
        self.check(table, how, [{"id": one, "v": "1"}, {"id": other, "v": "3"}])
        table.write(pa.table({"id": [one]}), "delete")
        self.check(table, how, [{"id": other, "v": "3"}])

    def test_a_number_that_hashes_like_null_stays_apart_from_null(self, local_root: str, how: Settings) -> None:
        twin = number_that_hashes_like_null()
        table = make_table(local_root)
        table.write(pa.table({"id": [twin, None], "v": ["twin", "null"]}))
        compact(table, how)
        table.write(pa.table({"id": [twin], "v": ["twin again"]}))
        self.check(table, how, [{"id": twin, "v": "twin again"}, {"id": None, "v": "null"}])
        table.write(pa.table({"id": pa.array([None], pa.int64())}), "delete")
        self.check(table, how, [{"id": twin, "v": "twin again"}])

    def test_rows_without_a_key_are_all_kept_until_deleted(self, local_root: str, how: Settings) -> None:
        table = make_table(local_root, primary_keys=[])
        for value in ("a", "b", "a"):
            table.write(pa.table({"id": [1, 1], "v": [value, value]}), "append")
            compact(table, how)
        table.write(pa.table({"v": ["a"]}), "delete", ["v"])
        table.write(pa.table({"id": [1], "v": ["a"]}), "append")
        self.check(table, how, [{"id": 1, "v": "b"}, {"id": 1, "v": "b"}, {"id": 1, "v": "a"}])

    @pytest.mark.parametrize("parts", ["in order", "the other way round"])
    def test_row_groups_are_merged_in_stream_order_however_they_arrive(
        self, local_root: str, how: Settings, parts: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("siltstone.storage.parquet.ROW_GROUP_ROWS", 3)
        monkeypatch.setattr("siltstone.rows.absorb.ROW_GROUP_ROWS", 4)

        def engine(job: RoundJob) -> Iterator[BucketResult]:
            found = [part for _, part in read_parts(job, job.reads, Tasks([0], 1))]
            assert len(found) > 2
            (stretch,) = stretches(job, [0], found if parts == "in order" else found[::-1])
            yield from merge_stretch(job, stretch)

        table = make_table(local_root)
        for value in ("a", "b", "c"):
            table.write(pa.table({"id": [number % 7 for number in range(20)], "v": [f"{value}{n}" for n in range(20)]}))
            if value != "b":
                compact(table, how, engine=engine)
                check_rows(table)
        assert completion_of(table).live_rows == 7


def colliding_strings() -> tuple[str, str]:
    """Return two strings that any polynomial hash modulo 2 ** 64 confuses: a Thue-Morse word and its opposite."""
    bits = [bin(number).count("1") % 2 for number in range(2048)]
    return "".join("ab"[bit] for bit in bits), "".join("ba"[bit] for bit in bits)


def number_that_hashes_like_null() -> int:
    """Return the key whose 64 bits are mixed to the hash of null, by mixing backwards."""
    mask = (1 << 64) - 1

    def unshift(value: int, by: int) -> int:
        result = value
        for _ in range(64 // by):
            result = value ^ (result >> by)
        return result

    value = unshift(0x6E756C6C6E756C6C, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & mask
    value = unshift(value, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & mask
    value = (unshift(value, 30) - 0x9E3779B97F4A7C15) & mask
    return value - (1 << 64) if value >> 63 else value


def test_the_colliding_keys_really_collide() -> None:
    one, other = hash_keys(pa.table({"k": list(colliding_strings())}), ["k"])
    assert one == other
    assert hash_keys(pa.table({"k": [number_that_hashes_like_null()]}), ["k"]).tolist() == [NULL_HASH]
