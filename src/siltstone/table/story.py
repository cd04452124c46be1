"""The story of a key: every delta that touched it, what it did, and why the winner won."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.ingest.export import plain
from siltstone.model import TableVersion
from siltstone.model.names import did_you_mean
from siltstone.table.explain import COMPACTED_ROW, REBASE, Explanation, KeyEvent
from siltstone.table.where import parse_literal
from siltstone.text import format_count, format_value

_FROM_ROUNDS = (REBASE, COMPACTED_ROW)


@dataclass(frozen=True)
class StoryEvent:
    """One row of a delta that concerns a key, what it did, and whether a round has taken it in."""

    stream_position: int
    committed_at: int
    kind: str
    effect: str
    is_winner: bool
    is_compacted: bool
    file: str
    row: int
    values: Mapping[str, object]


@dataclass(frozen=True)
class KeyStory:
    """All that happened to a key in one partition; `row` is current after it, `compacted_row` as compacted last."""

    table: str
    key: Mapping[str, object]
    partition: Sequence[object]
    events: Sequence[StoryEvent]
    row: Mapping[str, object] | None
    why: str
    compacted_row: Mapping[str, object] | None
    high_watermark: int
    notes: Sequence[str]


def parse_key(version: TableVersion, texts: Mapping[str, str | None]) -> dict[str, object]:
    """Return the values of a primary key, written as text; None, and `null` but for text, are null.

    Raises: InvalidInputError.
    """
    schema, keys, name = version.schema, version.primary_keys, version.locator.table_locator.full_name
    if not keys:
        raise InvalidInputError(f"{name}: has no primary key; `siltstone read --where` finds rows by any column")
    for column in texts:
        if column not in keys:
            raise InvalidInputError(
                f"{name}: {column!r} is not in the primary key, {', '.join(keys)}{did_you_mean(column, keys)}"
            )
    for column in keys:
        if column not in texts:
            raise InvalidInputError(f"{name}: the primary key is {', '.join(keys)}; {column}=… is missing")
    key: dict[str, object] = {}
    for column in keys:
        field, text = schema.field(column), texts[column]
        if text is None or (text == "null" and not pa.types.is_string(field.type)):
            key[column] = None
        else:
            key[column] = parse_literal(text, field).as_py()
    return key


def tell_story(key: Mapping[str, object], explanation: Explanation, version: TableVersion) -> KeyStory:
    """Return an explanation in words: what each delta did to a key, and why its row is what it is."""
    return KeyStory(
        table=version.locator.table_locator.full_name,
        key=key,
        partition=explanation.partition_values,
        events=[_line(event, explanation.high_watermark) for event in explanation.events],
        row=explanation.row,
        why=_why(explanation, version),
        compacted_row=explanation.compacted_row,
        high_watermark=explanation.high_watermark,
        notes=list(_notes(explanation)),
    )


def _line(event: KeyEvent, watermark: int) -> StoryEvent:
    return StoryEvent(
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


def _why(explanation: Explanation, version: TableVersion) -> str:
    winner = next((event for event in explanation.events if event.is_winner), None)
    if winner is None:
        return _why_gone(explanation.events)
    if winner.kind in _FROM_ROUNDS:
        return f"The row {winner.effect}; no delta since has changed it."
    position = f"position {winner.stream_position}"
    beaten = sum(event.kind in ("upsert", *_FROM_ROUNDS) for event in explanation.events) - 1
    if version.merge_engine == "first_row":
        return f"The row of {position} counts: it was the first."
    if version.merge_engine == "partial_update":
        since = sum(
            event.kind in _FROM_ROUNDS or event.effect.startswith(("brings", "updates"))
            for event in _since_the_last_delete(explanation.events)
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


def _notes(explanation: Explanation) -> Iterator[str]:
    if explanation.trimmed_up_to:
        yield f"Deltas up to position {explanation.trimmed_up_to} are trimmed; what they did to the key is not explanation."
    waiting = sum(event.stream_position > explanation.high_watermark for event in explanation.events)
    if waiting:
        is_compacted = explanation.high_watermark > 0
        since = (
            f"since the last round, which went up to position {explanation.high_watermark}" if is_compacted else "yet"
        )
        yield f"{format_count(waiting, 'change')} not compacted {since}."
