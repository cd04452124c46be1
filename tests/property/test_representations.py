"""However Arrow lays out the same values, the same rows are written."""

import datetime
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.storage import object_store as storage

Values = Sequence[Any]
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.sampled_from(["a", "", "é", "a text that is too long to be inlined"])),
    (pa.int64(), st.sampled_from([0, 1, -(2**63)])),
    (pa.binary(), st.sampled_from([b"", b"\x00", b"bytes that are too long to be inlined"])),
    (pa.float64(), st.sampled_from([0.5, -1e300])),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.decimal128(6, 2), st.sampled_from([Decimal("1.50"), Decimal("-9999.99")])),
]
Column = tuple[pa.DataType, st.SearchStrategy[Any]]


def nested(column: Column) -> st.SearchStrategy[Column]:
    """Make columns of lists, structs and maps of a column's values."""
    kind, values = column
    inner = st.none() | values
    return st.sampled_from(
        [
            (pa.list_(kind), st.lists(inner, max_size=3)),
            (pa.list_(kind), st.lists(inner, min_size=2, max_size=2)),
            (pa.struct([("x", kind), ("y", pa.int64())]), st.fixed_dictionaries({"x": inner, "y": st.just(1)})),
            (pa.map_(pa.string(), kind), st.lists(st.tuples(st.sampled_from("kl"), inner), max_size=2)),
        ]
    )


COLUMNS = st.recursive(st.sampled_from(SCALARS), lambda inner: inner.flatmap(nested), max_leaves=3)


class Layouts:
    """Lays out values in ways that are drawn."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def any_of(self, *options: Any) -> Any:
        """Choose one."""
        return self._draw(st.sampled_from(options))

    def array(self, values: Values, kind: pa.DataType, *, is_encoded: bool = False) -> Any:
        """Lay out values, perhaps as part of a longer array, by codes or by runs."""
        if self.any_of(False, True) and values:
            return self.array([values[-1], *values], kind, is_encoded=is_encoded).slice(1)
        layout = "plain" if is_encoded else self.any_of("plain", "codes", "runs")
        if layout == "codes" and not pa.types.is_nested(kind):
            return self._codes(values, kind)
        return self._runs(values, kind) if layout == "runs" else self._plain(values, kind)

    def _codes(self, values: Values, kind: pa.DataType) -> Any:
        distinct = list(dict.fromkeys([*values, None] if self.any_of(False, True) else values))
        codes = [distinct.index(value) for value in values]
        indices = pa.array(codes, self.any_of(pa.int8(), pa.uint32(), pa.int64()))
        return pa.DictionaryArray.from_arrays(indices, self.array(distinct, kind, is_encoded=True))

    def _runs(self, values: Values, kind: pa.DataType) -> Any:
        starts = [place for place, value in enumerate(values) if not place or value != values[place - 1]]
        ends = pa.array(
            [*starts[1:], *([len(values)] if values else [])], self.any_of(pa.int16(), pa.int32(), pa.int64())
        )
        return pa.RunEndEncodedArray.from_arrays(
            ends, self.array([values[place] for place in starts], kind, is_encoded=True)
        )

    def _plain(self, values: Values, kind: pa.DataType) -> Any:
        mask = pa.array([value is None for value in values], pa.bool_())
        if pa.types.is_struct(kind):
            children = [self.array([(value or {}).get(field.name) for value in values], field.type) for field in kind]
            fields = [pa.field(field.name, child.type) for field, child in zip(kind, children, strict=True)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        if pa.types.is_map(kind):
            pairs = [pair for value in values for pair in value or []]
            keys = self.array([key for key, _ in pairs], kind.key_type)
            items = self.array([item for _, item in pairs], kind.item_type)
            return pa.MapArray.from_arrays(self._offsets(values, pa.int32()), keys, items, mask=mask)
        if pa.types.is_list(kind):
            return self._list(values, kind, mask)
        if pa.types.is_string(kind):
            return pa.array(values, self.any_of(pa.string(), pa.large_string(), pa.string_view()))
        if pa.types.is_binary(kind):
            return pa.array(values, self.any_of(pa.binary(), pa.large_binary(), pa.binary_view()))
        return pa.array(values, kind)

    def _list(self, values: Values, kind: pa.DataType, mask: Any) -> Any:
        sizes = {len(value) for value in values if value is not None}
        if len(sizes) == 1 and sizes != {0} and self.any_of(False, True):
            (size,) = sizes
            items = self.array([item for value in values for item in value or [None] * size], kind.value_type)
            return pa.FixedSizeListArray.from_arrays(items, size, mask=mask)
        items = self.array([item for value in values for item in value or []], kind.value_type)
        layout = self.any_of("list", "large", "view")
        if layout == "view":
            sizes_of = pa.array([len(value or []) for value in values], pa.int32())
            offsets = self._offsets(values, pa.int32()).slice(0, len(values))
            return pa.ListViewArray.from_arrays(offsets, sizes_of, items, mask=mask)
        array, size = (pa.ListArray, pa.int32()) if layout == "list" else (pa.LargeListArray, pa.int64())
        return array.from_arrays(self._offsets(values, size), items, mask=mask)

    def _offsets(self, values: Values, kind: pa.DataType) -> Any:
        offsets = [0]
        for value in values:
            offsets.append(offsets[-1] + len(value or []))
        return pa.array(offsets, kind)


def written_rows(kind: pa.DataType, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Write batches to a new table and return what is stored."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", kind)])
    table = siltstone.open(f"memory://{uuid.uuid4().hex}").create_table(
        "shop.orders", schema=schema, primary_keys=["id"]
    )
    table.write(batches)
    (delta,) = table.deltas()
    assert table.schema == schema
    rows: list[dict[str, Any]] = storage.download_delta(delta, root=table.lake.root).to_pylist()
    return rows


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_layout_of_the_same_values_is_written_as_the_same_rows(data: st.DataObject) -> None:
    kind, elements = data.draw(COLUMNS)
    values = data.draw(st.lists(st.none() | elements, min_size=1, max_size=6))
    layout = Layouts(data.draw)
    cut = data.draw(st.integers(0, len(values)))
    batches = [
        pa.record_batch({"id": pa.array(range(start, stop), pa.int64()), "v": layout.array(values[start:stop], kind)})
        for start, stop in ((0, cut), (cut, len(values)))
    ]
    expected = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)})
    assert written_rows(kind, batches) == expected.to_pylist()
