"""`siltstone fsck`, `repair`, `vacuum` and `rollback`."""

from typing import Annotated

import typer

from siltstone.cli.shell import Debug, DryRun, Json, Root, examples, shell_of
from siltstone.cli.table_commands import PartitionOption, TableName
from siltstone.cli.units import parse_duration_ms

FSCK_EXAMPLES = examples("siltstone fsck shop.orders --deep", "siltstone fsck --json")
REPAIR_EXAMPLES = examples("siltstone repair shop.orders --dry-run", "siltstone repair shop.orders --accept-loss")
VACUUM_EXAMPLES = examples("siltstone vacuum shop.orders --retention 7d --dry-run", "siltstone vacuum")
ROLLBACK_EXAMPLES = examples(
    "siltstone rollback shop.orders --to 3 --dry-run", "siltstone rollback shop.sales --to 3 --partition region=eu"
)

AnyTable = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="The table, else all of them.", show_default=False)
]


def fsck(
    context: typer.Context,
    name: AnyTable = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every row: keys, indices, dead rows.")] = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check tables: logs, files, deletion vectors, indices; exit code 1 where something is wrong."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.maintaining import check_tables

    lake = shell.lake
    with shell.progress() as report:
        checked = check_tables(lake, name, deep=deep, report=report)
    shell.output.checked(checked, lake.root)
    if any(each.findings for each in checked):
        raise typer.Exit(1)


def repair(
    context: typer.Context,
    name: TableName,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up rows that cannot be brought back, and say how many.")
    ] = False,
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Bring back what damaged or missing files of a table held, by a new round that says so.

    Indices are built anew. Buckets come from the last round that has them whole, and the deltas since; where no round
    and not all deltas are left, their rows are lost, which has to be accepted.
    """
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.maintaining import repair_table

    lake = shell.lake
    with shell.progress() as report:
        report(f"Reading {name}")
        repaired = repair_table(lake, name, accept_loss=accept_loss, dry_run=dry_run)
    shell.output.repaired(repaired)


def vacuum(
    context: typer.Context,
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
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Forget rounds past the retention, and remove files that no readable state names.

    Times are written as 90s, 15m, 12h, 7d or 2w. The current state stays, however old.
    """
    shell = shell_of(context, root, json, debug)
    retention_ms = parse_duration_ms(retention, "--retention")
    grace_ms = parse_duration_ms(grace, "--grace")
    from siltstone.cli.maintaining import vacuum_tables

    with shell.progress() as report:
        done = vacuum_tables(
            shell.lake,
            name,
            retention_ms=retention_ms,
            grace_ms=grace_ms,
            confirm_time=confirm_time,
            dry_run=dry_run,
            report=report,
        )
    shell.output.vacuumed(done)


def rollback(
    context: typer.Context,
    name: TableName,
    to: Annotated[
        int,
        typer.Option("--to", metavar="ROUND", min=1, help="The round after which all was well.", show_default=False),
    ],
    partition: PartitionOption = None,
    dry_run: DryRun = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a table as it was after an earlier round, by a new round that says so.

    Deltas stay; those since that round are compacted again by the next `siltstone compact`.
    """
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.maintaining import roll_back_table

    shell.output.rolled_back(roll_back_table(shell.lake, name, to, partition, dry_run=dry_run))
