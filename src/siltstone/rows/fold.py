"""The meaning of deltas, a run at a time: which rows are current after all of them.

Rows are numbered: first the compacted rows that take part, then the rows of the deltas in stream order. Keys are
numbered too. A run is what one delta brings to a bucket: rows, or equality deletes. Folding runs in order is the
sequential reading of the stream; within a run, all rows are resolved at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.log.horizon import new_round_name
from siltstone.model import MergeEngine
from siltstone.model.buckets import Bucket, CompactedFile
from siltstone.objects import open_objects
from siltstone.rows.columns import Flags, Integers, align, are_among, hash_keys, rising_order
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.rows.slices import by_data_file, slices_of
from siltstone.storage.parquet import open_writer

NONE = -1
_SINCE = "_siltstone_since"


@dataclass(frozen=True)
class RowsRun:
    """Rows `start` to `stop` of the deltas' rows, with the columns that their delta has."""

    start: int
    stop: int
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """A column of an equality delete, with equal values as equal numbers.

    `values` has the number of each row's value and, last, so that NONE finds it, that of null; `deleted` those of the
    delete's rows.
    """

    column: int
    values: Integers
    deleted: Integers


@dataclass(frozen=True)
class DeleteRun:
    """An equality delete: by keys, or by any columns, in which case `hits` flags the rows that it describes.

    What a row that is composed of several has in a column is known only in its turn: there, `matches` has the columns.
    """

    keys: Integers | None = None
    hits: Flags | None = None
    matches: tuple[Match, ...] = ()


@dataclass(frozen=True)
class FloorRun:
    """All rows of a lower rank are gone, those of later runs included; without a rank, all rows before it are."""

    rank: int | None


@dataclass(frozen=True)
class FoldInput:
    """All that takes part. `ranks` order rows by their sort keys, None without; removals are row-level deletes.

    Rows whose rank is below the `floor` came too late for a truncate.
    """

    key_count: int
    base_keys: Integers
    delta_keys: Integers
    removals: Flags
    runs: Sequence[RowsRun | DeleteRun | FloorRun]
    ranks: Integers | None = None
    floor: int = NONE
    tombstone_keys: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    tombstone_ranks: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    column_count: int = 0

    @property
    def base_count(self) -> int:
        """How many compacted rows take part."""
        return len(self.base_keys)


@dataclass
class FoldResult:
    """Per key: the row that is current, or NONE; whether a tombstone is left; the rank of either.

    `tombstone_rows` has the row-level delete that left the tombstone, NONE where it is older. For partial updates,
    `sources` has per column and key the row that its value comes from.
    """

    winners: Integers
    is_tombstone: Flags
    tombstone_rows: Integers
    ranks: Integers
    sources: Integers | None = None
    floor: int = NONE


def fold(inputs: FoldInput, engine: MergeEngine) -> FoldResult:
    """Fold all runs for tables that keep one row per key."""
    state = FoldResult(
        winners=np.full(inputs.key_count, NONE, np.int64),
        is_tombstone=np.zeros(inputs.key_count, np.bool_),
        tombstone_rows=np.full(inputs.key_count, NONE, np.int64),
        ranks=np.full(inputs.key_count, NONE, np.int64),
        floor=inputs.floor,
    )
    base = np.arange(inputs.base_count)
    state.winners[inputs.base_keys] = base
    if inputs.ranks is not None:
        state.ranks[inputs.base_keys] = inputs.ranks[: inputs.base_count]
        state.ranks[inputs.tombstone_keys] = inputs.tombstone_ranks
        state.is_tombstone[inputs.tombstone_keys] = True
    if engine == "partial_update":
        state.sources = np.full((inputs.column_count, inputs.key_count), NONE, np.int64)
        state.sources[:, inputs.base_keys] = base
    for run in inputs.runs:
        if isinstance(run, FloorRun):
            _truncate(run, state)
        elif isinstance(run, DeleteRun):
            _delete(run, state)
        elif engine == "partial_update":
            _update_partially(run, inputs, state)
        elif engine == "first_row":
            _keep_first(run, inputs, state)
        elif inputs.ranks is None:
            _replace(run, inputs, state)
        else:
            _replace_by_rank(run, inputs, state)
    return state


def fold_appended(inputs: FoldInput) -> Flags:
    """Return which rows are left in tables that keep all rows of a key."""
    keys = np.concatenate([inputs.base_keys, inputs.delta_keys])
    rows = np.arange(len(keys))
    alive = np.concatenate([np.ones(inputs.base_count, np.bool_), ~inputs.removals])
    removals = _last_removals(inputs.delta_keys, rows[inputs.base_count :], inputs.removals, inputs.key_count)
    alive &= rows > removals[keys]
    seen = inputs.base_count
    for run in inputs.runs:
        if isinstance(run, RowsRun):
            seen = inputs.base_count + run.stop
            continue
        if isinstance(run, FloorRun):
            alive &= rows >= seen
            continue
        hits = np.isin(keys, run.keys) if run.keys is not None else run.hits
        assert hits is not None
        alive &= ~(hits & (rows < seen))
    return alive


def _delete(run: DeleteRun, state: FoldResult) -> None:
    if run.keys is not None:
        hit = run.keys[state.winners[run.keys] != NONE]
    else:
        present = np.flatnonzero(state.winners != NONE)
        hit = present[_described(run, state, present)]
    _remove(hit, state)


def _truncate(run: FloorRun, state: FoldResult) -> None:
    present = state.winners != NONE
    if run.rank is not None:
        present &= state.ranks < run.rank
        state.floor = max(state.floor, run.rank)
    _remove(np.flatnonzero(present), state)


def _remove(keys: Integers, state: FoldResult) -> None:
    state.winners[keys] = NONE
    state.ranks[keys] = NONE
    if state.sources is not None:
        state.sources[:, keys] = NONE


def _described(run: DeleteRun, state: FoldResult, present: Integers) -> Flags:
    """Flag the keys whose current row an equality delete by columns describes."""
    if state.sources is None:
        assert run.hits is not None
        return run.hits[state.winners[present]]
    composed = [match.values[state.sources[match.column, present]] for match in run.matches]
    return are_among(composed, [match.deleted for match in run.matches])


def _rows_of(run: RowsRun, inputs: FoldInput) -> tuple[Integers, Integers, Flags]:
    part = slice(run.start, run.stop)
    return inputs.delta_keys[part], np.arange(run.start, run.stop) + inputs.base_count, inputs.removals[part]


def _above_floor(
    keys: Integers, rows: Integers, removals: Flags, inputs: FoldInput, state: FoldResult
) -> tuple[Integers, Integers, Flags]:
    """Leave out the rows that a truncate which came before them is of."""
    if inputs.ranks is None or state.floor == NONE:
        return keys, rows, removals
    taken = inputs.ranks[rows] >= state.floor
    return keys[taken], rows[taken], removals[taken]


def _replace(run: RowsRun, inputs: FoldInput, state: FoldResult) -> None:
    keys, rows, removals = _rows_of(run, inputs)
    # Of several values assigned to one key the last one stays, which is the newest row.
    state.winners[keys] = np.where(removals, NONE, rows)


def _replace_by_rank(run: RowsRun, inputs: FoldInput, state: FoldResult) -> None:
    keys, rows, removals = _above_floor(*_rows_of(run, inputs), inputs, state)
    assert inputs.ranks is not None
    ranks = inputs.ranks[rows]
    order = np.lexsort((rows, ranks, keys))
    greatest = order[_last_of_each(keys[order])]
    taken = greatest[ranks[greatest] >= state.ranks[keys[greatest]]]
    state.winners[keys[taken]] = np.where(removals[taken], NONE, rows[taken])
    state.is_tombstone[keys[taken]] = removals[taken]
    state.tombstone_rows[keys[taken]] = rows[taken]
    state.ranks[keys[taken]] = ranks[taken]


def _keep_first(run: RowsRun, inputs: FoldInput, state: FoldResult) -> None:
    keys, rows, removals = _rows_of(run, inputs)
    state.winners[keys[removals]] = NONE
    rest = rows > _last_removals(keys, rows, removals, inputs.key_count)[keys]
    keys, rows = keys[rest], rows[rest]
    vacant = state.winners[keys] == NONE
    # Assigned backwards, the first row of a key comes last and stays.
    state.winners[keys[vacant][::-1]] = rows[vacant][::-1]


def _update_partially(run: RowsRun, inputs: FoldInput, state: FoldResult) -> None:
    keys, rows, removals = _above_floor(*_rows_of(run, inputs), inputs, state)
    assert state.sources is not None
    if inputs.ranks is not None:
        taken = _accepted(keys, inputs.ranks[rows], state.ranks)
        keys, rows, removals = keys[taken], rows[taken], removals[taken]
        # Accepted ranks rise along a key, so the last one assigned is the greatest.
        state.ranks[keys] = inputs.ranks[rows]
        state.is_tombstone[keys] = removals
        state.tombstone_rows[keys] = rows
    gone = keys[removals]
    state.winners[gone] = NONE
    state.sources[:, gone] = NONE
    rest = rows > _last_removals(keys, rows, removals, inputs.key_count)[keys]
    state.winners[keys[rest]] = rows[rest]
    for column in run.columns:
        state.sources[column, keys[rest]] = rows[rest]


def _last_removals(keys: Integers, rows: Integers, removals: Flags, key_count: int) -> Integers:
    last = np.full(key_count, NONE, np.int64)
    last[keys[removals]] = rows[removals]
    return last


def _accepted(keys: Integers, ranks: Integers, current: Integers) -> Integers:
    """Return, in order, which rows are not older than all rows of their key before them."""
    if not len(keys):
        return keys
    order = rising_order(keys)
    sorted_keys, sorted_ranks = keys[order], ranks[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]]))
    groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    # One running maximum for all keys: each key's ranks are lifted above all those of the keys before it.
    lift = groups * (int(max(ranks.max(initial=0), current.max(initial=0))) + 2)
    floor = current[sorted_keys] + 1
    highest = np.maximum.accumulate(np.maximum(sorted_ranks + 1, floor) + lift) - lift
    return np.sort(order[sorted_ranks + 1 >= highest])


def _last_of_each(sorted_keys: Integers) -> Flags:
    return np.concatenate([sorted_keys[1:] != sorted_keys[:-1], [True]]) if len(sorted_keys) else np.zeros(0, np.bool_)


def read_tombstones(job: RoundJob, buckets: Sequence[Bucket]) -> pa.Table:
    """Return the tombstones of buckets: key and sort columns, and since when. Raises: CorruptionError."""
    schema = _tombstone_schema(job)
    tables = [schema.empty_table()]
    for slices in by_data_file(bucket.tombstones for bucket in buckets if bucket.tombstones is not None):
        tables += StoredFile.together(job.root, slices).live_rows(schema)
    return pa.concat_tables(tables)


def tombstones_after(
    tombstones: pa.Table, job: RoundJob, inputs: FoldInput, result: FoldResult, rows: pa.Table
) -> pa.Table:
    """Return the tombstones after a fold: old ones that still stand and have not expired, and new ones of delta rows."""
    keys = inputs.tombstone_keys
    stand = result.is_tombstone[keys] & (result.tombstone_rows[keys] == NONE)
    young = pc.greater_equal(tombstones.column(_SINCE), job.expiry_ms - job.tombstone_retention_ms)
    kept = tombstones.filter(pc.and_(pa.array(stand), young))
    new = result.tombstone_rows[result.is_tombstone & (result.tombstone_rows != NONE)] - inputs.base_count
    since = pa.array(np.full(len(new), job.now_ms, np.int64))
    added = rows.take(pa.array(new)).select(kept.schema.names[:-1]).append_column(_SINCE, since)
    return pa.concat_tables([kept, align(added, kept.schema)])


def split_tombstones(job: RoundJob, buckets: Sequence[Bucket], tombstones: pa.Table) -> list[pa.Table]:
    """Return the tombstones of each of some buckets, which are in order, and have all of them."""
    if len(buckets) == 1:
        return [tombstones]
    starts = np.array([bucket.first_hash for bucket in buckets], np.uint64)
    places = np.searchsorted(starts, hash_keys(tombstones, job.primary_keys), "right") - 1
    ordered = tombstones.take(pa.array(rising_order(places)))
    counts = np.bincount(places, minlength=len(buckets))
    return [
        ordered.slice(end - count, count)
        for count, end in zip(counts.tolist(), np.cumsum(counts).tolist(), strict=True)
    ]


def write_tombstones(job: RoundJob, buckets: Sequence[Bucket], tombstones: Sequence[pa.Table]) -> None:
    """Write the tombstones of each bucket under a new name, all in one file, and say so in the buckets."""
    counts = [table.num_rows for table in tombstones]
    files: list[CompactedFile] = []
    if any(counts):
        path = f"{job.folder}/{new_round_name(job.began)}.tombstones"
        together = pa.concat_tables(tombstones)
        with open_objects(job.root).open_writer(path) as file:
            with open_writer(file, together, _tombstone_schema(job)) as writer:
                writer.write_table(together)
            size = file.tell()
        files.append(CompactedFile(uri=path, record_count=together.num_rows, content_length=size))
    for bucket, slices in zip(buckets, slices_of(files, counts), strict=True):
        bucket.tombstones = slices[0] if slices else None


def _tombstone_schema(job: RoundJob) -> pa.Schema:
    names = dict.fromkeys([*job.primary_keys, *job.sort_keys])
    return pa.schema([*map(job.schema.field, names), pa.field(_SINCE, pa.int64())])
