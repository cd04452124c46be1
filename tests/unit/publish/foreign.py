"""A published table as other people's readers see it."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa

import siltstone
from siltstone.publish.comparison import difference

Actions = list[dict[str, Any]]
# Whether a change takes a row away or brings one, as ours and Delta Lake's are called.
SIGNS = {
    "delete": -1, "update_before": -1, "update_preimage": -1, "insert": 1, "update_after": 1, "update_postimage": 1,
}  # fmt: skip


def folder_of(table: siltstone.Table) -> Path:
    """Return the folder of a table version in a local lake."""
    (folder,) = Path(table.lake.root).glob(f"tables/{table.name.replace('.', '/')}/*")
    return folder


def delta_rows(table: siltstone.Table, version: int | None = None) -> pa.Table:
    """Return the rows that delta-rs reads."""
    delta = deltalake.DeltaTable(str(folder_of(table)), version=version)
    found = pa.table(deltalake.QueryBuilder().register("rows", delta).execute("SELECT * FROM rows"))
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return found.cast(pa.schema([field.with_type(views.get(field.type, field.type)) for field in found.schema]))


def polars_rows(table: siltstone.Table, version: int | None = None) -> pa.Table:
    """Return the rows that Polars reads."""
    return pl.scan_delta(str(folder_of(table)), version=version).collect().to_arrow()


def same_as(table: siltstone.Table, expected: pa.Table, version: int | None = None, *, polars: bool = True) -> None:
    """Compare what both read with rows, by key and value."""
    keys = table.version.primary_keys
    assert difference(expected, delta_rows(table, version), [key for key in keys if key in expected.column_names]) == ""
    if polars:
        assert difference(expected, polars_rows(table, version), []) == ""


def delta_changes(table: siltstone.Table, version: int) -> pa.Table:
    """Return the changes of a version that delta-rs reads."""
    delta = deltalake.DeltaTable(str(folder_of(table)), version=version)
    return pa.table(delta.load_cdf(starting_version=version, ending_version=version))


def images(changes: pa.Table, names: Sequence[str], *, kinds: bool) -> "Counter[tuple[str, ...]]":
    """Count the rows that changes take away and bring, with their kinds; or without these, and what is in balance left out."""
    types = changes.column("_change_type").to_pylist()
    counts: Counter[tuple[str, ...]] = Counter()
    for kind, row in zip(types, changes.select(names).to_pylist(), strict=True):
        values = tuple(map(repr, row.values()))
        if kinds:
            counts[str(SIGNS[kind]), str(kind.startswith("update")), *values] += 1
        else:
            counts[values] += SIGNS[kind]
    return Counter({row: count for row, count in counts.items() if count})


def same_changes(table: siltstone.Table, ours: pa.Table, theirs: pa.Table, version: int) -> None:
    """Compare the changes of a version: kind by kind where it has files of them, else the rows that went and came."""
    kinds = bool(actions_of(table, version, "cdc"))
    names = [name for name in ours.column_names if not name.startswith("_")]
    assert images(theirs, names, kinds=kinds) == images(ours, names, kinds=kinds), f"version {version}"


def actions_of(table: siltstone.Table, version: int, kind: str | None = None) -> Actions:
    """Return the actions of a version, or what those of one kind say."""
    text = (folder_of(table) / "_delta_log" / f"{version:020d}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    return actions if kind is None else [action[kind] for action in actions if kind in action]


def versions_of(table: siltstone.Table) -> list[int]:
    """Return the versions whose commits are in the log."""
    return sorted(int(path.stem) for path in (folder_of(table) / "_delta_log").glob("*.json"))
