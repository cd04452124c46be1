"""The second step of a task: what the deltas of a bucket mean for its compacted rows."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model.properties import ROWS_KIND
from siltstone.model.rounds import Accounting
from siltstone.rows.absorb import Change, Rows, absorb
from siltstone.rows.columns import (
    NULL_HASH,
    Flags,
    Hashes,
    Integers,
    align,
    equal_ids,
    hash_ids,
    hash_keys,
    is_exact,
    rising_order,
    sort_ranks,
)
from siltstone.rows.files import StoredFile
from siltstone.rows.fold import (
    NONE,
    DeleteRun,
    FloorRun,
    FoldInput,
    FoldResult,
    Match,
    RowsRun,
    fold,
    fold_appended,
    read_tombstones,
    split_tombstones,
    tombstones_after,
)
from siltstone.rows.job import BucketResult, Merge, Part, RoundJob, Stretch
from siltstone.rows.parts import REMOVAL, gather_here
from siltstone.rows.slices import StretchFiles
from siltstone.rows.validity import change_versions

_NO_ROWS = np.zeros(0, np.int64)

Resolve = Callable[[RoundJob, Stretch, StretchFiles], Sequence[Change]]
"""Returns what the parts of deltas change in each bucket of a stretch, writing nothing."""


def run_here(job: RoundJob, merge: Merge | None = None) -> Iterator[BucketResult]:
    """Run all tasks of a round in this process, one after another."""
    for stretch in gather_here(job, every=False):
        yield from (merge or merge_stretch)(job, stretch)


def merge_stretch(job: RoundJob, stretch: Stretch, resolve_: Resolve | None = None) -> list[BucketResult]:
    """Absorb the parts of deltas for neighbouring buckets.

    Rows are resolved as rows, unless `resolve_` is passed. Raises: InvalidInputError where that is missing.
    """
    if resolve_ is None and job.kind != ROWS_KIND:
        raise InvalidInputError(
            f"{job.table}: an engine for rows cannot compact a table of {job.kind}; use one for {job.kind}"
        )
    started = time.perf_counter()
    files = StretchFiles(job.root, stretch.buckets)
    changes = (resolve_ or resolve_rows)(job, stretch, files)
    resolved_at = time.perf_counter()
    first, *others = absorb(job, stretch, files, changes)
    # The time of all of them: they are merged and written together.
    done_at = time.perf_counter()
    return [replace(first, merge_seconds=resolved_at - started, write_seconds=done_at - resolved_at), *others]


def resolve_rows(job: RoundJob, stretch: Stretch, files: StretchFiles) -> Sequence[Change]:
    """Return what the parts of deltas change in each bucket of a stretch, writing nothing. Raises: CorruptionError."""
    return resolve(job, stretch, files).by_bucket()


@dataclass(frozen=True)
class Resolved:
    """What the deltas do to neighbouring buckets: rows that die, by data file; rows that come, by bucket; tombstones.

    `accounts` has, by bucket, the numbers of an `Accounting`.
    """

    stretch: Stretch
    files: StretchFiles
    dead: list[Integers]
    rows: pa.Table
    row_counts: Integers
    accounts: dict[str, Integers]
    tombstones: list[pa.Table] | None = None

    @property
    def added_count(self) -> int:
        """How many more rows there are than before."""
        return int(self.rows.num_rows) - sum(map(len, self.dead))

    def by_bucket(self) -> list[Change]:
        """Return the changes of each bucket."""
        dead = self._dead_by_bucket()
        tombstones: Sequence[pa.Table | None] = self.tombstones or [None] * len(dead)
        counts, ends = self.row_counts.tolist(), np.cumsum(self.row_counts).tolist()
        accounts = zip(*(numbers.tolist() for numbers in self.accounts.values()), strict=True)
        return [
            Change(
                own,
                Rows(self.rows, end - count, count),
                Accounting(**dict(zip(self.accounts, account, strict=True))),
                stones,
            )
            for own, end, count, account, stones in zip(dead, ends, counts, accounts, tombstones, strict=True)
        ]

    def _dead_by_bucket(self) -> list[list[Integers]]:
        dead = [[_NO_ROWS] * len(bucket.files) for bucket in self.stretch.buckets]
        for file, owners, rows in zip(self.files.whole, self.files.owners, self.dead, strict=True):
            if not len(rows):
                continue
            if not file.file.is_shared:
                dead[owners[0][0]][owners[0][1]] = rows
                continue
            firsts = np.array([each.first_row for each in file.slices])
            ends = firsts + np.array([each.record_count for each in file.slices])
            cuts = zip(np.searchsorted(rows, firsts).tolist(), np.searchsorted(rows, ends).tolist(), strict=True)
            for each, (start, stop), (place, position) in zip(file.slices, cuts, owners, strict=True):
                dead[place][position] = rows[start:stop] - each.first_row
        return dead


def resolve(job: RoundJob, stretch: Stretch, files: StretchFiles) -> Resolved:
    """Return what parts of deltas change in neighbouring buckets, writing nothing. Raises: CorruptionError."""
    deltas = _Deltas(job, stretch)
    tombstones = read_tombstones(job, stretch.buckets)
    base = _find_base(job, deltas, stretch, files)
    change = _change if job.keeps_one_row else _history_change if job.keeps_history else _appended_change
    resolved = change(job, _Input(stretch, files, deltas, base, tombstones))
    accounts = resolved.accounts
    accounts["base_rows"] = np.array([bucket.live_count for bucket in stretch.buckets])
    # What was left out on the way came, too, and other rows of the same keys count instead.
    for part in stretch.parts:
        if len(part.combined.buckets):
            places = deltas.places_of(part.combined.buckets)
            accounts["delta_rows"][places] += part.combined.upserts
            accounts["duplicate_rows"][places] += part.combined.upserts
            accounts["removal_rows"][places] += part.combined.removals
    return resolved


class _Deltas:
    """The rows and deletes of a stretch's parts, in stream order; `places` has where each row's bucket is in the stretch."""

    def __init__(self, job: RoundJob, stretch: Stretch) -> None:
        schema = job.schema
        self._numbers = np.array(stretch.numbers)
        rows: list[pa.Table] = []
        places: list[Integers] = [_NO_ROWS]
        removals: list[Flags] = []
        self.runs: list[RowsRun | Part] = []
        count = 0
        for part in stretch.parts:
            if part.floor is not None:
                self.runs.append(part)
                continue
            if part.is_delete:
                self._add_delete(part, schema)
                continue
            rows.append(align(part.table, schema))
            places.append(self.places_of(part.buckets))
            removals.append(part.table.column(REMOVAL).to_numpy())
            columns = tuple(schema.names.index(name) for name in part.columns)
            self.runs.append(RowsRun(count, count + part.table.num_rows, columns))
            count += part.table.num_rows
        self.rows: pa.Table = pa.concat_tables(rows) if rows else schema.empty_table()
        self.places = np.concatenate(places)
        self.removals: Flags = np.concatenate(removals) if removals else np.zeros(0, np.bool_)
        self._keys = job.primary_keys
        deletes = [run for run in self.runs if isinstance(run, Part)]
        self.floors = [run for run in deletes if run.floor is not None]
        self.key_deletes = [
            run for run in deletes if set(run.delete_columns) == set(job.primary_keys) and run not in self.floors
        ]
        self.other_deletes = [run for run in deletes if run not in self.key_deletes and run not in self.floors]

    @property
    def bucket_count(self) -> int:
        """How many buckets there are."""
        return len(self._numbers)

    def places_of(self, numbers: Integers | None) -> Integers:
        """Return where buckets are in the stretch."""
        assert numbers is not None
        return np.searchsorted(self._numbers, numbers)

    def _add_delete(self, part: Part, schema: pa.Schema) -> None:
        """Add a delete; one that follows another by the same columns becomes part of that, as no row is between them."""
        last = self.runs[-1] if self.runs else None
        if not isinstance(last, Part) or last.floor is not None or last.delete_columns != part.delete_columns:
            self.runs.append(part)
            return
        columns = pa.schema([schema.field(name) for name in part.delete_columns])
        self.runs[-1] = replace(last, table=pa.concat_tables([align(each.table, columns) for each in (last, part)]))

    @cached_property
    def hashes(self) -> Hashes:
        """The hashes of the rows' keys."""
        return hash_keys(self.rows, self._keys)

    @cached_property
    def delete_hashes(self) -> list[Hashes]:
        """The hashes of the keys of each delete by key."""
        return [hash_keys(delete.table, self._keys) for delete in self.key_deletes]

    @cached_property
    def hash_ids(self) -> tuple[list[Integers], Hashes]:
        """The numbers of the rows' hashes, and of those of each delete by key; and the distinct hashes."""
        return hash_ids([self.hashes, *self.delete_hashes])


@dataclass
class _Base:
    """The compacted rows that take part: by data file, as a table of the columns needed.

    Where hashes tell keys apart, `keys` has the numbers that the deltas have for them.
    """

    rows: list[Integers]
    table: pa.Table
    keys: Integers | None


@dataclass(frozen=True)
class _Input:
    """All that takes part."""

    stretch: Stretch
    files: StretchFiles
    deltas: _Deltas
    base: _Base
    tombstones: pa.Table

    @cached_property
    def base_places(self) -> Integers:
        """Where the bucket of each compacted row is in the stretch."""
        places = [_NO_ROWS]
        for file, owners, rows in zip(self.files.whole, self.files.owners, self.base.rows, strict=True):
            own = np.array([place for place, _ in owners])
            if len(own) == 1:
                places.append(np.full(len(rows), own[0]))
            else:
                firsts = [each.first_row for each in file.slices]
                places.append(own[np.searchsorted(firsts, rows, "right") - 1])
        return np.concatenate(places)

    def count(self, places: Integers) -> Integers:
        """Return how often each bucket of the stretch is among places."""
        return np.bincount(places, minlength=self.deltas.bucket_count)


def _find_base(job: RoundJob, deltas: _Deltas, stretch: Stretch, files: StretchFiles) -> _Base:
    stored = files.whole
    is_exact_key = (job.keeps_one_row or job.keeps_history) and is_exact(
        [job.schema.field(name).type for name in job.primary_keys]
    )
    concerned = _concerned_hashes(job, deltas) if stored or is_exact_key else np.zeros(0, np.uint64)
    is_by_hash = is_exact_key and not (deltas.other_deletes or deltas.floors) and not np.any(concerned == NULL_HASH)
    columns = _needed_columns(job, deltas, is_by_hash=is_by_hash)
    # However many there are, files are read once for all deletes by the same columns: in which order they hit, folding tells.
    deletes_by_columns: dict[tuple[str, ...], list[pa.Table]] = defaultdict(list)
    for delete in deltas.other_deletes:
        deletes_by_columns[delete.delete_columns].append(delete.table)
    rows: list[Integers] = []
    tables: list[pa.Table] = [columns.empty_table()]
    keys: list[Integers] = [_NO_ROWS]
    bounds = [(bucket.first_hash, bucket.last_hash) for bucket in stretch.buckets]
    firsts, lasts = np.array(bounds, np.uint64).reshape(-1, 2).T
    starts = np.searchsorted(concerned, firsts).tolist()
    stops = np.searchsorted(concerned, lasts, "right").tolist()
    # Only keys of the buckets that have rows in a file.
    spans = [
        (starts[min(place for place, _ in owners)], stops[max(place for place, _ in owners)]) for owners in files.owners
    ]
    for file, (start, stop) in zip(stored, spans, strict=True):
        file_rows = _NO_ROWS
        if stop > start:
            file_rows, own = file.find(concerned[start:stop])
            if file.has_dead and len(file_rows):
                live = file.live_flags()[file_rows]
                file_rows, own = file_rows[live], own[live]
            keys.append(own + start)
        for names, deletes in deletes_by_columns.items():
            file_rows = np.union1d(file_rows, file.live_among(_matching_rows(job, file, names, deletes)))
        if deltas.floors:
            file_rows = np.union1d(file_rows, file.live_among(_truncated_rows(job, file, deltas.floors)))
        rows.append(file_rows)
        if len(columns) and len(file_rows):
            tables.append(file.read_rows(file_rows, columns))
        if len(stored) > 1:
            # Each keeps a descriptor, of which a process has no more than some hundred.
            file.release()
    return _Base(rows, pa.concat_tables(tables), np.concatenate(keys) if is_by_hash else None)


def _concerned_hashes(job: RoundJob, deltas: _Deltas) -> Hashes:
    """Return the distinct hashes of all keys whose compacted rows the deltas may concern."""
    if not job.primary_keys:
        return np.zeros(0, np.uint64)
    if job.drop_duplicates:
        return deltas.hash_ids[1]
    return hash_ids([deltas.hashes[deltas.removals], *deltas.delete_hashes])[1]


def _needed_columns(job: RoundJob, deltas: _Deltas, *, is_by_hash: bool) -> pa.Schema:
    schema = job.schema
    if job.composes_rows or job.keeps_history:
        return schema
    names = {*job.sort_keys, *(name for delete in deltas.other_deletes for name in delete.delete_columns)}
    if not is_by_hash:
        names |= set(job.primary_keys)
    return pa.schema([field for field in schema if field.name in names])


def _matching_rows(job: RoundJob, file: StoredFile, names: Sequence[str], deletes: Sequence[pa.Table]) -> Integers:
    columns = pa.schema([job.schema.field(name) for name in names])
    deleted = pa.concat_tables([align(table, columns) for table in deletes])
    matching = [np.zeros(0, np.int64)]
    for start, table in file.scan(columns):
        (own, theirs), _ = equal_ids([table, deleted], names)
        matching.append(start + np.flatnonzero(np.isin(own, theirs)))
    return np.concatenate(matching)


def _truncated_rows(job: RoundJob, file: StoredFile, floors: Sequence[Part]) -> Integers:
    """Return the rows of a file that are below the highest of several floors: all, where one has no sort key."""
    values = [floor.floor or "" for floor in floors]
    if not all(values) or not job.sort_keys:
        return np.arange(file.file.record_count)
    column = pa.schema([job.schema.field(job.sort_keys[0])])
    below = [np.zeros(0, np.int64)]
    for start, table in file.scan(column):
        (own, (floor,)) = sort_ranks([table, _floor_table(job, [max(values)])], job.sort_keys)
        below.append(start + np.flatnonzero(own < floor))
    return np.concatenate(below)


def _floor_table(job: RoundJob, floors: Sequence[str | None]) -> pa.Table:
    """Return floors as rows of the sort key; what is None is below all."""
    values = [bytes.fromhex(floor) if floor else None for floor in floors]
    return pa.table({job.sort_keys[0]: pa.array(values, job.schema.field(job.sort_keys[0]).type)})


def _fold_input(job: RoundJob, deltas: _Deltas, base: _Base, tombstones: pa.Table) -> FoldInput:
    keys, count = _key_ids(job, deltas, base, tombstones)
    base_keys, delta_keys, tombstone_keys, *delete_keys = keys
    ranks, tombstone_ranks = None, np.zeros(len(tombstone_keys), np.int64)
    floor = NONE
    floor_ranks: Iterator[int | None] = iter([None] * len(deltas.floors))
    if job.sort_keys:
        tables = [base.table, deltas.rows, tombstones]
        if deltas.floors or job.floor:
            tables.append(_floor_table(job, [job.floor, *(each.floor for each in deltas.floors)]))
        base_ranks, row_ranks, tombstone_ranks, *floors = sort_ranks(tables, job.sort_keys)
        ranks = np.concatenate([base_ranks, row_ranks])
        if floors:
            floor, *others = floors[0].tolist()
            floor_ranks = iter(others)
    by_key = iter(delete_keys)
    runs: list[RowsRun | DeleteRun | FloorRun] = []
    for run in deltas.runs:
        if isinstance(run, RowsRun):
            runs.append(run)
        elif run.floor is not None:
            rank = next(floor_ranks)
            runs.append(FloorRun(rank if run.floor else None))
        elif run in deltas.key_deletes:
            runs.append(DeleteRun(keys=next(by_key)))
        elif job.composes_rows:
            runs.append(DeleteRun(matches=_matches(job, deltas, base, run)))
        else:
            runs.append(DeleteRun(hits=_hits(job, deltas, base, run)))
    return FoldInput(
        key_count=count,
        base_keys=base_keys,
        delta_keys=delta_keys,
        removals=deltas.removals,
        runs=runs,
        ranks=ranks,
        floor=floor,
        tombstone_keys=tombstone_keys,
        tombstone_ranks=tombstone_ranks,
        column_count=len(job.schema),
    )


def _key_ids(job: RoundJob, deltas: _Deltas, base: _Base, tombstones: pa.Table) -> tuple[list[Integers], int]:
    """Number the keys of base, deltas, tombstones and each delete by key, in this order."""
    base_count = sum(map(len, base.rows))
    if not job.primary_keys:
        # Without a key every row stands for itself.
        total = base_count + deltas.rows.num_rows
        return [np.arange(base_count), np.arange(base_count, total), np.zeros(0, np.int64)], total
    if base.keys is None:
        deletes = [delete.table for delete in deltas.key_deletes]
        return equal_ids([base.table, deltas.rows, tombstones, *deletes], job.primary_keys)
    (delta_keys, *delete_keys), distinct = deltas.hash_ids
    tombstone_keys, count = _ids_among(distinct, hash_keys(tombstones, job.primary_keys))
    return [base.keys, delta_keys, tombstone_keys, *delete_keys], count


def _ids_among(distinct: Hashes, hashes: Hashes) -> tuple[Integers, int]:
    """Number hashes by where they are among distinct ones, and the others after them; return how many there are then."""
    ids = np.searchsorted(distinct, hashes).astype(np.int64)
    is_other = ids == len(distinct)
    is_other[~is_other] = distinct[ids[~is_other]] != hashes[~is_other]
    (others,), more = hash_ids([hashes[is_other]])
    ids[is_other] = len(distinct) + others
    return ids, len(distinct) + len(more)


def _hits(job: RoundJob, deltas: _Deltas, base: _Base, delete: Part) -> Flags:
    columns = pa.schema([job.schema.field(name) for name in delete.delete_columns])
    tables = [align(table.select(columns.names), columns) for table in (base.table, deltas.rows, delete.table)]
    (own, new, theirs), _ = equal_ids(tables, columns.names)
    return np.isin(np.concatenate([own, new]), theirs)


def _matches(job: RoundJob, deltas: _Deltas, base: _Base, delete: Part) -> tuple[Match, ...]:
    matches = []
    for name in delete.delete_columns:
        column = pa.schema([job.schema.field(name)])
        null = pa.table({name: pa.nulls(1)})
        tables = [align(table, column) for table in (base.table, deltas.rows, null, delete.table)]
        (*values, deleted), _ = equal_ids(tables, [name])
        matches.append(Match(job.schema.names.index(name), np.concatenate(values), deleted))
    return tuple(matches)


def _change(job: RoundJob, given: _Input) -> Resolved:
    deltas, base = given.deltas, given.base
    inputs = _fold_input(job, deltas, base, given.tombstones)
    result = fold(inputs, job.merge_engine)
    base_count = inputs.base_count
    base_winners = result.winners[inputs.base_keys]
    dead = base_winners != np.arange(base_count)
    new, new_places = _sorted_by_bucket(np.sort(result.winners[result.winners >= base_count]), deltas, base_count)
    places, base_places = deltas.places[~inputs.removals], given.base_places
    survivors = result.winners[inputs.delta_keys[~inputs.removals]] != NONE
    row_counts = given.count(new_places)
    tombstones = None
    if job.sort_keys:
        after = tombstones_after(given.tombstones, job, inputs, result, deltas.rows)
        tombstones = split_tombstones(job, given.stretch.buckets, after)
    return Resolved(
        given.stretch,
        given.files,
        dead=_by_file(base, dead),
        rows=_new_rows(job, deltas, base, result, new),
        row_counts=row_counts,
        accounts={
            "delta_rows": given.count(places),
            "removal_rows": given.count(deltas.places[inputs.removals]),
            "superseded_rows": given.count(base_places[dead & (base_winners != NONE)]),
            "deleted_rows": given.count(base_places[base_winners == NONE]) + given.count(places[~survivors]),
            "duplicate_rows": given.count(places[survivors]) - row_counts,
        },
        tombstones=tombstones,
    )


def _sorted_by_bucket(new: Integers, deltas: _Deltas, base_count: int) -> tuple[Integers, Integers]:
    """Return new rows sorted by bucket, and where the bucket of each is in the stretch."""
    places = deltas.places[new - base_count]
    if deltas.bucket_count == 1:
        return new, places
    order = rising_order(places)
    return new[order], places[order]


def _new_rows(job: RoundJob, deltas: _Deltas, base: _Base, result: FoldResult, new: Integers) -> pa.Table:
    base_count = sum(map(len, base.rows))
    if result.sources is None:
        is_whole = len(new) == deltas.rows.num_rows and deltas.bucket_count == 1
        return deltas.rows if is_whole else deltas.rows.take(pa.array(new - base_count))
    by_row = np.full(base_count + deltas.rows.num_rows, NONE, np.int64)
    present = np.flatnonzero(result.winners != NONE)
    by_row[result.winners[present]] = present
    keys = by_row[new]
    everything = pa.concat_tables([base.table, deltas.rows])
    columns = []
    for position, field in enumerate(job.schema):
        sources = result.sources[position, keys]
        columns.append(everything.column(field.name).take(pa.array(sources, mask=sources == NONE)))
    return pa.Table.from_arrays(columns, names=job.schema.names)


def _appended_change(job: RoundJob, given: _Input) -> Resolved:
    deltas = given.deltas
    inputs = _fold_input(job, deltas, given.base, given.tombstones)
    alive = fold_appended(inputs)
    dead = ~alive[: inputs.base_count]
    new, new_places = _sorted_by_bucket(np.flatnonzero(alive[inputs.base_count :]), deltas, 0)
    upserts, row_counts = given.count(deltas.places[~inputs.removals]), given.count(new_places)
    return Resolved(
        given.stretch,
        given.files,
        dead=_by_file(given.base, dead),
        rows=deltas.rows.take(pa.array(new)),
        row_counts=row_counts,
        accounts={
            "delta_rows": upserts,
            "removal_rows": given.count(deltas.places[inputs.removals]),
            "deleted_rows": given.count(given.base_places[dead]) + upserts - row_counts,
            "duplicate_rows": np.zeros(len(row_counts), np.int64),
        },
    )


def _history_change(job: RoundJob, given: _Input) -> Resolved:
    deltas = given.deltas
    (base_keys, delta_keys, *_), _ = _key_ids(job, deltas, given.base, given.tombstones)
    change = change_versions(
        job, given.base.table, deltas.rows, np.concatenate([base_keys, delta_keys]), deltas.removals
    )
    places = np.concatenate([given.base_places, deltas.places])
    order = rising_order(places[change.new])
    return Resolved(
        given.stretch,
        given.files,
        dead=_by_file(given.base, change.dead),
        rows=change.rows.take(pa.array(order)),
        row_counts=given.count(places[change.new]),
        accounts={name: given.count(places[flags]) for name, flags in change.accounts.items()},
    )


def _by_file(base: _Base, dead: Flags) -> list[Integers]:
    flags = np.split(dead, np.cumsum([len(rows) for rows in base.rows])[:-1]) if base.rows else []
    return [rows[flag] for rows, flag in zip(base.rows, flags, strict=True)]
