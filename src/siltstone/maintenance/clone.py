"""Cloning a table: another one with the same rows, whose files are second names of the first one's, and so its own.

On local disk a second name takes no room, and a file is freed with its last name. An object store has no second names: there
the store itself copies, and no bytes come through this process. Either way neither table knows of the other: each is vacuumed,
erased from, published, backed up and dropped by itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from siltstone.errors import ConflictError, InvalidInputError, NotFoundError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes
from siltstone.log.state import Entry, LogState
from siltstone.maintenance.file_copies import Progress, for_each, link_object
from siltstone.model import DEFAULT_STREAM, Namespace, NamespaceLocator, PartitionLocator, Table
from siltstone.model.buckets import Bucket, Buckets
from siltstone.model.entities import VersionEntry
from siltstone.model.locators import split_table_name
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.model.rounds import Accounting, Origin, RoundCompletion
from siltstone.objects import LocalObjects, open_objects
from siltstone.storage import object_store as storage
from siltstone.storage import tables
from siltstone.storage.layout import (
    VERSION_KEY,
    catalog_log,
    delta_key,
    dropped_key,
    namespace_key,
    new_version_folder,
    partition_key,
    stream_key,
    table_key,
    version_log,
)
from siltstone.storage.versions import nameless
from siltstone.table.completion import (
    bucket_objects,
    commit_round,
    compacted_partition,
    destination_in,
    write_completion,
)
from siltstone.table.snapshot import Moment, PartitionSnapshot, TableSnapshot, take_snapshot

_ATTEMPTS = 20


@dataclass(frozen=True)
class CloneReport:
    """A table that was cloned, or would be: of which position, with how many rows that are compacted, in which files.

    `is_copied` where the store copied the files, since it has no second names.
    """

    source: str
    table: str
    dry_run: bool
    position: int
    rows: int
    waiting_deltas: int
    files: int
    bytes: int
    is_copied: bool


def clone_table(
    source: str,
    name: str,
    *,
    as_of: Moment | None = None,
    dry_run: bool = False,
    progress: Progress = lambda message: None,
    root: str,
) -> CloneReport:
    """Create a table with the columns, rules and rows of another: as compacted, as of a position or time, or of a tag.

    It appears by one commit, when all is there. Deltas up to that position are trimmed in it, but for those that wait.
    Raises: NotFoundError, AlreadyExistsError, InvalidInputError, ConflictError, CorruptionError.
    """
    namespace, table = split_table_name(name)
    catalog_log(root).read(lambda state: tables.refuse_existing_table(state, namespace, table, root))
    for _ in range(_ATTEMPTS):
        snapshot = take_snapshot(source, as_of=as_of, root=root)
        _refuse_others(snapshot)
        clone = _Clone(snapshot, namespace, table, root)
        if dry_run:
            return clone.report(dry_run=True)
        progress(f"Cloning {source}")
        try:
            clone.make()
        except NotFoundError:
            # A vacuum came meanwhile.
            continue
        return clone.report(dry_run=False)
    raise ConflictError(
        f"{source}: files were removed {_ATTEMPTS} times while it was cloned; try again when no vacuum runs"
    )


def _refuse_others(snapshot: TableSnapshot) -> None:
    if KIND.of(snapshot.version.properties, snapshot.name) != ROWS_KIND:
        raise InvalidInputError(f"{snapshot.name}: is a table of documents; only tables of rows are cloned")
    for part in snapshot.partitions:
        if part.waiting and (part.source is None or part.source.stream_locator != part.own.stream_locator):
            raise InvalidInputError(
                f"{snapshot.name}: deltas of {part.source} wait, which belong to another table; compact {snapshot.name} first"
            )


class _Clone:
    """One attempt: a folder that nobody knows, until the catalog does."""

    def __init__(self, snapshot: TableSnapshot, namespace: str, table: str, root: str) -> None:
        self._snapshot = snapshot
        self._root = root
        self._objects = open_objects(root)
        self._source_folder = storage.find_stream(*split_table_name(snapshot.name), root=root).version_folder
        self._locator = tables.new_table(namespace, table).locator
        self._number = snapshot.version.locator.table_version
        self._folder = new_version_folder(namespace, table, self._number)
        completions = [part.completion for part in snapshot.partitions if part.completion is not None]
        self._uris = dict.fromkeys(uri for each in completions for uri in bucket_objects(each.buckets))
        self._uris |= dict.fromkeys(entry.uri for delta in snapshot.waiting for entry in delta.manifest.entries)

    def report(self, *, dry_run: bool) -> CloneReport:
        snapshot = self._snapshot
        completions = [part.completion for part in snapshot.partitions if part.completion is not None]
        sizes = [each.content_length for each in completions]
        sizes += [delta.manifest.content_length for delta in snapshot.waiting]
        return CloneReport(
            snapshot.name,
            f"{self._locator.namespace}.{self._locator.table}",
            dry_run,
            max(snapshot.positions.values()),
            sum(each.live_rows for each in completions),
            len(snapshot.waiting),
            len(self._uris),
            sum(sizes),
            is_copied=not isinstance(self._objects, LocalObjects),
        )

    def make(self) -> None:
        """Raises: NotFoundError where a file was removed meanwhile, AlreadyExistsError."""
        log = catalog_log(self._root)
        # Whatever stops this, the folder is removed like that of a dropped table.
        left = {"table": self._locator.full_name, "dropped_at": log.now_ms()}
        log.commit("begin clone", lambda _: {dropped_key(self._folder): left})
        for_each(list(self._uris), lambda uri: link_object(self._objects, uri, self._moved(uri)), self._objects)
        version_log(self._root, self._folder).commit("clone", lambda _: dict(self._entries()))
        for part in self._snapshot.partitions:
            if part.completion is not None:
                self._commit_round(part, part.completion)
        log.commit("clone", self._appear, action=Action("clone", {"of": self._snapshot.name}, self._locator.full_name))

    def _moved(self, value: Any) -> Any:
        """Return a value in which all objects of the source are those of the clone."""
        if isinstance(value, dict):
            return {name: self._moved(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._moved(each) for each in value]
        if isinstance(value, str) and value.startswith(f"{self._source_folder}/"):
            return self._folder + value.removeprefix(self._source_folder)
        return value

    def _entries(self) -> Iterator[tuple[str, Entry]]:
        """Yield what the log of the clone begins with: all deltas of the source are trimmed, but for those that wait."""
        snapshot, now_ms = self._snapshot, self._objects.now_ms()
        known = version_log(self._root, self._source_folder).read(
            lambda state: {key: state.get(key) or {} for key in (VERSION_KEY, stream_key(DEFAULT_STREAM))}
        )
        yield VERSION_KEY, {**_plain(known[VERSION_KEY]), "created_at": now_ms}
        position = max(snapshot.positions.values())
        stream = {**_plain(known[stream_key(DEFAULT_STREAM)]), "created_at": now_ms, "stream_position": position}
        yield stream_key(DEFAULT_STREAM), stream
        for part in snapshot.partitions:
            segment, values = part.own.partition_id, list(part.own.partition_values)
            trimmed = 0 if part.completion is None else part.completion.high_watermark
            newest = max([trimmed, *(delta.stream_position for delta in part.waiting)])
            entry = {
                "values": values,
                "stream_position": newest,
                "trimmed_stream_position": trimmed,
                "created_at": now_ms,
            }
            yield partition_key(DEFAULT_STREAM, segment), entry
            for delta in part.waiting:
                own = {"values": list(delta.locator.partition_values), "stream_position": delta.stream_position}
                yield delta_key(DEFAULT_STREAM, delta.stream_position, segment), {**own, **self._moved(nameless(delta))}

    def _commit_round(self, part: PartitionSnapshot, before: RoundCompletion) -> None:
        own = PartitionLocator(
            **self._locator,
            table_version=self._number,
            stream=DEFAULT_STREAM,
            partition_values=list(part.own.partition_values),
        )
        destination = destination_in(self._folder, compacted_partition(own), root=self._root)
        buckets = [Bucket.from_serializable(self._moved(bucket.to_serializable())) for bucket in before.buckets]
        unchanged = {name: value for name, value in before.items() if name not in ("rolled_back_to", "repaired")}
        completion = RoundCompletion.from_serializable(
            {
                **unchanged,
                "round_id": 1,
                "previous_round_id": None,
                "source_partition_locator": own,
                "source_folder": f"{self._folder}/{DEFAULT_STREAM}/{own.partition_id}",
                "destination_partition_locator": destination.locator,
                "rebase_source_partition_locator": None,
                "origin": Origin(round_id=1),
                "buckets": Buckets.of(buckets),
                "deaths": None,
                "accounting": Accounting(added_rows=before.live_rows, live_rows=before.live_rows),
                "completed_at": self._objects.now_ms(),
            }
        )
        commit_round(destination, completion, write_completion(destination, completion, -1), None)

    def _appear(self, state: LogState) -> Changes:
        locator, now_ms = self._locator, self._objects.now_ms()
        tables.refuse_existing_table(state, locator.namespace, locator.table, self._root)
        if dropped_key(self._folder) not in state:
            raise ConflictError(f"{locator.full_name}: what was cloned was vacuumed before it was done; clone it again")
        changes: dict[str, Entry | None] = {dropped_key(self._folder): None}
        if namespace_key(locator.namespace) not in state:
            parent = Namespace(locator=NamespaceLocator(namespace=locator.namespace), created_at=now_ms)
            changes[namespace_key(locator.namespace)] = tables.namespace_entry(parent)
        made = Table(
            locator=locator, created_at=now_ms, versions=[VersionEntry(version=self._number, folder=self._folder)]
        )
        return {**changes, table_key(locator.namespace, locator.table): tables.table_entry(made)}


def _plain(entry: Mapping[str, Any]) -> Entry:
    return {name: value for name, value in entry.items() if name != "key"}
