"""Compaction of one partition on Spark."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from siltstone.errors import InvalidInputError
from siltstone.model import PartitionLocator
from siltstone.objects import canonical_root
from siltstone.rounds.events import Progress
from siltstone.rounds.request import Request
from siltstone.rounds.session import SessionResult, run_session
from siltstone.rows.job import BucketResult, Engine, JointEngine, Outcome, RoundJob, Settings, run_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark: TypeAlias = "SparkSession | Callable[[], SparkSession] | None"
"""A session, or what starts one; None means one in this process."""


def compact_partition(
    source_partition_locator: PartitionLocator,
    destination_partition_locator: PartitionLocator,
    primary_keys: str | Iterable[str],
    last_stream_position_to_compact: int | None = None,
    *,
    rebase_source_partition_locator: PartitionLocator | None = None,
    rebase_source_partition_high_watermark: int | None = None,
    compaction_artifact_path: str | None = None,
    compaction_artifact_s3_bucket: str | None = None,
    spark: Spark = None,
    sort_keys: str | Iterable[str] | None = None,
    records_per_compacted_file: int | None = None,
    target_file_bytes: int | None = None,
    max_round_bytes: int | None = None,
    full: bool = False,
    now_ms: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> SessionResult:
    """Compact the deltas of a source partition that are new since the last round into a destination partition.

    The artifact path is the root of the lake; a bare bucket name is short for `s3://` and that name. With a rebase
    source, the whole source partition is compacted into a fresh destination on behalf of the rebase source, and later
    rounds continue with that one from its high watermark. A watermark without a rebase sets where the first round
    starts.
    A round reads up to `max_round_bytes` of deltas, by default 2 GiB, or that much for every 8 cores of the session.
    Raises: InvalidInputError, NotFoundError, CorruptionError, ConflictError.
    """
    settings = settings or Settings()
    overrides = {"records_per_compacted_file": records_per_compacted_file, "target_file_bytes": target_file_bytes}
    chosen = {name: value for name, value in overrides.items() if value is not None}
    request = Request(
        source=source_partition_locator,
        destination=destination_partition_locator,
        primary_keys=_names(primary_keys),
        sort_keys=None if sort_keys is None else _names(sort_keys),
        last_stream_position=last_stream_position_to_compact,
        rebase_source=rebase_source_partition_locator,
        rebase_high_watermark=rebase_source_partition_high_watermark,
        settings=replace(settings, full=full or settings.full, **chosen),
        max_round_bytes=max_round_bytes,
        now_ms=now_ms,
        root=_root(compaction_artifact_path, compaction_artifact_s3_bucket),
    )
    return run_session(request, LazyEngine(spark, progress), progress)


class LazyEngine:
    """An engine on a Spark session, or on what a function returns that starts one, by default in this process.

    Spark is neither imported nor started before there is work: that takes seconds, and what is refused needs none.
    """

    def __init__(self, spark: Spark, progress: Progress | None = None) -> None:
        self._spark = spark
        self._progress = progress

    def __call__(self, job: RoundJob) -> Iterator[BucketResult]:
        """Run one round."""
        return self._started()(job)

    def run_all(self, jobs: Sequence[RoundJob]) -> Sequence[Outcome]:
        """Run rounds as one job of Spark's."""
        return run_jobs(self._started(), jobs)

    def core_count(self) -> int:
        """Return how many cores the session has, 0 where it does not say."""
        engine = self._started()
        return engine.core_count() if isinstance(engine, JointEngine) else 0

    def _started(self) -> Engine:
        from siltstone.spark.session import local_session
        from siltstone.spark.tasks import spark_engine

        session = self._spark() if callable(self._spark) else self._spark
        return spark_engine(session or local_session(), self._progress)


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return column names in order; those of a set are sorted."""
    if isinstance(names, str):
        return (names,)
    return tuple(names) if isinstance(names, list | tuple) else tuple(sorted(names))


def _root(path: str | None, bucket: str | None) -> str:
    if (path is None) == (bucket is None):
        raise InvalidInputError("give the root of the lake, as either compaction_artifact_path or …_s3_bucket")
    if path is not None:
        return canonical_root(path)
    assert bucket is not None
    return canonical_root(bucket if "/" in bucket else f"s3://{bucket}")
