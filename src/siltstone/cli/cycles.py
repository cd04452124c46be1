"""`siltstone cycle …`: what the compaction service does and did, and what operators ask of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from siltstone.actor import current_actor
from siltstone.cli.options import Shell, argument, command, new_group, option, parse_duration_ms
from siltstone.cli.parts import Shown, grid_of, indented, new_facts, styled
from siltstone.errors import NotFoundError
from siltstone.text import format_bytes, format_checkpoint, format_count, format_duration, format_number, format_time

if TYPE_CHECKING:
    from rich.text import Text

    from siltstone.service import Database, results

DATABASE_VARIABLE = "SILTSTONE_DATABASE"
_STYLES = {
    "COMPLETED": "green",
    "FAILED": "bold red",
    "STOPPED": "yellow",
    "EXPIRED": "bold red",
    "ABANDONED": "yellow",
    "STARTED": "cyan",
    "IDLE": "dim",
}

DatabaseAddress = Annotated[
    str | None,
    option(
        "--database URL",
        f"The database of the service: sqlite:///path or postgresql://host/name; else {DATABASE_VARIABLE}, else a "
        "file beside the lake.",
        envvar=DATABASE_VARIABLE,
        show_envvar=False,
    ),
]

app = new_group(
    "Watch and control the compaction service. These commands ask its database, so that they work whether it runs or not.",
    "siltstone cycle status",
    "siltstone cycle trigger --reason 'after the import'",
)


@command(app, "status", "siltstone cycle status", "siltstone cycle status --database postgresql://silt@db/silt --json")
def status(shell: Shell, database: DatabaseAddress = None) -> None:
    """Show the current or last cycle, and who leads.

    Also shows its partitions and what operators asked for.
    """
    from siltstone.service import list_nodes, service_status

    opened = _database(shell, database)
    state, nodes = service_status(opened), list_nodes(opened)
    shell.emit(
        {"database": opened.address, "status": state, "nodes": nodes}, _status_text(opened.address, state, nodes)
    )


def _status_text(
    database: str, status: "results.ServiceStatus", nodes: "Sequence[results.NodeInfo]"
) -> Iterator[Shown]:
    yield _headline(status)
    yield indented(new_facts(_service_facts(database, status)))
    if status.checkpoints:
        yield ""
        yield _checkpoint_grid(status.checkpoints, status.now_ms)
        yield from _errors(status.checkpoints)
    if nodes:
        yield ""
        yield grid_of(
            nodes,
            {
                "node": lambda node: node.name,
                "state": lambda node: "stopped" if node.stopped_at else "alive" if node.is_alive else "silent",
                "role": lambda node: " + ".join(["leader"] * node.is_leader + ["worker"] * node.is_worker),
                ">claims": lambda node: node.claims,
                "version": lambda node: node.version,
                "seen (UTC)": lambda node: format_time(node.seen_at),
            },
        )


def _headline(status: "results.ServiceStatus") -> "Text":
    if status.started_at is None or status.status is None:
        return styled(("No cycle has run yet.", "bold"))
    if status.is_running:
        age = format_duration(status.now_ms - status.started_at)
        return styled((f"Cycle {status.cycle_count} ", "bold"), ("runs", "bold cyan"), f", for {age}.")
    ended = "" if status.ended_at is None else f", {format_duration(status.now_ms - status.ended_at)} ago"
    outcome = status.outcome or status.status
    failed = f": {_failed_tables(status)}" if status.failed_tables else ""
    return styled((f"Cycle {status.cycle_count} ", "bold"), (outcome, _STYLES.get(outcome, "")), f"{ended}{failed}.")


def _failed_tables(cycle: "results.ServiceStatus | results.CycleRecord") -> str:
    return f"{cycle.failed_tables} of {format_count(cycle.tables, 'table')} failed"


def _service_facts(database: str, status: "results.ServiceStatus") -> Iterator[tuple[str, str]]:
    leader = status.leader
    if leader is None or not leader.is_current:
        yield "leader", "nobody: no service is running"
    else:
        yield "leader", f"{leader.node}, term {leader.term}"
    for word, control in (("disabled", status.disabled), ("frozen", status.frozen)):
        if control is not None:
            yield word, _format_control(control)
    if status.started_at is not None:
        yield "started", f"{format_time(status.started_at)} UTC by {status.trigger_reason}"
        ended = f"{status.completed} completed, {status.failed} failed"
        yield "partitions", f"{ended}, {status.active} active, {status.idle} waiting"
    if status.last_completed_at is not None:
        yield "completed", f"last at {format_time(status.last_completed_at)} UTC"
    if status.next_due_at is not None:
        is_ahead = status.next_due_at > status.now_ms
        yield "next", f"due at {format_time(status.next_due_at)} UTC" if is_ahead else "due now"
    for table in status.failing:
        first = table.partitions[0]
        times = f"failed in {format_count(first.failures, 'cycle')} in a row"
        wait_ms = first.retry_at - status.now_ms
        again = f"tried again in {format_duration(wait_ms)}" if wait_ms > 0 else "tried again in the next cycle"
        yield "failing", f"{table.table}: {times}, {again}"
    for pause in status.paused:
        by = f" by {pause.requester}" if pause.requester else ""
        yield "paused", f"{pause.table}, since {format_time(pause.paused_at)} UTC{by}"
    if status.pending_requests:
        yield "requests", f"{format_count(len(status.pending_requests), 'cycle')} asked for and not begun"
    totals = status.totals
    ended = f"{totals.completed_cycles} completed, {totals.failed_cycles} failed, {totals.stopped_cycles} stopped"
    yield "ever", f"{ended}; {_format_work(totals)}; {format_count(totals.evictions, 'eviction')}"
    yield "database", database


def _format_work(done: "results.Totals | results.CycleRecord") -> str:
    read, written = format_bytes(done.input_bytes), format_bytes(done.written_bytes)
    return f"{format_count(done.rows, 'row')}, {read} read, {written} written"


def _format_control(control: "results.Control") -> str:
    until = "" if control.expires_at is None else f" until {format_time(control.expires_at)} UTC"
    by = f" by {control.requester}" if control.requester else ""
    return f"since {format_time(control.set_at)} UTC{until}{by}"


def _checkpoint_grid(checkpoints: "Sequence[results.Checkpoint]", now_ms: int) -> Shown:
    def took(checkpoint: "results.Checkpoint") -> str:
        started = checkpoint.started_at
        return "" if started is None else format_duration((checkpoint.ended_at or now_ms) - started)

    return grid_of(
        checkpoints,
        {
            "table": lambda checkpoint: format_checkpoint(checkpoint.partition),
            "status": lambda checkpoint: _status(checkpoint.status),
            "worker": lambda checkpoint: checkpoint.worker,
            ">attempt": lambda checkpoint: checkpoint.attempt,
            ">progress": lambda checkpoint: (
                f"{checkpoint.buckets_done}/{checkpoint.buckets_total}" if checkpoint.buckets_total else ""
            ),
            ">backlog": lambda checkpoint: format_bytes(checkpoint.backlog_bytes),
            ">rows": lambda checkpoint: format_number(checkpoint.rows),
            ">time": took,
        },
    )


def _status(status: str) -> "Text":
    return styled((status, _STYLES[status]))


def _errors(attempts: "Sequence[results.Checkpoint | results.Attempt]") -> Iterator[Shown]:
    return (
        styled((format_checkpoint(attempt.partition), "bold red"), f"  {attempt.error}")
        for attempt in attempts
        if attempt.error
    )


@command(
    app,
    "trigger",
    "siltstone cycle trigger --wait",
    "siltstone cycle trigger --table shop.orders --wait",
    "siltstone cycle trigger --trim --wait --timeout 10m",
)
def trigger(
    shell: Shell,
    table: Annotated[
        list[str] | None, option("--table NAME", "Compact only this table now, also one that waits after a failure.")
    ] = None,
    trim: Annotated[
        bool, option("--trim", "Afterwards forget compacted deltas that are past their retention.")
    ] = False,
    wait: Annotated[bool, option("--wait", "Wait for the outcome; exit code 1 if it is FAILED.")] = False,
    timeout: Annotated[str | None, option("--timeout TIME", "Wait no longer than this, e.g. 90s or 15m.")] = None,
    database: DatabaseAddress = None,
) -> None:
    """Ask for a cycle now, or right after the running one."""
    if timeout is not None and not wait:
        raise typer.BadParameter("only --wait waits", param_hint="--timeout")
    timeout_seconds = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    from siltstone.service import obstacle_to_cycles, service_status, trigger_cycle, wait_for_request

    opened = _database(shell, database, create=True)
    tables = None if table is None else [_table_name(shell, name) for name in table]
    request = trigger_cycle(opened, trim=trim, requester=current_actor(), tables=tables)
    obstacle = obstacle_to_cycles(service_status(opened))
    if obstacle is not None:
        shell.warning(obstacle)
    if wait:
        with shell.progress() as progress:
            request = wait_for_request(
                opened,
                request.request_id,
                timeout_seconds=timeout_seconds,
                on_change=lambda change: progress(_format_state(change)),
            )
    shell.emit(request, _request_text(request, waited=wait))
    if wait and request.outcome != "COMPLETED":
        raise typer.Exit(1)


def _request_text(request: "results.TriggerRequest", *, waited: bool) -> Iterator[Shown]:
    if request.is_done:
        outcome = request.outcome or "FAILED"
        yield styled(f"Cycle {request.cycle} ", (outcome, _STYLES[outcome]), ".")
        if outcome == "FAILED":
            yield f"`siltstone cycle show {request.cycle}` shows why."
    elif waited:
        yield f"Request {request.request_id} is not done yet; see `siltstone cycle status`."
    else:
        what = "a cycle" if request.tables is None else f"a cycle of {', '.join(request.tables)}"
        what = f"{what} that trims" if request.trim else what
        yield f"Asked for {what}, request {request.request_id}; `siltstone cycle status` shows when it runs."


def _format_state(request: "results.TriggerRequest") -> str:
    if request.state == "PENDING":
        return "waiting for the cycle to begin"
    return f"cycle {request.cycle} is {'trimming' if request.state == 'TRIMMING' else 'running'}"


@command(app, "freeze", "siltstone cycle freeze", "siltstone cycle freeze --for 30m")
def freeze(
    shell: Shell,
    time: Annotated[str, option("--for TIME", "For how long, e.g. 30m, 2h or 1d; then cycles go on.")] = "2h",
    database: DatabaseAddress = None,
) -> None:
    """Start no cycle for a while; one that runs goes on."""
    seconds = parse_duration_ms(time, "--for") / 1000
    from siltstone import service

    control = service.freeze(_database(shell, database, create=True), seconds=seconds, requester=current_actor())
    assert control.expires_at is not None
    sentence = f"No cycle begins until {format_time(control.expires_at)} UTC; one that runs goes on."
    _emit_control(shell, "frozen", True, sentence, control)


@command(app, "unfreeze", "siltstone cycle unfreeze")
def unfreeze(shell: Shell, database: DatabaseAddress = None) -> None:
    """Allow cycles again after a freeze."""
    from siltstone import service

    changed = service.unfreeze(_database(shell, database), requester=current_actor())
    sentence = "Cycles may begin again." if changed else "Cycles were not frozen; nothing to do."
    _emit_control(shell, "unfrozen", changed, sentence)


@command(app, "disable", "siltstone cycle disable")
def disable(shell: Shell, database: DatabaseAddress = None) -> None:
    """Start no cycle until enabled again; one that runs is stopped."""
    from siltstone import service

    control = service.disable(_database(shell, database, create=True), requester=current_actor())
    sentence = "No cycle begins until `siltstone cycle enable`; one that runs is stopped."
    _emit_control(shell, "disabled", True, sentence, control)


@command(app, "enable", "siltstone cycle enable")
def enable(shell: Shell, database: DatabaseAddress = None) -> None:
    """Undo `disable`."""
    from siltstone import service

    changed = service.enable(_database(shell, database), requester=current_actor())
    sentence = "Cycles may begin again." if changed else "Cycles were not disabled; nothing to do."
    _emit_control(shell, "enabled", changed, sentence)


@command(app, "pause", "siltstone cycle pause shop.orders")
def pause(shell: Shell, table: Annotated[str, argument("TABLE", "A table.")], database: DatabaseAddress = None) -> None:
    """Leave a table out of cycles until it is resumed.

    A compaction that is running goes on.
    """
    from siltstone import service

    name = _table_name(shell, table)
    paused = service.pause_table(_database(shell, database, create=True), name, requester=current_actor())
    shell.emit(paused, [f"No cycle compacts {name} until `siltstone cycle resume {name}`."])


@command(app, "resume", "siltstone cycle resume shop.orders")
def resume(
    shell: Shell, table: Annotated[str, argument("TABLE", "A table.")], database: DatabaseAddress = None
) -> None:
    """Let cycles compact a table again."""
    from siltstone import service

    changed = service.resume_table(_database(shell, database), table, requester=current_actor())
    sentence = f"Cycles compact {table} again." if changed else f"{table} was not paused; nothing to do."
    shell.emit({"table": table, "changed": changed}, [sentence])


@command(app, "audit", "siltstone cycle audit", "siltstone cycle audit --limit 1000 --json")
def audit(
    shell: Shell,
    limit: Annotated[int, option("--limit N", "At most N, newest first.", min=1)] = 50,
    database: DatabaseAddress = None,
) -> None:
    """List who asked what of the service, newest first."""
    from siltstone.service import audit_trail

    entries = audit_trail(_database(shell, database), limit)
    columns = {
        "time (UTC)": lambda entry: format_time(entry.at),
        "who": lambda entry: entry.requester,
        "what": lambda entry: entry.action,
        "about": lambda entry: entry.about,
    }
    shell.emit(entries, [grid_of(entries, columns) if entries else "Nobody has asked anything yet."])


def _table_name(shell: Shell, name: str) -> str:
    """Return the name of a table of the lake, where the lake can be reached from here. Raises: NotFoundError."""
    from siltstone.lake import Lake

    is_elsewhere = "://" not in shell.root and not Path(shell.root).is_dir()
    return name if is_elsewhere else Lake(shell.root).table(name).name


def _emit_control(
    shell: Shell, action: str, changed: bool, sentence: str, control: "results.Control | None" = None
) -> None:
    shell.emit({"action": action, "changed": changed, "control": control}, [sentence])


@command(app, "history", "siltstone cycle history --limit 10", "siltstone cycle history --status FAILED --json")
def history(
    shell: Shell,
    limit: Annotated[int, option("--limit N", "At most N, newest first.", min=1, max=100)] = 20,
    status: Annotated[
        Literal["COMPLETED", "FAILED"] | None, option("--status", "Only cycles with this status.")
    ] = None,
    database: DatabaseAddress = None,
) -> None:
    """List finished cycles, newest first; the newest hundred are kept."""
    from siltstone.service import cycle_records

    records = cycle_records(_database(shell, database), limit, status=status)
    shell.emit(records, _history_text(records))


def _history_text(records: "Sequence[results.CycleRecord]") -> Iterator[Shown]:
    if not records:
        yield "No such cycles."
        return
    yield grid_of(
        records,
        {
            ">cycle": lambda cycle: cycle.cycle_count,
            "status": lambda cycle: _status(cycle.outcome),
            "started (UTC)": lambda cycle: format_time(cycle.start_time_ms),
            ">time": lambda cycle: format_duration(cycle.duration_ms),
            "reason": lambda cycle: cycle.trigger_reason,
            "leader": lambda cycle: cycle.leader,
            ">tables": lambda cycle: cycle.tables,
            ">failed": lambda cycle: cycle.failed_tables or "",
            ">partitions": lambda cycle: cycle.partitions,
            ">rows": lambda cycle: format_number(cycle.rows),
            ">written": lambda cycle: format_bytes(cycle.written_bytes),
        },
    )


@command(app, "show", "siltstone cycle show 12", "siltstone cycle show")
def show(
    shell: Shell,
    number: Annotated[int | None, argument("N", "The cycle, else the newest.", min=1)] = None,
    database: DatabaseAddress = None,
) -> None:
    """Show one cycle, with every attempt at its partitions."""
    from siltstone.service import cycle_details, service_status

    opened = _database(shell, database)
    number = service_status(opened).cycle_count if number is None else number
    if number == 0:
        raise NotFoundError(f"{opened.address}: no cycle has run yet; `siltstone cycle trigger` asks for one")
    details = cycle_details(opened, number)
    shell.emit(details, _cycle_text(details))


def _cycle_text(details: "results.CycleDetails") -> Iterator[Shown]:
    outcome = details.status if details.record is None else details.record.outcome
    yield styled((f"Cycle {details.cycle_count} ", "bold"), (outcome, _STYLES[outcome]))
    yield indented(new_facts(_cycle_facts(details)))
    if details.timeline:
        yield ""
        yield grid_of(
            details.timeline,
            {
                "table": lambda attempt: format_checkpoint(attempt.partition),
                ">attempt": lambda attempt: attempt.attempt or "",
                "status": lambda attempt: _status(attempt.status),
                "worker": lambda attempt: attempt.worker,
                ">after": lambda attempt: format_duration(attempt.started_at - details.start_time_ms),
                ">time": lambda attempt: (
                    "" if attempt.ended_at is None else format_duration(attempt.ended_at - attempt.started_at)
                ),
                ">rows": lambda attempt: format_number(attempt.rows),
                ">written": lambda attempt: format_bytes(attempt.written_bytes),
            },
        )
        yield from _errors(details.timeline)


def _cycle_facts(details: "results.CycleDetails") -> Iterator[tuple[str, str]]:
    yield "started", f"{format_time(details.start_time_ms)} UTC by {details.trigger_reason}"
    if details.end_time_ms is not None:
        took = format_duration(details.end_time_ms - details.start_time_ms)
        yield "ended", f"{format_time(details.end_time_ms)} UTC, after {took}"
    yield "leader", details.leader
    record = details.record
    if record is not None:
        ended = f"{record.completed} completed, {record.failed} failed, {record.unfinished} unfinished"
        yield "partitions", f"{ended}, {format_count(record.attempts, 'attempt')}"
        if record.failed_tables:
            yield "tables", _failed_tables(record)
        yield "planning", f"took {format_duration(record.planning_ms)}"
        yield "work", f"{format_count(record.rounds, 'round')}, {_format_work(record)}"
        if record.trimmed_deltas is not None:
            yield "trimmed", format_count(record.trimmed_deltas, "delta")


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
