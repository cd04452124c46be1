"""A crash at any storage call leaves the old state or the new one, and the next commit works."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import SiltstoneError
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.testing import FaultKind, Killed, faults
from siltstone.testing.faults import FAULT_KINDS

ROWS = pa.table({"id": [1, 2, 3], "zone": ["eu", None, None]})
EARLIER_WRITES = 8  # so that the next commit is the tenth batch of the log, which is followed by a checkpoint

# Faults come from above the store, so S3 is another case only where it has to answer to a request that is repeated.
each_store_and_kind = pytest.mark.parametrize(
    ("store", "kind"), [*(("local", kind) for kind in FAULT_KINDS), ("s3", "lose"), ("s3", "kill_after")]
)


@pytest.fixture(scope="module")
def make_table() -> Callable[[str], siltstone.Table]:
    """Make a table with some history in a new root: all paths are relative, so a copy will do."""
    template = open_objects(f"memory://{uuid.uuid4().hex}")
    table = siltstone.open(template.root).create_table(
        "shop.orders", schema=ROWS.schema, primary_keys=["id"], partition_keys=["zone"], unique_within_partition=True
    )
    table.write(ROWS)
    for _ in range(EARLIER_WRITES - 1):
        table.write(ROWS.schema.empty_table())

    def make(root: str) -> siltstone.Table:
        for object_ in template.list_objects("", recursive=True):
            open_objects(root).create(object_.path, template.read(object_.path))
        return siltstone.open(root).table("shop.orders")

    return make


def attempt(root: str, call: Callable[[], object], *, at_call: int, kind: FaultKind) -> str:
    """Make the call with a fault; tell how it ended."""
    with faults(root, at_call=at_call, kind=kind):
        try:
            call()
        except Killed:
            return "killed"
        except SiltstoneError:
            return "failed"
        return "done"


def calls_of(root: str, call: Callable[[], object]) -> list[str]:
    with faults(root) as store:
        call()
    return store.history


def is_write(call: str) -> bool:
    """Tell whether a call can change what is stored."""
    return call.startswith(("create", "replace", "open writer", "close", "delete"))


def rows_by_position(table: siltstone.Table) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for delta in table.deltas():
        rows = storage.download_delta(delta, root=table.lake.root).column("id").to_pylist()
        found.setdefault(delta.stream_position, []).extend(rows)
    return {position: sorted(rows) for position, rows in found.items()}


@each_store_and_kind
def test_a_fault_at_any_call_of_a_write_leaves_it_there_once_or_not_at_all(
    store: str,
    kind: FaultKind,
    new_root: Callable[[str], str],
    make_table: Callable[[str], siltstone.Table],
) -> None:
    calls = calls_of(root := new_root(store), partial(make_table(root).write, ROWS, idempotency=("job", 1)))
    assert len(calls) > 8, "the write must go through the store that counts"
    outcomes = set()
    for at_call, call in enumerate(calls, 1):
        # On a disk, every call has every fault. On S3, which is slow, what matters is a request that may be repeated.
        if store == "s3" and not is_write(call):
            continue
        root = new_root(store)
        table = make_table(root)
        before = rows_by_position(table)
        outcome = attempt(root, partial(table.write, ROWS, idempotency=("job", 1)), at_call=at_call, kind=kind)
        outcomes.add(outcome)

        after = rows_by_position(table)
        written = {**before, EARLIER_WRITES + 1: [1, 2, 3]}
        assert after in (before, written), f"call {at_call}"
        assert outcome != "done" or after == written, f"call {at_call} was reported done and is not there"
        assert table.write(ROWS, idempotency=("job", 1)) == EARLIER_WRITES + 1
        assert table.write(ROWS.slice(0, 1)) == EARLIER_WRITES + 2
        assert rows_by_position(table) == {**written, EARLIER_WRITES + 2: [1]}
    assert outcomes >= ({"killed"} if "kill" in kind else {"done", "failed"} if store == "local" else {"failed"})


@each_store_and_kind
def test_a_fault_at_any_call_of_a_creation_leaves_a_whole_table_or_none(
    store: str, kind: FaultKind, new_root: Callable[[str], str]
) -> None:
    calls = calls_of(root := new_root(store), partial(make_empty, root))
    for at_call, call in enumerate(calls, 1):
        if store == "s3" and not is_write(call):
            continue
        root = new_root(store)
        outcome = attempt(root, partial(make_empty, root), at_call=at_call, kind=kind)
        lake = siltstone.open(root)
        assert outcome != "done" or lake.has_table("shop.orders")
        table = lake.table("shop.orders") if lake.has_table("shop.orders") else make_empty(root)
        assert table.schema.names == ["id", "zone"]
        assert table.write(ROWS) == 1


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_fault_at_any_call_of_a_rename_leaves_one_name(kind: FaultKind, new_root: Callable[[str], str]) -> None:
    calls = calls_of(root := new_root("local"), partial(make_empty(root).rename, "shop.sales"))
    for at_call in range(1, len(calls) + 1):
        root = new_root("local")
        table = make_empty(root)
        table.write(ROWS)
        attempt(root, partial(table.rename, "shop.sales"), at_call=at_call, kind=kind)
        (only,) = siltstone.open(root).tables()
        assert only.name in ("shop.orders", "shop.sales")
        assert rows_by_position(only) == {1: [1, 2, 3]}


def make_empty(root: str) -> siltstone.Table:
    return siltstone.open(root).create_table("shop.orders", schema=ROWS.schema, partition_keys=["zone"])


def test_a_refused_write_leaves_no_files(local_root: str, make_table: Callable[[str], siltstone.Table]) -> None:
    table = make_table(local_root)
    before = sorted(object_.path for object_ in open_objects(local_root).list_objects("", recursive=True))
    bad = [*ROWS.to_batches(), pa.record_batch({"id": [1], "zone": [1]})]
    with pytest.raises(siltstone.InvalidInputError):
        table.write(bad)
    with pytest.raises(siltstone.InvalidInputError):
        table.write(ROWS, stream_position=1)
    after = sorted(object_.path for object_ in open_objects(local_root).list_objects("", recursive=True))
    assert after == before
