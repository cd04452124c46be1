"""A round that leaves a key out: buckets with files that hold it are written anew from their live rows, and so are tombstones."""

from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa

from siltstone.errors import ConflictError
from siltstone.log.actions import Action
from siltstone.log.commit import Changes
from siltstone.log.horizon import announced
from siltstone.log.state import LogState
from siltstone.maintenance.key_search import SoughtKey
from siltstone.model.buckets import Bucket, BucketLine
from siltstone.model.properties import ROW_GROUP_ROWS
from siltstone.model.rounds import Accounting, RoundCompletion
from siltstone.objects import open_objects
from siltstone.rows.absorb import CompactedWriter
from siltstone.rows.files import SharedObjects, StoredFile
from siltstone.rows.fold import write_tombstones
from siltstone.rows.job import RoundJob, Settings
from siltstone.rows.slices import slices_of
from siltstone.table.completion import (
    CONSUMER_PREFIX,
    Destination,
    bucket_objects,
    commit_round,
    current_completion,
    write_completion,
)
from siltstone.table.jobs import version_of

_CONFLICTS = 20


class ErasedRound(NamedTuple):
    """A round that left a key out, and how many buckets it wrote anew."""

    round_id: int
    buckets: int


def erase_from_round(destination: Destination, key: SoughtKey, dirty: Collection[str]) -> ErasedRound | None:
    """Commit a round that names none of the files that hold a key; None where the current one does not.

    Consumers of changes that have acknowledged the round before it have then acknowledged this one. Raises: ConflictError.
    """
    for _ in range(_CONFLICTS):
        began = destination.log.read(lambda state: state.batch_id)
        before = current_completion(destination)
        if before is None or {*bucket_objects(before.buckets)}.isdisjoint(dirty):
            return None
        try:
            with announced(destination.log, began):
                return _commit(destination, before, key, dirty, began)
        except ConflictError:
            continue
    raise ConflictError(f"{destination.locator}: others changed it {_CONFLICTS} times meanwhile; try again")


def _commit(
    destination: Destination, before: RoundCompletion, key: SoughtKey, dirty: Collection[str], began: int
) -> ErasedRound:
    job, shared = _job(destination, before, began), SharedObjects(destination.root)
    changed = {
        number: [_rewritten(job, bucket, key, dirty, shared)]
        for number, bucket in enumerate(before.buckets)
        if not {*bucket_objects([bucket])}.isdisjoint(dirty)
    }
    completion = _completion(before, changed, job)
    written = write_completion(destination, completion, began)

    def carry_consumers(state: LogState) -> Changes:
        entries = {each["key"]: each for each in state.scan(CONSUMER_PREFIX) if each["round_id"] == before.round_id}
        return {
            name: {**{part: value for part, value in each.items() if part != "key"}, "round_id": completion.round_id}
            for name, each in entries.items()
        }

    try:
        action = Action("erase", {"round": completion.round_id, "buckets": len(changed)})
        commit_round(destination, completion, written, before.round_id, more=carry_consumers, action=action)
    except ConflictError:
        kept = {*bucket_objects(before.buckets)}
        new = bucket_objects(bucket for buckets in changed.values() for bucket in buckets)
        open_objects(destination.root).delete([*written.uris, *(uri for uri in new if uri not in kept)])
        raise
    return ErasedRound(completion.round_id, len(changed))


def _job(destination: Destination, before: RoundCompletion, began: int) -> RoundJob:
    version = version_of(destination.locator, root=destination.root)
    return RoundJob(
        root=destination.root,
        folder=destination.folder,
        fields=tuple(each.to_serializable() for each in before.fields),
        primary_keys=tuple(before.primary_keys),
        sort_keys=tuple(before.sort_keys),
        merge_engine=version.merge_engine,
        drop_duplicates=before.drop_duplicates,
        buckets=before.buckets,
        reads=(),
        settings=Settings(),
        now_ms=open_objects(destination.root).now_ms(),
        began=began,
        row_group_rows=ROW_GROUP_ROWS.of(version.properties, version.locator),
    )


def _rewritten(job: RoundJob, bucket: Bucket, key: SoughtKey, dirty: Collection[str], shared: SharedObjects) -> Bucket:
    """Return a bucket without the key. Values are read plain: a dictionary would bring along those of rows that are left out."""
    new = bucket.replaced()
    if any(file.uri in dirty for file in bucket.files):
        writer = CompactedWriter(job)
        for file in bucket.files:
            for table in StoredFile(job.root, file, shared=shared).live_rows(job.schema):
                writer.write(table.filter(pa.array(~key.flags(table))))
        (new.files,) = slices_of(writer.close(), [writer.row_count], [writer.row_count])
    if bucket.tombstones is not None and bucket.tombstones.uri in dirty:
        stored = StoredFile(job.root, bucket.tombstones)
        parts = [table.filter(pa.array(~key.flags(table))) for _, table in stored.scan(stored.parquet.schema_arrow)]
        write_tombstones(job, [new], [pa.concat_tables(parts)])
    return new


def _completion(before: RoundCompletion, changed: dict[int, list[Bucket]], job: RoundJob) -> RoundCompletion:
    buckets = before.buckets.replaced({number: [*map(BucketLine.of, several)] for number, several in changed.items()})
    kept = {*bucket_objects(before.buckets)}
    files = [file for several in changed.values() for bucket in several for file in bucket.files]
    fresh = [file for file in files if file.uri not in kept]
    live, total = buckets.totals.live_count, buckets.totals.file_count
    unchanged = {name: value for name, value in before.items() if name not in ("rolled_back_to", "repaired", "deaths")}
    return RoundCompletion.from_serializable(
        {
            **unchanged,
            "round_id": before.round_id + 1,
            "previous_round_id": before.round_id,
            "buckets": buckets,
            "delta_count": 0,
            "input_bytes": 0,
            "written_files": len(fresh),
            "written_bytes": sum(file.content_length for file in fresh),
            "written_rows": sum(file.record_count for file in fresh),
            "carried_files": total - len(fresh),
            "copied_by_reference_ratio": (total - len(fresh)) / total if total else 0.0,
            "bucket_actions": {"erased": len(changed), "untouched": len(buckets) - len(changed)},
            "accounting": Accounting(base_rows=before.live_rows, live_rows=live, deleted_rows=before.live_rows - live),
            "seconds": {},
            "completed_at": job.now_ms,
        }
    )
