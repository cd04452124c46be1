"""What a filter rules out has no row that it wants: neither by the statistics of row groups, nor by the keys that it names."""

import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.rows.files import group_ranges
from siltstone.table.where import compile_where
from tests.property.test_scans import expression_of, filters, holds, text_of

SCHEMA = pa.schema({"number": pa.int64(), "ratio": pa.float64(), "small": pa.float32(), "name": pa.string()})
DOMAINS: dict[str, list[Any]] = {
    "number": [None, -1, 0, 1, 2**62],
    "ratio": [None, math.nan, -0.0, 0.0, 1.5, math.inf, -math.inf],
    "small": [None, math.nan, -0.0, 0.0, 1.5],
    "name": [None, "", "a", "ab", "b", "é"],
}
KEYS = ["number", "ratio"]


@settings(max_examples=100)
@given(data=st.data())
def test_rows_that_a_filter_wants_are_not_ruled_out(data: st.DataObject) -> None:
    # Few values a column, so that rows often have what the filter names, and nothing but that and NaN.
    domains = {
        name: data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=2), label=name)
        for name, values in DOMAINS.items()
    }
    cells = {name: st.sampled_from(values) for name, values in domains.items()}
    rows = data.draw(st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=3), label="rows")
    tree = data.draw(filters(domains, SCHEMA, KEYS), label="filter")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), sink)
    ranges = group_ranges(pq.ParquetFile(pa.BufferReader(sink.getvalue())), 0)
    wanted = [row for row in rows if holds(tree, row)]
    for where in (text_of(tree), expression_of(tree, SCHEMA)):
        condition = compile_where(where, SCHEMA)
        assert condition.may_match(ranges) or not wanted
        keys = condition.keys(KEYS, SCHEMA)
        if keys is not None:
            named = [tuple(key.values()) for key in keys.to_pylist()]
            for row in wanted:
                assert any(all(map(_is_same, key, (row[name] for name in KEYS))) for key in named)


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))
