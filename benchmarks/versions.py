"""Rows whose every value follows from their key and version, and a ledger of the version that each key has.

The ledger is an array, and shares nothing with what compacts: a table is right if it holds the rows that it says, and no others.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.orders import CITY, STATUS, notes

SCHEMA = {
    "order_id": "int64", "version": "int32", "customer": "int64", "status": "string", "amount": "double",
    "quantity": "int32", "city": "string", "note": "string",
}  # fmt: skip
_NONE = -1

Integers = Any


def _mixed(keys: Integers, versions: Integers) -> Integers:
    """Return numbers that look random, of 64 bits each: SplitMix64 of key and version."""
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + versions.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def rows_of(keys: Integers, versions: Integers) -> pa.Table:
    """Return the rows of some keys in some versions."""
    mixed = _mixed(keys, versions)

    def part(shift: int, below: int) -> Integers:
        return ((mixed >> np.uint64(shift)) % np.uint64(below)).astype(np.int64)

    return pa.table(
        {
            "order_id": keys.astype(np.int64),
            "version": versions.astype(np.int32),
            "customer": part(0, 10_000_000),
            "status": STATUS.take(pa.array(part(3, 4))),
            "amount": part(5, 100_000) / 100,
            "quantity": part(9, 8).astype(np.int32) + np.int32(1),
            "city": CITY.take(pa.array(part(20, 500))),
            "note": notes().take(pa.array(part(24, 1_000_000))),
        }
    )


class Ledger:
    """The version of each key that was ever inserted, in the order of the changes."""

    def __init__(self) -> None:
        self._versions = np.full(1 << 20, _NONE, np.int16)
        self.keys = 0

    @property
    def live_rows(self) -> int:
        return int(np.count_nonzero(self._versions[: self.keys] != _NONE))

    def insert(self, count: int, version: int) -> Integers:
        """Return so many new keys."""
        keys = np.arange(self.keys, self.keys + count)
        self.keys += count
        if self.keys > len(self._versions):
            grown = np.full(max(self.keys, 2 * len(self._versions)), _NONE, np.int16)
            grown[: len(self._versions)] = self._versions
            self._versions = grown
        self.update(keys, version)
        return keys

    def update(self, keys: Integers, version: int) -> None:
        self._versions[keys] = version

    def delete(self, keys: Integers) -> None:
        self._versions[keys] = _NONE

    def check(self, batches: Iterable[pa.RecordBatch]) -> list[str]:
        """Compare all rows of a table with what they should be, every value of them, and return what is wrong."""
        expected = self._versions[: self.keys]
        seen = np.zeros(self.keys, bool)
        rows, wrong, unknown = 0, 0, 0
        for batch in batches:
            keys = batch.column("order_id").to_numpy()
            rows += len(keys)
            is_known = (keys >= 0) & (keys < self.keys)
            unknown += int(np.count_nonzero(~is_known))
            keys = keys[is_known]
            seen[keys] = True
            wrong += _differing(batch.filter(pa.array(is_known)), rows_of(keys, expected[keys]))
        repeated = rows - unknown - int(np.count_nonzero(seen))
        lost = int(np.count_nonzero((expected != _NONE) & ~seen))
        kinds = {"lost": lost, "of unknown keys": unknown, "more than once": repeated, "with wrong values": wrong}
        found = [f"{count:,} rows {kind}" for kind, count in kinds.items() if count]
        if rows != self.live_rows:
            found.append(f"{rows:,} rows instead of {self.live_rows:,}")
        return found


def _differing(rows: pa.RecordBatch, expected: pa.Table) -> int:
    """Return how many rows differ in any column."""
    table = pa.Table.from_batches([rows]).select(expected.column_names).cast(expected.schema)
    if table.equals(expected):
        return 0
    is_same = pa.array(np.ones(len(expected), bool))
    for name in expected.column_names:
        same = pc.fill_null(pc.equal(table.column(name), expected.column(name)), False)
        is_same = pc.and_(is_same, same.combine_chunks())
    return len(expected) - int(pc.sum(is_same).as_py() or 0)
