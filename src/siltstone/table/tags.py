"""Tags: names for states of a table, all partitions at one position, which no vacuum removes and every reader can ask for.

A tag is one entry of the table version's log. It names an object that has all a read needs to begin: the round of each
partition as the partition's log has it, and the deltas after it. So rounds may be forgotten and deltas trimmed: the vacuum
keeps files for as long as a tag names them. What is tagged while a vacuum goes on is safe by the mark that it commits to the
same log before it looks for the last time what is named: a tag that was planned before the mark is planned again.
"""

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes, CommitLog
from siltstone.log.horizon import new_file_name, refuse_late
from siltstone.log.inspect import Finding
from siltstone.log.state import Entry, LogState, decoding
from siltstone.model import COMPACTED_STREAM, Delta, PartitionLocator, PartitionValue
from siltstone.model.locators import check_path, check_tag, did_you_mean, split_table_name
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog
from siltstone.storage.layout import version_log
from siltstone.table.completion import (
    ROUND_PREFIX,
    Destination,
    compacted_partition,
    completion_objects,
    destination_in,
    find_problems,
    get_round,
    read_completion,
)
from siltstone.table.snapshot import (
    Choose,
    FollowedStream,
    Moment,
    PartitionSnapshot,
    TableSnapshot,
    take_snapshot,
)

TAG_PREFIX = "tag/"
SWEEP_KEY = "sweep"
"""The entry of a version's log that a vacuum replaces before it removes anything."""
_FOLDER = "tags"
_FORMAT = 1
_CONFLICTS = 20


@dataclass(frozen=True)
class Tag:
    """A name for a state of a table: the round of each partition by its id, 0 before the first, and the deltas after them.

    `rows` is how many there are; None where deltas wait, since only merging them tells.
    """

    name: str
    position: int
    rounds: Mapping[str, int]
    waiting_deltas: int
    rows: int | None
    created_at: int
    uri: str = field(metadata={"json": False})
    checksum: int = field(metadata={"json": False})


def add_tag(
    table: str,
    name: str,
    *,
    as_of: Moment | None = None,
    round_id: int | None = None,
    overwrite: bool = False,
    root: str,
) -> Tag:
    """Give a name to a state of a table: as compacted furthest, as of a position, a time or a tag, or after a round.

    A round can be named where the table has one partition. With `overwrite`, the name may be another state's until now.
    Raises: AlreadyExistsError, InvalidInputError, NotFoundError, CorruptionError, ConflictError.
    """
    check_tag(name)
    if as_of is not None and round_id is not None:
        raise InvalidInputError(f"{table}: a tag is of a position, a time or a round; give one of them")
    for _ in range(_CONFLICTS):
        stream = _stream_of(table, root)
        log = version_log(root, stream.version_folder)
        began, mark = log.read(lambda state: (state.batch_id, state.get(SWEEP_KEY)))
        if not overwrite:
            _refuse_existing(log.read(lambda state: state.get(f"{TAG_PREFIX}{name}")), table, name)
        snapshot = _at_round(take_snapshot(table, as_of=as_of, root=root), round_id)
        try:
            parts = [_stored(part, snapshot) for part in snapshot.partitions]
            return _commit(log, stream, _Planned(name, snapshot, parts, began, mark, overwrite))
        except ConflictError:
            continue
    raise ConflictError(f"{table}: vacuums came {_CONFLICTS} times while tag {name!r} was made; try again")


def _stream_of(table: str, root: str) -> StreamLog:
    stream = storage.find_stream(*split_table_name(table), root=root)
    version = stream.read(lambda state: state.version)
    if KIND.of(version.properties, table) != ROWS_KIND:
        raise InvalidInputError(
            f"{table}: is a table of documents, which has no tags; `siltstone documents hold` keeps a state of it"
        )
    return stream


def _refuse_existing(entry: Entry | None, table: str, name: str) -> None:
    if entry is not None:
        raise AlreadyExistsError(
            f"{table}: there is a tag {name!r} already, of position {entry['position']}; remove it first, or replace it"
        )


def _at_round(snapshot: TableSnapshot, round_id: int | None) -> TableSnapshot:
    """Return the state after a round. Raises: NotFoundError, InvalidInputError where there are several partitions."""
    if round_id is None:
        return snapshot
    if len(snapshot.partitions) != 1:
        raise InvalidInputError(
            f"{snapshot.name}: has {len(snapshot.partitions)} partitions, each with rounds of its own; tag a position or a time"
        )
    (part,) = snapshot.partitions
    completion = get_round(_destination(part, snapshot.root), round_id)
    streams = tuple(replace(stream, position=completion.high_watermark) for stream in snapshot.streams)
    return replace(
        snapshot, streams=streams, partitions=(replace(part, completion=completion, source=part.own, waiting=()),)
    )


def _stored(part: PartitionSnapshot, snapshot: TableSnapshot) -> Entry:
    """Return what a tag keeps of a partition. Raises: ConflictError where its round was vacuumed meanwhile."""
    if part.waiting and (part.source is None or part.source.stream_locator != part.own.stream_locator):
        raise InvalidInputError(
            f"{snapshot.name}: deltas of {part.source} wait, which belong to another table; compact {snapshot.name} first"
        )
    entry = None
    if part.completion is not None:
        key = f"{ROUND_PREFIX}{part.completion.round_id}"
        entry = _destination(part, snapshot.root).log.read(lambda state: state.get(key))
        if entry is None:
            raise ConflictError(f"{part.own}: round {part.completion.round_id} was vacuumed meanwhile; try again")
    return {
        "partition_values": list(part.own.partition_values),
        "partition_id": part.own.partition_id,
        "round": entry,
        "waiting": [delta.to_serializable() for delta in part.waiting],
    }


@dataclass(frozen=True)
class _Planned:
    name: str
    snapshot: TableSnapshot
    parts: Sequence[Entry]
    began: int
    mark: Entry | None
    is_replacing: bool

    def entry(self, uri: str, data: bytes, now_ms: int) -> Entry:
        waiting = sum(len(part["waiting"]) for part in self.parts)
        rows = sum(int(part["round"]["live_rows"]) for part in self.parts if part["round"] is not None)
        return {
            "name": self.name,
            "position": max(self.snapshot.positions.values()),
            "rounds": {
                part["partition_id"]: 0 if part["round"] is None else int(part["round"]["round_id"])
                for part in self.parts
            },
            "waiting_deltas": waiting,
            "rows": None if waiting else rows,
            "created_at": now_ms,
            "uri": uri,
            "checksum": zlib.crc32(data),
        }


def _commit(log: CommitLog, stream: StreamLog, planned: _Planned) -> Tag:
    """Write what a tag names, and commit it. Raises: ConflictError where a vacuum came since it was planned."""
    objects, key = open_objects(stream.root), f"{TAG_PREFIX}{planned.name}"
    uri = f"{stream.version_folder}/{_FOLDER}/{new_file_name(planned.began)}.json"
    data = orjson.dumps({"format_version": _FORMAT, "partitions": planned.parts})
    objects.create(uri, data)
    entry = planned.entry(uri, data, log.now_ms())

    def prepare(state: LogState) -> Changes:
        refuse_late(state, [uri], planned.snapshot.name)
        if state.get(SWEEP_KEY) != planned.mark:
            raise ConflictError(
                f"{planned.snapshot.name}: a vacuum came while tag {planned.name!r} was made; try again"
            )
        if not planned.is_replacing:
            _refuse_existing(state.get(key), planned.snapshot.name, planned.name)
        return {key: entry}

    try:
        log.commit("tag", prepare, action=Action("tag", {"tag": planned.name}))
    except (ConflictError, AlreadyExistsError):
        objects.delete([uri])
        raise
    return _tag(entry)


def list_tags(table: str, *, root: str) -> list[Tag]:
    """Return the tags of a table by name. Raises: NotFoundError, CorruptionError."""
    folder = storage.find_stream(*split_table_name(table), root=root).version_folder
    return sorted(tags_in(root, folder), key=lambda tag: tag.name)


def remove_tag(table: str, name: str, *, root: str) -> Tag:
    """Forget a tag; its files go with the next vacuum, unless something else names them. Raises: NotFoundError."""
    folder = storage.find_stream(*split_table_name(table), root=root).version_folder
    tag, key = find_tag(table, name, folder, root=root), f"{TAG_PREFIX}{name}"
    version_log(root, folder).commit(
        "untag", lambda state: {key: None} if key in state else {}, action=Action("untag", {"tag": name})
    )
    return tag


def find_tag(table: str, name: str, folder: str, *, root: str) -> Tag:
    """Return a tag by its name. Raises: InvalidInputError, NotFoundError that guesses which one was meant."""
    check_tag(name)
    tags = {tag.name: tag for tag in tags_in(root, folder)}
    if name not in tags:
        raise NotFoundError(f"{table}: there is no tag {name!r}{did_you_mean(name, list(tags))}")
    return tags[name]


def rounds_of_tag(table: str, name: str, *, root: str) -> Mapping[str, int]:
    """Return the round of each partition that a tag names. Raises: NotFoundError, InvalidInputError where deltas follow them."""
    tag = find_tag(table, name, storage.find_stream(*split_table_name(table), root=root).version_folder, root=root)
    if tag.waiting_deltas:
        raise InvalidInputError(
            f"{table}: tag {name!r} has {tag.waiting_deltas} deltas that no round had read, and changes go from round to round"
        )
    return tag.rounds


def tags_in(root: str, folder: str) -> list[Tag]:
    """Return the tags of the table version in a folder. Raises: CorruptionError."""
    return [_tag(entry) for entry in version_log(root, folder).read(lambda state: state.scan(TAG_PREFIX))]


def _tag(entry: Entry) -> Tag:
    with decoding(entry):
        return Tag(
            str(entry["name"]),
            int(entry["position"]),
            {str(key): int(number) for key, number in entry["rounds"].items()},
            int(entry["waiting_deltas"]),
            entry["rows"],
            int(entry["created_at"]),
            check_path(entry["uri"]),
            int(entry["checksum"]),
        )


def tagged_snapshot(table: str, name: str, choose: Choose | None = None, *, root: str) -> TableSnapshot:
    """Return the state of a table that a tag names, with the columns that the table has today.

    Raises: NotFoundError, CorruptionError, InvalidInputError.
    """
    stream = storage.find_stream(*split_table_name(table), root=root)
    version = stream.read(lambda state: state.version)
    tag = find_tag(table, name, stream.version_folder, root=root)
    is_chosen: Callable[[Sequence[PartitionValue]], bool] = (lambda _: True) if choose is None else choose(version)
    try:
        states = tag_states(tag, stream, is_chosen)
    except CorruptionError:
        # It may have been removed meanwhile, and its files vacuumed.
        find_tag(table, name, stream.version_folder, root=root)
        raise
    followed = FollowedStream(stream.locator, version, tag.position)
    left_out = len(tag.rounds) - len(states)
    return TableSnapshot(root, table, version, (followed,), tuple(states), left_out=left_out)


def tag_states(
    tag: Tag, stream: StreamLog, is_chosen: Callable[[Sequence[PartitionValue]], bool] = lambda _: True
) -> list[PartitionSnapshot]:
    """Return what a tag keeps of each partition. Raises: CorruptionError."""
    states = []
    for part in _parts(tag, stream.root):
        own = PartitionLocator(**stream.locator, partition_values=list(part["partition_values"]))
        if is_chosen(own.partition_values):
            destination = destination_in(stream.version_folder, compacted_partition(own), root=stream.root)
            completion = None if part["round"] is None else read_completion(destination, part["round"])
            waiting = [_named_today(Delta.from_serializable(delta), own) for delta in part["waiting"]]
            states.append(PartitionSnapshot(own, destination.folder, own, completion, waiting))
    return states


def _named_today(delta: Delta, own: PartitionLocator) -> Delta:
    today = {"namespace": own.namespace, "table": own.table}
    delta.locator = type(delta.locator)(**{**delta.locator, **today})
    return delta


def _parts(tag: Tag, root: str) -> list[Entry]:
    where = f"{root}/{tag.uri}"
    try:
        data = open_objects(root).read(tag.uri)
        if zlib.crc32(data) != tag.checksum:
            raise CorruptionError(f"{where}: what tag {tag.name!r} names is damaged (wrong checksum); restore it")
        content = orjson.loads(data)
        if content["format_version"] > _FORMAT:
            raise CorruptionError(f"{where}: tag {tag.name!r} is of a newer version of Siltstone; upgrade")
        parts: list[Entry] = content["partitions"]
        return parts
    except NotFoundError as error:
        raise CorruptionError(
            f"{where}: what tag {tag.name!r} names is missing; restore it, or remove the tag"
        ) from error
    except (TypeError, ValueError, KeyError) as error:
        raise CorruptionError(f"{where}: what tag {tag.name!r} names is damaged ({error}); restore it") from error


def named_by_tags(root: str, folder: str) -> set[str]:
    """Return all objects that a read of any tag of a table version needs. Raises: CorruptionError."""
    named: set[str] = set()
    for tag in tags_in(root, folder):
        named |= objects_of_tag(tag, root, folder, named)
    return named


def objects_of_tag(tag: Tag, root: str, folder: str, known: Collection[str] = ()) -> set[str]:
    """Return all objects that a read of a tag needs, but for rounds and pages that are known. Raises: CorruptionError."""
    named = {tag.uri}
    for destination, entry, deltas in _states(tag, root, folder):
        if entry is not None and entry["uri"] not in known:
            named |= {entry["uri"], *completion_objects(read_completion(destination, entry), known_pages=known)}
        named |= {file["uri"] for delta in deltas for file in delta["manifest"]["entries"]}
    return named


def _states(tag: Tag, root: str, folder: str) -> Iterator[tuple[Destination, Entry | None, list[Entry]]]:
    _, namespace, table, version = folder.split("/")
    for part in _parts(tag, root):
        locator = PartitionLocator(
            namespace=namespace,
            table=table,
            table_version=version.rpartition("-")[0],
            stream=COMPACTED_STREAM,
            partition_values=list(part["partition_values"]),
        )
        yield destination_in(folder, locator, root=root), part["round"], part["waiting"]


def tagged_rounds(root: str, folder: str) -> dict[str, set[int]]:
    """Return the rounds that tags name, by the ids of their partitions. Raises: CorruptionError."""
    rounds: dict[str, set[int]] = {}
    for tag in tags_in(root, folder):
        for partition_id, round_id in tag.rounds.items():
            rounds.setdefault(partition_id, set()).add(round_id)
    return rounds


def mark_sweep(root: str, folder: str, action: Action) -> None:
    """Let tags that are being made be planned again: files that nothing names, or rounds, are about to be removed."""
    log = version_log(root, folder)
    log.commit("vacuum", lambda state: {SWEEP_KEY: {"batch": state.batch_id + 1}}, action=action)


def check_tags(root: str, folder: str) -> list[Finding]:
    """Check that all that tags of a table version name is there, as large as it was."""
    findings = []
    for tag in tags_in(root, folder):
        action = "restore it from a copy, or remove the tag"
        try:
            for destination, entry, deltas in _states(tag, root, folder):
                if entry is not None:
                    completion = read_completion(destination, entry)
                    problems = find_problems(destination, completion.buckets)
                    findings += [
                        Finding("tag", uri, f"{why}; tag {tag.name!r} names it", action) for (uri, *_), why in problems
                    ]
                for file in [file for delta in deltas for file in delta["manifest"]["entries"]]:
                    info = open_objects(root).info(file["uri"])
                    if info is None or info.size != file["content_length"]:
                        message = f"is missing or has another size; tag {tag.name!r} names it"
                        findings.append(Finding("tag", file["uri"], message, action))
        except CorruptionError as error:
            findings.append(Finding("tag", tag.uri, str(error), action))
    return findings


def _destination(part: PartitionSnapshot, root: str) -> Destination:
    return Destination(compacted_partition(part.own), part.folder, root)
