"""The tables of a lake, as the service sees them: what waits for compaction, compacting it, trimming what is compacted."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from siltstone.catalog import main as catalog
from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError
from siltstone.lake import Lake, choose_engine
from siltstone.model import PartitionLocator, TableVersion
from siltstone.model.properties import PRIORITY
from siltstone.publish.outcomes import Published, PublishFailure
from siltstone.publish.publications import publish_by_property
from siltstone.rounds.events import Progress, TasksDone
from siltstone.rounds.plan import PartitionPlan, plan_each
from siltstone.rounds.request import Request
from siltstone.rounds.session import SessionResult, run_planned
from siltstone.rows.job import LASTING_ERRORS, Engine
from siltstone.service.daily_checks import DailyChecks
from siltstone.service.results import Checkpointed, CheckpointResult, KeepAlive, PendingPartition, Trimmed
from siltstone.service.settings import DAY_SECONDS
from siltstone.service.trims import trim_table
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    current_entry,
    locate_compacted,
    read_state,
)
from siltstone.table.followers import PartitionWork, Sources, keep_following, read_work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class LakeTables:
    """All tables of a lake. Compacts on Spark, or with the given engine."""

    def __init__(
        self,
        lake: Lake,
        *,
        session: "Callable[[], SparkSession] | None" = None,
        engine: Engine | None = None,
        delta_retention_seconds: float = 7 * DAY_SECONDS,
    ) -> None:
        self.lake = lake
        self._session = session
        self._engine = engine
        self._retention_seconds = delta_retention_seconds
        self._is_time_uncertain = False
        self._checks = DailyChecks()

    def find_work(self, keep_alive: KeepAlive) -> Sequence[PendingPartition]:
        """Return the partitions with deltas after their watermark, or due without any. Raises: StorageError.

        A table or partition that cannot be read is returned with its problem, and does not hide the others. So is one
        that has nothing to do, but of which files are missing: some of these are checked each time, each once a day.
        """
        pending: list[PendingPartition] = []
        self._checks.begin_pass()
        for table in self.lake.tables():
            keep_alive()
            damaged: list[PendingPartition] = []
            try:
                on_damage = partial(_note_damage, damaged, table.name)
                work = read_work(table.name, root=self.lake.root, keep_alive=keep_alive, on_damage=on_damage)
                waiting, idle = list[PartitionWork](), list[PartitionWork]()
                for partition in work:
                    keep_following(partition)
                    (waiting if partition.is_waiting else idle).append(partition)
                priority = PRIORITY.of(table.properties, table.name) if work else 0
                pending += [_pending(table.name, partition, priority) for partition in waiting]
                for partition, error in self._checks.check_idle(idle, keep_alive):
                    _note_damage(damaged, table.name, partition.own, error)
                pending += damaged
            except SiltstoneError as error:
                if not isinstance(error, NotFoundError) or self._is_in_use(table.name):
                    pending.append(PendingPartition(table.name, table.name, None, problem=str(error)))
        return pending

    def compact(self, partitions: Sequence[PartitionLocator], progress: Progress) -> Iterator[Checkpointed]:
        """Compact partitions of one table as one job, and yield each with what came of it, as they end.

        Once a day, all files that a partition consists of are looked for first. Raises: SiltstoneError.
        """
        asked: dict[PartitionLocator, Request] = {}
        for partition, request in self._requests(partitions, progress):
            if isinstance(request, SiltstoneError):
                yield partition, self._failure(partition, request)
            else:
                asked[partition] = request
        plans: dict[PartitionLocator, PartitionPlan] = {}
        for partition, plan in zip(asked, plan_each(list(asked.values()), progress), strict=True):
            if isinstance(plan, SiltstoneError):
                yield partition, self._failure(partition, plan)
            else:
                plans[partition] = plan
        engine = self._engine or choose_engine("spark", self._session, progress)
        planned = list(plans)
        for number, ending in run_planned(list(plans.values()), engine, progress):
            partition = planned[number]
            if isinstance(ending, SiltstoneError):
                yield partition, self._failure(partition, ending)
            else:
                yield partition, _result(ending)

    def _requests(
        self, partitions: Sequence[PartitionLocator], progress: Progress
    ) -> Iterator[tuple[PartitionLocator, Request | SiltstoneError]]:
        """Yield what is to be compacted in each partition, or why that cannot be said."""
        root = self.lake.root
        try:
            sources = Sources(partitions[0].stream_locator, root=root)
            keys = tuple(self._version(partitions[0]).primary_keys)
        except LASTING_ERRORS as error:
            yield from ((partition, error) for partition in partitions)
            return
        for number, partition in enumerate(partitions):
            progress(TasksDone("check", number, len(partitions)))
            try:
                destination = sources.destination(partition)
                entry = current_entry(destination)
                self._checks.check(destination, entry)
                request = Request(sources.followed_by(partition, entry), destination.locator, keys, root=root)
            except LASTING_ERRORS as error:
                yield partition, error
            else:
                yield partition, request

    def _failure(self, partition: PartitionLocator, error: SiltstoneError) -> CheckpointResult | SiltstoneError:
        """Return an error, unless it is that the partition is gone: then there is nothing to do."""
        is_gone = isinstance(error, NotFoundError) and not self._is_there(partition)
        return CheckpointResult(high_watermark=None) if is_gone else error

    def trim(self, marks: Mapping[PartitionLocator, int], keep_alive: KeepAlive) -> Iterator[Trimmed]:
        """Forget deltas that partitions of one table have read, no other needs, and that are past their retention."""
        counts = trim_table(
            marks,
            retention_seconds=self._retention_seconds,
            root=self.lake.root,
            keep_alive=keep_alive,
            tell_uncertainty=self._warn_if_uncertain,
        )
        for partition, count in counts:
            is_gone = isinstance(count, NotFoundError) and not self._is_there(partition)
            yield partition, None if is_gone else count

    def publish(self, keep_alive: KeepAlive) -> Iterator[Published | PublishFailure]:
        """Publish each table whose property says so, unless it is as compacted; yield what came of each that is not."""
        for table in self.lake.tables():
            keep_alive()
            for done in publish_by_property(table.name, root=self.lake.root):
                if isinstance(done, PublishFailure) or done.is_new:
                    yield done

    def _warn_if_uncertain(self, uncertainty: str | None) -> None:
        """Log that deltas are kept because of a clock, once until it is right again."""
        if uncertainty is not None and not self._is_time_uncertain:
            _log.warning("deltas not trimmed", extra={"reason": uncertainty})
        self._is_time_uncertain = uncertainty is not None

    def _version(self, partition: PartitionLocator) -> TableVersion:
        name = partition.table_version_locator.table_locator.full_name
        return catalog.get_table_version(name, partition.table_version, root=self.lake.root)

    def _is_in_use(self, name: str) -> bool:
        """Return whether a table is still there, with a version that takes writes."""
        try:
            catalog.get_table_version(name, root=self.lake.root)
        except NotFoundError:
            return False
        return True

    def _is_there(self, partition: PartitionLocator) -> bool:
        try:
            return storage.partition_exists(partition, root=self.lake.root)
        except NotFoundError:
            return False


def compacted_watermark(partition: PartitionLocator, *, root: str) -> int:
    """Return up to where a partition of deltas is compacted, 0 before the first round. Raises: NotFoundError."""
    return read_state(locate_compacted(partition, root=root)).watermark


def _note_damage(
    damaged: list[PendingPartition], name: str, partition: PartitionLocator, error: CorruptionError
) -> None:
    damaged.append(PendingPartition(str(partition), name, None, problem=str(error)))


def _result(ended: SessionResult) -> CheckpointResult:
    rounds = ended.rounds
    return CheckpointResult(
        # What others have compacted meanwhile is compacted as well.
        high_watermark=ended.high_watermark,
        rounds=len(rounds),
        rows=sum(round_.accounting.delta_rows + round_.accounting.removal_rows for round_ in rounds),
        input_bytes=sum(round_.input_bytes for round_ in rounds),
        written_bytes=sum(round_.written_bytes for round_ in rounds),
    )


def _pending(name: str, waiting: PartitionWork, priority: int) -> PendingPartition:
    return PendingPartition(
        name=str(waiting.own),
        table=name,
        locator=waiting.own,
        deltas=len(waiting.deltas),
        bytes=sum(delta.manifest.content_length for delta in waiting.deltas),
        oldest_at=min((delta.committed_at for delta in waiting.deltas), default=None),
        priority=priority,
    )
