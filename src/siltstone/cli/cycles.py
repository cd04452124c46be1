"""What `siltstone cycle …` does: opens the service's database, asks or tells it something, and sums up."""

from collections.abc import Callable
from pathlib import Path

from siltstone.cli.results_cycles import Controlled, ServiceReport, Triggered
from siltstone.errors import NotFoundError
from siltstone.service import (
    Database,
    cycle_details,
    default_address,
    disable,
    enable,
    freeze,
    list_nodes,
    open_database,
    service_status,
    unfreeze,
    wait_for_request,
)
from siltstone.service import trigger_cycle as request_cycle
from siltstone.service.results import CycleDetails, ServiceStatus, TriggerRequest

Tell = Callable[[str], None]


def open_books(root: str, address: str | None, *, create: bool = False) -> Database:
    """Open the service's database; only `create` makes tables where there are none.

    Raises: NotFoundError, also for a lake that is not there and whose database would be new; InvalidInputError.
    """
    chosen = address or default_address(root)
    is_new = not Path(chosen.removeprefix("sqlite:///")).exists()
    if create and address is None and is_new and not Path(root).is_dir():
        raise NotFoundError(f"{root}: there is no lake; --root names another")
    return open_database(chosen, create=create)


def look_at_service(database: Database) -> ServiceReport:
    """Return all about now. When a cycle is due depends on the interval of whoever leads, which is not known here."""
    return ServiceReport(database.address, service_status(database), list_nodes(database))


def trigger_cycle(
    database: Database,
    *,
    trim: bool,
    wait: bool,
    timeout_seconds: float | None,
    requester: str,
    warn: Tell,
    report: Tell,
) -> Triggered:
    """Ask for a cycle, and wait for it if wanted. Raises: StorageError."""
    request = request_cycle(database, trim=trim, requester=requester)
    obstacle = obstacle_to_cycles(service_status(database))
    if obstacle is not None:
        warn(obstacle)
    if not wait:
        return Triggered(request, waited=False)
    done = wait_for_request(
        database,
        request.request_id,
        timeout_seconds=timeout_seconds,
        on_change=lambda found: report(_spell_state(found)),
    )
    return Triggered(done, waited=True)


def obstacle_to_cycles(status: ServiceStatus) -> str | None:
    """Say why a cycle that was asked for does not begin soon; None where it does."""
    if status.disabled is not None:
        return "cycles are disabled, so the request waits; `siltstone cycle enable` allows them"
    if status.frozen is not None:
        return "cycles are frozen, so the request waits; `siltstone cycle unfreeze` allows them"
    if status.leader is None or not status.leader.is_current:
        return "no service is running, so the request waits; `siltstone serve` starts one"
    return None


def _spell_state(request: TriggerRequest) -> str:
    if request.state == "PENDING":
        return "waiting for the cycle to begin"
    return f"cycle {request.cycle} is {'trimming' if request.state == 'TRIMMING' else 'running'}"


def freeze_cycles(database: Database, seconds: float, requester: str) -> Controlled:
    """Start no cycle for a while. Raises: InvalidInputError, StorageError."""
    return Controlled("frozen", True, freeze(database, seconds=seconds, requester=requester))


def unfreeze_cycles(database: Database) -> Controlled:
    """Allow cycles again. Raises: StorageError."""
    return Controlled("unfrozen", unfreeze(database))


def disable_cycles(database: Database, requester: str) -> Controlled:
    """Start no cycle until enabled. Raises: StorageError."""
    return Controlled("disabled", True, disable(database, requester=requester))


def enable_cycles(database: Database) -> Controlled:
    """Undo a disablement. Raises: StorageError."""
    return Controlled("enabled", enable(database))


def find_cycle(database: Database, number: int | None) -> CycleDetails:
    """Tell all about a cycle, the newest where none is named. Raises: NotFoundError."""
    if number is None:
        number = service_status(database).cycle_count
        if number == 0:
            raise NotFoundError(f"{database.address}: no cycle has run yet; `siltstone cycle trigger` asks for one")
    return cycle_details(database, number)
