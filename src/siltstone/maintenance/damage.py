"""What is damaged of a compacted partition, and how it can be brought back: by which earlier round, by which deltas."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from siltstone.errors import CorruptionError
from siltstone.log.state import Entry
from siltstone.maintenance.fsck import check_bucket
from siltstone.model import Delta, PartitionLocator, PartitionValue, TableVersion
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.model.rounds import Bucket, RoundCompletion
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    Destination,
    bucket_objects,
    current_entry,
    find_problems,
    list_rounds,
    read_completion,
    read_state,
)
from siltstone.table.followers import own_partition, read_sources, round_source

Cure = Literal["index", "round", "deltas", "loss"]


@dataclass(frozen=True)
class BucketRepair:
    """What is or would be done for one range of key hashes.

    The cure is a new index, an earlier round and the deltas since, all deltas from the first on, or to give up what is
    lost: `lost_rows` of them, in a dry run at most so many.
    """

    bucket: str
    first_hash: str
    last_hash: str
    damaged: list[str]
    cure: Cure
    from_round: int | None = None
    deltas: int = 0
    lost_rows: int = 0
    lost_tombstones: int = 0


class Damage(NamedTuple):
    """What is damaged of a bucket: data files or their deletion vectors, indices alone, tombstones."""

    files: frozenset[str]
    indices: frozenset[str]
    tombstones: bool
    uris: list[str]

    @property
    def needs_rows(self) -> bool:
        """Whether rows or tombstones are lost, and not only an index."""
        return bool(self.files) or self.tombstones


@dataclass(frozen=True)
class Region:
    """A range of hashes that is made anew: from these buckets, as of a position, and the deltas since.

    `is_loss` where what is lost is left out of the buckets.
    """

    buckets: list[Bucket]
    position: int
    round_id: int | None
    is_loss: bool
    damages: dict[str, Damage]

    @property
    def first_hash(self) -> int:
        """The first hash of the range."""
        return min(bucket.first_hash for bucket in self.buckets)

    @property
    def end_hash(self) -> int:
        """The first hash after the range."""
        return max(_end_hash(bucket) for bucket in self.buckets)

    def has(self, bucket: Bucket) -> bool:
        """Return whether all hashes of a bucket are in the range."""
        return self.first_hash <= bucket.first_hash and _end_hash(bucket) <= self.end_hash


@dataclass(frozen=True)
class RepairPlan:
    """All that is to be done for a partition."""

    destination: Destination
    completion: RoundCompletion
    damages: dict[str, Damage]
    regions: list[Region]
    source: PartitionLocator
    version: TableVersion
    deltas: list[Delta]
    repairs: list[BucketRepair]
    holds: list[Entry]
    why_lost: str

    @property
    def round_id(self) -> int:
        """The number of the round that repairs."""
        return self.completion.round_id + 1

    @property
    def values(self) -> list[PartitionValue]:
        """The values of the partition."""
        return list(self.destination.locator.partition_values)

    def since(self, position: int) -> list[Delta]:
        """Return the deltas after a position."""
        return [delta for delta in self.deltas if delta.stream_position > position]


def plan_repair(destination: Destination) -> RepairPlan | None:
    """Return what is damaged and what can be done about it, or None if nothing is. Raises: CorruptionError."""
    entry = current_entry(destination)
    if entry is None:
        return None
    completion = read_completion(destination, entry)
    damages = _damages(destination, completion, completion.buckets)
    if not damages:
        return None
    source = round_source(completion, own_partition(destination.locator), root=destination.root)
    if source is None:
        raise CorruptionError(
            f"{destination.locator}: damaged, and the table whose deltas it was compacted from was dropped; roll back "
            "to a round that is whole, or rebase it from elsewhere"
        )
    state = read_sources(storage.locate_stream(source, root=destination.root), [source], {})[source.partition_id]
    trimmed, deltas = state.trimmed_position, state.between(0, completion.high_watermark)
    regions = _regions(destination, completion, damages, _Stream(deltas, trimmed), state.version)
    holds = list(read_state(destination).holds)
    why_lost = f"deltas up to {trimmed} are trimmed" if trimmed else "the rows came from elsewhere than the deltas"
    plan = RepairPlan(destination, completion, damages, regions, source, state.version, deltas, [], holds, why_lost)
    plan.repairs.extend(_describe(plan))
    return plan


def _damages(destination: Destination, completion: RoundCompletion, buckets: Sequence[Bucket]) -> dict[str, Damage]:
    """Return what is damaged of some buckets of a round, by their names."""
    missing = {expected.uri for expected, _ in find_problems(destination, buckets)}
    damages = {}
    for bucket in buckets:
        findings = check_bucket(destination, completion, bucket, missing, deep=True)
        bad = {finding.file for finding in findings} | missing
        named = bucket_objects([bucket])
        uris = [uri for uri in named if uri in bad]
        if not uris:
            continue
        files = [
            file.uri
            for file in bucket.files
            if file.uri in bad or (file.deletion_vector is not None and file.deletion_vector.uri in bad)
        ]
        indices = [file.uri for file in bucket.files if file.index_uri in bad and file.uri not in files]
        tombstones = bucket.tombstones is not None and bucket.tombstones.uri in bad
        damages[bucket.name] = Damage(frozenset(files), frozenset(indices), tombstones, uris)
    return damages


class _Stream(NamedTuple):
    """The deltas that are there, up to the watermark, and the position up to which they are trimmed."""

    deltas: list[Delta]
    trimmed: int

    def count_between(self, after: int, upto: int) -> int:
        return sum(after < delta.stream_position <= upto for delta in self.deltas)


class _Candidate(NamedTuple):
    """A state from which the current one can be had by applying deltas; None is the one before the first round."""

    destination: Destination
    completion: RoundCompletion | None


def _regions(
    destination: Destination,
    completion: RoundCompletion,
    damages: dict[str, Damage],
    stream: _Stream,
    version: TableVersion,
) -> list[Region]:
    waiting = [bucket for bucket in completion.buckets if bucket.name in damages and damages[bucket.name].needs_rows]
    regions: list[Region] = []
    for candidate in _candidates(destination, completion, stream) if waiting else ():
        for bucket in list(waiting):
            region = _region_of(bucket, candidate)
            if region is not None:
                regions.append(region)
                waiting.remove(bucket)
        if not waiting:
            break
    can_apply = _can_apply(completion, version)
    for bucket in waiting:
        kept = _without_lost(bucket, damages[bucket.name])
        position = stream.trimmed if can_apply else completion.high_watermark
        regions.append(Region([kept], position, None, True, {bucket.name: damages[bucket.name]}))
    # The widest range wins: all that is inside it is made anew with it.
    regions.sort(key=lambda region: region.first_hash - region.end_hash)
    chosen: list[Region] = []
    for region in regions:
        if not any(other.has(bucket) for other in chosen for bucket in region.buckets):
            chosen.append(region)
    return chosen


def _can_apply(completion: RoundCompletion, version: TableVersion) -> bool:
    """Return whether deltas can be applied where rows before them are lost, and bring no row that never was.

    With sort keys an older row could win over the one that was lost; other engines compose rows, or keep the first.
    """
    return (
        bool(completion.primary_keys)
        and completion.drop_duplicates
        and completion.merge_engine == "deduplicate"
        and not completion.sort_keys
        and KIND.of(version.properties, version.locator) == ROWS_KIND
    )


def _candidates(destination: Destination, completion: RoundCompletion, stream: _Stream) -> Iterator[_Candidate]:
    """Yield earlier states of which the current one is the outcome, newest first."""
    yield from (_Candidate(destination, before) for before in _ancestors(destination, completion, stream))
    if not stream.trimmed and completion.rebase_source_partition_locator is None:
        yield _Candidate(destination, None)


def _ancestors(destination: Destination, completion: RoundCompletion, stream: _Stream) -> Iterator[RoundCompletion]:
    """Yield the rounds that lead to one, newest first, while all deltas since are there.

    Rounds that began anew from elsewhere end this; so does what cannot be read, since nobody knows whether it did.
    """
    entries = {int(entry["round_id"]): entry for entry in list_rounds(destination)}
    later = completion
    while True:
        back_to = later.get("rolled_back_to")
        before_id = back_to if back_to is not None else later.previous_round_id
        if before_id is None or before_id not in entries:
            return
        try:
            before = read_completion(destination, entries[before_id])
        except CorruptionError:
            return
        if back_to is None and not _is_outcome(later, before, stream):
            return
        if before.high_watermark < stream.trimmed or not _has_same_rules(before, completion):
            return
        yield before
        later = before


def _is_outcome(later: RoundCompletion, before: RoundCompletion, stream: _Stream) -> bool:
    """Return whether a round is what the deltas since made of the one before it, and did not begin anew."""
    began_anew = later.rebase_source_partition_locator is not None and not later.accounting.base_rows
    return (
        not began_anew
        and later.accounting.base_rows == before.live_rows
        and later.delta_count == stream.count_between(before.high_watermark, later.high_watermark)
    )


def _has_same_rules(left: RoundCompletion, right: RoundCompletion) -> bool:
    names = ("source_folder", "primary_keys", "sort_keys", "merge_engine", "drop_duplicates")
    return all(left[name] == right[name] for name in names)


def _region_of(bucket: Bucket, candidate: _Candidate) -> Region | None:
    """Return what a state has of the range of a bucket, or None if that is damaged too."""
    destination, completion = candidate
    if completion is None:
        return Region([Bucket(depth=0, bits=0)], 0, None, False, {})
    overlapping = [
        other
        for other in completion.buckets
        if other.first_hash < _end_hash(bucket) and bucket.first_hash < _end_hash(other)
    ]
    damages = _damages(destination, completion, overlapping)
    if any(damage.needs_rows for damage in damages.values()):
        return None
    return Region(overlapping, completion.high_watermark, completion.round_id, False, damages)


def _without_lost(bucket: Bucket, damage: Damage) -> Bucket:
    files = [file for file in bucket.files if file.uri not in damage.files]
    return Bucket(**{**bucket, "files": files, "tombstones": None if damage.tombstones else bucket.tombstones})


def _end_hash(bucket: Bucket) -> int:
    return bucket.first_hash + (1 << (64 - bucket.depth))


def _describe(plan: RepairPlan) -> Iterator[BucketRepair]:
    for region in plan.regions:
        inside = [bucket for bucket in plan.completion.buckets if region.has(bucket)]
        yield BucketRepair(
            bucket=_region_name(region, inside),
            first_hash=f"{region.first_hash:016x}",
            last_hash=f"{region.end_hash - 1:016x}",
            damaged=[uri for bucket in inside if bucket.name in plan.damages for uri in plan.damages[bucket.name].uris],
            cure="loss" if region.is_loss else "deltas" if region.round_id is None else "round",
            from_round=region.round_id,
            deltas=len(plan.since(region.position)),
            lost_rows=sum(bucket.live_count for bucket in inside) - sum(bucket.live_count for bucket in region.buckets)
            if region.is_loss
            else 0,
            lost_tombstones=_lost_tombstones(inside, plan.damages) if region.is_loss else 0,
        )
    for bucket in plan.completion.buckets:
        damage = plan.damages.get(bucket.name)
        if damage is not None and not any(region.has(bucket) for region in plan.regions):
            yield BucketRepair(
                bucket.name, f"{bucket.first_hash:016x}", f"{_end_hash(bucket) - 1:016x}", damage.uris, "index"
            )


def _region_name(region: Region, inside: Sequence[Bucket]) -> str:
    return (region.buckets if len(region.buckets) == 1 else inside)[0].name


def _lost_tombstones(buckets: Iterable[Bucket], damages: dict[str, Damage]) -> int:
    return sum(
        bucket.tombstones.record_count
        for bucket in buckets
        if bucket.tombstones is not None and bucket.name in damages and damages[bucket.name].tombstones
    )
