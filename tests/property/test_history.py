"""Versions of rows equal those of a window query in SQL, whatever order their events come in."""

import random
import uuid
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.testing.oracle import same_rows
from tests.property.test_rows import SCHEDULES, compact

VERSIONS = """
with told as (
    select *,
        lag(gone, 1, true) over by_time or gone or lag(price) over by_time is distinct from price as begins,
        lead("at") over by_time as next_at
    from events window by_time as (partition by sku order by "at")
),
numbered as (
    select *, count(*) filter (where begins) over (partition by sku order by "at") as version from told
)
select sku, any_value(price) as price, arg_max(note, "at") as note, min("at") as valid_from,
    case when bool_or(next_at is null) then null else max(next_at) end as valid_to
from numbered where not gone group by sku, version
"""
EVENTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 12), st.sampled_from([None, 1, 2]), st.booleans() | st.just(False)),
    min_size=1,
    max_size=24,
    unique_by=lambda event: event[:2],
)


def in_sql(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    connection = duckdb.connect(config={"threads": 1})
    schema = pa.schema([("sku", "int64"), ("at", "int64"), ("price", "int64"), ("note", "string"), ("gone", "bool")])
    connection.register("events", pa.Table.from_pylist(events, schema=schema))
    columns = ("sku", "price", "note", "valid_from", "valid_to")
    return [dict(zip(columns, row, strict=True)) for row in connection.sql(VERSIONS).fetchall()]


def non_empty(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the versions that were valid at some time, as the query has them."""
    return [
        {
            "sku": row["sku"],
            "price": row["price"],
            "note": row["note"],
            "valid_from": row["_valid_from"],
            "valid_to": row["_valid_to"],
        }
        for row in rows
        if row["_valid_to"] is None or row["_valid_from"] < row["_valid_to"]
    ]


@settings(max_examples=10)
@given(EVENTS, SCHEDULES, st.integers(0, 1 << 32), st.integers(1, 4))
def test_versions_equal_those_of_sql_for_any_order_duplication_and_cut(
    drawn: list[tuple[int, int, int | None, bool]], schedule: list[Any], seed: int, rounds: int
) -> None:
    events: list[dict[str, Any]] = [
        {"sku": sku, "at": at, "price": None if gone else price, "note": f"{sku}/{at}", "gone": gone}
        for sku, at, price, gone in drawn
    ]
    order = random.Random(seed)
    shuffled = [*events, *order.sample(events, len(events) // 3)]
    order.shuffle(shuffled)
    table = siltstone.open(f"memory://{uuid.uuid4().hex}").create_table(
        "shop.prices",
        schema={"sku": "int64", "at": "int64", "price": "int64", "note": "string"},
        primary_keys="sku",
        sort_keys="at",
        merge_engine="history",
        properties={"history.track": "price"},
    )
    schema = table.version.written_schema.append(pa.field("op", pa.string()))
    seen: dict[tuple[int, int], dict[str, Any]] = {}
    for number in range(rounds):
        part = shuffled[number::rounds]
        seen |= {(event["sku"], event["at"]): event for event in part}
        named = [{**event, "op": "d" if event["gone"] else "u"} for event in part]
        table.write(pa.Table.from_pylist(named, schema=schema), op_column="op")
        same_rows(non_empty(table.to_arrow(include_uncompacted=True).to_pylist()), in_sql([*seen.values()]))
        if order.random() < 0.7 or number == rounds - 1:
            compact(table, schedule[number])
    rows = table.to_arrow().to_pylist()
    assert len(rows) == len(events)
    same_rows(non_empty(rows), in_sql(events))
    for time in (-1, 4, 12):
        valid = [row for row in non_empty(rows) if row["valid_from"] <= time and (row["valid_to"] or 99) > time]
        assert table.scan(valid_at=time).count() == len(valid)
