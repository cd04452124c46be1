"""A published table as other people's readers see it."""

import json
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa

import siltstone
from siltstone.publish.comparison import difference

Actions = list[dict[str, Any]]


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


def actions_of(table: siltstone.Table, version: int, kind: str | None = None) -> Actions:
    """Return the actions of a version, or what those of one kind say."""
    text = (folder_of(table) / "_delta_log" / f"{version:020d}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines()]
    return actions if kind is None else [action[kind] for action in actions if kind in action]


def versions_of(table: siltstone.Table) -> list[int]:
    """Return the versions whose commits are in the log."""
    return sorted(int(path.stem) for path in (folder_of(table) / "_delta_log").glob("*.json"))
