"""What differs between two states of a compacted partition: rows that went, rows that came, and what each one's change is.

Only what the states name is compared, first: a page, a file or a slice with the same dead rows in both has no change, and
nothing of it is read. Rows of the others that are live in one state and not at the same place in the other are read, and
paired. A row that is on both sides with the same values was only moved. Where rounds tell what died of files that they merged or
rewrote, and how many rows of new files they carried over, rows that were only moved are not read either.
"""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from siltstone.model.buckets import ALL_HASHES, Bucket, Buckets, CompactedFile
from siltstone.rows.columns import Flags, Integers, equal_ids
from siltstone.rows.deaths import Deaths
from siltstone.rows.files import SharedObjects, StoredFile
from siltstone.rows.slices import by_data_file

CHANGE_TYPES = ("delete", "update_before", "update_after", "insert")
_DELETE, _BEFORE, _AFTER, _INSERT = range(4)
# What is compared at once: about so many rows that may have changed, or bytes of the files that they are in.
STRETCH_ROWS = 1 << 18
_STRETCH_BYTES = 64 << 20


class BucketPair(NamedTuple):
    """Buckets of two states with the same hashes: one of either may be several of the other."""

    older: tuple[Bucket, ...]
    newer: tuple[Bucket, ...]


class RowChanges(NamedTuple):
    """Rows, and of each the number of its change among `CHANGE_TYPES`; an update has two, one after the other."""

    rows: pa.Table
    types: Integers


class Step(NamedTuple):
    """A state and a later one; `deaths` where all files that only the later one has are from one round, which tells what died."""

    older: Buckets
    newer: Buckets
    deaths: Deaths | None = None


def differences(
    root: str,
    steps: Sequence[Step],
    schema: pa.Schema,
    keys: Sequence[str],
    *,
    as_one: bool = False,
    hashes: range = ALL_HASHES,
) -> Iterator[RowChanges]:
    """Yield what changed from the first state to the last, by stretches of the hash space, with the columns of `schema`.

    With `keys`, a key has one row at most; without, rows are counted. With `as_one`, rows may be in another bucket than they
    were in, so that all are compared at once. Of a range of `hashes`, no bucket of any state may lie across an end.
    Raises: CorruptionError.
    """
    pairs = heapq.merge(*(_numbered(number, step, hashes) for number, step in enumerate(steps)), key=_first_hash)
    for stretch in filter(None, [tuple(pairs)]) if as_one else _stretches(pairs, steps):
        gone, come = _netted(root, stretch, steps, schema, keys)
        if gone.num_rows or come.num_rows:
            changes = _by_key(gone, come, keys) if keys else _by_count(gone, come)
            if len(changes.types):
                yield changes


_Numbered = tuple[int, BucketPair]
"""A pair of buckets, and the number of its step."""


def _numbered(number: int, step: Step, hashes: range) -> Iterator[_Numbered]:
    return ((number, pair) for pair in unlike_pairs(step.older, step.newer, hashes))


def _first_hash(numbered: _Numbered) -> int:
    return numbered[1].older[0].first_hash


def unlike_pairs(older: Buckets, newer: Buckets, hashes: range = ALL_HASHES) -> Iterator[BucketPair]:
    """Yield the buckets of two states that do not have the same files, by their hashes. Raises: CorruptionError."""
    known = {page.uri for page in older.pages} & {page.uri for page in newer.pages}
    for pair in _pairs(older.outside(known, hashes), newer.outside(known, hashes)):
        if _files(pair.older) != _files(pair.newer):
            yield pair


def _pairs(older: Iterator[Bucket], newer: Iterator[Bucket]) -> Iterator[BucketPair]:
    """Yield neighbours until both sides end at the same hash. Halves of a bucket without files stand by themselves."""
    for one in older:
        other = next(newer)
        coarse, fine, others = (one, other, newer) if one.depth <= other.depth else (other, one, older)
        parts = [fine]
        while parts[-1].last_hash < coarse.last_hash:
            parts.append(next(others))
        groups = [[part] for part in parts] if not coarse.files else [parts]
        for group in groups:
            # In place of a bucket without files, one that is as small as the other.
            own = coarse if coarse.files else Bucket(depth=group[0].depth, bits=group[0].bits)
            both = ((own,), tuple(group)) if coarse is one else (tuple(group), (own,))
            yield BucketPair(*both)


def _stretches(pairs: Iterable[_Numbered], steps: Sequence[Step]) -> Iterator[tuple[_Numbered, ...]]:
    """Yield neighbours of about so many changed rows together; pairs of several steps that have hashes in common stay so."""
    stretch: list[_Numbered] = []
    rows = size = last = 0
    for number, pair in pairs:
        if stretch and _first_hash((number, pair)) > last and (rows >= STRETCH_ROWS or size >= _STRETCH_BYTES):
            yield tuple(stretch)
            stretch, rows, size = [], 0, 0
        stretch.append((number, pair))
        pair_rows, pair_size = _weight(pair, steps[number].deaths)
        rows, size, last = rows + pair_rows, size + pair_size, max(last, pair.older[-1].last_hash)
    if stretch:
        yield tuple(stretch)


def _weight(pair: BucketPair, deaths: Deaths | None) -> tuple[int, int]:
    """Return about how many rows differ between buckets, and their bytes."""
    rows = size = 0
    older, newer = ({(file.uri, file.first_row): file for file in _files(side)} for side in pair)
    for place, file in {**older, **newer}.items():
        if place in older and place in newer:
            changed = abs(older[place].live_count - newer[place].live_count)
        elif deaths is not None and place in older:
            changed = len(deaths.get(place, ()))
        else:
            changed = file.live_count - (0 if deaths is None else file.carried_rows or 0)
        rows += changed
        size += file.content_length * changed // max(file.record_count, 1)
    return rows, size


def _netted(
    root: str, stretch: Sequence[_Numbered], steps: Sequence[Step], schema: pa.Schema, keys: Sequence[str]
) -> tuple[pa.Table, pa.Table]:
    """Return the rows that went, and those that came, in a stretch; of a key with both in several steps, the first and the last."""
    sides: list[tuple[pa.Table, pa.Table]] = []
    for number, step in enumerate(steps):
        pairs = [pair for own, pair in stretch if own == number]
        if pairs:
            sides.append(changed_rows(root, pairs, schema, step.deaths))
    gone, come = (pa.concat_tables(side) for side in zip(*sides, strict=True))
    if len(sides) < 2 or not keys:
        return gone, come
    (old_ids, new_ids), count = equal_ids([gone, come], keys)
    # A step takes the row of a key away before it brings the next one.
    went = np.repeat(np.arange(len(sides)) * 2, [side[0].num_rows for side in sides])
    came = np.repeat(np.arange(len(sides)) * 2 + 1, [side[1].num_rows for side in sides])
    first, last = np.full(count, 2 * len(sides)), np.full(count, -1)
    for ids, times in ((old_ids, went), (new_ids, came)):
        np.minimum.at(first, ids, times)
        np.maximum.at(last, ids, times)
    return gone.filter(pa.array(went == first[old_ids])), come.filter(pa.array(came == last[new_ids]))


def _files(buckets: Iterable[Bucket]) -> list[CompactedFile]:
    return [file for bucket in buckets for file in bucket.files]


def _place(file: CompactedFile) -> tuple[object, ...]:
    """Return what two slices have in common that have the same live rows."""
    vector = file.deletion_vector
    return file.uri, file.first_row, file.record_count, None if vector is None else (vector.uri, vector.start)


def changed_rows(
    root: str, pairs: Sequence[BucketPair], schema: pa.Schema, deaths: Deaths | None = None
) -> tuple[pa.Table, pa.Table]:
    """Return the rows that are live in the older state only, and in the newer one only, or at another place there.

    With `deaths`, without those that were only moved, but for what does not add up. Of files that both have, only row
    groups with such rows are read. Raises: CorruptionError.
    """
    sides = [_files(itertools.chain.from_iterable(side)) for side in zip(*pairs, strict=True)]
    older, newer = ({slices[0].uri: slices for slices in by_data_file(side)} for side in sides)
    shared = SharedObjects(root)
    changed = [
        rows
        for uri in {**older, **newer}
        if (rows := _changed(root, older.get(uri, ()), newer.get(uri, ()), shared, deaths)) is not None
    ]
    grown = sum(len(each.rows) - 2 * np.count_nonzero(each.went) for each in changed)
    before, after = (sum(file.live_count for file in side) for side in sides)
    if deaths is not None and before + grown != after:
        return changed_rows(root, pairs, schema)
    gone, come = [schema.empty_table()], [schema.empty_table()]
    for each in changed:
        table = each.file.read_rows(each.rows, schema)
        gone.append(table.filter(pa.array(each.went)))
        come.append(table.filter(pa.array(~each.went)))
        each.file.release()
    return pa.concat_tables(gone), pa.concat_tables(come)


class _ChangedRows(NamedTuple):
    """Rows of a data file that are live in one of two states only, and which of them are in the older one."""

    file: StoredFile
    rows: Integers
    went: Flags


def _changed(
    root: str,
    before: Sequence[CompactedFile],
    after: Sequence[CompactedFile],
    shared: SharedObjects,
    deaths: Deaths | None,
) -> _ChangedRows | None:
    if sorted(map(_place, before), key=str) == sorted(map(_place, after), key=str):
        return None
    file = StoredFile.together(root, before or after, shared=shared)
    was_live, is_live = (_live_rows(root, slices, shared, file.row_count) for slices in (before, after))
    if deaths is not None:
        kept = {each.first_row for each in before} & {each.first_row for each in after}
        for each in before:
            if each.first_row not in kept:
                own = was_live[each.first_row : each.first_row + each.record_count]
                died = deaths.get((each.uri, each.first_row), BitMap64())
                own &= np.isin(np.arange(len(own)), np.frombuffer(died.to_array(), np.uint64))
        for each in after:
            if each.first_row not in kept:
                is_live[each.first_row : each.first_row + (each.carried_rows or 0)] = False
    rows = np.flatnonzero(was_live != is_live)
    return _ChangedRows(file, rows, was_live[rows]) if len(rows) else None


def _live_rows(root: str, slices: Sequence[CompactedFile], shared: SharedObjects, count: int) -> Flags:
    """Flag the rows of a data file that slices of it have, and that are not dead."""
    return StoredFile.together(root, slices, shared=shared).live_flags() if slices else np.zeros(count, np.bool_)


def _by_key(gone: pa.Table, come: pa.Table, keys: Sequence[str]) -> RowChanges:
    (old_ids, new_ids), count = equal_ids([gone, come], keys)
    before, after = np.full(count, -1), np.full(count, -1)
    before[old_ids], after[new_ids] = np.arange(gone.num_rows), np.arange(come.num_rows)
    if np.count_nonzero(before >= 0) < gone.num_rows or np.count_nonzero(after >= 0) < come.num_rows:
        # A key with several rows, which only a damaged table has.
        return _by_count(gone, come)
    both = np.flatnonzero((before >= 0) & (after >= 0))
    pairs = gone.take(pa.array(before[both])), come.take(pa.array(after[both]))
    (old_values, new_values), _ = equal_ids([_exact(table) for table in pairs], gone.column_names)
    updated = both[old_values != new_values]
    deleted, inserted = np.flatnonzero(after < 0), np.flatnonzero(before < 0)
    chosen = [
        (_DELETE, deleted, before),
        (_BEFORE, updated, before),
        (_AFTER, updated, after),
        (_INSERT, inserted, after),
    ]
    places = [rows[ids] + (0 if rows is before else gone.num_rows) for _, ids, rows in chosen]
    types = np.repeat(range(4), [len(ids) for _, ids, _ in chosen])
    order = np.argsort(np.concatenate([ids for _, ids, _ in chosen]), kind="stable")
    rows = pa.concat_tables([gone, come]).take(pa.array(np.concatenate(places)[order]))
    return RowChanges(rows, types[order])


def _by_count(gone: pa.Table, come: pa.Table) -> RowChanges:
    """Return the rows of which there were more as deletes, and those of which there are more now as inserts."""
    ids, count = equal_ids([_exact(gone), _exact(come)], gone.column_names)
    before, after = (np.bincount(each, minlength=count) for each in ids)
    deleted = _surplus(ids[0], before - after)
    inserted = _surplus(ids[1], after - before)
    rows = pa.concat_tables([gone.take(pa.array(deleted)), come.take(pa.array(inserted))])
    return RowChanges(rows, np.repeat([_DELETE, _INSERT], [len(deleted), len(inserted)]))


def _surplus(ids: Integers, surplus: Integers) -> Integers:
    """Return, of each id, as many rows as there are too many."""
    order = np.argsort(ids, kind="stable")
    rising = ids[order]
    rank = np.arange(len(rising)) - np.searchsorted(rising, rising)
    return np.sort(order[rank < surplus[rising]])


def _exact(table: pa.Table) -> pa.Table:
    """Return values such that those are equal that are stored alike: -0.0 differs from 0.0, and NaN equals NaN."""
    return pa.Table.from_arrays([_exact_column(column) for column in table.columns], names=table.column_names)


def _exact_column(column: "pa.ChunkedArray[Any]") -> "pa.ChunkedArray[Any] | pa.Array[Any]":
    if pa.types.is_nested(column.type):
        return pa.array([repr(value) for value in column.to_pylist()], pa.string())
    if not pa.types.is_floating(column.type):
        return column
    bits = pc.fill_null(column, 0.0).to_numpy().astype(np.float64)
    # There are many ways to store NaN.
    bits = np.where(np.isnan(bits), np.nan, bits).view(np.int64)
    return pa.array(bits, mask=pc.is_null(column).to_numpy())
