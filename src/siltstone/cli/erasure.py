"""`siltstone erase`: a key removed from all that there is of a table."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.options import DryRun, Shell, TableName, command, option
from siltstone.cli.parts import Shown, styled
from siltstone.cli.rows import KeyArgument, NullOption, key_of
from siltstone.text import format_bytes, format_count, format_pairs

if TYPE_CHECKING:
    from siltstone.maintenance.erasure import ErasureReport

app = typer.Typer()


@command(
    app,
    "erase",
    "siltstone erase shop.customers customer_id=17 --dry-run",
    "siltstone erase shop.customers customer_id=17 --yes --force",
)
def erase(
    shell: Shell,
    name: TableName,
    key: KeyArgument = None,
    null: NullOption = None,
    force: Annotated[bool, option("--force", "Erase it even if tags, holds or consumers keep it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Erase a primary key from all files of a table.

    It is removed from deltas, rounds and published versions, and a second search proves that nothing of it is left. Rounds
    that hold it are forgotten, and the table is published again. Copies elsewhere, such as backups, are not changed.
    """
    pairs = key_of(key, null)
    from siltstone.table.explain import parse_key

    table = shell.lake.table(name)
    values = parse_key(table.version, pairs)
    if not dry_run and not yes:
        if shell.json or not sys.stdin.isatty():
            raise typer.BadParameter(
                f"erasing from {name} needs --yes where there is no terminal to ask on", param_hint="--yes"
            )
        typer.confirm(f"Erase {format_pairs(pairs)} from {name}, for good?", abort=True, err=True)
    shell.when_interrupted = "" if dry_run else "The key may not be erased everywhere; run it again to complete that."
    with shell.progress(f"Searching {name}") as progress:
        report = table.erase(values, force=force, dry_run=dry_run, progress=progress)
    shell.emit(report, _erased_text(report, format_pairs(pairs)))


def _erased_text(report: "ErasureReport", key: str) -> Iterator[Shown]:
    found = f"{format_count(report.found_rows, 'row')} in {format_count(report.found_files, 'file')}"
    yield (
        f"{report.table}: {key} was found in {found}."
        if report.found_files
        else f"{report.table}: {key} was not found."
    )
    if report.rewritten_deltas or report.rounds:
        rounds = f" by round {', '.join(map(str, report.rounds))}" if report.rounds else ""
        yield (
            f"  rewritten: {format_count(report.rewritten_deltas, 'file')} of deltas, "
            f"{format_count(report.rewritten_buckets, 'bucket')}{rounds}"
        )
    if report.removed_files:
        gone = f"{format_count(report.removed_files, 'file')}, {format_bytes(report.removed_bytes)}"
        yield f"  removed: {gone}; {format_count(report.forgotten_rounds, 'round')} forgotten"
    yield from (f"  removed: tag {name}" for name in report.removed_tags)
    yield from (f"  published again: {each}" for each in report.published_again)
    yield from (f"  in the way: {obstacle}" for obstacle in report.obstacles if report.dry_run)
    yield from (f"  {path}: deletes by a part of the key, and so stays" for path in report.partial_files)
    yield from (f"  {path}: is a log with this text, by chance or not" for path in report.mentioning_logs)
    yield from (f"  {folder}: reads these deltas, and may have rows of its own" for folder in report.followers)
    if not report.dry_run:
        searched = f"{format_count(report.searched_files, 'file')}, {format_bytes(report.searched_bytes)}"
        yield styled(("  proof: ", "bold"), f"{searched} searched, and the key is in none of them")
