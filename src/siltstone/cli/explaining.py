"""What `siltstone explain-key` finds out: every delta that touched a key, what it did, and why the winner won."""

from collections.abc import Iterator, Mapping, Sequence

from siltstone.cli.hints import find_table
from siltstone.cli.reading import typed_key
from siltstone.cli.results_maintenance import KeyEventLine, KeyStory
from siltstone.ingest.export import plain
from siltstone.lake import Lake, Table
from siltstone.model import TableVersion
from siltstone.table.explain import COMPACTED_ROW, REBASE, Explanation, KeyEvent
from siltstone.text import format_count, format_value

_FROM_ROUNDS = (REBASE, COMPACTED_ROW)


def explain_key(lake: Lake, name: str, given: Mapping[str, str | None]) -> list[KeyStory]:
    """Explain the row of a key, in each partition that had it. Raises: NotFoundError, InvalidInputError."""
    table = find_table(lake, name)
    key = typed_key(table.version, given)
    return [_story(table, key, told) for told in table.explain_key(key)]


def _story(table: Table, key: Mapping[str, object], told: Explanation) -> KeyStory:
    return KeyStory(
        table=table.name,
        key=key,
        partition=told.partition_values,
        events=[_line(event, told.high_watermark) for event in told.events],
        row=told.row,
        why=_why(told, table.version),
        compacted_row=told.compacted_row,
        high_watermark=told.high_watermark,
        notes=list(_notes(told)),
    )


def _line(event: KeyEvent, watermark: int) -> KeyEventLine:
    return KeyEventLine(
        stream_position=event.stream_position,
        committed_at=event.time_ms,
        kind=event.kind,
        effect=event.effect,
        is_winner=event.is_winner,
        is_compacted=event.stream_position <= watermark,
        file=event.file,
        row=event.row,
        values=event.values,
    )


def _why(told: Explanation, version: TableVersion) -> str:
    winner = next((event for event in told.events if event.is_winner), None)
    if winner is None:
        return _why_gone(told.events)
    if winner.kind in _FROM_ROUNDS:
        return f"The row {winner.effect}; no delta since has changed it."
    position = f"position {winner.stream_position}"
    beaten = sum(event.kind in ("upsert", *_FROM_ROUNDS) for event in told.events) - 1
    if version.merge_engine == "first_row":
        return f"The row of {position} counts: it was the first."
    if version.merge_engine == "partial_update":
        since = sum(
            event.kind in _FROM_ROUNDS or event.effect.startswith(("brings", "updates"))
            for event in _since_the_last_delete(told.events)
        )
        return f"The row is made of {format_count(since, 'change')}, of which that of {position} was applied last."
    if not beaten:
        return f"The row of {position} counts: there is no other."
    if not version.sort_keys:
        return f"The row of {position} counts: it came last."
    rank = ", ".join(f"{name} {format_value(plain(winner.values.get(name)))}" for name in version.sort_keys)
    return f"The row of {position} counts: nothing after it has as great a sort key ({rank})."


def _why_gone(events: Sequence[KeyEvent]) -> str:
    gone = [event for event in events if event.effect == "deletes the row"]
    if gone:
        return f"There is no row: position {gone[-1].stream_position} deleted it, and nothing brought it back."
    lost = [event for event in events if event.kind == COMPACTED_ROW]
    if lost:
        return f"There is no row: {lost[-1].effect}."
    return "There is no row: no delta brought one." if events else ""


def _since_the_last_delete(events: Sequence[KeyEvent]) -> list[KeyEvent]:
    deletes = [number for number, event in enumerate(events) if event.effect == "deletes the row"]
    return list(events[deletes[-1] + 1 if deletes else 0 :])


def _notes(told: Explanation) -> Iterator[str]:
    if told.trimmed_up_to:
        yield f"Deltas up to position {told.trimmed_up_to} are trimmed; what they did to the key is not told."
    waiting = sum(event.stream_position > told.high_watermark for event in told.events)
    if waiting:
        is_compacted = told.high_watermark > 0
        since = f"since the last round, which went up to position {told.high_watermark}" if is_compacted else "yet"
        yield f"{format_count(waiting, 'change')} not compacted {since}."
