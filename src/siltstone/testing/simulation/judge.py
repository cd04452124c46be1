"""The judge: whether an operation may end as it did, and whether a table may look as it does, also after damage."""

from dataclasses import dataclass, field

from siltstone.document_table import DocumentTable
from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError, SiltstoneError
from siltstone.lake import Table
from siltstone.log.commit import forget_logs
from siltstone.table.completion import closed_before
from siltstone.testing.faults import Killed
from siltstone.testing.simulation.actors import MIN_RETENTION_MS
from siltstone.testing.simulation.checker import Ledger, ViolationError
from siltstone.testing.simulation.clocks import DAY_MS, ProcessClock
from siltstone.testing.simulation.damage import Damage
from siltstone.testing.simulation.documents import DocumentLedger
from siltstone.testing.simulation.processes import Operation
from siltstone.testing.simulation.store import SimulatedObjects


class BlindError(Exception):
    """What is stored is damaged, and so that it cannot be looked at any more; an error said so, as it should."""


@dataclass
class Judge:
    """What is known, and what is allowed."""

    table: Table
    ledger: Ledger
    store: SimulatedObjects
    clock: ProcessClock
    documents: DocumentTable | None = None
    document_ledger: DocumentLedger = field(default_factory=DocumentLedger)
    damages: list[Damage] = field(default_factory=list)
    _seen_changes: int = -1

    def note_damage(self, damage: Damage) -> None:
        """Remember what was damaged; from now on, errors that name it are right answers."""
        self.damages.append(damage)
        self.ledger.damaged |= set(damage.paths)
        self._seen_changes = self.store.changes

    def problem_with(self, operation: Operation, error: BaseException, *, is_healed: bool) -> ViolationError | None:
        """Return what is wrong with how an operation ended, None where it may end so."""
        what = f"{operation.what}: {error}"
        if isinstance(error, ViolationError):
            return error
        if isinstance(error, Killed):
            return None
        if not isinstance(error, SiltstoneError):
            return ViolationError("crash", f"{operation.what}: {error!r}")
        if isinstance(error, CorruptionError) and self._may_lack_files(operation):
            return None
        if self.damages:
            return self._problem_after_damage(what, error)
        if isinstance(error, CorruptionError):
            return ViolationError("corruption", what)
        if not is_healed or (isinstance(error, InvalidInputError) and self._is_closed_ahead()):
            return None
        return ViolationError("refusal", f"{what} ({type(error).__name__})")

    def _problem_after_damage(self, what: str, error: SiltstoneError) -> ViolationError | None:
        is_named = any(damage.is_named_in(str(error)) for damage in self.damages)
        # What is damaged must not look as if it had never been there, either.
        if isinstance(error, CorruptionError | NotFoundError) and not is_named:
            return ViolationError("unnamed damage", what)
        return None

    def _is_closed_ahead(self) -> bool:
        """Tell whether documents were compacted on a disk while its machine's clock was ahead, so that updates wait."""
        closed = None if self.documents is None else closed_before(self.documents.table.properties)
        return not self.store.has_clock and closed is not None and 0 <= closed - self.clock.now_ms() < DAY_MS

    def _may_lack_files(self, operation: Operation) -> bool:
        """Tell whether what an operation reads may have been trimmed, or forgotten because it took so long."""
        if operation.needs_old_deltas and any(self.ledger.trimmed.values()):
            return True
        is_reading = operation.step.operation.startswith("read")
        return is_reading and self.clock.latest_ms - operation.begun_ms > MIN_RETENTION_MS

    def look(self) -> int:
        """Look at the table, if anything has changed; return how many commits are new. Raises: ViolationError."""
        if self.store.changes == self._seen_changes:
            return 0
        self._seen_changes = self.store.changes
        known = len(self.ledger.number_at)
        try:
            self.ledger.observe(self.table, self.store.contents, self.clock.latest_ms)
            if self.documents is not None:
                self.document_ledger.observe(self.documents)
        except SiltstoneError as error:
            self._explain(error)
        except ViolationError:
            self._excuse_refilled()
            raise
        return len(self.ledger.number_at) - known

    def _excuse_refilled(self) -> None:
        """Look anew where a batch was deleted by hand and its number taken by a writer that knew only those before it.

        That writer cannot know. But whoever checks the log must notice. Raises: BlindError.
        """
        deleted = [path for damage in self.damages if damage.kind == "delete" for path in damage.paths]
        if not any(path in self.store.contents for path in deleted):
            return
        forget_logs(self.store.root)
        try:
            findings = "; ".join(map(str, self.table.fsck()))
        except CorruptionError as error:
            findings = str(error)
        if any(damage.is_named_in(findings) for damage in self.damages):
            raise BlindError from CorruptionError(findings)

    def look_deep(self) -> None:
        """Look at everything with no memory of what was. Raises: ViolationError."""
        self._seen_changes = -1
        self.look()
        try:
            findings = list(self.table.fsck(deep=True))
            findings += [] if self.documents is None else self.documents.fsck(deep=True)
        except SiltstoneError as error:
            self._explain(error)
        if findings and not self.damages:
            raise ViolationError("fsck", "; ".join(map(str, findings[:3])))

    def _explain(self, error: SiltstoneError) -> None:
        self.ledger.check_files(self.store.contents)
        found = self._problem_after_damage(f"the table cannot be looked at: {error}", error)
        if found is None and self.damages:
            raise BlindError from error
        raise found or ViolationError("corruption", f"the table cannot be looked at: {error}") from error
