"""A read of any columns, at any time, is one state of the table, whatever is written meanwhile."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.table.completion import current_completion
from siltstone.testing import faults
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import compact, destination_of

WRITES = st.fixed_dictionaries(
    {"ids": st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)},
    optional={name: st.sampled_from(["small", "large"]) for name in ("a", "b", "c")},
)
Write = Mapping[str, Any]


def make(writes: Sequence[Write], compacted: int) -> siltstone.Table:
    """Make a table of which some writes are compacted."""
    table = siltstone.open(f"memory://{uuid.uuid4().hex}").create_table(
        "shop.orders", schema={"id": "int64"}, primary_keys=["id"]
    )
    for number, changes in enumerate(writes):
        write(table, changes)
        if number < compacted:
            compact(table)
    return table


def write(table: siltstone.Table, changes: Write) -> None:
    """Write rows, which may bring new columns, or larger numbers than a column had so far."""
    ids = changes["ids"]
    types = {"small": pa.int32(), "large": pa.int64()}
    columns = {name: pa.array(ids, types[size]) for name, size in changes.items() if name != "ids"}
    table.write(pa.table({"id": pa.array(ids, pa.int64()), **columns}))


def state(table: siltstone.Table, columns: Sequence[str] | None, *, is_fresh: bool) -> tuple[list[str], Any]:
    """Return the columns and the rows that a read has by now."""
    names = table.schema.names if columns is None else list(columns)
    completion = current_completion(destination_of(table))
    upto = len(table.deltas()) if is_fresh else completion.high_watermark if completion else 0
    rows = oracle_of(table, upto).rows() if upto else []
    return names, [{name: row.get(name) for name in names} for row in rows]


def shows(found: pa.Table, names: Sequence[str], rows: Any) -> bool:
    """Return whether a read has these columns and rows."""
    try:
        same_rows(found, rows)
    except AssertionError:
        return False
    return bool(found.column_names == list(names) and found.num_rows == len(rows))


@settings(max_examples=60)
@given(
    writes=st.lists(WRITES, min_size=1, max_size=3),
    compacted=st.integers(0, 3),
    columns=st.none() | st.lists(st.sampled_from(["id", "a", "b", "c"]), unique=True),
    is_fresh=st.booleans(),
    at_call=st.integers(1, 20),
    meanwhile=WRITES,
)
def test_a_read_of_any_columns_is_one_state_whatever_is_written_meanwhile(
    writes: list[Write], compacted: int, columns: list[str] | None, is_fresh: bool, at_call: int, meanwhile: Write
) -> None:
    table = make(writes, compacted)
    chosen = None if columns is None else [name for name in columns if name in table.schema.names]
    states = [state(table, chosen, is_fresh=is_fresh)]
    with faults(table.lake.root, at_call=at_call, kind="meet", act=lambda: write(table, meanwhile)):
        found = table.to_arrow(chosen, include_uncompacted=is_fresh)
    states.append(state(table, chosen, is_fresh=is_fresh))
    assert any(shows(found, names, rows) for names, rows in states), (found.to_pylist(), states)
    forget_logs(table.lake.root)
