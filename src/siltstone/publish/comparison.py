"""Reading a published table through other people's readers, and comparing every row with ours."""

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import ConflictError
from siltstone.publish.cut import rounds_of, take_cut
from siltstone.publish.outcomes import Published

CheckState = Literal["equal", "different", "refused", "absent"]
_MOST_EXAMPLES = 5


@dataclass(frozen=True)
class ReaderCheck:
    """What a reader made of a published table: the same rows, others, none since it refused, or it is not installed."""

    reader: str
    state: CheckState
    rows: int | None = None
    detail: str = ""


def _read_delta_rs(address: str, version: int) -> pa.Table:
    delta = importlib.import_module("deltalake")
    table = delta.DeltaTable(address, version=version)
    return pa.table(delta.QueryBuilder().register("published", table).execute("SELECT * FROM published"))


def _read_polars(address: str, version: int) -> pa.Table:
    frame: Any = importlib.import_module("polars").scan_delta(address, version=version).collect()
    rows: pa.Table = frame.to_arrow()
    return rows


def _read_duckdb(address: str, version: int) -> pa.Table:
    return _scan_by_duckdb("delta", address, "delta")


def _scan_by_duckdb(format: str, path: str, *extensions: str) -> pa.Table:
    # Nothing is to be downloaded for a check.
    settings = {"autoinstall_known_extensions": "false"}
    with importlib.import_module("duckdb").connect(config=settings) as connection:
        try:
            for extension in extensions:
                connection.execute(f"LOAD {_duckdb_extension(extension)}")
        except Exception as error:
            raise ModuleNotFoundError(f"DuckDB's extension {format} is not installed") from error
        rows: pa.Table = connection.sql(f"SELECT * FROM {format}_scan(?)", params=[path]).to_arrow_table()  # noqa: S608
        return rows


def _duckdb_extension(name: str) -> str:
    """Return what is loaded: the extension from its Python package, or the one that DuckDB has installed."""
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = [] if package is None else package.submodule_search_locations or []
    files = [file for folder in folders for file in Path(folder).rglob(f"{name}.duckdb_extension")]
    return f"'{files[0]}'" if files else name


def _metadata_of(address: str, version: int) -> str:
    return f"{address}/metadata/v{version}.metadata.json"


def _read_pyiceberg(address: str, version: int) -> pa.Table:
    table = importlib.import_module("pyiceberg.table").StaticTable.from_metadata(_metadata_of(address, version))
    rows: pa.Table = table.scan().to_arrow()
    return rows


def _read_polars_iceberg(address: str, version: int) -> pa.Table:
    polars = importlib.import_module("polars")
    with warnings.catch_warnings():
        # How to read more quickly does not matter here.
        warnings.simplefilter("ignore", polars.exceptions.PerformanceWarning)
        rows: pa.Table = polars.scan_iceberg(_metadata_of(address, version)).collect().to_arrow()
    return rows


def _read_duckdb_iceberg(address: str, version: int) -> pa.Table:
    return _scan_by_duckdb("iceberg", _metadata_of(address, version), "avro", "iceberg")


_READERS: dict[str, dict[str, tuple[Sequence[str], Callable[[str, int], pa.Table]]]] = {
    "delta": {
        "delta-rs": (["deltalake"], _read_delta_rs),
        "polars": (["polars", "deltalake"], _read_polars),
        "duckdb": (["duckdb"], _read_duckdb),
    },
    "iceberg": {
        "pyiceberg": (["pyiceberg"], _read_pyiceberg),
        "polars": (["polars", "pyiceberg"], _read_polars_iceberg),
        "duckdb": (["duckdb"], _read_duckdb_iceberg),
    },
}


def check_published(published: Published, *, root: str) -> Iterator[ReaderCheck]:
    """Compare all rows of a version that was just published, by key and value, in each reader that is installed.

    Raises: ConflictError where the table was compacted meanwhile, so that there is nothing to compare it with.
    """
    snapshot = take_cut(published.table, root=root)
    if rounds_of(snapshot) != {name: published.rounds.get(name) for name in rounds_of(snapshot)}:
        raise ConflictError(f"{published.table}: was compacted since it was published; publish and check again")
    ours = snapshot.scan().to_arrow()
    for reader, (modules, read) in _READERS[published.format].items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            yield ReaderCheck(reader, "absent", detail=f"{' and '.join(missing)} not installed")
            continue
        try:
            theirs = read(published.address, published.version)
        except ModuleNotFoundError as error:
            yield ReaderCheck(reader, "absent", detail=str(error))
            continue
        except Exception as error:  # noqa: BLE001 - whatever a reader raises is its answer
            yield ReaderCheck(reader, "refused", detail=" ".join(str(error).split())[:300])
            continue
        detail = difference(ours, theirs, snapshot.version.primary_keys)
        yield ReaderCheck(reader, "different" if detail else "equal", theirs.num_rows, detail)


def difference(ours: pa.Table, theirs: pa.Table, keys: Sequence[str]) -> str:
    """Return how the rows of two tables differ, whatever their order; empty where they do not."""
    if set(ours.column_names) != set(theirs.column_names):
        return f"has the columns {', '.join(theirs.column_names)} instead of {', '.join(ours.column_names)}"
    try:
        theirs = theirs.select(ours.column_names).cast(ours.schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return f"has other types ({error})"
    if ours.num_rows != theirs.num_rows:
        return f"has {theirs.num_rows} rows instead of {ours.num_rows}"
    ours, theirs = _ordered(ours, keys), _ordered(theirs, keys)
    differing = [name for name in ours.column_names if not _equal(ours.column(name), theirs.column(name))]
    if not differing:
        return ""
    shown = [*keys, *(name for name in differing if name not in keys)]
    pairs = zip(ours.select(shown).to_pylist(), theirs.select(shown).to_pylist(), strict=True)
    examples = [f"{one} instead of {other}" for other, one in pairs if repr(one) != repr(other)]
    return f"has other values of {', '.join(differing)}: {'; '.join(examples[:_MOST_EXAMPLES])}"


def _ordered(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Sort rows by their keys, and then by all columns that have an order."""
    others = [field.name for field in table.schema if not pa.types.is_nested(field.type) and field.name not in keys]
    names = [*keys, *others]
    return table.sort_by([(name, "ascending") for name in names]) if names else table


def _equal(one: "pa.ChunkedArray[Any]", other: "pa.ChunkedArray[Any]") -> bool:
    if one.equals(other):
        return True
    if pa.types.is_floating(one.type):
        # A number that is none does not equal itself.
        same = pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))
        both = pc.and_(pc.is_null(one), pc.is_null(other))
        return bool(pc.all(pc.fill_null(pc.or_kleene(same, both), False)).as_py())
    return repr(one.to_pylist()) == repr(other.to_pylist()) if pa.types.is_nested(one.type) else False
