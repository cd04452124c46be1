"""Any history, compacted on any schedule, has the rows that the oracle says."""

import uuid
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.catalog.main import delta_stream
from siltstone.compactor.completion import current_completion, locate_destination
from siltstone.compactor.job import Settings
from siltstone.compactor.live import live_batches
from siltstone.compactor.merge import run_here
from siltstone.compactor.plan import Request
from siltstone.compactor.session import SessionResult, run_session
from siltstone.model import PartitionLocator
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import oracle_of, same_rows
from siltstone.testing.strategies import histories

NEVER_MS = 1 << 60
BESIDE = Settings(
    bucket_rows=4,
    max_dead_fraction=1.0,
    max_delta_fraction=100.0,
    max_files=100,
    tombstone_retention_ms=NEVER_MS,
)
SCHEDULES = st.just([BESIDE] * 8) | st.lists(
    st.builds(
        Settings,
        bucket_rows=st.sampled_from([2, 5, 1000]),
        max_dead_fraction=st.sampled_from([0.0, 0.3, 1.0]),
        max_delta_fraction=st.sampled_from([0.0, 0.5, 100.0]),
        max_files=st.sampled_from([1, 3, 100]),
        records_per_compacted_file=st.sampled_from([1, 3, 1000]),
        tombstone_retention_ms=st.just(NEVER_MS),
        full=st.booleans(),
    ),
    min_size=8,
    max_size=8,
)


def compact(table: siltstone.Table, how: Settings, max_round_bytes: int = 1 << 30, **more: Any) -> list[SessionResult]:
    root = table.lake.root
    stream = delta_stream(table.name, root=root)
    results = []
    for partition in storage.list_partitions(stream, root=root):
        request = Request(
            source=partition.locator,
            destination=PartitionLocator(**{**partition.locator, "stream": "compacted"}),
            primary_keys=tuple(table.version.primary_keys),
            sort_keys=None,
            last_stream_position=more.get("last"),
            rebase_source=partition.locator if more.get("rebase") else None,
            rebase_high_watermark=None,
            settings=how,
            max_round_bytes=max_round_bytes,
            root=root,
        )
        results.append(run_session(request, run_here))
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


@settings(max_examples=120, deadline=None)
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
