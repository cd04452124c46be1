"""Checks, repairs, vacuums and rollbacks of tables, checks of the machine, and logs as text."""

import json
from collections.abc import Iterator, Sequence

from rich.text import Text

from siltstone.cli.render.parts import Line, Shown, grid_of, render
from siltstone.cli.results import Checked, Checks, LogEntries, Repaired, RolledBack, TableChecked, Vacuumed
from siltstone.log.inspect import Finding, LogSummary, VerificationReport
from siltstone.log.repair import CompactionReport
from siltstone.maintenance.damage import BucketRepair
from siltstone.text import format_bytes, format_count, format_number, format_partition, format_time

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


@render.register
def _(checked: Checked) -> Iterator[Shown]:
    """What is wrong with tables, and what to do about it."""
    if not checked.items:
        yield f"No tables in {checked.root}."
    for table in checked.items:
        yield from _findings(table.findings)
        yield f"{table.table}: {_looked_at(table)}"


def _findings(findings: Sequence[Finding]) -> Iterator[Shown]:
    for finding in findings:
        yield Text.assemble((finding.code, "bold red"), f"  {finding.file}")
        yield f"  {finding.message}"
        yield f"  → {finding.action}"


def _looked_at(table: TableChecked) -> str:
    if table.findings:
        return f"{format_count(len(table.findings), 'finding')}."
    return (
        f"{format_count(table.deltas, 'delta')} in {format_count(table.delta_files, 'file')}, "
        f"{format_count(table.rounds, 'round')}, {format_count(table.live_rows, 'row')} in "
        f"{format_count(table.compacted_files, 'file')}: all is well{'' if table.deep else ' (--deep reads the rows, too)'}."
    )


@render.register
def _(repaired: Repaired) -> Iterator[Shown]:
    """What was brought back, from where, and what was lost."""
    for repair in repaired.partitions:
        partition = f", partition {format_partition(repair.partition)}" if repair.partition else ""
        verb = "would be" if repaired.dry_run else "was"
        if repair.is_registered:
            yield f"{repaired.table}{partition}: {verb} registered, so that its rows are read."
            continue
        yield f"{repaired.table}{partition}: {verb} repaired by round {repair.round_id}."
        for bucket in repair.buckets:
            yield f"  hashes {bucket.first_hash} to {bucket.last_hash}: {_cure(bucket, is_dry=repaired.dry_run)}"
            yield from (f"    {file}" for file in bucket.damaged)


def _cure(bucket: BucketRepair, *, is_dry: bool) -> str:
    deltas = format_count(bucket.deltas, "delta")
    if bucket.cure == "index":
        return "a new index, no row is lost"
    if bucket.cure == "round":
        return f"from round {bucket.from_round} and the {deltas} since, no row is lost"
    if bucket.cure == "deltas":
        return f"from all {deltas}, no row is lost"
    lost = format_count(bucket.lost_rows, "row")
    if bucket.lost_tombstones:
        lost += f" and {format_count(bucket.lost_tombstones, 'tombstone')}"
    return f"up to {lost} would be lost, with --accept-loss" if is_dry else f"{lost} lost"


@render.register
def _(vacuumed: Vacuumed) -> Iterator[Shown]:
    """What was removed; a dry run names each file."""
    would = "would remove" if vacuumed.dry_run else "removed"
    for table in vacuumed.tables:
        if vacuumed.dry_run:
            yield from table.removed_files
        what = f"{format_count(len(table.removed_files), 'file')}, {format_bytes(table.removed_bytes)}"
        rounds = format_count(len(table.expired_rounds), "round")
        forget = f"; {'would forget' if vacuumed.dry_run else 'forgot'} {rounds}" if table.expired_rounds else ""
        yield f"{table.table}: {would} {what}{forget}; {format_count(table.kept_files, 'file')} stay."
        yield from (f"{link}: is a symbolic link, left alone." for link in table.skipped_links)
    yield from _dropped_text(vacuumed, would)
    uncertain: dict[str | None, list[str]] = {}
    for table in vacuumed.tables:
        uncertain.setdefault(table.unsure_time, []).append(table.table)
    if vacuumed.dropped is not None:
        uncertain.setdefault(vacuumed.dropped.unsure_time, []).append("Dropped tables")
    uncertain.pop(None, None)
    yield from (f"{names[0] if len(names) == 1 else 'All of these'}: {time}." for time, names in uncertain.items())


def _dropped_text(vacuumed: Vacuumed, would: str) -> Iterator[Shown]:
    dropped = vacuumed.dropped
    if dropped is None:
        return
    if vacuumed.dry_run:
        yield from (f"{folder}/" for folder in dropped.removed_folders)
    waiting = len(dropped.waiting_folders)
    later = f"; {format_count(waiting, 'folder')} within the retention" if waiting else ""
    what = f"{format_count(dropped.removed_files, 'file')}, {format_bytes(dropped.removed_bytes)}"
    yield f"Dropped tables: {would} {what}{later}."
    yield from (f"{link}: is a symbolic link, left alone." for link in dropped.skipped_links)
    for folder in dropped.unclaimed_folders:
        yield f"{folder}: has a log, but belongs to no table, and none that was dropped: left alone. Delete it by hand."


@render.register
def _(rolled_back: RolledBack) -> Iterator[Shown]:
    """What is current again."""
    line = rolled_back.round
    partition = f", partition {format_partition(line.partition)}" if line.partition else ""
    verb = "would be" if rolled_back.dry_run else "is"
    yield (
        f"{rolled_back.table}{partition}: {verb} as after round {line.rolled_back_to}, by round {line.round_id}: "
        f"position {rolled_back.previous_high_watermark} → {line.high_watermark}, rows "
        f"{rolled_back.previous_live_rows:,} → {line.live_rows:,}."
    )
    if rolled_back.deltas_to_compact:
        yield f"{format_count(rolled_back.deltas_to_compact, 'delta')} to compact again: `siltstone compact {rolled_back.table}`."


@render.register
def _(checks: Checks) -> Iterator[Shown]:
    """Each finding as it comes in, its fix below it."""
    states = []
    for check in checks.items:
        states.append(check.state)
        yield Text.assemble((f"{check.state:<7}", _STYLES[check.state]), f"  {check.name:<16}  {check.detail}")
        if check.fix:
            yield Text(f"{'':<27}→ {check.fix}", style="bold")
    failed, warnings = states.count("failed"), states.count("warning")
    yield ""
    yield f"{failed} failed, {warnings} with a warning." if failed or warnings else "All is well."


@render.register
def _(log: LogSummary) -> Iterator[Shown]:
    """One line per batch file, and what they amount to."""
    live = "an unknown number of" if log.live_entries is None else f"{log.live_entries:,}"
    yield Text(log.address, style="bold")
    yield (
        f"  {log.kind} log, {format_count(len(log.batches), 'file')} with {format_bytes(log.bytes)}, "
        f"{live} live entries, a compact file every {log.interval} batches"
    )
    yield ""
    yield grid_of(
        log.batches,
        {
            ">batch": lambda batch: batch.batch_id,
            "file": lambda batch: batch.file,
            ">entries": lambda batch: "?" if batch.entries is None else format_number(batch.entries),
            ">size": lambda batch: format_bytes(batch.bytes),
            "time (UTC)": lambda batch: format_time(batch.modified_ms),
            "": lambda batch: Text(batch.problem or "", style="red"),
        },
    )


@render.register
def _(entries: LogEntries) -> Iterator[Shown]:
    """One line per entry."""
    for entry in entries.entries:
        if isinstance(entry, dict):
            yield Line(json.dumps(entry, ensure_ascii=False))
        elif len(entry) == 3:
            yield Line(f"{entry.batch_id:>8}  {format_time(entry.timestamp_ms)}  {entry.path}")
        else:
            yield Line(f"{entry.size:>14,}  {format_time(entry.modified_ms)}  {entry.path}")


@render.register
def _(report: VerificationReport) -> Iterator[Shown]:
    """Each finding with what to do about it."""
    yield from _findings(report.findings)
    checked = (
        f"{format_count(report.batches, 'batch', 'batches')}, {format_count(report.entries, 'entry', 'entries')}, "
        f"{format_count(report.data_files_checked, 'data file')}"
    )
    result = format_count(len(report.findings), "finding") if report.findings else "all is well"
    yield f"{report.address}: {checked}: {result}."
    if report.not_known is not None:
        yield f"  not known: {report.not_known}"


@render.register
def _(report: CompactionReport) -> Iterator[Shown]:
    """What became smaller."""
    yield f"{report.address}: {report.message}."
    if report.compact_file is not None:
        entries = f"{report.entries_before:,} → {format_count(report.entries_after, 'entry', 'entries')}"
        sizes = f"{format_bytes(report.bytes_before)} → {format_bytes(report.bytes_after)}"
        yield f"  {report.compact_file}: {entries}, {sizes}"
    if report.deleted_files:
        verb = "to delete" if report.dry_run else "deleted"
        yield f"  {verb}: {format_count(len(report.deleted_files), 'file')}, {format_bytes(report.deleted_bytes)}"
    if report.backup_file is not None:
        yield f"  backup: {report.backup_file}"
