"""Tables, deltas and compactions as text: what they are, what was done, what would be done."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from siltstone.cli.render.parts import Shown, grid_of, indented, new_facts, new_grid, render, to_text
from siltstone.cli.results import DeltaList, RoundList, TableChanged, TableList
from siltstone.ingest.dry_run import Written
from siltstone.rounds.session import Compacted, Plan, RoundPreview
from siltstone.table.report import DeltaReport, RoundDetails, RoundReport, TableDescription
from siltstone.text import format_bytes, format_count, format_number, format_partition, format_time


@render.register
def _(tables: TableList) -> Iterator[Shown]:
    """One line per table."""
    if not tables.items:
        yield f"No tables in {tables.root}."
        return
    grid = new_grid("table", "primary key", ">columns", "engine", ">position", "description")
    for table in tables.items:
        if table.problem is not None:
            grid.add_row(to_text(table.name), *[""] * 4, Text(table.problem, style="red"))
            continue
        keys = ", ".join(table.primary_keys)
        facts = (table.name, keys, table.columns, table.merge_engine, table.stream_position, table.description)
        grid.add_row(*map(to_text, facts))
    yield grid


@render.register
def _(table: TableDescription) -> Iterator[Shown]:
    """Values, then columns."""
    yield Text(table.name, style="bold")
    if table.description:
        yield f"  {table.description}"
    yield indented(new_facts(_facts(table)))
    yield ""
    grid = new_grid("column", "type", "")
    for column in table.columns:
        kind = column.type if isinstance(column.type, str) else json.dumps(column.type)
        grid.add_row(to_text(column.name), to_text(kind), to_text(_roles(column.name, column.nullable, table)))
    yield indented(grid)


def _facts(table: TableDescription) -> Iterator[tuple[str, object]]:
    within = "; keys are unique within a partition" if table.unique_within_partition else ""
    yield "primary key", ", ".join(table.primary_keys) or "none"
    yield "sort key", ", ".join(table.sort_keys)
    yield "partitioned by", ", ".join(table.partition_keys) + within
    yield "merge engine", table.merge_engine if table.drop_duplicates else f"{table.merge_engine}, keeps duplicates"
    yield "version", f"{table.version}, schema {table.schema_id}"
    if table.folder is not None:
        yield "created", f"{format_time(table.created_at)} UTC"
        yield "position", table.stream_position
        yield "deltas", f"{table.deltas:,} with {format_count(table.rows, 'row')}, {format_bytes(table.bytes)}"
        yield "partitions", table.partitions if table.partition_keys else ""
        yield "folder", table.folder
    for name, value in table.properties.items():
        yield f"property {name}", value or '""'


def _roles(column: str, nullable: bool, table: TableDescription) -> str:
    keys = {"primary key": table.primary_keys, "sort key": table.sort_keys, "partition key": table.partition_keys}
    roles = [role for role, columns in keys.items() if column in columns]
    return ", ".join([*roles, *([] if nullable else ["not null"])])


@render.register
def _(change: TableChanged) -> Iterator[Shown]:
    """Each change on a line of its own, then the table where that helps."""
    if not change.changes:
        yield f"{change.name} is like that already; nothing to change."
    elif change.dry_run:
        yield "Dry run; nothing has changed. Without it:"
    yield from (f"  {line}" if change.dry_run else line for line in change.changes)
    if change.written is not None:
        yield from render(change.written)
    if change.table is not None:
        yield ""
        yield from render(change.table)


@render.register
def _(written: Written) -> Iterator[Shown]:
    """One sentence, and what is new about the schema."""
    what = (
        f"{format_count(written.rows, 'row')} as {written.type} ({format_count(written.files, 'file')}, "
        f"{format_bytes(written.bytes)}, {format_count(written.partitions, 'partition')})"
    )
    if written.repeated:
        yield f"{written.table}: was written before, at position {written.stream_position}; nothing to do."
    elif written.dry_run:
        yield f"{written.table}: would write {what}."
    else:
        yield f"{written.table}: wrote {what} at position {written.stream_position}."
    if written.null_lines:
        yield f"Skipped {format_count(written.null_lines, 'null line')} (tombstones of a change stream)."
    if written.new_columns:
        yield f"New columns: {', '.join(written.new_columns)}."


@render.register
def _(deltas: DeltaList) -> Iterator[Shown]:
    """One line per delta."""
    if not deltas.items:
        yield f"No such deltas of {deltas.table}."
        return
    yield grid_of(
        deltas.items,
        {
            ">position": lambda delta: delta.stream_position,
            "time (UTC)": lambda delta: format_time(delta.committed_at),
            "type": _kind,
            "partition?": lambda delta: format_partition(delta.partition),
            ">rows": lambda delta: format_number(delta.rows),
            ">size": lambda delta: format_bytes(delta.bytes),
            ">files": lambda delta: delta.files,
            "idempotency?": lambda delta: delta.idempotency,
            "columns": lambda delta: ", ".join(delta.columns),
        },
    )


def _kind(delta: DeltaReport) -> str:
    if delta.op_column:
        return f"{delta.type} by {delta.op_column}"
    if delta.delete_columns:
        return f"{delta.type} on {', '.join(delta.delete_columns)}"
    return delta.type


@render.register
def _(compacted: Compacted) -> Iterator[Shown]:
    """The rows of each round, its bytes, and where the time went."""
    if not compacted.rounds:
        yield _nothing_new(compacted.table, compacted.stream_position)
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
            f"Of the rows in files, {compacted.dead_rows:,} are dead; whoever reads the table reads "
            f"{_factor(compacted.read_amplification)} rows for each live one."
        )
    if compacted.conflicts:
        yield f"Planned again {format_count(compacted.conflicts, 'time')}, since another compaction was faster."
    yield _seconds_line(compacted.seconds)


def _nothing_new(table: str, position: int) -> str:
    return f"{table}: nothing new; the newest delta is at position {position}."


def _rows_grid(rounds: Sequence[RoundReport]) -> Table:
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


def _bytes_grid(rounds: Sequence[RoundReport]) -> Table:
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
    rest = max(0.0, seconds["total"] - seconds["plan"] - start - seconds["tasks"])
    return (
        f"Seconds: {seconds['plan']:.1f} to plan, {start:.1f} to start Spark, {seconds['tasks']:.1f} in tasks (merging "
        f"{seconds['merge']:.1f} and writing {seconds['write']:.1f}, summed over buckets), {rest:.1f} to commit and plan "
        f"rounds, {seconds['total']:.1f} in all."
    )


@render.register
def _(planned: Plan) -> Iterator[Shown]:
    """What the next round of each partition would do."""
    if not planned.rounds:
        yield _nothing_new(planned.table, planned.stream_position)
        return
    for number, preview in enumerate(planned.rounds):
        if number:
            yield ""
        yield from _preview_text(planned.table, preview)


def _preview_text(table: str, preview: RoundPreview) -> Iterator[Shown]:
    partition = f", partition {format_partition(preview.partition)}" if preview.partition else ""
    yield Text(f"{table}{partition}: round {preview.round_id} would", style="bold")
    yield indented(new_facts(_preview_facts(preview)))
    touched = [bucket for bucket in preview.buckets if bucket.action != "untouched" or bucket.new_rows]
    if touched:
        yield ""
        yield indented(
            grid_of(
                touched,
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


def _preview_facts(preview: RoundPreview) -> Iterator[tuple[str, object]]:
    rows = f"{format_count(preview.rows, 'row')}, {format_bytes(preview.bytes)}"
    if preview.rebase_from is not None:
        yield "start anew", f"from {preview.rebase_from}, and go on after position {preview.high_watermark}"
        yield "read", rows
    else:
        yield "read", f"{format_count(preview.deltas, 'delta')} with {rows}"
        yield "go from", f"position {preview.previous_high_watermark} to {preview.high_watermark}"
    if preview.deltas_left_over:
        yield "leave", f"{format_count(preview.deltas_left_over, 'delta')} to rounds after it"
    counts = Counter(bucket.action for bucket in preview.buckets)
    yield "have", f"{format_count(len(preview.buckets), 'bucket')}: {_actions(counts)}"


@render.register
def _(rounds: RoundList) -> Iterator[Shown]:
    """One line per round."""
    if not rounds.items:
        yield f"{rounds.table}: has not been compacted yet; `siltstone compact {rounds.table}` does it."
        return
    yield grid_of(
        rounds.items,
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
    for line in rounds.items:
        if line.problem:
            yield Text(f"Round {line.round_id}: {line.problem}", style="red")


def _did(line: RoundReport) -> str | Text:
    if line.problem:
        return Text("damaged", style="red")
    return _went_back(line) or _actions(line.bucket_actions)


def _went_back(line: RoundReport) -> str:
    return "" if line.rolled_back_to is None else f"back to round {line.rolled_back_to}"


@render.register
def _(details: RoundDetails) -> Iterator[Shown]:
    """Values, then where the rows went, then the files."""
    yield Text(f"{details.table}, round {details.round.round_id}", style="bold")
    yield indented(new_facts(_round_facts(details)))
    yield ""
    yield indented(_accounting_grid(details.round))
    yield ""
    yield indented(_files_grid(details))


def _round_facts(details: RoundDetails) -> Iterator[tuple[str, object]]:
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


def _accounting_grid(line: RoundReport) -> Table:
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
        grid.add_row(name, format_number(count))
    return grid


def _files_grid(details: RoundDetails) -> Table:
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
