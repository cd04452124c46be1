"""A log in which every k-th batch holds all that is still needed of the batches before it.

The file names, and when old batches go, are those of Spark's file stream logs, so that both can use one folder.
Reading is more lenient than Spark's: it lists and starts from the newest compact file, whatever the interval.
"""

import contextlib
import gc
import itertools
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import ClassVar, NoReturn, TypedDict, TypeVar

from siltstone import clock
from siltstone.errors import (
    CommitUnknownError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    SiltstoneError,
    StorageError,
)
from siltstone.log import wire
from siltstone.log.batch_log import Chunks, MetadataLog, delete_batches
from siltstone.log.batches import (
    COMPACT_SUFFIX,
    BatchFile,
    BatchListing,
    batch_name,
    batches_needed,
    interval_of,
    is_compaction_batch,
    oldest_to_keep,
)
from siltstone.log.codec import DECODING_ERRORS, Codec, E
from siltstone.objects import Objects

COMPACT_INTERVAL = 10
MIN_BATCHES_TO_RETAIN = 100
CLEANUP_DELAY_MS = 10 * 60 * 1000
_SLOW_COMPACTION_MS = 2000
_READ_ATTEMPTS = 10
_LINES_PER_BLOCK = 4096

logger = logging.getLogger(__name__)
T = TypeVar("T")


class LogOptions(TypedDict, total=False):
    """The options of any compactible log; see `CompactibleLog`."""

    default_interval: int
    min_batches_to_retain: int
    cleanup_delay_ms: int
    deletes_expired: bool
    now_ms: Callable[[], int]
    version: int
    contiguous: bool


class CompactibleLog(MetadataLog[E]):
    """A metadata log whose every `interval`-th batch `N.compact` also holds the live entries before it.

    A subclass says what stays: `retain` drops single entries; with `reconciles` set, of the entries with the
    same `key` only the latest stays, and none where that is a removal. Where neither is used, compaction copies bytes.

    Writers that share a log must have the same `default_interval`, which gives the first batches their names.
    `now_ms` is the clock of retention and clean-up.
    """

    reconciles: ClassVar[bool] = False

    def __init__(
        self,
        objects: Objects,
        folder: str,
        codec: Codec[E],
        *,
        default_interval: int = COMPACT_INTERVAL,
        min_batches_to_retain: int = MIN_BATCHES_TO_RETAIN,
        cleanup_delay_ms: int = CLEANUP_DELAY_MS,
        deletes_expired: bool = True,
        now_ms: Callable[[], int] = clock.now_ms,
        version: int = wire.VERSION,
        contiguous: bool = True,
    ) -> None:
        super().__init__(objects, folder, codec, version=version, contiguous=contiguous)
        interval_of(default_interval, ())
        if min_batches_to_retain <= 0:
            raise InvalidInputError(f"min_batches_to_retain was {min_batches_to_retain}; it must be positive")
        self.default_interval = default_interval
        self.min_batches_to_retain = min_batches_to_retain
        self.cleanup_delay_ms = cleanup_delay_ms
        self.deletes_expired = deletes_expired
        self.now_ms = now_ms
        self._interval: int | None = None
        self._snapshot: tuple[list[BatchFile], list[E]] = ([], [])

    def retain(self, entry: E, now_ms: int) -> bool:
        """Return whether the entry is still wanted."""
        return True

    def key(self, entry: E) -> Hashable | None:
        """Return what a later entry must share to supersede this one, or None if nothing does."""
        return None

    def is_removal(self, entry: E) -> bool:
        """Return whether the entry removes what has its key, and says nothing else."""
        return False

    @property
    def filters(self) -> bool:
        """Whether `retain` can drop anything; where it cannot, compaction need not ask."""
        return type(self).retain is not CompactibleLog.retain

    @property
    def interval(self) -> int:
        """The compaction interval: what two compact files say, else what the first use made of one or none."""
        return self._interval_by(None)

    def listing(self) -> BatchListing:
        """List the batch files; where two compact ones show the interval, it is this from now on."""
        listing = super().listing()
        if len(listing.compact_ids) > 1:
            self._interval = interval_of(self.default_interval, listing.compact_ids)
        return listing

    def _interval_by(self, listing: BatchListing | None) -> int:
        if self._interval is None:
            files = self.listing() if listing is None else listing
            self._interval = interval_of(self.default_interval, files.compact_ids)
        return self._interval

    def name_of(self, batch_id: int) -> str:
        """Return the file name that the interval gives to a batch."""
        return batch_name(batch_id, self.interval)

    def get(self, batch_id: int) -> list[E] | None:
        """Return the entries in the batch's file: for a compact one, the history up to it. Raises: CorruptionError."""
        name, plain = self.name_of(batch_id), str(batch_id)
        for candidate in (name, plain if plain != name else plain + COMPACT_SUFFIX):
            with contextlib.suppress(NotFoundError):
                return self.read_entries(candidate)
        return None

    def purge(self, threshold: int) -> NoReturn:
        """Refuse: batches go by expiry only. Raises: InvalidInputError."""
        raise InvalidInputError(
            f"{self.address()}: Cannot purge as it might break internal state. Set min_batches_to_retain instead"
        )

    def purge_after(self, threshold: int) -> NoReturn:
        """Refuse: a compact file cannot be undone. Raises: InvalidInputError."""
        self.purge(threshold)

    def batch_content(self, batch_id: int, lines: list[bytes], listing: BatchListing) -> Callable[[], bytes | Chunks]:
        """Return the bytes of a new batch: for a compaction batch, the history before it and its own lines."""
        if not is_compaction_batch(batch_id, self._interval_by(listing)):
            return super().batch_content(batch_id, lines, listing)
        files, missing = listing.chain(batch_id - 1) if batch_id else ([], [])
        if missing:
            raise self._missing_input(self._first_missing(listing, batch_id - 1))
        now_ms = self.now_ms()
        return lambda: self.compact_content(files, lines, now_ms)

    def compact_content(self, files: Sequence[BatchFile], lines: Sequence[bytes], now_ms: int) -> Iterator[bytes]:
        """Stream a compact file made of the entries of `files`, in this order, and of `lines`.

        Memory is bounded, but where the log reconciles: then each live line is held.
        Raises: NotFoundError, CorruptionError.
        """
        started = clock.monotonic()
        yield wire.header(self.version)
        blocks = self._compaction_input(files, lines)
        for name, block in self._reconciled(blocks) if self.reconciles else blocks:
            kept = block
            if self.filters:
                try:
                    kept = self.retained_block(block, now_ms)
                except DECODING_ERRORS as error:
                    raise self.damaged(name, block, error) from error
            if kept:
                yield b"\n"
                yield kept
        took_ms = int((clock.monotonic() - started) * 1000)
        if took_ms >= _SLOW_COMPACTION_MS:
            logger.warning("%s: compacting took %d ms; expire entries to shorten it", self.address(), took_ms)

    def _compaction_input(self, files: Sequence[BatchFile], lines: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
        for file in files:
            try:
                for block in self.read_blocks(file.name):
                    self._check_block(file, block)
                    yield file.name, block
            except NotFoundError as error:
                raise self._missing_input(file.name) from error
        if lines:
            yield "", b"\n".join(lines)

    def _check_block(self, file: BatchFile, block: bytes) -> None:
        if self.filters or self.reconciles:
            return  # each line is parsed anyway
        try:
            # The lines of a compact file were checked when it was made: all that can be is that it was cut short.
            self.codec.check_block(block, edges_only=file.is_compact)
        except ValueError as error:
            raise self.damaged(file.name, block, error) from error

    def _missing_input(self, name: str) -> NotFoundError:
        return NotFoundError(f"Unable to find batch {self.address(name)}. Restore it from a copy; nothing was written")

    def retained_block(self, block: bytes, now_ms: int) -> bytes:
        """Return the block without the lines `retain` drops; override where that shows without parsing."""
        lines = block.split(b"\n")
        kept = [line for line in lines if self.retain(self.codec.decode(line), now_ms)]
        return block if len(kept) == len(lines) else b"\n".join(kept)

    def _reconciled(self, blocks: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        lines = iter(keep_latest(self._keyed(blocks)))
        while part := list(itertools.islice(lines, _LINES_PER_BLOCK)):
            yield "", b"\n".join(part)

    def _keyed(self, blocks: Iterable[tuple[str, bytes]]) -> Iterator[tuple[Hashable | None, bool, bytes]]:
        for name, block in blocks:
            for part in wire.split_block(block):
                for line, entry in zip(part.split(b"\n"), self._decoded(name, part, 0), strict=True):
                    yield self.key(entry), self.is_removal(entry), line

    def reconcile(self, entries: Iterable[E]) -> list[E]:
        """Return the latest entry of each key, in the order of their batches, without what was removed."""
        return keep_latest((self.key(entry), self.is_removal(entry), entry) for entry in entries)

    def counts(self, batch_id: int, name: str, lines: list[bytes]) -> bool:
        """Return whether readers will see the batch just created, after whatever other writers did meanwhile.

        Its number may have been used and cleaned up since this writer listed the log, or be used under its other name
        by a writer with another interval. Then a compact file that lacks the batch hides it.
        Raises: CommitUnknownError.
        """
        for _ in range(_READ_ATTEMPTS):
            try:
                listing = self.listing()
                if name != str(batch_id) and batch_id in listing.plain:
                    return False
                newest = listing.newest_compact()
                if newest is None or newest.batch_id < batch_id or newest.name == name:
                    return True
                return self._holds(newest, lines)
            except NotFoundError:
                continue  # a newer compact file took the place of this one
            except (StorageError, CorruptionError) as error:
                raise self._unchecked(name, error) from error
        raise self._unchecked(name, "compact files came and went")

    def _holds(self, compact: BatchFile, lines: list[bytes]) -> bool:
        """Return whether a compact file has all of a batch's lines, except those that compaction drops."""
        if not lines:
            return False  # it cannot be seen whose batch that was, and there is nothing to lose
        now_ms = self.now_ms()
        entries = [(line, self.codec.decode(line)) for line in lines]
        missing = {line for line, entry in entries if self.retain(entry, now_ms) and not self.is_removal(entry)}
        for block in self.read_blocks(compact.name):
            missing.difference_update(block.split(b"\n"))
        return not missing

    def _unchecked(self, name: str, reason: object) -> CommitUnknownError:
        return CommitUnknownError(
            f"{self.address(name)}: the batch was written, but whether it counts could not be checked ({reason}); "
            "check the log for its entries before adding them again"
        )

    def after_add(self, batch_id: int, listing: BatchListing) -> None:
        """Delete what the new batch made superfluous; a failure is logged, and tried again with the next batch."""
        if not self.deletes_expired:
            return
        try:
            delete_batches(self, self.expired_files(batch_id, listing), listing)
        except SiltstoneError as error:
            logger.warning("%s: expired batches were not deleted: %s", self.address(), error)

    def expired_files(self, current: int, listing: BatchListing) -> list[BatchFile]:
        """Return the files that no reader needs once batch `current` is committed, oldest first.

        Of the compact files two stay: they show the interval, and writers that disagree about it would each give a
        batch another name.
        """
        keep = oldest_to_keep(current, self._interval_by(listing), self.min_batches_to_retain)
        newest = listing.compact_ids[:2]
        if keep is None or not newest:
            return []
        keep = min(keep, *newest)
        before_ms = self.now_ms() - self.cleanup_delay_ms
        return [file for file in listing.files if file.batch_id < keep and file.modified_ms <= before_ms]

    def live_entries(self) -> list[E]:
        """Return all entries that are live, oldest first; what an earlier call read is not read again.

        Raises: CorruptionError where a batch is missing or damaged, NotFoundError where one vanished.
        """
        entries = self._with_latest_files(self._refreshed)
        if not self.filters:
            return list(entries)
        now_ms = self.now_ms()
        return [entry for entry in entries if self.retain(entry, now_ms)]

    def iter_entries(self) -> Iterator[E]:
        """Stream the entries of the latest state from its files, neither reconciled nor filtered, in bounded memory.

        Raises: CorruptionError, NotFoundError where a compaction removes a file meanwhile: then start again.
        """
        files = self._with_latest_files(lambda files: files)
        return (entry for file in files for part in self.stream_entries(file.name) for entry in part)

    def _refreshed(self, files: list[BatchFile]) -> list[E]:
        before, entries = self._snapshot
        if files[: len(before)] != before:
            before, entries = [], []
        entries = list(entries)
        with _without_collecting():
            for file in files[len(before) :]:
                for part in self.stream_entries(file.name):
                    entries += part
        if self.reconciles and len(files) > len(before):
            entries = self.reconcile(entries)
        self._snapshot = (files, entries)
        return entries

    def _with_latest_files(self, read: Callable[[list[BatchFile]], T]) -> T:
        """Call `read` with the files of the latest state; again where a newer compact file replaced them meanwhile."""
        listing = self.listing()
        attempts = itertools.count(1)
        while True:
            try:
                return self._read_chain(listing, read)
            except (NotFoundError, CorruptionError):
                before, listing = listing.newest_compact(), self.listing()
                newest = listing.newest_compact()
                superseded = newest is not None and (before is None or newest.batch_id > before.batch_id)
                if not superseded or next(attempts) == _READ_ATTEMPTS:
                    raise

    def _read_chain(self, listing: BatchListing, read: Callable[[list[BatchFile]], T]) -> T:
        files, missing = listing.chain()
        state = f"(latestId: {listing.latest}, compactInterval: {self._interval_by(listing)})"
        if missing:
            name = self._first_missing(listing, listing.latest or 0)
            raise CorruptionError(f"{self.address(name)} doesn't exist {state}; restore it from a copy")
        try:
            return read(files)
        except NotFoundError as error:
            raise NotFoundError(f"{error} {state}; it vanished after it was listed: read again") from error

    def _first_missing(self, listing: BatchListing, last: int) -> str:
        """Return the name of the first file that the interval asks for and that is not there."""
        interval = self._interval_by(listing)
        names = {file.name for file in listing.files}
        needed = [batch_name(batch_id, interval) for batch_id in batches_needed(last, interval)]
        return next((name for name in needed if name not in names), str(listing.chain(last)[1][0].start))


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Pause the search for reference cycles: entries have none, and each search would visit all entries so far."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_latest(items: Iterable[tuple[Hashable | None, bool, T]]) -> list[T]:
    """Of (key, whether it removes, value) keep the latest value per key, and none where that one removes.

    What has no key (None) stands for itself. Values keep the order in which they came.
    """
    latest: dict[Hashable, T] = {}
    for key, removes, value in items:
        if key is None:
            latest[object()] = value
            continue
        latest.pop(key, None)
        if not removes:
            latest[key] = value
    return list(latest.values())
