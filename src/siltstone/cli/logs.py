"""`siltstone log …`"""

from typing import Annotated

import typer

from siltstone.cli.options import DryRun, Shell, command, new_group, parse_duration_ms
from siltstone.cli.results import LogEntries

app = new_group("Look into compactible logs, Spark's included.", has_root=False)

LogPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A local or s3:// folder: one with a log, Spark's output directory, or a query's checkpoint.",
        show_default=False,
    ),
]


@command(app, "show", "siltstone log show /data/events", has_root=False)
def show(shell: Shell, path: LogPath) -> None:
    """Show the batches of a log, with their entries and sizes."""
    from siltstone.log import inspect as inspection

    with shell.progress() as progress:
        progress(f"Reading {path}")
        summary = inspection.show(path)
    shell.emit(summary)


@command(app, "files", "siltstone log files /data/events --json | jq -r .path", has_root=False)
def files(shell: Shell, path: LogPath) -> None:
    """List the entries that count now, oldest first; with --json one object per line."""
    from siltstone.log import inspect as inspection

    shell.emit(LogEntries(inspection.files(path)))


@command(app, "verify", "siltstone log verify s3://bucket/events --no-data-files", has_root=False)
def verify(
    shell: Shell,
    path: LogPath,
    data_files: Annotated[
        bool, typer.Option("--data-files/--no-data-files", help="Also check the files that a sink's log lists.")
    ] = True,
) -> None:
    """Check a log for gaps and damage; exit code 1 where something is wrong."""
    from siltstone.log import inspect as inspection

    with shell.progress() as progress:
        progress(f"Checking {path}")
        report = inspection.verify(path, data_files=data_files)
    shell.emit(report)
    if report.findings:
        raise typer.Exit(1)


@command(app, "compact", "siltstone log compact /data/events --retention 7d --dry-run", has_root=False)
def compact(
    shell: Shell,
    path: LogPath,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="TIME", help="Drop entries of older files, e.g. 90s, 15m, 12h, 7d, 2w."),
    ] = None,
    backup: Annotated[
        bool, typer.Option("--backup/--no-backup", help="Keep a copy of the file that is replaced.")
    ] = True,
    dry_run: DryRun = False,
) -> None:
    """Make a log of Spark's small again, while no query uses it; sum up a lake's own log at any time."""
    retention_ms = parse_duration_ms(retention, "--retention") if retention is not None else None
    from siltstone.log import inspect as inspection

    with shell.progress() as progress:
        progress(f"Compacting {path}")
        report = inspection.compact(path, retention_ms=retention_ms, dry_run=dry_run, backup=backup)
    shell.emit(report)
