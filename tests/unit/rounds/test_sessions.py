"""Sessions: which rounds they run, where each one starts, and what is left when they fail or meet others."""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import ConflictError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.model import PartitionLocator
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import MAX_NESTING
from siltstone.objects import open_objects
from siltstone.rounds import plan, session
from siltstone.rounds.events import BucketMerged, Event, RoundCommitted, RoundStarted
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import BucketResult, RoundJob, Settings
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import current_completion, get_round, list_rounds, write_completion
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    Cluster,
    TaskError,
    check_rows,
    compact,
    compacted,
    completion_of,
    destination_of,
    failing_after,
    found_rows,
    live_batches,
    make_table,
    meeting,
    objects_below,
    objects_of,
    only_partition,
    request_for,
    rows,
)


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    return make_table(local_root)


def watermarks(table: siltstone.Table) -> list[int]:
    return [int(entry["high_watermark"]) for entry in list_rounds(destination_of(table))]


def everything_below(root: str) -> list[str]:
    return sorted(object_.path for object_ in open_objects(root).list_objects("", recursive=True))


class TestRange:
    """Which deltas a session reads."""

    def test_each_session_reads_only_what_is_new(self, table: siltstone.Table) -> None:
        for number in range(4):
            table.write(rows([number, number + 1], f"w{number}-"))
            (done,) = compact(table, MAJOR if number == 2 else MINOR).rounds
            assert (done.delta_count, done.high_watermark, done.read_watermark) == (1, number + 1, number + 1)
            check_rows(table)
        assert watermarks(table) == [1, 2, 3, 4]

    def test_nothing_new_makes_no_round_and_writes_nothing(self, table: siltstone.Table) -> None:
        table.write(rows([1, 2]))
        compact(table)
        before = everything_below(table.lake.root)
        assert compact(table).rounds == []
        assert compact(table, last_stream_position=1).rounds == []
        assert compact(table, last_stream_position=10**9).rounds == []
        assert everything_below(table.lake.root) == before

    def test_a_table_without_deltas_has_no_rounds(self, table: siltstone.Table) -> None:
        table.write(rows([1]))
        empty = make_table(table.lake.root, "shop.empty")
        source, into = (PartitionLocator(**empty.version.locator, stream=name) for name in ("deltas", "compacted"))
        before = everything_below(table.lake.root)
        assert compact(table, source=source, destination=into).rounds == []
        assert everything_below(table.lake.root) == before

    def test_full_rewrites_without_anything_new_and_keeps_the_watermark(self, table: siltstone.Table) -> None:
        table.write(rows([1, 2]))
        table.write(rows([2, 3]))
        compact(table, max_round_bytes=1)
        old = objects_of(completion_of(table))
        (done,) = compact(table, MAJOR).rounds
        assert (done.high_watermark, done.delta_count, done.bucket_actions) == (2, 0, {"major": 1})
        assert not objects_of(done) & old
        check_rows(table)

    def test_the_last_position_asked_for_is_the_last_one_read(self, table: siltstone.Table) -> None:
        for number in range(5):
            table.write(rows([number, 9], f"w{number}-"))
        compact(table, last_stream_position=2)
        check_rows(table, 2)
        compact(table, last_stream_position=3)
        check_rows(table, 3)
        assert watermarks(table) == [2, 3]

    def test_a_last_position_before_the_watermark_is_an_error(self, table: siltstone.Table) -> None:
        for _ in range(3):
            table.write(rows([1]))
        compact(table)
        before = everything_below(table.lake.root)
        with pytest.raises(InvalidInputError, match="compacted up to position 3 already, which is after 2"):
            compact(table, last_stream_position=2)
        assert everything_below(table.lake.root) == before

    def test_the_watermark_is_the_highest_position_read_not_the_one_asked_for(self, table: siltstone.Table) -> None:
        table.write(rows([1]))
        compact(table, last_stream_position=1000)
        assert completion_of(table).high_watermark == 1
        table.write(rows([2]))
        compact(table, last_stream_position=1000)
        check_rows(table)

    def test_gaps_between_positions_are_no_loss(self, table: siltstone.Table) -> None:
        table.write(rows([1]), stream_position=10)
        table.write(rows([2]), stream_position=5_000)
        compact(table, last_stream_position=4_000)
        assert completion_of(table).high_watermark == 10
        compact(table)
        assert completion_of(table).high_watermark == 5_000
        check_rows(table)

    def test_deltas_trimmed_before_they_were_compacted_are_an_error(self, table: siltstone.Table) -> None:
        for number in range(4):
            table.write(rows([number]))
        compact(table, last_stream_position=2)
        storage.delete_deltas(only_partition(table), last_stream_position=3, root=table.lake.root)
        with pytest.raises(CorruptionError, match=r"deltas up to 3 are trimmed, but .* compacted up to 2 only"):
            compact(table)
        assert completion_of(table).high_watermark == 2

    def test_deltas_trimmed_after_they_were_compacted_are_not_missed(self, table: siltstone.Table) -> None:
        for number in range(3):
            table.write(rows([number]))
        compact(table)
        storage.delete_deltas(only_partition(table), last_stream_position=3, root=table.lake.root)
        table.write(rows([7]))
        compact(table)
        assert sorted(row["id"] for row in found_rows(table)) == [0, 1, 2, 7]

    def test_states_after_rounds_are_readable_although_their_deltas_are_trimmed(self, table: siltstone.Table) -> None:
        for number in range(4):
            table.write(rows([number]))
        expected = {position: oracle_of(table, position).rows() for position in range(5)}
        for position in (1, 3, 4):
            compact(table, last_stream_position=position)
        storage.delete_deltas(only_partition(table), last_stream_position=4, root=table.lake.root)
        for position in (0, 1, 3, 4):
            same_rows(table.to_arrow(as_of=position), expected[position])
        with pytest.raises(CorruptionError, match="deltas up to 4 are trimmed"):
            table.to_arrow(as_of=2)

    def test_a_watermark_without_a_rebase_overrides_where_the_round_starts(self, table: siltstone.Table) -> None:
        table.write(rows([1], "kept-"))
        compact(table)
        table.write(rows([2], "skipped-"))
        table.write(rows([3], "read-"))
        (done,) = compact(table, rebase_high_watermark=2).rounds
        assert (done.high_watermark, done.delta_count) == (3, 1)
        assert sorted(row["v"] for row in found_rows(table)) == ["kept-1", "read-3"]
        (done,) = compact(table, rebase_high_watermark=0).rounds
        assert (done.high_watermark, done.delta_count) == (3, 3)
        check_rows(table)
        assert compact(table).rounds == []

    def test_an_unknown_source_table_is_not_found(self, table: siltstone.Table) -> None:
        table.write(rows([1]))
        with pytest.raises(NotFoundError):
            compact(table, source=PartitionLocator(**{**only_partition(table), "table": "nobody"}))


class TestRounds:
    """How a session is cut into rounds, and what becomes of them when it dies."""

    @pytest.fixture
    def written(self, table: siltstone.Table) -> siltstone.Table:
        for number in range(5):
            table.write(rows([number, 9], f"w{number}-"))
        return table

    def test_a_round_holds_as_many_deltas_as_fit(self, written: siltstone.Table) -> None:
        size = max(delta.manifest.content_length for delta in written.deltas())
        result = compact(written, max_round_bytes=2 * size)
        assert [(round_.delta_count, round_.high_watermark) for round_ in result.rounds] == [(2, 2), (2, 4), (1, 5)]
        check_rows(written)

    @pytest.mark.parametrize(("cores", "counts"), [(0, [1] * 5), (15, [1] * 5), (17, [2, 2, 1]), (64, [5])])
    def test_rounds_are_larger_where_the_engine_has_many_cores(
        self, written: siltstone.Table, monkeypatch: pytest.MonkeyPatch, cores: int, counts: list[int]
    ) -> None:
        size = max(delta.manifest.content_length for delta in written.deltas())
        for module in (plan, session):
            monkeypatch.setattr(module, "MAX_ROUND_BYTES", size)
        engine = Cluster(cores)
        result = compact(written, engine=engine)
        assert [round_.delta_count for round_ in result.rounds] == counts
        check_rows(written)
        assert engine.asked == 1
        # Nobody asks, which starts Spark, where a round holds all there is, or where its size was given.
        written.write(rows([1], "small-"))
        compact(written, engine=engine)
        for number in range(2):
            written.write(rows([number], "more-"))
        assert len(compact(written, max_round_bytes=1, engine=engine).rounds) == 2
        assert engine.asked == 1

    def test_a_delta_that_does_not_fit_is_a_round_by_itself(self, written: siltstone.Table) -> None:
        assert len(compact(written, max_round_bytes=1).rounds) == 5
        check_rows(written)

    @pytest.mark.parametrize(("max_round_bytes", "count"), [(1 << 30, 1), (1, 5)])
    def test_a_session_ends_although_writers_are_as_fast_as_its_rounds(
        self, written: siltstone.Table, max_round_bytes: int, count: int
    ) -> None:
        def meets_a_writer(job: RoundJob) -> Iterator[BucketResult]:
            written.write(rows([1], "meanwhile-"))
            yield from run_here(job)

        result = compact(written, max_round_bytes=max_round_bytes, engine=meets_a_writer)
        assert (len(result.rounds), result.rounds[-1].high_watermark) == (count, 5)
        check_rows(written, 5)
        compact(written)
        check_rows(written)

    def test_any_cut_gives_the_same_rows(self, written: siltstone.Table) -> None:
        compact(written, max_round_bytes=1)
        one_by_one = found_rows(written)
        elsewhere = PartitionLocator(**{**compacted(written), "stream": "elsewhere"})
        compact(written, destination=elsewhere)
        same_rows(found_rows(written, elsewhere), one_by_one)

    @pytest.mark.parametrize("rounds", [0, 1, 3])
    def test_a_session_that_dies_resumes_after_its_last_round(self, written: siltstone.Table, rounds: int) -> None:
        ran: list[RoundJob] = []

        def dies(job: RoundJob) -> Iterator[BucketResult]:
            if len(ran) == rounds:
                raise TaskError("between rounds")
            ran.append(job)
            yield from run_here(job)

        with pytest.raises(TaskError):
            compact(written, max_round_bytes=1, engine=dies)
        assert watermarks(written) == [*range(1, rounds + 1)]
        result = compact(written)
        assert [round_.delta_count for round_ in result.rounds] == [5 - rounds]
        check_rows(written)

    @pytest.mark.parametrize("settings", [MINOR, MAJOR], ids=["minor", "major"])
    @pytest.mark.parametrize("buckets", [0, 1, 3])
    def test_a_failing_task_leaves_the_old_state(
        self, table: siltstone.Table, settings: Settings, buckets: int
    ) -> None:
        table.write(rows(range(40)))
        compact(table, replace(MINOR, bucket_rows=8))
        before = completion_of(table)
        table.write(rows(range(20, 60), "again"))
        with pytest.raises(TaskError):
            compact(table, settings, engine=failing_after(buckets))
        assert completion_of(table) == before
        check_rows(table, 1)
        compact(table, settings)
        check_rows(table)

    def test_progress_tells_rounds_and_buckets(self, written: siltstone.Table) -> None:
        events: list[Event] = []
        run_session(request_for(written, max_round_bytes=1, last_stream_position=2), run_here, events.append)
        assert [type(event) for event in events] == [RoundStarted, BucketMerged, RoundCommitted] * 2
        assert {event.round_id for event in events if isinstance(event, RoundStarted)} == {1, 2}

    def test_rounds_are_numbered_and_each_can_be_read(self, written: siltstone.Table) -> None:
        compact(written, max_round_bytes=1)
        destination = destination_of(written)
        for number in range(1, 6):
            completion = get_round(destination, number)
            assert (completion.round_id, completion.previous_round_id) == (number, number - 1 or None)
            assert completion == RoundCompletion.from_serializable(completion.to_serializable())
            same_rows(
                [row for batch in live_batches(written.lake.root, completion) for row in batch.to_pylist()],
                [{"id": row["id"], "v": row["v"]} for row in oracle_rows(written, number)],
            )
        with pytest.raises(NotFoundError, match="no round 6"):
            get_round(destination, 6)


def oracle_rows(table: siltstone.Table, upto: int) -> list[dict[str, object]]:
    return oracle_of(table, upto).rows()


class TestRaces:
    """Two sessions on one destination: one wins each round, and nothing is lost or doubled."""

    @pytest.fixture
    def raced(self, table: siltstone.Table) -> siltstone.Table:
        table.write(rows(range(10)))
        compact(table)
        table.write(rows([3, 4, 10], "again"))
        return table

    @pytest.mark.parametrize("settings", [MINOR, MAJOR], ids=["minor", "major"])
    @pytest.mark.parametrize("other", [MINOR, MAJOR], ids=["minor", "major"])
    def test_the_loser_deletes_its_files_and_has_nothing_left_to_do(
        self, raced: siltstone.Table, settings: Settings, other: Settings
    ) -> None:
        result = compact(raced, settings, engine=meeting(lambda: compact(raced, other)))
        assert result.conflicts == 1
        assert len(result.rounds) == (1 if settings.full else 0)
        check_rows(raced)
        self.check_nothing_is_left_over(raced)

    def test_the_loser_goes_on_with_what_the_winner_left(self, raced: siltstone.Table) -> None:
        def other() -> None:
            compact(raced)
            raced.write(rows([5, 11], "third"))

        result = compact(raced, engine=meeting(other))
        assert result.conflicts == 1
        assert [(round_.delta_count, round_.high_watermark) for round_ in result.rounds] == [(1, 3)]
        check_rows(raced)
        self.check_nothing_is_left_over(raced)

    @pytest.mark.parametrize("when", ["while it runs", "before it commits"])
    def test_losing_to_one_after_which_a_vacuum_removes_what_this_one_reads_is_no_damage(
        self, table: siltstone.Table, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = replace(MAJOR, bucket_rows=3, full=False)
        table.write(rows(range(40)))
        compact(table, small)
        table.write(rows(range(40), "again"))
        others = [lambda: compact(table, small)]

        def other() -> None:
            while others:
                others.pop()()
                table.vacuum(retention_ms=-1000, orphan_grace_ms=-1000)

        def write(*arguments: Any) -> Any:
            written = write_completion(*arguments)
            other()
            return written

        if when == "before it commits":
            monkeypatch.setattr("siltstone.rounds.session.write_completion", write)
            result = compact(table, small)
        else:
            result = compact(table, small, engine=lambda job: (other(), run_here(job))[1])  # type: ignore[func-returns-value]
        assert (result.conflicts, result.rounds) == (1, [])
        check_rows(table)
        self.check_nothing_is_left_over(table)

    def test_losing_again_and_again_ends_in_a_conflict(self, raced: siltstone.Table) -> None:
        def other() -> None:
            compact(raced, MAJOR)
            raced.write(rows([5], "more"))

        with pytest.raises(ConflictError, match="plan again"):
            compact(raced, engine=meeting(*[other] * 30))
        check_rows(raced, completion_of(raced).high_watermark)
        self.check_nothing_is_left_over(raced)

    def test_losing_to_one_that_goes_further_is_no_error(self, raced: siltstone.Table) -> None:
        raced.write(rows([11]))
        result = compact(raced, last_stream_position=2, engine=meeting(lambda: compact(raced)))
        assert (result.conflicts, result.rounds) == (1, [])
        check_rows(raced)

    def test_another_that_goes_further_between_two_rounds_is_no_error(self, raced: siltstone.Table) -> None:
        raced.write(rows([11]))
        raced.write(rows([12]))
        started: list[RoundJob] = []

        def engine(job: RoundJob) -> Iterator[BucketResult]:
            started.append(job)
            yield from run_here(job)
            if len(started) == 2:
                compact(raced)

        result = compact(raced, last_stream_position=3, max_round_bytes=1, engine=engine)
        assert (result.conflicts, [round_.high_watermark for round_ in result.rounds]) == (1, [2])
        check_rows(raced)

    def test_the_first_rounds_of_two_sessions_make_one(self, table: siltstone.Table) -> None:
        table.write(rows([1, 2]))
        result = compact(table, engine=meeting(lambda: compact(table)))
        assert result.conflicts == 1
        assert watermarks(table) == [1]
        check_rows(table)
        self.check_nothing_is_left_over(table)

    def test_a_rebase_that_loses_is_repeated_in_full(self, raced: siltstone.Table) -> None:
        result = compact(raced, rebase_source=only_partition(raced), engine=meeting(lambda: compact(raced)))
        assert result.conflicts == 1
        assert [round_.delta_count for round_ in result.rounds] == [2]
        check_rows(raced)

    def test_a_round_that_loses_to_a_rebase_is_planned_on_it(self, raced: siltstone.Table) -> None:
        result = compact(raced, engine=meeting(lambda: compact(raced, rebase_source=only_partition(raced))))
        assert (result.conflicts, result.rounds) == (1, [])
        assert completion_of(raced).rebase_source_partition_locator == only_partition(raced)
        check_rows(raced)

    def check_nothing_is_left_over(self, table: siltstone.Table) -> None:
        """Every object in the destination's folder belongs to a round that was committed."""
        destination = destination_of(table)
        named: set[str] = set()
        for entry in list_rounds(destination):
            named |= {entry["uri"], *objects_of(get_round(destination, int(entry["round_id"])))}
        assert {name for name in objects_below(table.lake.root) if name.startswith(destination.folder)} == named


class TestSchemas:
    """Columns that come, go and widen between rounds."""

    @pytest.mark.parametrize("settings", [MINOR, MAJOR], ids=["minor", "major"])
    def test_columns_that_are_added_omitted_or_widened_between_rounds(
        self, local_root: str, settings: Settings
    ) -> None:
        table = make_table(local_root, schema={"id": "int32", "v": "string", "n": "float"})
        table.write(
            pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"], "n": pa.array([0.5, 1.5], pa.float32())})
        )
        compact(table, settings)
        table.write(pa.table({"id": pa.array([2, 2**40]), "v": ["B", "c"], "extra": pa.array([[1], None])}))
        compact(table, settings)
        check_rows(table)
        table.write(pa.table({"id": pa.array([1], pa.int8()), "n": pa.array([0.1])}))
        compact(table, settings)
        check_rows(table)
        assert [(field["name"], field["type"]) for field in completion_of(table).fields] == [
            ("id", "int64"),
            ("v", "string"),
            ("n", "double"),
            ("extra", {"list": "int64"}),
        ]
        for batch in live_batches(local_root, completion_of(table)):
            assert batch.schema.equals(table.schema)

    def test_a_delete_by_a_column_that_old_files_lack_finds_their_nulls(self, table: siltstone.Table) -> None:
        table.write(rows([1, 2]))
        compact(table)
        table.write(pa.table({"id": [3], "v": ["3"], "extra": ["x"]}))
        compact(table)
        table.write(pa.table({"extra": pa.array([None], pa.string())}), "delete", ["extra"])
        compact(table)
        check_rows(table)
        assert [row["id"] for row in found_rows(table)] == [3]

    def test_a_widened_key_finds_its_old_rows(self, local_root: str) -> None:
        table = make_table(local_root, schema={"id": "decimal(6,2)", "v": "string"})
        table.write(pa.table({"id": pa.array([Decimal("1.50")], pa.decimal128(6, 2)), "v": ["a"]}))
        compact(table)
        table.write(pa.table({"id": pa.array([Decimal("1.5000")], pa.decimal128(10, 4)), "v": ["b"]}))
        compact(table)
        check_rows(table)
        assert len(found_rows(table)) == 1

    @pytest.mark.parametrize("partition_keys", [[], ["zone"]], ids=["whole", "partitioned"])
    def test_a_write_of_no_rows_adds_its_columns(self, local_root: str, partition_keys: list[str]) -> None:
        schema = {"id": "int32", "zone": "string"}
        table = make_table(
            local_root, schema=schema, primary_keys=[*partition_keys, "id"], partition_keys=partition_keys
        )
        wider = pa.schema({"id": pa.int64(), "zone": pa.string(), "note": pa.string()})
        assert table.write(wider.empty_table()) == 1
        assert table.schema == wider
        table.write(pa.table({"id": [1, 2], "zone": ["eu", "us"], "note": ["a", "b"]}))
        before = len(table.deltas())
        assert table.write(wider.empty_table()) == 3
        assert len(table.deltas()) == before + (0 if partition_keys else 1), "nothing is new to the partitions"
        more = wider.append(pa.field("more", pa.int64()))
        assert table.write(more.empty_table()) == 4
        assert table.schema == more
        for source in table._sources():
            destination = PartitionLocator(**{**source, "stream": "compacted"})
            run_session(Request(source, destination, tuple(table.version.primary_keys), local_root), run_here)
        assert table.to_arrow().schema == more
        same_rows(table.to_arrow(), oracle_of(table).rows())

    def test_empty_results_have_the_columns_and_types(self, table: siltstone.Table) -> None:
        table.write(rows([]))
        compact(table)
        assert table.to_arrow().schema == table.schema
        table.write(pa.table({"id": [1], "v": ["x"], "extra": [1.5]}))
        compact(table)
        table.write(pa.table({"id": [1]}), "delete")
        compact(table)
        assert found_rows(table) == []
        assert table.to_arrow().schema == pa.schema({"id": pa.int64(), "v": pa.string(), "extra": pa.float64()})
        assert current_completion(destination_of(table)) is not None


class TestKeys:
    """A destination keeps the keys and the source it began with."""

    def test_other_keys_are_refused_and_the_known_ones_named(self, table: siltstone.Table) -> None:
        table.write(rows([1]))
        compact(table)
        with pytest.raises(InvalidInputError, match="by the keys v: those of its table are id"):
            compact(table, primary_keys=("v",))

    def test_other_sort_keys_are_refused_and_the_known_ones_named(self, table: siltstone.Table) -> None:
        table.write(rows([1]))
        compact(table)
        with pytest.raises(InvalidInputError, match=r"with the sort keys \[\], not \['v'\]; rebase"):
            compact(table, sort_keys=("v",))

    def test_another_source_is_refused_and_the_known_one_named(self, table: siltstone.Table) -> None:
        table.write(rows([1]))
        compact(table)
        other = make_table(table.lake.root, "shop.other")
        other.write(rows([2]))
        with pytest.raises(InvalidInputError, match=r"was compacted from shop/orders/1/deltas/_, not from shop/other"):
            compact(table, source=only_partition(other))
        check_rows(table)

    def test_keys_in_another_order_are_the_same_keys(self, local_root: str) -> None:
        table = make_table(local_root, schema={"a": "int64", "b": "string", "v": "string"}, primary_keys=["b", "a"])
        for value in "xyz":
            table.write(pa.table({"a": [1, 2, 3], "b": ["p", "q", None], "v": [value] * 3}))
            compact(table, primary_keys=("b", "a") if value == "x" else ("a", "b"))
            check_rows(table)
        assert completion_of(table).primary_keys == ["b", "a"]


NOT_NULL = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("at", pa.int64(), False), pa.field("v", pa.string(), False)]
)


class TestNotNull:
    """Columns that must not be null, which deletes leave out all the same."""

    @pytest.mark.parametrize("settings", [MINOR, MAJOR], ids=["minor", "major"])
    @pytest.mark.parametrize("engine", ["deduplicate", "first_row"])
    def test_key_only_deletes_are_compacted(self, local_root: str, engine: str, settings: Settings) -> None:
        table = make_table(local_root, schema=NOT_NULL, merge_engine=engine)
        table.write(pa.table({"id": [1, 2, 3], "at": [1, 1, 1], "v": ["a", "b", "c"]}))
        compact(table, settings)
        table.write(pa.table({"id": [1], "op": ["d"]}), op_column="op")
        compact(table, settings)
        check_rows(table)
        mixed = pa.table({"id": [2, 1], "at": [None, 5], "v": [None, "again"], "op": ["d", "c"]})
        table.write(mixed, op_column="op")
        compact(table, settings)
        check_rows(table)
        assert table.to_arrow().schema == table.to_arrow(include_uncompacted=True).schema == NOT_NULL
        assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 3]
        assert table.lookup({"id": 1}) == [{"id": 1, "at": 5, "v": "again"}]
        assert table.fsck(deep=True) == []

    @pytest.mark.parametrize("settings", [MINOR, MAJOR], ids=["minor", "major"])
    def test_deletes_leave_tombstones(self, local_root: str, settings: Settings) -> None:
        table = make_table(local_root, schema=NOT_NULL, sort_keys=["at"])
        for ids, at, values, operations in (
            ([1, 2, 3], [1, 1, 1], ["a", "b", "c"], ["c", "c", "c"]),
            ([1, 2, 9], [5, None, None], [None, None, None], ["d", "d", "d"]),  # without a sort key: older than any
            ([1, 2, 9], [3, 9, 0], ["late", None, "new"], ["u", "d", "c"]),
        ):
            data = {"id": ids, "at": pa.array(at, pa.int64()), "v": pa.array(values, pa.string()), "op": operations}
            table.write(pa.table(data), op_column="op")
            compact(table, settings)
            check_rows(table)
        assert sorted(table.to_arrow()["id"].to_pylist()) == [3, 9]
        assert table.fsck(deep=True) == []

    def test_a_delete_delta_may_name_a_null(self, local_root: str) -> None:
        table = make_table(local_root, schema=NOT_NULL)
        table.write(pa.table({"id": [1, 2], "at": [1, 1], "v": ["a", "b"]}))
        table.write(pa.table({"v": [None, "b"]}), type="delete", delete_columns=["v"])
        compact(table)
        check_rows(table)
        assert table.to_arrow()["id"].to_pylist() == [1]


def test_structs_as_deep_as_allowed_are_written_compacted_and_read(local_root: str) -> None:
    kind: pa.DataType = pa.int64()
    value: Any = 7
    for _ in range(MAX_NESTING):
        kind, value = pa.struct([pa.field("inner", kind)]), {"inner": value}
    table = make_table(local_root, schema=pa.schema([pa.field("id", pa.int64()), pa.field("deep", kind)]))
    for number in range(2):
        table.write(pa.table({"id": [1, number], "deep": pa.array([value, None], kind)}))
        compact(table, MAJOR)
    check_rows(table)
    assert table.lookup({"id": 1})[0]["deep"] is None
