"""Spark's logs work alike on every kind of store that outlives a process."""

from collections.abc import Callable

import pytest

from siltstone.errors import ConflictError
from siltstone.log import SinkEntry, SinkLog
from siltstone.log.inspection import compact, show, verify
from siltstone.objects import open_objects


@pytest.mark.parametrize("store", ["local", "s3"])
def test_a_sink_log_is_written_verified_and_shrunk(store: str, new_root: Callable[[str], str]) -> None:
    output = new_root(store)
    log = SinkLog(output, default_interval=3, now_ms=lambda: 10_000)
    for batch_id in range(7):
        open_objects(output).create(f"part {batch_id} é.parquet", b"x" * batch_id)
        entry = log.entry(f"part {batch_id} é.parquet")._replace(modified_ms=batch_id * 1000)
        assert log.add(batch_id, [entry])
        assert not log.add(batch_id, [entry])
    assert [entry.size for entry in SinkLog(output).all_files()] == list(range(7))
    assert (show(output).kind, show(output).live_entries, show(output).interval) == ("sink", 7, 3)
    assert verify(output).findings == []
    report = compact(output, retention_ms=6500, now_ms=lambda: 10_000)
    assert (report.entries_before, report.entries_after) == (6, 2)
    assert [entry.size for entry in SinkLog(output).all_files()] == [4, 5, 6]
    open_objects(output).delete(["part 5 é.parquet"])
    assert [finding.code for finding in verify(output).findings] == ["missing-file"]


@pytest.mark.parametrize("store", ["local", "s3"])
def test_of_two_writers_of_one_batch_one_is_told(store: str, new_root: Callable[[str], str]) -> None:
    output = new_root(store)
    one, two = SinkLog(output), SinkLog(output)
    listing = two.listing()
    assert one.add(0, [SinkEntry("file:///one", 1, False, 1)])
    two.listing = lambda: listing  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="Multiple streaming queries"):
        two.add(0, [SinkEntry("file:///two", 1, False, 1)])
    assert [entry.path for entry in SinkLog(output).all_files()] == ["file:///one"]
