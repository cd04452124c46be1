"""Documents in a simulation: updates that each set a field of their own, so that a document tells which it has seen."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from siltstone.document_table import Document, DocumentTable
from siltstone.documents.record import new_change_id, to_ms
from siltstone.errors import CommitUnknownError, StorageError
from siltstone.lake import Lake
from siltstone.storage import object_store as storage
from siltstone.table.completion import closed_before
from siltstone.testing.simulation.checker import ViolationError
from siltstone.testing.simulation.processes import Operation

TABLE = "shop.reviews"
_KEYS = ("a", "b", "c")
_ATTEMPTS = 3
_DELAY_SECONDS = 60


def create_documents(root: str) -> DocumentTable:
    """Make the table of documents."""
    return Lake(root).create_document_table(TABLE, full_consistency_delay=_DELAY_SECONDS)


@dataclass
class DocumentLedger:
    """What is known of the documents from outside."""

    key_of: dict[int, str] = field(default_factory=dict)
    must_have: dict[str, set[int]] = field(default_factory=lambda: {key: set() for key in _KEYS})
    _closed: int = 0
    _position: int = 0

    def begin_update(self, number: int, key: str) -> None:
        """Remember an update that may happen from now on."""
        self.key_of[number] = key

    def acknowledge(self, number: int) -> None:
        """Remember that an update happened."""
        self.must_have[self.key_of[number]].add(number)

    def begin_read(self) -> dict[str, set[int]]:
        """Return the updates that a read must see that begins now."""
        return {key: set(numbers) for key, numbers in self.must_have.items()}

    def check_read(self, found: Iterable[Document], expected: Mapping[str, set[int]]) -> None:
        """Check documents; what they have, later reads must see as well. Raises: ViolationError."""
        for document in found:
            key = str(document["~id"])
            numbers = {int(name[1:]) for name in document if not name.startswith("~")}
            lost = expected[key] - numbers
            if lost:
                raise ViolationError("lost update", f"document {key!r} lacks updates {sorted(lost)}")
            foreign = [number for number in numbers if self.key_of.get(number) != key]
            if foreign:
                raise ViolationError("foreign update", f"document {key!r} has updates {sorted(foreign)}")
            if document["~version"] != len(numbers):
                raise ViolationError(
                    "doubled update", f"document {key!r} has version {document['~version']} by {len(numbers)} updates"
                )
            self.must_have[key] |= numbers

    def observe(self, table: DocumentTable) -> None:
        """Check that nothing was committed that is older than what was closed before. Raises: ViolationError."""
        root = table.lake.root
        for delta in table.table.deltas(first_stream_position=self._position + 1):
            self._position = delta.stream_position
            for change_id in storage.download_delta(delta, columns=["change_id"], root=root).column(0).to_pylist():
                if to_ms(change_id) < self._closed:
                    raise ViolationError(
                        "closed stream", f"{change_id} came after the time before {self._closed} was closed"
                    )
        closed = closed_before(table.table.properties) or 0
        if closed < self._closed:
            raise ViolationError("closed stream", f"was closed before {self._closed}, and is before {closed} now")
        self._closed = closed


class DocumentActor:
    """One operation of one process on documents."""

    def __init__(self, root: str, ledger: DocumentLedger, operation: Operation, chance: random.Random) -> None:
        self._root = root
        self._ledger = ledger
        self._operation = operation
        self._chance = chance

    def update(self) -> None:
        """Change a document, again under the same change id where the answer got lost."""
        number = self._operation.step.number
        key = self._chance.choice(_KEYS)
        self._operation.what = f"update {number} of document {key!r}"
        self._ledger.begin_update(number, key)
        table = DocumentTable(Lake(self._root), TABLE)
        change_id = new_change_id() if self._chance.random() < 0.5 else None
        for attempt in range(_ATTEMPTS):
            try:
                table.update(key, f'{{..,"f{number}":{number}}}', change_id=change_id)
            except (CommitUnknownError, StorageError):
                if change_id is None or attempt == _ATTEMPTS - 1:
                    raise
                continue
            self._ledger.acknowledge(number)
            return

    def read(self) -> None:
        """Read all documents."""
        expected = self._ledger.begin_read()
        found = DocumentTable(Lake(self._root), TABLE).get_many(_KEYS)
        self._operation.check = lambda: self._ledger.check_read(found, expected)

    def compact(self) -> None:
        """Compact documents, as of now."""
        DocumentTable(Lake(self._root), TABLE).compact(full=self._chance.random() < 0.2, engine="local")
