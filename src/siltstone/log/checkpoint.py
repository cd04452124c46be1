"""Keeping a commit log small: checkpoints beside its batches, and deleting what they make superfluous."""

import logging

from siltstone import clock
from siltstone.errors import SiltstoneError
from siltstone.log.batch_log import BatchFolder
from siltstone.log.batches import COMPACT_SUFFIX
from siltstone.log.compactible import CLEANUP_DELAY_MS
from siltstone.log.reader import anchor_of
from siltstone.log.state import LogState

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
