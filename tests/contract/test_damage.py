"""Whatever is damaged in a lake, every read answers or says in an error of ours which file is at fault."""

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.log import SinkEntry, SinkLog, SourceEntry, SourceLog, repair
from siltstone.log import inspect as inspection
from siltstone.log.commit import forget_logs
from siltstone.log.state import CHECKPOINT_INTERVAL
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition, source_partitions

Read = Callable[[], object]
WRONG_VALUES: tuple[object, ...] = (None, [], "x", -1, {"a": [None]})
WRONG_LINES = (b"[]", b"null", b"1", b'"x"', b"{}", b"", b"{")


@pytest.fixture(scope="module")
def sound_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one file of each kind at least: deltas, rounds, deletion vectors, checkpoints, documents."""
    root = tmp_path_factory.mktemp("damage") / "lake"
    lake = siltstone.open(root)
    orders = lake.create_table("shop.orders", schema={"id": "int64", "v": "string"}, primary_keys=["id"])
    orders.write(pa.table({"id": range(50), "v": [f"v{number}" for number in range(50)]}))
    _compact(orders)
    orders.write(pa.table({"id": [1, 2, 60], "v": ["x", "y", "z"]}))
    _compact(orders)
    orders.write(pa.table({"id": [3]}), type="delete")
    events = lake.create_table("shop.events", schema={"id": "int64"}, primary_keys=["id"])
    for number in range(CHECKPOINT_INTERVAL):
        events.write(pa.table({"id": [number]}))
    documents = lake.create_document_table("shop.people")
    documents.update("ann", {"name": "Ann"})
    return root


def _compact(table: siltstone.Table) -> None:
    (source,) = source_partitions(table.name, root=table.lake.root)
    run_session(Request(source, compacted_partition(source), ("id",), table.lake.root), run_here)


def reads_of(root: Path, name: str) -> dict[str, Read]:
    """Every way to read a table; each opens it anew."""

    def lake() -> siltstone.Lake:
        forget_logs(str(root))
        return siltstone.open(root)

    def table() -> siltstone.Table:
        return lake().table(name)

    return {
        "tables": lambda: lake().tables(),
        "to_arrow": lambda: table().to_arrow(include_uncompacted=True),
        "lookup": lambda: table().lookup({"id": 60}),
        "explain_key": lambda: table().explain_key({"id": 1}),
        "rounds": lambda: table().rounds(),
        "deltas": lambda: table().deltas(),
        "fsck": lambda: table().fsck(deep=True),
    }


def reads_of_documents(root: Path) -> dict[str, Read]:
    def table() -> siltstone.DocumentTable:
        forget_logs(str(root))
        return siltstone.open(root).document_table("shop.people")

    return {"get": lambda: table().get("ann"), "scan": lambda: list(table().scan())}


def reads_of_log(folder: Path) -> dict[str, Read]:
    return {
        "show": lambda: inspection.show(folder),
        "files": lambda: list(inspection.files(folder)),
        "verify": lambda: inspection.verify(folder),
        "compact": lambda: repair.compact(folder, dry_run=True),
    }


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a file's bytes cut, flipped and overwritten; and, for lines of JSON, of every wrong shape."""
    size = len(data)
    for length in (0, 1, size // 2, size - 1):
        yield f"cut to {length}", data[:length]
    for place in sorted({0, 2, size // 4, size // 3, size // 2, 3 * size // 4, size - 6, size - 1} & set(range(size))):
        yield f"flipped at {place}", data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :]
        yield f"no text at {place}", data[:place] + b"\xff" + data[place + 1 :]
    yield "overwritten", b"\xff" * size
    if not data.startswith((b"v1", b"{")):
        return
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        for wrong in WRONG_LINES:
            yield f"line {number} is {wrong!r}", b"\n".join([*lines[:number], wrong, *lines[number + 1 :]])
        if line.startswith(b"{"):
            for name, shape in shapes(json.loads(line)):
                wrong = json.dumps(shape, separators=(",", ":")).encode()
                yield f"line {number}: {name}", b"\n".join([*lines[:number], wrong, *lines[number + 1 :]])


def shapes(value: dict[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield an object without each of its fields, and with each as a value of another type, at every depth."""
    for name, inner in value.items():
        yield f"no {name}", {key: each for key, each in value.items() if key != name}
        for wrong in WRONG_VALUES:
            if type(wrong) is not type(inner):
                yield f"{name}={wrong}", {**value, name: wrong}
        first = inner[0] if isinstance(inner, list) and inner else inner
        if isinstance(first, dict):
            for deeper, shape in shapes(first):
                yield f"{name}.{deeper}", {**value, name: [shape, *inner[1:]] if isinstance(inner, list) else shape}


def complaints(
    path: Path, root: Path, reads: dict[str, Read], put: Callable[[Path, bytes], object] = Path.write_bytes
) -> list[str]:
    """Damage a file in every way, and return what is wrong with how reading went."""
    sound = path.read_bytes()
    found = []
    for how, data in damaged(sound):
        put(path, data)
        for what, read in reads.items():
            try:
                read()
            except NotFoundError:
                continue  # damage that looks like a sound log of something else
            except SiltstoneError as error:
                if str(root) not in str(error) and "give a value for each primary key" not in str(error):
                    found.append(f"{path.name} {how}, {what}: names no file: {error!r}")
            except Exception as error:  # noqa: BLE001
                found.append(f"{path.name} {how}, {what}: {error!r}")
    put(path, sound)
    return found


@pytest.mark.parametrize(
    ("table", "pattern"),
    [
        ("shop.orders", "catalog/0"),
        ("shop.orders", "tables/shop/orders/*/log/0"),
        ("shop.orders", "tables/shop/orders/*/log/3"),
        ("shop.events", "tables/shop/events/*/log/*.compact"),
        ("shop.orders", "tables/shop/orders/*/compacted/_/log/1"),
        ("shop.orders", "tables/shop/orders/*/compacted/_/*.parquet"),
        ("shop.orders", "tables/shop/orders/*/compacted/_/*.pki"),
        ("shop.orders", "tables/shop/orders/*/compacted/_/*.bin"),
        ("shop.orders", "tables/shop/orders/*/deltas/_/*.parquet"),
    ],
)
def test_reading_a_table_with_a_damaged_file_names_the_file(
    sound_lake: Path, tmp_path: Path, table: str, pattern: str
) -> None:
    root = tmp_path / "lake"
    shutil.copytree(sound_lake, root)
    path = sorted(root.glob(pattern))[0]
    reads = reads_of(root, table)
    if path.parent.name in ("log", "catalog"):
        reads |= reads_of_log(path.parent)
    assert complaints(path, root, reads) == []


@pytest.mark.parametrize("has_right_checksum", [True, False])
def test_reading_a_table_with_a_damaged_round_completion_file_names_the_file(
    sound_lake: Path, tmp_path: Path, has_right_checksum: bool
) -> None:
    root = tmp_path / "lake"
    shutil.copytree(sound_lake, root)
    (path,) = root.glob("tables/shop/orders/*/compacted/_/rounds/2-*.json")
    log = path.parent.parent / "log/1"

    def put(path: Path, data: bytes) -> None:
        before = b'"checksum":%d,' % zlib.crc32(path.read_bytes())
        path.write_bytes(data)
        if has_right_checksum:
            log.write_bytes(log.read_bytes().replace(before, b'"checksum":%d,' % zlib.crc32(data)))

    reads = reads_of(root, "shop.orders")
    chosen = ("to_arrow", "rounds") if has_right_checksum else ("to_arrow",)
    assert complaints(path, root, {name: reads[name] for name in chosen}, put) == []


@pytest.mark.parametrize("pattern", ["tables/shop/people/*/log/1", "tables/shop/people/*/deltas/_/*.parquet"])
def test_reading_documents_with_a_damaged_file_names_the_file(sound_lake: Path, tmp_path: Path, pattern: str) -> None:
    root = tmp_path / "lake"
    shutil.copytree(sound_lake, root)
    assert complaints(sorted(root.glob(pattern))[0], root, reads_of_documents(root)) == []


@pytest.mark.parametrize("name", ["1", "2.compact", "3"])
@pytest.mark.parametrize("kind", ["sink", "source"])
def test_looking_into_a_damaged_log_of_sparks_names_the_file(tmp_path: Path, kind: str, name: str) -> None:
    sink, source = SinkLog(tmp_path, default_interval=3), SourceLog(tmp_path, default_interval=3)
    for number in range(4):
        if kind == "sink":
            sink.add(number, [SinkEntry(f"file://{tmp_path}/{number}.parquet", 1, False, 1)])
        else:
            source.add(number, [SourceEntry(f"file://{tmp_path}/{number}", 1, number)])
    reads = reads_of_log(tmp_path)
    if kind == "sink":
        reads |= {"all_files": SinkLog(tmp_path).all_files, "to_arrow": SinkLog(tmp_path).to_arrow}
    else:
        reads |= {"restore": SourceLog(tmp_path).restore, "range": lambda: SourceLog(tmp_path).get_range(0, 3)}
    folder = tmp_path / "_spark_metadata" if kind == "sink" else tmp_path
    assert complaints(folder / name, tmp_path, reads) == []
