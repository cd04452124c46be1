"""Operations on a table of rows, as a user's programs would call them."""

import random
from dataclasses import replace

import pyarrow as pa

from siltstone.catalog.main import delta_stream
from siltstone.clock import is_skewed
from siltstone.documents.merge import run_here
from siltstone.errors import CommitUnknownError, SiltstoneError, StorageError
from siltstone.lake import Lake, Table
from siltstone.objects import open_objects
from siltstone.rounds.plan import RoundPlan, plan_partitions
from siltstone.rounds.request import Request, TableRequest, partition_requests
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.service.lake_tables import LakeTables, compacted_watermark
from siltstone.storage import object_store as storage
from siltstone.testing.simulation.checker import Ledger, Write
from siltstone.testing.simulation.clocks import DAY_MS, HOUR_MS
from siltstone.testing.simulation.processes import Operation

TABLE = "shop.orders"
_IDS = 6
_BURST = 16
_ATTEMPTS = 3
MIN_RETENTION_MS = HOUR_MS


def create_table(root: str) -> Table:
    """Make the table of a simulation: a key has rows by their time `at`, and `n` tells the write that a row is from."""
    return Lake(root).create_table(
        TABLE,
        schema={"p": "int64", "id": "int64", "at": "int64", "n": "int64"},
        primary_keys=["p", "id"],
        sort_keys=["at"],
        partition_keys=["p"],
    )


class Actor:
    """One operation of one process: what it draws, and what it has to do with."""

    def __init__(self, root: str, ledger: Ledger, operation: Operation, chance: random.Random, partitions: int) -> None:
        self.table = Table(Lake(root), TABLE)
        self.ledger = ledger
        self.chance = chance
        self._operation = operation
        self._partitions = partitions

    def tell(self, what: str) -> None:
        """Say what the operation is, for the history."""
        self._operation.what = what

    def write(self) -> None:
        """Write once."""
        self._write(self._make_write(self._operation.step.number * 100))

    def burst(self) -> None:
        """Write many times, one commit each."""
        for place in range(self.chance.randint(4, _BURST)):
            self._write(self._make_write(self._operation.step.number * 100 + place, is_small=True))
        self.tell(f"{place + 1} writes from {self._operation.step.number * 100} on")

    def resend(self) -> None:
        """Write again what was written under an idempotency id before, as a job does that starts over."""
        known = [write for write in self.ledger.writes.values() if write.idempotency]
        if known:
            self._write(self.chance.choice(known))

    def _make_write(self, number: int, *, is_small: bool = False) -> Write:
        chance = self.chance
        places = [place for place in range(self._partitions) if not is_small or chance.random() < 0.5] or [0]
        rows = [(place, key) for place in places for key in range(_IDS) if chance.random() < (0.2 if is_small else 0.5)]
        rows = rows or [(places[0], 0)]
        at = number if chance.random() < 0.8 else chance.randint(1, number)
        data = pa.table({"p": [row[0] for row in rows], "id": [row[1] for row in rows]})
        idempotency = ("job", number) if chance.random() < 0.5 else None
        if chance.random() < 0.1:
            return Write(number, data, "delete", None, idempotency)
        operations = [chance.choice("uuud") for _ in rows]
        for name, values in (("at", [at] * len(rows)), ("n", [number] * len(rows)), ("op", operations)):
            data = data.append_column(name, pa.array(values))
        return Write(number, data, "upsert", "op", idempotency)

    def _write(self, write: Write) -> None:
        self.tell(f"write {write.number} ({write.data.num_rows} rows, {write.type})")
        self.ledger.writes[write.number] = write
        for attempt in range(_ATTEMPTS):
            self._operation.write_number = write.number
            try:
                position = self.table.write(
                    write.data, type=write.type, op_column=write.op_column, idempotency=write.idempotency
                )
            except (CommitUnknownError, StorageError):
                if write.idempotency is None or attempt == _ATTEMPTS - 1:
                    raise
                continue
            self.ledger.acknowledge(write.number, position)
            return

    def read(self) -> None:
        """Read what is compacted."""
        self._read(is_fresh=False)

    def read_fresh(self) -> None:
        """Read everything."""
        self._read(is_fresh=True)

    def _read(self, *, is_fresh: bool) -> None:
        reading = self.ledger.begin_read(is_fresh=is_fresh)
        found = self.table.to_arrow(include_uncompacted=is_fresh)
        self._operation.check = lambda: self.ledger.check_read(found, reading)

    def read_as_of(self) -> None:
        """Read an earlier position."""
        position = self.chance.choice(list(self.ledger.states))
        self.tell(f"read as of {position}")
        self._operation.needs_old_deltas = True
        reading = self.ledger.begin_read(is_fresh=False)
        found = self.table.to_arrow(as_of=position)
        self._operation.check = lambda: self.ledger.check_read(found, reading, position)

    def compact(self) -> None:
        """Compact what is new, in one partition or in all."""
        self._compact(full=False)

    def compact_full(self) -> None:
        """Rewrite everything that is compacted."""
        self._compact(full=True)

    def _compact(self, *, full: bool) -> None:
        requests = partition_requests(TableRequest(self.table.name, self.table.lake.root, full=full))
        if len(requests) > 1 and self.chance.random() < 0.5:
            requests = [self.chance.choice(requests)]
        for plan in plan_partitions(requests):
            if isinstance(plan, RoundPlan):
                self._run(plan.request)

    def _run(self, request: Request) -> None:
        bucket_rows = self.chance.choice((2, 500_000))
        dead = self.chance.choice((0.25, 1.0))
        settings = Settings(
            full=request.settings.full,
            bucket_rows=bucket_rows,
            max_dead_fraction=dead,
            max_files=self.chance.choice((2, 8)),
            max_carried_fraction=1.0,
            page_buckets=2,
            stretch_buckets=self.chance.choice((1, 3, 128)),
            shared_rows=self.chance.choice((0, 4096)),
        )
        result = run_session(replace(request, settings=settings), run_here)
        for completion in result.rounds:
            self.ledger.compacted(completion.high_watermark)

    def rebase(self) -> None:
        """Discard what is compacted, and compact all deltas again."""
        root = self.table.lake.root
        self._operation.needs_old_deltas = True
        for request in partition_requests(TableRequest(self.table.name, root, rebase_from=self.table.name)):
            self._run(request)

    def roll_back(self) -> None:
        """Go back to an earlier round of one partition."""
        rounds = self.table.rounds()
        if not rounds:
            return
        chosen = self.chance.choice(rounds)
        values = chosen.destination_partition_locator.partition_values
        self.tell(f"roll back to round {chosen.round_id} of {values}")
        with self.ledger.going_back():
            self.table.rollback(chosen.round_id, partition_values=values)

    def trim(self) -> None:
        """Forget deltas that are compacted, as the service does."""
        tables = LakeTables(self.table.lake, delta_retention_seconds=self.chance.choice((0, 3600)))
        root = self.table.lake.root
        partitions = storage.list_partitions(delta_stream(self.table.name, root=root), root=root)
        marks = {each.locator: compacted_watermark(each.locator, root=root) for each in partitions}
        for _, count in tables.trim(marks, lambda: None):
            if isinstance(count, SiltstoneError):
                raise count

    def vacuum_dropped(self) -> None:
        """Remove the files of dropped tables; none is ever dropped here."""
        report = self.table.lake.vacuum_dropped(retention_ms=MIN_RETENTION_MS, confirm_time=self._confirms())
        self.tell(f"vacuum dropped tables, {report.removed_files} files removed")

    def restart(self) -> None:
        """Do nothing: the process ends, and a new one takes its place."""

    def vacuum(self) -> None:
        """Forget old rounds and remove what nothing names."""
        retention_ms = self.chance.choice((MIN_RETENTION_MS, DAY_MS))
        grace_ms = self.chance.choice((0, MIN_RETENTION_MS, DAY_MS))
        report = self.table.vacuum(retention_ms=retention_ms, orphan_grace_ms=grace_ms, confirm_time=self._confirms())
        self.tell(f"vacuum, {len(report.removed_files)} files removed")

    def _confirms(self) -> bool:
        """Return whether somebody says that the store's time is right, as it is, though this machine's clock differs."""
        return is_skewed(open_objects(self.table.lake.root).skew_ms()) and self.chance.random() < 0.5
