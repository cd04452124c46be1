"""`siltstone cycle …`: what the compaction service does and did, and what operators ask of it."""

import getpass
import socket
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.cli.shell import Debug, Json, Root, Shell, examples, shell_of
from siltstone.cli.units import parse_duration_ms

if TYPE_CHECKING:
    from siltstone.service import Database

DATABASE_VARIABLE = "SILTSTONE_DATABASE"
STATUS_EXAMPLES = examples(
    "siltstone cycle status", "siltstone cycle status --database postgresql://silt@db/silt --json"
)
TRIGGER_EXAMPLES = examples("siltstone cycle trigger --wait", "siltstone cycle trigger --trim --wait --timeout 10m")
FREEZE_EXAMPLES = examples("siltstone cycle freeze", "siltstone cycle freeze --for 30m")
UNFREEZE_EXAMPLES = examples("siltstone cycle unfreeze")
DISABLE_EXAMPLES = examples("siltstone cycle disable")
ENABLE_EXAMPLES = examples("siltstone cycle enable")
HISTORY_EXAMPLES = examples("siltstone cycle history --limit 10", "siltstone cycle history --status FAILED --json")
SHOW_EXAMPLES = examples("siltstone cycle show 12", "siltstone cycle show")

DatabaseAddress = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar=DATABASE_VARIABLE,
        show_envvar=False,
        help=f"The database of the service: sqlite:///path or postgresql://host/name; else {DATABASE_VARIABLE}, else a "
        "file beside the lake.",
    ),
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="See and steer the compaction service, whether it runs or not: these commands ask its database.",
)


@app.command(epilog=STATUS_EXAMPLES)
def status(
    context: typer.Context,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the current or last cycle, its partitions, who leads, and what is asked for."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.cycles import look_at_service

    shell.output.service(look_at_service(_books(shell, database)))


@app.command(epilog=TRIGGER_EXAMPLES)
def trigger(
    context: typer.Context,
    trim: Annotated[
        bool, typer.Option("--trim", help="Afterwards forget compacted deltas that are past their retention.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the outcome; exit code 1 if it is FAILED.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer than this, e.g. 90s or 15m.")
    ] = None,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Ask for a cycle as soon as possible; while one runs, for the next one."""
    shell = shell_of(context, root, json, debug)
    if timeout is not None and not wait:
        raise typer.BadParameter("only --wait waits", param_hint="--timeout")
    timeout_seconds = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    from siltstone.cli.cycles import trigger_cycle

    output = shell.output
    with shell.progress() as report:
        triggered = trigger_cycle(
            _books(shell, database, create=True),
            trim=trim,
            wait=wait,
            timeout_seconds=timeout_seconds,
            requester=_requester(),
            warn=output.warning,
            report=report,
        )
    output.triggered(triggered)
    if wait and triggered.request.outcome != "COMPLETED":
        raise typer.Exit(1)


@app.command(epilog=FREEZE_EXAMPLES)
def freeze(
    context: typer.Context,
    time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="For how long, e.g. 30m, 2h or 1d; then cycles go on.")
    ] = "2h",
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Start no cycle for a while; one that runs goes on."""
    shell = shell_of(context, root, json, debug)
    seconds = parse_duration_ms(time, "--for") / 1000
    from siltstone.cli.cycles import freeze_cycles

    shell.output.controlled(freeze_cycles(_books(shell, database, create=True), seconds, _requester()))


@app.command(epilog=UNFREEZE_EXAMPLES)
def unfreeze(
    context: typer.Context,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Allow cycles again after a freeze."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.cycles import unfreeze_cycles

    shell.output.controlled(unfreeze_cycles(_books(shell, database)))


@app.command(epilog=DISABLE_EXAMPLES)
def disable(
    context: typer.Context,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Start no cycle until enabled again; one that runs is ended as FAILED."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.cycles import disable_cycles

    shell.output.controlled(disable_cycles(_books(shell, database, create=True), _requester()))


@app.command(epilog=ENABLE_EXAMPLES)
def enable(
    context: typer.Context,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Undo `disable`."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.cycles import enable_cycles

    shell.output.controlled(enable_cycles(_books(shell, database)))


@app.command(epilog=HISTORY_EXAMPLES)
def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100, help="The newest so many.")] = 20,
    status: Annotated[
        Literal["COMPLETED", "FAILED"] | None, typer.Option("--status", help="Only those that ended so.")
    ] = None,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List finished cycles, newest first; the newest hundred are kept."""
    shell = shell_of(context, root, json, debug)
    from siltstone.service import cycle_records

    shell.output.cycles(cycle_records(_books(shell, database), limit, status=status))


@app.command(epilog=SHOW_EXAMPLES)
def show(
    context: typer.Context,
    number: Annotated[
        int | None, typer.Argument(metavar="N", min=1, help="The cycle, else the newest.", show_default=False)
    ] = None,
    database: DatabaseAddress = None,
    root: Root = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one cycle: what came of it, and every attempt at its partitions."""
    shell = shell_of(context, root, json, debug)
    from siltstone.cli.cycles import find_cycle

    shell.output.cycle(find_cycle(_books(shell, database), number))


def _books(shell: Shell, address: str | None, *, create: bool = False) -> "Database":
    from siltstone.cli.cycles import open_books

    return open_books(shell.root, address, create=create)


def _requester() -> str:
    """Say who asks, for others to see."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
