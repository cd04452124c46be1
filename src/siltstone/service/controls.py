"""What operators ask for: trigger a cycle, freeze, unfreeze, disable, enable, pause and resume a table; and who did."""

import math
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

import orjson
from sqlalchemy import Row, delete, func, select

from siltstone.errors import InvalidInputError, NotFoundError, StorageError
from siltstone.service.database import Database, Transaction, in_transaction
from siltstone.service.results import Control, Pause, ServiceStatus, TriggerRequest
from siltstone.service.schema import audit, controls, pauses, trigger_requests
from siltstone.service.settings import FREEZE_SECONDS, latest_ms, to_ms
from siltstone.text import format_time

ControlName = Literal["freeze", "disable"]
_UNDONE: dict[ControlName, str] = {"freeze": "unfreeze", "disable": "enable"}
_MAX_PENDING = 1000
_POLL_SECONDS = 0.5
AUDIT_LIMIT = 10_000
"""So many entries of the audit trail are kept."""
TABLE_ACTIONS = ("trigger", "trigger and trim", "pause", "resume")
"""Actions that are about the tables that their entries name."""
ALL_TABLES = "all tables"


def trigger_cycle(
    database: Database, *, trim: bool = False, requester: str = "", tables: Sequence[str] | None = None
) -> TriggerRequest:
    """Ask for a cycle as soon as possible, one that also trims where `trim`; a running one queues it.

    With `tables` it is about these alone, unless one of all is due as well. While the service is disabled or frozen, the request
    waits. Raises: StorageError, InvalidInputError, also for a table that is paused.
    """
    return _add_request(database, uuid.uuid4().hex[:12], trim=trim, requester=requester, tables=tables)


@in_transaction("request a cycle")
def _add_request(
    transaction: Transaction, request_id: str, *, trim: bool, requester: str, tables: Sequence[str] | None
) -> TriggerRequest:
    for name in tables or ():
        paused = transaction.execute(select(pauses).filter_by(table_name=name)).first()
        if paused is not None:
            raise InvalidInputError(f"{name}: is paused; `siltstone cycle resume {name}` first")
    pending = select(trigger_requests.c.request_id).filter_by(state="PENDING")
    if len(transaction.execute(pending.limit(_MAX_PENDING)).all()) >= _MAX_PENDING:
        raise InvalidInputError(f"{_MAX_PENDING} trigger requests are waiting; is a service running?")
    now_ms = transaction.now_ms()
    values = {"requested_at": now_ms, "requester": requester, "trim": trim, "state": "PENDING"}
    named = None if tables is None else orjson.dumps(sorted(set(tables))).decode()
    if transaction.insert_if_absent(trigger_requests, request_id=request_id, tables=named, **values):
        about = ALL_TABLES if tables is None else ", ".join(sorted(set(tables)))
        record_action(transaction, "trigger and trim" if trim else "trigger", requester, about)
    return _read_request(transaction, request_id)


def _read_request(transaction: Transaction, request_id: str) -> TriggerRequest:
    row = None
    if request_id.isascii() and request_id.isalnum():  # not every text can be asked for: PostgreSQL has no NUL
        row = transaction.execute(select(trigger_requests).filter_by(request_id=request_id)).first()
    if row is None:
        raise NotFoundError(f"unknown trigger request {request_id!r}; those of the last 100 cycles are kept")
    return _to_request(row)


def _to_request(row: Row[Any]) -> TriggerRequest:
    return TriggerRequest(**{**row._mapping, "tables": None if row.tables is None else orjson.loads(row.tables)})


@in_transaction("read a trigger request", reads=True)
def get_request(transaction: Transaction, request_id: str) -> TriggerRequest:
    """Return a trigger request and what became of it. Raises: NotFoundError, StorageError."""
    return _read_request(transaction, request_id)


def wait_for_request(
    database: Database,
    request_id: str,
    *,
    timeout_seconds: float | None = None,
    on_change: Callable[[TriggerRequest], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> TriggerRequest:
    """Wait until a trigger request is done, through outages of the database.

    Where the time runs out, the request is returned as it is then. Raises: NotFoundError; StorageError where the time
    ran out and the database was not reached.
    """
    deadline = math.inf if timeout_seconds is None else monotonic() + timeout_seconds
    last_seen: TriggerRequest | None = None
    while True:
        try:
            request = get_request(database, request_id)
        except StorageError:
            if monotonic() >= deadline:
                raise
        else:
            if request != last_seen and on_change is not None:
                on_change(request)
            last_seen = request
            if request.is_done or monotonic() >= deadline:
                return request
        sleep(_POLL_SECONDS)


def freeze(database: Database, *, seconds: float = FREEZE_SECONDS, requester: str = "") -> Control:
    """Start no cycle for a while; one that runs goes on. Raises: InvalidInputError, StorageError."""
    if not 0 < seconds < 1e10:
        raise InvalidInputError(f"cannot freeze for {seconds:g} seconds; use a positive time, or disable")
    return _set(database, "freeze", requester, to_ms(seconds))


def unfreeze(database: Database, *, requester: str = "") -> bool:
    """Allow cycles again; return whether they were frozen. Raises: StorageError."""
    return _clear(database, "freeze", requester)


def disable(database: Database, *, requester: str = "") -> Control:
    """Start no cycle until enabled again; one that runs is ended as FAILED. Raises: StorageError."""
    return _set(database, "disable", requester, None)


def enable(database: Database, *, requester: str = "") -> bool:
    """Undo `disable`; return whether there was anything to undo. Raises: StorageError."""
    return _clear(database, "disable", requester)


@in_transaction("pause a table")
def pause_table(transaction: Transaction, name: str, *, requester: str = "") -> Pause:
    """Leave a table out of cycles until it is resumed; what is being compacted goes on. Raises: StorageError."""
    now_ms = transaction.now_ms()
    if transaction.insert_if_absent(pauses, table_name=name, paused_at=now_ms, requester=requester):
        record_action(transaction, "pause", requester, name)
    row = transaction.execute(select(pauses).filter_by(table_name=name)).one()
    return Pause(row.table_name, row.paused_at, row.requester)


@in_transaction("resume a table")
def resume_table(transaction: Transaction, name: str, *, requester: str = "") -> bool:
    """Let cycles compact a table again; return whether it was paused. Raises: StorageError."""
    was_paused = transaction.execute(delete(pauses).filter_by(table_name=name)).rowcount > 0
    if was_paused:
        record_action(transaction, "resume", requester, name)
    return was_paused


def record_action(transaction: Transaction, action: str, requester: str, about: str = "") -> None:
    """Note in the audit trail that somebody asked for something."""
    transaction.execute(audit.insert().values(at=transaction.now_ms(), requester=requester, action=action, about=about))
    newest: int | None = transaction.execute(select(func.max(audit.c.id))).scalar()
    transaction.execute(delete(audit).where(audit.c.id <= (newest or 0) - AUDIT_LIMIT))


def current_controls(transaction: Transaction, now_ms: int) -> dict[str, Control]:
    """Return what holds now; a freeze that has run out does not, nor one from before the clock was set back."""
    stored = [Control(**row._mapping) for row in transaction.execute(select(controls))]
    return {
        control.name: control
        for control in stored
        if control.expires_at is None or (control.set_at <= latest_ms(now_ms) and now_ms < control.expires_at)
    }


def clear_expired(transaction: Transaction, now_ms: int) -> None:
    """Forget a freeze that has run out."""
    is_over = (controls.c.expires_at <= now_ms) | (controls.c.set_at > latest_ms(now_ms))
    transaction.execute(delete(controls).where(controls.c.expires_at.is_not(None) & is_over))


def pending_requests(transaction: Transaction) -> list[TriggerRequest]:
    """Return the requests that no cycle has taken up, oldest first."""
    pending = select(trigger_requests).filter_by(state="PENDING")
    rows = transaction.execute(pending.order_by(trigger_requests.c.requested_at, trigger_requests.c.request_id))
    return [_to_request(row) for row in rows]


def obstacle_to_cycles(status: ServiceStatus) -> str | None:
    """Return why a cycle that was asked for does not begin soon, or None if it does."""
    if status.disabled is not None:
        return "cycles are disabled, so the request waits; `siltstone cycle enable` allows them"
    if status.frozen is not None:
        return "cycles are frozen, so the request waits; `siltstone cycle unfreeze` allows them"
    if status.leader is None or not status.leader.is_current:
        return "no service is running, so the request waits; `siltstone serve` starts one"
    return None


def _set(database: Database, name: ControlName, requester: str, for_ms: int | None) -> Control:
    def change(transaction: Transaction) -> Control:
        now_ms = transaction.now_ms()
        control = Control(name, now_ms, None if for_ms is None else now_ms + for_ms, requester)
        transaction.insert_or_update(controls, [vars(control)])
        until = "" if control.expires_at is None else f"until {format_time(control.expires_at)} UTC"
        record_action(transaction, name, requester, until)
        return control

    return database.change(f"set {name}", change)


def _clear(database: Database, name: ControlName, requester: str) -> bool:
    def change(transaction: Transaction) -> bool:
        was_set = name in current_controls(transaction, transaction.now_ms())
        transaction.execute(delete(controls).filter_by(name=name))
        if was_set:
            record_action(transaction, _UNDONE[name], requester)
        return was_set

    return database.change(f"clear {name}", change)
