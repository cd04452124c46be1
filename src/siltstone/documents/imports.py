"""Documents of other stores with their past, in batches: each is committed once, however often it is imported."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from siltstone.catalog import main as catalog
from siltstone.clock import describe_skew, is_skewed
from siltstone.documents.cells import decoded_cells
from siltstone.documents.commit import Staged, commit_changes, complete_up_to, now_ms
from siltstone.documents.expand import resolve
from siltstone.documents.intake import check_complete, checked_history, checked_row
from siltstone.documents.read import resolved, snapshot_of
from siltstone.documents.record import ArchivedChange, Row
from siltstone.documents.schema import archive_rows, stored_table
from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError
from siltstone.ingest.rejects import put_aside
from siltstone.model import DEFAULT_STREAM, Idempotency, StreamLocator
from siltstone.model.properties import KEEP_HISTORY
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog
from siltstone.table.completion import close_stream, closed_before

BATCH_DOCUMENTS: Final = 10_000
_BATCH_CHANGES: Final = 100_000


class Given(NamedTuple):
    """A document as it was given: where, what it is, or why it cannot be read, and its text."""

    place: str
    document: object
    text: str = ""


class ImportResult(NamedTuple):
    """How many documents were imported; left out, since something else is stored of them; imported before; and put aside."""

    imported: int = 0
    skipped: int = 0
    repeated: int = 0
    rejected: int = 0
    rejects_files: tuple[str, ...] = ()

    def plus(self, other: "ImportResult") -> "ImportResult":
        """Return both together."""
        return ImportResult(
            self.imported + other.imported,
            self.skipped + other.skipped,
            self.repeated + other.repeated,
            self.rejected + other.rejected,
            self.rejects_files + other.rejects_files,
        )


class _Document(NamedTuple):
    given: Given
    row: Row
    history: Sequence[ArchivedChange]


class _Outcome(NamedTuple):
    """What becomes of the documents of a batch: `others` are those of which something else is stored."""

    fresh: list[_Document]
    others: list[_Document]
    repeated: int


def given_documents(documents: Iterable[object]) -> Iterable[Given]:
    """Return documents that are values of this process, with their numbers."""
    return (Given(f"document {number}", document) for number, document in enumerate(documents, 1))


class Import:
    """One import into a table. Each batch is one commit, and the next run goes on after those that were committed."""

    def __init__(
        self,
        name: str,
        *,
        skip_existing: bool,
        dry_run: bool,
        rejects: str | None,
        progress: Callable[[str], None],
        root: str,
    ) -> None:
        self._name, self._root = name, root
        self._skips, self._is_dry, self._rejects, self._progress = skip_existing, dry_run, rejects, progress
        self._result = ImportResult()
        self._batch: dict[str, _Document] = {}
        self._bad: list[tuple[Given, str]] = []

    def run(self, given: Iterable[Given]) -> ImportResult:
        """Import documents. Raises: InvalidInputError that names the wrong one, AlreadyExistsError."""
        changes = 0
        for each in given:
            try:
                document = self._checked(each)
            except (InvalidInputError, CorruptionError) as error:
                self._refuse(each, error)
                continue
            self._batch[document.row.key] = document
            changes += len(document.row.changes)
            if len(self._batch) >= BATCH_DOCUMENTS or changes >= _BATCH_CHANGES:
                self._finish_batch()
                changes = 0
        self._finish_batch()
        return self._result

    def _checked(self, given: Given) -> _Document:
        document = given.document
        if isinstance(document, InvalidInputError):
            raise document
        if not isinstance(document, Mapping):
            raise InvalidInputError(f"{document!r:.60} is not a map of key, deltas and compactions")
        fields = decoded_cells(document)
        row = checked_row(fields)
        if row.key in self._batch:
            raise InvalidInputError("occurs twice; put all its deltas and records into one")
        return _Document(given, row, checked_history(fields))

    def _refuse(self, given: Given, error: Exception) -> None:
        """Put a document aside, or stop. Raises: InvalidInputError."""
        is_map = isinstance(given.document, Mapping)
        where = f"{given.place}, key {given.document.get('key')!r:.60}" if is_map else given.place  # type: ignore[attr-defined]
        if self._rejects is None:
            raise InvalidInputError(f"{where}: {error}{self._so_far()}") from error
        self._bad.append((given, str(error)))

    def _so_far(self) -> str:
        if not self._result.imported or self._is_dry:
            return ""
        return f". {self._result.imported} documents before it are imported; import the same again to go on from there"

    def _finish_batch(self) -> None:
        """Commit a batch, unless it was committed before."""
        batch, self._batch = list(self._batch.values()), {}
        if not batch and not self._bad:
            return
        stream = StreamLocator(**catalog.get_table_version(self._name, root=self._root).locator, stream=DEFAULT_STREAM)
        own_id = _id_of(batch)
        was_committed = bool(batch) and storage.find_commit(stream, own_id, root=self._root) is not None
        complete_ms = complete_up_to(self._name, root=self._root)
        batch = [document for document in batch if self._is_complete(document, complete_ms)]
        outcome = self._outcome(batch, was_committed)
        if not outcome.fresh or self._is_dry:
            self._add(self._result_of(outcome))
            return
        try:
            self._add(self._commit(stream, batch, None if was_committed else own_id))
        except ConflictError:
            if was_committed or storage.find_commit(stream, own_id, root=self._root) is None:
                raise
            self._add(self._result_of(self._outcome(batch, was_committed=True)))

    def _add(self, result: ImportResult) -> None:
        self._bad = []
        self._result = done = self._result.plus(result)
        self._progress(
            f"Importing: {done.imported:,} documents, {done.repeated:,} imported before, {done.rejected:,} put aside"
        )

    def _is_complete(self, document: _Document, complete_ms: int) -> bool:
        try:
            check_complete([document.row], complete_ms)
        except InvalidInputError as error:
            self._refuse(document.given, error)
            return False
        return True

    def _commit(self, stream: StreamLocator, batch: Sequence[_Document], own_id: Idempotency | None) -> ImportResult:
        root, name = self._root, self._name
        # Where this machine's clock and the store's differ, the stream is not closed.
        skew_ms = open_objects(root).skew_ms()
        if skew_ms is not None and is_skewed(skew_ms):
            raise InvalidInputError(
                f"{name}: after an import no earlier changes are accepted, and what is earlier is not sure: "
                f"{describe_skew(skew_ms, root)}"
            )
        close_stream(catalog.get_table_version(name, root=root), stream, now_ms(root), root=root)

        def stage(log: StreamLog) -> Staged[ImportResult]:
            version = catalog.get_table_version(name, root=root)
            check_complete([document.row for document in batch], closed_before(version.properties) or 0)
            outcome = self._outcome(batch, was_committed=own_id is None)
            # Before the commit: what is not imported is put aside then.
            result = self._result_of(outcome)
            rows = _stored(outcome.fresh, keeps_history=KEEP_HISTORY.of(version.properties, name))
            return Staged(storage.stage_deltas(rows, log, type="append", root=root), None, result)

        return commit_changes(name, stage, idempotency=own_id, root=root)

    def _outcome(self, batch: Sequence[_Document], was_committed: bool) -> _Outcome:
        """Separate new documents from those that were imported before, and those of which something else is stored.

        Raises: AlreadyExistsError.
        """
        snapshot = snapshot_of(self._name, root=self._root)
        known = snapshot.keys_among([document.row.key for document in batch]) if batch else set()
        fresh = [document for document in batch if document.row.key not in known]
        stored = snapshot.documents(sorted(known))
        others = [
            document
            for document in batch
            if document.row.key in known
            and not self._is_imported(document.row, stored[document.row.key].row, was_committed)
        ]
        if others and self._rejects is None and not self._skips:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise AlreadyExistsError(
                f"{self._name}: document {min(other.row.key for other in others)!r}{more} cannot be imported, since something "
                f"is stored of it already; leave out what is there, or import into a new table{self._so_far()}"
            )
        return _Outcome(fresh, others, len(known) - len(others))

    def _is_imported(self, row: Row, stored: Row, was_committed: bool) -> bool:
        """Return whether a document is stored as it would be imported, or, of a batch that was committed, began so."""
        mine, theirs = resolve(row._replace(table=stored.table)), resolved(self._name, stored)
        if was_committed and mine.first_update_at == theirs.first_update_at:
            return mine.version <= theirs.version
        return (mine.version, mine.signature) == (theirs.version, theirs.signature)

    def _result_of(self, outcome: _Outcome) -> ImportResult:
        """Count what becomes of a batch, and put aside what did not fit."""
        bad = list(self._bad)
        if not self._skips:
            bad += [(other.given, "something else is stored of it already") for other in outcome.others]
        skipped = len(outcome.others) if self._skips else 0
        if not bad or self._rejects is None:
            return ImportResult(len(outcome.fresh), skipped, outcome.repeated)
        lines: list[dict[str, object]] = [
            {"table": self._name, "place": given.place, "reason": reason, "document": given.text or str(given.document)}
            for given, reason in bad
        ]
        file = put_aside(self._rejects, self._name, lines, dry_run=self._is_dry)
        return ImportResult(len(outcome.fresh), skipped, outcome.repeated, len(bad), (file,))


def _id_of(batch: Sequence[_Document]) -> Idempotency:
    digest = hashlib.sha256()
    for _, row, history in batch:
        digest.update(repr((row.key, list(row.changes), list(row.records), list(history))).encode())
    return Idempotency(app_id=f"import {digest.hexdigest()}", batch_id=0)


def _stored(documents: Sequence[_Document], *, keeps_history: bool) -> pa.Table:
    rows = stored_table([document.row for document in documents])
    if not keeps_history:
        return rows
    archived = [(row.key, change) for _, row, history in documents for change in history]
    return pa.concat_tables([rows, archive_rows(archived)])
