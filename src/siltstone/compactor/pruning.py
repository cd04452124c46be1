"""Which row groups of a file can be left unread: those whose statistics rule out what is asked for."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

Operator = Literal["=", "<", "<=", ">", ">=", "in"]
_AGAINST_MINIMUM: dict[str, Callable[[Any, Any], bool]] = {"<": operator.lt, "<=": operator.le}
_AGAINST_MAXIMUM: dict[str, Callable[[Any, Any], bool]] = {">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Comparison:
    """A column compared with a value, or with several that it may be equal to."""

    column: str
    operator: Operator
    value: object


def may_match(file: pq.ParquetFile, group: int, comparisons: Sequence[Comparison]) -> bool:
    """Tell whether a row group may have rows that fulfil all comparisons; no is certain, yes is not."""
    if not comparisons:
        return True
    metadata = file.metadata.row_group(group)
    places = {metadata.column(place).path_in_schema: place for place in range(metadata.num_columns)}
    for comparison in comparisons:
        place = places.get(comparison.column)
        if place is None:
            continue
        statistics = metadata.column(place).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        # NaN is left out of statistics, and is greater than everything to those who ask.
        if pa.types.is_floating(file.schema_arrow.field(comparison.column).type):
            continue
        try:
            if not _may_be(comparison, statistics.min, statistics.max):
                return False
        except TypeError:
            # Values of another kind than the statistics', e.g. with a time zone and without, rule out nothing.
            continue
    return True


def _may_be(comparison: Comparison, least: Any, greatest: Any) -> bool:
    kind, value = comparison.operator, comparison.value
    if kind in _AGAINST_MINIMUM:
        return _AGAINST_MINIMUM[kind](least, value)
    if kind in _AGAINST_MAXIMUM:
        return _AGAINST_MAXIMUM[kind](greatest, value)
    values: Sequence[Any] = list(value) if kind == "in" else [value]  # type: ignore[call-overload]
    return any(each is not None and least <= each <= greatest for each in values)
