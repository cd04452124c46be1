"""Proving a commit log by all files that are still there: each whole, each following the other, each sum right."""

from collections.abc import Iterator
from dataclasses import dataclass

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log import wire
from siltstone.log.batch_log import BatchFolder
from siltstone.log.batches import BatchFile, BatchListing
from siltstone.log.state import LogState
from siltstone.log.wire import CHECKPOINT_KEY

_RESTORE = "restore it from a copy"


@dataclass(frozen=True)
class Finding:
    """Something wrong: a stable `code`, the file it is about, what is the matter, and what to do."""

    code: str
    file: str
    message: str
    action: str


def find_problems(log: BatchFolder, listing: BatchListing | None = None) -> list[Finding]:
    """Return the problems of a log, except gaps in the files that make up its newest state.

    What lies below a gap does not count: it is what cleaning up left behind.
    """
    listing = log.listing() if listing is None else listing
    return list(_Proof(log, listing).problems())


def refuse_unproven(log: BatchFolder) -> None:
    """Raise CorruptionError, which names the file, if a log has gaps or problems."""
    listing = log.listing()
    missing = listing.chain()[1]
    if missing:
        raise CorruptionError(
            f"{log.address(str(missing[0].start))}: this batch is missing, so nothing is deleted; restore it from a copy"
        )
    for problem in find_problems(log, listing):
        raise CorruptionError(
            f"{problem.file}: {problem.message}, so nothing is deleted; {problem.action}. "
            "`siltstone log verify` shows all that is wrong"
        )


class _Proof:
    def __init__(self, log: BatchFolder, listing: BatchListing) -> None:
        self._log = log
        self._plain = _without_leftovers(listing)
        self._compact = {batch_id: listing.compact[batch_id] for batch_id in listing.compact_ids}
        self._read: dict[str, wire.ChainedFile] = {}

    def problems(self) -> Iterator[Finding]:
        for file in [*self._plain.values(), *self._compact.values()]:
            try:
                self._read[file.name] = self._decoded(file)
            except NotFoundError:
                continue  # cleaned up meanwhile
            except CorruptionError as error:
                yield Finding("bad-file", self._log.address(file.name), str(error), self._cure(file))
        self._pass_over_repeated()
        yield from self._broken_links()
        try:
            yield from self._wrong_sums()
        except CorruptionError:
            return  # lines that are no entries: who reads every line names them

    def _decoded(self, file: BatchFile) -> wire.ChainedFile:
        decoded = self._log.read_chained(file.name)
        if decoded.head and (decoded.head["key"] == CHECKPOINT_KEY) != file.is_compact:
            kind = "a batch" if file.is_compact else "a checkpoint"
            raise CorruptionError(f"{self._log.address(file.name)}: it is {kind} under a wrong name")
        return decoded

    def _cure(self, file: BatchFile) -> str:
        """A checkpoint can be made anew where the batches since the one before it are there."""
        before = max((number for number in self._compact if number < file.batch_id), default=-1)
        if file.is_compact and all(number in self._plain for number in range(before + 1, file.batch_id + 1)):
            return "delete it: all that it sums up is still there"
        return _RESTORE

    def _pass_over_repeated(self) -> None:
        """Forget the first batches if they have a number that was freed: by writers that slept, and then died.

        Only numbers below the checkpoint before the newest one are ever freed.
        """
        if len(self._compact) < 2:
            return
        freed_below = sorted(self._compact)[-2]
        owners: dict[int, str] = {}
        for number in self._compact:
            checkpoint = self._read.get(f"{number}.compact")
            if checkpoint is not None:
                recent = checkpoint.head.get("recent", [])
                owners |= enumerate(recent, number + 1 - len(recent))
        for number in sorted(self._plain):
            batch = self._read.get(str(number))
            owner = owners.get(number)
            if number >= freed_below or owner is None or batch is None or batch.head.get("write_id") == owner:
                return
            del self._plain[number], self._read[str(number)]

    def _broken_links(self) -> Iterator[Finding]:
        for number in sorted(self._plain):
            before, batch = self._read.get(str(number - 1)), self._read.get(str(number))
            if before is None or batch is None:
                continue
            if batch.head.get("previous") != before.digest:
                message = f"it does not follow batch {number - 1}: one of the two is from elsewhere, or was changed"
                yield Finding("chain", self._log.address(str(number)), message, "restore both from a copy")

    def _wrong_sums(self) -> Iterator[Finding]:
        """Sum up the batches after each checkpoint, and compare that with the next ones."""
        state = LogState()
        is_known = 0 in self._plain
        for number in sorted(self._plain.keys() | self._compact.keys()):
            batch = self._read.get(str(number))
            if is_known and batch is not None and state.batch_id == number - 1:
                state.follow(batch, self._log.address(str(number)))
            else:
                is_known = False
            checkpoint, where = self._read.get(f"{number}.compact"), self._log.address(f"{number}.compact")
            if checkpoint is None:
                continue
            if batch is not None and batch.digest is not None and checkpoint.head.get("digest") != batch.digest:
                yield Finding("checkpoint", where, f"it does not sum up batch {number} as it is", _RESTORE)
            summed = LogState()
            summed.restore(number, checkpoint, where)
            if is_known and checkpoint.head:
                yield from self._compared(summed, state)
            state, is_known = summed, True

    def _compared(self, summed: LogState, state: LogState) -> Iterator[Finding]:
        state.expire()
        if summed.lines != state.lines:
            keys = summed.lines.keys() | state.lines.keys()
            wrong = sorted(key for key in keys if summed.lines.get(key) != state.lines.get(key))
            message = f"{len(wrong)} of its entries differ from what the batches before it say, {wrong[0]!r} first"
            where = self._log.address(f"{summed.batch_id}.compact")
            yield Finding("checkpoint", where, message, "delete it: all that it sums up is still there")


def _without_leftovers(listing: BatchListing) -> dict[int, BatchFile]:
    """Return the batches that are part of the log: those after the last gap below the newest checkpoint, and all later."""
    newest = listing.newest_compact()
    first = 0 if newest is None else newest.batch_id
    while first - 1 in listing.plain:
        first -= 1
    return {number: file for number, file in listing.plain.items() if number >= first}
