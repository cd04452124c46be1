"""Compacted files by Spark's own Parquet reader, which lays filters and columns on them itself, without their dead rows.

Spark has the file of a row and its position in `_metadata`. Which rows are dead tells a bit for each row of the files that have
dead ones, in one array for all files of a scan, that a subquery brings to its tasks. Where there are very many rows, there are
several scans, so that a task has only some megabytes of bits; the driver has 128 MB for each billion rows, however many are dead.
"""

import contextlib
import functools
import re
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from siltstone.model.buckets import CompactedFile
from siltstone.objects import local_path
from siltstone.rows.columns import Integers
from siltstone.rows.files import SharedObjects, StoredFile
from siltstone.rows.slices import by_data_file
from siltstone.spark.tasks import with_access

NATIVE_READS = "spark.siltstone.nativeReads"
"""The setting of a session that, when it is false, has all files read in Python."""

_WORD_ROWS = 64
_HALF = 32
# Of a number that no file has; its words are somewhere in the array, so that any row of another file can be looked up.
_EMPTY_ENTRY = -1 << _HALF
_METADATA = "_metadata"
_PLACE, _WORDS = "place", "words"
_ARRAY, _NUMBER, _POSITION, _DEAD = "_siltstone_words", "_siltstone_file", "_siltstone_position", "_siltstone_dead"
_WORDS_SCHEMA = StructType([StructField(_WORDS, ArrayType(LongType(), containsNull=False), nullable=False)])
_READERS = 8
# Of the files that are read in one scan; more rows only where there would be too many scans.
_MOST_FILES = 512
_SCAN_ROWS = 1 << 26
_MOST_SCANS = 64
_OTHER_FILE = "a data file is not the one that was compacted; run `siltstone fsck` on the table"
# What is dead in so many scans is known sooner than executors would be asked.
_FEW_SCANS = 2
# Files without dead rows are read apart where they have more than this part of the rows of those with some.
_LEAST_PART = 8
_MEMORY_SHARE = 8
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PATTERN = re.compile(r"[][{}*?\\]")
_S3, _S3A = "s3://", "s3a://"
_PROBE_SECONDS = 20.0
Slices = Sequence[CompactedFile]
"""A compacted file, or those of its slices that are read."""

_probed: "WeakKeyDictionary[SparkSession, dict[str, bool]]" = WeakKeyDictionary()


def read_files(
    spark: SparkSession, root: str, schema: StructType, files: Sequence[CompactedFile]
) -> tuple[list[DataFrame], list[CompactedFile]]:
    """Return the live rows of files, as frames; and the files that are left, which must be read in Python.

    Raises: CorruptionError.
    """
    paths = _find_paths(spark, root, files)
    if paths is None:
        return [], list(files)
    # A column of this name hides the one in which Spark has a row's file and position.
    room = 0 if _METADATA in map(str.lower, schema.names) else _most_rows(spark)
    whole, with_dead, left = list[Slices](), list[Slices](), list[CompactedFile]()
    by_file = list(by_data_file(files))
    for slices in by_file:
        if not StoredFile.together(root, slices).has_dead:
            whole.append(slices)
            continue
        room -= slices[0].stored_rows
        if room < 0:
            left += slices
        else:
            with_dead.append(slices)
    numbering = _choose_numbering(by_file)
    scans = _shared_out(with_dead, numbering)
    beside = _read_beside(whole, scans[0], numbering) if scans else {}
    whole = [slices for slices in whole if beside.get(numbering.number(slices[0])) is not slices]

    def read(chosen: Iterable[Slices]) -> DataFrame:
        return spark.read.schema(schema).parquet(*(paths[slices[0].uri] for slices in chosen))

    frames = [read(whole)] if whole else []
    for scan in scans:
        words = _Words(scan, beside)
        array = words.frame(spark, root, is_made_here=len(scans) <= _FEW_SCANS)
        frames.append(_without_dead(read([*scan.values(), *beside.values()]), array, words, numbering))
        beside = {}
    return frames, left


_Scan = dict[int, Slices]
"""Files that are read together, by their numbers."""


@dataclass(frozen=True)
class _Numbering:
    """A number for each file, of 32 bits, that the JVM finds out as well: of a file that we know, or of a row's."""

    number: Callable[[CompactedFile], int]
    column: Callable[[], Column]


def _choose_numbering(files: Sequence[Slices]) -> _Numbering:
    """Return the sizes of files as their numbers; where two have the same, hashes of their names, which take longer."""
    sizes = {slices[0].stored_length for slices in files}
    return _BY_SIZE if len(sizes) == len(files) and max(sizes, default=0) < 1 << 32 else _BY_NAME


_BY_SIZE = _Numbering(lambda file: file.stored_length, lambda: sf.col(f"{_METADATA}.file_size"))
_BY_NAME = _Numbering(
    lambda file: zlib.crc32(file.uri.rpartition("/")[2].encode()),
    lambda: sf.crc32(sf.col(f"{_METADATA}.file_name").cast("binary")),
)


def _shared_out(files: Sequence[Slices], numbering: _Numbering) -> list[_Scan]:
    """Share files among as few scans as they need. Two of one number would lose each other's rows."""
    scans: list[_Scan] = []
    rows: list[int] = []
    most_rows = max(_SCAN_ROWS, _row_count(files) // _MOST_SCANS)
    for slices in files:
        number, own = numbering.number(slices[0]), slices[0].stored_rows
        for place, scan in enumerate(scans):
            if number not in scan and len(scan) < _MOST_FILES and rows[place] + own <= most_rows:
                scan[number] = slices
                rows[place] += own
                break
        else:
            scans.append({number: slices})
            rows.append(own)
    return scans


def _read_beside(whole: list[Slices], scan: _Scan, numbering: _Numbering) -> _Scan:
    """Return files to read with those that have dead rows: to look for a few rows in vain is quicker than one more scan."""
    if _row_count(whole) * _LEAST_PART > _row_count(scan.values()):
        return {}
    beside = {numbering.number(slices[0]): slices for slices in whole[:_MOST_FILES]}
    return {number: slices for number, slices in beside.items() if number not in scan}


def _row_count(files: Iterable[Slices]) -> int:
    return sum(slices[0].stored_rows for slices in files)


def _find_paths(spark: SparkSession, root: str, files: Sequence[CompactedFile]) -> dict[str, str] | None:
    """Return the path of each file for Spark's own reader, or None where it cannot open them."""
    if spark.conf.get(NATIVE_READS, "true") == "false":
        return None
    paths = {}
    for file in files:
        path = local_path(root, file.uri)
        if path is None and not root.startswith(_S3):
            return None
        paths[file.uri] = f"{_S3A}{root.removeprefix(_S3)}/{file.uri}" if path is None else f"file://{path}"
        # Some characters are a pattern to it.
        if _PATTERN.search(paths[file.uri]):
            return None
    is_reached = not root.startswith(_S3) or _reaches(spark, root, paths[files[0].uri], files[0].stored_length)
    return paths if is_reached else None


class _Words:
    """The array by which the rows of a scan are left out: a table of its files, words without a bit, and the words of the files.

    The table has a file's number in the upper half of an entry, and where its words begin in the lower one, at a place that
    follows from the number, see `entry_of`. The words without a bit are for the files `beside`, which have no dead rows.
    """

    def __init__(self, scan: _Scan, beside: _Scan) -> None:
        self._scan = scan
        self._shift, self._size = _spread([*scan, *beside])
        self._empty = max(map(_word_count, beside.values()), default=0)
        self._table = np.full(self._size, _EMPTY_ENTRY, np.int64)
        first = self._size
        starts = first + self._empty + np.cumsum([0, *map(_word_count, scan.values())])
        for number, start in [*zip(scan, starts.tolist(), strict=False), *((number, first) for number in beside)]:
            entry = np.uint64(number << _HALF | start)
            self._table[_place(number, self._shift, self._size)] = entry.view(np.int64)

    def entry_of(self, number: Column, array: Column) -> Column:
        """Return the entry of a file; for a file that is not in the table, another one's or an empty one."""
        place = number.bitwiseXOR(sf.shiftright(number, self._shift)).bitwiseAND(self._size - 1)
        return sf.get(array, place.cast("int"))

    def frame(self, spark: SparkSession, root: str, *, is_made_here: bool) -> DataFrame:
        """Return the array as the only row of a frame: made once, in this process, or by executors whenever it is read."""
        head = np.concatenate([self._table, np.zeros(self._empty, np.int64)])
        files = list(self._scan.values())
        if is_made_here:
            # What takes time is to await a store.
            with ThreadPoolExecutor(_READERS) as pool:
                words = np.concatenate([head, *pool.map(functools.partial(dead_words, root), files)])
            return spark.createDataFrame(_as_table([words]), _WORDS_SCHEMA)

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch.column("id").to_pylist():
                    words = head if place < 0 else dead_words(root, files[place])
                    yield _as_table([words]).add_column(0, _PLACE, pa.array([place])).to_batches()[0]

        pieces = spark.range(-1, len(files)).mapInArrow(with_access(root, read), f"{_PLACE} long, {_WORDS} array<long>")
        sorted_pieces = sf.array_sort(sf.collect_list(sf.struct(_PLACE, _WORDS)))
        return pieces.select(sf.flatten(sf.transform(sorted_pieces, lambda piece: piece[_WORDS])))


def _spread(numbers: Sequence[int]) -> tuple[int, int]:
    """Return a shift, and a power of two, with which each number has a place of its own."""
    given = np.array(numbers, np.int64)
    size = 1 << len(given).bit_length()
    while True:
        for shift in range(1, 32):
            if len(np.unique(_place(given, shift, size))) == len(given):
                return shift, size
        size *= 2


def _place(number: Any, shift: int, size: int) -> Any:
    return (number ^ number >> shift) & size - 1


def _word_count(slices: Slices) -> int:
    return -(-slices[0].stored_rows // _WORD_ROWS)


def _as_table(words: Sequence[Integers]) -> pa.Table:
    return pa.table({_WORDS: pa.array(words, pa.list_(pa.int64()))})


def _without_dead(rows: DataFrame, array: DataFrame, words: _Words, numbering: _Numbering) -> DataFrame:
    """Leave out the rows whose bits are set."""
    # As columns, so that each is computed once.
    position_column = sf.col(f"{_METADATA}.row_index")
    rows = rows.withColumns({_ARRAY: array.scalar(), _NUMBER: numbering.column(), _POSITION: position_column})
    bits, number, position = map(sf.col, (_ARRAY, _NUMBER, _POSITION))
    entry = words.entry_of(number, bits)
    word = entry.bitwiseAND((1 << _HALF) - 1) + sf.shiftright(position, _log2(_WORD_ROWS))
    bit = sf.getbit(sf.get(bits, word.cast("int")), position.bitwiseAND(_WORD_ROWS - 1).cast("int"))
    is_known = (
        sf.when(sf.shiftrightunsigned(entry, _HALF) == number, sf.lit(0))
        # No number has that. But an expression that Spark takes for expensive stays above the filters of queries, so that
        # only rows that pass these are looked up.
        .when(number.cast("string").rlike("-"), sf.lit(0))
    )
    # Null where the file is another one.
    is_dead = sf.coalesce(is_known + bit, sf.raise_error(sf.lit(_OTHER_FILE)))
    rows = rows.withColumn(_DEAD, is_dead).where(sf.col(_DEAD) == 0)
    return rows.drop(_DEAD, _ARRAY, _NUMBER, _POSITION)


def with_nans(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """Keep filters on floating-point numbers from the statistics of files, where NaN is not in the range.

    To Spark, NaN is greater than any number, so that it would take row groups with it for groups without such a value.
    """
    kept = {field.name: sf.col(quoted(field.name)) for field in schema if _has_floats(field.type)}
    computed = {name: _computed(column, schema.field(name).type) for name, column in kept.items()}
    # Over Spark Connect there must be a column.
    return rows.withColumns(computed) if computed else rows


def _has_floats(kind: pa.DataType) -> bool:
    """Return whether Spark may ask statistics about such a column: it does for structs, and not for lists and maps."""
    is_struct = pa.types.is_struct(kind) and any(_has_floats(field.type) for field in kind)
    return pa.types.is_floating(kind) or is_struct


def _computed(column: Column, kind: pa.DataType) -> Column:
    """Return the same values as an expression, of which statistics say nothing."""
    if not pa.types.is_struct(kind):
        return sf.nanvl(column, column)
    for field in kind:
        if _has_floats(field.type):
            column = column.withField(quoted(field.name), _computed(column.getField(field.name), field.type))
    return column


def quoted(name: str) -> str:
    """Return a name as Spark takes it for one, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _log2(power: int) -> int:
    return power.bit_length() - 1


def dead_words(root: str, slices: Slices) -> Integers:
    """Return a bit for each row of a file, the first in the lowest bit of the first word, set where it is dead or in no slice.

    Raises: CorruptionError.
    """
    live = StoredFile.together(root, slices, shared=SharedObjects(root)).live_flags()
    dead = np.zeros(-(-len(live) // _WORD_ROWS) * _WORD_ROWS, np.bool_)
    np.logical_not(live, out=dead[: len(live)])
    return np.packbits(dead, bitorder="little").view("<i8")


def _most_rows(spark: SparkSession) -> int:
    """Return for how many rows a bit each leaves room for all else in the driver."""
    return _bytes(spark.conf.get("spark.driver.memory", "1g") or "") // _MEMORY_SHARE * 8


def _bytes(size: str) -> int:
    """Return a size as Spark writes them, in mebibytes where no unit is given."""
    match = re.match(r"(\d+)([kmgt]?)", size.strip().lower())
    return int(match[1]) * _UNITS[match[2] or "m"] if match else 0


def _reaches(spark: SparkSession, root: str, path: str, size: int) -> bool:
    """Return whether an executor has read a file by the JVM's own means; a root is tried once in a session."""
    known = _probed.setdefault(spark, {})
    if root not in known:
        known[root] = _probe(spark, path, size)
    return known[root]


def _probe(spark: SparkSession, path: str, size: int) -> bool:
    """Read one file: there may be no file system for it, no keys, another store, or nobody who answers."""
    result: Future[bool] = Future()
    tag = f"siltstone-{uuid.uuid4().hex}"

    def run() -> None:
        try:
            spark.addTag(tag)
            sizes = spark.read.schema("nothing int").parquet(path).select(f"{_METADATA}.file_size").limit(1).collect()
            result.set_result([row.file_size for row in sizes] == [size])
        except Exception:  # noqa: BLE001 - whatever it is, the file is read in Python then
            result.set_result(False)

    threading.Thread(target=run, daemon=True).start()
    try:
        return result.result(_PROBE_SECONDS)
    except TimeoutError:
        with contextlib.suppress(Exception):
            spark.interruptTag(tag)
        return False
