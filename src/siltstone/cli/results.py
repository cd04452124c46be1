"""What commands hand to the output: plain records, cheap to import, which JSON shows field by field.

Where a class names one of them in `json_field`, JSON shows that one alone: the others are for people.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from siltstone.text import format_iso_time

if TYPE_CHECKING:
    import pyarrow as pa

    from siltstone.document_table import Document
    from siltstone.documents.read import HistoryEntry, TimelineEvent
    from siltstone.ingest.dry_run import Written
    from siltstone.log.inspect import Finding
    from siltstone.log.opened import Entry
    from siltstone.maintenance.damage import BucketRepair
    from siltstone.maintenance.machine import Check
    from siltstone.service.results import Control, CycleDetails, CycleRecord, NodeInfo, ServiceStatus, TriggerRequest
    from siltstone.table.completion import Hold
    from siltstone.table.explain import KeyStory
    from siltstone.table.report import DeltaReport, RoundReport, TableDescription, TableSummary


@dataclass(frozen=True)
class TableChanged:
    """What happened, or would happen, to a table; no changes means it is as wished already."""

    name: str
    action: Literal["created", "dropped", "renamed", "altered"]
    changes: Sequence[str]
    dry_run: bool
    table: "TableDescription | None" = None
    written: "Written | None" = None


@dataclass(frozen=True)
class TableList:
    """The tables of a lake, or of a namespace."""

    json_field: ClassVar = "items"
    root: str
    items: "Sequence[TableSummary]"


@dataclass(frozen=True)
class DeltaList:
    """Deltas of a table."""

    json_field: ClassVar = "items"
    table: str
    items: "Sequence[DeltaReport]"


@dataclass(frozen=True)
class RoundList:
    """Rounds of a table."""

    json_field: ClassVar = "items"
    table: str
    items: "Sequence[RoundReport]"


@dataclass(frozen=True)
class Rows:
    """Rows as they come in; `total` is how many there would be without a limit, or None if only reading shows it.

    `uncompacted` is how many deltas are not in there. With `shown`, people see that many of them; one more may be there,
    which shows that there are more.
    """

    table: str
    schema: "pa.Schema"
    batches: "Iterator[pa.RecordBatch]"
    total: int | None
    uncompacted: int
    shown: int | None = None

    def json_lines(self) -> Iterator[object]:
        """Yield the rows."""
        from siltstone.ingest.export import plain_rows

        for batch in self.batches:
            yield from plain_rows(batch)


@dataclass(frozen=True)
class FoundRows:
    """The rows of a key; if there are none, waiting deltas may have one."""

    json_field: ClassVar = "items"
    table: str
    key: Mapping[str, str | None]
    items: Sequence[Mapping[str, object]]
    uncompacted: int


@dataclass(frozen=True)
class Exported:
    """Rows or documents of a table that were written to a file."""

    table: str
    file: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableChecked:
    """What was checked in a table, and the findings; none means sound."""

    table: str
    deep: bool
    deltas: int
    delta_files: int
    rounds: int
    compacted_files: int
    live_rows: int
    findings: "Sequence[Finding]"


@dataclass(frozen=True)
class TableVacuumed:
    """What was removed of a table, or would be in a dry run."""

    table: str
    expired_rounds: Sequence[int]
    removed_files: Sequence[str]
    removed_bytes: int
    kept_files: int
    skipped_links: Sequence[str] = ()
    unsure_time: str | None = None


@dataclass(frozen=True)
class DroppedVacuumed:
    """What was removed of tables that were dropped; `waiting_folders` are those within the retention."""

    removed_folders: Sequence[str]
    removed_files: int
    removed_bytes: int
    waiting_folders: Sequence[str]
    skipped_links: Sequence[str] = ()
    unclaimed_folders: Sequence[str] = ()
    unsure_time: str | None = None


@dataclass(frozen=True)
class Vacuumed:
    """What was removed of one table, or of all and of those that were dropped; or would be in a dry run."""

    dry_run: bool
    tables: Sequence[TableVacuumed]
    dropped: DroppedVacuumed | None


@dataclass(frozen=True)
class RolledBack:
    """A partition that is, or in a dry run would be, as it was after an earlier round."""

    table: str
    dry_run: bool
    round: "RoundReport"
    previous_high_watermark: int
    previous_live_rows: int
    deltas_to_compact: int


@dataclass(frozen=True)
class PartitionRepaired:
    """What was, or in a dry run would be, done for a partition, by the round that says so."""

    partition: Sequence[object]
    round_id: int | None
    is_registered: bool
    lost_rows: int
    buckets: "Sequence[BucketRepair]"


@dataclass(frozen=True)
class Repaired:
    """What was, or in a dry run would be, repaired of a table."""

    table: str
    dry_run: bool
    lost_rows: int
    partitions: Sequence[PartitionRepaired]


@dataclass(frozen=True)
class Explained:
    """What happened to a key, in each partition that had it."""

    json_field: ClassVar = "items"
    table: str
    key: Mapping[str, str | None]
    items: "Sequence[KeyStory]"


@dataclass(frozen=True)
class Checked:
    """What is wrong with tables."""

    json_field: ClassVar = "items"
    root: str
    items: Sequence[TableChecked]


@dataclass(frozen=True)
class Checks:
    """Findings of the doctor, as they come in."""

    json_field: ClassVar = "items"
    items: "Iterable[Check]"


@dataclass(frozen=True)
class LogEntries:
    """Entries of a log, as they come in."""

    entries: "Iterable[Entry]"

    def json_lines(self) -> "Iterable[Entry]":
        """Return the entries."""
        return self.entries


@dataclass(frozen=True)
class ServiceReport:
    """All about now, and the nodes of the last day."""

    database: str
    status: "ServiceStatus"
    nodes: "Sequence[NodeInfo]"


@dataclass(frozen=True)
class Triggered:
    """A request for a cycle, and whether its outcome was waited for."""

    json_field: ClassVar = "request"
    request: "TriggerRequest"
    waited: bool


@dataclass(frozen=True)
class Controlled:
    """What an operator did to the service; unchanged where there was nothing to undo."""

    action: Literal["frozen", "unfrozen", "disabled", "enabled"]
    changed: bool
    control: "Control | None" = None


@dataclass(frozen=True)
class Serving:
    """A service that has started; no address where it has no web pages. One line, to be read while it runs."""

    is_json_line: ClassVar = True
    node: str
    root: str
    database: str
    address: str | None
    workers: int


@dataclass(frozen=True)
class CycleList:
    """Finished cycles."""

    json_field: ClassVar = "items"
    items: "Sequence[CycleRecord]"


@dataclass(frozen=True)
class OneCycle:
    """A cycle with every attempt at its partitions."""

    json_field: ClassVar = "details"
    details: "CycleDetails"


@dataclass(frozen=True)
class Done:
    """Something small that was done: a sentence for people, fields for programs."""

    is_json_line: ClassVar = True
    json_field: ClassVar = "fields"
    sentence: str
    fields: Mapping[str, object]


@dataclass(frozen=True)
class Documents:
    """Documents, one after another."""

    documents: "Iterable[Document]"

    def json_lines(self) -> "Iterable[Document]":
        """Return the documents."""
        return self.documents


@dataclass(frozen=True)
class DocumentStatus:
    """What became of a change, and the document."""

    is_json_line: ClassVar = True
    state: str
    document: "Document"


@dataclass(frozen=True)
class Timeline:
    """All that is stored of a document."""

    is_json_line: ClassVar = True
    json_field: ClassVar = "items"
    key: str
    items: "Sequence[TimelineEvent]"


@dataclass(frozen=True)
class History:
    """Every change of a document that is kept."""

    is_json_line: ClassVar = True
    json_field: ClassVar = "items"
    key: str
    items: "Sequence[HistoryEntry]"


@dataclass(frozen=True)
class HoldList:
    """The holds that are on."""

    is_json_line: ClassVar = True
    json_field: ClassVar = "fields"
    table: str
    items: "Sequence[Hold]"

    @property
    def fields(self) -> Sequence[Mapping[str, object]]:
        """Return what programs see of them."""
        return [hold_fields(hold) for hold in self.items]


def hold_fields(hold: "Hold") -> Mapping[str, object]:
    """Return what programs see of a hold."""
    times = {"since": format_iso_time(hold.since_ms), "until": format_iso_time(hold.until_ms)}
    return {"hold_id": hold.hold_id, **times, "reason": hold.reason}
