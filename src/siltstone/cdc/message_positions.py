"""The source positions of many Debezium messages at once."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.cdc.position import file_number, of_source, pack_columns

Numbers = npt.NDArray[np.uint64]
_SEQUENCE = r'^\s*\[\s*(?:null|"?(?P<commit>\d{1,19})"?)\s*,\s*(?:null|"?(?P<lsn>\d{1,19})"?)\s*\]\s*$'


def positions_of(source: Any, ops: Any, transaction: Any) -> Any:
    """Return the position of each message, as `position.of_source` gives it."""
    names = [field.name for field in source.type]
    connectors = pc.unique(_field(source, "connector")).to_pylist() if "connector" in names else [None]
    fast = {"postgresql": _postgresql, "mysql": _binary_log, "mariadb": _binary_log}
    if len(connectors) == 1 and connectors[0] in fast and _has_times(source):
        return fast[connectors[0]](source, ops, transaction, connectors[0])
    markers = transaction.to_pylist() if transaction.null_count != len(transaction) else [None] * len(source)
    return pa.array(
        [of_source(*each) for each in zip(source.to_pylist(), ops.to_pylist(), markers, strict=True)], pa.binary()
    )


def _field(source: Any, name: str) -> Any:
    return pc.struct_field(source, [source.type.get_field_index(name)])


def _has_times(source: Any) -> bool:
    index = source.type.get_field_index("ts_us")
    return index >= 0 and not _field(source, "ts_us").null_count and pa.types.is_integer(source.type.field(index).type)


def _numbers(source: Any, name: str) -> Numbers:
    index = source.type.get_field_index(name)
    if index < 0 or not pa.types.is_integer(source.type.field(index).type):
        return np.zeros(len(source), np.uint64)
    return _unsigned(_field(source, name))


def _unsigned(values: Any) -> Numbers:
    known = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    unsigned: Numbers = np.maximum(known, 0).astype(np.uint64)
    return unsigned


def _postgresql(source: Any, ops: Any, transaction: Any, connector: str) -> Any:
    commits = np.zeros(len(source), np.uint64)
    own = _numbers(source, "lsn")
    if source.type.get_field_index("sequence") >= 0 and pa.types.is_string(_field(source, "sequence").type):
        found = pc.extract_regex(_field(source, "sequence"), _SEQUENCE)
        commits, lsns = (_parsed(pc.struct_field(found, name)) for name in ("commit", "lsn"))
        own = np.where(lsns > 0, lsns, own)
    place = np.asarray(pc.not_equal(ops, "d").to_numpy(zero_copy_only=False)).astype(np.uint64)
    if transaction.null_count != len(transaction):
        place += _unsigned(_field(transaction, "total_order")) * np.uint64(2)
    return pack_columns(connector, [_numbers(source, "ts_us"), commits, own, place])


def _parsed(texts: Any) -> Numbers:
    empty = pc.equal(texts, "")
    return _unsigned(pc.if_else(empty, None, texts).cast(pa.int64()))


def _binary_log(source: Any, ops: Any, transaction: Any, connector: str) -> Any:
    files = pc.dictionary_encode(_field(source, "file"))
    numbers = np.array([file_number(each) for each in files.dictionary.to_pylist()] + [0], np.uint64)
    indices = pc.fill_null(files.indices, len(numbers) - 1).to_numpy(zero_copy_only=False)
    return pack_columns(
        connector, [_numbers(source, "ts_us"), numbers[indices], _numbers(source, "pos"), _numbers(source, "row")]
    )
