"""Who takes the changes of a table under a name: how far each one is, and what a vacuum keeps for it.

Each partition's log has an entry for each consumer: the last round that it acknowledged, and until when that round and those
after it are kept. It is in the same log as the rounds, so that a vacuum cannot forget a round while somebody begins to need it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from siltstone.errors import ConflictError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes
from siltstone.log.state import Entry, LogState
from siltstone.model import TableVersion
from siltstone.model.locators import check_name, did_you_mean
from siltstone.model.properties import FEED_MAX_LAG_SECONDS
from siltstone.objects import open_objects
from siltstone.table.completion import CONSUMER_PREFIX, DELTAS_AFTER, ROUND_PREFIX, Destination, read_state
from siltstone.table.scan import destination_of
from siltstone.table.snapshot import TableSnapshot

# Who finds nothing new says that it is there still so many times within its lag, not each time that it asks.
_RENEWALS = 100


@dataclass(frozen=True)
class Consumer:
    """How far a consumer is in one partition: the last round that it acknowledged, when, and until when it holds the next ones.

    `rounds_behind` counts the rounds since. A round that it needs may be gone, where it is behind for too long.
    """

    name: str
    partition: str
    round_id: int
    high_watermark: int
    acknowledged_at: int
    held_until_at: int
    rounds_behind: int


def acknowledged_rounds(snapshot: TableSnapshot, name: str) -> dict[str, int]:
    """Return the last round that a consumer acknowledged of each partition, by its id. Raises: InvalidInputError."""
    key = f"{CONSUMER_PREFIX}{check_name(name, 'consumer')}"
    rounds = {}
    for partition in snapshot.partitions:
        log = destination_of(partition, snapshot.root).log
        entry = log.read(lambda state: state.get(key))
        if entry is not None:
            rounds[partition.own.partition_id] = int(entry["round_id"])
    return rounds


def acknowledge(
    destination: Destination, name: str, round_id: int, expected: int | None, version: TableVersion
) -> None:
    """Note that a consumer has taken all up to a round; those after it are kept for it from now on.

    `expected` is the round that it had acknowledged before. Raises: ConflictError where that is another one by now, or the
    round was vacuumed.
    """

    def taken(state: LogState) -> Entry:
        entry = state.get(f"{ROUND_PREFIX}{round_id}")
        if entry is None:
            raise ConflictError(f"{destination.locator}: round {round_id} was vacuumed meanwhile; begin anew")
        return {"round_id": round_id, "high_watermark": entry["high_watermark"]}

    _acknowledge(destination, name, "round_id", expected, version, taken)


def acknowledged_position(destination: Destination, name: str) -> int | None:
    """Return the last position that a consumer of changes of documents acknowledged. Raises: InvalidInputError."""
    key = f"{CONSUMER_PREFIX}{check_name(name, 'consumer')}"
    entry = destination.log.read(lambda state: state.get(key))
    return None if entry is None else int(entry["high_watermark"])


def acknowledge_position(
    destination: Destination, name: str, position: int, expected: int | None, version: TableVersion
) -> None:
    """Note that a consumer of changes of documents has taken all up to a position.

    What they were then is told by the newest round up to it and the deltas since: both are kept for it, and all that
    come after. Raises: ConflictError where it acknowledged another position than `expected` meanwhile.
    """

    def taken(state: LogState) -> Entry:
        rounds = [each for each in state.scan(ROUND_PREFIX) if int(each["high_watermark"]) <= position]
        newest = max(rounds, key=lambda each: int(each["round_id"]), default={"round_id": 0, "high_watermark": 0})
        return {
            "round_id": int(newest["round_id"]),
            "high_watermark": position,
            DELTAS_AFTER: int(newest["high_watermark"]),
        }

    _acknowledge(destination, name, "high_watermark", expected, version, taken)


def _acknowledge(
    destination: Destination,
    name: str,
    place: str,
    expected: int | None,
    version: TableVersion,
    taken: Callable[[LogState], Entry],
) -> None:
    """Note what a consumer has taken, if the place that it had acknowledged before is the one that is expected."""
    key = f"{CONSUMER_PREFIX}{check_name(name, 'consumer')}"
    lag_ms = round(FEED_MAX_LAG_SECONDS.of(version.properties, version.locator) * 1000)
    now_ms = open_objects(destination.root).now_ms()

    def prepare(state: LogState) -> Changes:
        before = state.get(key)
        found = None if before is None else int(before[place])
        if found != expected:
            what = "round" if place == "round_id" else "position"
            raise ConflictError(
                f"{destination.locator}: consumer {name!r} had acknowledged {what} {expected}, but has acknowledged {what} "
                f"{found} meanwhile; let one process at a time use the name"
            )
        now_taken = taken(state)
        is_same = before is not None and all(before.get(field) == value for field, value in now_taken.items())
        if before is not None and is_same and now_ms - int(before["acknowledged_at"]) < lag_ms // _RENEWALS:
            return {}
        return {key: {"consumer": name, **now_taken, "acknowledged_at": now_ms, "max_lag_ms": lag_ms}}

    destination.log.commit("acknowledge", prepare)


def list_consumers(destinations: Iterable[Destination]) -> list[Consumer]:
    """Return all consumers of partitions, by name. Raises: CorruptionError."""
    consumers = []
    for destination in destinations:
        entries = destination.log.read(lambda state: state.scan(CONSUMER_PREFIX))
        newest = read_state(destination).round_id or 0
        for entry in entries:
            acknowledged, held_until = (
                int(entry["acknowledged_at"]),
                int(entry["acknowledged_at"]) + int(entry["max_lag_ms"]),
            )
            place = destination.locator.partition_id, int(entry["round_id"]), int(entry["high_watermark"])
            behind = newest - int(entry["round_id"])
            consumers.append(Consumer(entry["consumer"], *place, acknowledged, held_until, behind))
    return sorted(consumers, key=lambda consumer: (consumer.name, consumer.partition))


def remove_consumer(destinations: Iterable[Destination], name: str) -> None:
    """Forget a consumer, so that nothing is kept for it any more. Raises: NotFoundError."""
    key = f"{CONSUMER_PREFIX}{name}"
    there = {place: [each["consumer"] for each in _entries(place)] for place in destinations}
    if not any(name in names for names in there.values()):
        known = sorted({each for names in there.values() for each in names})
        raise NotFoundError(f"there is no consumer {name!r}{did_you_mean(name, known)}")
    for destination, names in there.items():
        if name in names:
            destination.log.commit(
                "remove consumer",
                lambda state: {key: None} if key in state else {},
                action=Action("remove consumer", {"consumer": name}),
            )


def _entries(destination: Destination) -> list[Entry]:
    return destination.log.read(lambda state: state.scan(CONSUMER_PREFIX))


def rounds_kept_for_consumers(state: LogState, now_ms: int) -> set[int]:
    """Return the rounds that consumers need, if they were replaced, and the consumer was there, within the time that it may hold."""
    rounds = state.scan(ROUND_PREFIX)
    replaced_at = {int(old["round_id"]): int(new["completed_at"]) for old, new in pairwise(rounds)}
    kept: set[int] = set()
    for entry in state.scan(CONSUMER_PREFIX):
        since_ms = now_ms - int(entry["max_lag_ms"])
        if int(entry["acknowledged_at"]) > since_ms:
            first = int(entry["round_id"])
            kept |= {each for each, time_ms in replaced_at.items() if each >= first and time_ms > since_ms}
    return kept
