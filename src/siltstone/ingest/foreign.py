"""Tables of other formats: Delta Lake, Iceberg, and folders of Parquet files; their columns, and their rows as of one version."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq

from siltstone.errors import InvalidInputError, NotFoundError, require_packages

ForeignFormat = Literal["delta", "iceberg", "parquet"]
FOREIGN_FORMATS: tuple[ForeignFormat, ...] = get_args(ForeignFormat)
_METADATA_NUMBER = re.compile(r"^v?(\d+)[^/]*\.metadata\.json$")


@dataclass(frozen=True)
class ForeignTable:
    """A table of another format at one version.

    `files` has its data files where they are on this machine, are never changed, and have all its rows and columns and no
    others; else it is empty.
    """

    address: str
    format: ForeignFormat
    version: str
    schema: pa.Schema
    partition_keys: tuple[str, ...]
    batches: Callable[[], Iterator[pa.RecordBatch]]
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The table and its version, as one word that no other version has."""
        return f"{self.format}:{self.address}@{self.version}"


def open_foreign(address: str, format: ForeignFormat) -> ForeignTable:
    """Open a table by the folder or URL it is in; nothing of it is changed. Raises: NotFoundError, InvalidInputError."""
    if format not in FOREIGN_FORMATS:
        raise InvalidInputError(f"unknown table format {format!r}; use {', '.join(FOREIGN_FORMATS)}")
    if "://" not in address:
        if not Path(address).exists():
            raise NotFoundError(f"{address}: there is no such folder")
        address = str(Path(address).resolve())
    return {"delta": _open_delta, "iceberg": _open_iceberg, "parquet": _open_parquet}[format](address)


def _open_delta(address: str) -> ForeignTable:
    require_packages("a Delta table", ("deltalake",), "deltalake")
    import deltalake
    from deltalake.exceptions import DeltaError

    try:
        table = deltalake.DeltaTable(address)
    except (DeltaError, OSError) as error:
        raise NotFoundError(f"{address}: is not a Delta table that can be read ({error})") from error
    version, partition_keys = table.version(), tuple(table.metadata().partition_columns)

    def batches() -> Iterator[pa.RecordBatch]:
        names = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in schema.names)
        try:
            # As of the version that was opened, whatever is committed meanwhile.
            found = deltalake.QueryBuilder().register("t", table).execute(f"SELECT {names} FROM t")  # noqa: S608
            yield from pa.RecordBatchReader.from_stream(found)
        except DeltaError as error:
            raise InvalidInputError(f"{address}: cannot be read: {error}") from error

    schema = pa.schema(table.schema().to_arrow())
    features = set(table.protocol().reader_features or ())
    mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    is_plain = not partition_keys and "deletionVectors" not in features and not mapped
    files = _whole_files(table.file_uris(), schema.names) if is_plain else ()
    return ForeignTable(address, "delta", str(version), schema, partition_keys, batches, files)


def _open_iceberg(address: str) -> ForeignTable:
    require_packages("an Iceberg table", ("pyiceberg",), "pyiceberg[pyarrow]")
    from pyiceberg.table import StaticTable
    from pyiceberg.transforms import IdentityTransform

    metadata = _iceberg_metadata(address)
    try:
        table = StaticTable.from_metadata(metadata)
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"{metadata}: is not the metadata of an Iceberg table that can be read ({error})"
        ) from error
    snapshot = table.current_snapshot()
    schema = table.schema().as_arrow()
    keys = [
        table.schema().find_column_name(field.source_id) or ""
        for field in table.spec().fields
        if isinstance(field.transform, IdentityTransform)
    ]

    def batches() -> Iterator[pa.RecordBatch]:
        yield from table.scan().to_arrow_batch_reader() if snapshot is not None else ()

    tasks = list(table.scan().plan_files()) if snapshot is not None else []
    uris = [] if any(task.delete_files for task in tasks) else [task.file.file_path for task in tasks]
    version = "0" if snapshot is None else str(snapshot.snapshot_id)
    ids = [field.field_id for field in table.schema().fields]
    files = _whole_files(uris, schema.names, ids)
    return ForeignTable(address, "iceberg", version, schema, tuple(keys), batches, files)


def _iceberg_metadata(address: str) -> str:
    """Return the newest metadata file of a table; where several have the same number, nobody knows which one it is."""
    if address.endswith(".metadata.json"):
        return address
    if "://" in address:
        raise InvalidInputError(
            f"{address}: name the table's newest metadata file, e.g. {address}/metadata/v3.metadata.json"
        )
    found: dict[int, list[str]] = {}
    for path in Path(address, "metadata").glob("*.metadata.json"):
        match = _METADATA_NUMBER.match(path.name)
        if match:
            found.setdefault(int(match[1]), []).append(str(path))
    newest = found[max(found)] if found else []
    if len(newest) != 1:
        what = "has no" if not newest else f"has {len(newest)} newest"
        raise NotFoundError(f"{address}: {what} metadata file of an Iceberg table; name the file itself")
    return newest[0]


def _open_parquet(address: str) -> ForeignTable:
    filesystem, path = pyarrow.fs.FileSystem.from_uri(address)
    selector = pyarrow.fs.FileSelector(path, recursive=True)
    is_folder = filesystem.get_file_info(path).type == pyarrow.fs.FileType.Directory
    infos = filesystem.get_file_info(selector) if is_folder else [filesystem.get_file_info(path)]
    infos = sorted((info for info in infos if info.is_file and _is_data(info.path, path)), key=lambda info: info.path)
    if not infos:
        raise NotFoundError(f"{address}: has no Parquet files")
    paths = [info.path for info in infos]
    factory = ds.FileSystemDatasetFactory(
        filesystem,
        paths,
        ds.ParquetFileFormat(),
        ds.FileSystemFactoryOptions(
            partitioning=ds.HivePartitioning.discover(infer_dictionary=False), partition_base_dir=path
        ),
    )
    try:
        schema = factory.inspect(promote_options="permissive")
        dataset = factory.finish(schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        raise InvalidInputError(f"{address}: its files are not one table: {error}") from error
    inside = set(pq.read_schema(filesystem.open_input_file(paths[0])).names)
    keys = tuple(name for name in schema.names if name not in inside and f"/{name}=" in paths[0])
    about = "\n".join(f"{info.path} {info.size} {info.mtime_ns}" for info in infos)

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from dataset.to_batches()
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
            raise InvalidInputError(f"{address}: cannot be read: {error}") from error

    # Nobody says that these files will stay as they are.
    return ForeignTable(address, "parquet", hashlib.sha256(about.encode()).hexdigest()[:32], schema, keys, batches)


def _is_data(path: str, folder: str) -> bool:
    inside = path[len(folder) :].split("/")
    return path.endswith((".parquet", ".parq")) and not any(part.startswith(("_", ".")) for part in inside)


def _whole_files(uris: Sequence[str], names: Sequence[str], ids: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return files as local paths where each has just these columns, and where columns have ids, these; else none."""
    paths = [uri.removeprefix("file://") for uri in uris]
    if any("://" in path for path in paths):
        return ()
    for path in paths:
        schema = pq.read_schema(path)
        # After columns were renamed, an older file may have another column under the same name.
        own_ids = [int((field.metadata or {}).get(b"PARQUET:field_id", -1)) for field in schema]
        if schema.names != list(names) or (ids is not None and own_ids != list(ids)):
            return ()
    return tuple(paths)
