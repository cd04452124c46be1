"""The metadata logs of Spark's file sink and file source, byte for byte."""

import contextlib
import io
import itertools
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Literal, NamedTuple, Unpack

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from siltstone.errors import InvalidInputError, NotFoundError
from siltstone.log.batches import BatchFile
from siltstone.log.codec import RecordCodec
from siltstone.log.compactible import CompactibleLog, LogOptions
from siltstone.objects import open_objects

FOLDER = "_spark_metadata"
BLOCK_SIZE = 32 << 20
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_UNCODED = "/=+,:@&~"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://?")
_ESCAPED_IN_FOLDERS = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\\[\]^{]")


def base_uri(root: str | os.PathLike[str]) -> str:
    """Return the URI of a folder as Spark qualifies it; symbolic links stay, since Spark does not resolve them.

    A local path is taken as it is, a URL as percent-encoded already.
    """
    text = os.fspath(root)
    match = _SCHEME.match(text)
    if match is None:
        return "file://" + urllib.parse.quote(os.path.abspath(os.path.expanduser(text)), safe=_UNCODED)
    if match.group(1).lower() == "file":
        return "file://" + urllib.parse.quote(urllib.parse.urlsplit(text).path.rstrip("/"), safe=_UNCODED + "%")
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{urllib.parse.quote(rest.rstrip('/'), safe=_UNCODED + '%')}"


def file_uri(base: str, path: str) -> str:
    """Return the URI of the file at the relative `path` under a folder's URI."""
    return f"{base}/{urllib.parse.quote(path, safe=_UNCODED)}"


def decoded(uri: str) -> str:
    """Return one readable form of a URI: decoded, and `file:/a` as `file:///a`."""
    return re.sub(r"^file:/+", "file:///", urllib.parse.unquote(uri))


def partition_folder(values: Mapping[str, object]) -> str:
    """Return the folder of a partition, such as `day=2024-01-01/city=a%2Fb`; None and "" are the null partition.

    Raises: InvalidInputError for an empty column name.
    """
    if not values or not all(values):
        raise InvalidInputError(f"partition {dict(values)!r} needs at least one column, each with a name")
    return "/".join(f"{_escaped(name)}={_escaped(_text(value))}" for name, value in values.items())


def _text(value: object) -> str:
    if value is None or value == "":
        return NULL_PARTITION
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escaped(text: str) -> str:
    return _ESCAPED_IN_FOLDERS.sub(lambda match: f"%{ord(match.group()):02X}", text)


class SinkEntry(NamedTuple):
    """One data file of an output directory; `path` is absolute, scheme-qualified and percent-encoded."""

    path: str
    size: int
    is_dir: bool
    modified_ms: int
    block_replication: int = 1
    block_size: int = BLOCK_SIZE
    action: str = "add"


_SCHEMA = pa.schema(
    {
        "path": pa.string(),
        "size": pa.int64(),
        "isDir": pa.bool_(),
        "modificationTime": pa.int64(),
        "blockReplication": pa.int32(),
        "blockSize": pa.int64(),
        "action": pa.string(),
    }
)
SINK_CODEC = RecordCodec(SinkEntry, _SCHEMA.names, short=["blockReplication"])
# Text inside a JSON string has its quotes escaped, so in valid JSON this tail can only be the entry's own last fields.
_TAIL = re.compile(
    rb',"modificationTime":([0-9]{1,19}),"blockReplication":[0-9]+,"blockSize":[0-9]+,"action":"[^"\\\n]*"\}$',
    re.MULTILINE,
)


class SinkLog(CompactibleLog[SinkEntry]):
    """The log of an output directory; whoever reads the directory by it sees the listed files and no others.

    With `retention_ms`, entries of older files leave the log at the next compaction; the files stay. `folder` is
    where the log lies in the output directory; Spark reads only the default.
    """

    kind: ClassVar[Literal["sink"]] = "sink"

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        retention_ms: int | None = None,
        folder: str = FOLDER,
        **options: Unpack[LogOptions],
    ) -> None:
        super().__init__(open_objects(output), folder, SINK_CODEC, **options)
        if retention_ms is not None and retention_ms < 0:
            raise InvalidInputError(f"retention of {retention_ms} ms is negative; use None to keep everything")
        self.retention_ms = retention_ms
        self.base_uri = base_uri(output)

    @property
    def filters(self) -> bool:
        """Whether there is a retention."""
        return self.retention_ms is not None

    def retain(self, entry: SinkEntry, now_ms: int) -> bool:
        """Return whether the file is within the retention."""
        return self.retention_ms is None or not now_ms - entry.modified_ms > self.retention_ms

    def retained_block(self, block: bytes, now_ms: int) -> bytes:
        """Drop expired lines by the time near their end; only lines written otherwise are parsed."""
        if self.retention_ms is None:
            return block
        oldest = now_ms - self.retention_ms
        times = [int(digits) for digits in _TAIL.findall(block)]
        if len(times) != block.count(b"\n") + 1:
            return super().retained_block(block, now_ms)
        if min(times) >= oldest:
            return block
        return b"\n".join(itertools.compress(block.split(b"\n"), (time >= oldest for time in times)))

    def entry(self, path: str) -> SinkEntry:
        """Describe the data file at `path`, relative to the output directory, by what the store says of it.

        Raises: NotFoundError, InvalidInputError for a folder or name that Spark would silently ignore.
        """
        *folders, name = path.split("/")
        if (
            name.startswith(".")
            or (name.startswith("_") and "=" not in name)
            or any("=" not in part for part in folders)
        ):
            raise InvalidInputError(
                f"{self.base_uri}/{path}: Spark does not read such a file; put it into the output directory itself or into "
                "column=value folders, under a name that starts with neither '_' nor '.'"
            )
        info = self.objects.info(path)
        if info is None:
            raise NotFoundError(f"{self.base_uri}/{path}: no such data file; write it before logging it")
        return SinkEntry(file_uri(self.base_uri, path), info.size, False, info.modified_ms)

    def add(self, batch_id: int, entries: Iterable[SinkEntry]) -> bool:
        """Commit a batch of files, which must be durable by now; see `MetadataLog.add`.

        Raises: InvalidInputError also for a file named twice, since its rows would count twice.
        """
        batch = list(entries)
        if len({entry.path for entry in batch}) != len(batch):
            raise InvalidInputError(
                f"{self.address()}: batch {batch_id} names a file twice; its rows would count twice"
            )
        return super().add(batch_id, batch)

    def all_files(self) -> list[SinkEntry]:
        """Return the entries that count, oldest first; see `live_entries`."""
        return self.live_entries()

    def to_arrow(self) -> pa.Table:
        """Return what `all_files` does as a table, its columns named like the fields of `SinkEntry`.

        For logs of millions of files: faster, and a fraction of the memory. Raises: as `live_entries`.
        """
        table = self._with_latest_files(self._table).rename_columns(list(SinkEntry._fields))
        if self.retention_ms is None:
            return table
        return table.filter(pc.field("modified_ms") >= self.now_ms() - self.retention_ms)

    def _table(self, files: list[BatchFile]) -> pa.Table:
        blocks = ((file.name, block) for file in files for block in self.read_blocks(file.name))
        with ThreadPoolExecutor() as pool:
            return pa.concat_tables([_SCHEMA.empty_table(), *pool.map(lambda named: self._columns(*named), blocks)])

    def _columns(self, name: str, block: bytes) -> pa.Table:
        """Parse a block as columns where that surely gives what the codec would; what is unusual is left to that."""
        lines = block.count(b"\n") + 1
        if SINK_CODEC.is_plain(block):
            with contextlib.suppress(pa.ArrowInvalid):
                table = pyarrow.json.read_json(
                    io.BytesIO(block),
                    pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                    pyarrow.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
                )
                if table.num_rows == lines and not any(column.null_count for column in table.columns):
                    return table
        entries = self._decoded(name, block, 0)
        return pa.Table.from_arrays(
            [pa.array(column, kind) for column, kind in zip(zip(*entries, strict=True), _SCHEMA.types, strict=True)],
            schema=_SCHEMA,
        )


class SourceEntry(NamedTuple):
    """One input file, and the batch that read it: an entry keeps its own batch id inside compact files."""

    path: str
    timestamp_ms: int
    batch_id: int


SOURCE_CODEC = RecordCodec(SourceEntry, ["path", "timestamp", "batchId"])


class SourceLog(CompactibleLog[SourceEntry]):
    """The log of a file source, at the folder of the source in the query's checkpoint."""

    kind: ClassVar[Literal["source"]] = "source"

    def __init__(self, folder: str | os.PathLike[str], **options: Unpack[LogOptions]) -> None:
        super().__init__(open_objects(folder), "", SOURCE_CODEC, **options)

    def all_files(self) -> list[SourceEntry]:
        """Return all files read so far, oldest first; see `live_entries`."""
        return self.live_entries()

    def restore(self) -> list[SourceEntry]:
        """Return what a query that starts again must know: all files read so far."""
        return self.live_entries()

    def get_range(self, start: int | None = None, end: int | None = None) -> list[tuple[int, list[SourceEntry]]]:
        """Return for each batch from `start` to `end` the entries it added itself.

        Batches whose file has expired are taken from the newest compact file. A range that ends before it starts
        is empty. Raises: CorruptionError where a batch is missing.
        """
        listing = self.listing()
        first = 0 if start is None else start
        last = (listing.latest or 0) if end is None else end
        if first > last:
            return []
        batches = {
            batch_id: [entry for entry in self.read_entries(file.name) if entry.batch_id == batch_id]
            for batch_id, file in listing.plain.items()
            if first <= batch_id <= last
        }
        compact = listing.newest_compact()
        if compact is not None:
            expired = set(range(first, min(last, compact.batch_id) + 1)) - batches.keys()
            batches |= {batch_id: [] for batch_id in expired}
            for part in self.stream_entries(compact.name) if expired else ():
                for entry in part:
                    if entry.batch_id in expired:
                        batches[entry.batch_id].append(entry)
        self.check_range(sorted(batches), start, end)
        return sorted(batches.items())
