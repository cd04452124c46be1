"""`siltstone compact`, `plan`, `rounds` and `show`."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.cli.options import Master, Partition, Shell, TableName, argument, command, option
from siltstone.cli.parts import Shown, grid_of, indented, new_facts, new_grid, styled, to_text
from siltstone.cli.publish import published_line
from siltstone.text import format_bytes, format_count, format_number, format_partition, format_time

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from siltstone.rounds.session import Compacted, Plan, RoundPreview
    from siltstone.table.report import RoundDetails, RoundReport

To = Annotated[int | None, option("--to POSITION", "The last stream position to take, else all.", min=0)]
Full = Annotated[bool, option("--full", "Rewrite all buckets, also those without changes.")]
RebaseFrom = Annotated[
    str | None,
    option("--rebase-from S1", "Rebuild from what this table holds; with TABLE itself, from all its deltas."),
]
OnBehalfOf = Annotated[
    str | None, option("--on-behalf-of S2", "The table whose deltas are compacted, if it is another table.")
]
HighWatermark = Annotated[
    int | None,
    option(
        "--high-watermark POSITION", "Continue with the deltas after this position, the last one that S1 has.", min=0
    ),
]

Engine = Annotated[
    Literal["spark", "local"], option("--engine", "Spark, or this process alone, without Java: for small tables.")
]

app = typer.Typer()


@command(
    app,
    "compact",
    "siltstone compact shop.orders",
    "siltstone compact shop.orders --engine local",
    "siltstone compact shop.orders --to 120 --master 'local[4]'",
    "siltstone compact shop.orders --rebase-from shop.old_orders --high-watermark 120 --dry-run",
    "siltstone compact shop.orders --rebase-from shop.orders",
)
def compact(
    shell: Shell,
    name: TableName,
    to: To = None,
    full: Full = False,
    rebase_from: RebaseFrom = None,
    on_behalf_of: OnBehalfOf = None,
    high_watermark: HighWatermark = None,
    master: Master = None,
    engine: Engine = "spark",
    dry_run: Annotated[bool, option("--dry-run", "Show what would happen, as `siltstone plan`.")] = False,
) -> None:
    """Merge the deltas since the last round into a table.

    Each round is a commit of its own, so that a compaction that was interrupted continues where it was. `siltstone plan` shows
    what would happen.
    S1 and S2 are tables, or streams of one, as `siltstone show` names them.
    """
    if engine == "local" and master is not None:
        raise typer.BadParameter("sets where Spark runs, but --engine local does not use Spark", param_hint="--master")
    if dry_run:
        plan(shell, name, to, full, rebase_from, on_behalf_of, high_watermark)
        return
    from siltstone.cli.spark import SparkStarter

    table = shell.lake.table(name)
    shell.when_interrupted = f"What was not committed has changed nothing; `siltstone compact {name}` continues after the last committed round."
    with shell.compaction_progress() as progress, SparkStarter(master, progress) as start:
        compacted = table.compact(
            to=to,
            full=full,
            rebase_from=rebase_from,
            on_behalf_of=on_behalf_of,
            high_watermark=high_watermark,
            engine=engine,
            spark=start if engine == "spark" else None,
            progress=progress,
        )
    compacted = dataclasses.replace(compacted, seconds={**compacted.seconds, **start.seconds})
    shell.emit(compacted, _compacted_text(compacted))


def _compacted_text(compacted: "Compacted") -> Iterator[Shown]:
    if not compacted.rounds:
        yield _nothing_new(compacted.table, compacted.stream_position)
        yield from map(published_line, compacted.published)
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
        yield (
            f"In all: {format_count(compacted.delta_rows, 'row')} in, {compacted.superseded_rows:,} superseded, "
            f"{compacted.deleted_rows:,} deleted, {format_count(compacted.duplicate_rows, 'duplicate')}; "
            f"{format_bytes(compacted.input_bytes)} read, {format_bytes(compacted.written_bytes)} written "
            f"(amplification {_factor(compacted.write_amplification)}), {format_bytes(compacted.carried_bytes)} carried."
        )
    if compacted.dead_rows:
        yield (
            f"Of the rows in files, {compacted.dead_rows:,} are dead; readers read "
            f"{_factor(compacted.read_amplification)} rows for each live one."
        )
    if compacted.conflicts:
        yield f"Planned again {format_count(compacted.conflicts, 'time')}, since another compaction was faster."
    yield from map(published_line, compacted.published)
    yield _seconds_line(compacted.seconds)


def _nothing_new(table: str, position: int) -> str:
    return f"{table}: nothing new; the newest delta is at position {position}."


def _rows_grid(rounds: "Sequence[RoundReport]") -> "Table":
    return grid_of(
        rounds,
        {
            ">round": lambda line: line.round_id,
            "partition?": lambda line: format_partition(line.partition),
            ">position": lambda line: line.high_watermark,
            ">rows before": lambda line: format_number(line.base_rows),
            ">rows in": lambda line: format_number(line.delta_rows),
            ">records?": lambda line: line.added_rows and format_number(line.added_rows),
            ">superseded": lambda line: format_number(line.superseded_rows),
            ">deleted": lambda line: format_number(line.deleted_rows),
            ">duplicates": lambda line: format_number(line.duplicate_rows),
            ">rows out": lambda line: format_number(line.live_rows),
        },
    )


def _bytes_grid(rounds: "Sequence[RoundReport]") -> "Table":
    return grid_of(
        rounds,
        {
            ">round": lambda line: line.round_id,
            "partition?": lambda line: format_partition(line.partition),
            ">deltas": lambda line: format_number(line.deltas),
            ">read": lambda line: format_bytes(line.input_bytes),
            ">written": lambda line: format_bytes(line.written_bytes),
            ">amplified": lambda line: _factor(line.write_amplification),
            ">carried": lambda line: format_bytes(line.carried_bytes),
            ">dead": lambda line: format_number(line.dead_rows),
            "buckets": lambda line: _actions(line.bucket_actions),
            ">seconds": lambda line: f"{line.seconds.get('total', line.seconds.get('tasks', 0.0)):.1f}",
        },
    )


def _factor(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}"


def _actions(actions: Mapping[str, int]) -> str:
    return ", ".join(f"{actions[action]:,} {action}" for action in sorted(actions) if actions[action])


def _seconds_line(seconds: Mapping[str, float]) -> str:
    start = seconds.get("spark_start", 0.0)
    spark = f"{start:.1f} to start Spark, " if start else ""
    rest = max(0.0, seconds["total"] - seconds["plan"] - start - seconds["tasks"])
    return (
        f"Seconds: {seconds['plan']:.1f} to plan, {spark}{seconds['tasks']:.1f} in tasks (merging "
        f"{seconds['merge']:.1f} and writing {seconds['write']:.1f}, summed over buckets), {rest:.1f} to commit and plan "
        f"rounds, {seconds['total']:.1f} in all."
    )


@command(
    app,
    "plan",
    "siltstone plan shop.orders --to 120",
    "siltstone plan shop.orders --rebase-from shop.old_orders --high-watermark 120",
)
def plan(
    shell: Shell,
    name: TableName,
    to: To = None,
    full: Full = False,
    rebase_from: RebaseFrom = None,
    on_behalf_of: OnBehalfOf = None,
    high_watermark: HighWatermark = None,
    every_bucket: Annotated[bool, option("--all", "List all buckets, also those that no delta has rows for.")] = False,
) -> None:
    """Show what the next round would do, and why.

    Lists the buckets one by one. Nothing is written, and Spark is not started.
    """
    from siltstone.rounds.events import Event, TasksDone

    with shell.progress("Finding new deltas") as report:

        def show(event: Event) -> None:
            if isinstance(event, TasksDone):
                step = "Reading file" if event.step == "read" else "Looking at bucket"
                report(f"{step} {event.done + 1:,} of {event.tasks:,}")

        planned = shell.lake.table(name).plan(
            to=to,
            full=full,
            rebase_from=rebase_from,
            on_behalf_of=on_behalf_of,
            high_watermark=high_watermark,
            every_bucket=every_bucket,
            progress=show,
        )
    shell.emit(planned, _plan_text(planned, every_bucket))


def _plan_text(planned: "Plan", every_bucket: bool) -> Iterator[Shown]:
    if not planned.rounds:
        yield _nothing_new(planned.table, planned.stream_position)
        return
    for number, preview in enumerate(planned.rounds):
        if number:
            yield ""
        yield from _preview_text(planned.table, preview, every_bucket)


def _preview_text(table: str, preview: "RoundPreview", every_bucket: bool) -> Iterator[Shown]:
    partition = f", partition {format_partition(preview.partition)}" if preview.partition else ""
    yield styled((f"{table}{partition}: round {preview.round_id} would", "bold"))
    yield indented(new_facts(_preview_facts(preview)))
    listed = [bucket for bucket in preview.buckets if every_bucket or bucket.action != "untouched" or bucket.new_rows]
    if listed:
        yield ""
        yield indented(
            grid_of(
                listed,
                {
                    "bucket": lambda bucket: bucket.bucket,
                    "action": lambda bucket: bucket.action,
                    ">rows": lambda bucket: format_number(bucket.base_rows),
                    ">new": lambda bucket: format_number(bucket.new_rows),
                    ">dead": lambda bucket: format_number(bucket.dead_rows),
                    ">files": lambda bucket: bucket.files,
                    ">size": lambda bucket: format_bytes(bucket.bytes),
                    "why": lambda bucket: bucket.reason,
                },
            )
        )


def _preview_facts(preview: "RoundPreview") -> Iterator[tuple[str, object]]:
    rows = f"{format_count(preview.rows, 'row')}, {format_bytes(preview.bytes)}"
    if preview.rebase_from is not None:
        yield "rebuild", f"from {preview.rebase_from}, then continue after position {preview.high_watermark}"
        yield "read", rows
    else:
        yield "read", f"{format_count(preview.deltas, 'delta')} with {rows}"
        yield "go from", f"position {preview.previous_high_watermark} to {preview.high_watermark}"
    if preview.deltas_left_over:
        yield "leave", f"{format_count(preview.deltas_left_over, 'delta')} to rounds after it"
    yield "have", f"{format_count(preview.bucket_count, 'bucket')}: {_actions(preview.bucket_actions)}"


@command(app, "rounds", "siltstone rounds shop.orders")
def rounds(shell: Shell, name: TableName) -> None:
    """List the rounds that compacted a table, oldest first."""
    reports = shell.lake.table(name).round_reports()
    shell.emit(reports, _rounds_text(name, reports))


def _rounds_text(table: str, reports: "Sequence[RoundReport]") -> Iterator[Shown]:
    if not reports:
        yield f"{table}: has not been compacted yet; `siltstone compact {table}` does it."
        return
    yield grid_of(
        reports,
        {
            ">round": lambda line: line.round_id,
            "partition?": lambda line: format_partition(line.partition),
            "time (UTC)": lambda line: format_time(line.completed_at),
            ">position": lambda line: line.high_watermark,
            ">deltas": lambda line: "" if line.problem else format_number(line.deltas),
            ">rows in": lambda line: "" if line.problem else format_number(line.delta_rows),
            ">rows out": lambda line: format_number(line.live_rows),
            ">files": lambda line: line.files,
            ">size": lambda line: "" if line.problem else format_bytes(line.bytes),
            ">written": lambda line: "" if line.problem else format_bytes(line.written_bytes),
            "buckets": _did,
        },
    )
    for line in reports:
        if line.problem:
            yield styled((f"Round {line.round_id}: {line.problem}", "red"))


def _did(line: "RoundReport") -> "str | Text":
    if line.problem:
        return styled(("damaged", "red"))
    return _went_back(line) or _actions(line.bucket_actions)


def _went_back(line: "RoundReport") -> str:
    return "" if line.rolled_back_to is None else f"back to round {line.rolled_back_to}"


@command(app, "show", "siltstone show shop.orders 3", "siltstone show shop.orders 3 --partition eu,2026-11-15")
def show(
    shell: Shell,
    name: TableName,
    round_id: Annotated[int, argument("ROUND", "The round's number.", min=1)],
    partition: Partition = None,
) -> None:
    """Show one round: rows in and out, buckets and their files."""
    details = shell.lake.table(name).round(round_id, partition or ())
    shell.emit(details, _round_text(details))


def _round_text(details: "RoundDetails") -> Iterator[Shown]:
    yield styled((f"{details.table}, round {details.round.round_id}", "bold"))
    yield indented(new_facts(_round_facts(details)))
    yield ""
    yield indented(_accounting_grid(details.round))
    yield ""
    yield indented(_files_grid(details))


def _round_facts(details: "RoundDetails") -> Iterator[tuple[str, object]]:
    line = details.round
    after = f", after round {details.previous_round_id}" if details.previous_round_id is not None else ""
    yield "partition", format_partition(line.partition)
    yield "time", f"{format_time(line.completed_at)} UTC{after}"
    yield "rolled back", _went_back(line)
    yield "position", line.high_watermark
    yield "source", f"{details.source}, read up to {details.read_watermark}"
    yield "destination", details.destination
    yield "rebased from", details.rebased_from or ""
    yield "primary key", ", ".join(details.primary_keys) or "none"
    yield "sort key", ", ".join(details.sort_keys)
    yield "merge engine", details.merge_engine
    yield "columns", ", ".join(details.columns)
    yield "read", f"{format_count(line.deltas, 'delta')}, {format_bytes(line.input_bytes)}"
    yield "row-level deletes", format_number(line.removal_rows) if line.removal_rows else ""
    written = f"{format_count(line.written_files, 'file')}, {format_count(line.written_rows, 'row')}"
    yield "written", f"{written}, {format_bytes(line.written_bytes)}"
    yield "amplification", _factor(line.write_amplification)
    carried = f"{line.carried_files:,} of {format_count(line.files, 'file')} by reference"
    yield "carried", f"{carried}, {format_bytes(line.carried_bytes)}"
    yield "dead rows", f"{line.dead_rows:,}, {_factor(line.read_amplification)} rows to read for each live one"
    yield "buckets", _actions(line.bucket_actions)
    yield "seconds", ", ".join(f"{step} {taken:.2f}" for step, taken in line.seconds.items())


def _accounting_grid(line: "RoundReport") -> "Table":
    counts = {
        "before": line.base_rows,
        "in": line.delta_rows,
        "records": line.added_rows or None,
        "superseded": -line.superseded_rows,
        "deleted": -line.deleted_rows,
        "duplicates": -line.duplicate_rows,
        "lost": -line.lost_rows or None,
        "out": line.live_rows,
    }
    shown = [(name, format_number(count)) for name, count in counts.items() if count is not None]
    return grid_of(shown, {"rows": lambda row: row[0], ">": lambda row: row[1]})


def _files_grid(details: "RoundDetails") -> "Table":
    has_tombstones = any(bucket.tombstones for bucket in details.buckets)
    grid = new_grid("bucket", ">rows", ">dead", ">size", *([">tombstones"] if has_tombstones else []), "file")
    for bucket in details.buckets:
        count = [format_number(bucket.tombstones)] if has_tombstones else []
        if not bucket.files:
            grid.add_row(bucket.bucket, "0", "0", "0 B", *count, "")
        for file in bucket.files:
            name = f"{file.uri}{' + index' if file.index else ''}{' + deletion vector' if file.deletion_vector else ''}"
            sizes = (format_number(file.rows), format_number(file.dead_rows), format_bytes(file.bytes))
            grid.add_row(bucket.bucket, *sizes, *count, to_text(name))
    return grid
