"""Whatever rounds did to a table: its changes between any two of them are the difference of the two states."""

import contextlib
import itertools
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition, get_round, list_rounds, locate_compacted
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot
from siltstone.testing.oracle import comparable
from siltstone.testing.strategies import TableSettings, Write, histories
from tests.property.test_rows_machine import TIERED

Rows = list[dict[str, Any]]
SETTINGS = st.sampled_from(TIERED) | st.builds(
    Settings,
    bucket_rows=st.sampled_from([2, 5, 1000]),
    max_dead_fraction=st.sampled_from([1.0, 0.3]),
    max_delta_fraction=st.sampled_from([100.0, 0.5]),
    max_files=st.sampled_from([100, 3]),
    records_per_compacted_file=st.sampled_from([1000, 3]),
    stretch_buckets=st.sampled_from([128, 2]),
    shared_rows=st.sampled_from([1000, 0]),
    page_buckets=st.sampled_from([128, 2]),
    full=st.sampled_from([False, False, True]),
)
WAYS = ("compact", "compact", "compact", "one partition", "roll back", "rebase", "rename", "drop")
STEPS = st.lists(st.tuples(st.sampled_from(WAYS), SETTINGS, st.integers(0, 255)), min_size=6, max_size=6)
MARKS = ("_change_type", "_round", "_position", "_committed_at")


def run(table: siltstone.Table, how: Settings, *, only: int | None = None, is_rebase: bool = False) -> None:
    sources = table._sources()
    for source in sources if only is None or not sources else [sources[only % len(sources)]]:
        keys = tuple(table.version.primary_keys)
        rebased = source if is_rebase else None
        request = Request(
            source, compacted_partition(source), keys, table.lake.root, settings=how, rebase_source=rebased
        )
        run_session(request, run_here)


def act(table: siltstone.Table, way: str, how: Settings, choice: int) -> None:
    """Do something that leaves rounds behind, or changes what columns are called."""
    version = table.version
    keys = {*version.primary_keys, *version.sort_keys, *version.partition_keys}
    others = [name for name in version.schema.names if name not in keys]
    if way == "roll back":
        for source in table._sources():
            rounds = [entry["round_id"] for entry in list_rounds(locate_compacted(source, root=table.lake.root))][:-1]
            if rounds:
                table.rollback(rounds[choice % len(rounds)], partition_values=source.partition_values)
    # Of a table that keeps history, some columns stay as they are.
    with contextlib.suppress(siltstone.InvalidInputError):
        if way == "rename" and others:
            table.alter(rename_columns={others[choice % len(others)]: f"renamed_{choice}"})
        elif way == "drop" and len(others) > 1:
            table.alter(drop_columns=[others[choice % len(others)]])
    run(table, how, only=choice if way == "one partition" else None, is_rebase=way == "rebase")


def made_table(
    history: tuple[TableSettings, list[Write]], steps: Sequence[tuple[str, Settings, int]]
) -> siltstone.Table:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for write, (way, how, choice) in zip(writes, steps, strict=False):
        # A column that is gone, or has another name, may be one that the write must have.
        with contextlib.suppress(siltstone.InvalidInputError):
            write.write_to(table)
        with contextlib.suppress(siltstone.AlreadyExistsError):
            act(table, way, how, choice)
    return table


def rows_after(table: siltstone.Table, partition: PartitionSnapshot, completion: RoundCompletion | None) -> Rows:
    """Return the rows of a partition after a round, in today's columns."""
    state = PartitionSnapshot(partition.own, partition.folder, partition.source, completion)
    now = table.snapshot()
    then = TableSnapshot(now.root, now.name, now.version, now.streams, (state,))
    rows: Rows = then.scan().to_arrow().to_pylist()
    return rows


def states_of(table: siltstone.Table) -> dict[str, dict[int, Rows]]:
    """Return the rows of each partition after each of its rounds."""
    states: dict[str, dict[int, Rows]] = {}
    for partition in table.snapshot(fresh=True).partitions:
        destination = locate_compacted(partition.own, root=table.lake.root)
        rounds = [get_round(destination, entry["round_id"]) for entry in list_rounds(destination)]
        states[partition.own.partition_id] = {0: []} | {
            completion.round_id: rows_after(table, partition, completion) for completion in rounds
        }
    return states


def difference(table: siltstone.Table, before: Rows, after: Rows) -> Counter[tuple[str, str]]:
    """Return each change of a row, as text, the slow way."""
    version = table.version
    keys = version.primary_keys if version.drop_duplicates else []
    keys = [*keys, *version.sort_keys] if version.keeps_history else keys
    if not keys:
        old, new = Counter(map(repr, before)), Counter(map(repr, after))
        deleted, inserted = old - new, new - old
        return Counter({("delete", row): count for row, count in deleted.items()}) + Counter(
            {("insert", row): count for row, count in inserted.items()}
        )
    old_rows, new_rows = (
        {comparable({name: row[name] for name in keys}): repr(row) for row in rows} for rows in (before, after)
    )
    changes: Counter[tuple[str, str]] = Counter()
    for key in {**old_rows, **new_rows}:
        was, now = old_rows.get(key), new_rows.get(key)
        if was == now:
            continue
        if was is not None:
            changes["delete" if now is None else "update_before", was] += 1
        if now is not None:
            changes["insert" if was is None else "update_after", now] += 1
    return changes


def found_changes(rows: Rows) -> Counter[tuple[str, str]]:
    plain = ({name: value for name, value in row.items() if name not in MARKS} for row in rows)
    return Counter((row["_change_type"], repr(own)) for row, own in zip(rows, plain, strict=True))


@settings(max_examples=10)
@given(history=histories(min_writes=3, max_writes=6, max_rows=10), steps=STEPS, choice=st.integers(0, 255))
def test_changes_between_any_two_rounds_are_the_difference_of_the_states(history: Any, steps: Any, choice: int) -> None:
    table = made_table(history, steps)
    states = states_of(table)
    for older, newer in itertools.combinations(range(max((max(each) for each in states.values()), default=0) + 1), 2):
        after = {key: min(older, max(rounds)) for key, rounds in states.items()}
        upto = {key: min(newer, max(rounds)) for key, rounds in states.items()}
        expected: Counter[tuple[str, str]] = Counter()
        for key, rounds in states.items():
            expected += difference(table, rounds[after[key]], rounds[upto[key]])
        assert found_changes(table.changes(after, upto).to_arrow().to_pylist()) == expected
        in_parts = [part.to_arrow() for part in table.changes(after, upto, net=choice % 2 == 0).parts(1)]
        if choice % 2 == 0 or newer == older + 1:
            assert found_changes([row for part in in_parts for row in part.to_pylist()]) == expected
        if newer == older + 1:
            by_round = table.changes(after, upto, net=False).to_arrow().to_pylist()
            assert found_changes(by_round) == expected
            assert {row["_round"] for row in by_round} <= {newer}


@settings(max_examples=8)
@given(
    history=histories(min_writes=3, max_writes=6, max_rows=10),
    steps=STEPS,
    dies_at=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    net=st.booleans(),
)
def test_a_consumer_that_dies_and_goes_on_misses_and_doubles_nothing(
    history: Any, steps: Any, dies_at: list[int], net: bool
) -> None:
    """A consumer keeps a copy of the rows together with how far it is; between rounds it may die within any batch."""
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    kept: dict[str, int] = {}
    copy: Counter[object] = Counter()
    for write, (way, how, choice), dies in zip(writes, steps, dies_at, strict=False):
        write.write_to(table)
        act(table, "compact" if way in ("rename", "drop") else way, how, choice)
        seen: Counter[object] = Counter(copy)
        changes = table.changes(kept, net=net)
        for number, batch in enumerate(changes):
            seen = applied(seen, batch.to_pylist())
            if number + 1 == dies:
                break
        else:
            kept, copy = changes.upto, seen
    changes = table.changes(kept, net=net)
    copy, kept = applied(copy, changes.to_arrow().to_pylist()), changes.upto
    states = states_of(table)
    expected = Counter(plain(row) for key, rounds in states.items() for row in rounds[kept[key]])
    assert Counter({row: count for row, count in copy.items() if count}) == expected


def plain(row: dict[str, Any]) -> object:
    """Return the values of a row, without null: a row from before a column was added is the same one."""
    return comparable({name: value for name, value in row.items() if name not in MARKS and value is not None})


def applied(copy: Counter[object], rows: Rows) -> Counter[object]:
    """Return rows after changes; one that went without being there counts less than nothing."""
    after = Counter(copy)
    for row in rows:
        after[plain(row)] += -1 if row["_change_type"] in ("delete", "update_before") else 1
    return after
