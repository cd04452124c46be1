"""Bringing a compacted partition back: a repair makes damaged files anew, a rollback returns to an earlier round.

A repair is a round of its own. An index is built anew from its data file. A bucket with a lost data file, deletion
vector or tombstones is taken from the last round that has it whole and after which no delta is trimmed, and the deltas
since are applied to it, and to no other. Where there is no such round, the rows of the lost files are lost; what deltas
that are still there say about them is applied, unless that could bring back a row as it never was.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from siltstone.errors import ConflictError, CorruptionError, InvalidInputError
from siltstone.log.actions import Action
from siltstone.log.horizon import announced, new_round_name
from siltstone.maintenance.damage import BucketRepair, Damage, Region, RepairPlan, plan_repair
from siltstone.maintenance.fsck import reachable_rounds
from siltstone.model import Delta, PartitionValue
from siltstone.model.buckets import Bucket, CompactedFile
from siltstone.model.properties import ROWS_KIND
from siltstone.model.rounds import Accounting, RoundCompletion
from siltstone.model.schema import nullable, schema_from_json
from siltstone.objects import open_objects
from siltstone.rows.columns import hash_keys
from siltstone.rows.files import StoredFile
from siltstone.rows.index import write_index
from siltstone.rows.job import Merge, RoundJob
from siltstone.rows.parts import gather_here
from siltstone.table.completion import (
    Destination,
    bucket_objects,
    commit_round,
    current_entry,
    find_problems,
    get_round,
    write_completion,
)
from siltstone.table.followers import follow, own_partition, round_source
from siltstone.table.jobs import Keys, delta_reads, floor_before, make_job, since_overwrite, source_columns, version_of

_CONFLICTS = 20


@dataclass(frozen=True)
class PartitionRepair:
    """What is or would be done for a partition, by the round `round_id`; None if no round is needed.

    `is_registered` where its rows were whole, but its table did not know the partition.
    """

    partition_values: list[PartitionValue]
    dry_run: bool
    round_id: int | None = None
    buckets: list[BucketRepair] = field(default_factory=list)
    is_registered: bool = False

    @property
    def lost_rows(self) -> int:
        """Rows that cannot be brought back."""
        return sum(repair.lost_rows for repair in self.buckets)


def repair(
    destinations: Sequence[Destination], merge: Merge, *, accept_loss: bool = False, dry_run: bool = False
) -> list[PartitionRepair]:
    """Repair the current state of each compacted partition that is damaged, in one commit; return what was done.

    Every row is read to find out, of all partitions before any is changed. Where rows are lost, nothing is changed
    unless that is accepted. Raises: InvalidInputError, CorruptionError, ConflictError where others keep changing one.
    """
    plans = [plan for plan in map(plan_repair, destinations) if plan is not None]
    if dry_run:
        return [
            PartitionRepair(plan.destination.locator.partition_values, True, plan.round_id, plan.repairs)
            for plan in plans
        ]
    for plan in plans:
        _refuse_loss(plan, accept_loss=accept_loss)
    done = [_repair_one(plan, merge, accept_loss=accept_loss) for plan in plans]
    return [repaired for repaired in done if repaired is not None]


def _repair_one(plan: RepairPlan, merge: Merge, *, accept_loss: bool) -> PartitionRepair | None:
    for _ in range(_CONFLICTS):
        try:
            return _Repair(plan, merge).run()
        except ConflictError:
            again = plan_repair(plan.destination)
            if again is None:
                return None
            plan = again
            _refuse_loss(plan, accept_loss=accept_loss)
    raise ConflictError(f"{plan.destination.locator}: others changed it {_CONFLICTS} times meanwhile; try again")


def _refuse_loss(plan: RepairPlan, *, accept_loss: bool) -> None:
    lost = [repair for repair in plan.repairs if repair.cure == "loss"]
    if lost and not accept_loss:
        trimmed = plan.source.trimmed_position
        why = f"deltas up to {trimmed} are trimmed" if trimmed else "the rows came from elsewhere than the deltas"
        raise InvalidInputError(
            f"{plan.destination.locator}: up to {sum(repair.lost_rows for repair in lost)} rows with key hashes from "
            f"{lost[0].first_hash} to {lost[0].last_hash}{' and elsewhere' if len(lost) > 1 else ''} cannot be brought "
            f"back: their files are damaged, no round that is kept has them whole, and {why}. Restore "
            f"{lost[0].damaged[0]} from a copy, rebase from rows that have them, or accept the loss (`siltstone repair "
            "--accept-loss`)"
        )


class _Repair:
    """One attempt: writes what is made anew, and commits it as a round."""

    def __init__(self, plan: RepairPlan, merge: Merge) -> None:
        self._plan = plan
        self._began = plan.destination.log.read(lambda state: state.batch_id)
        self._merge = merge
        self._root = plan.destination.root
        self._written: list[str] = []
        # By data file: the index that was made for it.
        self._indices: dict[str, tuple[str, int]] = {}
        self._columns = source_columns(plan.source.version, version_of(plan.destination.locator, root=self._root))

    def run(self) -> PartitionRepair:
        """Raises: ConflictError, CorruptionError; then what was written is removed again."""
        try:
            with announced(self._plan.destination.log, self._began):
                return self._run()
        except (ConflictError, CorruptionError):
            open_objects(self._root).delete(self._written)
            raise

    def _run(self) -> PartitionRepair:
        plan, before = self._plan, self._plan.completion
        made = [self._make(region) for region in plan.regions]
        buckets = [bucket for region in made for bucket in region]
        for bucket in before.buckets:
            if not any(region.has(bucket) for region in plan.regions):
                buckets.append(self._with_indices(before, bucket, plan.damages.get(bucket.name)))
        buckets.sort(key=lambda bucket: bucket.first_hash)
        repairs = list(plan.repairs)
        for number, (region, after) in enumerate(zip(plan.regions, made, strict=True)):
            lost_rows = plan.lost_rows(region, after) if region.is_loss else 0
            repairs[number] = replace(repairs[number], lost_rows=lost_rows)
        completion = self._complete(buckets, repairs)
        written = write_completion(plan.destination, completion, self._began)
        self._written += written.uris
        needed = [region.round_id for region in plan.regions if region.round_id is not None]
        lost = sum(repair.lost_rows for repair in repairs)
        commit_round(
            plan.destination,
            completion,
            written,
            before.round_id,
            needs=needed,
            holds=plan.holds,
            action=Action("repair", {"round": completion.round_id, "lost_rows": lost}),
        )
        return PartitionRepair(plan.destination.locator.partition_values, False, completion.round_id, repairs)

    def _make(self, region: Region) -> list[Bucket]:
        """Make a range anew. Raises: CorruptionError where its rows are not as many as there were."""
        plan = self._plan
        deltas, is_overwritten = since_overwrite(plan.since(region.position))
        base = [
            Bucket(depth=bucket.depth, bits=bucket.bits)
            if is_overwritten
            else self._with_indices(plan.completion, bucket, region.damages.get(bucket.name))
            for bucket in region.buckets
        ]
        others = [
            Bucket(depth=bucket.depth, bits=bucket.bits) for bucket in plan.completion.buckets if not region.has(bucket)
        ]
        floor = None if is_overwritten else region.floor
        state = RoundCompletion.from_serializable({**plan.completion, "buckets": [*base, *others], "floor": floor})
        job = self._job(state, region.position, deltas)
        numbers = [number for number, bucket in enumerate(job.buckets) if region.has(bucket)]
        results = [result for stretch in gather_here(job, numbers, every=False) for result in self._merge(job, stretch)]
        changed = {result.number: [line.bucket for line in result.buckets] for result in results}
        made = [bucket for number in numbers for bucket in changed.get(number, [job.buckets[number]])]
        kept = set(bucket_objects(base))
        self._written += [uri for uri in bucket_objects(made) if uri not in kept]
        lost = plan.lost_rows(region, made)
        if job.kind == ROWS_KIND and (lost < 0 or (lost and not region.is_loss)):
            raise CorruptionError(
                f"{plan.destination.locator}: bucket {region.buckets[0].name} would have {-lost:+d} rows after its repair, "
                "so nothing is committed; keep the data and report this"
            )
        return made

    def _job(self, state: RoundCompletion, position: int, deltas: Sequence[Delta] = ()) -> RoundJob:
        """Return the job of what is done to a state as of a position by deltas after it."""
        plan = self._plan
        reads = delta_reads(deltas, self._columns)
        schema = self._columns.schema_after(position)
        keys = Keys(tuple(state.primary_keys))
        floor, version = floor_before(deltas), plan.source.version
        job = make_job(plan.destination, state, reads, self._columns, keys, version, schema, floor=floor)
        return replace(job, began=self._began)

    def _with_indices(self, completion: RoundCompletion, bucket: Bucket, damage: Damage | None) -> Bucket:
        """Return a bucket with new indices in place of damaged ones."""
        if damage is None or not damage.indices:
            return bucket
        files = [self._indexed(completion, file) if file.uri in damage.indices else file for file in bucket.files]
        return Bucket(**{**bucket, "files": files})

    def _indexed(self, completion: RoundCompletion, file: CompactedFile) -> CompactedFile:
        """Return a file with a new index: of all of its rows, and the same one for all slices of it."""
        if file.uri not in self._indices:
            schema = nullable(schema_from_json(completion.fields))
            keys = pa.schema([schema.field(name) for name in completion.primary_keys])
            whole = StoredFile.together(self._root, [file])
            hashes = [hash_keys(table, keys.names) for _, table in whole.scan(keys)]
            path = f"{self._plan.destination.folder}/{new_round_name(self._began)}.pki"
            self._written.append(path)
            self._indices[file.uri] = path, write_index(self._root, path, np.concatenate(hashes))
        path, length = self._indices[file.uri]
        return CompactedFile(**{**file, "index_uri": path, "index_length": length})

    def _complete(self, buckets: list[Bucket], repairs: Sequence[BucketRepair]) -> RoundCompletion:
        before = self._plan.completion
        kept = {file.uri for file in before.files}
        files = [file for bucket in buckets for file in bucket.files]
        fresh = [file for file in files if file.uri not in kept]
        live = sum(bucket.live_count for bucket in buckets)
        lost = sum(repair.lost_rows for repair in repairs)
        # Tables of documents may have other records for the same documents.
        change = live + lost - before.live_rows
        unchanged = {key: value for key, value in before.items() if key not in ("rolled_back_to", "deaths")}
        return RoundCompletion.from_serializable(
            {
                **unchanged,
                "round_id": self._plan.round_id,
                "previous_round_id": before.round_id,
                "fields": self._job(before, before.high_watermark).fields,
                "buckets": buckets,
                "delta_count": 0,
                "input_bytes": 0,
                "written_files": len(fresh),
                "written_bytes": sum(file.content_length for file in fresh),
                "written_rows": sum(file.record_count for file in fresh),
                "carried_files": len(files) - len(fresh),
                "copied_by_reference_ratio": (len(files) - len(fresh)) / len(files) if files else 0.0,
                "bucket_actions": {"repaired": len(repairs), "untouched": max(len(buckets) - len(repairs), 0)},
                "accounting": Accounting(
                    base_rows=before.live_rows,
                    live_rows=live,
                    lost_rows=lost,
                    added_rows=max(change, 0),
                    superseded_rows=max(-change, 0),
                ),
                "repaired": [vars(repair) for repair in repairs],
                "seconds": {},
                "completed_at": open_objects(self._root).now_ms(),
            }
        )


def roll_back(destination: Destination, round_id: int, *, dry_run: bool = False) -> RoundCompletion:
    """Make the state after an earlier round current again, by a new round that says so; deltas since are read anew.

    The current round is not read, so that this also cures a damaged one. A dry run returns what would be current.
    A round after which deltas are trimmed is refused: it could never be compacted further.
    Raises: NotFoundError, InvalidInputError, ConflictError, CorruptionError.
    """
    began = destination.log.read(lambda state: state.batch_id)
    target = get_round(destination, round_id)
    current = current_entry(destination)
    assert current is not None
    current_id = int(current["round_id"])
    if current_id == round_id:
        raise InvalidInputError(f"{destination.locator}: round {round_id} is the current one; choose an earlier one")
    _refuse_trimmed(destination, target)
    problems = find_problems(destination, target.buckets)
    if problems:
        bad, problem = problems[0]
        raise InvalidInputError(
            f"{destination.locator}: {bad.uri} of round {round_id} is gone or damaged ({problem}); choose a later round"
        )
    completion = RoundCompletion.from_serializable(
        {
            **target,
            "round_id": current_id + 1,
            "previous_round_id": current_id,
            "rolled_back_to": round_id,
            "deaths": None,
            "completed_at": open_objects(destination.root).now_ms(),
        }
    )
    if dry_run:
        return completion
    source = round_source(target, own_partition(destination.locator), root=destination.root)
    if source is not None and follow(destination, source, target.high_watermark):
        # Until this was recorded, a trim may have gone by the watermark of the current round.
        _refuse_trimmed(destination, target)
    written = write_completion(destination, completion, began)
    try:
        # A vacuum may forget the target, and remove its files, while it is being read.
        action = Action("rollback", {"to_round": round_id, "from_round": current_id})
        commit_round(destination, completion, written, current_id, needs=[round_id], action=action)
    except ConflictError:
        open_objects(destination.root).delete(written.uris)
        raise
    return completion


def _refuse_trimmed(destination: Destination, target: RoundCompletion) -> None:
    """Refuse a round after which deltas are trimmed, naming the oldest one that can be reached."""
    reachable = reachable_rounds(destination)
    if target.round_id in reachable:
        return
    others = (
        f"the oldest round that can be reached is {reachable[0]}" if reachable else "no round that is kept has them"
    )
    raise InvalidInputError(
        f"{destination.locator}: round {target.round_id} is compacted up to position {target.high_watermark}, and deltas "
        f"after it are trimmed, so that it could not be compacted further; {others}"
    )
