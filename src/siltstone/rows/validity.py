"""Tables that keep history: every event of a key is a row, which says from when to when it was valid.

An event is a row of a delta, or a row-level delete, with its place in time, the sort key; of two with the same place, the
later one in the stream counts. Neighbours that are equal in all tracked columns are one version: its newest event stands for
it, valid from the place of the first one on, and the others are valid at no time. Nothing is left out or made one, so that
whatever comes later, wherever it belongs, finds all there was: the rows depend on the events, not on the order they came in.
A delete is valid at no time either; it ends the version before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.model.entities import IS_DELETED, VALID_FROM, VALID_TO
from siltstone.rows.columns import Flags, Integers, align, sort_ranks, value_ids
from siltstone.rows.job import RoundJob

_NONE = -1


class Validity(NamedTuple):
    """The rows that are there, by key and then by time, and those whose sort keys say when each begins and ends."""

    rows: Integers
    begins: Integers
    ends: Integers


@dataclass(frozen=True)
class VersionsChange:
    """What deltas do to the versions of their keys. Rows are numbered: first the compacted ones, then those of the deltas.

    `new` are the rows to be written, of which `rows` has the columns; `dead` flags compacted rows that go, which include those
    that are written again. `accounts` flags all rows by where an `Accounting` counts them.
    """

    new: Integers
    rows: pa.Table
    dead: Flags
    accounts: dict[str, Flags]


def change_versions(
    job: RoundJob, base: pa.Table, deltas: pa.Table, keys: Integers, delta_removals: Flags
) -> VersionsChange:
    """Put the events of deltas between the compacted versions of their keys, all of which `base` has."""
    everything = pa.concat_tables([base, align(deltas, base.schema)]).combine_chunks()
    stored = np.asarray(pc.fill_null(base.column(IS_DELETED), False), np.bool_)
    removals = np.concatenate([stored, delta_removals])
    order = job.sort_keys[0]
    nulls = np.asarray(pc.is_null(everything.column(order)))
    times = [everything.column(order), base.column(VALID_FROM), base.column(VALID_TO)]
    ranks, begins, ends = sort_ranks([pa.table({order: column}) for column in times], [order])
    begins[np.asarray(pc.is_null(base.column(VALID_FROM)))] = _NONE
    ends[np.asarray(pc.is_null(base.column(VALID_TO)))] = _NONE
    winners = choose_events(keys, ranks, removals & nulls)
    tracked = [value_ids(everything.column(name)) for name in job.tracked if name in everything.column_names]
    found = find_validity(winners, keys, ranks, removals, nulls, tracked)
    known = np.append(np.where(nulls, _NONE, ranks), _NONE)
    is_same = np.zeros(len(found.rows), np.bool_)
    is_base = found.rows < base.num_rows
    own = found.rows[is_base]
    is_same[is_base] = (known[found.begins[is_base]] == begins[own]) & (known[found.ends[is_base]] == ends[own])
    dead = np.ones(base.num_rows, np.bool_)
    dead[found.rows[is_same]] = False
    changed = Validity(*(rows[~is_same] for rows in found))
    accounts = _accounts(winners, base.num_rows, removals)
    return VersionsChange(changed.rows, _versions(job, everything, changed, removals), dead, accounts)


def read_history(rows: pa.Table, removals: Flags, order: str, tracked: Sequence[str]) -> tuple[Integers, Validity]:
    """Return of the events of one key, in stream order, which one counts at each one's place, and when those are valid."""
    keys = np.zeros(rows.num_rows, np.int64)
    (ranks,) = sort_ranks([rows], [order])
    nulls = np.asarray(pc.is_null(rows.column(order)), np.bool_)
    winners = choose_events(keys, ranks, removals & nulls)
    values = [value_ids(rows.column(name)) for name in tracked]
    return winners, find_validity(winners, keys, ranks, removals, nulls, values)


def choose_events(keys: Integers, ranks: Integers, voids: Flags) -> Integers:
    """Return for each row the one that counts at its place in the history of its key: the last; NONE where that is void."""
    rows = np.arange(len(keys))
    order = np.lexsort((rows, ranks, keys))
    is_last = np.ones(len(rows), np.bool_)
    is_last[:-1] = (np.diff(keys[order]) != 0) | (np.diff(ranks[order]) != 0)
    lasts = order[is_last]
    groups: Integers = np.cumsum(is_last) - is_last
    winners = np.empty(len(rows), np.int64)
    winners[order] = np.where(voids[lasts], _NONE, lasts)[groups]
    return winners


def find_validity(
    winners: Integers,
    keys: Integers,
    ranks: Integers,
    removals: Flags,
    nulls: Flags,
    tracked: Sequence[Integers],
) -> Validity:
    """Return when each event that counts is valid. `nulls` are those that have no place in time: they are before all others.

    A delete among those ends nothing; there is none here.
    """
    rows = np.flatnonzero(winners == np.arange(len(winners)))
    rows = rows[np.lexsort((ranks[rows], keys[rows]))]
    count = len(rows)
    has_next = np.zeros(count, np.bool_)
    has_next[:-1] = np.diff(keys[rows]) == 0
    is_repeated = has_next & ~removals[rows]
    is_repeated[:-1] &= ~removals[rows[1:]]
    for values in tracked:
        is_repeated[:-1] &= np.diff(values[rows]) == 0
    places = np.arange(count)
    follows = np.concatenate([[False], is_repeated[:-1]]) if count else is_repeated
    firsts = np.maximum.accumulate(np.where(follows, 0, places))
    following = np.where(has_next, np.append(rows[1:], _NONE), _NONE) if count else rows
    begins, ends = rows[firsts], following.copy()
    # No time at all: a time at which it begins and ends, where null would be all of time.
    empty = is_repeated | removals[rows]
    begins[empty] = ends[empty] = np.where(nulls[rows], following, rows)[empty]
    return Validity(rows, begins, ends)


def _versions(job: RoundJob, everything: pa.Table, found: Validity, removals: Flags) -> pa.Table:
    rows = everything.take(pa.array(found.rows))
    times = everything.column(job.sort_keys[0])
    columns = {
        VALID_FROM: times.take(pa.array(found.begins)),
        VALID_TO: times.take(pa.array(found.ends, mask=found.ends == _NONE)),
        IS_DELETED: pa.chunked_array([pa.array(removals[found.rows])]),
    }
    return pa.Table.from_arrays(
        [columns.get(name, rows.column(name)) for name in rows.column_names], names=rows.column_names
    )


def _accounts(winners: Integers, base_count: int, removals: Flags) -> dict[str, Flags]:
    """Return where each row counts; one that is only written again, with another validity, is neither new nor gone."""
    rows = np.arange(len(winners))
    is_base, is_gone, is_winner = rows < base_count, winners == _NONE, winners == rows
    is_upsert = ~is_base & ~removals
    return {
        "delta_rows": is_upsert,
        "removal_rows": ~is_base & removals,
        "added_rows": ~is_base & removals & is_winner,
        "superseded_rows": is_base & ~is_winner & ~is_gone,
        "deleted_rows": (is_base | is_upsert) & is_gone,
        "duplicate_rows": is_upsert & ~is_winner & ~is_gone,
    }
