"""Spark's logs work alike on every kind of store that outlives a process."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from siltstone.errors import ConflictError
from siltstone.log import SinkEntry, SinkLog
from siltstone.log.inspect import show, verify
from siltstone.log.repair import compact
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


WRITER = """
import sys
from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.log import SinkEntry, SinkLog
output, writer, batches, pauses = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "pause"
log = SinkLog(output, default_interval=3, min_batches_to_retain=1, cleanup_delay_ms=0)
publish = log.publish
def wait_then_publish(name, content):
    print("publishing", name, flush=True)
    sys.stdin.readline()
    publish(name, content)
if pauses:
    log.publish = wait_then_publish
sys.stdin.readline()
for number in range(batches):
    done = False
    while not done:
        latest = log.latest_id()
        batch_id = 0 if latest is None else latest + 1
        try:
            done = log.add(batch_id, [SinkEntry(f"file:///o/{writer}-{number}", 1, False, 1)])
        except (ConflictError, InvalidInputError, NotFoundError):
            continue
    print("added", batch_id, flush=True)
"""


@pytest.fixture
def start_writer() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    started = []

    def start(output: str, writer: str, batches: int, *, pauses: bool = False) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", WRITER, output, writer, str(batches), "pause" if pauses else "run"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tell(process: "subprocess.Popen[str]") -> str:
    """Let a writer go on, and return what it says next."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_what_a_process_was_told_is_added_is_there_although_compaction_overtook_it(
    local_root: str, start_writer: Callable[..., "subprocess.Popen[str]"]
) -> None:
    slow = start_writer(local_root, "slow", 1, pauses=True)
    log = SinkLog(local_root, default_interval=3, min_batches_to_retain=1, cleanup_delay_ms=0)
    assert log.add(0, [])
    assert tell(slow) == "publishing 1"
    for batch_id in range(1, 10):
        assert log.add(batch_id, [SinkEntry(f"file:///o/fast-{batch_id}", 1, False, 1)])
    assert log.listing().ids == [5, 6, 7, 8, 9]
    assert tell(slow) == "publishing 10"
    assert tell(slow) == "added 10"
    expected = [*(f"file:///o/fast-{batch_id}" for batch_id in range(1, 10)), "file:///o/slow-0"]
    assert [entry.path for entry in SinkLog(local_root).all_files()] == expected
    assert verify(local_root, data_files=False).findings == []


def test_processes_racing_on_one_sink_log_lose_nothing(
    local_root: str, start_writer: Callable[..., "subprocess.Popen[str]"]
) -> None:
    writers = [start_writer(local_root, str(writer), 40) for writer in range(4)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    outputs = [writer.communicate()[0].split("\n") for writer in writers]
    ids = sorted(int(line.split()[1]) for lines in outputs for line in lines if line)
    assert ids == list(range(160))
    paths = [entry.path for entry in SinkLog(local_root).all_files()]
    assert sorted(paths) == sorted(f"file:///o/{writer}-{number}" for writer in range(4) for number in range(40))
