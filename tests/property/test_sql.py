"""A query has the rows that DuckDB finds in the same rows without us: what we leave unread, no query wants."""

import datetime
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.table.statement import quoted
from siltstone.testing.strategies import histories
from tests.property.test_scans import Tree, change_columns, compact, domains_of

SIGNS = ["=", "!=", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"]


def literal(value: Any, kind: pa.DataType) -> str:
    """Write a value as SQL has it."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    if isinstance(value, float):
        return f"'{value}'::{'FLOAT' if pa.types.is_float32(kind) else 'DOUBLE'}"
    if isinstance(value, bool | int | Decimal):
        return f"({value})"
    text = (value if isinstance(value, str) else value.isoformat()).replace("'", "''")
    if isinstance(value, datetime.datetime):
        return f"{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'} '{text}'"
    if isinstance(value, datetime.date | datetime.time):
        return f"{'DATE' if isinstance(value, datetime.date) else 'TIME'} '{text}'"
    return f"'{text}'"


def sql_of(tree: Tree) -> str:
    """Write a filter in SQL."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return f" {kind} ".join(f"({sql_of(part)})" for part in rest)
    if kind == "not":
        return f"not ({sql_of(rest[0])})"
    column, *values = rest
    name = quoted(column)
    if kind == "null":
        return f"{name} is null"
    if kind == "in":
        return f"{name} in ({', '.join(values)})"
    if kind == "between":
        return f"{name} between {values[0]} and {values[1]}"
    return f"{name} {kind} {values[0]}"


def filters(domains: Mapping[str, Sequence[Any]], schema: pa.Schema) -> st.SearchStrategy[Tree]:
    """Make filters of a table's columns, as SQL may have them."""
    leaves: list[st.SearchStrategy[Tree]] = []
    for field in schema:
        leaves.append(st.just(("null", field.name)))
        if domains[field.name] and not pa.types.is_nested(field.type) and not pa.types.is_duration(field.type):
            texts = [literal(value, field.type) for value in domains[field.name]]
            if pa.types.is_floating(field.type):
                texts += ["'nan'::DOUBLE", "'-0.0'::DOUBLE", "0"]
            value = st.sampled_from(texts)
            name = st.just(field.name)
            comparisons = st.tuples(st.sampled_from(SIGNS), name, value)
            leaves += [comparisons, comparisons, st.tuples(st.just("in"), name, value, value, value)]
            leaves.append(st.tuples(st.just("between"), name, value, value))
        if pa.types.is_string(field.type):
            patterns = st.lists(st.sampled_from(["%", "_", "a", "b", "é"]), max_size=3).map(
                lambda parts: f"'{''.join(parts)}'"
            )
            leaves.append(st.tuples(st.just("like"), st.just(field.name), patterns))
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.tuples(st.just("not"), inner) | st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        max_leaves=4,
    )


def in_order(rows: pa.Table) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in rows.to_pylist())


@settings(max_examples=5)
@given(
    history=histories(max_writes=4, max_rows=10),
    rounds=st.lists(st.integers(0, 15), min_size=4, max_size=4),
    choice=st.integers(0, 59),
    data=st.data(),
)
def test_a_query_has_the_rows_that_duckdb_finds_in_the_rows_of_the_table(
    history: Any, rounds: list[int], choice: int, data: st.DataObject
) -> None:
    made, writes = history
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    table = made.create(lake)
    table.alter(properties={"row_group_rows": "2"})
    for number, (write, chosen) in enumerate(zip(writes, rounds, strict=False), start=1):
        write.write_to(table)
        if number < len(writes):
            compact(table, chosen)
    names = change_columns(table, choice)
    domains = domains_of(made, table.schema, names)
    for how in ({}, {"fresh": True}):
        rows = table.scan(**how).to_arrow()
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("given", rows)
            connection.execute("CREATE TABLE stored AS FROM given")
            for _ in range(4):
                tree = data.draw(filters(domains, table.schema), label="filter")
                columns = data.draw(
                    st.lists(st.sampled_from(table.schema.names), max_size=2, unique=True), label="columns"
                )
                wanted = ", ".join(map(quoted, columns)) or "count(*)"
                expected = connection.sql(f"select {wanted} from stored where {sql_of(tree)}").to_arrow_table()
                query = lake.sql(f"select {wanted} from {table.name} where {sql_of(tree)}", **how)
                assert in_order(query.to_arrow()) == in_order(expected)
    forget_logs(lake.root)
