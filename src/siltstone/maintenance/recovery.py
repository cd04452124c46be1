"""Repairing a compacted partition whose files are damaged, by a round of its own that brings back what can be.

An index is built anew from its data file. A bucket with a lost data file, deletion vector or tombstones is taken from
the last round that has it whole and after which no delta is trimmed, and the deltas since are applied to it, and to no
other. Where there is no such round, the rows of the lost files are lost; what deltas that are still there say about
them is applied, unless that could bring back a row as it never was.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from siltstone.errors import ConflictError, CorruptionError, InvalidInputError
from siltstone.log.horizon import announced, new_round_name
from siltstone.log.state import Entry
from siltstone.maintenance.fsck import check_bucket
from siltstone.model import Delta, PartitionLocator, PartitionValue, TableVersion
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.model.rounds import Accounting, Bucket, CompactedFile, RoundCompletion
from siltstone.model.schema import nullable, schema_from_json
from siltstone.objects import open_objects
from siltstone.rows.files import StoredFile
from siltstone.rows.hashing import hash_keys
from siltstone.rows.index import write_index
from siltstone.rows.job import Merge, RoundJob
from siltstone.rows.parts import GatheredParts, read_parts
from siltstone.storage import object_store as storage
from siltstone.table.completion import (
    Destination,
    bucket_objects,
    commit_round,
    current_entry,
    find_problems,
    list_hold_entries,
    list_rounds,
    read_completion,
    write_completion,
)
from siltstone.table.followers import own_partition, round_source, trimmed_position
from siltstone.table.jobs import Keys, delta_reads, make_job, source_columns, version_of

Cure = Literal["index", "round", "deltas", "loss"]
_CONFLICTS = 20


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


@dataclass(frozen=True)
class PartitionRepair:
    """What is or would be done for a partition, by the round `round_id`; None where no round is needed.

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
        return sum(each.lost_rows for each in self.buckets)


def repair(
    destinations: Sequence[Destination], merge: Merge, *, accept_loss: bool = False, dry_run: bool = False
) -> list[PartitionRepair]:
    """Repair the current state of each compacted partition that is damaged, in one commit; return what was done.

    Every row is read to find out, of all partitions before any is changed. Where rows are lost, nothing is changed
    unless that is accepted. Raises: InvalidInputError, CorruptionError, ConflictError where others keep changing one.
    """
    works = [work for work in map(_look, destinations) if work is not None]
    if dry_run:
        return [PartitionRepair(work.values, True, work.round_id, work.repairs) for work in works]
    for work in works:
        _refuse_loss(work, accept_loss=accept_loss)
    done = [_repair_one(work, merge, accept_loss=accept_loss) for work in works]
    return [each for each in done if each is not None]


def _repair_one(work: "_Work", merge: Merge, *, accept_loss: bool) -> PartitionRepair | None:
    for _ in range(_CONFLICTS):
        try:
            return _Repair(work, merge).run()
        except ConflictError:
            found = _look(work.destination)
            if found is None:
                return None
            work = found
            _refuse_loss(work, accept_loss=accept_loss)
    raise ConflictError(f"{work.destination.locator}: others changed it {_CONFLICTS} times meanwhile; try again")


def _refuse_loss(work: "_Work", *, accept_loss: bool) -> None:
    lost = [each for each in work.repairs if each.cure == "loss"]
    if lost and not accept_loss:
        raise InvalidInputError(
            f"{work.destination.locator}: up to {sum(each.lost_rows for each in lost)} rows with key hashes from "
            f"{lost[0].first_hash} to {lost[0].last_hash}{' and elsewhere' if len(lost) > 1 else ''} cannot be brought "
            f"back: their files are damaged, no round that is kept has them whole, and {work.why_lost}. Restore "
            f"{lost[0].damaged[0]} from a copy, rebase from rows that have them, or accept the loss (`siltstone repair "
            "--accept-loss`)"
        )


class _Damage(NamedTuple):
    """What is damaged of a bucket: data files or their deletion vectors, indices alone, tombstones."""

    files: frozenset[str]
    indices: frozenset[str]
    tombstones: bool
    uris: list[str]

    @property
    def needs_rows(self) -> bool:
        return bool(self.files) or self.tombstones


@dataclass(frozen=True)
class _Region:
    """A range of hashes that is made anew: from these buckets, as of a position, and the deltas since.

    `is_loss` where what is lost is left out of the buckets.
    """

    buckets: list[Bucket]
    position: int
    round_id: int | None
    is_loss: bool
    damages: dict[str, _Damage]

    @property
    def first_hash(self) -> int:
        return min(bucket.first_hash for bucket in self.buckets)

    @property
    def end_hash(self) -> int:
        return max(_end_hash(bucket) for bucket in self.buckets)

    def has(self, bucket: Bucket) -> bool:
        return self.first_hash <= bucket.first_hash and _end_hash(bucket) <= self.end_hash


@dataclass(frozen=True)
class _Work:
    """All that is to be done for a partition."""

    destination: Destination
    completion: RoundCompletion
    damages: dict[str, _Damage]
    regions: list[_Region]
    source: PartitionLocator
    version: TableVersion
    deltas: list[Delta]
    repairs: list[BucketRepair]
    holds: list[Entry]
    why_lost: str

    @property
    def round_id(self) -> int:
        return self.completion.round_id + 1

    @property
    def values(self) -> list[PartitionValue]:
        return list(self.destination.locator.partition_values)

    def since(self, position: int) -> list[Delta]:
        return [delta for delta in self.deltas if delta.stream_position > position]


def _look(destination: Destination) -> _Work | None:
    """Find out what is damaged, and what can be done about it; None where nothing is. Raises: CorruptionError."""
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
            f"{destination.locator}: is damaged, and the table whose deltas it was compacted from was dropped; roll back "
            "to a round that is whole, or rebase it from elsewhere"
        )
    trimmed = trimmed_position(source, root=destination.root)
    deltas = []
    if storage.partition_exists(source, root=destination.root):
        last = completion.high_watermark
        deltas = storage.list_partition_deltas(source, last_stream_position=last, root=destination.root)
    version = version_of(source, root=destination.root)
    regions = _regions(destination, completion, damages, _Stream(deltas, trimmed), version)
    holds = list_hold_entries(destination)
    why_lost = f"deltas up to {trimmed} are trimmed" if trimmed else "the rows came from elsewhere than the deltas"
    work = _Work(destination, completion, damages, regions, source, version, deltas, [], holds, why_lost)
    work.repairs.extend(_describe(work))
    return work


def _damages(destination: Destination, completion: RoundCompletion, buckets: Sequence[Bucket]) -> dict[str, _Damage]:
    """Return what is damaged of some buckets of a round, by their names."""
    missing = {each.uri for each, _ in find_problems(destination, buckets)}
    found = {}
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
        found[bucket.name] = _Damage(frozenset(files), frozenset(indices), tombstones, uris)
    return found


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
    damages: dict[str, _Damage],
    stream: _Stream,
    version: TableVersion,
) -> list[_Region]:
    waiting = [bucket for bucket in completion.buckets if bucket.name in damages and damages[bucket.name].needs_rows]
    found: list[_Region] = []
    for candidate in _candidates(destination, completion, stream) if waiting else ():
        for bucket in list(waiting):
            region = _region_of(bucket, candidate)
            if region is not None:
                found.append(region)
                waiting.remove(bucket)
        if not waiting:
            break
    can_apply = _can_apply(completion, version)
    for bucket in waiting:
        kept = _without_lost(bucket, damages[bucket.name])
        position = stream.trimmed if can_apply else completion.high_watermark
        found.append(_Region([kept], position, None, True, {bucket.name: damages[bucket.name]}))
    # The widest range wins: all that is inside it is made anew with it.
    found.sort(key=lambda region: region.first_hash - region.end_hash)
    chosen: list[_Region] = []
    for region in found:
        if not any(other.has(bucket) for other in chosen for bucket in region.buckets):
            chosen.append(region)
    return chosen


def _can_apply(completion: RoundCompletion, version: TableVersion) -> bool:
    """Tell whether deltas can be applied where rows before them are lost, and bring no row that never was.

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
    """Tell whether a round is what the deltas since made of the one before it, and did not begin anew."""
    began_anew = later.rebase_source_partition_locator is not None and not later.accounting.base_rows
    return (
        not began_anew
        and later.accounting.base_rows == before.live_rows
        and later.delta_count == stream.count_between(before.high_watermark, later.high_watermark)
    )


def _has_same_rules(one: RoundCompletion, other: RoundCompletion) -> bool:
    names = ("source_folder", "primary_keys", "sort_keys", "merge_engine", "drop_duplicates")
    return all(one[name] == other[name] for name in names)


def _region_of(bucket: Bucket, candidate: _Candidate) -> _Region | None:
    """Return what a state has of the range of a bucket, None where that is damaged, too."""
    destination, completion = candidate
    if completion is None:
        return _Region([Bucket(depth=0, bits=0)], 0, None, False, {})
    overlapping = [
        each
        for each in completion.buckets
        if each.first_hash < _end_hash(bucket) and bucket.first_hash < _end_hash(each)
    ]
    damages = _damages(destination, completion, overlapping)
    if any(damage.needs_rows for damage in damages.values()):
        return None
    return _Region(overlapping, completion.high_watermark, completion.round_id, False, damages)


def _without_lost(bucket: Bucket, damage: _Damage) -> Bucket:
    files = [file for file in bucket.files if file.uri not in damage.files]
    return Bucket(**{**bucket, "files": files, "tombstones": None if damage.tombstones else bucket.tombstones})


def _end_hash(bucket: Bucket) -> int:
    return bucket.first_hash + (1 << (64 - bucket.depth))


def _describe(work: _Work) -> Iterator[BucketRepair]:
    for region in work.regions:
        inside = [bucket for bucket in work.completion.buckets if region.has(bucket)]
        yield BucketRepair(
            bucket=_region_name(region, inside),
            first_hash=f"{region.first_hash:016x}",
            last_hash=f"{region.end_hash - 1:016x}",
            damaged=[uri for each in inside if each.name in work.damages for uri in work.damages[each.name].uris],
            cure="loss" if region.is_loss else "deltas" if region.round_id is None else "round",
            from_round=region.round_id,
            deltas=len(work.since(region.position)),
            lost_rows=sum(each.live_count for each in inside) - sum(each.live_count for each in region.buckets)
            if region.is_loss
            else 0,
            lost_tombstones=_lost_tombstones(inside, work.damages) if region.is_loss else 0,
        )
    for bucket in work.completion.buckets:
        damage = work.damages.get(bucket.name)
        if damage is not None and not any(region.has(bucket) for region in work.regions):
            yield BucketRepair(
                bucket.name, f"{bucket.first_hash:016x}", f"{_end_hash(bucket) - 1:016x}", damage.uris, "index"
            )


def _region_name(region: _Region, inside: Sequence[Bucket]) -> str:
    return (region.buckets if len(region.buckets) == 1 else inside)[0].name


def _lost_tombstones(buckets: Iterable[Bucket], damages: dict[str, _Damage]) -> int:
    return sum(
        each.tombstones.record_count
        for each in buckets
        if each.tombstones is not None and each.name in damages and damages[each.name].tombstones
    )


class _Repair:
    """One attempt: writes what is made anew, and commits it as a round."""

    def __init__(self, work: _Work, merge: Merge) -> None:
        self.work = work
        self._began = work.destination.log.read(lambda state: state.batch_id)
        self._merge = merge
        self._root = work.destination.root
        self._written: list[str] = []
        self._columns = source_columns(work.version, version_of(work.destination.locator, root=self._root))

    def run(self) -> PartitionRepair:
        """Raises: ConflictError, CorruptionError; then what was written is removed again."""
        try:
            with announced(self.work.destination.log, self._began):
                return self._run()
        except (ConflictError, CorruptionError):
            open_objects(self._root).delete(self._written)
            raise

    def _run(self) -> PartitionRepair:
        work, before = self.work, self.work.completion
        made = [self._make(region) for region in work.regions]
        buckets = [bucket for region in made for bucket in region]
        for bucket in before.buckets:
            if not any(region.has(bucket) for region in work.regions):
                buckets.append(self._with_indices(before, bucket, work.damages.get(bucket.name)))
        buckets.sort(key=lambda bucket: bucket.first_hash)
        repairs = [
            BucketRepair(**{**vars(repair), "lost_rows": self._lost(region, after) if region.is_loss else 0})
            for repair, region, after in zip(work.repairs, work.regions, made, strict=False)
        ] + work.repairs[len(work.regions) :]
        completion = self._complete(buckets, repairs)
        written = write_completion(work.destination, completion, self._began)
        self._written.append(written.uri)
        needed = [region.round_id for region in work.regions if region.round_id is not None]
        commit_round(work.destination, completion, written, before.round_id, needs=needed, holds=work.holds)
        return PartitionRepair(work.values, False, completion.round_id, repairs)

    def _lost(self, region: _Region, after: Sequence[Bucket]) -> int:
        inside = [bucket for bucket in self.work.completion.buckets if region.has(bucket)]
        return sum(each.live_count for each in inside) - sum(each.live_count for each in after)

    def _make(self, region: _Region) -> list[Bucket]:
        """Make a range anew. Raises: CorruptionError where its rows are not as many as there were."""
        work = self.work
        base = [self._with_indices(work.completion, each, region.damages.get(each.name)) for each in region.buckets]
        others = [_emptied(bucket) for bucket in work.completion.buckets if not region.has(bucket)]
        state = RoundCompletion.from_serializable({**work.completion.to_serializable(), "buckets": [*base, *others]})
        job = self._job(state, region.position)
        wanted = {number for number, bucket in enumerate(job.buckets) if region.has(bucket)}
        parts = GatheredParts(part for part in read_parts(job, job.reads) if part[0] in wanted)
        made: list[Bucket] = []
        for number in sorted(wanted):
            result = self._merge(job, number, parts.take(number))
            made += [job.buckets[number]] if result is None else result.buckets
        known = set(bucket_objects(base))
        self._written += [uri for uri in bucket_objects(made) if uri not in known]
        lost = self._lost(region, made)
        if job.kind == ROWS_KIND and (lost < 0 or (lost and not region.is_loss)):
            raise CorruptionError(
                f"{work.destination.locator}: bucket {region.buckets[0].name} would have {-lost:+d} rows after its repair, "
                "so nothing is committed; keep the data and report this"
            )
        return made

    def _job(self, state: RoundCompletion, position: int) -> RoundJob:
        """Say what is done to a state by the deltas after a position."""
        work = self.work
        reads = delta_reads(work.since(position), self._columns)
        schema = self._columns.schema_after(position)
        keys = Keys(tuple(state.primary_keys))
        job = make_job(work.destination, state, reads, self._columns, keys, work.version, schema)
        return replace(job, began=self._began)

    def _with_indices(self, completion: RoundCompletion, bucket: Bucket, damage: _Damage | None) -> Bucket:
        """Return a bucket with new indices in place of damaged ones."""
        if damage is None or not damage.indices:
            return bucket
        files = [self._indexed(completion, file) if file.uri in damage.indices else file for file in bucket.files]
        return Bucket(**{**bucket, "files": files})

    def _indexed(self, completion: RoundCompletion, file: CompactedFile) -> CompactedFile:
        schema = nullable(schema_from_json(completion.fields))
        keys = pa.schema([schema.field(name) for name in completion.primary_keys])
        hashes = [hash_keys(table, keys.names) for _, table in StoredFile(self._root, file).scan(keys)]
        path = f"{self.work.destination.folder}/{new_round_name(self._began)}.pki"
        write_index(self._root, path, np.concatenate(hashes))
        self._written.append(path)
        return CompactedFile(**{**file, "index_uri": path})

    def _complete(self, buckets: list[Bucket], repairs: Sequence[BucketRepair]) -> RoundCompletion:
        before = self.work.completion
        kept = {file.uri for file in before.files}
        files = [file for bucket in buckets for file in bucket.files]
        fresh = [file for file in files if file.uri not in kept]
        live = sum(bucket.live_count for bucket in buckets)
        lost = sum(each.lost_rows for each in repairs)
        # Tables of documents may have other records for the same documents.
        change = live + lost - before.live_rows
        unchanged = {key: each for key, each in before.to_serializable().items() if key != "rolled_back_to"}
        return RoundCompletion.from_serializable(
            {
                **unchanged,
                "round_id": self.work.round_id,
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
                "repaired": [vars(each) for each in repairs],
                "seconds": {},
                "completed_at": open_objects(self._root).now_ms(),
            }
        )


def _emptied(bucket: Bucket) -> Bucket:
    return Bucket(depth=bucket.depth, bits=bucket.bits)
