"""The state of a compacted partition: its log of rounds, the completion files that it names, and the holds that keep deletions waiting."""

import uuid
import zlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import orjson

from siltstone.catalog import main as catalog
from siltstone.errors import ConflictError, CorruptionError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes, Commit, CommitLog, commit_log
from siltstone.log.horizon import new_round_name, refuse_late
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import COMPACTED_STREAM, Model, PartitionLocator, StreamLocator, TableVersion
from siltstone.model.buckets import Bucket, Totals, is_due
from siltstone.model.locators import check_path
from siltstone.model.properties import CLOSED_BEFORE_MS, FULL_CONSISTENCY_DELAY_MS
from siltstone.model.rounds import FORMAT_VERSION, RoundCompletion
from siltstone.objects import open_objects
from siltstone.rows.bucket_pages import page_reader, write_page
from siltstone.rows.index import plain_index_bytes
from siltstone.rows.job import PAGE_BUCKETS
from siltstone.rows.kept import Kept
from siltstone.storage import object_store as storage

CURRENT_KEY = "round"
ROUND_PREFIX = "round/"
HOLD_PREFIX = "hold/"
CONSUMER_PREFIX = "feed/"
DELTAS_AFTER = "deltas_after"
"""Of a consumer's entry, the position after which it needs deltas; only those of documents do."""
# About what a completion takes in memory: buckets of one page, or so much for each page.
_COMPLETION_BYTES = 1 << 18
_PAGE_BYTES = 2048


@dataclass(frozen=True)
class Destination:
    """Where a compacted partition is."""

    locator: PartitionLocator
    folder: str
    root: str

    @cached_property
    def log(self) -> CommitLog:
        """The log of its rounds and holds, the same one for as long as this is used."""
        return commit_log(self.root, f"{self.folder}/log")


class DestinationState(NamedTuple):
    """What the log of a compacted partition says at one moment: its newest batch, the current round, the holds, all rounds."""

    batch_id: int = -1
    current: Entry | None = None
    holds: tuple[Entry, ...] = ()
    rounds: tuple[Entry, ...] = ()

    @property
    def watermark(self) -> int:
        """The position up to which deltas are compacted, 0 before the first round."""
        return 0 if self.current is None else int(self.current["high_watermark"])

    @property
    def round_id(self) -> int | None:
        """The current round, None before the first."""
        return None if self.current is None else int(self.current["round_id"])


def locate_destination(partition: PartitionLocator, *, root: str) -> Destination:
    """Find a compacted partition's folder and log; neither needs to exist. Raises: NotFoundError without the table."""
    return destination_in(storage.locate_stream(partition, root=root).version_folder, partition, root=root)


def locate_compacted(own: PartitionLocator, *, root: str) -> Destination:
    """Find where a table keeps the compacted rows of a partition of its deltas. Raises: NotFoundError."""
    return locate_destination(compacted_partition(own), root=root)


def destination_in(version_folder: str, partition: PartitionLocator, *, root: str) -> Destination:
    """Return the folder and the log of a compacted partition of a table version whose folder is known."""
    return Destination(partition, f"{version_folder}/{partition.stream}/{partition.partition_id}", root)


def read_state(destination: Destination, *, with_rounds: bool = False) -> DestinationState:
    """Read the log of a compacted partition once. Raises: CorruptionError."""

    def read(state: LogState) -> DestinationState:
        rounds = tuple(state.scan(ROUND_PREFIX)) if with_rounds else ()
        return DestinationState(state.batch_id, state.get(CURRENT_KEY), tuple(state.scan(HOLD_PREFIX)), rounds)

    return destination.log.read(read)


def compacted_partition(source: PartitionLocator) -> PartitionLocator:
    """Return where a table keeps the compacted rows of a partition of its deltas."""
    return PartitionLocator(**{**source, "stream": COMPACTED_STREAM})


def source_partitions(name: str, *, root: str) -> list[PartitionLocator]:
    """Return the partitions of a table's deltas. Raises: NotFoundError."""
    stream = catalog.delta_stream(name, root=root)
    return [partition.locator for partition in storage.list_partitions(stream, root=root)]


def current_completion(destination: Destination, entry: Entry | None = None) -> RoundCompletion | None:
    """Return the completion of the round that is current, None before the first. Raises: CorruptionError.

    It is the round of `entry`, if that was read already, unless a vacuum forgot it since.
    """
    entry = entry or current_entry(destination)
    completion = None if entry is None else read_kept(destination, entry)
    return completion if entry is None or completion is not None else current_completion(destination)


def list_rounds(destination: Destination) -> list[Entry]:
    """Return what the log tells about each round, oldest first."""
    return destination.log.read(lambda state: state.scan(ROUND_PREFIX))


def get_round(destination: Destination, round_id: int) -> RoundCompletion:
    """Return the completion of one round. Raises: NotFoundError, CorruptionError."""
    entry = destination.log.read(lambda state: state.get(f"{ROUND_PREFIX}{round_id}"))
    if entry is None:
        raise _no_round(destination, round_id)
    completion = read_kept(destination, entry)
    if completion is None:
        raise _no_round(destination, round_id)
    return completion


def _no_round(destination: Destination, round_id: int) -> NotFoundError:
    return NotFoundError(f"{destination.locator}: there is no round {round_id}; `siltstone rounds` lists them")


def read_kept(destination: Destination, entry: Entry) -> RoundCompletion | None:
    """Read a round completion file; None where a vacuum forgot the round since its entry was read.

    Raises: CorruptionError where the log still has the round.
    """
    try:
        return read_completion(destination, entry)
    except CorruptionError:
        if is_kept(destination, entry):
            raise
        return None


def is_kept(destination: Destination, entry: Entry) -> bool:
    """Return whether the log still has a round, so that a file of it that is missing is damage."""
    key = f"{ROUND_PREFIX}{entry['round_id']}"
    return destination.log.read(lambda state: state.get(key)) is not None


KeptCompletions: TypeAlias = Kept[tuple[str, ...], RoundCompletion]
"""Round completions that a process has read, for readers that change nothing of them."""


def recall_completion(destination: Destination, entry: Entry, kept: KeptCompletions) -> RoundCompletion:
    """Return a completion that was kept, or keep it; it never changes once it is there. Raises: CorruptionError."""
    locator = destination.locator
    key = destination.root, locator.namespace, locator.table, str(entry["uri"]), str(entry["checksum"])
    completion = kept.get(key)
    if completion is None:
        completion = read_completion(destination, entry)
        kept.keep(key, completion, _COMPLETION_BYTES + _PAGE_BYTES * len(completion.buckets.pages))
    return completion


def read_completion(destination: Destination, entry: Entry) -> RoundCompletion:
    """Read a round completion file, with the names that tables have today. Raises: CorruptionError that names it."""
    with decoding(entry):
        uri, checksum = check_path(entry["uri"]), int(entry["checksum"])
    where = f"{destination.root}/{uri}"
    try:
        data = open_objects(destination.root).read(uri)
        if zlib.crc32(data) != checksum:
            raise CorruptionError(
                f"{where}: the round completion file is damaged (wrong checksum); restore it, or rebase the partition"
            )
        completion = RoundCompletion.from_serializable(orjson.loads(data))
        completion.buckets = completion.buckets.read_by(page_reader(destination.root))
        return _renamed(completion, destination.locator)
    except NotFoundError as error:
        raise CorruptionError(f"{where}: the round completion file is missing; restore it, or rebase") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(
            f"{where}: the round completion file is damaged ({error}); restore it, or rebase the partition"
        ) from error


def _renamed(completion: RoundCompletion, today: PartitionLocator) -> RoundCompletion:
    """Call the destination's own table by the name it has today, since tables can be renamed."""
    then = completion.destination_partition_locator
    places: list[tuple[Model, str]] = [
        (completion, "source_partition_locator"),
        (completion, "destination_partition_locator"),
        (completion, "rebase_source_partition_locator"),
        *([] if completion.origin is None else [(completion.origin, "partition")]),
    ]
    for model, name in places:
        known = model[name]
        if known is not None and (known.namespace, known.table) == (then.namespace, then.table):
            model[name] = PartitionLocator(**{**known, "namespace": today.namespace, "table": today.table})
    return completion


class Written(NamedTuple):
    """A round completion file that was written: where, the CRC-32 of its bytes, and what was written for it before."""

    uri: str
    checksum: int
    pages: tuple[str, ...] = ()
    deaths: str | None = None

    @property
    def uris(self) -> list[str]:
        """All that was written."""
        return [self.uri, *self.pages, *([] if self.deaths is None else [self.deaths])]


def write_completion(
    destination: Destination, completion: RoundCompletion, began: int, page_buckets: int = PAGE_BUCKETS
) -> Written:
    """Write a round completion file under a new name, which says at which batch of the log the round began.

    Pages of buckets that changed are written before, and the completion then names them.
    """
    before = {page.uri for page in completion.buckets.pages}
    write = partial(write_page, destination.root, destination.folder, began)
    completion.buckets = completion.buckets.stored(page_buckets, write).read_by(page_reader(destination.root))
    completion.format_version = max(completion.format_version, FORMAT_VERSION)
    path = f"{destination.folder}/rounds/{completion.round_id}-{new_round_name(began)}.json"
    data = orjson.dumps(completion.to_serializable())
    open_objects(destination.root).create(path, data)
    pages = tuple(page.uri for page in completion.buckets.pages if page.uri not in before)
    deaths = None if completion.deaths is None else completion.deaths.uri
    return Written(path, zlib.crc32(data), pages, deaths)


def commit_round(
    destination: Destination,
    completion: RoundCompletion,
    written: Written,
    planned_on: int | None,
    *,
    needs: Collection[int] = (),
    holds: Sequence[Entry] | None = None,
    more: Callable[[LogState], Changes] = lambda state: {},
    action: Action | None = None,
) -> None:
    """Make a round real, if the one it was planned on is still the current one and those it `needs` still there.

    With `holds`, also only if these are still all holds that there are. What `more` returns of the log's state is changed by the
    same commit, and an `action` that is more than a compaction is noted in it. Raises: ConflictError.
    """
    entry: Entry = {
        "round_id": completion.round_id,
        "uri": written.uri,
        "checksum": written.checksum,
        "high_watermark": completion.high_watermark,
        "source": str(completion.source_partition_locator),
        "source_folder": completion.source_folder,
        "completed_at": completion.completed_at,
        "live_rows": completion.live_rows,
        "record_count": completion.record_count,
        "files": completion.file_count,
        **_marks(completion),
    }

    def prepare(state: LogState) -> Changes:
        current = state.get(CURRENT_KEY)
        found = None if current is None else int(current["round_id"])
        if found != planned_on:
            raise ConflictError(
                f"{destination.locator}: round {completion.round_id} was planned on round {planned_on}, but round "
                f"{found} is current; plan again"
            )
        refuse_late(state, [written.uri], str(destination.locator))
        for needed in needs:
            if f"{ROUND_PREFIX}{needed}" not in state:
                raise ConflictError(
                    f"{destination.locator}: round {needed}, which round {completion.round_id} needs, was vacuumed; "
                    "plan again"
                )
        if holds is not None and state.scan(HOLD_PREFIX) != list(holds):
            raise ConflictError(
                f"{destination.locator}: holds changed while round {completion.round_id} was under way; plan again"
            )
        return {CURRENT_KEY: entry, f"{ROUND_PREFIX}{completion.round_id}": entry, **more(state)}

    destination.log.commit("round", prepare, action=action)


def _marks(completion: RoundCompletion) -> Entry:
    """Return when the partition has something to do even if no delta comes, so that the log alone tells."""
    totals = completion.buckets.totals
    marks = {"due_at": totals.due_at, "held_at": totals.held_at}
    return {name: time for name, time in marks.items() if time is not None}


def current_entry(destination: Destination) -> Entry | None:
    """Return what the log tells about the current round, None before the first."""
    return destination.log.read(lambda state: state.get(CURRENT_KEY))


class NamedObject(NamedTuple):
    """An object that a round completion file names, and how large it must be."""

    uri: str
    size: int
    kind: str


def named_objects(buckets: Iterable[Bucket]) -> Iterator[NamedObject]:
    """Yield everything that buckets name; what several share, for each of them."""
    for bucket in buckets:
        if bucket.tombstones is not None:
            yield NamedObject(bucket.tombstones.uri, bucket.tombstones.stored_length, "tombstone file")
        for file in bucket.files:
            yield NamedObject(file.uri, file.stored_length, "data file")
            if file.index_uri is not None:
                length = plain_index_bytes(file.record_count) if file.index_length is None else file.index_length
                yield NamedObject(file.index_uri, length, "primary key index")
            if file.deletion_vector is not None:
                yield NamedObject(file.deletion_vector.uri, file.deletion_vector.stored_length, "deletion vector")


def bucket_objects(buckets: Iterable[Bucket]) -> list[str]:
    """Return the paths of everything that buckets name, each once."""
    return list(dict.fromkeys(named_object.uri for named_object in named_objects(buckets)))


def completion_objects(completion: RoundCompletion, known_pages: Container[str] = ()) -> Iterator[str]:
    """Yield the paths of all that a round names: pages, and what is in them, but for pages that are known."""
    pages = completion.buckets.pages
    if completion.deaths is not None and completion.deaths.uri is not None:
        yield completion.deaths.uri
    if not pages:
        yield from bucket_objects(completion.buckets)
    for page in pages:
        if page.uri not in known_pages:
            yield page.uri
            yield from bucket_objects(completion.buckets.in_page(page))


def find_problems(destination: Destination, buckets: Iterable[Bucket]) -> list[tuple[NamedObject, str]]:
    """Return the objects that are missing or have another size, each with what is wrong; one listing tells them all."""
    listed = open_objects(destination.root).list_objects(destination.folder)
    sizes = {each.path: each.size for each in listed}
    problems = []
    for named_object in dict.fromkeys(named_objects(buckets)):
        found = sizes.get(named_object.uri)
        if found is None:
            problems.append((named_object, f"the {named_object.kind} is missing"))
        elif found != named_object.size:
            problems.append(
                (
                    named_object,
                    f"the {named_object.kind} is damaged: it has {found} bytes instead of {named_object.size}",
                )
            )
    return problems


def check_whole(destination: Destination, completion: RoundCompletion) -> None:
    """Check that all that a round names is there. Raises: CorruptionError that names what is missing or damaged."""
    problems = find_problems(destination, completion.buckets)
    if problems:
        first, problem = problems[0]
        others = f" ({len(problems) - 1} more objects of round {completion.round_id} are missing or damaged)"
        raise CorruptionError(
            f"{destination.root}/{first.uri}: {problem}; restore it from a copy, or rebase the partition"
            f"{others if len(problems) > 1 else ''}"
        )


def delay_of(properties: Mapping[str, str], where: object) -> int | None:
    """Return a table's delay of full consistency in milliseconds, None where it has none. Raises: InvalidInputError."""
    return FULL_CONSISTENCY_DELAY_MS.of(properties, where)


def closed_before(properties: Mapping[str, str]) -> int | None:
    """Return the time in milliseconds before which no change can be committed any more, None where it is open."""
    return CLOSED_BEFORE_MS.of(properties, "the table")


def close_stream(version: TableVersion, stream: StreamLocator, now_ms: int, *, root: str) -> bool:
    """Close a table's stream up to the delay before now; return whether the closing time advanced.

    `now_ms` is 0 where it is not sure what time it is: then nothing is closed. Raises: InvalidInputError.
    """
    delay = delay_of(version.properties, version.locator)
    if delay is None:
        return False
    before_ms, known = now_ms - delay, closed_before(version.properties)
    if before_ms <= 0 or (known is not None and known >= before_ms):
        return False
    return storage.close_stream(stream, before_ms=before_ms, root=root)


@dataclass(frozen=True)
class Hold:
    """Nothing of a time up to `since_ms` is deleted, until the hold is released or `until_ms` has come.

    It also keeps the state that it was made on: the round that was current then, None before the first, and the deltas
    after that round up to `stream_position`. Holds of earlier versions have no position, and keep no state.
    """

    hold_id: str
    since_ms: int
    until_ms: int
    reason: str = ""
    round_id: int | None = None
    high_watermark: int = 0
    stream_position: int | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps the state that it was made on."""
        return self.stream_position is not None


def add_hold(
    destination: Destination, *, since_ms: int, until_ms: int, reason: str = "", stream_position: int | None = None
) -> Hold:
    """Make deletions wait. From when this returns, no round can commit one, nor one that was planned before.

    What the stream has up to `stream_position` is kept as a state of the table, with the round that is current now.
    """

    def prepare(state: LogState) -> Commit[Hold]:
        current = state.get(CURRENT_KEY) or {}
        watermark = int(current.get("high_watermark", 0))
        # A round may have gone further than the position that was seen; then it is in the stream too.
        position = None if stream_position is None else max(stream_position, watermark)
        hold = Hold(uuid.uuid4().hex, since_ms, until_ms, reason, current.get("round_id"), watermark, position)
        return Commit({f"{HOLD_PREFIX}{hold.hold_id}": asdict(hold)}, hold)

    return destination.log.commit("hold", prepare).result


def release_hold(destination: Destination, hold_id: str) -> None:
    """End a hold. Raises: NotFoundError."""
    key = f"{HOLD_PREFIX}{hold_id}"

    def prepare(state: LogState) -> Changes:
        if key not in state:
            raise NotFoundError(f"{destination.locator}: there is no hold {hold_id!r}; it may be released already")
        return {key: None}

    destination.log.commit("release", prepare)


def list_holds(destination: Destination) -> list[Hold]:
    """Return all holds, also those whose time is over, in the order they were made."""
    return read_holds(read_state(destination).holds)


def read_holds(entries: Sequence[Entry]) -> list[Hold]:
    """Return the holds that a log tells of."""
    known = [field.name for field in fields(Hold)]
    return [Hold(**{name: entry[name] for name in known if name in entry}) for entry in entries]


def hold_floor(holds: Sequence[Hold], now_ms: int) -> int | None:
    """Return the time up to which nothing is deleted, None where nothing is held."""
    return min((hold.since_ms for hold in holds if hold.until_ms > now_ms), default=None)


def held_watermark(destination: Destination, now_ms: int) -> int | None:
    """Return the position after which deltas are needed, by states that holds keep and by consumers, None where none are."""
    kept = [hold.high_watermark for hold in list_holds(destination) if hold.keeps_state and hold.until_ms > now_ms]
    consumers = destination.log.recall(lambda state: state.scan(CONSUMER_PREFIX))
    kept += [
        int(entry[DELTAS_AFTER])
        for entry in consumers
        if DELTAS_AFTER in entry and int(entry["acknowledged_at"]) + int(entry["max_lag_ms"]) > now_ms
    ]
    return min(kept, default=None)


def is_partition_due(state: DestinationState, now_ms: int) -> bool:
    """Return, by the log alone, whether any bucket of a compacted partition has something to do by a time."""
    entry = state.current or {}
    marks = Totals(due_at=entry.get("due_at"), held_at=entry.get("held_at"))
    return is_due(marks, now_ms, hold_floor(read_holds(state.holds), now_ms))
