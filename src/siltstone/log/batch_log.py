"""A log of numbered batches, each one file created whole or not at all; the base of the logs that compact."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

from siltstone.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CommitUnknownError,
    ConflictError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from siltstone.log import wire
from siltstone.log.batches import (
    COMPACT_SUFFIX,
    MAX_BATCH_ID,
    BatchFile,
    BatchListing,
    batch_id_from_name,
    verify_batch_ids,
)
from siltstone.log.codec import DECODING_ERRORS, Codec, E
from siltstone.objects import Objects

Chunks = Iterable[bytes]


class BatchFolder:
    """The batch files in one folder of a store: their names, and what is in them as raw lines.

    Opening touches nothing; the folder appears with the first batch.
    """

    def __init__(self, objects: Objects, folder: str, *, version: int = wire.VERSION, writer: str = "Spark") -> None:
        self.objects = objects
        self.folder = folder.strip("/")
        self.version = version
        self.writer = writer

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.objects.root!r}, {self.folder!r})"

    def path(self, name: str) -> str:
        """Return the object path of a file in the log's folder."""
        return f"{self.folder}/{name}" if self.folder else name

    def address(self, name: str = "") -> str:
        """Return the full address of the log's folder or of a file in it, for messages."""
        return f"{self.objects.root}/{self.path(name)}".rstrip("/")

    def listing(self) -> BatchListing:
        """List the batch files, once; whatever else lies in the folder is left out."""
        files = []
        checksums = []
        for info in self.objects.list_objects(self.folder):
            name = info.path.rpartition("/")[2]
            batch_id = batch_id_from_name(name)
            if batch_id is not None:
                files.append(BatchFile(batch_id, name.endswith(COMPACT_SUFFIX), info.size, info.modified_ms))
            elif name.startswith(".") and name.endswith(".crc"):
                checksums.append(name)
        return BatchListing(files, checksums)

    def read_blocks(self, name: str) -> Iterator[bytes]:
        """Stream a file's lines as blocks of raw bytes. Raises: NotFoundError, CorruptionError."""
        return wire.read_blocks(self.objects.stream(self.path(name)), self.address(name), self.version, self.writer)

    def read_chained(self, name: str) -> wire.ChainedFile:
        """Return a file of a commit log, checked to be whole. Raises: NotFoundError, CorruptionError."""
        data = self.objects.read(self.path(name))
        return wire.decode_chained(data, self.address(name), self.version, self.writer)

    def read_lines(self, name: str) -> Iterator[bytes]:
        """Stream a file's lines as raw bytes. Raises: NotFoundError, CorruptionError."""
        for block in self.read_blocks(name):
            yield from block.split(b"\n")

    def count_entries(self, name: str) -> int:
        """Count a file's entries without parsing them. Raises: NotFoundError, CorruptionError."""
        return sum(block.count(b"\n") + 1 for block in self.read_blocks(name))


def delete_batches(log: BatchFolder, files: Iterable[BatchFile], listing: BatchListing) -> None:
    """Delete batch files in this order, each after the checksum that Spark may have left beside it."""
    names = [name for file in files for name in (*listing.checksums_of(file.name), file.name)]
    log.objects.delete([log.path(name) for name in names])


class MetadataLog(BatchFolder, Generic[E]):
    """Batches of entries, each in a file named by its id. With `contiguous`, a batch that would leave a gap is refused."""

    def __init__(
        self, objects: Objects, folder: str, codec: Codec[E], *, version: int = wire.VERSION, contiguous: bool = True
    ) -> None:
        super().__init__(objects, folder, version=version)
        self.codec = codec
        self.contiguous = contiguous

    def name_of(self, batch_id: int) -> str:
        """Return the file name under which a batch is committed."""
        return str(batch_id)

    def latest_id(self) -> int | None:
        """Return the highest batch id, opening no file."""
        return self.listing().latest

    def latest(self) -> tuple[int, list[E]] | None:
        """Return the highest batch id and its entries."""
        latest = self.latest_id()
        entries = None if latest is None else self.get(latest)
        return None if latest is None or entries is None else (latest, entries)

    def get(self, batch_id: int) -> list[E] | None:
        """Return the entries of one batch, or None if it does not exist. Raises: CorruptionError."""
        try:
            return self.read_entries(self.name_of(batch_id))
        except NotFoundError:
            return None

    def get_range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, list[E]]]:
        """Return (id, entries) for each batch from `start` to `end`, both included; None leaves a side open.

        Raises: InvalidInputError where `start` is after `end`, CorruptionError where one of them is missing.
        """
        if start is not None and end is not None and start > end:
            raise InvalidInputError(f"{self.address()}: range {start} to {end} ends before it starts; swap its bounds")
        names = {file.batch_id: file.name for file in self.listing().files}
        ids = sorted(i for i in names if (start is None or i >= start) and (end is None or i <= end))
        self.check_range(ids, start, end)
        return [(batch_id, self.read_entries(names[batch_id])) for batch_id in ids]

    def check_range(self, ids: Sequence[int], start: int | None, end: int | None) -> None:
        """Check that no batch is missing among sorted `ids`. Raises: as `verify_batch_ids`."""
        try:
            verify_batch_ids(ids, start, end)
        except CorruptionError as error:
            raise CorruptionError(f"{self.address()}: {error}; restore these batches from a copy") from error

    def add(self, batch_id: int, entries: Iterable[E]) -> bool:
        """Commit a batch; return False if one with this id exists already, which then stays as it is.

        True means that every reader sees the batch. Raises: ConflictError where somebody else committed this id
        meanwhile, CommitUnknownError where the store failed and the outcome is unknown, InvalidInputError for a gap.
        """
        if entries is None:
            raise InvalidInputError("'null' metadata cannot be written to a metadata log; give an empty list instead")
        listing = self.listing()
        if not self._is_next(batch_id, listing):
            return False
        lines = [self.codec.encode(entry) for entry in entries]
        name = self.name_of(batch_id)
        for stale_checksum in listing.checksums_of(name):
            self.objects.delete([self.path(stale_checksum)])
        try:
            self.publish(name, self.batch_content(batch_id, lines, listing))
        except NotFoundError:
            latest = self.latest_id()
            if latest is not None and latest >= batch_id:
                return False  # what it was to be made of was compacted and cleaned up by who was faster
            raise
        if not self.counts(batch_id, name, lines):
            self._take_back(name)
            return False
        self.after_add(batch_id, listing)
        return True

    def _is_next(self, batch_id: int, listing: BatchListing) -> bool:
        if not 0 <= batch_id <= MAX_BATCH_ID:
            raise InvalidInputError(f"{self.address()}: batch id {batch_id} is out of range; ids count from 0")
        if batch_id in listing.plain or batch_id in listing.compact:
            return False
        following = 0 if listing.latest is None else listing.latest + 1
        if self.contiguous and batch_id != following:
            raise InvalidInputError(
                f"{self.address()}: batch {batch_id} does not follow the latest one; add it as batch {following}"
            )
        return True

    def batch_content(self, batch_id: int, lines: list[bytes], listing: BatchListing) -> Callable[[], bytes | Chunks]:
        """Return a function that gives the bytes of a new batch's file, anew at each call."""
        content = wire.encode(lines, self.version)
        return lambda: content

    def counts(self, batch_id: int, name: str, lines: list[bytes]) -> bool:
        """Return whether the file just created is part of the log; here, whoever creates it has the batch."""
        return True

    def after_add(self, batch_id: int, listing: BatchListing) -> None:
        """Do what follows a commit, such as cleaning up; must not raise, since the batch is committed."""

    def publish(self, name: str, content: Callable[[], bytes | Chunks]) -> None:
        """Create a file of the log, whole and durable.

        A store that fails may have done it nonetheless: then the file is read back and compared.
        Raises: ConflictError, CommitUnknownError, StorageError where nothing was written.
        """
        try:
            self.objects.create(self.path(name), content())
        except AlreadyExistsError as error:
            raise self._conflict(name) from error
        except AccessDeniedError:
            raise
        except StorageError as error:
            if not self._landed(name, content, error):
                raise

    def _landed(self, name: str, content: Callable[[], bytes | Chunks], failure: StorageError) -> bool:
        try:
            same = _same_bytes(self.objects.stream(self.path(name)), content())
        except NotFoundError:
            return False
        except StorageError as error:
            raise CommitUnknownError(
                f"{self.address(name)}: {failure}; whether it was written is unknown, since reading it back failed "
                "too: list the log again before adding this batch anew"
            ) from error
        if not same:
            raise self._conflict(name) from failure
        return True

    def _take_back(self, name: str) -> None:
        try:
            self.objects.delete([self.path(name)])
        except StorageError as error:
            raise CommitUnknownError(
                f"{self.address(name)}: another writer used this number before, and the file could not be deleted again "
                f"({error}); delete it, list the log again, and add the batch under the next number"
            ) from error

    def _conflict(self, name: str) -> ConflictError:
        return ConflictError(
            f"Multiple streaming queries are concurrently using {self.address(name)}. Somebody else committed this "
            "batch first; read the log again and plan anew"
        )

    def stream_entries(self, name: str) -> Iterator[list[E]]:
        """Stream a file's entries, some hundreds at a time. Raises: NotFoundError, CorruptionError."""
        before = 1
        for block in self.read_blocks(name):
            for part in wire.split_block(block):
                entries = self._decoded(name, part, before)
                before += len(entries)
                yield entries

    def read_entries(self, name: str) -> list[E]:
        """Return all entries of a file. Raises: NotFoundError, CorruptionError."""
        return [entry for entries in self.stream_entries(name) for entry in entries]

    def _decoded(self, name: str, block: bytes, lines_before: int) -> list[E]:
        try:
            return self.codec.decode_block(block)
        except DECODING_ERRORS as error:
            raise self.damaged(name, block, error, lines_before) from error

    def damaged(self, name: str, block: bytes, failure: Exception, lines_before: int = 0) -> CorruptionError:
        """Return the error for a block that does not decode, which names the first bad line."""
        for number, line in enumerate(block.split(b"\n"), lines_before + 1):
            try:
                self.codec.decode(line)
            except DECODING_ERRORS as error:
                line_prefix = f"line {number}, " if lines_before else ""
                return wire.unreadable(self.address(name), f"{line_prefix}{wire.excerpt(line)}: {error}.")
        return wire.unreadable(self.address(name), f"{failure}.")

    def purge(self, threshold: int) -> None:
        """Delete the batches below `threshold`."""
        listing = self.listing()
        delete_batches(self, [file for file in listing.files if file.batch_id < threshold], listing)

    def purge_after(self, threshold: int) -> None:
        """Delete the batches above `threshold`, the newest first, so that a crash leaves no gap."""
        listing = self.listing()
        delete_batches(self, [file for file in reversed(listing.files) if file.batch_id > threshold], listing)


def _same_bytes(stored: Iterator[bytes], expected: bytes | Chunks) -> bool:
    rest = b""
    for piece in (expected,) if isinstance(expected, bytes) else expected:
        while len(rest) < len(piece):
            chunk = next(stored, b"")
            if not chunk:
                return False
            rest += chunk
        if not rest.startswith(piece):
            return False
        rest = rest[len(piece) :]
    return not rest and not next(stored, b"")
