"""A table of documents, as a person holds it: update, get, scan, compact. Thin: each call goes to the layers below."""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.documents.commit import (
    complete_up_to,
    documents_destination,
    hold_documents,
    latest_ms,
    now_ms,
    write_files,
    write_updates,
)
from siltstone.documents.expand import naming
from siltstone.documents.feed import DocumentChanges, open_document_changes
from siltstone.documents.imports import Given, Import, ImportResult, given_documents
from siltstone.documents.intake import (
    ChangeIdLike,
    DeltaLike,
    KeyLike,
    Update,
    UpdateLike,
    check_key,
    checked_updates,
    table_updates,
)
from siltstone.documents.language import Condition, Json
from siltstone.documents.read import (
    DOCUMENT_SCHEMA,
    files_with,
    job_of,
    pushed_dataset,
    resolved,
    scan_tables,
    scanned_documents,
    snapshot_of,
    to_document,
)
from siltstone.documents.record import check_change_id
from siltstone.documents.schema import KEY, SCHEMA, StoredRow, condition_name
from siltstone.documents.timeline import (
    HISTORY_SCHEMA,
    HistoryEntry,
    TimelineEvent,
    history_of,
    history_tables,
    timeline_of,
)
from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.ingest.document_lines import read_lines, read_objects
from siltstone.ingest.drop_options import TakenRows
from siltstone.lake import EngineName, Lake, Table, choose_engine
from siltstone.log.inspect import Finding
from siltstone.maintenance.vacuum import ORPHAN_GRACE_MS, ROUND_RETENTION_MS, VacuumReport
from siltstone.model import Idempotency, TableRules
from siltstone.model.properties import (
    DOCUMENTS_KIND,
    DOCUMENTS_NAME,
    FULL_CONSISTENCY_DELAY_MS,
    HISTORY_RETENTION_SECONDS,
    KEEP_HISTORY,
    KIND,
    MAX_DELAY_MS,
    ROW_GROUP_ROWS,
)
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.events import Progress
from siltstone.rounds.request import TableRequest
from siltstone.rounds.session import SessionResult, compact_table
from siltstone.table.change_feed import Images
from siltstone.table.completion import Destination, Hold, delay_of, list_holds, release_hold
from siltstone.table.consumers import Consumer
from siltstone.table.round_bounds import Bound

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from siltstone.table.dataset import PushedDataset

DEFAULT_DELAY_MS = 5 * 60 * 1000
When = int | datetime.datetime
"""A time: milliseconds since 1970, or a datetime."""

_ROW_GROUP_ROWS = 1024
Document = dict[str, Json]


class ChangeStatus(NamedTuple):
    """The outcome of a change: `pending` until it is visible, `redundant` if it changed nothing, otherwise `resolved`."""

    state: Literal["resolved", "redundant", "pending"]
    document: Document


def create_document_table(
    lake: Lake,
    name: str,
    *,
    full_consistency_delay: float | datetime.timedelta = DEFAULT_DELAY_MS / 1000,
    keep_history: bool | datetime.timedelta = False,
    description: str = "",
    properties: Mapping[str, str] | None = None,
) -> "DocumentTable":
    """Create a document table. Raises: AlreadyExistsError, InvalidInputError.

    The times of changes may be as far back as the delay, in seconds; older times are complete, and can be compacted.
    With `keep_history`, compaction keeps each delta that it absorbs, forever or for that long, see
    `DocumentTable.history`.
    """
    delay = full_consistency_delay
    delay_ms = round((delay.total_seconds() if isinstance(delay, datetime.timedelta) else delay) * 1000)
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise InvalidInputError(f"{name}: a full consistency delay of {delay_ms} ms is not from 0 to {MAX_DELAY_MS}")
    version = catalog.create_table(
        name,
        schema=SCHEMA,
        rules=TableRules(primary_keys=[KEY], drop_duplicates=False),
        description=description,
        properties={
            ROW_GROUP_ROWS.name: str(_ROW_GROUP_ROWS),
            **_history_properties(keep_history),
            **(properties or {}),
        },
        reserved_properties={
            KIND.name: DOCUMENTS_KIND,
            FULL_CONSISTENCY_DELAY_MS.name: str(delay_ms),
            DOCUMENTS_NAME.name: name,
        },
        root=lake.root,
    )
    return DocumentTable(lake, version.locator.table_locator.full_name)


def _history_properties(keep_history: bool | datetime.timedelta) -> dict[str, str]:
    if isinstance(keep_history, datetime.timedelta):
        seconds = keep_history.total_seconds()
        return {KEEP_HISTORY.name: "true", HISTORY_RETENTION_SECONDS.name: f"{seconds:.15g}"}
    return {KEEP_HISTORY.name: "true"} if keep_history else {}


class DocumentTable:
    """A table of JSON documents, each the result of its deltas. Its methods always reflect the newest state."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake = lake
        self.table = Table(lake, name)
        # The kind of a table never changes.
        version = catalog.get_table_version(name, recall=True, root=lake.root)
        if KIND.of(version.properties, name) != DOCUMENTS_KIND:
            raise InvalidInputError(f"{name}: is a table of rows, not of documents; open it with lake.table({name!r})")

    def __repr__(self) -> str:
        return f"DocumentTable({self.name!r} in {self.lake.root!r})"

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def full_consistency_delay(self) -> datetime.timedelta:
        """How far back the times of changes may be."""
        return datetime.timedelta(milliseconds=delay_of(self.table.properties, self.name) or 0)

    def update(
        self, key: KeyLike, delta: DeltaLike, tags: Sequence[str] = (), change_id: ChangeIdLike | None = None
    ) -> str:
        """Apply a delta to a document, as one commit; return its change id.

        With a change id it is safe to repeat the update: the same change counts once. Raises: InvalidInputError, also
        if the time of the id is already complete; AlreadyExistsError if another delta has this id.
        """
        (update,) = checked_updates([{"key": key, "delta": delta, "tags": tags, "change_id": change_id}])
        (written,) = write_updates(self.name, [update], root=self.lake.root) or [update]
        return str(written.change_id)

    def update_many(self, updates: "Iterable[UpdateLike] | pa.Table | pa.RecordBatch | DataFrame") -> int:
        """Apply many deltas as one commit; return how many of them are new.

        Updates are tuples (key, delta), optionally with tags and change id, mappings with these names, or a table or
        data frame with these columns; a Spark data frame is checked and written by Spark. The same delta under the
        same change id counts once. Raises: InvalidInputError, AlreadyExistsError if two deltas of a document share a
        change id; then nothing is written.
        """
        root = self.lake.root
        if updates.__class__.__module__.startswith("pyspark."):
            from siltstone.spark.write import stage_updates

            frame = cast("DataFrame", updates)
            return write_files(
                self.name,
                lambda stream: stage_updates(frame, stream, now_ms=now_ms(root), root=root),
                have_ids="change_id" in frame.columns,
                root=root,
            )
        rows = table_updates(updates) if isinstance(updates, pa.Table | pa.RecordBatch) else updates
        checked = list(checked_updates(cast("Iterable[UpdateLike]", rows)))
        return len(write_updates(self.name, checked, root=root))

    def take_files(
        self,
        files: Sequence[str],
        how: Mapping[str, object],
        idempotency: Idempotency | None,
        before_commit: Callable[[], None],
        *,
        dry_run: bool,
        progress: Callable[[str], None],
    ) -> TakenRows:
        """Apply the updates in files of a watched folder, JSON lines as for `update_many`; see `Target`."""
        if how.get("format", "jsonl") != "jsonl" or how.keys() - {"format"}:
            raise InvalidInputError(f"{self.name}: takes documents as JSON lines and no other options, not {dict(how)}")
        updates: list[Update] = []
        for file in files:
            progress(f"Reading {file}: {len(updates):,} updates")
            try:
                updates += checked_updates(read_objects(file, '{"key": …, "delta": …}'))
            except InvalidInputError as error:
                raise error if file in str(error) else InvalidInputError(f"{file}: {error}") from error
        before_commit()
        if not dry_run:
            write_updates(self.name, updates, idempotency=idempotency, root=self.lake.root)
        return TakenRows(len(updates), None)

    def import_documents(
        self,
        documents: Iterable[Mapping[str, object]],
        *,
        skip_existing: bool = False,
        rejects: str | None = None,
        dry_run: bool = False,
        progress: Callable[[str], None] = lambda _: None,
    ) -> ImportResult:
        """Import documents of another store with their past: deltas and compaction records of any time.

        Each document is `{"key": …, "deltas": [{"id", "delta", "tags"}], "compactions": […], "history": […]}`, or has
        `cells` in the encoding of that store. Legacy records, whose content is in the delta at their cutoff, are
        converted when they are compacted. A document is imported only if nothing of it is stored yet; documents that
        were imported before are recognized, so an interrupted import can be repeated. Every 10,000 documents are one
        commit. Documents that do not fit go to a file in the folder `rejects`. Raises: InvalidInputError without
        `rejects`; AlreadyExistsError if something else is stored of a document and neither `rejects` nor
        `skip_existing` is given. Then nothing of that batch is written, nor anything after it.
        """
        return self._import(given_documents(documents), skip_existing, rejects, dry_run, progress)

    def import_file(
        self,
        file: str,
        *,
        skip_existing: bool = False,
        rejects: str | None = None,
        dry_run: bool = False,
        progress: Callable[[str], None] = lambda _: None,
    ) -> ImportResult:
        """Import the documents of a JSON lines file, or of standard input for `-`; see `import_documents`."""
        lines = read_lines(file, '{"key": …, "deltas": […], "compactions": […]}')
        given = (Given(line.place, line.value, line.text) for line in lines)
        return self._import(given, skip_existing, rejects, dry_run, progress)

    def _import(
        self,
        given: Iterable[Given],
        skip_existing: bool,
        rejects: str | None,
        dry_run: bool,
        progress: Callable[[str], None],
    ) -> ImportResult:
        return Import(
            self.name,
            skip_existing=skip_existing,
            dry_run=dry_run,
            rejects=rejects,
            progress=progress,
            root=self.lake.root,
        ).run(given)

    def get(self, key: KeyLike) -> Document:
        """Return a document, even one that is deleted or was never written; see its keys `~deleted` and `~version`.

        Raises: CorruptionError.
        """
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[KeyLike]) -> list[Document]:
        """Return documents in the order of their keys, see `get`. Raises: CorruptionError."""
        wanted = [check_key(key) for key in keys]
        rows = snapshot_of(self.name, root=self.lake.root).documents(wanted)
        return [to_document(resolved(self.name, rows[key].row), rows[key].row) for key in wanted]

    def get_for_change(self, key: KeyLike, change_id: ChangeIdLike) -> ChangeStatus:
        """Return the outcome of a change, with the document as it is now. Raises: InvalidInputError, CorruptionError."""
        wanted = check_change_id(change_id)
        row = self._stored(key).row
        expansion = resolved(self.name, row)
        document = to_document(expansion, row)
        if expansion.is_pending(wanted, complete_up_to(self.name, root=self.lake.root)):
            return ChangeStatus("pending", document)
        return ChangeStatus("redundant" if expansion.is_redundant(wanted) else "resolved", document)

    def timeline(self, key: KeyLike) -> list[TimelineEvent]:
        """Return everything known about a document in order of time: deltas with their effect, and compactions.

        This includes deltas that only the history has. Raises: CorruptionError.
        """
        stored = self._stored(key)
        with naming(self.name, stored.row):
            return timeline_of(stored, resolved(self.name, stored.row))

    def history(self, key: KeyLike) -> list[HistoryEntry]:
        """Return the changes of a document in order of time, with the version and the content after each.

        The table must keep its history. Changes that were absorbed before it did, were too large to keep, or are past
        the retention are missing, as gaps in the versions show. Raises: InvalidInputError if it keeps none,
        CorruptionError.
        """
        self._check_history()
        return history_of(self.name, self._stored(key))

    def _check_history(self) -> None:
        if not KEEP_HISTORY.of(self.table.properties, self.name):
            raise InvalidInputError(
                f"{self.name}: keeps no history, so deltas that are compacted are gone; set the property "
                f"{KEEP_HISTORY.name}=true to keep those that are compacted from then on"
            )

    def files_of(self, key: KeyLike) -> list[str]:
        """Return the paths, under the root, of all files that contain anything of a document.

        These are deltas, and compacted files of all rounds that are kept: with deltas, records and history.
        Raises: CorruptionError.
        """
        return files_with(self.name, check_key(key), root=self.lake.root)

    def changes(
        self,
        after: Bound | None = None,
        upto: Bound | None = None,
        *,
        where: str | Condition | None = None,
        tags: Iterable[str] = (),
        without_tags: Iterable[str] = (),
        images: Images = "both",
        consumer: str | None = None,
    ) -> DocumentChanges:
        """Return the changes of documents between two bounds, in the order of commits, without redundant ones.

        Each has the document after it, and before it unless `images` is `after`. Bounds are stream positions, times,
        or `round:12`; by default from the beginning up to the newest position. `where` selects changes of documents
        that meet a condition before or after them, `tags` changes with one of these tags, and `without_tags` changes
        with none of them. A `consumer` continues after what it acknowledged; call `acknowledge` when all changes are
        processed.
        Raises: InvalidInputError, NotFoundError if deltas of that time are trimmed, CorruptionError.
        """
        return open_document_changes(
            self.name,
            after,
            upto,
            where=where,
            tags=tags,
            without_tags=without_tags,
            images=images,
            consumer=consumer,
            root=self.lake.root,
        )

    def consumers(self) -> list[Consumer]:
        """Return the consumers of changes, and how far each one is. Raises: CorruptionError."""
        return self.table.consumers()

    def remove_consumer(self, name: str) -> None:
        """Remove a consumer of changes, so that nothing is kept for it any more. Raises: NotFoundError."""
        self.table.remove_consumer(name)

    def scan(
        self, spark: "SparkSession | None" = None, *, hold: Hold | str | None = None, include_deleted: bool = False
    ) -> Iterator[Document]:
        """Yield all documents as `get` returns them, in no particular order; read by Spark if a session is given.

        With a hold, documents are as they were at its time. Raises: InvalidInputError, CorruptionError.
        """
        name = condition_name(self.table.properties, self.name)
        held = self._hold(hold)
        tables = (
            scan_tables(job_of(self.name, held, root=self.lake.root), held, include_deleted=include_deleted)
            if spark is None
            else [self.to_spark(spark, hold=held, include_deleted=include_deleted).toArrow()]
        )
        for table in tables:
            yield from scanned_documents(table, name)

    def to_dataset(self, *, history: bool = False) -> "PushedDataset":
        """Return all current documents as an Arrow data set, with the columns of `to_spark`.

        With `history`, it has one row per change instead, see `history`. An engine such as DuckDB reads only what it
        needs.
        Raises: InvalidInputError, CorruptionError.
        """
        job = job_of(self.name, root=self.lake.root)
        if history:
            self._check_history()
            return pushed_dataset(HISTORY_SCHEMA, lambda: history_tables(job))
        return pushed_dataset(DOCUMENT_SCHEMA, lambda: scan_tables(job, None, include_deleted=False))

    def to_spark(
        self,
        spark: "SparkSession",
        *,
        hold: Hold | str | None = None,
        include_deleted: bool = False,
        history: bool = False,
    ) -> "DataFrame":
        """Return a data frame with one row per document: key, content as JSON, version, signature, deleted and times.

        In SQL, use `get_json_object(content, '$.path')` or `parse_json(content)`. With a hold, documents are as they
        were at its time. With `history`, it has one row per change, with the content after it. Raises:
        InvalidInputError, CorruptionError.
        """
        from siltstone.spark.frames import documents_on_spark, history_on_spark

        if history:
            self._check_history()
            return history_on_spark(spark, job_of(self.name, root=self.lake.root))
        held = self._hold(hold)
        return documents_on_spark(
            spark, job_of(self.name, held, root=self.lake.root), hold=held, include_deleted=include_deleted
        )

    def compact(
        self,
        now: When | None = None,
        spark: "SparkSession | None" = None,
        progress: Progress | None = None,
        full: bool = False,
        engine: EngineName = "spark",
    ) -> SessionResult:
        """Compact documents with new deltas, or that are due, as of `now`; `full` rewrites all buckets.

        Runs on the given Spark session, or on one in this process, which is started only if there is something to do;
        with `engine="local"` in this process, without Spark and Java. Raises: CorruptionError, ConflictError if other
        processes keep committing first.
        """
        request = TableRequest(self.name, self.lake.root, full=full, now_ms=None if now is None else _to_ms(now))
        results = compact_table(request, choose_engine(engine, spark, progress), progress)
        return results[0] if results else SessionResult()

    def hold(self, *, until: When | datetime.timedelta, reason: str = "", since: When | None = None) -> Hold:
        """Keep the current state for an export that runs until a given time.

        Reads with the hold return what was committed before it, up to its time, whatever is written or compacted
        later; `since` sets an earlier time. Compaction continues and writes records; its deletions wait.
        Raises: InvalidInputError, also if deltas that an earlier time needs are already deleted.
        """
        since_ms = latest_ms(self.name, root=self.lake.root) if since is None else _to_ms(since)
        is_span = isinstance(until, datetime.timedelta)
        until_ms = since_ms + round(until.total_seconds() * 1000) if is_span else _to_ms(until)  # type: ignore[union-attr, arg-type]
        return hold_documents(self.name, since_ms=since_ms, until_ms=until_ms, reason=reason, root=self.lake.root)

    def holds(self) -> list[Hold]:
        """Return the active holds, oldest first."""
        return [hold for hold in list_holds(self._destination()) if hold.until_ms > now_ms(self.table.lake.root)]

    def release(self, hold: Hold | str) -> None:
        """End a hold before its time. Raises: NotFoundError."""
        release_hold(self._destination(), hold if isinstance(hold, str) else hold.hold_id)

    def rounds(self) -> list[RoundCompletion]:
        """Return the round completions, oldest first. Raises: CorruptionError."""
        return self.table.rounds()

    def fsck(self, *, deep: bool = False) -> list[Finding]:
        """Check logs, files, deletion vectors and indices; `deep` also reads every row. An empty list means no problems."""
        return self.table.fsck(deep=deep)

    def vacuum(
        self, *, retention_ms: int = ROUND_RETENTION_MS, orphan_grace_ms: int = ORPHAN_GRACE_MS, dry_run: bool = False
    ) -> VacuumReport:
        """Forget rounds past the retention, and remove files that no readable state names."""
        return self.table.vacuum(retention_ms=retention_ms, orphan_grace_ms=orphan_grace_ms, dry_run=dry_run)

    def drop(self) -> None:
        """Drop the table; its files stay until they are vacuumed."""
        self.table.drop()

    def _destination(self) -> Destination:
        return documents_destination(self.name, root=self.lake.root)

    def _stored(self, key: KeyLike) -> StoredRow:
        wanted = check_key(key)
        return snapshot_of(self.name, root=self.lake.root).documents([wanted])[wanted]

    def _hold(self, hold: Hold | str | None) -> Hold | None:
        if hold is None:
            return None
        wanted = hold if isinstance(hold, str) else hold.hold_id
        for kept in self.holds():
            if kept.hold_id == wanted:
                return kept
        raise NotFoundError(f"{self.name}: there is no hold {wanted!r} that is still on; make a new one")


def _to_ms(when: When) -> int:
    if isinstance(when, datetime.datetime):
        if when.tzinfo is None:
            raise InvalidInputError(f"{when.isoformat()} has no time zone; give one, e.g. datetime.now(UTC)")
        return int(when.timestamp() * 1000)
    return when
