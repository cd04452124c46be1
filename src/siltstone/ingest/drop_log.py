"""What is known of one folder that files are taken from: a source log of their batches, and how each batch ended.

    ingest/<source>/N           the files of batch N, listed before any of them is read
    ingest/<source>/done/N      that batch N is written, or was given up, and the counts up to it
    ingest/<source>/status      what the last look found; for people only

Each line has the fields of Spark's source logs, and more. Only one batch is ever under way: batch N + 1 begins when batch N
is done.
"""

import dataclasses
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import orjson

from siltstone.errors import AlreadyExistsError, ConflictError, CorruptionError, InvalidInputError, NotFoundError
from siltstone.log.codec import RecordCodec
from siltstone.log.compactible import CompactibleLog
from siltstone.objects import open_objects
from siltstone.objects.interface import ObjectInfo

INGEST_FOLDER = "ingest"
_DONE = "done"
_STATUS = "status"
# How each batch ended is kept for this many, for people.
_KEPT_RECORDS = 100
RECENT_REJECTS = 20
# A file that somebody took out of the folder is remembered for so long, should it come back.
GONE_RETENTION_MS = 7 * 24 * 3600 * 1000

TAKEN = "taken"
# Taken, and to be moved or deleted: what has its name later is another file.
LEAVING = "leaving"
REJECTED = "rejected"
_FORGOTTEN = "forgotten"


class FileKey(NamedTuple):
    """A file with one content: one that changes is another."""

    path: str
    size: int
    version: str


def file_key(file: ObjectInfo) -> FileKey:
    """Return what tells a listed file from others."""
    return FileKey(file.path, file.size, file.version)


class KnownFile(NamedTuple):
    """A file of a batch; its path is relative and percent-encoded. `gone_ms` is when it was first missed, or 0.

    `how` is JSON or empty: the options that a file is read with, or the reason why it was rejected.
    """

    path: str
    modified_ms: int
    batch_id: int
    size: int
    version: str
    state: str
    gone_ms: int
    how: str

    @property
    def is_taken(self) -> bool:
        """Whether its rows are written, rather than that it was rejected."""
        return self.state in (TAKEN, LEAVING)

    @property
    def info(self) -> ObjectInfo:
        """The file as it was listed."""
        return ObjectInfo(decode_path(self.path), self.size, self.modified_ms, self.version)


_CODEC = RecordCodec(KnownFile, ["path", "timestamp", "batchId", "size", "version", "state", "goneAt", "how"])


def encode_path(path: str) -> str:
    """Return a path as a line of the log has it, also one that is not valid Unicode."""
    return urllib.parse.quote(path.encode("utf-8", "surrogateescape"), safe="/ ")


def decode_path(path: str) -> str:
    """Return the path that a line of the log means."""
    return urllib.parse.unquote_to_bytes(path).decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Rejected:
    """A file that was not taken, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Counts:
    """What was taken from a folder."""

    batches: int = 0
    files: int = 0
    rows: int = 0
    bytes: int = 0
    rejected: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(one + more for one, more in pairs))


@dataclass(frozen=True)
class Ended:
    """How a batch ended; one that is not written was given up, and its files are as if it had never been.

    Counts are of all batches up to this one.
    """

    batch_id: int
    is_written: bool
    stream_position: int | None = None
    ended_at: int = 0
    counts: Counts = field(default_factory=Counts)
    recent_rejects: Sequence[Rejected] = ()


@dataclass(frozen=True)
class Status:
    """What the last look at a folder found."""

    source: str
    looked_at: int
    waiting_files: int = 0
    waiting_bytes: int = 0
    oldest_waiting_at: int | None = None
    error: str | None = None
    error_at: int | None = None


@dataclass(frozen=True)
class Batch:
    """The newest batch: its files, and how it ended, None while it is under way."""

    batch_id: int
    files: Sequence[KnownFile]
    ended: Ended | None


class DropLog(CompactibleLog[KnownFile]):
    """The log of one folder; of a file with some content, the newest line counts."""

    kind: ClassVar[Literal["source"]] = "source"
    reconciles = True

    def __init__(self, root: str, version_folder: str, source_id: str) -> None:
        objects = open_objects(root)
        super().__init__(objects, f"{version_folder}/{INGEST_FOLDER}/{source_id}", _CODEC, now_ms=objects.now_ms)
        self.source_id = source_id

    def key(self, entry: KnownFile) -> FileKey:
        """Return what tells the file from others, and from others that had or will have its name."""
        return FileKey(entry.path, entry.size, entry.version)

    def is_removal(self, entry: KnownFile) -> bool:
        """Return whether the file is to be forgotten."""
        return entry.state == _FORGOTTEN

    def newest(self) -> Batch | None:
        """Return the newest batch, or None before the first one. Raises: CorruptionError, StorageError."""
        latest = self.latest_id()
        if latest is None:
            return None
        entries = self.get(latest)
        if entries is None:
            raise CorruptionError(f"{self.address(str(latest))}: it vanished after it was listed; read again")
        return Batch(latest, [entry for entry in entries if entry.batch_id == latest], self.ended(latest))

    def known(self, newest: Batch | None) -> dict[FileKey, KnownFile]:
        """Return all files that were taken or rejected; those of a batch that was given up are not."""
        given_up = newest.batch_id if newest and newest.ended and not newest.ended.is_written else None
        return {file_key(entry.info): entry for entry in self.live_entries() if entry.batch_id != given_up}

    def begin(self, batch_id: int, files: Iterable[KnownFile], forgotten: Iterable[KnownFile]) -> bool:
        """List the files of the next batch; False where somebody else began it, or a later one, first.

        Raises: CommitUnknownError, StorageError.
        """
        lines = [*files, *(entry._replace(state=_FORGOTTEN) for entry in forgotten)]
        try:
            return self.add(batch_id, lines)
        except ConflictError:
            return False
        except InvalidInputError:
            latest = self.latest_id()
            if latest is not None and latest >= batch_id:
                return False
            raise

    def end(self, ended: Ended) -> bool:
        """Record how a batch ended; False where somebody else did so first. Raises: StorageError."""
        try:
            self.objects.create(self.path(f"{_DONE}/{ended.batch_id}"), orjson.dumps(dataclasses.asdict(ended)))
        except AlreadyExistsError:
            return False
        if ended.batch_id >= _KEPT_RECORDS:
            self.objects.delete([self.path(f"{_DONE}/{ended.batch_id - _KEPT_RECORDS}")])
        return True

    def ended(self, batch_id: int) -> Ended | None:
        """Return how a batch ended, or None. Raises: CorruptionError, StorageError."""
        path = self.path(f"{_DONE}/{batch_id}")
        try:
            fields = orjson.loads(self.objects.read(path))
            rejects = [Rejected(**reject) for reject in fields.pop("recent_rejects")]
            return Ended(**{**fields, "counts": Counts(**fields["counts"]), "recent_rejects": rejects})
        except NotFoundError:
            return None
        except (ValueError, TypeError, LookupError) as error:
            raise CorruptionError(
                f"{self.objects.root}/{path}: is damaged ({error}); restore it from a copy"
            ) from error

    def set_status(self, status: Status) -> None:
        """Keep what a look found. Raises: StorageError."""
        self.objects.replace(self.path(_STATUS), orjson.dumps(dataclasses.asdict(status)))

    def status(self) -> Status | None:
        """Return what the last look found, None where nobody looked or it cannot be understood. Raises: StorageError."""
        try:
            return Status(**orjson.loads(self.objects.read(self.path(_STATUS))))
        except (NotFoundError, ValueError, TypeError):
            return None


def is_drop_log(path: str, version_folder: str) -> bool:
    """Return whether a file in the folder of a table version belongs to such a log; a vacuum leaves it alone."""
    parts = path.removeprefix(f"{version_folder}/").split("/")
    is_ours = len(parts) == 3 or (len(parts) == 4 and parts[2] == _DONE)
    return parts[0] == INGEST_FOLDER and is_ours and not parts[-1].endswith(".parquet")


def drop_logs(root: str, version_folder: str) -> list[DropLog]:
    """Return the logs of all folders that files were taken from into a table version. Raises: StorageError."""
    folders = sorted(open_objects(root).list_folders(f"{version_folder}/{INGEST_FOLDER}"))
    return [DropLog(root, version_folder, source_id) for source_id in folders]


@dataclass(frozen=True)
class IngestReport:
    """A folder that files are taken from into a table, in numbers; times are milliseconds, None where nothing is known.

    `error` is why the last look failed, None since one succeeded.
    """

    source: str
    source_id: str
    batches: int
    files: int
    rows: int
    bytes: int
    rejected: int
    waiting_files: int
    waiting_bytes: int
    oldest_waiting_at: int | None
    taken_at: int | None
    looked_at: int | None
    error: str | None
    error_at: int | None
    recent_rejects: Sequence[Rejected]


def read_ingest_report(log: DropLog) -> IngestReport:
    """Return what was taken from a folder so far, and what the last look at it found. Raises: CorruptionError."""
    latest = log.latest_id()
    ended = None if latest is None else log.ended(latest) or (log.ended(latest - 1) if latest else None)
    status, counts = log.status(), ended.counts if ended else Counts()
    return IngestReport(
        source=status.source if status else "",
        source_id=log.source_id,
        **dataclasses.asdict(counts),
        waiting_files=status.waiting_files if status else 0,
        waiting_bytes=status.waiting_bytes if status else 0,
        oldest_waiting_at=status.oldest_waiting_at if status else None,
        taken_at=ended.ended_at if ended else None,
        looked_at=status.looked_at if status else None,
        error=status.error if status else None,
        error_at=status.error_at if status else None,
        recent_rejects=ended.recent_rejects if ended else (),
    )
