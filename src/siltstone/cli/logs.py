"""`siltstone log …`: logs as they are stored, Spark's included."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.maintenance import findings_text
from siltstone.cli.options import DryRun, Shell, argument, command, new_group, option, parse_duration_ms
from siltstone.cli.parts import Line, Shown, grid_of, styled
from siltstone.text import format_bytes, format_count, format_number, format_time

if TYPE_CHECKING:
    from siltstone.log.inspect import Entry, LogSummary, VerificationReport
    from siltstone.log.repair import CompactionReport

app = new_group("Inspect compactible logs, Spark's included.", "siltstone log show /data/events", has_root=False)

LogPath = Annotated[
    str, argument("PATH", "A local or s3:// folder: one with a log, Spark's output directory, or a query's checkpoint.")
]


@command(app, "show", "siltstone log show /data/events", has_root=False)
def show(shell: Shell, path: LogPath) -> None:
    """Show the batches of a log, with their entries and sizes."""
    from siltstone.log import inspect as inspection

    with shell.progress(f"Reading {path}"):
        summary = inspection.show(path)
    shell.emit(summary, _summary_text(summary))


def _summary_text(log: "LogSummary") -> Iterator[Shown]:
    live = "an unknown number of" if log.live_entries is None else f"{log.live_entries:,}"
    yield styled((log.address, "bold"))
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
            "": lambda batch: styled((batch.problem or "", "red")),
        },
    )


@command(app, "files", "siltstone log files /data/events --json | jq -r .path", has_root=False)
def files(shell: Shell, path: LogPath) -> None:
    """List the live entries of a log, oldest first.

    --json prints one object per line.
    """
    from siltstone.log import inspect as inspection

    entries = inspection.files(path)
    shell.emit_lines(entries, _entries_text(entries))


def _entries_text(entries: "Iterable[Entry]") -> Iterator[Shown]:
    for entry in entries:
        if isinstance(entry, dict):
            yield Line(json.dumps(entry, ensure_ascii=False))
        elif len(entry) == 3:
            yield Line(f"{entry.batch_id:>8}  {format_time(entry.timestamp_ms)}  {entry.path}")
        else:
            yield Line(f"{entry.size:>14,}  {format_time(entry.modified_ms)}  {entry.path}")


@command(app, "verify", "siltstone log verify s3://bucket/events --no-data-files", has_root=False)
def verify(
    shell: Shell,
    path: LogPath,
    data_files: Annotated[
        bool, option("--data-files/--no-data-files", "Also check the files that a sink's log lists.")
    ] = True,
) -> None:
    """Check a log for gaps and damage.

    Exit code 1 if something is wrong.
    """
    from siltstone.log import inspect as inspection

    with shell.progress(f"Checking {path}"):
        report = inspection.verify(path, data_files=data_files)
    shell.emit(report, _verification_text(report))
    if report.findings:
        raise typer.Exit(1)


def _verification_text(report: "VerificationReport") -> Iterator[Shown]:
    yield from findings_text(report.findings)
    checked = (
        f"{format_count(report.batches, 'batch', 'batches')}, {format_count(report.entries, 'entry', 'entries')}, "
        f"{format_count(report.data_files_checked, 'data file')}"
    )
    result = format_count(len(report.findings), "finding") if report.findings else "all is well"
    yield f"{report.address}: {checked}: {result}."
    if report.not_known is not None:
        yield f"  not known: {report.not_known}"


@command(app, "compact", "siltstone log compact /data/events --retention 7d --dry-run", has_root=False)
def compact(
    shell: Shell,
    path: LogPath,
    retention: Annotated[
        str | None, option("--retention TIME", "Drop the entries of files older than this, e.g. 12h, 7d or 2w.")
    ] = None,
    backup: Annotated[bool, option("--backup/--no-backup", "Keep a copy of the file that is replaced.")] = True,
    dry_run: DryRun = False,
) -> None:
    """Shrink a log by writing a new compact file.

    Of Spark's logs, only while no query uses them; of a lake's own, at any time.
    """
    retention_ms = parse_duration_ms(retention, "--retention") if retention is not None else None
    from siltstone.log import repair

    with shell.progress(f"Compacting {path}"):
        report = repair.compact(path, retention_ms=retention_ms, dry_run=dry_run, backup=backup)
    shell.emit(report, _compaction_text(report))


def _compaction_text(report: "CompactionReport") -> Iterator[Shown]:
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
