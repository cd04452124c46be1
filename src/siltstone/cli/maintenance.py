"""`siltstone fsck`, `repair`, `vacuum`, `rollback`, `doctor` and `log …`."""

import itertools
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siltstone.cli.options import DryRun, Partition, Shell, TableName, command, new_group, parse_duration_ms
from siltstone.cli.results import (
    Checked,
    Checks,
    DroppedVacuumed,
    LogEntries,
    PartitionRepaired,
    Repaired,
    RolledBack,
    TableChecked,
    TableVacuumed,
    Vacuumed,
)
from siltstone.cli.spark import check_spark
from siltstone.errors import CorruptionError

if TYPE_CHECKING:
    from siltstone.lake import Lake, Table


AnyTable = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="The table, else all of them.", show_default=False)
]

# What keeps a log from being read at all.
_LOG_DAMAGE = ("bad-file", "bad-line", "chain", "gap", "checkpoint")

app = typer.Typer()


@command(app, "fsck", "siltstone fsck shop.orders --deep", "siltstone fsck --json")
def fsck(
    shell: Shell,
    name: AnyTable = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every row: keys, indices, dead rows.")] = False,
) -> None:
    """Check tables: logs, files, deletion vectors, indices; exit code 1 where something is wrong."""
    lake, checked = shell.lake, []
    with shell.progress() as progress:
        for table in _tables(lake, name):
            progress(f"Checking {table.name}")
            checked.append(check_table(table, deep=deep))
    shell.emit(Checked(lake.root, checked))
    if any(table.findings for table in checked):
        raise typer.Exit(1)


def _tables(lake: "Lake", name: str | None) -> "list[Table]":
    return lake.tables() if name is None else [lake.table(name)]


def check_table(table: "Table", *, deep: bool) -> TableChecked:
    """Check a table; what cannot even be opened is a finding too."""
    from siltstone.log.inspect import Finding

    deltas = rounds = files = rows = delta_files = 0
    try:
        findings = table.fsck(deep=deep)
        table_deltas = [] if any(finding.code in _LOG_DAMAGE for finding in findings) else table.deltas()
        deltas, delta_files = len(table_deltas), sum(len(delta.manifest.entries) for delta in table_deltas)
        if not findings:
            rounds = len(table.round_reports())
            current = table.current_rounds()
            files, rows = sum(len(last.files) for last in current), sum(last.live_rows for last in current)
    except CorruptionError as error:
        findings = [Finding("state", table.name, str(error), "restore it from a copy, or rebase")]
    return TableChecked(table.name, deep, deltas, delta_files, rounds, files, rows, findings)


@command(app, "repair", "siltstone repair shop.orders --dry-run", "siltstone repair shop.orders --accept-loss")
def repair(
    shell: Shell,
    name: TableName,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up rows that cannot be brought back, and say how many.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Bring back what damaged or missing files of a table held, by a new round that says so.

    Indices are built anew. Buckets come from the last round that has them whole, and the deltas since; where no round
    and not all deltas are left, their rows are lost, which has to be accepted.
    """
    with shell.progress() as progress:
        progress(f"Reading {name}")
        repairs = shell.lake.table(name).repair(accept_loss=accept_loss, dry_run=dry_run)
    partitions = [
        PartitionRepaired(
            repair.partition_values, repair.round_id, repair.is_registered, repair.lost_rows, repair.buckets
        )
        for repair in repairs
    ]
    shell.emit(Repaired(name, dry_run, sum(repair.lost_rows for repair in repairs), partitions))


@command(app, "vacuum", "siltstone vacuum shop.orders --retention 7d --dry-run", "siltstone vacuum")
def vacuum(
    shell: Shell,
    name: AnyTable = None,
    retention: Annotated[
        str, typer.Option("--retention", metavar="TIME", help="Keep states this long after they were replaced.")
    ] = "7d",
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="TIME", help="Keep files this young: a write may be about to name them."),
    ] = "1d",
    confirm_time: Annotated[
        bool,
        typer.Option("--confirm-time", help="The time is right, though nobody wrote for over a day, or clocks differ."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Forget rounds past the retention, and remove files that no readable state names.

    Times are written as 90s, 15m, 12h, 7d or 2w. The current state stays, however old.
    """
    retention_ms = parse_duration_ms(retention, "--retention")
    grace_ms = parse_duration_ms(grace, "--grace")
    lake, vacuumed, dropped = shell.lake, [], None
    with shell.progress() as progress:
        for table in _tables(lake, name):
            progress(f"Scanning {table.name}")
            done = table.vacuum(
                retention_ms=retention_ms, orphan_grace_ms=grace_ms, confirm_time=confirm_time, dry_run=dry_run
            )
            vacuumed.append(TableVacuumed(table.name, **_fields(done)))
        if name is None:
            progress("Looking for dropped tables")
            # A table that is being created right now cannot be told from one that is gone.
            retention_ms = max(retention_ms, grace_ms)
            gone = lake.vacuum_dropped(retention_ms=retention_ms, confirm_time=confirm_time, dry_run=dry_run)
            values = _fields(gone)
            folders = {f"{key}_folders": values.pop(key) for key in ("waiting", "unclaimed")}
            dropped = DroppedVacuumed(**values, **folders)
    shell.emit(Vacuumed(dry_run, vacuumed, dropped))


def _fields(report: Any) -> dict[str, Any]:
    """Return what a report says but for `dry_run`, which is the same for all."""
    return {field.name: getattr(report, field.name) for field in fields(report) if field.name != "dry_run"}


@command(
    app,
    "rollback",
    "siltstone rollback shop.orders --to 3 --dry-run",
    "siltstone rollback shop.sales --to 3 --partition region=eu",
)
def rollback(
    shell: Shell,
    name: TableName,
    to: Annotated[
        int,
        typer.Option("--to", metavar="ROUND", min=1, help="The round after which all was well.", show_default=False),
    ],
    partition: Partition = None,
    dry_run: DryRun = False,
) -> None:
    """Make a table as it was after an earlier round, by a new round that says so.

    Deltas stay; those since that round are compacted again by the next `siltstone compact`.
    """
    from siltstone.table.report import report_round

    table = shell.lake.table(name)
    partition_values = table.round(to, partition or ()).round.partition
    current = [
        (current_round.destination_partition_locator.partition_values, current_round)
        for current_round in table.current_rounds()
    ]
    values, before = next(item for item in current if item[0] == partition_values)
    done = table.rollback(to, partition_values=values, dry_run=dry_run)
    shell.emit(
        RolledBack(
            table=name,
            dry_run=dry_run,
            round=report_round(done),
            previous_high_watermark=before.high_watermark,
            previous_live_rows=before.live_rows,
            deltas_to_compact=len(table.deltas_after(done)),
        )
    )


@command(app, "doctor", "siltstone doctor --root s3://bucket/lake --spark")
def doctor(
    shell: Shell,
    spark: Annotated[bool, typer.Option("--spark", help="Also start a local Spark and run a small job.")] = False,
) -> None:
    """Check this machine and the root; exit code 1 where something will not work.

    A few small objects are created under .doctor/ in the root, and deleted again.
    """
    from siltstone.maintenance.machine import Check, check_machine, check_root

    failed: list[Check] = []

    def checks() -> Iterator[Check]:
        for check in itertools.chain(check_machine(check_spark if spark else None), check_root(shell.root)):
            failed.extend([check] if check.state == "failed" else [])
            yield check

    shell.emit(Checks(checks()))
    if failed:
        raise typer.Exit(1)


log_app = new_group("Look into compactible logs, Spark's included.", has_root=False)

LogPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A local or s3:// folder: one with a log, Spark's output directory, or a query's checkpoint.",
        show_default=False,
    ),
]


@command(log_app, "show", "siltstone log show /data/events", has_root=False)
def show(shell: Shell, path: LogPath) -> None:
    """Show the batches of a log, with their entries and sizes."""
    from siltstone.log import inspect as inspection

    with shell.progress() as progress:
        progress(f"Reading {path}")
        summary = inspection.show(path)
    shell.emit(summary)


@command(log_app, "files", "siltstone log files /data/events --json | jq -r .path", has_root=False)
def files(shell: Shell, path: LogPath) -> None:
    """List the entries that count now, oldest first; with --json one object per line."""
    from siltstone.log import inspect as inspection

    shell.emit(LogEntries(inspection.files(path)))


@command(log_app, "verify", "siltstone log verify s3://bucket/events --no-data-files", has_root=False)
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


@command(log_app, "compact", "siltstone log compact /data/events --retention 7d --dry-run", has_root=False)
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
    from siltstone.log import repair

    with shell.progress() as progress:
        progress(f"Compacting {path}")
        report = repair.compact(path, retention_ms=retention_ms, dry_run=dry_run, backup=backup)
    shell.emit(report)
