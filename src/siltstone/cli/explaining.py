"""What `siltstone explain-key` finds out: every delta that touched a key, what it did, and why the winner won."""

from collections.abc import Iterator, Mapping, Sequence

from siltstone.cli.exporting import plain
from siltstone.cli.hints import find_table
from siltstone.cli.reading import typed_key
from siltstone.cli.results_maintenance import KeyEventLine, KeyStory
from siltstone.cli.rounds import table_partitions
from siltstone.cli.units import spell_count, spell_value
from siltstone.compactor.completion import compacted_partition, current_completion, locate_destination
from siltstone.compactor.explain import Explanation, KeyEvent
from siltstone.compactor.following import followed_partition
from siltstone.compactor.live import key_table, lookup
from siltstone.compactor.state import RoundCompletion
from siltstone.lake import Lake, Table
from siltstone.model import TableVersion
from siltstone.storage import object_store as storage


def explain_key(lake: Lake, name: str, given: Mapping[str, str | None]) -> list[KeyStory]:
    """Explain the row of a key, in each partition that had it. Raises: NotFoundError, InvalidInputError."""
    table = find_table(lake, name)
    key = typed_key(table, given)
    told = {tuple(each.partition_values): each for each in table.explain_key(key)}
    version = table.version
    schema = version.as_in_files().schema
    wanted = key_table(version.schema, list(key), key).rename_columns(version.names_in_files(list(key)))
    stories = []
    for partition in table_partitions(lake, name):
        completion = current_completion(locate_destination(compacted_partition(partition), root=lake.root))
        rows = lookup(lake.root, completion, wanted, schema) if completion is not None else []
        source = followed_partition(partition, completion, root=lake.root)
        values = partition.partition_values
        explanation = told.get(tuple(values))
        if explanation is None and rows:
            trimmed = storage.get_partition(source, root=lake.root).trimmed_stream_position
            explanation = Explanation(partition_values=values, trimmed_up_to=trimmed)
        if explanation is not None:
            deltas = storage.list_partition_deltas(source, root=lake.root)
            times = {delta.stream_position: delta.committed_at for delta in deltas}
            stories.append(_story(table, key, explanation, completion, rows[0] if rows else None, times))
    return stories


def _story(
    table: Table,
    key: Mapping[str, object],
    told: Explanation,
    completion: RoundCompletion | None,
    compacted_row: Mapping[str, object] | None,
    times: Mapping[int, int],
) -> KeyStory:
    watermark = completion.high_watermark if completion is not None else 0
    return KeyStory(
        table=table.name,
        key=key,
        partition=told.partition_values,
        events=[_line(event, watermark, times) for event in told.events],
        row=told.row,
        why=_why(told, table.version),
        compacted_row=compacted_row,
        high_watermark=watermark,
        notes=list(_notes(told, completion, watermark, compacted_row)),
    )


def _line(event: KeyEvent, watermark: int, times: Mapping[int, int]) -> KeyEventLine:
    return KeyEventLine(
        stream_position=event.stream_position,
        committed_at=times.get(event.stream_position, 0),
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
    position = f"position {winner.stream_position}"
    beaten = sum(event.kind == "upsert" for event in told.events) - 1
    if version.merge_engine == "first_row":
        return f"The row of {position} counts: it was the first."
    if version.merge_engine == "partial_update":
        since = sum(event.effect.startswith(("brings", "updates")) for event in _since_the_last_delete(told.events))
        return f"The row is made of {spell_count(since, 'change')}, of which that of {position} was applied last."
    if not beaten:
        return f"The row of {position} counts: there is no other."
    if not version.sort_keys:
        return f"The row of {position} counts: it came last."
    rank = ", ".join(f"{name} {spell_value(plain(winner.values.get(name)))}" for name in version.sort_keys)
    return f"The row of {position} counts: nothing after it has as great a sort key ({rank})."


def _why_gone(events: Sequence[KeyEvent]) -> str:
    gone = [event for event in events if event.effect == "deletes the row"]
    if gone:
        return f"There is no row: position {gone[-1].stream_position} deleted it, and nothing brought it back."
    return "There is no row: no delta brought one." if events else ""


def _since_the_last_delete(events: Sequence[KeyEvent]) -> list[KeyEvent]:
    deletes = [number for number, event in enumerate(events) if event.effect == "deletes the row"]
    return list(events[deletes[-1] + 1 if deletes else 0 :])


def _notes(
    told: Explanation, completion: RoundCompletion | None, watermark: int, compacted_row: Mapping[str, object] | None
) -> Iterator[str]:
    if told.trimmed_up_to:
        yield f"Deltas up to position {told.trimmed_up_to} are trimmed; what they did to the key is not told."
    if completion is not None and completion.rebase_source_partition_locator is not None:
        yield "The partition was rebased; rows that came from elsewhere are not told."
    waiting = sum(event.stream_position > watermark for event in told.events)
    if waiting:
        since = f"since the last round, which went up to position {watermark}" if completion else "yet"
        yield f"{spell_count(waiting, 'change')} not compacted {since}."
    elif told.row is None and compacted_row is not None and not told.trimmed_up_to:
        yield "The compacted row is none that these deltas made."
