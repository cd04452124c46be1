"""Keeping up with a commit log, and keeping it small: what this process knows of it, what came since, and checkpoints."""

import contextlib
import logging
from collections.abc import Iterable

from siltstone import clock
from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError, StorageError
from siltstone.log import chain
from siltstone.log.batch_log import BatchFolder
from siltstone.log.batches import COMPACT_SUFFIX, BatchListing
from siltstone.log.chain import CHECKPOINT_KEY
from siltstone.log.compactible import CLEANUP_DELAY_MS
from siltstone.log.state import LogState

# Every so many batches one is an anchor, which is deleted before those that come after it.
ANCHOR_INTERVAL = 16
# How often a process lists the names of all batches: only they show that one is missing and others come after it.
LISTING_SECONDS = 60.0
_LOAD_ATTEMPTS = 5


def anchor_of(batch_id: int) -> int:
    """Return the number of the anchor that comes with a batch or before it."""
    return batch_id // ANCHOR_INTERVAL * ANCHOR_INTERVAL


class LogReader:
    """The newest state that this process knows of a commit log."""

    def __init__(self, batches: BatchFolder) -> None:
        self.state = LogState(self._file_of)
        self.is_loaded = False
        self._batches = batches
        self._listed_at = 0.0

    def refresh(self) -> None:
        """Bring the state up to date with the batches that came since."""
        if not self.is_loaded:
            self.load()
            return
        self._catch_up()
        if clock.monotonic() - self._listed_at >= LISTING_SECONDS:
            self._read_newer()

    def _read_newer(self) -> None:
        """Read the log anew if it goes on after a batch that is missing: what comes before that is not all there is."""
        listing = self._batches.listing()
        self._listed_at = clock.monotonic()
        latest, newest_read = -1 if listing.latest is None else listing.latest, self.state.batch_id
        if latest < newest_read or (latest > newest_read and listing.plain(newest_read + 1) is None):
            self.load()

    def _catch_up(self) -> None:
        state = self.state
        try:
            batches = self._batches_after(state.batch_id, state.digest)
        except CorruptionError:
            if self.is_intact_after(state.batch_id, state.anchor):
                raise
            self.load()
            return
        if self.is_intact_after(state.batch_id, state.anchor):
            self._follow(state, batches)
        else:
            self.load()

    def _batches_after(self, batch_id: int, digest: str | None, upto: int | None = None) -> list[chain.ChainedFile]:
        """Return the batches after one, up to the first that is not there, checked to follow each other."""
        batches: list[chain.ChainedFile] = []
        while upto is None or batch_id < upto:
            batch_id += 1
            name = str(batch_id)
            try:
                batch = self._read_chained(name)
            except NotFoundError:
                break
            if batch.head.get("previous") != digest:
                raise CorruptionError(
                    f"{self._batches.address(name)}: it was not written after the batch before it, {batch_id - 1}: one of the two is "
                    "from elsewhere, or was changed. Restore both from a copy; `siltstone log verify` checks all batches"
                )
            digest = batch.digest
            batches.append(batch)
        return batches

    def is_intact_after(self, batch_id: int, anchor: str | None) -> bool:
        """Return whether none of the numbers after a batch was ever freed, given the anchor of the next batch."""
        if anchor is not None:
            name = str(anchor_of(batch_id))
            try:
                return (
                    chain.write_id_in(self._batches.objects.read_start(self._batches.path(name), chain.START_BYTES))
                    == anchor
                )
            except NotFoundError:
                return False
        # The first batch has no anchor, nor do batches of earlier versions. But what was freed is summed up.
        newest = self._batches.listing().newest_compact()
        return newest is None or newest.batch_id <= batch_id

    def _read_chained(self, name: str) -> chain.ChainedFile:
        where = self._batches.address(name)
        file = chain.decode(
            self._batches.objects.read(self._batches.path(name)), where, self._batches.version, self._batches.writer
        )
        # The address, since who is given the path of a log does not know where its lake begins.
        if "log" in file.head and not f"/{self._batches.address()}".endswith(f"/{file.head['log']}"):
            kind = "a checkpoint" if file.head["key"] == CHECKPOINT_KEY else "the first batch"
            raise CorruptionError(
                f"{where}: it is {kind} of {file.head['log']}, another log; restore the file from a copy"
            )
        return file

    def load(self) -> None:
        """Read the log anew from a listing; a file that vanishes meanwhile means a newer checkpoint."""
        self.is_loaded = False
        for _ in range(_LOAD_ATTEMPTS):
            listing = self._batches.listing()
            latest = -1 if listing.latest is None else listing.latest
            try:
                state = self._summed_up(listing)
            except NotFoundError:
                continue
            failure: CorruptionError | None = None
            batches: list[chain.ChainedFile] = []
            try:
                batches = self._batches_after(state.batch_id, state.digest, latest)
            except CorruptionError as error:
                failure = error
            first_missing = state.batch_id + len(batches) + 1
            if not self.is_intact_after(state.batch_id, None):
                continue
            if failure is not None:
                raise failure
            if first_missing > latest:
                if latest < self.state.batch_id:
                    raise CorruptionError(
                        f"{self._batches.address(str(self.state.batch_id))}: this batch was there and is gone, with all after batch "
                        f"{latest}. Restore it from a copy; if the whole log was set back on purpose, start this process anew"
                    )
                self._follow(state, batches)
                self.state, self.is_loaded = state, True
                self._listed_at = clock.monotonic()
                return
            raise CorruptionError(
                f"{self._batches.address(str(first_missing))}: missing, although batch {latest} is there: the log has a "
                "gap. Restore the file from a copy; `siltstone log verify` shows all that is missing"
            )
        raise StorageError(
            f"{self._batches.address()}: files vanished while they were read, {_LOAD_ATTEMPTS} times; try again"
        )

    def _summed_up(self, listing: BatchListing) -> LogState:
        """Return the state of the newest checkpoint."""
        state = LogState(self._file_of)
        checkpoint = listing.newest_compact()
        if checkpoint is not None:
            content, where = self._read_chained(checkpoint.name), self._batches.address(checkpoint.name)
            if not content.head and self._is_chained(checkpoint.batch_id):
                raise CorruptionError(f"{where}: it is older than the batch it sums up; restore the file from a copy")
            state.restore(checkpoint.batch_id, content, where)
        return state

    def _is_chained(self, batch_id: int) -> bool:
        """Return whether a batch has a head; one that was cleaned up does not matter."""
        try:
            return chain.is_chained(
                self._batches.objects.read_start(self._batches.path(str(batch_id)), chain.START_BYTES)
            )
        except NotFoundError:
            return False

    def _follow(self, state: LogState, batches: Iterable[chain.ChainedFile]) -> None:
        try:
            for batch in batches:
                state.follow(batch, self._batches.address(str(state.batch_id + 1)))
        except CorruptionError:
            self.is_loaded = False  # a part of a batch may have been taken over
            raise

    def _file_of(self, line: bytes) -> str:
        """Return the address of the newest file that has a line, or of the folder if there is none."""
        with contextlib.suppress(SiltstoneError):
            for file in reversed(self._batches.listing().chain()[0]):
                if line in self._batches.read_lines(file.name):
                    return self._batches.address(file.name)
        return self._batches.address()


CHECKPOINT_INTERVAL = 10
# A checkpoint costs what it holds. Once per thousandth of that, its share of each commit stays constant.
_CHECKPOINT_SHARE = 1000
_CLEANUP_PAUSE_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one commit log."""

    def __init__(self, batches: BatchFolder) -> None:
        self._batches = batches
        self._cleaned_at: float | None = None

    def write_if_due(self, state: LogState) -> None:
        """Write a checkpoint if enough was committed since the last one; a failure is logged, and tried again later."""
        if state.batch_id - state.checkpoint_id < max(CHECKPOINT_INTERVAL, len(state) // _CHECKPOINT_SHARE):
            return
        try:
            self.write(state)
            if self._cleaned_at is None or clock.monotonic() - self._cleaned_at > _CLEANUP_PAUSE_SECONDS:
                self.clean_up()
        except SiltstoneError as error:
            # Whatever it is, the commit happened: who heard otherwise would delete what it names.
            _log.warning(
                "%s: no checkpoint after batch %d (%s); the next commit tries again",
                self._batches.address(),
                state.batch_id,
                error,
            )

    def write(self, state: LogState) -> None:
        """Write a checkpoint. All that is in it follows from the batches, whoever writes it, and whenever."""
        state.expire()
        # Who is given the path of a log does not know what the lake calls it.
        state.log = state.log or self._batches.folder or None
        path = self._batches.path(f"{state.batch_id}{COMPACT_SUFFIX}")
        self._batches.objects.replace(path, state.checkpoint(self._batches.version))
        state.checkpoint_id = state.batch_id

    def clean_up(self) -> None:
        """Delete what the checkpoint before the newest one made superfluous, if it is old enough.

        The age only keeps files in place that others are about to read. What counts is the order: see `reader`.
        """
        self._cleaned_at = clock.monotonic()
        listing = self._batches.listing()
        checkpoints = sorted(listing.compact_ids)
        if len(checkpoints) < 2:
            return
        before_ms = self._batches.objects.now_ms() - CLEANUP_DELAY_MS
        young = [file.batch_id for file in listing.files if file.modified_ms > before_ms]
        keep_from = anchor_of(min([checkpoints[-2], *young]))
        old = [file for file in listing.files if file.batch_id < keep_from]
        anchors = [file for file in old if file.batch_id == anchor_of(file.batch_id) and not file.is_compact]
        for anchor in anchors:
            self._batches.delete_files([anchor], listing)
        self._batches.delete_files([file for file in old if file not in anchors], listing)
