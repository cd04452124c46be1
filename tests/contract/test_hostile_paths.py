"""A lake that somebody else made: nothing that it names is opened, written or deleted outside its root."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.errors import CorruptionError, SiltstoneError
from siltstone.log.commit import CommitLog
from siltstone.log.state import LogState
from siltstone.objects import open_objects
from siltstone.rounds.request import TableRequest, partition_requests
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.storage.layout import catalog_log, version_log
from siltstone.table.completion import CURRENT_KEY, ROUND_PREFIX
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    compact,
    completion_of,
    destination_of,
    make_table,
    rows,
)

SECRET = "hunter2"
PLACES = ("delta", "round", "file", "index", "vector", "tombstones", "version")
ROUND_PLACES = ("file", "index", "vector", "tombstones")


def make_orders(root: str) -> siltstone.Table:
    """Make a table whose current round has data files, indices, a deletion vector and tombstones; one delta waits."""
    table = make_table(root, sort_keys=["v"])
    table.write(rows(range(20)))
    compact(table, MAJOR)
    table.write(rows([1, 2], "newer"))
    table.write(rows([3, 4], "newer").append_column("op", pa.array(["d", "d"])), op_column="op")
    compact(table, MINOR)
    table.write(rows([5], "waiting"))
    return table


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file outside of every root, which stays as it is."""
    path = tmp_path / "outside" / "secret.parquet"
    path.parent.mkdir()
    pq.write_table(rows(range(20), SECRET), path)
    data = path.read_bytes()
    yield path
    assert [*path.parent.iterdir()] == [path]
    assert path.read_bytes() == data


def path_at(table: siltstone.Table, place: str) -> str:
    """Return the path that a place of a lake names."""
    if place == "delta":
        return table.deltas()[-1].manifest.entries[0].uri
    if place == "version":
        return version_folder(table)
    if place == "round":
        return str(destination_of(table).log.read(lambda state: (state.get(CURRENT_KEY) or {})["uri"]))
    bucket = completion_of(table).buckets[0]
    if place == "tombstones":
        assert bucket.tombstones is not None
        return bucket.tombstones.uri
    file = next(file for file in bucket.files if file.deletion_vector is not None)
    assert file.deletion_vector is not None
    assert file.index_uri is not None
    return {"file": file.uri, "index": file.index_uri, "vector": file.deletion_vector.uri}[place]


def version_folder(table: siltstone.Table) -> str:
    return destination_of(table).folder.rsplit("/", 2)[0]


def put_instead(table: siltstone.Table, place: str, path: str) -> str:
    """Let a lake name another path, by a commit like any other; return where the file is that names it."""
    named, root = path_at(table, place), table.lake.root
    destination = destination_of(table)
    if place in ROUND_PLACES:
        current = destination.log.read(lambda state: state.get(CURRENT_KEY))
        assert current is not None
        stored = open_objects(root).read(current["uri"]).replace(orjson.dumps(named), orjson.dumps(path))
        uri = f"{destination.folder}/rounds/hostile.json"
        open_objects(root).create(uri, stored)
        entry = {**current, "uri": uri, "checksum": zlib.crc32(stored)}
        changes = {CURRENT_KEY: entry, f"{ROUND_PREFIX}{entry['round_id']}": entry}
        destination.log.commit("hostile", lambda state: changes)
        return uri
    log: CommitLog = {
        "version": catalog_log(root),
        "delta": version_log(root, version_folder(table)),
        "round": destination.log,
    }[place]

    def prepare(state: LogState) -> dict[str, Any]:
        lines = [(key, line) for key, line in state.lines.items() if orjson.dumps(named) in line]
        assert lines
        return {key: orjson.loads(line.replace(orjson.dumps(named), orjson.dumps(path))) for key, line in lines}

    return log.address(str(log.commit("hostile", prepare).batch_id))


def work_on(table: siltstone.Table) -> dict[str, Callable[[], object]]:
    """Return all that reads, cleans or writes a table; what brings it back in order comes last."""

    def rebase(name: str) -> list[object]:
        requests = partition_requests(TableRequest(name, table.lake.root, rebase_from=table.name))
        return [run_session(request, run_here) for request in requests]

    return {
        "read": lambda: table.to_arrow().to_pylist(),
        "read with waiting deltas": lambda: table.to_arrow(include_uncompacted=True).to_pylist(),
        "look up": lambda: table.lookup({"id": 5}),
        "explain": lambda: [table.explain_key({"id": number}) for number in (1, 3, 5)],
        "fsck": lambda: [*table.fsck(), *table.fsck(deep=True)],
        "rounds": table.rounds,
        "vacuum": lambda: table.vacuum(retention_ms=0, orphan_grace_ms=0),
        "vacuum dropped": lambda: table.lake.vacuum_dropped(retention_ms=0),
        "write": lambda: table.write(rows([6], "later")),
        "compact": lambda: compact(table, MINOR),
        "compact all": lambda: compact(table, MAJOR),
        "rebase another table": lambda: rebase("shop.copy"),
        "repair": lambda: table.repair(accept_loss=True),
        "rebase": lambda: rebase(table.name),
        "read again": lambda: table.to_arrow(include_uncompacted=True).to_pylist(),
        "read the other table": lambda: siltstone.open(table.lake.root).table("shop.copy").to_arrow().to_pylist(),
    }


def check_work(table: siltstone.Table) -> dict[str, SiltstoneError]:
    """Do all the work; return how it failed. Nothing of the secret is in any answer."""
    failures = {}
    for name, work in work_on(table).items():
        try:
            answer: object = work()
        except SiltstoneError as error:
            failures[name], answer = error, error
        assert SECRET not in repr(answer), name
    return failures


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", ["absolute", "above", "up and down"])
def test_a_path_out_of_the_root_is_refused_by_all_that_opens_it(
    local_root: str, secret: Path, place: str, way: str
) -> None:
    orders = make_orders(local_root)
    make_table(local_root, "shop.copy", sort_keys=["v"])
    target = secret.parent if place == "version" else secret
    path = {
        "absolute": str(target),
        "above": f"../{target.relative_to(secret.parents[1])}",
        "up and down": f"tables/../../{target.relative_to(secret.parents[1])}",
    }[way]
    where = put_instead(orders, place, path)
    error = check_work(orders)["read with waiting deltas"]
    assert isinstance(error, CorruptionError)
    assert where in str(error)
    assert repr(path) in str(error)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("linked", ["itself", "its folder"])
def test_a_link_out_of_the_root_is_not_followed(local_root: str, secret: Path, place: str, linked: str) -> None:
    orders = make_orders(local_root)
    make_table(local_root, "shop.copy", sort_keys=["v"])
    link = Path(local_root, "tables", "link")
    path = "tables/link"
    link.symlink_to(secret if linked == "itself" else secret.parent)
    if linked == "its folder":
        path = "tables/link/secret.parquet"
    put_instead(orders, place, path)
    error = check_work(orders)["read with waiting deltas"]
    assert isinstance(error, CorruptionError)
    assert f"{path}" in str(error)
    assert "symbolic link" in str(error)


@pytest.mark.parametrize("place", ["delta", "file", "version"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../other/secret.parquet"])
def test_paths_are_relative_on_every_store(root: str, place: str, path: str) -> None:
    orders = make_orders(root)
    where = put_instead(orders, place, path)
    with pytest.raises(CorruptionError) as failure:
        orders.to_arrow(include_uncompacted=True)
    assert where in str(failure.value)
    assert repr(path) in str(failure.value)
