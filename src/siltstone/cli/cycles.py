"""`siltstone cycle …`: what the compaction service does and did, and what operators ask of it."""

import getpass
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.cli.options import Shell, command, new_group, parse_duration_ms
from siltstone.cli.results import Controlled, CycleList, OneCycle, ServiceReport, Triggered
from siltstone.errors import NotFoundError

if TYPE_CHECKING:
    from siltstone.service import Database
    from siltstone.service.results import TriggerRequest

DATABASE_VARIABLE = "SILTSTONE_DATABASE"

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

app = new_group("See and steer the compaction service, whether it runs or not: these commands ask its database.")


@command(app, "status", "siltstone cycle status", "siltstone cycle status --database postgresql://silt@db/silt --json")
def status(shell: Shell, database: DatabaseAddress = None) -> None:
    """Show the current or last cycle, its partitions, who leads, and what is asked for."""
    from siltstone.service import list_nodes, service_status

    opened = _database(shell, database)
    # When a cycle is due depends on the interval of whoever leads, which is not known here.
    shell.emit(ServiceReport(opened.address, service_status(opened), list_nodes(opened)))


@command(app, "trigger", "siltstone cycle trigger --wait", "siltstone cycle trigger --trim --wait --timeout 10m")
def trigger(
    shell: Shell,
    trim: Annotated[
        bool, typer.Option("--trim", help="Afterwards forget compacted deltas that are past their retention.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the outcome; exit code 1 if it is FAILED.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Wait no longer than this, e.g. 90s or 15m.")
    ] = None,
    database: DatabaseAddress = None,
) -> None:
    """Ask for a cycle as soon as possible; while one runs, for the next one."""
    if timeout is not None and not wait:
        raise typer.BadParameter("only --wait waits", param_hint="--timeout")
    timeout_seconds = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    from siltstone.service import obstacle_to_cycles, service_status, trigger_cycle, wait_for_request

    opened = _database(shell, database, create=True)
    request = trigger_cycle(opened, trim=trim, requester=_requester())
    obstacle = obstacle_to_cycles(service_status(opened))
    if obstacle is not None:
        shell.output.warning(obstacle)
    if wait:
        with shell.progress() as progress:
            request = wait_for_request(
                opened,
                request.request_id,
                timeout_seconds=timeout_seconds,
                on_change=lambda change: progress(_format_state(change)),
            )
    shell.emit(Triggered(request, waited=wait))
    if wait and request.outcome != "COMPLETED":
        raise typer.Exit(1)


def _format_state(request: "TriggerRequest") -> str:
    if request.state == "PENDING":
        return "waiting for the cycle to begin"
    return f"cycle {request.cycle} is {'trimming' if request.state == 'TRIMMING' else 'running'}"


@command(app, "freeze", "siltstone cycle freeze", "siltstone cycle freeze --for 30m")
def freeze(
    shell: Shell,
    time: Annotated[
        str, typer.Option("--for", metavar="TIME", help="For how long, e.g. 30m, 2h or 1d; then cycles go on.")
    ] = "2h",
    database: DatabaseAddress = None,
) -> None:
    """Start no cycle for a while; one that runs goes on."""
    seconds = parse_duration_ms(time, "--for") / 1000
    from siltstone import service

    control = service.freeze(_database(shell, database, create=True), seconds=seconds, requester=_requester())
    shell.emit(Controlled("frozen", True, control))


@command(app, "unfreeze", "siltstone cycle unfreeze")
def unfreeze(shell: Shell, database: DatabaseAddress = None) -> None:
    """Allow cycles again after a freeze."""
    from siltstone import service

    shell.emit(Controlled("unfrozen", service.unfreeze(_database(shell, database))))


@command(app, "disable", "siltstone cycle disable")
def disable(shell: Shell, database: DatabaseAddress = None) -> None:
    """Start no cycle until enabled again; one that runs is ended as FAILED."""
    from siltstone import service

    control = service.disable(_database(shell, database, create=True), requester=_requester())
    shell.emit(Controlled("disabled", True, control))


@command(app, "enable", "siltstone cycle enable")
def enable(shell: Shell, database: DatabaseAddress = None) -> None:
    """Undo `disable`."""
    from siltstone import service

    shell.emit(Controlled("enabled", service.enable(_database(shell, database))))


@command(app, "history", "siltstone cycle history --limit 10", "siltstone cycle history --status FAILED --json")
def history(
    shell: Shell,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=100, help="At most N, newest first.")] = 20,
    status: Annotated[
        Literal["COMPLETED", "FAILED"] | None, typer.Option("--status", help="Only cycles with this status.")
    ] = None,
    database: DatabaseAddress = None,
) -> None:
    """List finished cycles, newest first; the newest hundred are kept."""
    from siltstone.service import cycle_records

    shell.emit(CycleList(cycle_records(_database(shell, database), limit, status=status)))


@command(app, "show", "siltstone cycle show 12", "siltstone cycle show")
def show(
    shell: Shell,
    number: Annotated[
        int | None, typer.Argument(metavar="N", min=1, help="The cycle, else the newest.", show_default=False)
    ] = None,
    database: DatabaseAddress = None,
) -> None:
    """Show one cycle: what came of it, and every attempt at its partitions."""
    from siltstone.service import cycle_details, service_status

    opened = _database(shell, database)
    number = service_status(opened).cycle_count if number is None else number
    if number == 0:
        raise NotFoundError(f"{opened.address}: no cycle has run yet; `siltstone cycle trigger` asks for one")
    shell.emit(OneCycle(cycle_details(opened, number)))


def _database(shell: Shell, address: str | None, *, create: bool = False) -> "Database":
    """Open the service's database; only `create` makes missing tables.

    Raises: NotFoundError, also for a lake that is not there and whose database would be new; InvalidInputError.
    """
    from siltstone.service import default_address, open_database

    chosen = address or default_address(shell.root)
    is_new = not Path(chosen.removeprefix("sqlite:///")).exists()
    if create and address is None and is_new and not Path(shell.root).is_dir():
        raise NotFoundError(f"{shell.root}: no lake found; name another with --root")
    return open_database(chosen, create=create)


def _requester() -> str:
    """Return who asks, for others to see."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
