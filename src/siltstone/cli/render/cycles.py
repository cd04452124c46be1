"""Cycles as text: the service now, its history, one cycle with every attempt at its partitions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from siltstone.cli.render.parts import Shown, grid_of, indented, new_facts, render
from siltstone.cli.results import Controlled, CycleList, OneCycle, ServiceReport, Serving, Triggered
from siltstone.text import format_bytes, format_count, format_duration, format_number, format_time

if TYPE_CHECKING:
    from siltstone.service.results import Checkpoint, Control, CycleDetails, ServiceStatus

_STYLES = {
    "COMPLETED": "green",
    "FAILED": "bold red",
    "EXPIRED": "bold red",
    "ABANDONED": "yellow",
    "STARTED": "cyan",
    "IDLE": "dim",
}
_CONTROLLED = {
    ("unfrozen", True): "Cycles may begin again.",
    ("unfrozen", False): "Cycles were not frozen; nothing to do.",
    ("enabled", True): "Cycles may begin again.",
    ("enabled", False): "Cycles were not disabled; nothing to do.",
    ("disabled", True): "No cycle begins until `siltstone cycle enable`; one that runs is ended as FAILED.",
}


@render.register
def _(report: ServiceReport) -> Iterator[Shown]:
    """The state in facts, then partitions and nodes."""
    status = report.status
    yield _headline(status)
    yield indented(new_facts(_service_facts(report)))
    if status.checkpoints:
        yield ""
        yield _checkpoint_grid(status.checkpoints, status.now_ms)
        yield from _errors([(checkpoint.partition, checkpoint.error) for checkpoint in status.checkpoints])
    if report.nodes:
        yield ""
        yield grid_of(
            report.nodes,
            {
                "node": lambda node: node.name,
                "state": lambda node: "stopped" if node.stopped_at else "alive" if node.is_alive else "silent",
                "role": lambda node: " + ".join(["leader"] * node.is_leader + ["worker"] * node.is_worker),
                ">claims": lambda node: node.claims,
                "version": lambda node: node.version,
                "seen (UTC)": lambda node: format_time(node.seen_at),
            },
        )


def _headline(status: "ServiceStatus") -> Text:
    if status.started_at is None or status.status is None:
        return Text("No cycle has run yet.", style="bold")
    if status.is_running:
        age = format_duration(status.now_ms - status.started_at)
        return Text.assemble((f"Cycle {status.cycle_count} ", "bold"), ("runs", "bold cyan"), f", for {age}.")
    ended = "" if status.ended_at is None else f", {format_duration(status.now_ms - status.ended_at)} ago"
    return Text.assemble(
        (f"Cycle {status.cycle_count} ", "bold"), (status.status, _STYLES.get(status.status, "")), f"{ended}."
    )


def _service_facts(report: ServiceReport) -> Iterator[tuple[str, str]]:
    status = report.status
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
        partitions = (
            f"{status.completed} completed, {status.failed} failed, {status.active} active, {status.idle} waiting"
        )
        yield "partitions", partitions
    if status.last_completed_at is not None:
        yield "completed", f"last at {format_time(status.last_completed_at)} UTC"
    if status.pending_requests:
        yield "requests", f"{format_count(len(status.pending_requests), 'cycle')} asked for and not begun"
    totals = status.totals
    ever = (
        f"{totals.completed_cycles} completed, {totals.failed_cycles} failed; "
        f"{format_count(totals.rows, 'row')}, {format_bytes(totals.input_bytes)} read, "
        f"{format_bytes(totals.written_bytes)} written; {format_count(totals.evictions, 'eviction')}"
    )
    yield "ever", ever
    yield "database", report.database


def _format_control(control: "Control") -> str:
    until = "" if control.expires_at is None else f" until {format_time(control.expires_at)} UTC"
    by = f" by {control.requester}" if control.requester else ""
    return f"since {format_time(control.set_at)} UTC{until}{by}"


def _checkpoint_grid(checkpoints: "Sequence[Checkpoint]", now_ms: int) -> Shown:
    def took(checkpoint: "Checkpoint") -> str:
        started = checkpoint.started_at
        return "" if started is None else format_duration((checkpoint.ended_at or now_ms) - started)

    return grid_of(
        checkpoints,
        {
            "partition": lambda checkpoint: checkpoint.partition,
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


def _status(status: str) -> Text:
    return Text(status, style=_STYLES[status])


def _errors(problems: "Sequence[tuple[str, str | None]]") -> Iterator[Shown]:
    for where, error in problems:
        if error:
            yield Text.assemble((where, "bold red"), f"  {error}")


@render.register
def _(cycles: CycleList) -> Iterator[Shown]:
    """One line per cycle."""
    if not cycles.items:
        yield "No such cycles."
        return
    yield grid_of(
        cycles.items,
        {
            ">cycle": lambda cycle: cycle.cycle_count,
            "status": lambda cycle: _status(cycle.status),
            "started (UTC)": lambda cycle: format_time(cycle.start_time_ms),
            ">time": lambda cycle: format_duration(cycle.duration_ms),
            "reason": lambda cycle: cycle.trigger_reason,
            "leader": lambda cycle: cycle.leader,
            ">partitions": lambda cycle: cycle.partitions,
            ">failed": lambda cycle: cycle.failed + cycle.unfinished or "",
            ">rows": lambda cycle: format_number(cycle.rows),
            ">written": lambda cycle: format_bytes(cycle.written_bytes),
        },
    )


@render.register
def _(cycle: OneCycle) -> Iterator[Shown]:
    """What came of a cycle, and each attempt at its partitions."""
    details = cycle.details
    yield Text.assemble((f"Cycle {details.cycle_count} ", "bold"), _status(details.status))
    yield indented(new_facts(_cycle_facts(details)))
    if details.timeline:
        yield ""
        yield grid_of(
            details.timeline,
            {
                "partition": lambda attempt: attempt.partition,
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
        yield from _errors([(attempt.partition, attempt.error) for attempt in details.timeline])


def _cycle_facts(details: "CycleDetails") -> Iterator[tuple[str, str]]:
    yield "started", f"{format_time(details.start_time_ms)} UTC by {details.trigger_reason}"
    if details.end_time_ms is not None:
        took = format_duration(details.end_time_ms - details.start_time_ms)
        yield "ended", f"{format_time(details.end_time_ms)} UTC, after {took}"
    yield "leader", details.leader
    record = details.record
    if record is not None:
        partitions = (
            f"{record.completed} completed, {record.failed} failed, {record.unfinished} unfinished, "
            f"{format_count(record.attempts, 'attempt')}"
        )
        yield "partitions", partitions
        work = (
            f"{format_count(record.rounds, 'round')}, {format_count(record.rows, 'row')}, "
            f"{format_bytes(record.input_bytes)} read, {format_bytes(record.written_bytes)} written"
        )
        yield "work", work
        if record.trimmed_deltas is not None:
            yield "trimmed", format_count(record.trimmed_deltas, "delta")


@render.register
def _(triggered: Triggered) -> Iterator[Shown]:
    """What became of a request."""
    request = triggered.request
    if request.is_done:
        outcome = request.outcome or "FAILED"
        yield Text.assemble(f"Cycle {request.cycle} ", (outcome, _STYLES[outcome]), ".")
        if outcome == "FAILED":
            yield f"`siltstone cycle show {request.cycle}` shows why."
    elif triggered.waited:
        yield f"Request {request.request_id} is not done yet; see `siltstone cycle status`."
    else:
        what = "a cycle that trims" if request.trim else "a cycle"
        yield f"Asked for {what}, request {request.request_id}; `siltstone cycle status` shows when it runs."


@render.register
def _(controlled: Controlled) -> Iterator[Shown]:
    """What holds now."""
    control = controlled.control
    if controlled.action == "frozen" and control is not None and control.expires_at is not None:
        yield f"No cycle begins until {format_time(control.expires_at)} UTC; one that runs goes on."
    else:
        yield _CONTROLLED[controlled.action, controlled.changed]


@render.register
def _(serving: Serving) -> Iterator[Shown]:
    """Where the service is to be seen."""
    workers = format_count(serving.workers, "worker")
    yield f"Node {serving.node} serves {serving.root} with {workers}; its database is {serving.database}."
    if serving.address is not None:
        yield Text.assemble("Open ", (serving.address, "bold"))
    yield "Ctrl-C stops it."
