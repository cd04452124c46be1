"""Looks at a folder: which files are new and settled, which may be growing, and which left."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siltstone import clock
from siltstone.errors import InvalidInputError
from siltstone.ingest.drop_folder import (
    REJECTED_FOLDER,
    DropFolder,
    compile_pattern,
    contains_lake,
    file_address,
    is_passed_over,
)
from siltstone.ingest.drop_log import GONE_RETENTION_MS, TAKEN, Batch, DropLog, FileKey, KnownFile, file_key
from siltstone.ingest.drop_options import DropOptions
from siltstone.objects import canonical_root
from siltstone.objects.interface import ObjectInfo

# What was last changed so long ago is not being written, whatever the clocks.
_OLD_MS = 60_000


@dataclass(frozen=True)
class Look:
    """What one look at the folder found, against what was known before it."""

    listed: Sequence[ObjectInfo]
    known: Mapping[FileKey, KnownFile]
    # Files that may be taken, oldest first, and those that may still be growing.
    ready: Sequence[ObjectInfo]
    unsettled: Sequence[ObjectInfo]

    def taken_by_path(self) -> dict[str, KnownFile]:
        """Return the files that were taken and left where they are, or should be."""
        return {key.path: file for key, file in self.known.items() if file.state == TAKEN}


class Looks:
    """Looks at one folder, one after another: what does not change from one to the next is settled."""

    def __init__(self, folder: DropFolder, log: DropLog, options: DropOptions, *, root: str) -> None:
        self._folder = folder
        self._log = log
        self._options = options
        self._pattern = None if options.pattern is None else compile_pattern(options.pattern)
        self._recursive = options.pattern is not None and "/" in options.pattern
        if self._recursive and contains_lake(folder, root):
            raise InvalidInputError(
                f"{folder.address}: the lake {root} is below it; use a pattern without /, or another folder"
            )
        self.rejects = REJECTED_FOLDER if options.rejects is None else canonical_root(options.rejects)
        # What each new file was when it was first seen so, and when that was.
        self._seen: dict[str, tuple[FileKey, float]] = {}

    def look(self, newest: Batch | None, *, waits: bool) -> Look:
        """List the folder, after the log was read: what is in the list and not in the log was never taken."""
        known = self._log.known(newest)
        look = self._look_once(known)
        if look.unsettled and waits:
            clock.sleep(self._options.settle_seconds)
            look = self._look_once(known)
        return look

    def _look_once(self, known: Mapping[FileKey, KnownFile]) -> Look:
        listed = self._folder.list_files(recursive=self._recursive)
        fresh = [
            file
            for file in listed
            if not is_passed_over(file.path)
            and not file_address(self._folder, file.path).startswith(f"{self.rejects}/")
            and (self._pattern is None or self._pattern.fullmatch(file.path))
            and file_key(file) not in known
        ]
        now = clock.monotonic()
        seen = {file.path: (file_key(file), now) for file in fresh}
        self._seen = {
            path: before if (before := self._seen.get(path, look))[0] == look[0] else look
            for path, look in seen.items()
        }
        ready: list[ObjectInfo] = []
        unsettled: list[ObjectInfo] = []
        for file in sorted(fresh, key=lambda file: (file.modified_ms, file.path)):
            (ready if self._is_settled(file, now) else unsettled).append(file)
        return Look(listed, known, ready, unsettled)

    def _is_settled(self, file: ObjectInfo, now: float) -> bool:
        if self._folder.appears_whole or clock.now_ms() - file.modified_ms > _OLD_MS:
            return True
        return now - self._seen[file.path][1] >= self._options.settle_seconds

    def missing(self, look: Look) -> tuple[list[KnownFile], list[KnownFile]]:
        """Return what to note about known files that left the folder or came back, and those to forget.

        Where files are moved or deleted here, one that is missing is of no interest any more. Where others take them out,
        it is remembered for a while, should a whole folder be away for some time.
        """
        now_ms = self._log.now_ms()
        listed = {file.path: file_key(file) for file in look.listed}
        newest = {key.path: key for key, _ in sorted(look.known.items(), key=lambda item: item[1].batch_id)}
        noted, forgotten = [], []
        for key, file in look.known.items():
            there = listed.get(key.path)
            if there == key:
                noted += [file._replace(gone_ms=0)] if file.gone_ms else []
            elif there is not None:
                # Another content took its place; of those that had the name, the last one is remembered.
                forgotten += [file] if key != newest[key.path] else []
            elif "/" in key.path and not self._recursive:
                continue
            elif self._options.done != "keep" or (file.gone_ms and now_ms - file.gone_ms > GONE_RETENTION_MS):
                forgotten.append(file)
            elif not file.gone_ms:
                noted.append(file._replace(gone_ms=max(now_ms, 1)))
        return noted, forgotten
