"""Checks, repairs, vacuums and rollbacks as text: what a command found out becomes lines, one after another."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from siltstone.cli.results_maintenance import BucketRepaired, Repaired, RolledBack, TableChecked, Vacuumed
from siltstone.cli.text_parts import Shown
from siltstone.text import format_bytes, format_count, format_partition


def checked_text(checked: Sequence[TableChecked], root: str) -> Iterator[Shown]:
    """Say what is wrong with tables, and what to do about it."""
    if not checked:
        yield f"No tables in {root}."
    for table in checked:
        for finding in table.findings:
            yield Text.assemble((finding.code, "bold red"), f"  {finding.file}")
            yield f"  {finding.message}"
            yield f"  → {finding.action}"
        yield f"{table.table}: {_looked_at(table)}"


def _looked_at(table: TableChecked) -> str:
    if table.findings:
        return f"{format_count(len(table.findings), 'finding')}."
    return (
        f"{format_count(table.deltas, 'delta')} in {format_count(table.delta_files, 'file')}, "
        f"{format_count(table.rounds, 'round')}, {format_count(table.live_rows, 'row')} in "
        f"{format_count(table.compacted_files, 'file')}: all is well{'' if table.deep else ' (--deep reads the rows, too)'}."
    )


def repaired_text(repaired: Repaired) -> Iterator[Shown]:
    """Say what was brought back, from where, and what was lost."""
    for each in repaired.partitions:
        partition = f", partition {format_partition(each.partition)}" if each.partition else ""
        verb = "would be" if repaired.dry_run else "was"
        if each.is_registered:
            yield f"{repaired.table}{partition}: {verb} registered, so that its rows are read."
            continue
        yield f"{repaired.table}{partition}: {verb} repaired by round {each.round_id}."
        for bucket in each.buckets:
            yield f"  hashes {bucket.first_hash} to {bucket.last_hash}: {_cure(bucket, is_dry=repaired.dry_run)}"
            yield from (f"    {file}" for file in bucket.damaged)


def _cure(bucket: BucketRepaired, *, is_dry: bool) -> str:
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


def vacuumed_text(vacuumed: Vacuumed) -> Iterator[Shown]:
    """Say what was removed; a dry run names each file."""
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
    doubts: dict[str | None, list[str]] = {}
    for table in vacuumed.tables:
        doubts.setdefault(table.unsure_time, []).append(table.table)
    if vacuumed.dropped is not None:
        doubts.setdefault(vacuumed.dropped.unsure_time, []).append("Dropped tables")
    doubts.pop(None, None)
    yield from (f"{names[0] if len(names) == 1 else 'All of these'}: {doubt}." for doubt, names in doubts.items())


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


def rolled_back_text(rolled_back: RolledBack) -> Iterator[Shown]:
    """Say what is current again."""
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
