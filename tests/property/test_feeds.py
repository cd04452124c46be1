"""Whatever is written and compacted: what a query of a feed has taken is the table, wherever it died; nothing is missed or doubled."""

import json
import uuid
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.testing.oracle import Oracle, same_rows
from siltstone.testing.strategies import histories
from tests.property.test_changes import STEPS, act, applied, states_of
from tests.property.test_changes import plain as plain_row
from tests.unit.feed_query import Query, Rows

_OPERATIONS = {"insert": "u", "upsert": "u", "delete": "d", "update_before": "-U"}


def replay(oracle: Oracle, rows: Rows) -> Rows:
    """Apply the rows of deltas to an oracle, one after another; return what the table is by then."""
    for row in rows:
        values = {name: row[name] for name in row["_columns"]}
        if row["_op"] == "overwrite":
            oracle.write(pa.table({}), overwrite=[list(values.values())])
        elif row["_op"] == "delete_where":
            oracle.apply([values], type="delete", delete_columns=row["_columns"])
        else:
            operation = _OPERATIONS[row["_op"]]
            oracle.apply([{**values, "!": operation}], columns=[*row["_columns"], "!"], op_column="!")
    return oracle.rows()


def plain(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@settings(max_examples=15)
@given(
    history=histories(min_writes=3, max_writes=6, max_rows=8),
    steps=STEPS,
    dies_at=st.lists(st.integers(-1, 2), min_size=6, max_size=6),
    limit=st.sampled_from([{}, {"max_positions": "1"}, {"max_rows": "5"}, {"max_bytes": "3000"}]),
    snapshot_at=st.integers(0, 9),
)
def test_rows_of_deltas_mean_the_table_wherever_a_query_dies(
    history: Any, steps: Any, dies_at: list[int], limit: dict[str, str], snapshot_at: int
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    whole = Query(table, feed="deltas", **limit)
    late: Query | None = None
    for number, (write, (way, how, choice), dies) in enumerate(zip(writes, steps, dies_at, strict=False)):
        if number == snapshot_at and not made.sort_keys:
            # Deletes that keep older rows out are not in a snapshot.
            late = Query(table, feed="deltas", snapshot="true", **limit)
        write.write_to(table)
        if way not in ("rename", "drop"):
            act(table, way, how, choice)
        for query in filter(None, (whole, late)):
            query.run(dies)
    for query in filter(None, (whole, late)):
        query.run()
        positions = [sorted({row["_position"] for row in batch}) for batch in query.taken]
        told = [position for batch in positions for position in batch]
        assert told == sorted(set(told)), "a position is in one batch, with all of its rows"
        same_rows(plain(replay(made.oracle(), query.rows)), plain(table.scan(fresh=True).to_arrow().to_pylist()))


@settings(max_examples=10)
@given(
    history=histories(min_writes=3, max_writes=6, max_rows=8),
    steps=STEPS,
    dies_at=st.lists(st.integers(-1, 2), min_size=6, max_size=6),
    limit=st.sampled_from([{}, {"max_positions": "1"}, {"max_rows": "5"}, {"max_bytes": "3000"}]),
    begins_at=st.integers(0, 6),
    net=st.sampled_from(["true", "false"]),
    snapshot=st.sampled_from(["true", "false"]),
)
def test_changes_of_a_query_add_up_to_the_table_wherever_it_dies(
    history: Any, steps: Any, dies_at: list[int], limit: dict[str, str], begins_at: int, net: str, snapshot: str
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    query = Query(table, feed="changes", net=net, snapshot=snapshot, **limit)
    for number, (write, (way, how, choice), dies) in enumerate(zip(writes, steps, dies_at, strict=False)):
        write.write_to(table)
        act(table, "compact" if way in ("rename", "drop") else way, how, choice)
        if number >= begins_at:
            query.run(dies)
    query.run()
    if snapshot == "true" and query.taken:
        assert {row["_change_type"] for row in query.taken[0]} <= {"insert"}
    copy = applied(Counter(), query.rows)
    kept = json.loads(query.offsets[-1])
    expected = Counter(plain_row(row) for key, rounds in states_of(table).items() for row in rounds[kept.get(key, 0)])
    assert Counter({row: count for row, count in copy.items() if count}) == expected
