"""What `siltstone fsck`, `repair`, `vacuum` and `rollback` do, for one table or all."""

from collections.abc import Sequence

from siltstone.cli.hints import find_table
from siltstone.cli.results_maintenance import (
    BucketRepaired,
    DroppedVacuumed,
    PartitionRepaired,
    Problem,
    Repaired,
    RolledBack,
    TableChecked,
    TableVacuumed,
    Vacuumed,
)
from siltstone.cli.rounds import find_round, list_table_rounds, round_line
from siltstone.cli.shell import Report
from siltstone.errors import CorruptionError
from siltstone.lake import Lake, Table
from siltstone.model import DEFAULT_STREAM, PartitionLocator
from siltstone.storage import object_store as storage
from siltstone.table.completion import current_completion
from siltstone.table.followers import followed_partition


def _tables(lake: Lake, name: str | None) -> list[Table]:
    return lake.tables() if name is None else [find_table(lake, name)]


# What keeps a log from being read at all.
_LOG_DAMAGE = ("bad-file", "bad-line", "chain", "gap", "checkpoint")


def check_tables(lake: Lake, name: str | None, *, deep: bool, report: Report) -> list[TableChecked]:
    """Check one table or all; what cannot even be opened is a finding too. Raises: NotFoundError."""
    checked = []
    for table in _tables(lake, name):
        report(f"Checking {table.name}")
        checked.append(_check_table(table, deep=deep))
    return checked


def _check_table(table: Table, *, deep: bool) -> TableChecked:
    deltas = rounds = files = rows = delta_files = 0
    try:
        findings = [Problem(each.code, each.file, each.message, each.action) for each in table.fsck(deep=deep)]
        known = [] if any(each.code in _LOG_DAMAGE for each in findings) else table.deltas()
        deltas, delta_files = len(known), sum(len(delta.manifest.entries) for delta in known)
        if not findings:
            rounds = len(list_table_rounds(table.lake, table.name))
            current = table.current_rounds()
            files, rows = sum(len(each.files) for each in current), sum(each.live_rows for each in current)
    except CorruptionError as error:
        findings = [Problem("state", table.name, str(error), "restore it from a copy, or rebase")]
    return TableChecked(table.name, deep, deltas, delta_files, rounds, files, rows, findings)


def repair_table(lake: Lake, name: str, *, accept_loss: bool, dry_run: bool) -> Repaired:
    """Bring back what damaged files of a table held. Raises: NotFoundError, InvalidInputError, CorruptionError."""
    done = find_table(lake, name).repair(accept_loss=accept_loss, dry_run=dry_run)
    partitions = [
        PartitionRepaired(
            partition=each.partition_values,
            round_id=each.round_id,
            is_registered=each.is_registered,
            lost_rows=each.lost_rows,
            buckets=[BucketRepaired(**vars(bucket)) for bucket in each.buckets],
        )
        for each in done
    ]
    return Repaired(name, dry_run, sum(each.lost_rows for each in done), partitions)


def vacuum_tables(
    lake: Lake,
    name: str | None,
    *,
    retention_ms: int,
    grace_ms: int,
    confirm_time: bool,
    dry_run: bool,
    report: Report,
) -> Vacuumed:
    """Vacuum one table, or all and those that were dropped.

    Raises: NotFoundError; CorruptionError, then nothing of that table is removed.
    """
    done = []
    for table in _tables(lake, name):
        report(f"Looking through {table.name}")
        found = table.vacuum(
            retention_ms=retention_ms, orphan_grace_ms=grace_ms, confirm_time=confirm_time, dry_run=dry_run
        )
        done.append(
            TableVacuumed(
                table=table.name,
                expired_rounds=found.expired_rounds,
                removed_files=found.removed_files,
                removed_bytes=found.removed_bytes,
                kept_files=found.kept_files,
                skipped_links=found.skipped_links,
                unsure_time=found.unsure_time,
            )
        )
    dropped = None
    if name is None:
        report("Looking for dropped tables")
        # A table that is being created right now looks like one that is gone.
        gone = lake.vacuum_dropped(retention_ms=max(retention_ms, grace_ms), confirm_time=confirm_time, dry_run=dry_run)
        dropped = DroppedVacuumed(
            gone.removed_folders,
            gone.removed_files,
            gone.removed_bytes,
            gone.waiting,
            gone.skipped_links,
            gone.unclaimed,
            gone.unsure_time,
        )
    return Vacuumed(dry_run, done, dropped)


def roll_back_table(
    lake: Lake, name: str, round_id: int, partition: Sequence[str] | None, *, dry_run: bool
) -> RolledBack:
    """Make the state after a round of a partition current again. Raises: NotFoundError, InvalidInputError."""
    destination = find_round(lake, name, round_id, partition)
    before = current_completion(destination)
    assert before is not None
    values = destination.locator.partition_values
    done = find_table(lake, name).rollback(round_id, partition_values=values, dry_run=dry_run)
    own = PartitionLocator(**{**destination.locator, "stream": DEFAULT_STREAM})
    source = followed_partition(own, done, root=lake.root)
    first = done.high_watermark + 1
    return RolledBack(
        table=name,
        dry_run=dry_run,
        round=round_line(done),
        previous_high_watermark=before.high_watermark,
        previous_live_rows=before.live_rows,
        deltas_to_compact=len(storage.list_partition_deltas(source, first_stream_position=first, root=lake.root)),
    )
