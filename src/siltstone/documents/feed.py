"""Changes of documents in the order in which they were committed, without those that are redundant.

What a change did is told by the deltas up to its commit, and by nothing that came later: not by compaction, nor by when it is
asked. So the same positions have the same changes, whoever asks, and whenever.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import pyarrow as pa

from siltstone.documents.expand import Resolver, naming, parse_stored, state_of
from siltstone.documents.language.conditions import Condition
from siltstone.documents.language.parser import parse_condition
from siltstone.documents.language.values import UNDEFINED, Json, Value, strictly_equal, value_text
from siltstone.documents.read import TIME, Snapshot, bucket_rows, job_at
from siltstone.documents.recent import RecentDeltas
from siltstone.documents.record import Row, iso_time, order_key, to_ms
from siltstone.documents.schema import KEY, SCHEMA, DocumentRow, condition_name, group, rows_in
from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.log.state import Entry
from siltstone.model import Delta, PartitionLocator, TableVersion
from siltstone.model.locators import check_position
from siltstone.rows.columns import align
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamState
from siltstone.storage.parquet import read_data_file
from siltstone.table.change_feed import Images
from siltstone.table.completion import Destination, list_rounds
from siltstone.table.consumers import acknowledge_position, acknowledged_position
from siltstone.table.round_bounds import Bound, parse_bound, round_id, watermark
from siltstone.table.scan import destination_of
from siltstone.table.snapshot import PartitionSnapshot, take_snapshot

ChangeType = Literal["insert", "update", "delete"]
EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field(KEY, pa.string(), nullable=False),
        pa.field("change_id", pa.string(), nullable=False),
        pa.field("changed_at", TIME, nullable=False),
        pa.field("delta", pa.string()),
        pa.field("tags", pa.list_(pa.string()), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("content", pa.string()),
        pa.field("content_before", pa.string()),
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_position", pa.int64(), nullable=False),
        pa.field("_committed_at", TIME, nullable=False),
    ]
)
"""One row a change; contents are JSON, null where there is none."""

_BEFORE: Final = "content_before"
_TIMES: Final = [field.name for field in EVENT_SCHEMA if pa.types.is_timestamp(field.type)]
# Of so many rows of deltas, the documents are read together.
_WINDOW_ROWS: Final = 5000
_MOST_DOCUMENTS: Final = 20_000
_BATCH_EVENTS: Final = 1000

_T = TypeVar("_T")
_Commit: TypeAlias = tuple[int, int, list[DocumentRow]]
"""A position, its time, and rows of whole documents, sorted by key and change id."""


class DocumentChange(NamedTuple):
    """One change of a document, and the document after it, as of its commit; contents None means deleted.

    `delta` is None where the whole document came at once: from before the first position that is known, or imported with
    its compaction records.
    """

    key: str
    change_id: str
    changed_at_ms: int
    delta: str | None
    tags: tuple[str, ...]
    version: int
    content: dict[str, Json] | None
    content_before: dict[str, Json] | None
    change_type: ChangeType
    position: int
    committed_at_ms: int


@dataclass(frozen=True)
class DocumentFilter:
    """Which changes are wanted: of documents that meet a condition before or after them, with some tags and without others."""

    where: Condition | None = None
    tags: frozenset[str] = frozenset()
    without_tags: frozenset[str] = frozenset()

    def wants_tags(self, tags: Iterable[str]) -> bool:
        """Return whether changes with these tags are wanted."""
        own = frozenset(tags)
        return (not self.tags or bool(own & self.tags)) and not own & self.without_tags

    def wants(self, state: Resolver) -> bool:
        """Return whether a document, as it is, meets the condition."""
        return self.where is None or self.where.matches(state.content, state)


@dataclass(frozen=True)
class DocumentChanges:
    """The changes of documents after one position up to another; each of its methods reads them anew.

    Those of one commit are ordered by key, then by change id. `start` is the position of the state that comes first, as an insert of
    each document, where deltas from before it are trimmed.
    """

    root: str
    name: str
    version: TableVersion
    after: int
    upto: int
    wanted: DocumentFilter = DocumentFilter()
    images: Images = "both"
    consumer: str | None = None
    start: int | None = None
    _deltas: Sequence[Delta] = ()
    _destination: Destination | None = None
    _acknowledged: int | None = None

    def __repr__(self) -> str:
        return f"<DocumentChanges of {self.name} after position {self.after} up to {self.upto}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns of changes; `content_before` among them unless images are those after changes only."""
        place = EVENT_SCHEMA.get_field_index(_BEFORE)
        return EVENT_SCHEMA if self.images == "both" else EVENT_SCHEMA.remove(place)

    def __iter__(self) -> Iterator[DocumentChange]:
        tracker = _Tracker(self)
        if self.start is not None:
            yield from tracker.first_state(self.start)
        yield from tracker.changes(self._deltas)

    def to_batches(self) -> pa.RecordBatchReader:
        """Return a reader of the changes, with contents as JSON. Raises: CorruptionError, NotFoundError."""
        batches = (batch.select(self.schema.names) for batch in _batches(self))
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_fields(self) -> Iterator[dict[str, object]]:
        """Yield the changes as JSON values by the names of their columns; contents are maps. Raises: as `to_batches`."""
        for change in self:
            fields: dict[str, object] = dict(zip(EVENT_SCHEMA.names, change, strict=True))
            for name in _TIMES:
                fields[name] = iso_time(fields[name])  # type: ignore[arg-type]
            if self.images == "after":
                del fields[_BEFORE]
            yield fields

    def to_arrow(self) -> pa.Table:
        """Return the changes as an Arrow table. Raises: as `to_batches`."""
        return self.to_batches().read_all()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_batches().__arrow_c_stream__(requested_schema)

    def acknowledge(self) -> None:
        """Let the consumer go on after these changes next time, since it has taken all of them; one commit.

        Raises: InvalidInputError without a consumer; ConflictError where another process acknowledged for it meanwhile.
        """
        if self.consumer is None:
            raise InvalidInputError(f"{self.name}: these changes have no consumer that could acknowledge them")
        if self._destination is not None:
            acknowledge_position(self._destination, self.consumer, self.upto, self._acknowledged, self.version)


def open_document_changes(
    name: str,
    after: Bound | None = None,
    upto: Bound | None = None,
    *,
    where: str | Condition | None = None,
    tags: Iterable[str] = (),
    without_tags: Iterable[str] = (),
    images: Images = "both",
    consumer: str | None = None,
    root: str,
) -> DocumentChanges:
    """Return the changes of documents after a bound up to another: positions, times, or `round:12`.

    By default from the beginning up to the newest position. A consumer goes on after what it acknowledged; `after` then counts
    only if that is nothing. Raises: InvalidInputError, NotFoundError where deltas are trimmed, CorruptionError.
    """
    wanted = DocumentFilter(
        parse_condition(where) if isinstance(where, str) else where,
        frozenset(_names(tags)),
        frozenset(_names(without_tags)),
    )
    if images not in get_args(Images):
        raise InvalidInputError(f"{name}: unknown images {images!r}; use {' or '.join(get_args(Images))}")
    snapshot = take_snapshot(name, fresh=True, root=root)
    for partition in snapshot.partitions:
        destination = destination_of(partition, root)
        known = None if consumer is None else acknowledged_position(destination, consumer)
        ends = _Ends(name, partition, destination, max(stream.position for stream in snapshot.streams))
        first = ends.position(after, 0) if known is None else known
        last = min(ends.position(upto, ends.newest), ends.newest)
        ends.check(first, last)
        start, deltas = ends.deltas(first, last)
        return DocumentChanges(
            root, name, snapshot.version, first, last, wanted, images, consumer, start, deltas, destination, known
        )
    return DocumentChanges(root, name, snapshot.version, 0, 0, wanted, images, consumer)


def _names(tags: Iterable[str]) -> list[str]:
    return [tags] if isinstance(tags, str) else list(tags)


@dataclass(frozen=True)
class _Ends:
    """Where changes begin and end, in the stream of a partition."""

    name: str
    partition: PartitionSnapshot
    destination: Destination
    newest: int

    def position(self, bound: Bound | None, default: int) -> int:
        """Return the position that a bound stands for. Raises: InvalidInputError, NotFoundError."""
        bound = parse_bound(bound) if isinstance(bound, str) else bound
        if bound is None or isinstance(bound, int):
            return default if bound is None else check_position(bound, f"{self.name}: position")
        if isinstance(bound, str):
            number = int(bound.removeprefix("round:"))
            for entry in list_rounds(self.destination):
                if round_id(entry) == number:
                    return watermark(entry)
            raise NotFoundError(
                f"{self.name}: there is no round {number}, or none any more; `siltstone rounds` lists them"
            )
        if isinstance(bound, Mapping):
            raise InvalidInputError(f"{self.name}: changes of documents go by positions; give one, not {bound}")
        moment = bound
        return self._read(lambda state: state.position_at(moment))

    def check(self, first: int, last: int) -> None:
        """Check the order of positions. Raises: InvalidInputError, NotFoundError."""
        if first > self.newest:
            raise NotFoundError(f"{self.name}: there is no position {first} yet; the newest one is {self.newest}")
        if first > last:
            raise InvalidInputError(f"{self.name}: position {last} is before {first}; give bounds in their order")

    def deltas(self, first: int, last: int) -> tuple[int | None, Sequence[Delta]]:
        """Return the deltas after one position up to another, and the state to begin with where the first are trimmed."""
        partition_id = self._source.partition_id

        def read(state: StreamState) -> tuple[int, Sequence[Delta]]:
            found = state.partition(partition_id)
            return 0 if found is None else found.trimmed_stream_position, state.deltas(partition_id, first, last)

        trimmed, deltas = self._read(read)
        rounds = self._rounds_since_rebase()
        if trimmed <= first and (rounds is None or first >= max(1, min(map(watermark, rounds), default=0))):
            return None, deltas
        kept = [watermark(entry) for entry in rounds or list_rounds(self.destination) if watermark(entry) >= trimmed]
        if first > 0 or not kept or min(kept) > last:
            raise NotFoundError(
                f"{self.name}: changes after {first} are not known any more, since deltas up to {trimmed} are trimmed, or the "
                f"table was rebased; begin after {min(kept, default=trimmed)}, or from the beginning, with all documents"
            )
        start = min(kept)
        return start, [delta for delta in deltas if delta.stream_position > start]

    def _rounds_since_rebase(self) -> list[Entry] | None:
        """Return the rounds since documents came from elsewhere than from the deltas, None where they never did."""
        completion = self.partition.completion
        origin = None if completion is None else completion.origin
        if origin is None or origin.is_from_deltas:
            return None
        return [entry for entry in list_rounds(self.destination) if round_id(entry) >= origin.round_id]

    @property
    def _source(self) -> PartitionLocator:
        source = self.partition.source
        if source is None:
            raise NotFoundError(f"{self.name}: the table whose deltas it follows is gone, and with it their changes")
        return source

    def _read(self, query: Callable[[StreamState], _T]) -> _T:
        return storage.locate_stream(self._source, root=self.destination.root).read(query)


class _Document:
    """A document as of the last commit that was looked at."""

    def __init__(self, row: Row) -> None:
        self._set(row)

    def _set(self, row: Row) -> None:
        self.row = row
        self.state = state_of(row)
        self.changes = list(row.changes)
        self.ids = {change[0] for change in row.changes}
        cutoffs = [order_key(record.cutoff) for record in row.records if record.cutoff is not None]
        self.cutoff = max(cutoffs, default="")

    def add(self, change_id: str, delta: str, tags: Sequence[str] | None) -> bool:
        """Apply a change that was committed; return whether it is news: a new one that is not redundant.

        One that is redundant by itself may change what a condition on the signature, say, decided later in time.
        """
        before, key = self.state.content, order_key(change_id)
        if change_id in self.ids or key <= self.cutoff:
            return False
        self.ids.add(change_id)
        self.changes.append((change_id, delta, tags))
        self.row = self.row._replace(changes=self.changes)
        last = self.state.last_update_at
        if last is not None and key < order_key(last):
            # It comes late, and what comes after it in time may mean something else now.
            self.state = state_of(self.row)
            return change_id not in self.state.redundant or not strictly_equal(before, self.state.content)
        # What was shown of it must not change.
        self.state.is_own = False
        self.state.update(change_id, parse_stored(delta, change_id), tags)
        return self.state.redundant[-1:] != [change_id]

    def bring(self, row: Row) -> None:
        """Add what was imported, which has records."""
        self._set(
            self.row._replace(changes=[*self.row.changes, *row.changes], records=[*self.row.records, *row.records])
        )


class _Tracker:
    """Goes through commits, and remembers the documents that they changed."""

    def __init__(self, feed: DocumentChanges) -> None:
        self._feed = feed
        self._name = condition_name(feed.version.properties, feed.name)
        self._documents: dict[str, _Document] = {}
        # Its own, since others read what waits now, and this goes on from an earlier time.
        self._recent = RecentDeltas()

    def first_state(self, position: int) -> Iterator[DocumentChange]:
        """Yield all documents as of a position that a round has come to, as inserts."""
        snapshot = take_snapshot(self._feed.name, as_of=position, root=self._feed.root)
        job = job_at(snapshot)
        completions = [partition.completion for partition in snapshot.partitions if partition.completion is not None]
        committed_ms = max((completion.completed_at for completion in completions), default=0)
        wanted = self._feed.wanted
        for number in range(len(job.buckets)):
            for stored in bucket_rows(job, number, SCHEMA.empty_table()):
                with naming(self._feed.name, stored.row):
                    state = state_of(stored.row)
                last, tags = state.last_update_at, state.last_tags
                is_there = state.content is not UNDEFINED and wanted.wants_tags(tags) and wanted.wants(state)
                if last is not None and is_there:
                    yield _event(stored.row.key, last, None, tags, state, UNDEFINED, position, committed_ms)

    def changes(self, deltas: Sequence[Delta]) -> Iterator[DocumentChange]:
        """Yield the changes of deltas, by position, key and change id."""
        for commits in self._windows(deltas):
            self._read_documents(commits)
            for position, committed_ms, rows in commits:
                for key, own in groupby(rows, itemgetter(0)):
                    with naming(self._feed.name, self._documents[key].row):
                        yield from self._changes_of(self._documents[key], list(own), position, committed_ms)

    def _windows(self, deltas: Sequence[Delta]) -> Iterator[list[_Commit]]:
        """Yield commits together whose rows are as many as are read at once; of large ones, some documents at a time."""
        window: list[_Commit] = []
        count = 0
        for delta in deltas:
            parts = 0
            for rows in _some_documents(self._sorted_rows(delta)):
                window.append((delta.stream_position, delta.committed_at, rows))
                count, parts = count + len(rows), parts + 1
                if count >= _WINDOW_ROWS:
                    yield window
                    window, count = [], 0
            if parts > 1 and window:
                # The next commit goes on from all parts of this one.
                yield window
                window, count = [], 0
        if window:
            yield window

    def _sorted_rows(self, delta: Delta) -> pa.Table:
        files = [align(read_data_file(self._feed.root, entry), SCHEMA) for entry in delta.manifest.entries]
        return pa.concat_tables([SCHEMA.empty_table(), *files]).sort_by(KEY)

    def _read_documents(self, commits: Sequence[_Commit]) -> None:
        """Read the documents of commits that are not known yet, as of right before the first of them."""
        if len(self._documents) > _MOST_DOCUMENTS:
            self._documents = {}
        keys = dict.fromkeys(row[0] for _, _, rows in commits for row in rows)
        missing = [key for key in keys if key not in self._documents]
        if not missing:
            return
        feed = self._feed
        then = take_snapshot(feed.name, as_of=commits[0][0] - 1, kept=self._recent.completions, root=feed.root)
        state = Snapshot(feed.root, self._name, memory=self._recent)
        for partition in then.partitions:
            state = replace(state, folder=partition.folder, completion=partition.completion, deltas=partition.waiting)
        for key, stored in state.documents(missing).items():
            with naming(feed.name, stored.row):
                self._documents[key] = _Document(stored.row)

    def _changes_of(
        self, document: _Document, rows: Sequence[DocumentRow], position: int, committed_ms: int
    ) -> Iterator[DocumentChange]:
        """Yield what one commit changed of one document."""
        wanted, key = self._feed.wanted, document.row.key
        imported = group(rows, self._name).row
        if imported.records:
            before, version = document.state.content, document.state.version
            is_wanted = wanted.wants(document.state)
            document.bring(imported)
            state = document.state
            is_news = state.version != version and wanted.wants_tags(state.last_tags)
            if is_news and state.last_update_at is not None and (is_wanted or wanted.wants(state)):
                yield _event(key, state.last_update_at, None, state.last_tags, state, before, position, committed_ms)
            return
        for change_id, delta, tags in sorted(imported.changes, key=lambda change: order_key(change[0])):
            before, is_wanted = document.state.content, wanted.wants(document.state)
            is_news = document.add(change_id, delta, tags) and wanted.wants_tags(tags or ())
            if is_news and (is_wanted or wanted.wants(document.state)):
                yield _event(key, change_id, delta, tags or (), document.state, before, position, committed_ms)


def _some_documents(table: pa.Table) -> Iterator[list[DocumentRow]]:
    """Yield rows that are sorted by key, those of a document together, about as many as are read at once."""
    start = 0
    while start < table.num_rows:
        end = min(start + _WINDOW_ROWS, table.num_rows)
        keys = table.column(KEY)
        while end < table.num_rows and keys[end].equals(keys[end - 1]):
            end += 1
        yield list(rows_in(table.slice(start, end - start)))
        start = end


def _event(
    key: str,
    change_id: str,
    delta: str | None,
    tags: Iterable[str],
    state: Resolver,
    before: Value,
    position: int,
    committed_ms: int,
) -> DocumentChange:
    is_deleted = state.content is UNDEFINED
    change_type: ChangeType = "delete" if is_deleted else "insert" if before is UNDEFINED else "update"
    contents = _map(state.content), _map(before)
    made_ms, own_tags = to_ms(change_id), tuple(sorted(set(tags)))
    return DocumentChange(
        key, change_id, made_ms, delta, own_tags, state.version, *contents, change_type, position, committed_ms
    )


def _map(content: Value) -> dict[str, Json] | None:
    return content if isinstance(content, dict) else None


def _batches(changes: Iterable[DocumentChange]) -> Iterator[pa.RecordBatch]:
    """Yield changes as batches of `EVENT_SCHEMA`."""
    waiting = iter(changes)
    while some := list(islice(waiting, _BATCH_EVENTS)):
        columns = [list(column) for column in zip(*some, strict=True)]
        for place, name in enumerate(EVENT_SCHEMA.names):
            if name in ("content", _BEFORE):
                columns[place] = [None if each is None else value_text(each) for each in columns[place]]
            elif name in _TIMES:
                columns[place] = [each * 1000 for each in columns[place]]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
