"""`siltstone clone`, `backup`, `backups` and `restore`: a table twice, a lake under another root, and back."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.completion import complete_table, complete_tag
from siltstone.cli.options import DryRun, Shell, argument, command, option
from siltstone.cli.parts import Note, Shown, new_grid
from siltstone.text import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from siltstone.maintenance.backup import BackupReport
    from siltstone.maintenance.backup_manifest import BackupSummary

Place = Annotated[str, argument("PLACE", "Where the backups are: a folder or s3://…, not within the lake.")]
Tables = Annotated[
    list[str] | None,
    option("--table TABLE", "Only this table; can be given several times.", autocompletion=complete_table),
]

app = typer.Typer()


@command(
    app, "clone", "siltstone clone shop.orders test.orders", "siltstone clone shop.orders audit.orders --as-of year-end"
)
def clone(
    shell: Shell,
    source: Annotated[str, argument("SOURCE", "The table to clone, e.g. shop.orders.", autocompletion=complete_table)],
    name: Annotated[str, argument("NEW", "The name of the clone.")],
    as_of: Annotated[
        str | None,
        option(
            "--as-of WHEN",
            "A stream position, an ISO 8601 time or a tag; else as compacted.",
            autocompletion=complete_tag,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Create a table with the rows of another one.

    It also has the same columns and rules, and is independent of the other table from then on. On local disk its files are
    hard links, which take no space; an object store copies them on its side.
    """
    with shell.progress("Reading the lake") as progress:
        done = shell.lake.clone_table(source, name, as_of=as_of, dry_run=dry_run, progress=progress)
    rows = format_count(done.rows, "compacted row")
    waiting = f" and {format_count(done.waiting_deltas, 'delta')} to compact" if done.waiting_deltas else ""
    how = "copied by the store" if done.is_copied else "not copied"
    sentence = (
        f"{done.table}: {'would be' if done.dry_run else 'is'} a clone of {done.source} at position {done.position}: {rows}{waiting} in "
        f"{format_count(done.files, 'file')}, {format_bytes(done.bytes)}, {how}."
    )
    shell.emit(done, [sentence])


@command(app, "backup", "siltstone backup s3://safe/lake", "siltstone backup /mnt/safe --table shop.orders --check")
def backup(
    shell: Shell,
    place: Place,
    tables: Tables = None,
    check: Annotated[bool, option("--check", "Read every file of the backup again, and compare it.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Copy the lake, or some of its tables, to another place.

    Files that earlier backups have copied there are not copied again. Writers, rounds and vacuums may run meanwhile. A backup
    that was stopped continues when it is run again.
    """
    shell.when_interrupted = "The backup is not complete; the same command continues it."
    with shell.progress("Reading the lake") as progress:
        report = shell.lake.backup(place, tables=tables or None, check=check, dry_run=dry_run, progress=progress)
    number = "a new backup" if report.number is None else f"backup {report.number}"
    shell.emit(report, [f"{report.source}: {_told(report, number)} in {report.target}{_checked(report)}."])


@command(app, "restore", "siltstone restore s3://safe/lake --root ./lake", "siltstone restore /mnt/safe --backup 3")
def restore(
    shell: Shell,
    place: Place,
    number: Annotated[int | None, option("--backup N", "Which backup, else the newest.", min=1)] = None,
    tables: Tables = None,
    check: Annotated[bool, option("--check", "Read every file of the lake again, and compare it.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Restore a lake, or some of its tables, from a backup.

    The folder --root must be empty. Tables appear when all their files are there. A restore that was stopped continues when
    it is run again.
    """
    shell.when_interrupted = "The restore is not complete; the same command continues it."
    with shell.progress("Reading the lake") as progress:
        report = shell.lake.restore(
            place, number=number, tables=tables or None, check=check, dry_run=dry_run, progress=progress
        )
    shell.emit(
        report, [f"{report.target}: {_told(report, f'backup {report.number}')} of {report.source}{_checked(report)}."]
    )


def _told(report: "BackupReport", what: str) -> str:
    copied = f"{'would copy' if report.dry_run else 'copied'} {format_count(report.copied_files, 'file')}"
    return (
        f"{copied}, {format_bytes(report.copied_bytes)}; {format_count(len(report.tables), 'table')} in "
        f"{format_count(report.files, 'file')}, {format_bytes(report.bytes)}, {'would be' if report.dry_run else 'are'} {what}"
    )


def _checked(report: "BackupReport") -> str:
    return (
        f"; {format_count(report.checked_files, 'file')} compared"
        if report.checked_files and not report.dry_run
        else ""
    )


@command(app, "backups", "siltstone backups s3://safe/lake", has_root=False)
def backups(shell: Shell, place: Place) -> None:
    """List the backups in a place."""
    from siltstone.maintenance.backup_manifest import list_backups

    known = list_backups(place)
    shell.emit(known, _backups_text(place, known))


def _backups_text(place: str, known: "Sequence[BackupSummary]") -> Iterator[Shown]:
    if not known:
        yield Note(f"{place}: no backups.")
        return
    grid = new_grid(">backup", "made (UTC)", ">tables", ">files", ">bytes", "of")
    for each in known:
        sizes = str(len(each.tables)), f"{each.files:,}", format_bytes(each.bytes)
        grid.add_row(str(each.number), format_time(each.created_at), *sizes, each.source)
    yield grid
