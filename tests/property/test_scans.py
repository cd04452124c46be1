"""A scan has exactly the rows for which its filter is true, in plain Python, of all rows that the table has at that moment."""

import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.model.entities import HISTORY_COLUMNS
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import same_rows
from siltstone.testing.strategies import _ADDED, TableSettings, histories

MINOR = Settings(max_dead_fraction=1.0, max_delta_fraction=100.0, max_files=100, bucket_rows=3, page_buckets=2)
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda own, value: bool(own == value),
    "!=": lambda own, value: bool(own != value),
    "<": lambda own, value: bool(own < value),
    "<=": lambda own, value: bool(own <= value),
    ">": lambda own, value: bool(own > value),
    ">=": lambda own, value: bool(own >= value),
}
NEW_NAME = 're\'named "one"'
Tree = tuple[Any, ...]
Row = Mapping[str, Any]


def holds(tree: Tree, row: Row) -> bool | None:
    """Evaluate a filter for one row: true, false or null."""
    kind, *rest = tree
    if kind in ("and", "or"):
        parts = [holds(part, row) for part in rest]
        decisive = kind == "or"
        return decisive if decisive in parts else None if None in parts else not decisive
    if kind == "not":
        inner = holds(rest[0], row)
        return None if inner is None else not inner
    column, *values = rest
    own = row[column]
    if kind == "null":
        return own is None
    if own is None:
        return None
    if kind == "nan":
        return math.isnan(own)
    if kind == "like":
        return re.fullmatch(like_pattern(values[0]), own, re.DOTALL) is not None
    if kind == "in":
        return any(own == value for value in values)
    if kind == "between":
        return bool(values[0] <= own <= values[1])
    return SIGNS[kind](own, values[0])


def like_pattern(text: str) -> str:
    """Return what a pattern of LIKE means as a regular expression."""
    pieces = re.findall(r"\\.|.", text, re.DOTALL)
    return "".join({"%": ".*", "_": "."}.get(piece, re.escape(piece[-1])) for piece in pieces)


def text_of(tree: Tree) -> str:
    """Write a filter in words."""
    kind, *rest = tree
    if kind in ("and", "or"):
        return f" {kind} ".join(f"({text_of(part)})" for part in rest)
    if kind == "not":
        return f"not ({text_of(rest[0])})"
    column, *values = rest
    name = '"' + column.replace('"', '""') + '"'
    literals = [literal(value) for value in values]
    if kind in ("null", "nan"):
        return f"{name} is {kind}"
    if kind == "in":
        return f"{name} in ({', '.join(literals)})"
    if kind == "between":
        return f"{name} BETWEEN {literals[0]} AND {literals[1]}"
    return f"{name} {kind} {literals[0]}"


def literal(value: Any) -> str:
    """Write a value as a filter has it."""
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, bool | int | float | Decimal):
        return str(value)
    return "'" + (value if isinstance(value, str) else value.isoformat()).replace("'", "''") + "'"


def expression_of(tree: Tree, schema: pa.Schema) -> Any:
    """Write a filter as an Arrow expression, in which `isin` is true or false, never null."""
    kind, *rest = tree
    if kind in ("and", "or"):
        parts = [expression_of(part, schema) for part in rest]
        return parts[0] & parts[1] if kind == "and" else parts[0] | parts[1]
    if kind == "not":
        return ~expression_of(rest[0], schema)
    column, *values = rest
    own = pc.field(column)
    scalars = [pa.scalar(value, schema.field(column).type) for value in values]
    if kind == "null":
        return own.is_null()
    if kind == "nan":
        return pc.is_nan(own)
    if kind == "like":
        return pc.match_like(own, values[0])
    if kind == "in":
        equal = [own == scalar for scalar in scalars]
        return equal[0] if len(equal) == 1 else equal[0] | equal[1]
    if kind == "between":
        return (own >= scalars[0]) & (own <= scalars[1])
    operators: dict[str, Callable[[Any, Any], Any]] = {
        "=": lambda one, other: one == other,
        "!=": lambda one, other: one != other,
        "<": lambda one, other: other > one,
        "<=": lambda one, other: one <= other,
        ">": lambda one, other: other < one,
        ">=": lambda one, other: one >= other,
    }
    return operators[kind](own, scalars[0])


def filters(domains: Mapping[str, Sequence[Any]], schema: pa.Schema, keys: Sequence[str]) -> st.SearchStrategy[Tree]:
    """Make filters of a table's columns; some name whole keys."""
    leaves = [_comparisons(name, domains[name], schema.field(name).type) for name in schema.names]
    # Statistics say nothing of NaN, so that floats are worth more attention.
    leaves += [leaf for leaf, field in zip(leaves, schema, strict=True) if pa.types.is_floating(field.type)] * 3
    if keys:
        leaves.append(st.tuples(*(_equal(name, domains[name]) for name in keys)).map(_joined))
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.tuples(st.just("not"), inner) | st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        max_leaves=4,
    )


def _joined(parts: Sequence[Tree]) -> Tree:
    tree = parts[0]
    for part in parts[1:]:
        tree = ("and", tree, part)
    return tree


def _equal(name: str, domain: Sequence[Any]) -> st.SearchStrategy[Tree]:
    return st.sampled_from(domain).map(
        lambda value: ("null", name) if value is None else ("nan", name) if value != value else ("=", name, value)
    )


def _comparisons(name: str, domain: Sequence[Any], kind: pa.DataType) -> st.SearchStrategy[Tree]:
    is_null: st.SearchStrategy[Tree] = st.just(("null", name))
    known = [value for value in domain if value is not None and value == value]
    if pa.types.is_nested(kind) or not known:
        return is_null
    value = st.sampled_from(known)
    ways: list[st.SearchStrategy[Tree]] = [
        st.tuples(st.sampled_from(list(SIGNS)), st.just(name), value),
        st.tuples(st.just("in"), st.just(name), value, value),
        st.tuples(st.just("in"), st.just(name), value),
        st.tuples(st.just("between"), st.just(name), value, value),
    ]
    if pa.types.is_floating(kind):
        ways.append(st.just(("nan", name)))
    if pa.types.is_string(kind):
        patterns = st.lists(st.sampled_from(["%", "_", "a", "b", "é", r"\%", r"\\"]), max_size=3).map("".join)
        ways.append(st.tuples(st.just("like"), st.just(name), patterns))
    return st.one_of(*ways, is_null)


def domains_of(made: TableSettings, schema: pa.Schema, names: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return values for each column, as the type has them that the column has by now."""
    domains: dict[str, list[Any]] = {name: [] for name in schema.names}
    for column in (*made.columns, *_ADDED):
        name = names.get(column.name, column.name)
        if name in schema.names:
            for value in (*column.values[:8], *column.kind.wider_values):
                try:
                    domains[name].append(pa.scalar(value, schema.field(name).type).as_py())
                except (pa.ArrowException, OverflowError):
                    continue
    return domains


def compact(table: siltstone.Table, chosen: int) -> None:
    """Run a round of some partitions."""
    for number, source in enumerate(table._sources()):
        if chosen >> number % 4 & 1:
            keys = tuple(table.version.primary_keys)
            how = replace(MINOR, full=chosen > 13)
            run_session(Request(source, compacted_partition(source), keys, table.lake.root, settings=how), run_here)


def change_columns(table: siltstone.Table, choice: int) -> dict[str, str]:
    """Rename a column and drop another one, which may come back empty; return the new name by the old one."""
    version = table.version
    free = [
        name
        for name in version.schema.names
        if name not in {*version.primary_keys, *version.sort_keys, *version.partition_keys}
    ]
    # What a table that keeps history computes, and what it tracks, stays.
    keeps_history = version.merge_engine == "history"
    named = [name for name in version.schema.names if not keeps_history or name not in HISTORY_COLUMNS]
    renamed = {named[choice % len(named)]: NEW_NAME} if choice % 3 else {}
    may_go = choice % 2 and len(free) > 1 and not keeps_history
    dropped = [name for name in free[:1] if name not in renamed and may_go]
    table.alter(rename_columns=renamed, drop_columns=dropped)
    if dropped and choice % 5:
        table.alter(add_columns={dropped[0]: "string"})
    return renamed


@settings(max_examples=12)
@given(
    history=histories(max_writes=5, max_rows=10),
    rounds=st.lists(st.integers(0, 15), min_size=5, max_size=5),
    choice=st.integers(0, 59),
    data=st.data(),
)
def test_a_scan_has_the_rows_of_which_its_filter_is_true(
    history: Any, rounds: list[int], choice: int, data: st.DataObject
) -> None:
    made, writes = history
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    table.alter(properties={"row_group_rows": "2"})
    for number, (write, chosen) in enumerate(zip(writes, rounds, strict=False), start=1):
        write.write_to(table)
        if number < len(writes):
            compact(table, chosen)
    names = change_columns(table, choice)
    schema, keys = table.schema, table.version.primary_keys
    domains = domains_of(made, schema, names)
    for how in ({}, {"fresh": True}, {"as_of": data.draw(st.integers(0, 5), label="position")}):
        rows = table.scan(**how).to_arrow().to_pylist()
        for _ in range(3):
            tree = data.draw(filters(domains, schema, keys), label="filter")
            columns = data.draw(
                st.lists(st.sampled_from(schema.names), max_size=2, unique=True) | st.none(), label="columns"
            )
            wanted = [row for row in rows if holds(tree, row)]
            expected = [{name: row[name] for name in columns or row} for row in wanted] if columns != [] else wanted
            for where in (text_of(tree), expression_of(tree, schema)):
                scan = table.scan(columns, where, **how)
                if columns == []:
                    assert scan.to_arrow().num_rows == len(wanted)
                else:
                    same_rows(scan.to_arrow(), expected)
                assert scan.count() == len(wanted)
                summary = scan.explain()
                assert summary.files == sum(not file.is_delta for file in scan.files())
    forget_logs(table.lake.root)
