"""Any history, compacted on any schedule, has the rows that the oracle says."""

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.catalog.main import delta_stream
from siltstone.model import MergeEngine, PartitionLocator
from siltstone.rounds.request import Request
from siltstone.rounds.session import SessionResult, run_session
from siltstone.rows.job import BucketResult, Engine, RoundJob, Settings
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import current_completion, locate_destination
from siltstone.testing import FaultKind, Killed, faults
from siltstone.testing.faults import FAULT_KINDS
from siltstone.testing.oracle import oracle_of, same_rows
from siltstone.testing.strategies import TableSettings, Write, histories
from tests.unit.rounds.compaction import TaskError, live_batches

BESIDE = Settings(
    bucket_rows=4,
    max_dead_fraction=1.0,
    max_delta_fraction=100.0,
    max_files=100,
    page_buckets=2,
)
# Buckets that do not split, and whose small files are merged in nearly every round.
TIERED = replace(BESIDE, bucket_rows=1000, max_files=1, max_carried_fraction=1.0)
SCHEDULES = st.sampled_from([[BESIDE] * 8, [TIERED] * 8]) | st.lists(
    st.builds(
        Settings,
        bucket_rows=st.sampled_from([2, 5, 1000]),
        max_dead_fraction=st.sampled_from([0.0, 0.3, 1.0]),
        max_delta_fraction=st.sampled_from([0.0, 0.5, 100.0]),
        max_files=st.sampled_from([1, 2, 100]),
        max_carried_fraction=st.sampled_from([0.5, 1.0]),
        stretch_buckets=st.sampled_from([1, 2, 128]),
        stretch_rows=st.sampled_from([2, 1 << 16]),
        shared_rows=st.sampled_from([0, 2, 1000]),
        page_buckets=st.sampled_from([1, 2, 128]),
        records_per_compacted_file=st.sampled_from([1, 3, 1000]),
        full=st.booleans(),
    ),
    min_size=8,
    max_size=8,
)
KEYS = st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True)


def compact(
    table: siltstone.Table,
    how: Settings,
    max_round_bytes: int = 1 << 30,
    *,
    engine: Engine = run_here,
    last: int | None = None,
    rebase: bool = False,
) -> list[SessionResult]:
    root = table.lake.root
    stream = delta_stream(table.name, root=root)
    results = []
    for partition in storage.list_partitions(stream, root=root):
        request = Request(
            source=partition.locator,
            destination=PartitionLocator(**{**partition.locator, "stream": "compacted"}),
            primary_keys=tuple(table.version.primary_keys),
            last_stream_position=last,
            rebase_source=partition.locator if rebase else None,
            settings=how,
            max_round_bytes=max_round_bytes,
            root=root,
        )
        results.append(run_session(request, engine))
    return results


def compacted_rows(table: siltstone.Table) -> list[dict[str, Any]]:
    root = table.lake.root
    rows: list[dict[str, Any]] = []
    known = table.schema
    for partition in storage.list_partitions(delta_stream(table.name, root=root), root=root):
        locator = PartitionLocator(**{**partition.locator, "stream": "compacted"})
        completion = current_completion(locate_destination(locator, root=root))
        if completion is not None:
            for batch in live_batches(root, completion):
                rows += [{name: row.get(name) for name in known.names} for row in batch.to_pylist()]
    return rows


def watermark(table: siltstone.Table) -> int:
    """Return up to where a table of one partition is compacted."""
    root = table.lake.root
    (partition,) = storage.list_partitions(delta_stream(table.name, root=root), root=root)
    locator = PartitionLocator(**{**partition.locator, "stream": "compacted"})
    completion = current_completion(locate_destination(locator, root=root))
    return 0 if completion is None else completion.high_watermark


def dying_after(buckets: int) -> Engine:
    """Return an engine that dies after so many buckets, over all rounds."""
    left = [buckets]

    def run(job: RoundJob) -> Iterator[BucketResult]:
        for result in run_here(job):
            if not left[0]:
                raise TaskError("died")
            left[0] -= 1
            yield result

    return run


@settings(max_examples=30)
@given(histories(), SCHEDULES, st.lists(st.booleans(), min_size=8, max_size=8), st.sampled_from([1, 5000, 1 << 30]))
def test_compaction_on_any_schedule_equals_the_oracle(
    history: Any, schedule: list[Settings], pauses: list[bool], max_round_bytes: int
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for number, write in enumerate(writes):
        write.write_to(table)
        if pauses[number % 8] or number == len(writes) - 1:
            compact(table, schedule[number % 8], max_round_bytes)
            same_rows(compacted_rows(table), oracle_of(table).rows())


def all_cuts(count: int) -> list[tuple[bool, ...]]:
    """Return every way of cutting so many writes into rounds; the last one always ends a round."""
    return [(*cut, True) for cut in itertools.product([False, True], repeat=count - 1)]


def check_cut(made: TableSettings, writes: list[Write], cut: Sequence[bool], how: Settings) -> None:
    """Write a history, end a round where the cut says, and compare every read at every moment with the oracle."""
    table, oracle = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}")), made.oracle()
    states = {0: oracle.rows()}
    for write, is_end in zip(writes, cut, strict=True):
        position = write.write_to(table)
        write.apply_to(oracle)
        states[position] = oracle.rows()
        same_rows(table.to_arrow(include_uncompacted=True), states[position])
        if is_end:
            compact(table, how)
            same_rows(table.to_arrow(), states[position])
    for position, rows in states.items():
        now = [{name: row.get(name) for name in table.schema.names} for row in rows]
        same_rows(table.to_arrow(as_of=position), now)


@settings(max_examples=8)
@given(
    st.lists(st.tuples(KEYS, st.sampled_from("uuud"), st.integers(0, 3)), min_size=6, max_size=14),
    st.builds(
        Settings,
        bucket_rows=st.sampled_from([1000, 40]),
        max_dead_fraction=st.just(0.6),
        max_files=st.integers(2, 4),
        records_per_compacted_file=st.sampled_from([1000, 20]),
        stretch_buckets=st.sampled_from([1, 128]),
        shared_rows=st.sampled_from([0, 1000]),
    ),
    st.sampled_from([[], ["at"]]),
)
def test_many_small_changes_beside_large_files_equal_the_oracle(
    changes: list[tuple[list[int], str, int]], how: Settings, sort_keys: list[str]
) -> None:
    """Keys are many enough that large files stay, and small ones are merged."""
    table = siltstone.open(f"memory://{uuid.uuid4().hex}").create_table(
        "shop.orders",
        schema={"id": "int64", "at": "int64", "v": "int64"},
        primary_keys=["id"],
        sort_keys=sort_keys,
    )
    history = [(list(range(90)), "u", 0), *changes]
    for number, (keys, op, at) in enumerate(history):
        ats, values, ops = [at] * len(keys), [number] * len(keys), [op] * len(keys)
        table.write(pa.table({"id": keys, "at": ats, "v": values, "op": ops}), op_column="op")
        compact(table, how)
        same_rows(compacted_rows(table), oracle_of(table).rows())
    assert table.fsck(deep=True) == []


COMPOSING: tuple[MergeEngine, ...] = ("partial_update", "history", "partial_update", "deduplicate", "first_row")


@settings(max_examples=6)
@given(histories(with_partitions=False, min_writes=3, max_writes=4, max_rows=6, engines=COMPOSING), SCHEDULES)
def test_every_way_of_cutting_a_history_into_rounds_gives_the_same_rows(history: Any, schedule: list[Settings]) -> None:
    made, writes = history
    for number, cut in enumerate(all_cuts(len(writes))):
        check_cut(made, writes, cut, schedule[number])


@settings(max_examples=20)
@given(
    histories(max_writes=16, max_rows=8, engines=COMPOSING),
    SCHEDULES,
    st.lists(st.booleans(), min_size=15, max_size=15),
)
def test_random_cuts_of_long_histories_give_the_same_rows(
    history: Any, schedule: list[Settings], ends: list[bool]
) -> None:
    made, writes = history
    check_cut(made, writes, [*ends[: len(writes) - 1], True], schedule[0])


@settings(max_examples=20)
@given(histories(), SCHEDULES, st.lists(st.sampled_from([None, "compact", "rebase"]), min_size=8, max_size=8))
def test_a_rebase_on_its_own_source_changes_nothing_at_any_time(
    history: Any, schedule: list[Settings], steps: list[str | None]
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for number, write in enumerate(writes):
        write.write_to(table)
        step = steps[number % 8] or ("compact" if number == len(writes) - 1 else None)
        if step is not None:
            compact(table, schedule[number % 8], 1 if number % 2 else 1 << 30, rebase=step == "rebase")
            same_rows(compacted_rows(table), oracle_of(table).rows())


@settings(max_examples=20)
@given(histories(with_partitions=False), SCHEDULES, st.lists(st.integers(0, 6), min_size=8, max_size=8))
def test_sessions_whose_tasks_die_leave_whole_rounds_and_are_resumed(
    history: Any, schedule: list[Settings], lives: list[int]
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for number, write in enumerate(writes):
        write.write_to(table)
        with contextlib.suppress(TaskError):
            compact(table, schedule[number % 8], 1, engine=dying_after(lives[number % 8]))
        same_rows(compacted_rows(table), oracle_of(table, watermark(table)).rows())
    compact(table, schedule[0])
    same_rows(compacted_rows(table), oracle_of(table).rows())


@settings(max_examples=20)
@given(
    histories(with_partitions=False, max_writes=5),
    SCHEDULES,
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from(FAULT_KINDS)), min_size=8, max_size=8),
)
def test_sessions_hit_by_a_fault_at_any_call_leave_whole_rounds_and_are_resumed(
    history: Any, schedule: list[Settings], hits: list[tuple[int, FaultKind]]
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for number, write in enumerate(writes):
        write.write_to(table)
        at_call, kind = hits[number % 8]
        with (
            faults(table.lake.root, at_call=at_call, kind=kind),
            contextlib.suppress(Killed, siltstone.SiltstoneError),
        ):
            compact(table, schedule[number % 8], 1)
        same_rows(compacted_rows(table), oracle_of(table, watermark(table)).rows())
    compact(table, schedule[0])
    same_rows(compacted_rows(table), oracle_of(table).rows())


@settings(max_examples=20)
@given(
    histories(with_partitions=False, max_writes=6),
    SCHEDULES,
    st.lists(st.sampled_from(["none", "session", "partly", "write", "rebase"]), min_size=8, max_size=8),
)
def test_sessions_that_meet_others_lose_and_double_nothing(
    history: Any, schedule: list[Settings], meetings: list[str]
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    waiting = list(enumerate(writes))

    def next_write() -> None:
        if waiting:
            waiting.pop(0)[1].write_to(table)

    def meet(job: RoundJob) -> Iterator[BucketResult]:
        yield from run_here(job)
        what = met.pop() if met else "none"
        if what == "write":
            next_write()
        elif what == "partly":
            other = watermark(table) + 1
            compact(table, schedule[1], 1, last=other)
        elif what != "none":
            compact(table, schedule[1], rebase=what == "rebase")

    while waiting:
        met = [meetings[len(waiting) % 8], meetings[(len(waiting) + 1) % 8]]
        next_write()
        compact(table, schedule[len(waiting) % 8], 1, engine=meet)
        same_rows(compacted_rows(table), oracle_of(table, watermark(table)).rows())
    compact(table, schedule[0])
    same_rows(compacted_rows(table), oracle_of(table).rows())
