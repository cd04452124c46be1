"""Where results go: one interface, for people as text and for programs as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from siltstone.cli.results import Check, DeltaLine, Exported, TableChanged, TableDetails, TableSummary, Written
from siltstone.cli.results_cycles import Controlled, ServiceReport, Serving, Triggered
from siltstone.cli.results_maintenance import KeyStory, Repaired, RolledBack, TableChecked, Vacuumed
from siltstone.cli.results_rounds import Compacted, RoundDetails, RoundLine, TablePlan

if TYPE_CHECKING:
    from siltstone.cli.reading import Rows
    from siltstone.log.inspect import CompactionReport, LogSummary, VerificationReport
    from siltstone.log.opened import Entry
    from siltstone.service.results import CycleDetails, CycleRecord


class Output(Protocol):
    """Shows what commands found or did; only `failure` and `warning` tell of trouble."""

    def tables(self, tables: Sequence[TableSummary], root: str) -> None:
        """Show a list of tables."""

    def table(self, table: TableDetails) -> None:
        """Show all about one table."""

    def changed(self, change: TableChanged) -> None:
        """Show what happened to a table."""

    def written(self, written: Written) -> None:
        """Show what a write did."""

    def deltas(self, table: str, deltas: Sequence[DeltaLine]) -> None:
        """Show a list of deltas."""

    def compacted(self, compacted: Compacted) -> None:
        """Show what a compaction did."""

    def planned(self, planned: TablePlan) -> None:
        """Show what the next rounds would do."""

    def rounds(self, table: str, rounds: Sequence[RoundLine]) -> None:
        """Show a list of rounds."""

    def round(self, details: RoundDetails) -> None:
        """Show all about one round."""

    def rows(self, table: str, rows: "Rows", shown: int | None) -> None:
        """Show rows as they come in; with `shown`, one more may be there, which tells that they go on."""

    def found(
        self, table: str, key: Mapping[str, str | None], rows: Sequence[Mapping[str, object]], uncompacted: int
    ) -> None:
        """Show the rows of a key; where there are none, deltas that are not compacted may have one."""

    def explained(self, table: str, key: Mapping[str, str | None], stories: Sequence[KeyStory]) -> None:
        """Show what happened to a key, in each partition that had it."""

    def checked(self, checked: Sequence[TableChecked], root: str) -> None:
        """Show what is wrong with tables."""

    def repaired(self, repaired: Repaired) -> None:
        """Show what was brought back of a table."""

    def vacuumed(self, vacuumed: Vacuumed) -> None:
        """Show what was removed of tables."""

    def rolled_back(self, rolled_back: RolledBack) -> None:
        """Show what is current again."""

    def exported(self, exported: Exported) -> None:
        """Show what was written to a file."""

    def checks(self, checks: Iterable[Check]) -> bool:
        """Show findings as they come in; tell whether none of them failed."""

    def log(self, log: "LogSummary") -> None:
        """Show the batches of a log."""

    def log_entries(self, entries: "Iterable[Entry]") -> None:
        """Show entries as they come in."""

    def log_verified(self, report: "VerificationReport") -> None:
        """Show what was found wrong with a log."""

    def log_compacted(self, report: "CompactionReport") -> None:
        """Show what a compaction did."""

    def serving(self, serving: Serving) -> None:
        """Show that a service has started, and where."""

    def service(self, report: ServiceReport) -> None:
        """Show what the service does now."""

    def cycles(self, records: "Sequence[CycleRecord]") -> None:
        """Show a list of finished cycles."""

    def cycle(self, details: "CycleDetails") -> None:
        """Show all about one cycle."""

    def triggered(self, triggered: Triggered) -> None:
        """Show what became of a request for a cycle."""

    def controlled(self, controlled: Controlled) -> None:
        """Show what an operator changed about the service."""

    def warning(self, message: str) -> None:
        """Show something to know that stops nothing."""

    def failure(self, kind: str, message: str) -> None:
        """Show why the command failed."""
