"""`siltstone log …`"""

from typing import Annotated

import typer

from siltstone.cli.shell import Debug, DryRun, Json, examples, shell_of
from siltstone.cli.units import parse_duration_ms

app = typer.Typer(no_args_is_help=True, help="Look into compactible logs, Spark's included.")

LogPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A local or s3:// folder: one with a log, Spark's output directory, or a query's checkpoint.",
        show_default=False,
    ),
]


@app.callback()
def log(context: typer.Context, json: Json = False, debug: Debug = False) -> None:
    """Look into compactible logs, Spark's included."""
    shell_of(context, None, json, debug)


@app.command("show", epilog=examples("siltstone log show /data/events"))
def show(context: typer.Context, path: LogPath, json: Json = False, debug: Debug = False) -> None:
    """Show the batches of a log, with their entries and sizes."""
    shell = shell_of(context, None, json, debug)
    from siltstone.log import inspect as inspection

    with shell.progress() as report:
        report(f"Reading {path}")
        summary = inspection.show(path)
    shell.output.log(summary)


@app.command("files", epilog=examples("siltstone log files /data/events --json | jq -r .path"))
def files(context: typer.Context, path: LogPath, json: Json = False, debug: Debug = False) -> None:
    """List the entries that count now, oldest first; with --json one object per line."""
    shell = shell_of(context, None, json, debug)
    from siltstone.log import inspect as inspection

    shell.output.log_entries(inspection.files(path))


@app.command("verify", epilog=examples("siltstone log verify s3://bucket/events --no-data-files"))
def verify(
    context: typer.Context,
    path: LogPath,
    data_files: Annotated[
        bool, typer.Option("--data-files/--no-data-files", help="Also check the files that a sink's log lists.")
    ] = True,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a log for gaps and damage; exit code 1 where something is wrong."""
    shell = shell_of(context, None, json, debug)
    from siltstone.log import inspect as inspection

    with shell.progress() as report:
        report(f"Checking {path}")
        found = inspection.verify(path, data_files=data_files)
    shell.output.log_verified(found)
    if found.findings:
        raise typer.Exit(1)


@app.command("compact", epilog=examples("siltstone log compact /data/events --retention 7d --dry-run"))
def compact(
    context: typer.Context,
    path: LogPath,
    retention: Annotated[
        str | None,
        typer.Option("--retention", metavar="TIME", help="Drop entries of older files, e.g. 90s, 15m, 12h, 7d, 2w."),
    ] = None,
    backup: Annotated[
        bool, typer.Option("--backup/--no-backup", help="Keep a copy of the file that is replaced.")
    ] = True,
    dry_run: DryRun = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a log of Spark's small again, while no query uses it; sum up a lake's own log at any time."""
    shell = shell_of(context, None, json, debug)
    retention_ms = parse_duration_ms(retention, "--retention") if retention is not None else None
    from siltstone.log import inspect as inspection

    with shell.progress() as report:
        report(f"Compacting {path}")
        done = inspection.compact(path, retention_ms=retention_ms, dry_run=dry_run, backup=backup)
    shell.output.log_compacted(done)
