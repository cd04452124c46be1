"""Output for people: tables and short sentences, in colour on a terminal, whole lines in a pipe."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from siltstone.cli.results import Check, DeltaLine, Exported, TableChanged, TableDetails, TableSummary, Written
from siltstone.cli.results_cycles import Controlled, ServiceReport, Serving, Triggered
from siltstone.cli.results_maintenance import KeyStory, Repaired, RolledBack, TableChecked, Vacuumed
from siltstone.cli.results_rounds import Compacted, RoundDetails, RoundLine, TablePlan
from siltstone.cli.text_cycles import (
    controlled_text,
    cycle_text,
    cycles_text,
    service_text,
    serving_text,
    triggered_text,
)
from siltstone.cli.text_maintenance import checked_text, repaired_text, rolled_back_text, vacuumed_text
from siltstone.cli.text_parts import Shown, least_width, new_console, new_facts, new_grid, to_text
from siltstone.cli.text_rounds import compacted_text, planned_text, round_text, rounds_text
from siltstone.text import format_bytes, format_count, format_pairs, format_partition, format_time

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from siltstone.cli.reading import Rows
    from siltstone.log.inspect import CompactionReport, LogSummary, VerificationReport
    from siltstone.log.opened import Entry
    from siltstone.service.results import CycleDetails, CycleRecord

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


class TextOutput:
    """Writes tables and sentences to standard output, trouble to standard error."""

    def __init__(self) -> None:
        self._console = new_console(sys.stdout)

    def tables(self, tables: Sequence[TableSummary], root: str) -> None:
        """Show one line per table."""
        if not tables:
            self._say(f"No tables in {root}.")
            return
        grid = new_grid("table", "primary key", ">columns", "engine", ">position", "description")
        for table in tables:
            if table.problem is not None:
                grid.add_row(to_text(table.name), *[""] * 4, Text(table.problem, style="red"))
                continue
            grid.add_row(
                to_text(table.name),
                to_text(", ".join(table.primary_keys)),
                to_text(table.columns),
                to_text(table.merge_engine),
                to_text(table.stream_position),
                to_text(table.description),
            )
        self._print(grid)

    def table(self, table: TableDetails) -> None:
        """Show values, then columns."""
        self._print(Text(table.name, style="bold"))
        if table.description:
            self._say(f"  {table.description}")
        facts = new_facts()
        for name, value in _facts(table):
            facts.add_row(name, to_text(value))
        self._print(Padding(facts, (0, 0, 0, 2), expand=False))
        self._say("")
        grid = new_grid("column", "type", "")
        for column in table.columns:
            kind = column.type if isinstance(column.type, str) else json.dumps(column.type)
            grid.add_row(to_text(column.name), to_text(kind), to_text(_roles(column.name, column.nullable, table)))
        self._print(Padding(grid, (0, 0, 0, 2), expand=False))

    def changed(self, change: TableChanged) -> None:
        """Show each change on a line of its own, then the table where that helps."""
        if not change.changes:
            self._say(f"{change.name} is like that already; nothing to change.")
        elif change.dry_run:
            self._say("Dry run; nothing has changed. Without it:")
        for line in change.changes:
            self._say(f"  {line}" if change.dry_run else line)
        if change.written is not None:
            self.written(change.written)
        if change.table is not None:
            self._say("")
            self.table(change.table)

    def written(self, written: Written) -> None:
        """Show one sentence and what is new about the schema."""
        what = (
            f"{format_count(written.rows, 'row')} as {written.type} "
            f"({format_count(written.files, 'file')}, {format_bytes(written.bytes)}, "
            f"{format_count(written.partitions, 'partition')})"
        )
        if written.repeated:
            self._say(f"{written.table}: was written before, at position {written.stream_position}; nothing to do.")
        elif written.dry_run:
            self._say(f"{written.table}: would write {what}.")
        else:
            self._say(f"{written.table}: wrote {what} at position {written.stream_position}.")
        if written.null_lines:
            self._say(f"Skipped {format_count(written.null_lines, 'null line')} (tombstones of a change stream).")
        if written.new_columns:
            self._say(f"New columns: {', '.join(written.new_columns)}.")

    def deltas(self, table: str, deltas: Sequence[DeltaLine]) -> None:
        """Show one line per delta."""
        if not deltas:
            self._say(f"No such deltas of {table}.")
            return
        has_partitions = any(delta.partition for delta in deltas)
        has_ids = any(delta.idempotency for delta in deltas)
        grid = new_grid(
            ">position",
            "time (UTC)",
            "type",
            *(["partition"] if has_partitions else []),
            ">rows",
            ">size",
            ">files",
            *(["idempotency"] if has_ids else []),
            "columns",
        )
        for delta in deltas:
            grid.add_row(
                to_text(delta.stream_position),
                to_text(format_time(delta.committed_at)),
                to_text(_kind(delta)),
                *([to_text(format_partition(delta.partition))] if has_partitions else []),
                to_text(f"{delta.rows:,}"),
                to_text(format_bytes(delta.bytes)),
                to_text(delta.files),
                *([to_text(delta.idempotency or "")] if has_ids else []),
                to_text(", ".join(delta.columns)),
            )
        self._print(grid)

    def compacted(self, compacted: Compacted) -> None:
        """Show where the rows went, what was read and written, and how long it took."""
        self._show(compacted_text(compacted))

    def planned(self, planned: TablePlan) -> None:
        """Show the next round of each partition, with the buckets that would change."""
        self._show(planned_text(planned))

    def rounds(self, table: str, rounds: Sequence[RoundLine]) -> None:
        """Show one line per round."""
        self._show(rounds_text(table, rounds))

    def round(self, details: RoundDetails) -> None:
        """Show values, then where the rows went, then the files."""
        self._show(round_text(details))

    def rows(self, table: str, rows: "Rows", shown: int | None) -> None:
        """Show a table of rows, and how many more there are where that is known."""
        from siltstone.cli.text_rows import rows_text

        counted = _Counted(rows.batches, shown)
        self._show(rows_text(iter(counted), rows.schema, self._console.width))
        for line in _rows_notes(table, rows, counted):
            self._note(line)

    def found(
        self, table: str, key: Mapping[str, str | None], rows: Sequence[Mapping[str, object]], uncompacted: int
    ) -> None:
        """Show each row, a column on each line."""
        from siltstone.cli.text_rows import record_text

        for number, row in enumerate(rows):
            self._show(["", record_text(row)] if number else [record_text(row)])
        if not rows:
            self._say(f"{table}: no compacted row has {format_pairs(key)}{_uncompacted(uncompacted)}.")

    def explained(self, table: str, key: Mapping[str, str | None], stories: Sequence[KeyStory]) -> None:
        """Show the events in order, the row they lead to, and why."""
        from siltstone.cli.text_key import story_text

        for number, story in enumerate(stories):
            self._show([""] if number else [])
            self._show(story_text(story))
        if not stories:
            self._say(f"{table}: no delta has {format_pairs(key)}.")

    def checked(self, checked: Sequence[TableChecked], root: str) -> None:
        """Show each finding with what to do about it, and one line per table."""
        self._show(checked_text(checked, root))

    def repaired(self, repaired: Repaired) -> None:
        """Show one line per partition, and one per bucket."""
        self._show(repaired_text(repaired))

    def vacuumed(self, vacuumed: Vacuumed) -> None:
        """Show the files, in a dry run, and one line per table."""
        self._show(vacuumed_text(vacuumed))

    def rolled_back(self, rolled_back: RolledBack) -> None:
        """Show what is current again, and what is to be compacted anew."""
        self._show(rolled_back_text(rolled_back))

    def exported(self, exported: Exported) -> None:
        """Show one sentence."""
        what = f"{format_count(exported.rows, 'row')} to {exported.file} ({format_bytes(exported.bytes)})"
        self._say(f"{exported.table}: wrote {what}.")

    def checks(self, checks: Iterable[Check]) -> bool:
        """Show each finding when it is there, its fix under it."""
        states = []
        for check in checks:
            states.append(check.state)
            line = Text.assemble((f"{check.state:<7}", _STYLES[check.state]), f"  {check.name:<16}  {check.detail}")
            self._print(line)
            if check.fix:
                self._print(Text(f"{'':<27}→ {check.fix}", style="bold"))
        failed, warnings = states.count("failed"), states.count("warning")
        self._say("")
        self._say(f"{failed} failed, {warnings} with a warning." if failed or warnings else "All is well.")
        return not failed

    def log(self, log: "LogSummary") -> None:
        """Show one line per batch file, and what they amount to."""
        live = "an unknown number of" if log.live_entries is None else f"{log.live_entries:,}"
        self._print(Text(log.address, style="bold"))
        self._say(
            f"  {log.kind} log, {format_count(len(log.batches), 'file')} with {format_bytes(log.bytes)}, "
            f"{live} live entries, a compact file every {log.interval} batches"
        )
        self._say("")
        grid = new_grid(">batch", "file", ">entries", ">size", "time (UTC)", "")
        for batch in log.batches:
            grid.add_row(
                to_text(batch.batch_id),
                to_text(batch.file),
                to_text("?" if batch.entries is None else f"{batch.entries:,}"),
                to_text(format_bytes(batch.bytes)),
                to_text(format_time(batch.modified_ms)),
                Text(batch.problem or "", style="red"),
            )
        self._print(grid)

    def log_entries(self, entries: "Iterable[Entry]") -> None:
        """Show one line per entry, at once: there may be millions."""
        for entry in entries:
            sys.stdout.write(_entry_line(entry) + "\n")

    def log_verified(self, report: "VerificationReport") -> None:
        """Show each finding with what to do about it."""
        for finding in report.findings:
            self._print(Text.assemble((finding.code, "bold red"), f"  {finding.file}"))
            self._say(f"  {finding.message}")
            self._say(f"  → {finding.action}")
        looked = (
            f"{format_count(report.batches, 'batch', 'batches')}, {format_count(report.entries, 'entry', 'entries')}, "
            f"{format_count(report.data_files_checked, 'data file')}"
        )
        result = format_count(len(report.findings), "finding") if report.findings else "all is well"
        self._say(f"{report.address}: {looked}: {result}.")
        if report.not_known is not None:
            self._say(f"  not known: {report.not_known}")

    def log_compacted(self, report: "CompactionReport") -> None:
        """Show what became smaller."""
        self._say(f"{report.address}: {report.message}.")
        if report.compact_file is not None:
            self._say(
                f"  {report.compact_file}: {report.entries_before:,} → {format_count(report.entries_after, 'entry', 'entries')}, "
                f"{format_bytes(report.bytes_before)} → {format_bytes(report.bytes_after)}"
            )
        if report.deleted_files:
            self._say(
                f"  {'to delete' if report.dry_run else 'deleted'}: {format_count(len(report.deleted_files), 'file')}, {format_bytes(report.deleted_bytes)}"
            )
        if report.backup_file is not None:
            self._say(f"  backup: {report.backup_file}")

    def serving(self, serving: Serving) -> None:
        """Show where to look."""
        self._show(serving_text(serving))
        sys.stdout.flush()

    def service(self, report: ServiceReport) -> None:
        """Show the state, then partitions and nodes."""
        self._show(service_text(report))

    def cycles(self, records: "Sequence[CycleRecord]") -> None:
        """Show one line per cycle."""
        self._show(cycles_text(records))

    def cycle(self, details: "CycleDetails") -> None:
        """Show the cycle, then each attempt."""
        self._show(cycle_text(details))

    def triggered(self, triggered: Triggered) -> None:
        """Show one sentence."""
        self._show(triggered_text(triggered))

    def controlled(self, controlled: Controlled) -> None:
        """Show one sentence."""
        self._show(controlled_text(controlled))

    def warning(self, message: str) -> None:
        """Show the message on standard error."""
        new_console(sys.stderr).print(Text.assemble(("Warning: ", "yellow"), message), soft_wrap=True)

    def failure(self, kind: str, message: str) -> None:
        """Show the message on standard error."""
        new_console(sys.stderr).print(Text.assemble(("Error: ", "bold red"), message), soft_wrap=True)

    def _show(self, parts: Iterable[Shown]) -> None:
        for part in parts:
            if isinstance(part, str):
                self._say(part)
            else:
                self._print(part)

    def _note(self, line: str) -> None:
        # What is said about rows is not one of them: a program that counts lines must not see it.
        new_console(sys.stderr).print(Text(line, style="dim"), soft_wrap=True)

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _print(self, what: RenderableType) -> None:
        if isinstance(what, Text):
            self._console.print(what, soft_wrap=True)
            return
        if self._console.is_terminal:
            # In a narrow window, lines go on below; a number that is cut off would be another number.
            needed = least_width(what)
            is_narrow = needed > self._console.width
            (new_console(sys.stdout, needed) if is_narrow else self._console).print(what)
            return
        with self._console.capture() as captured:
            self._console.print(what)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


class _Counted:
    """Batches that are cut after `most` rows, and counted on the way."""

    def __init__(self, batches: "Iterator[RecordBatch]", most: int | None) -> None:
        self._batches = batches
        self._most = most
        self.rows = 0
        self.is_cut = False

    def __iter__(self) -> "Iterator[RecordBatch]":
        for batch in self._batches:
            left = batch.num_rows if self._most is None else self._most - self.rows
            self.is_cut = batch.num_rows > left
            self.rows += min(left, batch.num_rows)
            yield batch.slice(0, left)


def _rows_notes(table: str, rows: "Rows", counted: _Counted) -> Iterator[str]:
    if counted.is_cut:
        of_all = f" of {rows.total:,}" if rows.total is not None else ""
        yield f"{counted.rows:,}{of_all} rows; --limit N shows more, --output FILE writes all."
    elif not counted.rows:
        yield f"{table}: no rows."
    if rows.uncompacted:
        yield f"{format_count(rows.uncompacted, 'delta')} not compacted yet; --include-uncompacted shows them too."


def _uncompacted(deltas: int) -> str:
    return f"; {format_count(deltas, 'delta')} not compacted yet" if deltas else ""


def _kind(delta: DeltaLine) -> str:
    if delta.op_column:
        return f"{delta.type} by {delta.op_column}"
    if delta.delete_columns:
        return f"{delta.type} on {', '.join(delta.delete_columns)}"
    return delta.type


def _facts(table: TableDetails) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("primary key", ", ".join(table.primary_keys) or "none"),
        ("sort key", ", ".join(table.sort_keys)),
        (
            "partitioned by",
            ", ".join(table.partition_keys)
            + ("; keys are unique within a partition" if table.unique_within_partition else ""),
        ),
        ("merge engine", table.merge_engine if table.drop_duplicates else f"{table.merge_engine}, keeps duplicates"),
        ("version", f"{table.version}, schema {table.schema_id}"),
    ]
    if table.folder is not None:
        facts += [
            ("created", f"{format_time(table.created_at)} UTC"),
            ("position", table.stream_position),
            ("deltas", f"{table.deltas:,} with {format_count(table.rows, 'row')}, {format_bytes(table.bytes)}"),
            ("partitions", table.partitions if table.partition_keys else ""),
            ("folder", table.folder),
        ]
    facts += [(f"property {name}", value or '""') for name, value in table.properties.items()]
    return [(name, value) for name, value in facts if value != ""]


def _roles(column: str, nullable: bool, table: TableDetails) -> str:
    roles = [
        role
        for role, columns in (
            ("primary key", table.primary_keys),
            ("sort key", table.sort_keys),
            ("partition key", table.partition_keys),
        )
        if column in columns
    ]
    return ", ".join([*roles, *([] if nullable else ["not null"])])


def _entry_line(entry: "Entry") -> str:
    if isinstance(entry, dict):
        return json.dumps(entry, ensure_ascii=False)
    if len(entry) == 3:
        return f"{entry.batch_id:>8}  {format_time(entry.timestamp_ms)}  {entry.path}"
    return f"{entry.size:>14,}  {format_time(entry.modified_ms)}  {entry.path}"
