"""`siltstone fsck`, `repair`, `vacuum` and `rollback`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siltstone.cli.completion import complete_table
from siltstone.cli.options import DryRun, Partition, Shell, TableName, argument, command, option, parse_duration_ms
from siltstone.cli.parts import Shown, styled
from siltstone.errors import CorruptionError
from siltstone.text import format_bytes, format_count, format_partition

if TYPE_CHECKING:
    from siltstone.lake import Lake, Table
    from siltstone.log.inspect import Finding
    from siltstone.maintenance.damage import BucketRepair
    from siltstone.maintenance.recovery import PartitionRepair
    from siltstone.maintenance.vacuum import DroppedReport, VacuumReport

AnyTable = Annotated[str | None, argument("TABLE", "The table, else all of them.", autocompletion=complete_table)]

# What keeps a log from being read at all.
_LOG_DAMAGE = ("bad-file", "bad-line", "chain", "gap", "checkpoint")

app = typer.Typer()


@dataclass(frozen=True)
class TableChecked:
    """What was checked in a table, and the findings; none means sound."""

    table: str
    deep: bool
    deltas: int
    delta_files: int
    rounds: int
    compacted_files: int
    live_rows: int
    findings: "Sequence[Finding]"


@command(app, "fsck", "siltstone fsck shop.orders --deep", "siltstone fsck --json")
def fsck(
    shell: Shell,
    name: AnyTable = None,
    deep: Annotated[bool, option("--deep", "Also read every row: keys, indices, dead rows.")] = False,
) -> None:
    """Check the logs, files and indices of tables for damage.

    Exit code 1 if something is wrong.
    """
    lake, checked = shell.lake, []
    with shell.progress("Looking for tables") as progress:
        for table in _tables(lake, name):
            progress(f"Checking {table.name}")
            checked.append(check_table(table, deep=deep))
    shell.emit(checked, _checked_text(lake.root, checked))
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
            files, rows = sum(last.file_count for last in current), sum(last.live_rows for last in current)
    except CorruptionError as error:
        findings = [Finding("state", table.name, str(error), "restore it from a copy, or rebase")]
    return TableChecked(table.name, deep, deltas, delta_files, rounds, files, rows, findings)


def _checked_text(root: str, checked: Sequence[TableChecked]) -> Iterator[Shown]:
    if not checked:
        yield f"No tables in {root}."
    for table in checked:
        yield from findings_text(table.findings)
        if table.findings:
            yield f"{table.table}: {format_count(len(table.findings), 'finding')}."
            continue
        yield (
            f"{table.table}: {format_count(table.deltas, 'delta')} in {format_count(table.delta_files, 'file')}, "
            f"{format_count(table.rounds, 'round')}, {format_count(table.live_rows, 'row')} in "
            f"{format_count(table.compacted_files, 'file')}: all is well"
            f"{'' if table.deep else ' (--deep reads the rows, too)'}."
        )


def findings_text(findings: "Sequence[Finding]") -> Iterator[Shown]:
    """Yield each finding, and what to do about it."""
    for finding in findings:
        yield styled((finding.code, "bold red"), f"  {finding.file}")
        yield f"  {finding.message}"
        yield f"  → {finding.action}"


@command(app, "repair", "siltstone repair shop.orders --dry-run", "siltstone repair shop.orders --accept-loss")
def repair(
    shell: Shell,
    name: TableName,
    accept_loss: Annotated[
        bool, option("--accept-loss", "Give up rows that cannot be restored, and report how many.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Restore what damaged or missing files of a table held.

    The repair is a round of its own. Indices are rebuilt. Buckets are restored from the last round in which they are intact
    and the deltas since; where neither a round nor all deltas are left, rows are lost, which --accept-loss has to allow.
    """
    shell.when_interrupted = f"Each partition is repaired by one commit; run it again to repair the rest of {name}."
    with shell.progress(f"Reading {name}"):
        repairs = shell.lake.table(name).repair(accept_loss=accept_loss, dry_run=dry_run)
    partitions = [
        {
            "partition": repair.partition_values,
            "round_id": repair.round_id,
            "is_registered": repair.is_registered,
            "lost_rows": repair.lost_rows,
            "buckets": repair.buckets,
        }
        for repair in repairs
    ]
    lost_rows = sum(repair.lost_rows for repair in repairs)
    result = {"table": name, "dry_run": dry_run, "lost_rows": lost_rows, "partitions": partitions}
    shell.emit(result, _repairs_text(name, repairs, dry_run=dry_run))


def _repairs_text(table: str, repairs: "Sequence[PartitionRepair]", *, dry_run: bool) -> Iterator[Shown]:
    for repair in repairs:
        partition = f", partition {format_partition(repair.partition_values)}" if repair.partition_values else ""
        verb = "would be" if dry_run else "was"
        if repair.is_registered:
            yield f"{table}{partition}: {verb} registered, so that its rows are read."
            continue
        yield f"{table}{partition}: {verb} repaired by round {repair.round_id}."
        for bucket in repair.buckets:
            yield f"  hashes {bucket.first_hash} to {bucket.last_hash}: {_cure(bucket, is_dry=dry_run)}"
            yield from (f"    {file}" for file in bucket.damaged)


def _cure(bucket: "BucketRepair", *, is_dry: bool) -> str:
    deltas = format_count(bucket.deltas, "delta")
    if bucket.cure == "index":
        return "the index is rebuilt, no row is lost"
    if bucket.cure == "round":
        return f"from round {bucket.from_round} and the {deltas} since, no row is lost"
    if bucket.cure == "deltas":
        return f"from all {deltas}, no row is lost"
    lost = format_count(bucket.lost_rows, "row")
    if bucket.lost_tombstones:
        lost += f" and {format_count(bucket.lost_tombstones, 'tombstone')}"
    return f"up to {lost} would be lost, with --accept-loss" if is_dry else f"{lost} lost"


@command(app, "vacuum", "siltstone vacuum shop.orders --retention 7d --dry-run", "siltstone vacuum")
def vacuum(
    shell: Shell,
    name: AnyTable = None,
    retention: Annotated[str, option("--retention TIME", "Keep states this long after they were replaced.")] = "7d",
    grace: Annotated[
        str, option("--grace TIME", "Keep files younger than this: a write may be about to use them.")
    ] = "1d",
    confirm_time: Annotated[
        bool,
        option(
            "--confirm-time",
            "Confirm that the clock is right, though nothing was written for over a day, or clocks differ.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Remove expired rounds, and files that nothing refers to.

    Times are written as 90s, 15m, 12h, 7d or 2w. The current state stays, however old it is.
    """
    retention_ms = parse_duration_ms(retention, "--retention")
    grace_ms = parse_duration_ms(grace, "--grace")
    lake, dropped = shell.lake, None
    reports: dict[str, VacuumReport] = {}
    shell.when_interrupted = "Only files that nothing refers to were removed; run it again to remove the rest."
    with shell.progress("Looking for tables") as progress:
        for table in _tables(lake, name):
            progress(f"Scanning {table.name}")
            reports[table.name] = table.vacuum(
                retention_ms=retention_ms, orphan_grace_ms=grace_ms, confirm_time=confirm_time, dry_run=dry_run
            )
        if name is None:
            progress("Looking for dropped tables")
            # A table that is being created right now cannot be told from one that is gone.
            retention_ms = max(retention_ms, grace_ms)
            dropped = lake.vacuum_dropped(retention_ms=retention_ms, confirm_time=confirm_time, dry_run=dry_run)
    result = {
        "dry_run": dry_run,
        "tables": [{"table": table, **_fields(report)} for table, report in reports.items()],
        "dropped": None if dropped is None else _fields(dropped),
    }
    shell.emit(result, _vacuum_text(reports, dropped, dry_run=dry_run))


def _fields(report: "VacuumReport | DroppedReport") -> dict[str, Any]:
    """Return what a report says but for `dry_run`, which is the same for all."""
    names = {"waiting": "waiting_folders", "unclaimed": "unclaimed_folders"}
    values = {field.name: getattr(report, field.name) for field in fields(report) if field.name != "dry_run"}
    return {names.get(name, name): value for name, value in values.items()}


def _vacuum_text(
    reports: "Mapping[str, VacuumReport]", dropped: "DroppedReport | None", *, dry_run: bool
) -> Iterator[Shown]:
    would = "would remove" if dry_run else "removed"
    # Which tables are not vacuumed for the same reason.
    unsure: dict[str, list[str]] = {}
    for table, report in reports.items():
        if dry_run:
            yield from report.removed_files
        what = f"{format_count(len(report.removed_files), 'file')}, {format_bytes(report.removed_bytes)}"
        rounds = format_count(len(report.expired_rounds), "round")
        forget = f"; {'would forget' if dry_run else 'forgot'} {rounds}" if report.expired_rounds else ""
        yield f"{table}: {would} {what}{forget}; {format_count(report.kept_files, 'file')} stay."
        yield from (f"{link}: is a symbolic link; left as it is." for link in report.skipped_links)
        if report.unsure_time is not None:
            unsure.setdefault(report.unsure_time, []).append(table)
    if dropped is not None:
        yield from _dropped_text(dropped, would, dry_run=dry_run)
        if dropped.unsure_time is not None:
            unsure.setdefault(dropped.unsure_time, []).append("Dropped tables")
    yield from (f"{names[0] if len(names) == 1 else 'All of these'}: {time}." for time, names in unsure.items())


def _dropped_text(dropped: "DroppedReport", would: str, *, dry_run: bool) -> Iterator[Shown]:
    if dry_run:
        yield from (f"{folder}/" for folder in dropped.removed_folders)
    waiting = len(dropped.waiting)
    later = f"; {format_count(waiting, 'folder')} within the retention" if waiting else ""
    what = f"{format_count(dropped.removed_files, 'file')}, {format_bytes(dropped.removed_bytes)}"
    yield f"Dropped tables: {would} {what}{later}."
    yield from (f"{link}: is a symbolic link; left as it is." for link in dropped.skipped_links)
    for folder in dropped.unclaimed:
        yield f"{folder}: has a log, but belongs to no table, current or dropped; left as it is. Delete it by hand."


@command(
    app,
    "rollback",
    "siltstone rollback shop.orders --to 3 --dry-run",
    "siltstone rollback shop.sales --to 3 --partition region=eu",
)
def rollback(
    shell: Shell,
    name: TableName,
    to: Annotated[int, option("--to ROUND", "The last good round.", min=1, show_default=False)],
    partition: Partition = None,
    dry_run: DryRun = False,
) -> None:
    """Return a table to its state after an earlier round.

    This is a round of its own. Deltas stay; the next `siltstone compact` compacts those since that round again.
    """
    from siltstone.table.report import report_round

    table = shell.lake.table(name)
    partition_values = table.round(to, partition or ()).round.partition
    before = next(
        current
        for current in table.current_rounds()
        if current.destination_partition_locator.partition_values == partition_values
    )
    values = before.destination_partition_locator.partition_values
    done = table.rollback(to, partition_values=values, dry_run=dry_run)
    report, deltas = report_round(done), len(table.deltas_after(done))
    result = {
        "table": name,
        "dry_run": dry_run,
        "round": report,
        "previous_high_watermark": before.high_watermark,
        "previous_live_rows": before.live_rows,
        "deltas_to_compact": deltas,
    }
    where = f"{name}, partition {format_partition(report.partition)}" if report.partition else name
    verb = "would return" if dry_run else "returned"
    sentence = (
        f"{where}: {verb} to its state after round {report.rolled_back_to}, by round {report.round_id}: position "
        f"{before.high_watermark} → {report.high_watermark}, rows {before.live_rows:,} → {report.live_rows:,}."
    )
    again = f"{format_count(deltas, 'delta')} to compact again: `siltstone compact {name}`."
    shell.emit(result, [sentence, again] if deltas else [sentence])
