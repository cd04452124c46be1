"""A table of documents, as a person holds it: update, get, scan, compact. Thin: each call goes to the layers below."""

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.documents.cases import ImportResult, check_complete, imported_rows
from siltstone.documents.change_ids import check_change_id, iso_time, new_change_id, order_key
from siltstone.documents.commit import commit_changes, complete_up_to, latest_ms, now_ms, refuse_skew
from siltstone.documents.intake import (
    ChangeIdLike,
    ChangeKey,
    DeltaLike,
    KeyLike,
    Stored,
    Update,
    UpdateLike,
    batch_updates,
    check_columns,
    check_key,
    checked_updates,
    not_stored,
    with_own_ids,
)
from siltstone.documents.language import Json
from siltstone.documents.read import (
    Snapshot,
    TimelineEvent,
    bucket_documents,
    bucket_rows,
    earliest_of,
    hash_changes,
    job_of,
    known_from_ms,
    resolved,
    snapshot_of,
    timeline_of,
    to_document,
    unabsorbed,
)
from siltstone.documents.record import Row
from siltstone.documents.resolve import HistoryEntry, history_of
from siltstone.documents.schema import KEY, SCHEMA, WRITTEN_SCHEMA, grouped, stored_batches, stored_table
from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from siltstone.lake import EngineName, Lake, Table, choose_engine
from siltstone.log.inspect import Finding
from siltstone.maintenance.vacuum import ORPHAN_GRACE_MS, ROUND_RETENTION_MS, VacuumReport
from siltstone.model import Delta, ManifestEntry, PartitionLocator, StreamLocator, TableRules
from siltstone.model.properties import (
    DOCUMENTS_KIND,
    DOCUMENTS_NAME,
    FULL_CONSISTENCY_DELAY_MS,
    KEEP_HISTORY,
    KIND,
    MAX_DELAY_MS,
    ROW_GROUP_ROWS,
)
from siltstone.model.rounds import RoundCompletion
from siltstone.rounds.events import Progress
from siltstone.rounds.request import Request, TableRequest
from siltstone.rounds.session import SessionResult, compact_table
from siltstone.rows.job import RoundJob
from siltstone.rows.parts import GatheredParts, read_parts
from siltstone.storage import object_store as storage
from siltstone.storage.parquet import read_data_file
from siltstone.table.completion import (
    Destination,
    compacted_partition,
    locate_destination,
)
from siltstone.table.holds import (
    Hold,
    add_hold,
    close_stream,
    closed_before,
    delay_of,
    list_holds,
    release_hold,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_DELAY_MS = 5 * 60 * 1000
When = int | datetime.datetime
"""A time: milliseconds since 1970, or a datetime."""

_ROW_GROUP_ROWS = 4096
_BATCH_KEYS = 1000
Document = dict[str, Json]


class ChangeStatus(NamedTuple):
    """What became of a change: `pending` until it can be seen, `redundant` where it changed nothing, else `resolved`."""

    state: Literal["resolved", "redundant", "pending"]
    document: Document


def create_document_table(
    lake: Lake,
    name: str,
    *,
    full_consistency_delay: float | datetime.timedelta = DEFAULT_DELAY_MS / 1000,
    keep_history: bool = False,
    description: str = "",
    properties: Mapping[str, str] | None = None,
) -> "DocumentTable":
    """Create a table of documents. Raises: AlreadyExistsError, InvalidInputError.

    Changes may carry times as far back as the delay, in seconds; older ones are complete, and compacted. With
    `keep_history`, compaction keeps each delta that it absorbs, see `DocumentTable.history`.
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
            **({KEEP_HISTORY.name: "true"} if keep_history else {}),
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


class DocumentTable:
    """A table of JSON documents, each the sum of its deltas; what it tells is always the newest."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake = lake
        self.table = Table(lake, name)
        if KIND.of(self.table.properties, name) != DOCUMENTS_KIND:
            raise InvalidInputError(f"{name}: is a table of rows, not of documents; open it with lake.table({name!r})")

    def __repr__(self) -> str:
        return f"DocumentTable({self.name!r} in {self.lake.root!r})"

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name

    @property
    def full_consistency_delay(self) -> datetime.timedelta:
        """How far back changes may carry their times."""
        return datetime.timedelta(milliseconds=delay_of(self.table.properties, self.name) or 0)

    def update(
        self, key: KeyLike, delta: DeltaLike, tags: Sequence[str] = (), change_id: ChangeIdLike | None = None
    ) -> str:
        """Apply a delta to a document, as one commit; return its change id.

        With a change id it is safe to update again: the same one counts once. Raises: InvalidInputError, also where
        the id is of a time that is complete already; AlreadyExistsError where it is the id of another delta.
        """
        (update,) = checked_updates([{"key": key, "delta": delta, "tags": tags, "change_id": change_id}])
        written = self._write([update])
        if not written:
            assert update.change_id is not None
            return update.change_id
        found: str = written[0].column("change_id")[0].as_py()
        return found

    def update_many(self, updates: "Iterable[UpdateLike] | pa.Table | pa.RecordBatch | DataFrame") -> int:
        """Apply many deltas as one commit; return how many there are without those that were there already.

        Updates are (key, delta) with tags and change id where there are any, or mappings of these names, or a table or
        data frame with these columns; Spark checks and writes a frame of its own. The same delta under the same
        change id counts once. Raises: InvalidInputError, AlreadyExistsError where two deltas of a document share a
        change id; then nothing is written.
        """
        if updates.__class__.__module__.startswith("pyspark."):
            return self._write_frame(cast("DataFrame", updates))
        rows: Iterable[UpdateLike]
        if isinstance(updates, pa.Table | pa.RecordBatch):
            check_columns(updates.schema.names)
            batches = updates.to_batches() if isinstance(updates, pa.Table) else [updates]
            rows = [row for batch in batches for row in batch_updates(batch)]
        else:
            rows = cast("Iterable[UpdateLike]", updates)
        return sum(batch.num_rows for batch in self._write(list(checked_updates(rows))))

    def import_documents(
        self, documents: Iterable[Mapping[str, object]], *, skip_existing: bool = False, dry_run: bool = False
    ) -> ImportResult:
        """Bring in documents of another store with their past, as one commit: deltas and compaction records of any time.

        Each is `{"key": …, "deltas": [{"id", "delta", "tags"}], "compactions": […]}`; legacy records, whose content is
        in the delta at their cutoff, are converted when they are compacted. A document is imported only where nothing
        is stored of it. Raises: InvalidInputError, AlreadyExistsError where something is and `skip_existing` does not
        say to leave it out; then nothing is written.
        """
        rows = imported_rows(documents)
        if not rows:
            return ImportResult(0, 0)
        root = self.lake.root
        check_complete(rows, complete_up_to(self.name, root=root))
        fresh = self._unknown(rows, skip_existing=skip_existing)

        def stage(stream: StreamLocator) -> tuple[list[Delta], str | None]:
            check_complete(rows, closed_before(self.table.properties) or 0)
            fresh[:] = self._unknown(rows, skip_existing=skip_existing)
            return storage.stage_deltas(stored_table(fresh), stream, type="append", root=root), None

        if fresh and not dry_run:
            refuse_skew(self.name, root=root)
            close_stream(self.table.version, self._source().stream_locator, now_ms(root), root=root)
            commit_changes(self.name, stage, root=root)
        return ImportResult(len(fresh), len(rows) - len(fresh))

    def get(self, key: KeyLike) -> Document:
        """Return a document, also one that is deleted or was never written, as `~deleted` and `~version` tell.

        Raises: CorruptionError.
        """
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[KeyLike]) -> list[Document]:
        """Return documents in the order of their keys, see `get`. Raises: CorruptionError."""
        wanted = [check_key(key) for key in keys]
        rows = self._rows(wanted)
        return [to_document(resolved(self.name, rows[key]), rows[key]) for key in wanted]

    def get_for_change(self, key: KeyLike, change_id: ChangeIdLike) -> ChangeStatus:
        """Return what became of a change, with the document as it is. Raises: InvalidInputError, CorruptionError."""
        wanted = check_change_id(change_id)
        row = self._row(key)
        found = resolved(self.name, row)
        document = to_document(found, row)
        if found.is_pending(wanted, complete_up_to(self.name, root=self.lake.root)):
            return ChangeStatus("pending", document)
        return ChangeStatus("redundant" if found.is_redundant(wanted) else "resolved", document)

    def timeline(self, key: KeyLike) -> list[TimelineEvent]:
        """Return all that is stored of a document, by time: deltas, compactions, and which deltas are redundant, why.

        Raises: CorruptionError.
        """
        row = self._row(key)
        return timeline_of(row, resolved(self.name, row))

    def history(self, key: KeyLike) -> list[HistoryEntry]:
        """Return the changes of a document by time, with the version and the content after each.

        The table must keep its history. What was absorbed before it did, or was too large to keep, is missing, as the
        versions tell. Raises: InvalidInputError where it does not keep it, CorruptionError.
        """
        if not KEEP_HISTORY.of(self.table.properties, self.name):
            raise InvalidInputError(
                f"{self.name}: keeps no history, so deltas that are compacted are gone; set the property "
                f"{KEEP_HISTORY.name}=true to keep those that are compacted from then on"
            )
        wanted = check_key(key)
        snapshot, name = self._snapshot()
        for each in grouped(snapshot.rows_of([wanted]), name):
            return history_of([*each.archived, *unabsorbed(self.name, each.row)])
        return []

    def scan(
        self,
        spark: "SparkSession | None" = None,
        *,
        hold: Hold | str | None = None,
        include_deleted: bool = False,
    ) -> Iterator[Document]:
        """Yield all documents as `get` returns them, in no order; on Spark, if a session is given.

        With a hold, as they were at its time. Raises: InvalidInputError, CorruptionError.
        """
        name = self.table.properties.get(DOCUMENTS_NAME.name, self.name)
        for table in self._tables(spark, hold, include_deleted=include_deleted):
            for row in table.to_pylist():
                yield _scanned(row, name)

    def to_spark(
        self, spark: "SparkSession", *, hold: Hold | str | None = None, include_deleted: bool = False
    ) -> "DataFrame":
        """Return a data frame with one row a document: key, content as JSON, version, signature, deleted and times.

        In SQL, `get_json_object(content, '$.path')` or `parse_json(content)` look into it. With a hold, documents are as
        they were at its time. Raises: InvalidInputError, CorruptionError.
        """
        from siltstone.spark.write import documents_on_spark

        held = self._hold(hold)
        return documents_on_spark(spark, self._job(held), hold=held, include_deleted=include_deleted)

    def compact(
        self,
        now: When | None = None,
        spark: "SparkSession | None" = None,
        progress: Progress | None = None,
        full: bool = False,
        engine: EngineName = "spark",
    ) -> SessionResult:
        """Compact documents that deltas came for, or that are due, as of `now`; `full` rewrites all buckets.

        Runs on the given Spark session, or on one in this process, which is started only if there is something to do;
        with `engine="local"` in this process, without Spark and Java. Raises: CorruptionError, ConflictError where others keep being faster.
        """
        asked = TableRequest(self.name, self.lake.root, full=full, now_ms=None if now is None else _to_ms(now))
        results = compact_table(asked, choose_engine(engine, spark, progress), progress)
        return results[0] if results else SessionResult()

    def hold(self, *, until: When | datetime.timedelta, reason: str = "", since: When | None = None) -> Hold:
        """Keep all that is stored up to now, for an export that runs until some time.

        Reads with the hold see what was committed before it and is of its time, whatever is written or compacted later;
        with `since`, of an earlier time. Compaction goes on and writes records; its deletions wait.
        Raises: InvalidInputError, also where deltas that an earlier time needs are deleted already.
        """
        since_ms = latest_ms(self.name, root=self.lake.root) if since is None else _to_ms(since)
        is_span = isinstance(until, datetime.timedelta)
        until_ms = since_ms + round(until.total_seconds() * 1000) if is_span else _to_ms(until)  # type: ignore[union-attr, arg-type]
        if until_ms <= since_ms:
            raise InvalidInputError(f"{self.name}: a hold until {until_ms} ends before it begins, {since_ms}")
        destination = self._destination()
        stream = storage.get_stream(catalog.delta_stream(self.name, root=self.lake.root), root=self.lake.root)
        hold = add_hold(
            destination,
            since_ms=since_ms,
            until_ms=until_ms,
            reason=reason,
            stream_position=stream.stream_position,
        )
        # Not before it is there: from then on nothing is deleted that it needs.
        try:
            self._check_known(hold)
        except InvalidInputError:
            release_hold(destination, hold.hold_id)
            raise
        return hold

    def holds(self) -> list[Hold]:
        """Return the holds that are on, oldest first."""
        return [hold for hold in list_holds(self._destination()) if hold.until_ms > now_ms(self.table.lake.root)]

    def release(self, hold: Hold | str) -> None:
        """End a hold before its time. Raises: NotFoundError."""
        release_hold(self._destination(), hold if isinstance(hold, str) else hold.hold_id)

    def rounds(self) -> list[RoundCompletion]:
        """Return the round completions, oldest first. Raises: CorruptionError."""
        return self.table.rounds()

    def fsck(self, *, deep: bool = False) -> list[Finding]:
        """Check logs, files, deletion vectors and indices; `deep` reads every row. No findings means sound."""
        return self.table.fsck(deep=deep)

    def vacuum(
        self,
        *,
        retention_ms: int = ROUND_RETENTION_MS,
        orphan_grace_ms: int = ORPHAN_GRACE_MS,
        dry_run: bool = False,
    ) -> VacuumReport:
        """Forget rounds past the retention, and remove files that nothing readable names."""
        return self.table.vacuum(retention_ms=retention_ms, orphan_grace_ms=orphan_grace_ms, dry_run=dry_run)

    def drop(self) -> None:
        """Drop the table; its files stay until they are vacuumed."""
        self.table.drop()

    def _source(self) -> PartitionLocator:
        stream = catalog.delta_stream(self.name, root=self.lake.root)
        return PartitionLocator(**stream, partition_values=[])

    def _destination(self) -> Destination:
        return locate_destination(compacted_partition(self._source()), root=self.lake.root)

    def _request(self) -> Request:
        source = self._source()
        return Request(source, compacted_partition(source), (KEY,), self.lake.root)

    def _job(self, hold: Hold | None = None) -> RoundJob:
        """Return what a round would have to do, from the newest state, or from and to what a hold keeps."""
        return job_of(self.name, hold, root=self.lake.root)

    def _check_known(self, hold: Hold) -> None:
        """Check that what a hold keeps tells all documents as of its time. Raises: InvalidInputError."""
        closed = closed_before(self.table.properties)
        # Nothing of a time that is still open has ever been absorbed.
        if closed is None or hold.since_ms >= closed:
            return
        job = self._job(hold)
        times = (
            known_from_ms(each.row, hold.since_ms)
            for number, parts in _parts_of(job)
            for each in bucket_rows(job, number, parts)
        )
        earliest = max((each for each in times if each is not None), default=None)
        if earliest is not None:
            raise InvalidInputError(
                f"{self.name}: cannot be held as of {iso_time(hold.since_ms)} ({hold.since_ms} ms), since compaction has "
                f"deleted deltas of that time; the earliest time that can still be held is {iso_time(earliest)} "
                f"({earliest} ms)"
            )

    def _snapshot(self) -> tuple[Snapshot, str]:
        """Return the newest state, and the name that conditions know the table by."""
        snapshot = snapshot_of(self.name, root=self.lake.root)
        return snapshot, snapshot.name

    def _rows(self, keys: Sequence[str]) -> dict[str, Row]:
        """Return the rows of documents, without anything in them where nothing was written."""
        snapshot, name = self._snapshot()
        found = {key: Row((), (), key, name) for key in keys}
        for start in range(0, len(keys), _BATCH_KEYS):
            table = snapshot.rows_of(keys[start : start + _BATCH_KEYS])
            found.update((each.row.key, each.row) for each in grouped(table, name))
        return found

    def _row(self, key: KeyLike) -> Row:
        wanted = check_key(key)
        return self._rows([wanted])[wanted]

    def _unknown(self, rows: Sequence[Row], *, skip_existing: bool) -> list[Row]:
        """Return the rows of documents of which nothing is stored. Raises: AlreadyExistsError."""
        known = self._snapshot()[0].keys_among([row.key for row in rows])
        if known and not skip_existing:
            raise AlreadyExistsError(
                f"{self.name}: document {min(known)!r}{f' and {len(known) - 1} more' if len(known) > 1 else ''} cannot be "
                "imported, since something is stored of it already; leave out what is there, or import into a new table"
            )
        return [row for row in rows if row.key not in known]

    def _stored_changes(self, updates: Sequence[Update]) -> dict[ChangeKey, Stored]:
        """Return the changes that are stored under the change ids of updates."""
        given = [(each.key, each.change_id) for each in updates if each.change_id is not None]
        keys = sorted({key for key, _ in given})
        if not keys:
            return {}
        snapshot, name = self._snapshot()
        if len(keys) <= _BATCH_KEYS:
            table = snapshot.rows_of(keys)
        else:
            table = snapshot.changes_among(hash_changes(pa.table(list(zip(*given, strict=True)), [KEY, "change_id"])))
        return _changes_of(table, name)

    def _write(self, updates: Sequence[Update]) -> list[pa.RecordBatch]:
        """Commit updates but for those that are there already; return what was written. Raises: AlreadyExistsError."""
        own = with_own_ids(self.name, updates)
        fresh = not_stored(self.name, own, self._stored_changes(own))
        return self._write_batches(lambda: list(stored_batches(fresh, self._new_id))) if fresh else []

    def _new_id(self) -> str:
        """Make a change id of the store's time."""
        return new_change_id(now_ms(self.table.lake.root))

    def _write_batches(self, make: Callable[[], list[pa.RecordBatch]]) -> list[pa.RecordBatch]:
        root = self.lake.root
        made: list[pa.RecordBatch] = []

        def stage(stream: StreamLocator) -> tuple[list[Delta], str | None]:
            made[:] = make()
            rows = pa.Table.from_batches(made, WRITTEN_SCHEMA)
            return storage.stage_deltas(rows, stream, type="append", root=root), earliest_of(rows.column("change_id"))

        commit_changes(self.name, stage, root=root)
        return made

    def _write_frame(self, frame: "DataFrame") -> int:
        from siltstone.spark.write import stage_updates

        root = self.lake.root
        counted = [0]

        def stage(stream: StreamLocator) -> tuple[list[Delta], str | None]:
            staged = stage_updates(frame, stream, now_ms=now_ms(root), root=root)
            files = [entry for delta in staged for entry in delta.manifest.entries]
            counted[0] = sum(entry.record_count for entry in files)
            if "change_id" in frame.columns:
                try:
                    counted[0] -= self._count_repeats(files)
                except AlreadyExistsError:
                    storage.discard_deltas(staged, root=root)
                    raise
            earliest = [earliest_of(read_data_file(root, file, ["change_id"]).column("change_id")) for file in files]
            return staged, min((each for each in earliest if each is not None), key=order_key, default=None)

        commit_changes(self.name, stage, root=root)
        return counted[0]

    def _count_repeats(self, files: Sequence[ManifestEntry]) -> int:
        """Count staged updates that are there already, in these files or stored. Raises: AlreadyExistsError.

        They stay in the files; wherever these are read, the same change counts once.
        """
        root = self.lake.root
        hashes = [hash_changes(read_data_file(root, file, [KEY, "change_id"])) for file in files]
        distinct, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *hashes]), return_counts=True)
        snapshot, name = self._snapshot()
        stored = snapshot.changes_among(distinct)
        suspects = np.concatenate([distinct[counts > 1], hash_changes(stored)])
        if not len(suspects):
            return 0
        updates = [
            Update(row["key"], row["delta"], tuple(row["tags"]), row["change_id"])
            for file, own in zip(files, hashes, strict=True)
            if np.isin(own, suspects).any()
            for row in read_data_file(root, file).filter(pa.array(np.isin(own, suspects))).to_pylist()
        ]
        own = with_own_ids(self.name, updates)
        return len(updates) - len(not_stored(self.name, own, _changes_of(stored, name)))

    def _hold(self, hold: Hold | str | None) -> Hold | None:
        if hold is None:
            return None
        wanted = hold if isinstance(hold, str) else hold.hold_id
        for each in self.holds():
            if each.hold_id == wanted:
                return each
        raise NotFoundError(f"{self.name}: there is no hold {wanted!r} that is still on; make a new one")

    def _tables(
        self, spark: "SparkSession | None", hold: Hold | str | None, *, include_deleted: bool
    ) -> Iterator[pa.Table]:
        if spark is not None:
            frame = self.to_spark(spark, hold=hold, include_deleted=include_deleted)
            yield frame.toArrow()
            return
        held = self._hold(hold)
        job = self._job(held)
        for number, parts in _parts_of(job):
            yield from bucket_documents(job, number, parts, hold=held, include_deleted=include_deleted)


def _changes_of(table: pa.Table, name: str) -> dict[ChangeKey, Stored]:
    """Return the changes among the rows of a table."""
    return {
        (each.row.key, change_id): (text, tags)
        for each in grouped(table, name)
        for change_id, text, tags in each.row.changes
    }


def _parts_of(job: RoundJob) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Yield each bucket's number with its parts of deltas."""
    parts = GatheredParts(read_parts(job, job.reads))
    for number in range(len(job.buckets)):
        yield number, parts.take(number)


def _scanned(row: Mapping[str, object], table: str) -> Document:
    document: Document = json.loads(cast("str", row["content"])) if row["content"] is not None else {}
    document |= {"~id": cast("str", row["key"]), "~table": table, "~version": cast("int", row["version"])}
    document |= {"~signature": cast("str", row["signature"]), "~deleted": cast("bool", row["deleted"])}
    for name, column in (
        ("~firstUpdateAt", "first_update_at"),
        ("~lastUpdateAt", "last_update_at"),
        ("~lastMutateAt", "last_mutate_at"),
    ):
        at = cast("datetime.datetime | None", row[column])
        if at is not None:
            document[name] = at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return document


def _to_ms(when: When) -> int:
    if isinstance(when, datetime.datetime):
        if when.tzinfo is None:
            raise InvalidInputError(f"{when.isoformat()} has no time zone; give one, e.g. datetime.now(UTC)")
        return int(when.timestamp() * 1000)
    return when
