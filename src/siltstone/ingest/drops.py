"""Taking files that are dropped into a folder into a table, each exactly once.

A batch of files is listed in the folder's log first, then written under the batch's number, then recorded as done. Whoever
finds a batch that is not done writes the same files again under the same number, which commits once; or gives the number up,
so that nobody can commit under it, where the files are no longer what was listed, or cannot be read. See decision 023.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from siltstone import clock
from siltstone.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    SiltstoneError,
    StorageError,
)
from siltstone.ingest.drop_folder import DONE_FOLDER, DropFolder, file_address
from siltstone.ingest.drop_log import (
    LEAVING,
    RECENT_REJECTS,
    REJECTED,
    TAKEN,
    Batch,
    Counts,
    DropLog,
    Ended,
    KnownFile,
    Rejected,
    Status,
    encode_path,
    file_key,
)
from siltstone.ingest.drop_look import Look, Looks
from siltstone.ingest.drop_options import DropOptions, Ingested, TakenRows, Target
from siltstone.ingest.file_rows import Report, silent
from siltstone.model import Idempotency, StreamLocator
from siltstone.objects.interface import ObjectInfo
from siltstone.storage import object_store as storage
from siltstone.storage.transactions import LASTING_PREFIX
from siltstone.text import format_bytes, format_count

# What is tried so often: files that change while they are being taken.
_ATTEMPTS = 20
_STEP_SECONDS = 0.2
_RETRY_SECONDS = 60.0
_STATUS_SECONDS = 60.0


class _ChangedError(InvalidInputError):
    """Files are no longer what was listed."""


class Drops:
    """One folder whose files go into one table; keep it to look again. Not for several threads."""

    def __init__(
        self,
        table: str,
        folder: DropFolder,
        log: DropLog,
        stream: StreamLocator,
        target: Target,
        options: DropOptions,
        *,
        has_key: bool,
        root: str,
    ) -> None:
        self.table = table
        self.source = folder.address
        self._folder = folder
        self._log = log
        self._stream = stream
        self._target = target
        self._options = options
        self._has_key = has_key
        self._root = root
        self._looks = Looks(folder, log, options, root=root)
        self._how = orjson.dumps(dict(options.how)).decode() if options.how else ""
        # Files that turned out to be bad, with their version and the reason; how many go together.
        self._bad: dict[str, tuple[str, str]] = {}
        self._limit = options.max_files
        self._status: Status | None = None
        self._status_at = 0.0

    def take(
        self, *, dry_run: bool = False, is_stopping: Callable[[], bool] = lambda: False, progress: Report = silent
    ) -> Ingested:
        """Take all files that are there now, batch by batch, and move or delete them if that is asked for.

        Files that may still be growing are looked at again a little later. A dry run checks and counts what would be taken.
        Raises: InvalidInputError that names a bad file, NotFoundError, StorageError, CommitUnknownError.
        """
        if dry_run:
            return self._preview(progress)
        try:
            return self._take(is_stopping, progress)
        except SiltstoneError as error:
            self._keep_status(error=str(error))
            raise

    def _take(self, is_stopping: Callable[[], bool], progress: Report) -> Ingested:
        done = Ingested(self.table, self.source, self._log.source_id)
        wanted: set[tuple[str, str]] | None = None
        given_up = 0
        begun: Batch | None = None
        while True:
            newest, is_own = begun or self._log.newest(), begun is not None
            begun = None
            if newest is not None and newest.ended is None:
                ended = self._finish(newest, progress, is_own=is_own)
                given_up += not ended.is_written
                if given_up > _ATTEMPTS:
                    raise ConflictError(f"{self.source}: its files change again and again while they are being taken")
                done = _sum(done, ended)
                continue
            look = self._looks.look(newest, waits=wanted is None)
            if wanted is None:
                wanted = {(file.path, file.version) for file in look.listed}
            ready = [file for file in look.ready if (file.path, file.version) in wanted]
            if not ready or is_stopping():
                break
            begun = self._begin(newest, look, ready)
        self._tidy(look, -1 if newest is None else newest.batch_id)
        self._keep_status([*look.unsettled, *ready])
        return dataclasses.replace(done, waiting_files=len(look.unsettled) + len(ready))

    def _begin(self, newest: Batch | None, look: Look, ready: Sequence[ObjectInfo]) -> Batch | None:
        """List the next batch in the log: files to take, files to reject, and what to forget.

        Returns None where another process was faster. Raises: InvalidInputError for a file that is known to be bad.
        """
        batch_id = 0 if newest is None else newest.batch_id + 1
        files = []
        size = count = 0
        taken_before = look.taken_by_path()
        for file in ready:
            reason = self._problem(file, taken_before)
            if reason is not None and not self._options.quarantine:
                raise InvalidInputError(f"{file_address(self._folder, file.path)}: {reason}")
            if reason is None:
                if count == self._limit or (count and size + file.size > self._options.max_bytes):
                    break
                count, size = count + 1, size + file.size
            taken = TAKEN if self._options.done == "keep" else LEAVING
            state, how = (taken, self._how) if reason is None else (REJECTED, orjson.dumps({"reason": reason}).decode())
            path = encode_path(file.path)
            files.append(KnownFile(path, file.modified_ms, batch_id, file.size, file.version, state, 0, how))
        noted, forgotten = self._looks.missing(look)
        if newest is not None and newest.ended is not None and not newest.ended.is_written:
            listed = {self._log.key(file) for file in files}
            forgotten += [file for file in newest.files if self._log.key(file) not in listed]
        lines = [*files, *noted]
        return Batch(batch_id, files, None) if self._log.begin(batch_id, lines, forgotten) else None

    def _problem(self, file: ObjectInfo, taken_before: Mapping[str, KnownFile]) -> str | None:
        """Return why a file cannot be taken, if that is known before it is read."""
        version, reason = self._bad.get(file.path, ("", ""))
        if reason and version == file.version:
            return reason
        before = taken_before.get(file.path)
        if before is not None and not self._has_key:
            return (
                f"was taken in batch {before.batch_id}, and has changed since; {self.table} has no primary key, so its rows "
                "would be there twice: give the new file another name"
            )
        return None

    def _finish(self, batch: Batch, progress: Report, *, is_own: bool) -> Ended:
        """Write the files of a batch, unless that was done; or give it up. Return what this process added.

        What was just begun here is surely not written yet; if it is, the write finds that.

        Raises: InvalidInputError for a bad file, StorageError, CommitUnknownError.
        """
        name = Idempotency(app_id=f"{LASTING_PREFIX}{self._log.source_id}", batch_id=batch.batch_id)
        files = [file.info for file in batch.files if file.is_taken]
        written = None if is_own else self._find(name)
        failure: Exception | None = None
        if written is None:
            total = format_bytes(sum(file.size for file in files))
            progress(f"Batch {batch.batch_id}: {format_count(len(files), 'file')}, {total}")
            try:
                written = self._write(batch, [file for file in files if file.size], name, progress)
            except (InvalidInputError, AlreadyExistsError) as error:
                failure = error
            if written is None or written.stream_position is None:
                # From here on nobody can write this batch who has not by now; where the files have no rows, nobody did.
                position = storage.give_up_commit(self._stream, name, root=self._root)
                written = self._find(name) if position is not None else written
        is_written = written is not None
        ended = Ended(batch.batch_id, is_written, written.stream_position if written else None, self._log.now_ms())
        if written is not None:
            rejects = [_rejected(file) for file in batch.files if file.state == REJECTED]
            size = sum(file.size for file in files)
            counts = Counts(int(bool(files)), len(files), written.rows, size, len(rejects))
            ended = dataclasses.replace(ended, counts=counts, recent_rejects=rejects)
            self._limit = min(self._limit * 2, self._options.max_files)
        if not self._record(ended):
            ended = dataclasses.replace(ended, counts=Counts(), recent_rejects=())
        if failure is not None and not is_written and not isinstance(failure, _ChangedError):
            self._examine(batch, files, failure, progress)
        return ended

    def _record(self, ended: Ended) -> bool:
        """Record how a batch ended, with the counts of those before it; False where another process did."""
        before = (self._log.ended(ended.batch_id - 1) if ended.batch_id else None) or Ended(-1, is_written=True)
        rejects = [*before.recent_rejects, *ended.recent_rejects][-RECENT_REJECTS:]
        return self._log.end(dataclasses.replace(ended, counts=before.counts + ended.counts, recent_rejects=rejects))

    def _write(self, batch: Batch, files: Sequence[ObjectInfo], name: Idempotency, progress: Report) -> TakenRows:
        """Write files that are still what was listed. Raises: InvalidInputError, AlreadyExistsError, _ChangedError."""

        def check_unchanged() -> None:
            changed = self._folder.changed(files)
            if changed:
                raise _ChangedError(f"{file_address(self._folder, changed[0])}: changed while it was being taken")

        check_unchanged()
        if not files:
            return TakenRows(0, None)
        try:
            return self._target.take_files(
                self._addresses(files), self._how_of(batch), name, check_unchanged, dry_run=False, progress=progress
            )
        except ConflictError as error:
            # Somebody else gave this batch up, or the table changed; it is listed again.
            raise _ChangedError(str(error)) from error
        except (InvalidInputError, AlreadyExistsError):
            check_unchanged()
            raise

    def _examine(self, batch: Batch, files: Sequence[ObjectInfo], failure: Exception, progress: Report) -> None:
        """Find out which files of a batch are bad, or how many fit together. Raises: InvalidInputError."""
        how, read = self._how_of(batch), [file for file in files if file.size]
        bad = [(file, failure) for file in read] if len(read) == 1 else []
        for file in read if len(read) > 1 else ():
            error = self._check([file], how, progress)
            bad += [(file, error)] if error else []
        for file, error in bad:
            self._bad[file.path] = (file.version, self._reason(file, error))
        if bad and not self._options.quarantine:
            more = f"; {format_count(len(bad) - 1, 'other file')} cannot be taken either" if len(bad) > 1 else ""
            names = file_address(self._folder, bad[0][0].path)
            reason = str(bad[0][1])
            self._bad.clear()
            raise InvalidInputError(
                f"{'' if names in reason else f'{names}: '}{reason}{more}; nothing of this batch of "
                f"{format_count(len(files), 'file')} was written: correct or remove the file, or set it aside with --quarantine"
            ) from failure
        if not bad:
            # Each can be taken by itself: they differ in their columns, say. So fewer go together.
            fitting = 1
            while fitting * 2 < len(read) and self._check(read[: fitting * 2], how, progress) is None:
                fitting *= 2
            self._limit = fitting

    def _check(self, files: Sequence[ObjectInfo], how: Mapping[str, Any], progress: Report) -> Exception | None:
        """Return why files cannot be written, or None."""
        try:
            self._try_out(files, how, progress)
        except (InvalidInputError, AlreadyExistsError) as error:
            return error
        return None

    def _try_out(self, files: Sequence[ObjectInfo], how: Mapping[str, Any], progress: Report) -> int:
        """Return how many rows files have, after all checks of a write. Raises: InvalidInputError."""
        addresses = self._addresses(files)
        return self._target.take_files(addresses, how, None, lambda: None, dry_run=True, progress=progress).rows

    def _reason(self, file: ObjectInfo, error: Exception) -> str:
        address = file_address(self._folder, file.path)
        return str(error).removeprefix(f"{address}: ").removeprefix(f"{address}, ")

    def _how_of(self, batch: Batch) -> dict[str, Any]:
        """Return the options that the files of a batch are read with, whoever finishes it."""
        how = next((file.how for file in batch.files if file.is_taken), "")
        options: dict[str, Any] = orjson.loads(how or "{}")
        return options

    def _addresses(self, files: Sequence[ObjectInfo]) -> list[str]:
        return [file_address(self._folder, file.path) for file in files]

    def _find(self, name: Idempotency) -> TakenRows | None:
        """Return what was written under a batch's number, or None."""
        position = storage.find_commit(self._stream, name, root=self._root)
        if position is None:
            return None
        deltas = storage.list_deltas(
            self._stream, first_stream_position=position, last_stream_position=position, root=self._root
        )
        files = {entry.uri: entry.record_count for delta in deltas for entry in delta.manifest.entries}
        return TakenRows(sum(files.values()), position)

    def _tidy(self, look: Look, last_ended: int) -> None:
        """Move or delete the files that are taken; what a crash left is done now. Raises: StorageError.

        Those of a batch that another process has begun since are listed, and not yet written: they stay.
        """
        for file in look.listed:
            known = look.known.get(file_key(file))
            if known is None or known.batch_id > last_ended:
                continue
            if not known.is_taken and self._options.quarantine:
                self._folder.move(file, self._looks.rejects, str(known.batch_id))
            elif known.is_taken and self._options.done == "move":
                self._folder.move(file, DONE_FOLDER, str(known.batch_id))
            elif known.is_taken and self._options.done == "delete":
                self._folder.delete(file)

    def _preview(self, progress: Report) -> Ingested:
        """Return what would be taken, with what a batch that is under way would write; nothing is changed."""
        newest = self._log.newest()
        look = self._looks.look(newest, waits=True)
        pending = [] if newest is None or newest.ended is not None else [file.info for file in newest.files]
        good, rejected, rows = [], [], 0
        taken_before = look.taken_by_path()
        for file in [*pending, *look.ready]:
            reason = None if file in pending else self._problem(file, taken_before)
            if reason is None and file.size:
                try:
                    rows += self._try_out([file], self._options.how, progress)
                except (InvalidInputError, AlreadyExistsError) as error:
                    reason = self._reason(file, error)
            if reason is None:
                good.append(file)
            else:
                rejected.append(Rejected(file.path, reason))
        return Ingested(
            self.table,
            self.source,
            self._log.source_id,
            files=len(good),
            rows=rows,
            bytes=sum(file.size for file in good),
            rejected=rejected,
            waiting_files=len(look.unsettled),
            dry_run=True,
        )

    def _keep_status(self, waiting: Sequence[ObjectInfo] | None = None, error: str | None = None) -> None:
        """Keep what a look found, for people; seldom where it is the same as before, and a failure is no harm."""
        now_ms, before = clock.now_ms(), self._status or Status(self.source, 0)
        found = dataclasses.replace(before, error=error, error_at=before.error_at if error == before.error else now_ms)
        if waiting is not None:
            found = dataclasses.replace(
                found,
                error_at=None,
                waiting_files=len(waiting),
                waiting_bytes=sum(file.size for file in waiting),
                oldest_waiting_at=min((file.modified_ms for file in waiting), default=None),
            )
        if found == before and self._status and clock.monotonic() - self._status_at < _STATUS_SECONDS:
            return
        self._status, self._status_at = found, clock.monotonic()
        with contextlib.suppress(StorageError):
            self._log.set_status(dataclasses.replace(found, looked_at=now_ms))


def _rejected(file: KnownFile) -> Rejected:
    return Rejected(file.info.path, str(orjson.loads(file.how)["reason"]))


def _sum(done: Ingested, ended: Ended) -> Ingested:
    """Return what was taken, with what a batch added."""
    return dataclasses.replace(
        done,
        batches=done.batches + ended.counts.batches,
        files=done.files + ended.counts.files,
        rows=done.rows + ended.counts.rows,
        bytes=done.bytes + ended.counts.bytes,
        stream_position=done.stream_position if ended.stream_position is None else ended.stream_position,
        rejected=[*done.rejected, *ended.recent_rejects],
    )


def watch(
    drops: Drops,
    every_seconds: float,
    is_stopping: Callable[[], bool],
    taken: Callable[[Ingested], None],
    failed: Callable[[SiltstoneError], None],
) -> None:
    """Take what arrives, again and again, until it is to stop. Raises: what the first look raises; later ones are reported."""
    is_first = True
    while not is_stopping():
        pause = every_seconds
        try:
            result = drops.take(is_stopping=is_stopping)
            if is_first or result.files or result.rejected:
                taken(result)
        except SiltstoneError as error:
            if is_first:
                raise
            failed(error)
            pause = max(every_seconds, _RETRY_SECONDS)
        is_first = False
        # In steps: a signal does not end a wait where the system hands it to another thread of the process.
        while pause > 0 and not is_stopping():
            clock.sleep(min(pause, _STEP_SECONDS))
            pause -= _STEP_SECONDS
