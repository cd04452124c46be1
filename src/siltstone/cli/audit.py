"""`siltstone audit`: who changed what in the lake, and who asked what of its service."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli.completion import complete_table
from siltstone.cli.cycles import DatabaseAddress
from siltstone.cli.options import Shell, argument, command, option
from siltstone.cli.parts import grid_of
from siltstone.errors import NotInstalledError
from siltstone.text import format_time

if TYPE_CHECKING:
    from siltstone.service.results import AuditEntry

app = typer.Typer()


@command(app, "audit", "siltstone audit", "siltstone audit shop.orders --limit 1000 --json")
def audit(
    shell: Shell,
    table: Annotated[
        str | None, argument("TABLE", "Only of this table, also one that was dropped.", autocompletion=complete_table)
    ] = None,
    limit: Annotated[int, option("--limit N", "At most N, newest first.", min=1)] = 50,
    database: DatabaseAddress = None,
) -> None:
    """List who changed what, newest first.

    Drops, rollbacks, erasures, vacuums and other changes of tables are listed, and what was asked of the service.
    """
    entries = shell.lake.audit(table, asked=_asked_of_service(shell, database), limit=limit)
    columns = {
        "time (UTC)": lambda entry: format_time(entry.at),
        "who": lambda entry: entry.requester,
        "through": lambda entry: entry.through,
        "what": lambda entry: entry.action,
        "about": lambda entry: entry.about,
    }
    shell.emit(entries, [grid_of(entries, columns) if entries else "Nothing was done yet that is audited."])


def _asked_of_service(shell: Shell, address: str | None) -> "list[AuditEntry]":
    """Return what was asked of the service, where its database is named or beside the lake."""
    try:
        from siltstone.service import audit_trail, default_address, open_database
        from siltstone.service.controls import AUDIT_LIMIT
    except NotInstalledError:
        if address is None:
            return []
        raise
    if address is None:
        if "://" in shell.root or not Path(default_address(shell.root).removeprefix("sqlite:///")).exists():
            return []
        address = default_address(shell.root)
    return audit_trail(open_database(address, create=False), AUDIT_LIMIT)
