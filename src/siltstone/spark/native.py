"""Compacted files by Spark's own Parquet reader, which lays filters and columns on them itself, without their dead rows.

Spark has the file of a row and its position in `_metadata`. Dead rows go by a join that every executor does alone: it holds
a bit for each row of the files that have dead ones, in chunks, of which those without a dead row are left out. So what is
held grows by 128 MB for each billion rows, however many are dead.
"""

import contextlib
import re
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from siltstone.model.buckets import CompactedFile
from siltstone.objects import local_path
from siltstone.rows.files import SharedObjects, StoredFile
from siltstone.rows.slices import by_data_file
from siltstone.spark.tasks import with_access

NATIVE_READS = "spark.siltstone.nativeReads"
"""The setting of a session that, when it is false, has all files read in Python."""

CHUNK_ROWS = 1 << 15
_WORD_ROWS = 64
_FILE_BITS = 32
_METADATA = "_metadata"
_CHUNK, _BITS = "_siltstone_chunk", "_siltstone_bits"
_FEW_FILES = 32
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
    whole, groups, left = list[Slices](), list[dict[int, Slices]](), list[CompactedFile]()
    by_file = list(by_data_file(files))
    numbering = _choose_numbering(by_file)
    for slices in by_file:
        file = slices[0]
        if not StoredFile.together(root, slices).has_dead:
            whole.append(slices)
            continue
        room -= file.stored_rows
        if room < 0:
            left += slices
            continue
        # Two files of one number would lose each other's rows. There is hardly ever more than one group.
        number = numbering.number(file)
        group = next((each for each in groups if number not in each), None)
        if group is None:
            groups.append(group := {})
        group[number] = slices
    beside = _read_beside(whole, groups[0], numbering) if groups else []
    whole = [slices for slices in whole if not beside or numbering.number(slices[0]) in groups[0]]

    def read(chosen: Iterable[Slices]) -> DataFrame:
        return spark.read.schema(schema).parquet(*(paths[slices[0].uri] for slices in chosen))

    frames = [read(whole)] if whole else []
    for group in groups:
        chunks = _dead_chunks(spark, root, group)
        frames.append(_without_dead(read([*group.values(), *beside]), chunks, numbering))
        beside = []
    return frames, left


@dataclass(frozen=True)
class _Numbering:
    """A number for each file, 32 bits with a sign, that the JVM finds out as well: of a file that we know, or of a row's."""

    number: Callable[[CompactedFile], int]
    column: Callable[[], Column]


def _choose_numbering(files: Sequence[Slices]) -> _Numbering:
    """Return the sizes of files as their numbers; where two have the same, hashes of their names, which take longer."""
    sizes = {slices[0].stored_length for slices in files}
    is_unique = len(sizes) == len(files) and max(sizes, default=0) < 1 << (_FILE_BITS - 1)
    return _BY_SIZE if is_unique else _BY_NAME


def _name_number(file: CompactedFile) -> int:
    number = zlib.crc32(file.uri.rpartition("/")[2].encode())
    return number - (1 << _FILE_BITS) if number >> (_FILE_BITS - 1) else number


_BY_SIZE = _Numbering(lambda file: file.stored_length, lambda: sf.col(f"{_METADATA}.file_size"))
_BY_NAME = _Numbering(_name_number, lambda: sf.crc32(sf.col(f"{_METADATA}.file_name").cast("binary")))


def _read_beside(whole: list[Slices], with_dead: dict[int, Slices], numbering: _Numbering) -> list[Slices]:
    """Return files to read with those that have dead rows: to look for a few rows in vain is quicker than one more scan."""
    if _row_count(whole) * _LEAST_PART > _row_count(with_dead.values()):
        return []
    return [slices for slices in whole if numbering.number(slices[0]) not in with_dead]


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


def _without_dead(rows: DataFrame, chunks: DataFrame, numbering: _Numbering) -> DataFrame:
    """Leave out the rows whose bits are set in the chunk that their file and position lead to."""
    number = numbering.column()
    position = sf.col(f"{_METADATA}.row_index")
    chunk = sf.shiftleft(number, _FILE_BITS).bitwiseOR(sf.shiftright(position, _log2(CHUNK_ROWS)))
    is_dead = (chunk == sf.col(_CHUNK)) & (_bit(sf.col(_BITS), position.bitwiseAND(CHUNK_ROWS - 1)) == 1)
    return rows.join(sf.broadcast(chunks), on=is_dead, how="left_anti")


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


def _bit(words: Column, position: Column) -> Column:
    word = sf.get(words, sf.shiftright(position, _log2(_WORD_ROWS)).cast("int"))
    return sf.getbit(word, position.bitwiseAND(_WORD_ROWS - 1).cast("int"))


def _log2(power: int) -> int:
    return power.bit_length() - 1


def _dead_chunks(spark: SparkSession, root: str, group: dict[int, Slices]) -> DataFrame:
    """Return the chunks that have dead rows. Executors make them, but those of a few files sooner than that they are asked."""
    schema = f"{_CHUNK} long, {_BITS} array<long>"
    files = list(group.items())
    if len(files) <= _FEW_FILES:
        return spark.createDataFrame(pa.Table.from_batches([dead_chunks(root, *file) for file in files]), schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield dead_chunks(root, *files[number])

    return spark.range(len(files)).mapInArrow(with_access(root, read), schema)


def dead_chunks(root: str, file: int, slices: Slices) -> pa.RecordBatch:
    """Return the chunks of a file, by its number, that have rows which are dead, or in none of the slices.

    A chunk has a number, and a bit for each row.

    Raises: CorruptionError.
    """
    words = _words(StoredFile.together(root, slices, shared=SharedObjects(root)))
    size = CHUNK_ROWS // _WORD_ROWS
    chunks = {number: words[number * size : (number + 1) * size] for number in range(-(-len(words) // size))}
    found = {number: bits for number, bits in chunks.items() if bits.any()}
    numbers = [file << _FILE_BITS | number for number in found]
    return pa.record_batch(
        {
            _CHUNK: pa.array(numbers, pa.int64()),
            _BITS: pa.array(list(found.values()), pa.list_(pa.int64())),
        }
    )


def _words(stored: StoredFile) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return a bit for each row of a file, set where it is dead, the first in the lowest bit of the first word."""
    live = stored.live_flags()
    dead = np.zeros(-(-len(live) // _WORD_ROWS) * _WORD_ROWS, np.bool_)
    np.logical_not(live, out=dead[: len(live)])
    return np.packbits(dead, bitorder="little").view("<i8")


def _most_rows(spark: SparkSession) -> int:
    """Return for how many rows a bit each leaves room for all else in the driver, and in each executor."""
    memory = [_bytes(spark.conf.get(f"spark.{where}.memory", "1g") or "") for where in ("driver", "executor")]
    return min(memory) // _MEMORY_SHARE * 8


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
