"""Searching every object of a table for a primary key: rows of Parquet files, dead ones included, their statistics, and text.

What kind of file it is shows in its bytes, not in its name, so that kinds are searched that are not known here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.maintenance.file_copies import for_each
from siltstone.model import TableVersion
from siltstone.model.locators import partition_id, partition_value
from siltstone.objects import ObjectInfo, open_objects
from siltstone.rows.columns import Flags
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet
from siltstone.table.scan import key_table

_MAGIC = b"PAR1"
# Text between quotation marks, as in JSON, and in JSON within that; without them, shorter text is there by chance.
_QUOTED = (b'"%s"', b'\\"%s\\"')
_LEAST_BARE = 12


class Found(NamedTuple):
    """An object that holds a key: in so many rows; as text or a bound of statistics; or, `is_part`, in rows of a part of it.

    A delta that deletes by some columns of a primary key is about other keys, too.
    """

    path: str
    size: int
    rows: int = 0
    is_text: bool = False
    is_part: bool = False


@dataclass(frozen=True)
class SoughtKey:
    """A primary key as files have it: one row with the names of columns inside files.

    `partition` is the id of the one partition that can have it, None where any can, and `partition_columns` those that this
    says the values of. `texts` are bytes by which its values can be told from others in any object.
    """

    row: pa.Table
    partition_columns: frozenset[str]
    partition: str | None
    texts: tuple[bytes, ...]

    @property
    def names(self) -> list[str]:
        """The key columns inside files."""
        return list(self.row.column_names)

    @property
    def values(self) -> list[object]:
        """The values of the key, but for those that every row of its partition has."""
        return [self.row.column(name)[0].as_py() for name in self.names if name not in self.partition_columns]

    def flags(self, table: pa.Table, names: Sequence[str] | None = None) -> Flags:
        """Return of each row whether it has the values of the key, or of some columns of it."""
        flags: Flags = np.ones(table.num_rows, bool)
        for name in self.names if names is None else names:
            value, column = self.row.column(name)[0], table.column(name)
            column = column.cast(value.type) if column.type != value.type else column
            if pa.types.is_floating(value.type) and value.is_valid and math.isnan(value.as_py()):
                same = pc.fill_null(pc.is_nan(column), False)
            else:
                same = pc.is_null(column) if not value.is_valid else pc.fill_null(pc.equal(column, value), False)
            flags &= same.to_numpy(zero_copy_only=False)
        return flags

    def columns_in(self, path: str, names: Sequence[str]) -> tuple[list[str], bool]:
        """Return which columns of the key a file has, and whether they, and the partition that it is in, are all of it."""
        present = [name for name in self.names if name in names]
        missing = {*self.names} - {*present}
        in_partition = self.partition is not None and f"/{self.partition}/" in path
        return present, not missing or (bool(present) and missing <= self.partition_columns and in_partition)


def sought_key(version: TableVersion, key: Mapping[str, object]) -> SoughtKey:
    """Return a key to search for. Raises: InvalidInputError."""
    row = key_table(version.schema, version.primary_keys, key)
    partition_keys = [name for name in version.partition_keys if name in row.column_names]
    is_known = len(partition_keys) == len(version.partition_keys)
    values = [partition_value(row.column(name)[0].as_py()) for name in partition_keys]
    own = [name for name in row.column_names if name not in partition_keys] or row.column_names
    return SoughtKey(
        row.rename_columns(version.names_in_files(row.column_names)),
        frozenset(version.names_in_files(partition_keys)),
        partition_id(values) if is_known else None,
        tuple(text for name in own for text in _texts(row.column(name)[0].as_py())),
    )


def _texts(value: object) -> list[bytes]:
    if not isinstance(value, str) or not value:
        return []
    bare = value.encode(errors="surrogatepass")
    inner = orjson.dumps(value)[1:-1] if value.isprintable() else bare
    return [*(pattern % inner for pattern in _QUOTED), *([bare] if len(bare) >= _LEAST_BARE else [])]


def search(root: str, objects: Sequence[ObjectInfo], key: SoughtKey) -> list[Found]:
    """Return those of some objects that hold a key; those that are removed meanwhile do not. Raises: CorruptionError."""
    store = open_objects(root)
    found = for_each(objects, lambda info: _search_one(root, info, key), store)
    return [each for each in found if each is not None]


def _search_one(root: str, info: ObjectInfo, key: SoughtKey) -> Found | None:
    store = open_objects(root)
    try:
        if info.size > len(_MAGIC) and store.read_start(info.path, len(_MAGIC)) == _MAGIC:
            return _search_parquet(root, info, key)
        data = store.read(info.path)
    except NotFoundError:
        return None
    except CorruptionError:
        if store.info(info.path) is None:
            return None
        raise
    is_text = any(text in data for text in key.texts) or _is_bound(data, key)
    return Found(info.path, info.size, is_text=True) if is_text else None


def _search_parquet(root: str, info: ObjectInfo, key: SoughtKey) -> Found | None:
    with open_parquet(root, info.path) as file:
        present, is_whole = key.columns_in(info.path, file.schema_arrow.names)
        try:
            if not present:
                return _search_other(file, info, key)
            rows = sum(
                int(key.flags(pa.Table.from_batches([batch]), present).sum())
                for batch in file.iter_batches(columns=present)
            )
        except DAMAGE_ERRORS as error:
            raise CorruptionError(f"{root}/{info.path}: is damaged ({error}), so that it cannot be searched") from error
    if is_whole:
        is_bound = rows == 0 and len(key.names) == 1 and _is_in_footer(file, key)
        return Found(info.path, info.size, rows, is_text=is_bound) if rows or is_bound else None
    # Partition columns alone are of every row of the partition.
    is_own = any(name not in key.partition_columns for name in present)
    return Found(info.path, info.size, rows, is_part=True) if rows and is_own else None


def _is_in_footer(file: pq.ParquetFile, key: SoughtKey) -> bool:
    """Return whether the value of a key of one column bounds a row group, though no row has it."""
    value, metadata = key.row.column(0)[0].as_py(), file.metadata
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            statistics = column.statistics if column.path_in_schema == key.names[0] else None
            if statistics is not None and statistics.has_min_max and value in (statistics.min, statistics.max):
                return True
    return False


def _search_other(file: pq.ParquetFile, info: ObjectInfo, key: SoughtKey) -> Found | None:
    """Search a Parquet file that is none of rows, such as a checkpoint of another format, as text."""
    data = orjson.dumps(file.read().to_pylist(), default=str, option=orjson.OPT_NON_STR_KEYS)
    is_text = any(text in data for text in key.texts)
    return Found(info.path, info.size, is_text=True) if is_text else None


def _is_bound(data: bytes, key: SoughtKey) -> bool:
    """Return whether lines of JSON have statistics that are bounded by a key of one column, as in the log of a Delta table."""
    if len(key.names) != 1 or b"minValues" not in data:
        return False
    value = orjson.loads(orjson.dumps(key.row.column(0)[0].as_py(), default=str))
    for line in data.splitlines():
        try:
            actions = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        for action in actions.values() if isinstance(actions, dict) else ():
            if value in _bounds(action, key.names[0]):
                return True
    return False


def _bounds(action: Any, name: str) -> list[object]:
    stats = action.get("stats") if isinstance(action, dict) else None
    parsed = orjson.loads(stats) if isinstance(stats, str) else {}
    return [parsed.get(side, {}).get(name) for side in ("minValues", "maxValues") if name in parsed.get(side, {})]
