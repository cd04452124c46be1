"""The line of progress: what it says in each step, that it moves between reports, and that it fits its window."""

import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from siltstone.cli.progress import CompactionLine, Pace, ProgressLine
from siltstone.cli.spark import SparkStarting
from siltstone.ingest.file_rows import FilesRead
from siltstone.lake import Lake
from siltstone.model.rounds import Accounting
from siltstone.rounds.events import BucketMerged, Event, JobAwaited, RoundCommitted, RoundStarted, TasksDone
from tests.terminal import Terminal
from tests.unit.cli.command_line import Cli


class _Clock:
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(line: ProgressLine, width: int = 120) -> str:
    """Return the line as a window of this width shows it."""
    output = io.StringIO()
    Console(file=output, width=width, force_terminal=False).print(line)
    (text,) = output.getvalue().splitlines()
    assert len(text) <= width
    return text


STEPS: list[tuple[Event | SparkStarting, str]] = [
    (SparkStarting(), "Starting Spark"),
    (RoundStarted(("eu",), 4, deltas=3, bytes=2000, buckets=2, high_watermark=3), "Round 4 of partition eu"),
    (JobAwaited(), "3 deltas, 2.0 kB"),
    (TasksDone("read", 1, 8), "reading 3 deltas, 2.0 kB, 1 of 8 tasks"),
    (TasksDone("read", 8, 8), "reading 3 deltas, 2.0 kB, 8 of 8 tasks"),
    (TasksDone("merge", 0, 8), "merging 2 buckets, 0 of 8 tasks"),
    (BucketMerged(4, "minor", Accounting(live_rows=1500)), "1 of 2 buckets, 1,500 rows"),
    (BucketMerged(4, "minor", Accounting(live_rows=1500)), "committing 2 buckets, 3,000 rows"),
    (RoundCommitted(4, 3000), "Round 4 of partition eu committed"),
]


def test_the_clock_moves_in_every_step_of_a_compaction() -> None:
    clock = _Clock()
    line = ProgressLine("Finding new deltas", clock)
    compaction = CompactionLine(line)
    for number, (event, text) in enumerate(STEPS):
        compaction.show(event)
        assert text in shown(line)
        for seconds in range(7):
            clock.now = 100.0 + number * 10 + seconds
            assert f"0:{number * 10 + seconds:02}" in shown(line) or number * 10 + seconds >= 60
    assert "1:26" in shown(line)


def test_a_bar_moves_between_reports_but_never_to_the_end_nor_back() -> None:
    clock = _Clock()
    pace = Pace(clock)
    assert pace.share is None, "nothing is known, so that the bar runs to and fro"
    pace.report(0, 8)
    assert pace.share is None
    clock.now += 4
    pace.report(2, 8)
    shares: list[float] = []
    for _ in range(20):
        share = pace.share
        assert share is not None
        shares.append(share)
        clock.now += 0.5
    assert shares[0] == 2 / 8
    assert all(earlier < later for earlier, later in itertools.pairwise(shares))
    assert shares[-1] < 4 / 8, "not before the next report"
    pace.report(3, 8)
    assert pace.share == shares[-1] or (pace.share or 0) > shares[-1]
    pace.report(8, 8)
    assert pace.share is None, "what comes next is unknown"


def test_the_time_left_is_told_by_the_pace_so_far() -> None:
    clock = _Clock()
    pace = Pace(clock)
    pace.report(0, 100)
    clock.now += 1
    pace.report(25, 100)
    assert pace.seconds_left is None, "too early"
    clock.now += 9
    pace.report(50, 100)
    assert pace.seconds_left == pytest.approx(10)
    clock.now += 4
    assert pace.seconds_left == pytest.approx(6)
    clock.now += 60
    assert pace.seconds_left == 1
    pace.report(10, 200)
    assert pace.seconds_left is None, "another step"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_line_fits_its_window_and_keeps_its_clock(width: int) -> None:
    clock = _Clock()
    line = ProgressLine("", clock)
    clock.now += 3700
    line.report("Writing a file with quite a long name.csv", "84 MB of 154 MB, 446 k of about 4.1 M rows", 84, 154)
    assert "1:01:40" in shown(line, width)


def test_a_write_reports_bytes_and_rows_with_their_totals(cli: Cli) -> None:
    table = Lake(cli.root).create_table("shop.t", schema={"id": "int64"}, primary_keys=["id"])
    names = {
        "a.csv": "id\n" + "".join(f"{n}\n" for n in range(1000)),
        "b.jsonl": "".join(f'{{"id": {n}}}\n' for n in range(1000, 1500)),
    }
    for files in (["a.csv"], ["b.jsonl"], ["a.csv", "b.jsonl"], [export(cli, 2000)]):
        told: list[FilesRead] = []
        paths = [cli.file(name, names[name]) if name in names else name for name in files]
        table.write_files(paths, progress=of_files(told))
        last = told[-1]
        sizes = sum(Path(path).stat().st_size for path in paths)
        rows = {"a.csv": 1000, "b.jsonl": 500}
        assert (last.step, last.bytes, last.total_bytes) == ("Writing", sizes, sizes)
        assert last.rows == sum(rows.get(name, 2000) for name in files)
        assert last.total_rows in (None, last.rows)
    assert last.total_rows == 2000, "Parquet says how many rows there are"


def export(cli: Cli, rows: int) -> str:
    """Return a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = str(cli.folder / "c.parquet")
    pq.write_table(pa.table({"id": range(rows)}), path)
    return path


def of_files(told: list[FilesRead]) -> Callable[[str | FilesRead], None]:
    """Return what collects reports about files."""
    return lambda message: told.append(message) if isinstance(message, FilesRead) else None


def test_bytes_of_csv_are_those_of_the_rows_that_have_come_however_far_arrow_has_read(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.ingest.text_file.BLOCK_BYTES", 4096)
    table = Lake(cli.root).create_table("shop.t", schema={"id": "int64", "v": "string"}, primary_keys=["id"])
    path = cli.file("many.csv", "id,v\n" + "".join(f"{n:06},{'x' * 33}\n" for n in range(2000)))
    told: list[FilesRead] = []
    table.write_files([path], progress=of_files(told))
    assert len(told) > 10
    for read in told:
        assert abs(read.bytes - read.rows * 41) <= 2 * 4096


def test_a_write_on_a_terminal_leaves_one_line(cli: Cli) -> None:
    Lake(cli.root).create_table("shop.t", schema={"id": "int64"}, primary_keys=["id"])
    cli.file("a.csv", "id\n" + "".join(f"{n}\n" for n in range(1000)))
    with Terminal("write", "shop.t", "a.csv", folder=cli.folder) as terminal:
        assert terminal.end() == 0, terminal.text
    assert "Opening a.csv" in terminal.text
    assert terminal.text.strip().splitlines()[-1].startswith("shop.t: wrote 1,000 rows")
