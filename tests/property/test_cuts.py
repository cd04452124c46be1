"""Whatever partitions are compacted, in whatever order and however far: a read is what the table was at one position."""

import uuid
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import comparable, oracle_of, same_rows
from siltstone.testing.strategies import histories

HOW = Settings(bucket_rows=4, page_buckets=2, max_dead_fraction=0.6, max_delta_fraction=2.0)
ROUNDS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=3)


def compact(table: siltstone.Table, number: int, backlog: int) -> None:
    """Run rounds of one partition, up to some deltas before its newest one."""
    sources = table._sources()
    if not sources:
        return
    source = sources[number % len(sources)]
    newest = table.snapshot(fresh=True)
    (waiting,) = [partition.waiting for partition in newest.partitions if partition.own == source]
    if len(waiting) > backlog:
        last = waiting[-1 - backlog].stream_position
        keys = tuple(table.version.primary_keys)
        destination = compacted_partition(source)
        run_session(
            Request(source, destination, keys, table.lake.root, last_stream_position=last, settings=HOW), run_here
        )


@settings(max_examples=20)
@given(history=histories(max_writes=6, max_rows=8), schedule=st.lists(ROUNDS, min_size=6, max_size=6))
def test_a_compacted_read_equals_the_oracle_at_the_highest_watermark(
    history: Any, schedule: list[list[tuple[int, int]]]
) -> None:
    made, writes = history
    assume(made.partition_keys)
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for write, rounds in zip(writes, schedule, strict=False):
        write.write_to(table)
        for number, backlog in rounds:
            compact(table, number, backlog)
            snapshot = table.snapshot()
            position = max((current_round.high_watermark for current_round in table.current_rounds()), default=0)
            assert list(snapshot.positions.values()) == [position]
            rows = oracle_of(table, position).rows()
            same_rows(table.to_arrow(), rows)
            same_rows(table.to_arrow(as_of=position), rows)
            assert snapshot.row_count in (None, len(rows))
            if table.version.primary_keys and rows:
                keys = table.version.primary_keys
                key = {name: rows[-1][name] for name in keys}
                own = [row for row in rows if comparable({name: row[name] for name in keys}) == comparable(key)]
                # Of several versions, the current one is found.
                same_rows(table.lookup(key), [row for row in own if row.get("_valid_to") is None])
