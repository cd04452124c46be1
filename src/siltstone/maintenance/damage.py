"""What is damaged of a compacted partition, and how it can be brought back: by which earlier round, by which deltas."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from siltstone.errors import CorruptionError
from siltstone.log.state import Entry
from siltstone.maintenance.fsck import check_bucket
from siltstone.model import Delta, TableVersion
from siltstone.model.buckets import Bucket
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.model.rounds import RoundCompletion
from siltstone.rows.files import SharedObjects
from siltstone.table.completion import (
    Destination,
    bucket_objects,
    current_completion,
    find_problems,
    list_rounds,
    read_completion,
    read_state,
)
from siltstone.table.followers import SourceState, own_partition, read_source, round_source

_RULES = ("source_folder", "primary_keys", "sort_keys", "merge_engine", "drop_duplicates")


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
    cure: Literal["index", "round", "deltas", "loss"]
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

    `is_loss` where what is lost is left out of the buckets; `floor` is the floor as of that position.
    """

    buckets: list[Bucket]
    position: int
    round_id: int | None
    is_loss: bool
    damages: dict[str, Damage]
    floor: str | None = None

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
    """All that is to be done for a partition; `source` is what it was compacted from."""

    destination: Destination
    completion: RoundCompletion
    damages: dict[str, Damage]
    regions: list[Region]
    source: SourceState
    holds: tuple[Entry, ...]

    @property
    def round_id(self) -> int:
        """The number of the round that repairs."""
        return self.completion.round_id + 1

    def since(self, position: int) -> list[Delta]:
        """Return the compacted deltas after a position."""
        return self.source.between(position, self.completion.high_watermark)

    def lost_rows(self, region: Region, after: Iterable[Bucket]) -> int:
        """Return how many rows of a range are lost if it becomes these buckets; gained ones count as less than none."""
        return _live_count(self._inside(region)) - _live_count(after)

    @cached_property
    def repairs(self) -> list[BucketRepair]:
        """What is done for each region, in their order, and then for each bucket that needs a new index only."""
        repairs = [self._describe(region) for region in self.regions]
        for bucket in self.completion.buckets:
            damage = self.damages.get(bucket.name)
            if damage is not None and not any(region.has(bucket) for region in self.regions):
                first, last = f"{bucket.first_hash:016x}", f"{_end_hash(bucket) - 1:016x}"
                repairs.append(BucketRepair(bucket.name, first, last, damage.uris, "index"))
        return repairs

    def _describe(self, region: Region) -> BucketRepair:
        inside = self._inside(region)
        damaged = [(bucket, self.damages[bucket.name]) for bucket in inside if bucket.name in self.damages]
        lost_tombstones = sum(bucket.tombstone_count for bucket, damage in damaged if damage.tombstones)
        return BucketRepair(
            bucket=(region.buckets if len(region.buckets) == 1 else inside)[0].name,
            first_hash=f"{region.first_hash:016x}",
            last_hash=f"{region.end_hash - 1:016x}",
            damaged=[uri for _, damage in damaged for uri in damage.uris],
            cure="loss" if region.is_loss else "deltas" if region.round_id is None else "round",
            from_round=region.round_id,
            deltas=len(self.since(region.position)),
            lost_rows=self.lost_rows(region, region.buckets) if region.is_loss else 0,
            lost_tombstones=lost_tombstones if region.is_loss else 0,
        )

    def _inside(self, region: Region) -> list[Bucket]:
        return [bucket for bucket in self.completion.buckets if region.has(bucket)]


def plan_repair(destination: Destination) -> RepairPlan | None:
    """Return what is damaged and what can be done about it, or None if nothing is. Raises: CorruptionError."""
    completion = current_completion(destination)
    if completion is None:
        return None
    damages = _damages(destination, completion, completion.buckets)
    if not damages:
        return None
    partition = round_source(completion, own_partition(destination.locator), root=destination.root)
    if partition is None:
        raise CorruptionError(
            f"{destination.locator}: damaged, and the table whose deltas it was compacted from was dropped; roll back "
            "to a round that is whole, or rebase it from elsewhere"
        )
    source = read_source(partition, root=destination.root)
    regions = _regions(destination, completion, damages, source)
    return RepairPlan(destination, completion, damages, regions, source, read_state(destination).holds)


def _damages(destination: Destination, completion: RoundCompletion, buckets: Sequence[Bucket]) -> dict[str, Damage]:
    """Return what is damaged of some buckets of a round, by their names."""
    bad = {expected.uri for expected, _ in find_problems(destination, buckets)}
    shared = SharedObjects(destination.root)
    damages = {}
    for bucket in buckets:
        bad |= {finding.file for finding in check_bucket(destination, completion, bucket, bad, shared, deep=True)}
    for bucket in buckets:
        uris = [uri for uri in bucket_objects([bucket]) if uri in bad]
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


def _regions(
    destination: Destination, completion: RoundCompletion, damages: dict[str, Damage], source: SourceState
) -> list[Region]:
    waiting = [bucket for bucket in completion.buckets if bucket.name in damages and damages[bucket.name].needs_rows]
    regions: list[Region] = []
    for candidate in _candidates(destination, completion, source) if waiting else ():
        for bucket in list(waiting):
            region = _region_of(bucket, destination, candidate)
            if region is not None:
                regions.append(region)
                waiting.remove(bucket)
        if not waiting:
            break
    position = source.trimmed_position if _can_apply(completion, source.version) else completion.high_watermark
    for bucket in waiting:
        damage = damages[bucket.name]
        whole = [_without_lost(bucket, damage)]
        regions.append(Region(whole, position, None, True, {bucket.name: damage}, completion.floor))
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


def _candidates(
    destination: Destination, completion: RoundCompletion, source: SourceState
) -> Iterator[RoundCompletion | None]:
    """Yield earlier rounds from which deltas that are all there lead to this one, newest first; None is before the first.

    Rounds that began anew from elsewhere end this; so does what cannot be read, since nobody knows whether it did.
    """
    entries: dict[int | None, Entry] = {int(entry["round_id"]): entry for entry in list_rounds(destination)}
    before = _round_before(destination, completion, entries, source)
    while (
        before is not None
        and before.high_watermark >= source.trimmed_position
        and all(before[name] == completion[name] for name in _RULES)
    ):
        yield before
        before = _round_before(destination, before, entries, source)
    deltas = source.between(source.trimmed_position, completion.high_watermark)
    is_all_there = not source.trimmed_position or any(delta.replaces for delta in deltas)
    if is_all_there and completion.rebase_source_partition_locator is None:
        yield None


def _round_before(
    destination: Destination, later: RoundCompletion, entries: dict[int | None, Entry], source: SourceState
) -> RoundCompletion | None:
    """Return the round of which a later one is the outcome, None where it is not known to be."""
    back_to = later.get("rolled_back_to")
    entry = entries.get(later.previous_round_id if back_to is None else back_to)
    if entry is None:
        return None
    try:
        before = read_completion(destination, entry)
    except CorruptionError:
        return None
    return before if back_to is not None or _is_outcome(later, before, source) else None


def _is_outcome(later: RoundCompletion, before: RoundCompletion, source: SourceState) -> bool:
    """Return whether a round is what the deltas since made of the one before it, and did not begin anew."""
    began_anew = later.rebase_source_partition_locator is not None and not later.accounting.base_rows
    return (
        not began_anew
        and later.accounting.base_rows == before.live_rows
        and later.delta_count == len(source.between(before.high_watermark, later.high_watermark))
    )


def _region_of(bucket: Bucket, destination: Destination, completion: RoundCompletion | None) -> Region | None:
    """Return what a round has of the range of a bucket, or None if that is damaged too."""
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
    return Region(overlapping, completion.high_watermark, completion.round_id, False, damages, completion.floor)


def _without_lost(bucket: Bucket, damage: Damage) -> Bucket:
    files = [file for file in bucket.files if file.uri not in damage.files]
    return Bucket(**{**bucket, "files": files, "tombstones": None if damage.tombstones else bucket.tombstones})


def _end_hash(bucket: Bucket) -> int:
    return bucket.first_hash + (1 << (64 - bucket.depth))


def _live_count(buckets: Iterable[Bucket]) -> int:
    return sum(bucket.live_count for bucket in buckets)
