"""The second step of a task: what the deltas of a bucket mean for its compacted rows."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.model.buckets import Bucket
from siltstone.model.properties import ROWS_KIND
from siltstone.model.rounds import Accounting
from siltstone.rows.absorb import Change, absorb
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
    tombstones_after,
)
from siltstone.rows.job import BucketResult, Merge, Part, RoundJob
from siltstone.rows.parts import REMOVAL, gather_here

Resolve = Callable[[RoundJob, Bucket, Sequence[StoredFile], Sequence[Part]], Change]
"""Returns what a bucket's parts of deltas change, writing nothing."""


def run_here(job: RoundJob, merge: Merge | None = None) -> Iterator[BucketResult]:
    """Run all tasks of a round in this process, one after another."""
    visits = job.settings.full or bool(job.due_numbers())
    for number, parts in gather_here(job):
        result = (merge or merge_bucket)(job, number, parts) if parts or visits else None
        if result is not None:
            yield result


def merge_bucket(
    job: RoundJob, number: int, parts: Sequence[Part], resolve_: Resolve | None = None
) -> BucketResult | None:
    """Absorb a bucket's parts of deltas; return its result, or None if it stays as it is.

    Rows are resolved as rows, unless `resolve_` is passed. Raises: InvalidInputError where that is missing.
    """
    bucket = job.buckets[number]
    if not parts and not job.visits(bucket):
        return None
    if resolve_ is None and job.kind != ROWS_KIND:
        raise InvalidInputError(
            f"{job.table}: an engine for rows cannot compact a table of {job.kind}; use one for {job.kind}"
        )
    started = time.perf_counter()
    stored = [StoredFile(job.root, file) for file in bucket.files]
    change = (resolve_ or resolve)(job, bucket, stored, parts)
    resolved_at = time.perf_counter()
    result = absorb(job, number, stored, change)
    written_at = time.perf_counter()
    return replace(result, merge_seconds=resolved_at - started, write_seconds=written_at - resolved_at)


def resolve(job: RoundJob, bucket: Bucket, stored: Sequence[StoredFile], parts: Sequence[Part]) -> Change:
    """Return what a bucket's parts of deltas change, writing nothing."""
    deltas = _Deltas(job, parts)
    tombstones = read_tombstones(job, bucket)
    base = _find_base(job, deltas, stored)
    change = (_change if job.keeps_one_row else _appended_change)(job, bucket, deltas, base, tombstones)
    # What was left out on the way came, too, and other rows of the same keys count instead.
    upserts, removals = (
        (sum(counts) for counts in zip(*(part.combined for part in parts), strict=True)) if parts else (0, 0)
    )
    change.accounting.delta_rows += upserts
    change.accounting.duplicate_rows += upserts
    change.accounting.removal_rows += removals
    return change


class _Deltas:
    """The rows and deletes of a bucket's parts, in stream order."""

    def __init__(self, job: RoundJob, parts: Sequence[Part]) -> None:
        schema = job.schema
        rows: list[pa.Table] = []
        removals: list[Flags] = []
        self.runs: list[RowsRun | Part] = []
        count = 0
        for part in parts:
            if part.floor is not None:
                self.runs.append(part)
                continue
            if part.is_delete:
                self._add_delete(part, schema)
                continue
            rows.append(align(part.table, schema))
            removals.append(part.table.column(REMOVAL).to_numpy())
            columns = tuple(schema.names.index(name) for name in part.columns)
            self.runs.append(RowsRun(count, count + part.table.num_rows, columns))
            count += part.table.num_rows
        self.rows: pa.Table = pa.concat_tables(rows) if rows else schema.empty_table()
        self.removals: Flags = np.concatenate(removals) if removals else np.zeros(0, np.bool_)
        self._keys = job.primary_keys
        deletes = [run for run in self.runs if isinstance(run, Part)]
        self.floors = [run for run in deletes if run.floor is not None]
        self.key_deletes = [
            run for run in deletes if set(run.delete_columns) == set(job.primary_keys) and run not in self.floors
        ]
        self.other_deletes = [run for run in deletes if run not in self.key_deletes and run not in self.floors]

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
    """The compacted rows that take part: by file, as a table of the columns needed.

    Where hashes tell keys apart, `keys` has the numbers that the deltas have for them.
    """

    rows: list[Integers]
    table: pa.Table
    keys: Integers | None


def _find_base(job: RoundJob, deltas: _Deltas, stored: Sequence[StoredFile]) -> _Base:
    is_exact_key = job.keeps_one_row and is_exact([job.schema.field(name).type for name in job.primary_keys])
    concerned = _concerned_hashes(job, deltas) if stored or is_exact_key else np.zeros(0, np.uint64)
    is_by_hash = is_exact_key and not (deltas.other_deletes or deltas.floors) and not np.any(concerned == NULL_HASH)
    columns = _needed_columns(job, deltas, is_by_hash=is_by_hash)
    # However many there are, files are read once for all deletes by the same columns: in which order they hit, folding tells.
    deletes_by_columns: dict[tuple[str, ...], list[pa.Table]] = defaultdict(list)
    for delete in deltas.other_deletes:
        deletes_by_columns[delete.delete_columns].append(delete.table)
    rows: list[Integers] = []
    tables: list[pa.Table] = [columns.empty_table()]
    keys: list[Integers] = [np.zeros(0, np.int64)]
    for file in stored:
        file_rows = np.zeros(0, np.int64)
        if len(concerned):
            file_rows, own = file.index.find(concerned)
            if file.file.deletion_vector is not None:
                live = file.live_flags()[file_rows]
                file_rows, own = file_rows[live], own[live]
            keys.append(own)
        for names, deletes in deletes_by_columns.items():
            file_rows = np.union1d(file_rows, file.live_among(_matching_rows(job, file, names, deletes)))
        if deltas.floors:
            file_rows = np.union1d(file_rows, file.live_among(_truncated_rows(job, file, deltas.floors)))
        rows.append(file_rows)
        if len(columns) and len(file_rows):
            tables.append(file.read_rows(file_rows, columns))
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
    if job.composes_rows:
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


def _change(job: RoundJob, bucket: Bucket, deltas: _Deltas, base: _Base, tombstones: pa.Table) -> Change:
    inputs = _fold_input(job, deltas, base, tombstones)
    result = fold(inputs, job.merge_engine)
    base_count = inputs.base_count
    base_winners = result.winners[inputs.base_keys]
    dead = base_winners != np.arange(base_count)
    new = np.sort(result.winners[result.winners >= base_count])
    upserted = inputs.delta_keys[~inputs.removals]
    survivors = result.winners[upserted] != NONE
    accounting = Accounting(
        base_rows=bucket.live_count,
        delta_rows=len(upserted),
        removal_rows=int(inputs.removals.sum()),
        superseded_rows=int((dead & (base_winners != NONE)).sum()),
        deleted_rows=int((base_winners == NONE).sum()) + int((~survivors).sum()),
        duplicate_rows=int(survivors.sum()) - len(new),
    )
    return Change(
        dead=_by_file(base, dead),
        rows=_new_rows(job, deltas, base, result, new),
        accounting=accounting,
        tombstones=tombstones_after(tombstones, job, inputs, result, deltas.rows) if job.sort_keys else None,
    )


def _new_rows(job: RoundJob, deltas: _Deltas, base: _Base, result: FoldResult, new: Integers) -> pa.Table:
    base_count = sum(map(len, base.rows))
    if result.sources is None:
        return deltas.rows if len(new) == deltas.rows.num_rows else deltas.rows.take(pa.array(new - base_count))
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


def _appended_change(job: RoundJob, bucket: Bucket, deltas: _Deltas, base: _Base, tombstones: pa.Table) -> Change:
    inputs = _fold_input(job, deltas, base, tombstones)
    alive = fold_appended(inputs)
    dead = ~alive[: inputs.base_count]
    new = np.flatnonzero(alive[inputs.base_count :])
    upserts = int((~inputs.removals).sum())
    accounting = Accounting(
        base_rows=bucket.live_count,
        delta_rows=upserts,
        removal_rows=int(inputs.removals.sum()),
        deleted_rows=int(dead.sum()) + upserts - len(new),
    )
    return Change(dead=_by_file(base, dead), rows=deltas.rows.take(pa.array(new)), accounting=accounting)


def _by_file(base: _Base, dead: Flags) -> list[Integers]:
    flags = np.split(dead, np.cumsum([len(rows) for rows in base.rows])[:-1]) if base.rows else []
    return [rows[flag] for rows, flag in zip(base.rows, flags, strict=True)]
