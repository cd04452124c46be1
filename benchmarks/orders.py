"""Orders of a shop, and changes to them: what the benchmarks of compaction work on.

Eight columns, about 27 bytes a row when compressed; changes are 90 % updates, 5 % deletes and 5 % new keys, in 8 deltas.
"""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import siltstone

DELTAS = 8
SCHEMA = {
    "order_id": "int64", "customer": "int64", "status": "string", "amount": "double", "quantity": "int32",
    "city": "string", "updated": "timestamp", "note": "string",
}  # fmt: skip
STATUS = pa.array(["new", "paid", "sent", "done"])
CITY = pa.array([f"city {number}" for number in range(500)])
FILES = 16


@functools.cache
def notes() -> pa.Array:
    """Return a million texts that look random."""
    return pa.array([f"{number:x}" for number in np.random.default_rng(7).integers(0, 1 << 40, 1_000_000)])


def orders(ids: Any, rng: np.random.Generator) -> pa.Table:
    size = len(ids)
    return pa.table(
        {
            "order_id": ids,
            "customer": rng.integers(0, 10_000_000, size),
            "status": STATUS.take(pa.array(rng.integers(0, len(STATUS), size))),
            "amount": np.round(rng.random(size) * 1000, 2),
            "quantity": rng.integers(1, 9, size).astype(np.int32),
            "city": CITY.take(pa.array(rng.integers(0, len(CITY), size))),
            "updated": pa.array(rng.integers(0, 10**9, size) * 1000, pa.timestamp("us")),
            "note": notes().take(pa.array(rng.integers(0, len(notes()), size))),
        }
    )


def save_base(folder: Path, rows: int) -> Path:
    """Write a table of `rows` orders as Parquet files, and return their folder."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    step = rows // FILES + 1
    for number, start in enumerate(range(0, rows, step)):
        part = orders(np.arange(start, min(start + step, rows)), rng)
        pq.write_table(part, folder / f"{number:02}.parquet", compression="zstd", compression_level=1)
    return folder


def create(lake: siltstone.Lake, name: str, base: Path) -> siltstone.Table:
    """Create a table whose first delta is all of the base."""
    table = lake.create_table(name, schema=SCHEMA, primary_keys=["order_id"])
    table.write(batch for path in sorted(base.glob("*.parquet")) for batch in pq.read_table(path).to_batches())
    return table


class Changes:
    """Changes to a table of `rows` rows: per delta, upserts of old and new keys, and deletes."""

    def __init__(self, rows: int, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = count // DELTAS
        self.deltas = []
        for number in range(DELTAS):
            new = rows + seed * 100_000_000 + number * size + np.arange(size // 20)
            old = rng.integers(0, rows, size - 2 * (size // 20))
            self.deltas.append((orders(np.concatenate([old, new]), rng), rng.integers(0, rows, size // 20)))

    def write_to(self, table: siltstone.Table) -> None:
        for upserts, deletes in self.deltas:
            table.write(upserts)
            table.write(pa.table({"order_id": deletes}), type="delete")

    def save(self, folder: Path) -> Path:
        """Write all changes as one Parquet folder for the others: a sequence number and a flag tell what they are."""
        folder.mkdir(parents=True)
        for number, (upserts, deletes) in enumerate(self.deltas):
            empty = pa.Table.from_arrays(
                [
                    pa.array(deletes) if each.name == "order_id" else pa.nulls(len(deletes), each.type)
                    for each in upserts.schema
                ],
                schema=upserts.schema,
            )
            both = pa.concat_tables([upserts, empty])
            gone = np.concatenate([np.zeros(len(upserts), bool), np.ones(len(deletes), bool)])
            both = both.append_column("gone", pa.array(gone))
            both = both.append_column("seq", pa.array(np.arange(len(both)) + number * 10_000_000))
            pq.write_table(both, folder / f"{number}.parquet", compression="zstd")
        return folder
