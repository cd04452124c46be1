"""Compaction as text: what a command found out becomes lines and tables, one after another."""

from collections.abc import Iterator, Mapping, Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from siltstone.cli.results_rounds import BucketPlan, Compacted, RoundDetails, RoundLine, RoundPreview, TablePlan
from siltstone.cli.text_parts import Shown, new_facts, new_grid, to_text
from siltstone.text import format_bytes, format_count, format_partition, format_time


def compacted_text(compacted: Compacted) -> Iterator[Shown]:
    """Say what a compaction did: the rows of each round, its bytes, and where the time went."""
    if not compacted.rounds:
        yield nothing_new(compacted.table, compacted.stream_position)
        return
    yield (
        f"{compacted.table}: compacted {format_count(compacted.deltas, 'delta')} in "
        f"{format_count(len(compacted.rounds), 'round')}; {format_count(compacted.live_rows, 'row')} now."
    )
    yield ""
    yield _rows_grid(compacted.rounds)
    yield ""
    yield _bytes_grid(compacted.rounds)
    yield ""
    if len(compacted.rounds) > 1:
        yield _totals_line(compacted)
    if compacted.dead_rows:
        yield (
            f"Of the rows in files, {compacted.dead_rows:,} are dead; whoever reads the table reads "
            f"{_factor(compacted.read_amplification)} rows for each live one."
        )
    if compacted.conflicts:
        yield f"Planned again {format_count(compacted.conflicts, 'time')}, since another compaction was faster."
    yield _seconds_line(compacted.seconds)


def _totals_line(compacted: Compacted) -> str:
    return (
        f"In all: {format_count(compacted.delta_rows, 'row')} in, {compacted.superseded_rows:,} superseded, "
        f"{compacted.deleted_rows:,} deleted, {format_count(compacted.duplicate_rows, 'duplicate')}; "
        f"{format_bytes(compacted.input_bytes)} read, {format_bytes(compacted.written_bytes)} written "
        f"(amplification {_factor(compacted.write_amplification)}), {format_bytes(compacted.carried_bytes)} carried."
    )


def nothing_new(table: str, position: int) -> str:
    """Say that there is nothing to do, and why."""
    return f"{table}: nothing new; the newest delta is at position {position}."


def _rows_grid(rounds: Sequence[RoundLine]) -> Table:
    has_partitions = any(line.partition for line in rounds)
    has_added = any(line.added_rows for line in rounds)
    grid = new_grid(
        ">round",
        *(["partition"] if has_partitions else []),
        ">position",
        ">rows before",
        ">rows in",
        *([">records"] if has_added else []),
        ">superseded",
        ">deleted",
        ">duplicates",
        ">rows out",
    )
    for line in rounds:
        grid.add_row(
            to_text(line.round_id),
            *([to_text(format_partition(line.partition))] if has_partitions else []),
            to_text(line.high_watermark),
            *(
                to_text(f"{count:,}")
                for count in (
                    line.base_rows,
                    line.delta_rows,
                    *([line.added_rows] if has_added else []),
                    line.superseded_rows,
                    line.deleted_rows,
                    line.duplicate_rows,
                    line.live_rows,
                )
            ),
        )
    return grid


def _bytes_grid(rounds: Sequence[RoundLine]) -> Table:
    has_partitions = any(line.partition for line in rounds)
    grid = new_grid(
        ">round",
        *(["partition"] if has_partitions else []),
        ">deltas",
        ">read",
        ">written",
        ">amplified",
        ">carried",
        ">dead",
        "buckets",
        ">seconds",
    )
    for line in rounds:
        grid.add_row(
            to_text(line.round_id),
            *([to_text(format_partition(line.partition))] if has_partitions else []),
            to_text(f"{line.deltas:,}"),
            to_text(format_bytes(line.input_bytes)),
            to_text(format_bytes(line.written_bytes)),
            to_text(_factor(line.write_amplification)),
            to_text(format_bytes(line.carried_bytes)),
            to_text(f"{line.dead_rows:,}"),
            to_text(_actions(line.bucket_actions)),
            to_text(f"{line.seconds.get('total', line.seconds.get('tasks', 0.0)):.1f}"),
        )
    return grid


def _factor(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}"


def _actions(actions: Mapping[str, int]) -> str:
    return ", ".join(f"{actions[action]:,} {action}" for action in sorted(actions) if actions[action])


def _seconds_line(seconds: Mapping[str, float]) -> str:
    start = seconds.get("spark_start", 0.0)
    rest = max(0.0, seconds["total"] - seconds["plan"] - start - seconds["tasks"])
    return (
        f"Seconds: {seconds['plan']:.1f} to plan, {start:.1f} to start Spark, {seconds['tasks']:.1f} in tasks (merging "
        f"{seconds['merge']:.1f} and writing {seconds['write']:.1f}, summed over buckets), {rest:.1f} to commit and plan "
        f"rounds, {seconds['total']:.1f} in all."
    )


def planned_text(planned: TablePlan) -> Iterator[Shown]:
    """Say what the next round of each partition would do."""
    if not planned.rounds:
        yield nothing_new(planned.table, planned.stream_position)
        return
    for number, preview in enumerate(planned.rounds):
        if number:
            yield ""
        yield from _preview_text(planned.table, preview)


def _preview_text(table: str, preview: RoundPreview) -> Iterator[Shown]:
    partition = f", partition {format_partition(preview.partition)}" if preview.partition else ""
    yield Text(f"{table}{partition}: round {preview.round_id} would", style="bold")
    facts = new_facts()
    read = f"{format_count(preview.deltas, 'delta')} with {format_count(preview.rows, 'row')}, {format_bytes(preview.bytes)}"
    if preview.rebase_from is not None:
        facts.add_row("start anew", f"from {preview.rebase_from}, and go on after position {preview.high_watermark}")
        read = f"{format_count(preview.rows, 'row')}, {format_bytes(preview.bytes)}"
    facts.add_row("read", read)
    if preview.rebase_from is None:
        facts.add_row("go from", f"position {preview.previous_high_watermark} to {preview.high_watermark}")
    if preview.deltas_left_over:
        facts.add_row("leave", f"{format_count(preview.deltas_left_over, 'delta')} to rounds after it")
    counts: dict[str, int] = {}
    for bucket in preview.buckets:
        counts[bucket.action] = counts.get(bucket.action, 0) + 1
    facts.add_row("have", f"{format_count(len(preview.buckets), 'bucket')}: {_actions(counts)}")
    yield Padding(facts, (0, 0, 0, 2), expand=False)
    touched = [bucket for bucket in preview.buckets if bucket.action != "untouched" or bucket.new_rows]
    if touched:
        yield ""
        yield Padding(_buckets_grid(touched), (0, 0, 0, 2), expand=False)


def _buckets_grid(buckets: Sequence[BucketPlan]) -> Table:
    grid = new_grid("bucket", "action", ">rows", ">new", ">dead", ">files", ">size", "why")
    for bucket in buckets:
        grid.add_row(
            to_text(bucket.bucket),
            to_text(bucket.action),
            to_text(f"{bucket.base_rows:,}"),
            to_text(f"{bucket.new_rows:,}"),
            to_text(f"{bucket.dead_rows:,}"),
            to_text(bucket.files),
            to_text(format_bytes(bucket.bytes)),
            to_text(bucket.reason),
        )
    return grid


def rounds_text(table: str, rounds: Sequence[RoundLine]) -> Iterator[Shown]:
    """List rounds, one line each."""
    if not rounds:
        yield f"{table}: has not been compacted yet; `siltstone compact {table}` does it."
        return
    has_partitions = any(line.partition for line in rounds)
    grid = new_grid(
        ">round",
        *(["partition"] if has_partitions else []),
        "time (UTC)",
        ">position",
        ">deltas",
        ">rows in",
        ">rows out",
        ">files",
        ">size",
        ">written",
        "buckets",
    )
    for line in rounds:
        grid.add_row(
            to_text(line.round_id),
            *([to_text(format_partition(line.partition))] if has_partitions else []),
            to_text(format_time(line.completed_at)),
            to_text(line.high_watermark),
            to_text("" if line.problem else f"{line.deltas:,}"),
            to_text("" if line.problem else f"{line.delta_rows:,}"),
            to_text(f"{line.live_rows:,}"),
            to_text(line.files),
            to_text("" if line.problem else format_bytes(line.bytes)),
            to_text("" if line.problem else format_bytes(line.written_bytes)),
            Text("damaged", style="red") if line.problem else to_text(_did(line)),
        )
    yield grid
    for line in rounds:
        if line.problem:
            yield Text(f"Round {line.round_id}: {line.problem}", style="red")


def _did(line: RoundLine) -> str:
    return _actions(line.bucket_actions) if line.rolled_back_to is None else _went_back(line)


def _went_back(line: RoundLine) -> str:
    return f"back to round {line.rolled_back_to}"


def round_text(details: RoundDetails) -> Iterator[Shown]:
    """Tell all about a round."""
    line = details.round
    yield Text(f"{details.table}, round {line.round_id}", style="bold")
    facts = new_facts()
    for name, value in _round_facts(details):
        if value:
            facts.add_row(name, to_text(value))
    yield Padding(facts, (0, 0, 0, 2), expand=False)
    yield ""
    yield Padding(_accounting_grid(line), (0, 0, 0, 2), expand=False)
    yield ""
    yield Padding(_files_grid(details), (0, 0, 0, 2), expand=False)


def _round_facts(details: RoundDetails) -> list[tuple[str, str]]:
    line = details.round
    seconds = ", ".join(f"{step} {taken:.2f}" for step, taken in line.seconds.items())
    after = f", after round {details.previous_round_id}" if details.previous_round_id is not None else ""
    amplification = _factor(line.write_amplification)
    written = f"{format_count(line.written_files, 'file')}, {format_count(line.written_rows, 'row')}"
    return [
        ("partition", format_partition(line.partition)),
        ("time", f"{format_time(line.completed_at)} UTC{after}"),
        ("rolled back", _went_back(line) if line.rolled_back_to is not None else ""),
        ("position", f"{line.high_watermark}"),
        ("source", f"{details.source}, read up to {details.read_watermark}"),
        ("destination", details.destination),
        ("rebased from", details.rebased_from or ""),
        ("primary key", ", ".join(details.primary_keys) or "none"),
        ("sort key", ", ".join(details.sort_keys)),
        ("merge engine", details.merge_engine),
        ("columns", ", ".join(details.columns)),
        ("read", f"{format_count(line.deltas, 'delta')}, {format_bytes(line.input_bytes)}"),
        ("row-level deletes", f"{line.removal_rows:,}" if line.removal_rows else ""),
        ("written", f"{written}, {format_bytes(line.written_bytes)}"),
        ("amplification", amplification),
        (
            "carried",
            f"{line.carried_files:,} of {format_count(line.files, 'file')} by reference, {format_bytes(line.carried_bytes)}",
        ),
        ("dead rows", f"{line.dead_rows:,}, {_factor(line.read_amplification)} rows to read for each live one"),
        ("buckets", _actions(line.bucket_actions)),
        ("seconds", seconds),
    ]


def _accounting_grid(line: RoundLine) -> Table:
    grid = new_grid("rows", "")
    grid.columns[1].justify = "right"
    for name, count in (
        ("before", line.base_rows),
        ("in", line.delta_rows),
        *([("records", line.added_rows)] if line.added_rows else []),
        ("superseded", -line.superseded_rows),
        ("deleted", -line.deleted_rows),
        ("duplicates", -line.duplicate_rows),
        *([("lost", -line.lost_rows)] if line.lost_rows else []),
        ("out", line.live_rows),
    ):
        grid.add_row(to_text(name), to_text(f"{count:,}"))
    return grid


def _files_grid(details: RoundDetails) -> Table:
    has_tombstones = any(bucket.tombstones for bucket in details.buckets)
    tombstones = [">tombstones"] if has_tombstones else []
    grid = new_grid("bucket", ">rows", ">dead", ">size", *tombstones, "file")
    for bucket in details.buckets:
        count = [to_text(f"{bucket.tombstones:,}")] if has_tombstones else []
        if not bucket.files:
            grid.add_row(to_text(bucket.bucket), "0", "0", "0 B", *count, "")
        for file in bucket.files:
            name = f"{file.uri}{' + index' if file.index else ''}{' + deletion vector' if file.deletion_vector else ''}"
            cells = [to_text(f"{file.rows:,}"), to_text(f"{file.dead_rows:,}"), to_text(format_bytes(file.bytes))]
            grid.add_row(to_text(bucket.bucket), *cells, *count, to_text(name))
    return grid
