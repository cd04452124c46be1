"""What tests of compaction share: a source, its destination, sessions in this process, and what they should give."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

import siltstone
from siltstone.catalog.main import delta_stream
from siltstone.model import PartitionLocator
from siltstone.model.buckets import CompactedFile
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import schema_from_json
from siltstone.objects import open_objects
from siltstone.rounds.request import Request
from siltstone.rounds.session import SessionResult, run_session
from siltstone.rows.files import StoredFile
from siltstone.rows.job import BucketResult, Engine, Outcome, RoundJob, Settings, run_jobs
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import Destination, current_completion, locate_destination
from siltstone.testing.oracle import oracle_of, same_rows

MINOR = Settings(max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=100, page_buckets=2)
MAJOR = replace(MINOR, full=True)
SCHEMA = {"id": "int64", "v": "string"}


class TaskError(Exception):
    """A task failed, for no reason that the compactor knows."""


def make_table(root: str, name: str = "shop.orders", **settings: Any) -> siltstone.Table:
    """Create a table of ids and values."""
    return siltstone.open(root).create_table(name, **{"schema": SCHEMA, "primary_keys": ["id"], **settings})


def rows(ids: Sequence[int | None], value: str = "") -> pa.Table:
    """Return rows whose value tells their id and who wrote them."""
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{value}{number}" for number in ids]})


def only_partition(table: siltstone.Table) -> PartitionLocator:
    """Return the one partition of a table's deltas."""
    root = table.lake.root
    (partition,) = storage.list_partitions(delta_stream(table.name, root=root), root=root)
    return partition.locator


class Cluster:
    """Runs rounds in this process, and says how many cores it has; notes how many rounds each job has."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.asked = 0
        self.jobs: list[int] = []

    def __call__(self, job: RoundJob) -> Iterator[BucketResult]:
        self.jobs.append(1)
        return run_here(job)

    def run_all(self, jobs: Sequence[RoundJob]) -> Sequence[Outcome]:
        self.jobs.append(len(jobs))
        return run_jobs(run_here, jobs)

    def core_count(self) -> int:
        self.asked += 1
        return self.cores


def compacted(table: siltstone.Table) -> PartitionLocator:
    """Return the destination beside a table's deltas."""
    return PartitionLocator(**{**only_partition(table), "stream": "compacted"})


def request_for(table: siltstone.Table, settings: Settings = MINOR, **more: Any) -> Request:
    """Ask for all of a table's deltas to be compacted beside them, but for what is given."""
    defaults: dict[str, Any] = {
        "source": only_partition(table),
        "destination": compacted(table),
        "primary_keys": tuple(table.version.primary_keys),
        "settings": settings,
        "root": table.lake.root,
    }
    return Request(**{**defaults, **more})


def compact(
    table: siltstone.Table, settings: Settings = MINOR, *, engine: Engine = run_here, **more: Any
) -> SessionResult:
    """Run a session in this process."""
    return run_session(request_for(table, settings, **more), engine)


def destination_of(table: siltstone.Table, partition: PartitionLocator | None = None) -> Destination:
    """Return where a table is compacted to."""
    return locate_destination(partition or compacted(table), root=table.lake.root)


def completion_of(table: siltstone.Table, partition: PartitionLocator | None = None) -> RoundCompletion:
    """Return the completion that is current."""
    completion = current_completion(destination_of(table, partition))
    assert completion is not None
    return completion


def found_rows(table: siltstone.Table, partition: PartitionLocator | None = None) -> list[dict[str, Any]]:
    """Return the compacted rows."""
    completion = completion_of(table, partition)
    return [row for batch in live_batches(table.lake.root, completion) for row in batch.to_pylist()]


def check_rows(table: siltstone.Table, upto: int | None = None, partition: PartitionLocator | None = None) -> None:
    """Compare the compacted rows with the oracle's, which are those of the source up to a position."""
    same_rows(found_rows(table, partition), oracle_of(table, upto).rows())


def objects_below(root: str) -> list[str]:
    """Return the names of everything that is stored, but for the logs."""
    return sorted(
        object_.path for object_ in open_objects(root).list_objects("", recursive=True) if "/log/" not in object_.path
    )


def objects_of(completion: RoundCompletion) -> set[str]:
    """Return the names of all pages, data files, indices, deletion vectors and tombstones of a state."""
    names: set[str] = {bucket.tombstones.uri for bucket in completion.buckets if bucket.tombstones is not None}
    names |= {page.uri for page in completion.buckets.pages}
    names |= {completion.deaths.uri} if completion.deaths is not None and completion.deaths.uri is not None else set()
    for file in completion.files:
        names |= {file.uri, file.index_uri or file.uri}
        names |= {file.deletion_vector.uri} if file.deletion_vector is not None else set()
    return names


def overwrite(root: str, path: str, data: bytes | None) -> None:
    """Damage an object; None deletes it."""
    if data is None:
        open_objects(root).delete([path])
    else:
        open_objects(root).replace(path, data)


def only_file(completion: RoundCompletion) -> CompactedFile:
    """Return the one data file of a state."""
    (file,) = completion.files
    return file


def failing_after(buckets: int, engine: Engine = run_here) -> Engine:
    """Return an engine whose task number `buckets` fails."""

    def run(job: RoundJob) -> Iterator[BucketResult]:
        for number, result in enumerate(engine(job)):
            if number == buckets:
                raise TaskError(f"after {buckets} buckets")
            yield result
        raise TaskError("after all buckets")

    return run


def meeting(*others: Callable[[], object], engine: Engine = run_here) -> Engine:
    """Return an engine in whose n-th round the n-th of `others` is called, after the work and before the commit."""
    waiting = list(others)

    def run(job: RoundJob) -> Iterator[BucketResult]:
        yield from engine(job)
        if waiting:
            waiting.pop(0)()

    return run


def live_batches(root: str, completion: RoundCompletion, schema: pa.Schema | None = None) -> Iterator[pa.Table]:
    """Yield the live rows after a round, a row group at a time, with the columns it knew or with those of a schema.

    Raises: CorruptionError.
    """
    for file in completion.files:
        yield from StoredFile(root, file).live_rows(schema_from_json(completion.fields) if schema is None else schema)
