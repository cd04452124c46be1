"""Columns that are renamed, dropped and added again, beside writes, deletes and rounds: rows follow a small model."""

import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, compact

NAMES = ("a", "b", "c")


@dataclass
class Model:
    """A table's rows by key, with values under numbers that stay when a column is renamed."""

    merge_engine: str
    columns: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 1})
    rows: dict[int, dict[int, int | None]] = field(default_factory=dict)
    next_number: int = 2

    def write(self, keys: list[int], columns: list[str], value: int | None) -> None:
        for name in columns:
            if name not in self.columns:
                self.columns[name] = self.next_number
                self.next_number += 1
        for key in keys:
            before = self.rows.get(key, {}) if self.merge_engine == "partial_update" else {}
            self.rows[key] = {**before, **{self.columns[name]: value for name in columns}}

    def delete(self, column: str, value: int | None) -> None:
        number = self.columns[column]
        self.rows = {key: row for key, row in self.rows.items() if row.get(number) != value}

    def shown(self) -> list[dict[str, Any]]:
        return [
            {"id": key, **{name: row.get(number) for name, number in self.columns.items()}}
            for key, row in self.rows.items()
        ]


Step = tuple[str, int, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "delete", "rename", "swap", "drop", "drop", "minor", "major"]),
        st.integers(0, 7),
        st.integers(0, 7),
        st.integers(0, 2),
    ),
    min_size=3,
    max_size=14,
)


def pick(options: list[str], number: int) -> str:
    return options[number % len(options)]


def take(table: siltstone.Table, model: Model, step: Step) -> None:
    """Do one step on both; steps that the table would refuse are left out."""
    action, one, other, value = step
    present = sorted(model.columns)
    content = None if value == 2 else value
    if action == "write":
        columns = [name for place, name in enumerate(NAMES) if one >> place & 1]
        keys = [key for key in range(3) if (other + 1) >> key & 1]
        data = {"id": pa.array(keys, pa.int64())}
        table.write(pa.table({**data, **{name: pa.array([content] * len(keys), pa.int64()) for name in columns}}))
        model.write(keys, columns, content)
    elif action == "delete" and present:
        column = pick(present, one)
        rows = pa.table({column: pa.array([content], pa.int64())})
        table.write(rows, type="delete", delete_columns=[column])
        model.delete(column, content)
    elif action == "rename" and present and set(NAMES) - set(present):
        old, new = pick(present, one), pick(sorted({*NAMES} - {*present}), other)
        table.alter(rename_columns={old: new})
        model.columns[new] = model.columns.pop(old)
    elif action == "swap" and len(present) > 1:
        table.alter(rename_columns={present[0]: present[1], present[1]: present[0]})
        first, second = model.columns[present[0]], model.columns[present[1]]
        model.columns |= {present[0]: second, present[1]: first}
    elif action == "drop" and present:
        column = pick(present, one)
        table.alter(drop_columns=[column])
        del model.columns[column]
    elif action in ("minor", "major") and table.deltas():
        compact(table, MAJOR if action == "major" else MINOR)
        same_rows(table.to_arrow().to_pylist(), model.shown())


@given(st.sampled_from(["deduplicate", "partial_update"]), STEPS)
@settings(max_examples=20, deadline=None)
def test_rows_follow_their_columns_through_renames_and_drops_however_rounds_are_cut(
    merge_engine: str, steps: list[Step]
) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    try:
        table = siltstone.open(root).create_table(
            "shop.orders",
            schema={"id": "int64", "a": "int64", "b": "int64"},
            primary_keys=["id"],
            merge_engine=merge_engine,  # type: ignore[arg-type]
        )
        model = Model(merge_engine)
        for step in steps:
            take(table, model, step)
            same_rows(table.to_arrow(include_uncompacted=True).to_pylist(), model.shown())
        for name in table.schema.names:
            found = table.to_arrow([name], include_uncompacted=True).column(name).to_pylist()
            assert sorted(map(str, found)) == sorted(str(row[name]) for row in model.shown())
        if table.deltas():
            compact(table, MAJOR)
            same_rows(table.to_arrow().to_pylist(), model.shown())
            for key in range(3):
                assert table.lookup({"id": key}) == [row for row in model.shown() if row["id"] == key]
        assert table.fsck(deep=True) == []
    finally:
        forget_logs(root)
