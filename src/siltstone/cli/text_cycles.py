"""Cycles as text: the service now, its history, one cycle with every attempt at its partitions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from siltstone.cli.results_cycles import Controlled, ServiceReport, Serving, Triggered
from siltstone.cli.text_parts import Shown, new_facts, new_grid, to_text
from siltstone.text import format_bytes, format_count, format_duration, format_time

if TYPE_CHECKING:
    from siltstone.service.results import Checkpoint, Control, CycleDetails, CycleRecord, ServiceStatus

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


def service_text(report: ServiceReport) -> Iterator[Shown]:
    """Show the state in facts, then partitions and nodes."""
    status = report.status
    yield _headline(status)
    facts = new_facts()
    for name, value in _service_facts(report):
        facts.add_row(name, to_text(value))
    yield Padding(facts, (0, 0, 0, 2), expand=False)
    if status.checkpoints:
        yield ""
        yield _checkpoint_grid(status.checkpoints, status.now_ms)
        yield from _errors([(each.partition, each.error) for each in status.checkpoints])
    if report.nodes:
        grid = new_grid("node", "state", "role", ">claims", "version", "seen (UTC)")
        for node in report.nodes:
            state = "stopped" if node.stopped_at else "alive" if node.is_alive else "silent"
            role = " + ".join([*(["leader"] if node.is_leader else []), *(["worker"] if node.is_worker else [])])
            grid.add_row(*map(to_text, (node.name, state, role, node.claims, node.version, format_time(node.seen_at))))
        yield ""
        yield grid


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
            yield word, _spell_control(control)
    if status.started_at is not None:
        yield "started", f"{format_time(status.started_at)} UTC by {status.trigger_reason}"
        yield (
            "partitions",
            f"{status.completed} completed, {status.failed} failed, {status.active} active, {status.idle} waiting",
        )
    if status.last_completed_at is not None:
        yield "completed", f"last at {format_time(status.last_completed_at)} UTC"
    if status.pending_requests:
        yield "requests", f"{format_count(len(status.pending_requests), 'cycle')} asked for and not begun"
    totals = status.totals
    yield (
        "ever",
        (
            f"{totals.completed_cycles} completed, {totals.failed_cycles} failed; "
            f"{format_count(totals.rows, 'row')}, {format_bytes(totals.input_bytes)} read, "
            f"{format_bytes(totals.written_bytes)} written; {format_count(totals.evictions, 'eviction')}"
        ),
    )
    yield "database", report.database


def _spell_control(control: "Control") -> str:
    until = "" if control.expires_at is None else f" until {format_time(control.expires_at)} UTC"
    by = f" by {control.requester}" if control.requester else ""
    return f"since {format_time(control.set_at)} UTC{until}{by}"


def _checkpoint_grid(checkpoints: "Sequence[Checkpoint]", now_ms: int) -> Shown:
    grid = new_grid("partition", "status", "worker", ">attempt", ">progress", ">backlog", ">rows", ">time")
    for each in checkpoints:
        progress = f"{each.buckets_done}/{each.buckets_total}" if each.buckets_total else ""
        took = "" if each.started_at is None else format_duration((each.ended_at or now_ms) - each.started_at)
        grid.add_row(
            to_text(each.partition),
            Text(each.status, style=_STYLES[each.status]),
            to_text(each.worker),
            to_text(each.attempt),
            to_text(progress),
            to_text(format_bytes(each.backlog_bytes)),
            to_text(f"{each.rows:,}"),
            to_text(took),
        )
    return grid


def _errors(problems: "Sequence[tuple[str, str | None]]") -> Iterator[Shown]:
    for where, error in problems:
        if error:
            yield Text.assemble((where, "bold red"), f"  {error}")


def cycles_text(records: "Sequence[CycleRecord]") -> Iterator[Shown]:
    """Show one line per cycle."""
    if not records:
        yield "No such cycles."
        return
    grid = new_grid(
        ">cycle", "status", "started (UTC)", ">time", "reason", "leader", ">partitions", ">failed", ">rows", ">written"
    )
    for each in records:
        grid.add_row(
            to_text(each.cycle_count),
            Text(each.status, style=_STYLES[each.status]),
            to_text(format_time(each.start_time_ms)),
            to_text(format_duration(each.duration_ms)),
            to_text(each.trigger_reason),
            to_text(each.leader),
            to_text(each.partitions),
            to_text(each.failed + each.unfinished or ""),
            to_text(f"{each.rows:,}"),
            to_text(format_bytes(each.written_bytes)),
        )
    yield grid


def cycle_text(details: "CycleDetails") -> Iterator[Shown]:
    """Show what came of a cycle, and each attempt at its partitions."""
    yield Text.assemble((f"Cycle {details.cycle_count} ", "bold"), (details.status, _STYLES[details.status]))
    facts = new_facts()
    for name, value in _cycle_facts(details):
        facts.add_row(name, to_text(value))
    yield Padding(facts, (0, 0, 0, 2), expand=False)
    if details.timeline:
        yield ""
        grid = new_grid("partition", ">attempt", "status", "worker", ">after", ">time", ">rows", ">written")
        for each in details.timeline:
            took = "" if each.ended_at is None else format_duration(each.ended_at - each.started_at)
            grid.add_row(
                to_text(each.partition),
                to_text(each.attempt or ""),
                Text(each.status, style=_STYLES[each.status]),
                to_text(each.worker),
                to_text(format_duration(each.started_at - details.start_time_ms)),
                to_text(took),
                to_text(f"{each.rows:,}"),
                to_text(format_bytes(each.written_bytes)),
            )
        yield grid
        yield from _errors([(each.partition, each.error) for each in details.timeline])


def _cycle_facts(details: "CycleDetails") -> Iterator[tuple[str, str]]:
    yield "started", f"{format_time(details.start_time_ms)} UTC by {details.trigger_reason}"
    if details.end_time_ms is not None:
        took = format_duration(details.end_time_ms - details.start_time_ms)
        yield "ended", f"{format_time(details.end_time_ms)} UTC, after {took}"
    yield "leader", details.leader
    record = details.record
    if record is not None:
        yield (
            "partitions",
            (
                f"{record.completed} completed, {record.failed} failed, {record.unfinished} unfinished, "
                f"{format_count(record.attempts, 'attempt')}"
            ),
        )
        yield (
            "work",
            (
                f"{format_count(record.rounds, 'round')}, {format_count(record.rows, 'row')}, "
                f"{format_bytes(record.input_bytes)} read, {format_bytes(record.written_bytes)} written"
            ),
        )
        if record.trimmed_deltas is not None:
            yield "trimmed", format_count(record.trimmed_deltas, "delta")


def triggered_text(triggered: Triggered) -> Iterator[Shown]:
    """Say what became of a request."""
    request = triggered.request
    if request.is_done:
        outcome = request.outcome or "FAILED"
        yield Text.assemble(f"Cycle {request.cycle} ", (outcome, _STYLES[outcome]), ".")
        if outcome == "FAILED":
            yield f"`siltstone cycle show {request.cycle}` tells why."
    elif triggered.waited:
        yield f"Request {request.request_id} is not done yet; `siltstone cycle status` tells more."
    else:
        what = "a cycle that trims" if request.trim else "a cycle"
        yield f"Asked for {what}, request {request.request_id}; `siltstone cycle status` tells when it runs."


def controlled_text(controlled: Controlled) -> Iterator[Shown]:
    """Say what holds now."""
    control = controlled.control
    if controlled.action == "frozen" and control is not None and control.expires_at is not None:
        yield f"No cycle begins until {format_time(control.expires_at)} UTC; one that runs goes on."
    else:
        yield _CONTROLLED[controlled.action, controlled.changed]


def serving_text(serving: Serving) -> Iterator[Shown]:
    """Say where the service is to be seen."""
    workers = format_count(serving.workers, "worker")
    yield f"Node {serving.node} looks after {serving.root} with {workers}; its database is {serving.database}."
    if serving.address is not None:
        yield Text.assemble("Open ", (serving.address, "bold"))
    yield "Ctrl-C stops it."
