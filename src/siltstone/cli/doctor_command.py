"""`siltstone doctor`"""

from typing import Annotated

import typer

from siltstone.cli.shell import Debug, Json, Root, examples, shell_of

EXAMPLES = examples("siltstone doctor --root s3://bucket/lake --spark")


def doctor(
    context: typer.Context,
    spark: Annotated[bool, typer.Option("--spark", help="Also start a local Spark and run a small job.")] = False,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check this machine and the root; exit code 1 where something will not work.

    A few small objects are created under .doctor/ in the root, and deleted again.
    """
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.checks import check_all

    if not shell.output.checks(check_all(shell.root, with_spark=spark)):
        raise typer.Exit(1)
