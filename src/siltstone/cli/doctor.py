"""`siltstone doctor`"""

import itertools
from collections.abc import Iterator
from typing import Annotated

import typer

from siltstone.cli.options import Shell, command
from siltstone.cli.results import Checks
from siltstone.cli.spark import check_spark

app = typer.Typer()


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
